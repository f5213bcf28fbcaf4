"""What happens to each member at the end of an epoch: plateau, best weights, divergence, early stop.

The rules are those of `torch.optim.lr_scheduler.ReduceLROnPlateau`, for many members at once, with one addition: a
member whose learning rate cannot fall further when it is due to fall has converged and stops. Everything is a tensor
with a member axis and is changed in place, so that the whole end of an epoch can be captured in a CUDA graph and
needs no look from the host.
"""

from __future__ import annotations

__all__ = ["Control"]

import dataclasses

import torch
from torch import Tensor

from .settings import Settings
from .step import State


@dataclasses.dataclass
class Control:
    """The memory of the plateau rule for M members."""

    best_flat: Tensor  # (M, P) the weights of the best validation loss
    best_loss: Tensor  # (M,) that loss
    best_epoch: Tensor  # (M,)
    reference: Tensor  # (M,) the loss that the next improvement is measured against
    bad_epochs: Tensor  # (M,)
    diverged: Tensor  # (M,) bool

    @staticmethod
    def fresh(state: State) -> Control:
        """Before the first epoch."""
        row = torch.full_like(state.lr, float("inf"))
        none = torch.zeros_like(state.active, dtype=torch.int64)
        return Control(
            best_flat=state.flat.clone(),
            best_loss=row,
            best_epoch=none - 1,
            reference=row.clone(),
            bad_epochs=none.clone(),
            diverged=torch.zeros_like(state.active),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The buffers by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def select(self, keep: Tensor) -> Control:
        """The memory of some of the members."""
        return Control(**{n: t[keep].clone() for n, t in self.tensors().items()})

    def end_epoch(
        self, state: State, train: Tensor, validation: Tensor, epoch: Tensor, absolute: Tensor, settings: Settings
    ) -> None:
        """Judge the epoch's losses, each with shape `(M,)`, and set learning rates, snapshots and who goes on.

        Arguments:
            state: the stack; `lr` and `active` are changed.
            train: the mean training loss.
            validation: the validation loss.
            epoch: the number of the epoch, a scalar tensor.
            absolute: whose threshold is absolute, with shape `(M,)`.
            settings: the protocol.
        """
        on = state.active.clone()
        finite = validation.isfinite() & train.isfinite()
        improved = on & finite & (validation < self.best_loss)
        self.best_flat.copy_(torch.where(improved.unsqueeze(1), state.flat, self.best_flat))
        self.best_loss.copy_(torch.where(improved, validation, self.best_loss))
        self.best_epoch.copy_(torch.where(improved, epoch, self.best_epoch))

        relative_target = self.reference * (1 - settings.threshold)
        target = torch.where(absolute, self.reference - settings.threshold, relative_target)
        better = finite & (validation < target)
        self.reference.copy_(torch.where(on & better, validation, self.reference))
        bad = torch.where(better, 0, self.bad_epochs + 1)
        due = bad > settings.patience
        at_minimum = state.lr <= settings.min_learning_rate * (1 + 1e-6)
        lower = (state.lr * settings.factor).clamp(min=settings.min_learning_rate)
        state.lr.copy_(torch.where(on & due & ~at_minimum, lower, state.lr))
        self.bad_epochs.copy_(torch.where(on, torch.where(due, 0, bad), self.bad_epochs))

        self.diverged.copy_(self.diverged | (on & ~finite))
        converged = due & at_minimum if settings.early_stop else torch.zeros_like(due)
        state.active.copy_(on & finite & ~converged)
