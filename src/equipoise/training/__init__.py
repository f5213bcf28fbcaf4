"""Training: stacks of members, one step for all of them, `fit`."""

from __future__ import annotations

from .fit import Member, fit, fit_many
from .settings import PAPER, RELEASED, Settings

__all__ = ["PAPER", "RELEASED", "Member", "Settings", "fit", "fit_many"]
