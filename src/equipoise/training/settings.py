"""How members are trained.

`DEFAULT` is what `eq.fit` does. `PAPER` is the paper's text: at most 500 epochs of Adam at 1e-3 with batches of 256,
the learning rate divided by 10 after 10 epochs without improvement down to 1e-5, the weights of the best validation
loss kept, no limit on gradients. `RELEASED` is what the published figures show: the last weights of 500 epochs,
validation losses averaged over batches, the trailing partial batch kept, and a plateau recognised relative to the loss
whatever its sign.
"""

from __future__ import annotations

__all__ = ["DEFAULT", "PAPER", "RELEASED", "SMALL", "SMALL_STEPS", "Settings", "batch_for"]

import dataclasses
from typing import Any

from equipoise.support.checks import finite_number, one_of, true_or_false, whole_number

#: The most networks that are trained together, and the most epochs and pairs of a batch:
#: what asks for more is a slip, or a foreign file.
MOST_MEMBERS, MOST_EPOCHS, MOST_BATCH = 10_000, 10_000_000, 1_000_000_000
#: The fewest steps of an epoch where the batch size is chosen.
STEPS_PER_EPOCH = 4

CHOICES = {
    "schedule": ("plateau", "cycle"),
    "threshold_mode": ("auto", "relative", "absolute"),
    "keep": ("best", "last"),
    "validation": ("whole", "batches"),
    "split": ("shuffled", "prefix"),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train; what is not given is the default of `eq.fit`.

    Arguments:
        epochs: at most this many.
        batch_size: pairs in a batch; None for 256, or for fewer where an epoch would have fewer than 4 steps.
        learning_rate: of Adam, at the start, or at the peak of a cycle.
        schedule: "plateau": the learning rate falls whenever the validation loss stops improving. "cycle": it rises to
            `learning_rate` and falls to 0 over `epochs`; a member without improvement over `patience` stops.
        average: validate and keep an exponential average of the weights, of which each step keeps this share; 0 for
            the weights themselves.
        factor: what the learning rate is multiplied by on a plateau.
        patience: epochs without improvement that make a plateau.
        min_learning_rate: where the learning rate stops falling; None for a hundredth of `learning_rate`.
        threshold: how much better counts as an improvement.
        threshold_mode: "relative" (to the best loss), "absolute", or "auto": absolute where the loss can be
            negative, since a relative threshold would then count slow worsening as improvement.
        keep: "best" for the weights of the best validation loss, "last" for the last epoch's.
        early_stop: stop a member once its learning rate is at the minimum and it has stopped improving.
        weight_decay: decoupled, as in AdamW.
        clip: the largest norm of a member's gradient; None for no limit. Without one, spline flows lose what they have
            learnt now and then.
        partial_batch: whether an epoch ends with a smaller batch of what is left.
        validation: "whole" for the loss of the whole validation set, "batches" for the mean of its batches' losses.
        split: which rows are for validation: "shuffled" for random ones, "prefix" for the last.
        tf32: on a GPU, multiply matrices in TF32 (10 bits of mantissa, sums in float32), which is twice as fast or
            more; everything else is float32. A trained posterior follows PyTorch's own switches.
        compile: whether to use torch.compile; None where it pays back within the training, by the clock. Compiled steps
            round differently: give True or False for numbers that repeat to the last bit.
    """

    epochs: int = 500
    batch_size: int | None = None
    learning_rate: float = 1e-3
    schedule: str = "plateau"
    average: float = 0.0
    factor: float = 0.1
    patience: int = 10
    min_learning_rate: float = None  # type: ignore[assignment]  # set below
    threshold: float = 1e-4
    threshold_mode: str = "auto"
    keep: str = "best"
    early_stop: bool = True
    weight_decay: float = 0.0
    clip: float | None = 5.0
    partial_batch: bool = False
    validation: str = "whole"
    split: str = "shuffled"
    tf32: bool = True
    compile: bool | None = None

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "epochs": whole_number("epochs", self.epochs, 1, MOST_EPOCHS),
            "patience": whole_number("patience", self.patience, 0, MOST_EPOCHS),
            "learning_rate": finite_number("learning_rate", self.learning_rate, above=0),
            "average": finite_number("average", self.average, least=0, below=1),
            "factor": finite_number("factor", self.factor, above=0, below=1),
            "threshold": finite_number("threshold", self.threshold, least=0),
            "weight_decay": finite_number("weight_decay", self.weight_decay, least=0),
        }
        if self.batch_size is not None:  # marginal pairs are made by rolling θ through the batch
            checked["batch_size"] = whole_number("batch_size", self.batch_size, 2, MOST_BATCH)
        if self.clip is not None:
            checked["clip"] = finite_number("clip", self.clip, above=0)
        least = checked["learning_rate"] / 100 if self.min_learning_rate is None else self.min_learning_rate
        checked["min_learning_rate"] = finite_number("min_learning_rate", least, above=0)
        if least > checked["learning_rate"]:
            raise ValueError(f"min_learning_rate is at most learning_rate, got {least} and {self.learning_rate}")
        for name, allowed in CHOICES.items():
            one_of(name, getattr(self, name), allowed)
        for name in ("early_stop", "partial_batch", "tf32"):
            true_or_false(name, getattr(self, name))
        if self.compile is not None:
            true_or_false("compile", self.compile)
        for name, value in checked.items():  # NumPy's numbers as Python's
            object.__setattr__(self, name, value)

    def numbers(self) -> dict[str, Any]:
        """What decides the result: everything but whether to compile."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "compile"}


DEFAULT = Settings()
PAPER = Settings(batch_size=256, clip=None, split="prefix")
RELEASED = dataclasses.replace(
    PAPER, keep="last", early_stop=False, threshold_mode="relative", partial_batch=True, validation="batches"
)


#: Of the small networks behind `eq.fit`'s default, whose batch leaves an epoch `SMALL_STEPS` steps.
SMALL = dataclasses.replace(
    DEFAULT, epochs=100, schedule="cycle", learning_rate=6e-3, min_learning_rate=6e-5, average=0.98, patience=8
)
SMALL_STEPS = 12
#: Folds of the default.
FOLDS = 5


def batch_for(n: int, validation_fraction: float, steps: int = STEPS_PER_EPOCH) -> int:
    """Pairs in a batch, the paper's 256 where there are enough: a power of two that leaves an epoch some steps, 4.

    A training ends by epochs (patience, learning rates that fall). If an epoch is a step or two, it ends before
    anything is learnt: with 512 simulations of SLCP a mixture of `bnpe_init` in batches of 256 is the prior (nominal
    log posterior -3.58); in batches of 64 it reaches -2.55, of 16 -2.83. On Two Moons it is 1.20, 2.31 and 2.61, but
    the last is overconfident. So no more steps than it takes.

    Example:
        >>> [batch_for(n, 0.1) for n in (100, 512, 1024, 2048)]
        [16, 64, 128, 256]
    """
    share = int(n * (1 - validation_fraction)) // steps
    return min(256, max(16, 1 << max(share.bit_length() - 1, 0)))
