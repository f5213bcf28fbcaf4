r"""Joint, marginal and contrastive pairs, all from one matrix of log-ratios.

With a batch of B simulated pairs \((\theta_b, x_b)\), rolling θ by r gives \((\theta_{b-r}, x_b)\). The log-ratios
of the rolls r = 0, …, R - 1 form an array with shape `(*, R, B)`:

- R = 1: joint pairs alone, all that `npe` needs;
- R = 2: joint and marginal pairs, for `nre` and the binary balance terms;
- R = K + 1: for `nre_c`, the joint sets are the rolls 0, …, K - 1 (element 0 is the θ that made x, the others are
  independent of it) and the marginal sets the rolls 1, …, K (all independent of x).

Sharing rolls between the two kinds of sets costs K + 1 evaluations where drawing them apart costs 2K, and leaves both
expectations as they are.
"""

from __future__ import annotations

__all__ = ["contrastive_sets", "joint_and_marginal"]

from torch import Tensor


def joint_and_marginal(log_ratios: Tensor) -> tuple[Tensor, Tensor]:
    """The joint and the (first) marginal log-ratios, each with shape `(*, B)`, from rolls with shape `(*, R, B)`."""
    return log_ratios[..., 0, :], log_ratios[..., 1, :]


def contrastive_sets(log_ratios: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """The joint and the marginal sets, each with shape `(*, B, K)`, from K + 1 rolls with shape `(*, K + 1, B)`."""
    return log_ratios[..., :K, :].mT, log_ratios[..., 1 : K + 1, :].mT
