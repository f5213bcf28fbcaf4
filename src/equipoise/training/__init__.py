"""Training: from pairs to posteriors, many members at once.

    fit ──► fit_many ──► train_stack ──► step ──► losses
            inputs       loop            step
            standardize  batches, data   graphs
            modules      checkpoint
            members      state
            outcome, crossfit

Below a function stand the files that it uses; `settings` is used everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.support.imports import lazy

from .settings import DEFAULT, PAPER, RELEASED, SMALL, Settings, batch_for

if TYPE_CHECKING:
    from .fitting import fit as fit
    from .fitting import fit_many as fit_many
    from .members import Member as Member

# What needs torch, which those who only read results do not.
__getattr__ = lazy(__name__, {"fit": "fitting", "fit_many": "fitting", "Member": "members"})

__all__ = ["DEFAULT", "PAPER", "RELEASED", "SMALL", "Member", "Settings", "batch_for", "fit", "fit_many"]
