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

from .fit import FOLDS, fit, fit_many, members_of, mixture_of, suited
from .inputs import Pairs, check_pairs
from .members import Member
from .modules import SHORT, as_embedding
from .settings import DEFAULT, PAPER, RELEASED, SMALL, SMALL_STEPS, Settings, batch_for

__all__ = [
    "DEFAULT",
    "FOLDS",
    "PAPER",
    "RELEASED",
    "SHORT",
    "SMALL",
    "SMALL_STEPS",
    "Member",
    "Pairs",
    "Settings",
    "as_embedding",
    "batch_for",
    "check_pairs",
    "fit",
    "fit_many",
    "members_of",
    "mixture_of",
    "suited",
]
