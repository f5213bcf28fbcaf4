"""Warnings that point at the user's own line, however deep inside Equipoise they arise."""

from __future__ import annotations

__all__ = ["InvalidSimulationsWarning", "warn"]

import sys
import warnings


class InvalidSimulationsWarning(UserWarning):
    """Some simulations have NaN or infinite values and were left out."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is not Equipoise's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "equipoise":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
