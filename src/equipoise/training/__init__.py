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

from .fit import fit, fit_many
from .members import Member
from .settings import DEFAULT, PAPER, RELEASED, SMALL, Settings, batch_for

__all__ = ["DEFAULT", "PAPER", "RELEASED", "SMALL", "Member", "Settings", "batch_for", "fit", "fit_many"]
