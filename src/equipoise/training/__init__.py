"""Training: stacks of members, one step for all of them, `fit`.

    fit ──► inputs ──► members ──► stacking ──► loop ──► outcome
            settings               data         segment: step, shuffle, plateau
                                                checkpoint

Below a stage stands what it uses.
"""

from __future__ import annotations

from .fit import fit, fit_many
from .members import Member
from .settings import PAPER, RELEASED, Settings

__all__ = ["PAPER", "RELEASED", "Member", "Settings", "fit", "fit_many"]
