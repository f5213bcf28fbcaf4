r"""Balance: the divergence between the marginal of the classifier's label and the true one.

With y = 1 for joint and y = 0 for marginal pairs, π(y) = ½ each, and the classifier \(\varpi(y=1|\theta,x) =
\sigma(h)\), the classifier's marginal is \(\varpi(1) = ½[E_{joint} σ(h) + E_{marginal} σ(h)]\). It is balanced when
ϖ(1) = ½, that is when

.. math:: g := E_{joint} σ(h) + E_{marginal} σ(h) - 1 = 0.

- χ²: \(\sum_y (ϖ(y) - π(y))^2 / π(y) = 4(ϖ(1) - ½)^2 = g^2\), the paper's criterion.
- KL: \(KL(π‖ϖ) = -½[\log ϖ(0) + \log ϖ(1)] - \log 2\).
- Multiclass χ² for the K + 1 labels of NRE-C. With \(p_0 = K/(K + γ\sum e^{h_i})\) the classifier's probability of
  "none of them", \(ϖ_0 = [E_{marginal} p_0 + γ E_{joint} p_0]/(1+γ)\). The labels 1, …, K are exchangeable and share
  the rest equally, so the sum over labels is one scalar: \(χ² = (ϖ_0 - π_0)^2 [1/π_0 + 1/(1-π_0)] = (ϖ_0 - π_0)^2
  (1+γ)^2/γ\) with \(π_0 = 1/(1+γ)\). At K = γ = 1 it is the binary χ².

**The batch estimate.** The square of a batch mean overestimates g² by Var(ḡ). With \(s_b\) the b-th term of ḡ,
\((\sum s)^2 = \sum_b \sum_c s_b s_c\), and the products of *independent* terms average to g². Rolling θ makes
neighbours share a θ: terms up to `bandwidth` L apart (cyclically) are dependent, so these n(2L + 1) products are
left out,

.. math:: U = \frac{(\sum s)^2 - \sum_b s_b^2 - 2\sum_{l=1}^{L} \sum_b s_b s_{b+l}}{n(n - 1 - 2L)}.

U is unbiased for g², and may be negative; it is not clamped, because clamping would bias it again. KL is a logarithm of
means and has no such estimate.

**What the bias does.** The plain estimate has the expectation

.. math:: E \bar s^2 = g^2 + \tfrac1n [C_0 + 2 C_1], \quad C_l = \mathrm{Cov}(s_b, s_{b+l}),

with \(C_1\) from the θ that neighbouring rolls share: \(s_{b+1}\) holds \(h(θ_b, x_{b+1})\), and \(s_b\) holds
\(h(θ_b, x_b)\) and \(h(θ_{b-1}, x_b)\), of which the latter depends on θ_b through x_b. So λ(C₀ + 2C₁)/n is added to
the loss whatever g is. Near the prior, r - 1 and h are small and σ(h) ≈ ½ + h/4. Write h as a constant, plus a function
of θ, plus a function of x, plus what depends on both; E h² is then over independent θ and x:

- what depends on both: C₀ = E h²/8, as the two pairs of a term are uncorrelated, and so are neighbours;
- a function of θ alone: C₀ = E h²/8 and 2C₁ = E h²/8, from the shared θ; of x alone: C₀ = E h²/4 and C₁ = 0;
- a constant: no variance, but g² = h²/4. This alone is balance.

The base losses are -κ [E_joint h - ½ E h²] in what depends on both (`base`). Their curvature κ becomes κ + λ/4n, and
the linear part stays. So the minimum moves from log r to about t log r: near the prior the plain estimate *tempers*,

.. math:: t = \frac{1}{1 + λ/(4κn)}.

For λ = 100 and n = 256 this is 0.72 with the cross-entropy of NRE (κ = ¼, t = 1/(1 + λ/n)), 0.82 with NRE-C, and 0.91
with the likelihood loss. For the cross-entropy the curvature is multiplied by 1 + λ/n in what depends on both, by
1 + 2λ/n in functions of θ or x alone, and by 1 + 2λ in constants. Far from the prior σ(h) saturates and the factors
differ (`benchmarks/balance.py` has the numbers). The exact log r is balanced, g = 0, so U leaves it the minimum.

This is of independent pairs. An epoch cuts its batches from N pairs without replacement. The joint pairs, one half of
the variance, then vary by (N - n)/(N - 1) of this: the bias is about 1 - (n - 1)/2(N - 1) of it, 0.86 with N = 921 and
n = 256.
"""

from __future__ import annotations

__all__ = ["balance_chi2", "balance_kl", "balance_multiclass"]

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def balance_chi2(joint: Tensor, marginal: Tensor, *, unbiased: bool = False, bandwidth: int = 1) -> Tensor:
    """The binary χ² criterion (E_joint σ(h) + E_marginal σ(h) - 1)², from log-ratios with shape `(*, B)`; shape `(*,)`.

    Arguments:
        joint: log-ratios of joint pairs.
        marginal: log-ratios of marginal pairs, made by rolling θ by one.
        unbiased: leave out the products of dependent terms (see the module).
        bandwidth: how far apart two terms may be and still share a θ.

    Example:
        >>> import torch
        >>> flat = torch.zeros(256)  # the prior as surrogate
        >>> balance_chi2(flat, flat)
        tensor(0.)
    """
    s = joint.sigmoid() + marginal.sigmoid() - 1
    return _unbiased_square(s, bandwidth) if unbiased else s.mean(-1).square()


def balance_kl(joint: Tensor, marginal: Tensor) -> Tensor:
    """The Kullback–Leibler divergence KL(π(y)‖ϖ(y)), from log-ratios with shape `(*, B)`; shape `(*,)`."""
    one = (joint.sigmoid().mean(-1) + marginal.sigmoid().mean(-1)) / 2
    zero = ((-joint).sigmoid().mean(-1) + (-marginal).sigmoid().mean(-1)) / 2
    return -(zero.log() + one.log()) / 2 - math.log(2)


def balance_multiclass(
    joint_set: Tensor, marginal_set: Tensor, gamma: float = 1.0, *, unbiased: bool = False, bandwidth: int | None = None
) -> Tensor:
    """The χ² criterion over the K + 1 labels of NRE-C, from sets with shape `(*, B, K)`; shape `(*,)`.

    Arguments:
        joint_set: log-ratios of K parameters of which element 0 made x.
        marginal_set: log-ratios of K parameters independent of x.
        gamma: the odds of "one of them made x" against "none did".
        unbiased: leave out the products of dependent terms.
        bandwidth: how far apart two terms may be and still share a θ; K where the sets are rolls of one batch.
    """
    K = joint_set.shape[-1]
    shift = math.log(gamma / K)
    none_joint = (-joint_set.logsumexp(-1) - shift).sigmoid()
    none_marginal = (-marginal_set.logsumexp(-1) - shift).sigmoid()
    s = (none_marginal + gamma * none_joint - 1) / (1 + gamma)
    square = _unbiased_square(s, K if bandwidth is None else bandwidth) if unbiased else s.mean(-1).square()
    return square * (1 + gamma) ** 2 / gamma


def _unbiased_square(s: Tensor, bandwidth: int) -> Tensor:
    """The square of E s from terms with shape `(*, B)` that are dependent up to `bandwidth` apart."""
    n = s.shape[-1]
    if n <= 1 + 2 * bandwidth:
        raise ValueError(f"the unbiased balance needs more than {1 + 2 * bandwidth} pairs in a batch, got {n}")
    total = s.sum(-1).square() - s.square().sum(-1)
    for lag in range(1, bandwidth + 1):
        total = total - 2 * (s * s.roll(-lag, -1)).sum(-1)
    return total / (n * (n - 1 - 2 * bandwidth))
