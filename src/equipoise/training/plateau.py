"""What happens to each member at the end of an epoch: plateau, best weights, divergence, early stop.

The rules are those of `torch.optim.lr_scheduler.ReduceLROnPlateau`, for many members at once, with one addition: a
member whose learning rate cannot fall further when it is due to fall has converged and stops. Everything is a tensor
with a member axis and is changed in place, so that the end of an epoch can be captured in a CUDA graph and the host
never waits for it.
"""

from __future__ import annotations

__all__ = ["apply_plateau_rule"]

import torch
from torch import Tensor

from .settings import Settings
from .state import MemberState


def apply_plateau_rule(state: MemberState, train: Tensor, validation: Tensor, settings: Settings) -> None:
    """Set learning rates, best weights and who goes on, in place.

    Arguments:
        state: the members.
        train: their mean training loss, with shape `(M,)`.
        validation: their validation loss, with shape `(M,)`.
        settings: patience, threshold, factor, least learning rate, early stop.
    """
    active = state.active.clone()
    finite = validation.isfinite() & train.isfinite()
    improved = active & finite & (validation < state.best_loss)
    state.best_weights.copy_(torch.where(improved.unsqueeze(1), state.weights, state.best_weights))
    state.best_loss.copy_(torch.where(improved, validation, state.best_loss))
    state.best_epoch.copy_(torch.where(improved, state.epoch, state.best_epoch))

    relative_target = state.reference * (1 - settings.threshold)
    target = torch.where(state.absolute, state.reference - settings.threshold, relative_target)
    better = finite & (validation < target)
    state.reference.copy_(torch.where(active & better, validation, state.reference))
    bad = torch.where(better, 0, state.bad_epochs + 1)
    due = bad > settings.patience
    at_minimum = state.learning_rate <= settings.min_learning_rate * (1 + 1e-6)
    lower = (state.learning_rate * settings.factor).clamp(min=settings.min_learning_rate)
    state.learning_rate.copy_(torch.where(active & due & ~at_minimum, lower, state.learning_rate))
    state.bad_epochs.copy_(torch.where(active, torch.where(due, 0, bad), state.bad_epochs))

    state.diverged.copy_(state.diverged | (active & ~finite))
    converged = due & at_minimum if settings.early_stop else torch.zeros_like(due)
    state.active.copy_(active & finite & ~converged)
