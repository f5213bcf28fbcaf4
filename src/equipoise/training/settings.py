"""How members are trained: the numbers of a protocol.

`PAPER` is the text's: at most 500 epochs of Adam at 1e-3 with batches of 256, the learning rate divided by 10 after
10 epochs without improvement down to 1e-5, the weights of the best validation loss kept. `RELEASED` is what the
published figures show: the last weights of 500 epochs, validation losses averaged over batches, the trailing partial
batch kept, and a plateau recognised relative to the loss whatever its sign.
"""

from __future__ import annotations

__all__ = ["PAPER", "RELEASED", "Settings"]

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers of a protocol.

    Arguments:
        epochs: at most this many.
        batch_size: pairs in a batch.
        learning_rate: of Adam, at the start.
        factor: what the learning rate is multiplied by on a plateau.
        patience: epochs without improvement that make a plateau.
        min_learning_rate: where the learning rate stops falling.
        threshold: how much better counts as an improvement.
        threshold_mode: "relative" (to the best loss), "absolute", or "auto": absolute where the loss can be
            negative, since a relative threshold would then count slow worsening as improvement.
        keep: "best" for the weights of the best validation loss, "last" for the last epoch's.
        early_stop: stop a member once its learning rate is at the minimum and it has stopped improving.
        weight_decay: decoupled, as in AdamW.
        clip: the largest norm of a member's gradient; None for no limit.
        partial_batch: whether an epoch ends with a smaller batch of what is left.
        validation: "whole" for the loss of the whole validation set, "batches" for the mean of its batches' losses.
        split: "shuffled" or "prefix", which rows are for validation: random ones, or the last.
        tf32: on a GPU, multiply matrices in TF32 (10 bits of mantissa, sums in float32), which is twice as fast or
            more; everything else is float32. A trained posterior follows PyTorch's own switches.
    """

    epochs: int = 500
    batch_size: int = 256
    learning_rate: float = 1e-3
    factor: float = 0.1
    patience: int = 10
    min_learning_rate: float = 1e-5
    threshold: float = 1e-4
    threshold_mode: str = "auto"
    keep: str = "best"
    early_stop: bool = True
    weight_decay: float = 0.0
    clip: float | None = None
    partial_batch: bool = False
    validation: str = "whole"
    split: str = "prefix"
    tf32: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise ValueError(
                f"batch_size={self.batch_size}: marginal pairs are made by rolling θ through the batch, which needs "
                "at least 2 pairs"
            )
        if self.epochs < 1:
            raise ValueError(f"epochs is at least 1, got {self.epochs}")
        for name, allowed in {
            "keep": ("best", "last"),
            "threshold_mode": ("auto", "relative", "absolute"),
            "validation": ("whole", "batches"),
            "split": ("shuffled", "prefix"),
        }.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate is positive, got {self.learning_rate}")
        if not 0 < self.min_learning_rate <= self.learning_rate:
            raise ValueError(
                f"need 0 < min_learning_rate ≤ learning_rate, got {self.min_learning_rate} and {self.learning_rate}"
            )
        if not 0 < self.factor < 1:
            raise ValueError(f"factor, by which the learning rate falls, lies between 0 and 1, got {self.factor}")
        if self.weight_decay < 0 or (self.clip is not None and self.clip <= 0):
            raise ValueError(f"weight_decay is ≥ 0 and clip > 0 or None, got {self.weight_decay} and {self.clip}")


PAPER = Settings()
RELEASED = Settings(keep="last", early_stop=False, threshold_mode="relative", partial_batch=True, validation="batches")
