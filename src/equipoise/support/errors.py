"""Exceptions that callers tell apart by class, and warnings that point at the user's own line."""

from __future__ import annotations

__all__ = ["CheckpointMismatch", "DamagedFile", "InvalidSimulationsWarning", "MissingPart", "PriorMismatch", "warn"]

import sys
import warnings
from types import FrameType


class DamagedFile(ValueError):
    """A file that is cut short, altered, or not what its name says. The message names the file and the remedy."""


class CheckpointMismatch(ValueError):
    """A checkpoint that belongs to another training, or to another version."""


class MissingPart(ValueError):
    """A saved posterior needs an object that files cannot hold: a prior, an embedding or a network of the user's.

    Arguments:
        message: what to do.
        argument: the argument of `eq.load` that takes it.
    """

    def __init__(self, message: str, argument: str) -> None:
        super().__init__(message)
        self.argument = argument


class PriorMismatch(ValueError):
    """The prior given to `eq.load` is not the one that the posterior was trained with.

    Arguments:
        message: what to do.
        stored: the prior that the file holds; None where it cannot hold it.
    """

    def __init__(self, message: str, stored: object = None) -> None:
        super().__init__(message)
        self.stored = stored


class InvalidSimulationsWarning(UserWarning):
    """Some simulations have NaN or infinite values and were left out."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not Equipoise's, however deep inside Equipoise this is called.

    torch's own frames between two of ours (a module's call, `torch.no_grad`) are ours here too.
    """
    level, last, frame = 1, 1, sys._getframe(0)
    inside: FrameType | None = frame
    while inside is not None:
        name = inside.f_globals.get("__name__", "")
        # A method of ours under `torch.no_grad` is called from torch.
        if name.partition(".")[0] == "equipoise" or (name == "torch.utils._contextlib" and last == level - 1):
            last = level
        inside, level = inside.f_back, level + 1
    warnings.warn(message, category, stacklevel=last + 1)
