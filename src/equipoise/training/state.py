"""The state of the members of a stack: one dataclass of tensors with a leading member axis.

A step and the end of an epoch change them in place, so that both can be captured as CUDA graphs. Some rows of the
state are a state too: of the members that go on, or of a checkpoint.
"""

from __future__ import annotations

__all__ = ["HISTORY", "MemberState"]

import dataclasses

import torch
from torch import Tensor

#: What is recorded of each epoch, under the names of a posterior's history.
HISTORY = ("train_loss", "validation_loss", "balance", "validation_balance", "learning_rate")


@dataclasses.dataclass
class MemberState:
    """Everything that is known of M members with P weights each.

    Tensors without an axis (`steps`, `epoch`) are shared by all members.
    """

    # What a step changes.
    weights: Tensor  # (M, P)
    moment_1: Tensor  # (M, P) Adam's mean of gradients
    moment_2: Tensor  # (M, P) Adam's mean of their squares
    average: Tensor  # (M, P) of the weights over the last steps, or (M, 0) where none is kept
    steps: Tensor  # () how many steps were taken
    loss_sum: Tensor  # (M,) over the steps of the epoch so far
    balance_sum: Tensor  # (M,)
    # What the end of an epoch changes.
    epoch: Tensor  # () the number of this epoch
    learning_rate: Tensor  # (M,)
    active: Tensor  # (M,) bool, who is still training
    best_weights: Tensor  # (M, P) those of the best validation loss
    best_loss: Tensor  # (M,)
    best_epoch: Tensor  # (M,) -1 before any finite loss
    reference: Tensor  # (M,) the loss that the next improvement is measured against
    bad_epochs: Tensor  # (M,) epochs without improvement
    diverged: Tensor  # (M,) bool
    history: Tensor  # (M, len(HISTORY), epochs), NaN where a member did not train
    # What stays as it is.
    kind: Tensor  # (M,) which of the stack's objectives a member minimises
    strength: Tensor  # (M,) λ
    absolute: Tensor  # (M,) bool, whose improvement is measured absolutely
    shuffle_key: Tensor  # (M,)
    code_set: Tensor  # (M,) which encoded θ a member reads
    data_set: Tensor  # (M,) which x a member reads
    fold: Tensor  # (M,) which table of rows a member reads

    @staticmethod
    def fresh(
        weights: Tensor, learning_rate: float, epochs: int, averaged: bool = False, **fixed: Tensor
    ) -> MemberState:
        """The state before the first step, of weights `(M, P)` that are changed in place, with room for `epochs`;
        `fixed` is what stays as it is, each with shape `(M,)`, 0 where not given.
        """
        row = weights.new_zeros(len(weights))
        none = torch.zeros_like(row, dtype=torch.int64)
        off = torch.zeros_like(row, dtype=torch.bool)
        constant = dict.fromkeys(("kind", "shuffle_key", "code_set", "data_set", "fold"), none)
        constant |= {"strength": row, "absolute": off}
        return MemberState(
            weights=weights,
            moment_1=torch.zeros_like(weights),
            moment_2=torch.zeros_like(weights),
            average=weights.clone() if averaged else weights.new_empty(len(weights), 0),
            steps=weights.new_zeros(()),
            loss_sum=row.clone(),
            balance_sum=row.clone(),
            epoch=none.new_zeros(()),
            learning_rate=torch.full_like(row, learning_rate),
            active=~off,
            best_weights=weights.clone(),
            best_loss=torch.full_like(row, float("inf")),
            best_epoch=none - 1,
            reference=torch.full_like(row, float("inf")),
            bad_epochs=none.clone(),
            diverged=off.clone(),
            history=weights.new_full((len(weights), len(HISTORY), epochs), float("nan")),
            **(constant | fixed),
        )

    @property
    def judged(self) -> Tensor:
        """The weights that are validated and kept, `(M, P)`: their average, or those of the last step."""
        return self.average if self.average.shape[1] else self.weights

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def select(self, rows: Tensor | slice, device: torch.device | None = None) -> MemberState:
        """A copy of the state of some of the members, here or on another device."""
        return MemberState(**{n: (t[rows] if t.ndim else t).to(device, copy=True) for n, t in self.tensors().items()})

    def clone(self) -> MemberState:
        """A copy."""
        return self.select(slice(None))

    def put(self, rows: Tensor, part: MemberState) -> None:
        """Write the state of some of the members into these rows."""
        for name, value in part.tensors().items():
            mine = getattr(self, name)
            if mine.ndim:
                mine[rows] = value.to(mine.device)
            else:
                mine.copy_(value)
