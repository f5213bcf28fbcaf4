r"""The three base losses.

- NPE: \(-E_{p(\theta,x)} \log q(\theta|x)\), here up to the constant \(-E \log p(\theta)\), which no weight changes;
- NRE: the binary cross-entropy of the classifier σ(h) between joint and marginal pairs;
- NRE-C (Miller et al., 2022): the cross-entropy of a classifier over y = 0, …, K, where y = 0 says that x came from
  none of K parameters and y = k that it came from the k-th, with prior odds γ of "some" against "none".

**Near the prior they are one loss.** Let the true r - 1 and h be small, of one order, and h have mean 0 over θ at
each x and over x at each θ. To second order each loss is, up to a constant,

.. math:: -κ\,[E_{joint} h - ½ E_{marginal} h^2].

The bracket is the gain of E log q(θ|x) over the prior, in nats, once q is normalised. Its maximum is at h = r - 1,
which to this order is log r. The losses differ in κ alone (`objective.information_weight`):

- NPE: a flow is normalised. With the u of such an h its log-ratio is \(u - \log E_{prior} e^u\), which is u - ½ E u²
  on average: κ = 1.
- NRE: softplus(-h) ≈ log 2 - h/2 + h²/8, and with the other sign for marginal pairs: κ = ¼.
- NRE-C: with a = γ/(1 + γ), log(K + γ Σ eʰ) is a constant plus (a/K) Σ (h + h²/2) - (a Σ h/K)²/2. A set has
  E (Σ h)² = K E h², so the two kinds of sets, with their weights, give a(1 - a/K) E h²/2, and -a(1 - a/K) E_joint h
  in the linear part: κ = a(1 - a/K). At K = γ = 1 it is NRE's; at K = 5 and γ = 1 it is 0.45.
"""

from __future__ import annotations

__all__ = ["npe", "nre", "nre_c"]

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def npe(joint: Tensor) -> Tensor:
    """-mean h over joint pairs, with shape `(*, B)`; shape `(*,)`.

    Example:
        >>> import torch
        >>> npe(torch.tensor([1.0, 3.0]))
        tensor(-2.)
    """
    return -joint.mean(-1)


def nre(joint: Tensor, marginal: Tensor) -> Tensor:
    """The mean of the two cross-entropies, ½[E_joint -log σ(h) + E_marginal -log(1 - σ(h))]; shape `(*,)`."""
    from torch.nn.functional import softplus

    return (softplus(-joint).mean(-1) + softplus(marginal).mean(-1)) / 2


def nre_c(joint_set: Tensor, marginal_set: Tensor, gamma: float = 1.0) -> Tensor:
    r"""The contrastive loss of NRE-C.

    .. math:: -\tfrac{1}{1+\gamma} E_0 \log \frac{K}{K + \gamma \sum_i e^{h_i}}
              -\tfrac{\gamma}{1+\gamma} E_K \log \frac{\gamma e^{h_0}}{K + \gamma \sum_i e^{h_i}}

    Arguments:
        joint_set: log-ratios of K parameters of which element 0 made x, with shape `(*, B, K)`.
        marginal_set: log-ratios of K parameters independent of x, with shape `(*, B, K)`.
        gamma: the odds of "one of them made x" against "none did".
    """
    from torch.nn.functional import softplus

    K = joint_set.shape[-1]
    shift = math.log(gamma / K)
    # log(K + γΣeʰ) - log K = softplus(logsumexp(h) + log(γ/K)); the constant log K moves into the second term.
    none = softplus(marginal_set.logsumexp(-1) + shift)
    true = softplus(joint_set.logsumexp(-1) + shift) - joint_set[..., 0] - shift
    return (none.mean(-1) + gamma * true.mean(-1)) / (1 + gamma)
