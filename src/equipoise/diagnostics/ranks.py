r"""Ranks that are exactly uniform under calibration, from samples or from weighted points.

The HPD rank of (θ*, x*) is the mass that p̂(·|x*) puts above the density of θ*. It is estimated from points θ₁, …,
θ_S with weights. The estimates used here rest on one fact, which makes them right at any number of points, few or
many.

**Exchangeability.** Let θ₁, …, θ_S be drawn from a proposal g(θ|x*), let w(θ) = p̂(θ|x*) / g(θ|x*), and let θ* be
drawn from p̂(·|x*), which is what calibration says. Look at the S + 1 points as a set. The density of "this set, and
it is the k-th that is θ*" is w(θ_k) times a factor that does not depend on k. So, given the set, θ* is its k-th point
with probability proportional to w(θ_k). Sort the set by any statistic, stack the weights as intervals that together
fill [0, 1], and choose a uniform point in the interval of θ*: it is uniform on [0, 1]. With V ~ U(0, 1), and tied
points merged into one interval,

.. math:: r = \frac{W_> + V (W_= + w^*)}{W + w^*},

where W_> is the weight of the points strictly above θ*, W_= of those tied with it, W of all, and w* the weight of θ*
itself.

- Samples of p̂ have w = 1: r = (R_> + V(R_= + 1)) / (L + 1). A flat surrogate ties everywhere and comes out
  calibrated.
- Weights need no normaliser, which cancels; a point that cannot have been proposed has weight 0.
- The same holds for a point set that is shifted at random as a whole (a Sobol set modulo 1): let θ* be a point of it,
  chosen at random, and shift the rest accordingly. Given the set, θ* is again its k-th point with probability ∝
  w(θ_k).
- The proposal may depend on x* in any way, for instance on earlier evaluations, but not on θ*.

The statistic is the log density for HPD ranks, -θ_j for SBC ranks, minus the distance to a reference for TARP ranks.
What the number and the weights of the points decide is not validity but sharpness: with an effective number of points
E = (Σw)² / Σw², a rank that is not uniform is pulled towards uniformity by a share of about 1/E.
"""

from __future__ import annotations

__all__ = ["weighted_rank"]

import torch
from torch import Tensor


def weighted_rank(
    statistic: Tensor,
    truth: Tensor,
    *,
    uniform: Tensor,
    log_weight: Tensor | None = None,
    truth_log_weight: Tensor | None = None,
) -> Tensor:
    """The share of weight strictly above the truth, with the truth's own weight and ties split at random.

    Arguments:
        statistic: of the points, with shape `(*, S, B)`.
        truth: of θ*, with shape `(*, B)`.
        uniform: draws V of U(0, 1), with shape `(*, B)`.
        log_weight: of the points, broadcast to `(*, S, B)`; -inf leaves a point out. None: samples, all weights 1.
        truth_log_weight: of θ*, broadcast to `(*, B)`; -inf gives the plain share W_> / W. None: 1.

    Returns:
        With shape `(*, B)`; NaN where the truth's statistic or every weight is NaN.

    Example:
        >>> statistic = torch.tensor([[3.0], [2.0], [1.0]])
        >>> weighted_rank(statistic, torch.tensor([1.5]), uniform=torch.tensor([0.5]))
        tensor([0.6250])
    """
    above, equal = statistic > truth.unsqueeze(-2), statistic == truth.unsqueeze(-2)
    if log_weight is None and truth_log_weight is None:
        own = torch.ones_like(truth)
        mass_above, mass_equal = above.sum(-2).to(truth.dtype), equal.sum(-2).to(truth.dtype)
        total: Tensor | float = float(statistic.shape[-2])
    else:
        log_weight = torch.zeros_like(statistic) if log_weight is None else log_weight.expand_as(statistic)
        truth_log_weight = torch.zeros_like(truth) if truth_log_weight is None else truth_log_weight.expand_as(truth)
        peak = torch.maximum(log_weight.amax(-2), truth_log_weight)
        weight = (log_weight - peak.unsqueeze(-2)).exp()
        own = (truth_log_weight - peak).exp()
        mass_above, mass_equal, total = (weight * above).sum(-2), (weight * equal).sum(-2), weight.sum(-2)
    rank = (mass_above + uniform * (mass_equal + own)) / (total + own)
    return torch.where(truth.isnan(), torch.nan, rank)
