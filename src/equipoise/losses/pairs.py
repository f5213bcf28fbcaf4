r"""Joint, marginal and contrastive pairs, all from one matrix of log-ratios.

With a batch of B simulated pairs \((\theta_b, x_b)\), rolling θ by r gives \((\theta_{b-r}, x_b)\). The log-ratios
of the rolls r = 0, …, R - 1 form an array with shape `(*, R, B)`:

- R = 1: joint pairs alone, all that `npe` needs;
- R = 2: joint and marginal pairs, for `nre` and the binary balance terms;
- R = K + 1: for `nre_c`, the joint sets are the rolls 0, …, K - 1 (element 0 is the θ that made x, the others are
  independent of it) and the marginal sets the rolls 1, …, K (all independent of x);
- R = 2K: for `nre_c` as in the paper's released loss, the joint sets are the rolls 0, …, K - 1 and the marginal sets
  the rolls K, …, 2K - 1, so that the two kinds of sets share no pair.

Sharing rolls costs K + 1 evaluations where drawing the sets apart costs 2K, and leaves both expectations as they are.
What differs is the noise of a step: 2K - 1 negatives of each x instead of K.
"""

from __future__ import annotations

__all__ = ["contrastive_sets", "joint_and_marginal"]

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def joint_and_marginal(log_ratios: Tensor) -> tuple[Tensor, Tensor]:
    """The joint and the (first) marginal log-ratios, each with shape `(*, B)`, from rolls with shape `(*, R, B)`."""
    return log_ratios[..., 0, :], log_ratios[..., 1, :]


def contrastive_sets(log_ratios: Tensor, K: int, share: bool = True) -> tuple[Tensor, Tensor]:
    """The joint and the marginal sets, each with shape `(*, B, K)`, from rolls with shape `(*, R, B)`.

    Arguments:
        log_ratios: of K + 1 rolls and more; of 2K and more where nothing is shared.
        K: the size of a set.
        share: whether the marginal sets begin at roll 1, and share rolls with the joint ones, or at roll K.

    Example:
        >>> import torch
        >>> rolls = torch.arange(6.0)[:, None]  # of a batch of one pair, each roll with its number as log-ratio
        >>> [s.tolist() for s in contrastive_sets(rolls, 3)]
        [[[0.0, 1.0, 2.0]], [[1.0, 2.0, 3.0]]]
        >>> [s.tolist() for s in contrastive_sets(rolls, 3, share=False)]
        [[[0.0, 1.0, 2.0]], [[3.0, 4.0, 5.0]]]
    """
    first = 1 if share else K
    return log_ratios[..., :K, :].mT, log_ratios[..., first : first + K, :].mT
