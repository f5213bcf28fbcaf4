"""Exceptions that callers tell apart by class, and warnings that point at the user's own line."""

from __future__ import annotations

__all__ = [
    "CheckpointMismatch",
    "DamagedFile",
    "InvalidSimulationsWarning",
    "MissingPart",
    "NoPriorMap",
    "PriorMismatch",
    "warn",
]

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


class NoPriorMap(ValueError):
    """A start at the prior needs a prior with a map to N(0, I), and this one has none."""


class InvalidSimulationsWarning(UserWarning):
    """Some simulations have NaN or infinite values and were left out."""


#: Packages whose frames may lie between a user's line and our code: decorators such as `torch.no_grad`.
WRAPPERS = ("torch", "contextlib", "functools")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's line: the one that made the outermost call of Equipoise, however deep inside this is."""
    packages = []
    frame: FrameType | None = sys._getframe(0)
    while frame is not None:
        packages.append(frame.f_globals.get("__name__", "").partition(".")[0])
        frame = frame.f_back
    level = len(packages) - packages[::-1].index("equipoise")  # of the outermost frame of ours, from 1
    while level < len(packages) and packages[level] in WRAPPERS:
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)
