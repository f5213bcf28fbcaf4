"""What a member of a stack minimises: a base loss plus λ times a balance term.

An `Objective` is data. `objective_terms` evaluates the objectives of all members of a stack on one array of
log-ratios, so that members with different losses, balance terms and strengths train in one step.
"""

from __future__ import annotations

__all__ = [
    "BALANCES",
    "LOSSES",
    "Objective",
    "objective_kinds",
    "objective_terms",
    "pairs_needed",
    "prior_loss",
    "rolls_needed",
]

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.support.checks import finite_number, one_of, true_or_false, whole_number

from .balance import balance_chi2, balance_kl, balance_multiclass
from .base import npe, nre, nre_c
from .pairs import contrastive_sets, joint_and_marginal

LOSSES = ("npe", "nre", "nre_c")
BALANCES = ("none", "chi2", "kl", "multiclass")


@dataclasses.dataclass(frozen=True)
class Objective:
    """One member's loss.

    Arguments:
        loss: "npe" (negative log likelihood), "nre" (binary cross-entropy) or "nre_c" (contrastive).
        balance: "none", "chi2", "kl", or "multiclass" (for "nre_c").
        strength: λ, the weight of the balance term.
        unbiased: use the unbiased batch estimate of a χ² term.
        normalized: evaluate the balance term on h - log Ẑ(x), with Ẑ(x) the mean of e^h over `normalizer` rolls of θ. A
            classifier can balance by adding a constant to h; this takes that way out.
        normalizer: how many rolls estimate Ẑ(x).
        contrastive: K, the size of the contrastive sets.
        gamma: γ, the odds of NRE-C.
    """

    loss: str
    balance: str = "none"
    strength: float = 0.0
    unbiased: bool = False
    normalized: bool = False
    normalizer: int = 16
    contrastive: int = 5
    gamma: float = 1.0

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES)
        one_of("balance", self.balance, BALANCES)
        for name in ("unbiased", "normalized"):
            true_or_false(name, getattr(self, name))
        finite_number("strength, the weight λ of the balance,", self.strength, least=0)
        finite_number("gamma", self.gamma, above=0)
        whole_number("contrastive", self.contrastive, least=1)
        whole_number("normalizer", self.normalizer, least=1)
        if self.balance == "multiclass" and self.loss != "nre_c":
            raise ValueError(f"multiclass balance is for contrastive losses (nre_c), not for {self.loss}; use 'chi2'")
        if self.balance == "kl" and self.unbiased:
            raise ValueError("KL balance is a logarithm of means and has no unbiased estimate; use 'chi2'")

    @property
    def balanced(self) -> bool:
        """Whether the balance term has any weight."""
        return self.balance != "none" and self.strength > 0

    @property
    def can_be_negative(self) -> bool:
        """Whether the loss has no lower bound at 0, which decides how a plateau is recognised."""
        return self.loss == "npe" or (self.unbiased and self.balanced)


def rolls_needed(objective: Objective) -> int:
    """How many rolls of θ through the batch the objective looks at.

    Example:
        >>> [rolls_needed(Objective(loss)) for loss in LOSSES]
        [1, 2, 6]
    """
    rolls = {"npe": 1, "nre": 2, "nre_c": objective.contrastive + 1}[objective.loss]
    if objective.balanced:
        rolls = max(rolls, 2)
        if objective.normalized:
            rolls = max(rolls, objective.normalizer + 1)
    return rolls


def pairs_needed(objective: Objective) -> int:
    """The fewest pairs that an objective can be computed of.

    An unbiased balance leaves out terms that share a θ, and needs one pair of terms that do not.

    Example:
        >>> [pairs_needed(Objective("nre", "chi2", 100.0, unbiased=unbiased)) for unbiased in (False, True)]
        [2, 4]
    """
    least = max(2, rolls_needed(objective))
    unbiased = objective.balanced and objective.unbiased and objective.balance != "kl"
    return max(least, 2 + 2 * _bandwidth(objective)) if unbiased else least


def prior_loss(objective: Objective) -> float:
    """The loss of a surrogate that is the prior: every log-ratio is 0, and it is balanced.

    Example:
        >>> [round(prior_loss(Objective(loss, "chi2", 100.0)), 3) for loss in LOSSES]
        [0.0, 0.693, 1.498]
    """
    h = torch.zeros(1, rolls_needed(objective), pairs_needed(objective))
    total, _ = objective_terms(h, [objective], torch.zeros(1, dtype=torch.int64), torch.tensor([objective.strength]))
    return float(total)


def _bandwidth(objective: Objective) -> int:
    """How far apart two terms of the balance may be and still share a θ."""
    bandwidth = objective.contrastive if objective.balance == "multiclass" else 1
    return max(bandwidth, objective.normalizer) if objective.normalized else bandwidth


def objective_kinds(objectives: Sequence[Objective]) -> tuple[list[Objective], list[int]]:
    """The distinct objectives when strengths are set aside, and which of them each member has.

    Example:
        >>> kinds, index = objective_kinds(
        ...     [Objective("nre"), Objective("nre", "chi2", 1.0), Objective("nre", "chi2", 100.0)]
        ... )
        >>> len(kinds), index
        (2, [0, 1, 1])
    """
    kinds: dict[Objective, int] = {}
    index = []
    for objective in objectives:
        kind = dataclasses.replace(objective, strength=1.0)
        if not objective.balanced:
            kind = Objective(objective.loss, contrastive=objective.contrastive, gamma=objective.gamma)
        index.append(kinds.setdefault(kind, len(kinds)))
    return list(kinds), index


def objective_terms(
    log_ratios: Tensor, kinds: Sequence[Objective], index: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss of each member and, within it, its balance term (without λ).

    Arguments:
        log_ratios: with shape `(M, R, B)`, R at least what each kind needs.
        kinds: the distinct objectives of the stack, from `objective_kinds`.
        index: which kind each member has, with shape `(M,)`.
        strength: λ of each member, with shape `(M,)`; whatever it says, an unbalanced kind adds nothing.

    Returns:
        The total losses and the balance terms, each with shape `(M,)`. An unbalanced member's balance term is what
        χ² would be (for the record) where marginal pairs were evaluated, NaN otherwise.
    """
    total = log_ratios.new_zeros(log_ratios.shape[0])
    balances = torch.full_like(total, float("nan"))
    for k, kind in enumerate(kinds):
        mine = index == k
        # A member sees 0 in the formulas that are not its own, so that none of them can hand it a NaN gradient.
        h = log_ratios if len(kinds) == 1 else torch.where(mine[:, None, None], log_ratios, 0.0)
        balance = _balance(h, kind)
        if kind.loss == "npe":
            loss = npe(h[..., 0, :])
        elif kind.loss == "nre":
            loss = nre(*joint_and_marginal(h))
        else:
            loss = nre_c(*contrastive_sets(h, kind.contrastive), gamma=kind.gamma)
        if kind.balanced:
            loss = loss + strength * balance
        total = torch.where(mine, loss, total)
        balances = torch.where(mine, balance, balances)
    return total, balances


def _balance(h: Tensor, objective: Objective) -> Tensor:
    rolls = h.shape[-2]
    if not objective.balanced:
        return balance_chi2(*joint_and_marginal(h)) if rolls > 1 else h.new_full(h.shape[:-2], float("nan"))
    bandwidth = _bandwidth(objective)
    if objective.normalized:
        log_z = torch.logsumexp(h[..., 1 : objective.normalizer + 1, :], -2, keepdim=True)
        h = h - (log_z - math.log(objective.normalizer))
    if objective.balance == "chi2":
        return balance_chi2(*joint_and_marginal(h), unbiased=objective.unbiased, bandwidth=bandwidth)
    if objective.balance == "kl":
        return balance_kl(*joint_and_marginal(h))
    sets = contrastive_sets(h, objective.contrastive)
    return balance_multiclass(*sets, gamma=objective.gamma, unbiased=objective.unbiased, bandwidth=bandwidth)
