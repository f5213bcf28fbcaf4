r"""Losses and balance terms: pure functions of log-ratios.

Everything that can be trained gives \(h(\theta, x) = \log \hat q(\theta|x) - \log p(\theta)\). A training batch
gives the matrix of log-ratios \(h_{b,r} = h(\theta_{b-r}, x_b)\), where r rolls θ through the batch: r = 0 is a
joint pair \((\theta, x) \sim p(\theta, x)\), any other r a marginal pair \((\theta, x) \sim p(\theta)p(x)\). From
its columns come the arguments of every function here; see `pairs`.

The batch is the last axis (for sets: the last but one), and leading axes, the members of a stack, are kept.
"""

from __future__ import annotations

from .balance import balance_chi2, balance_kl, balance_multiclass
from .base import npe, nre, nre_c
from .objective import (
    BALANCES,
    LOSSES,
    Objective,
    batch_temperature,
    information_weight,
    objective_kinds,
    objective_terms,
    pairs_needed,
    prior_loss,
    rolls_needed,
)
from .pairs import contrastive_sets, joint_and_marginal

__all__ = [
    "BALANCES",
    "LOSSES",
    "Objective",
    "balance_chi2",
    "balance_kl",
    "balance_multiclass",
    "batch_temperature",
    "contrastive_sets",
    "information_weight",
    "joint_and_marginal",
    "npe",
    "nre",
    "nre_c",
    "objective_kinds",
    "objective_terms",
    "pairs_needed",
    "prior_loss",
    "rolls_needed",
]
