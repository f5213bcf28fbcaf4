"""What a member of a stack minimises: a base loss plus λ times a balance term.

An `Objective` is data. `objective_terms` evaluates the objectives of all members of a stack on one array of
log-ratios, so that members with different losses, balance terms and strengths train in one step.
"""

from __future__ import annotations

__all__ = [
    "BALANCES",
    "LOSSES",
    "Objective",
    "batch_temperature",
    "information_weight",
    "objective_kinds",
    "objective_terms",
    "pairs_needed",
    "prior_loss",
    "rolls_needed",
]

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from equipoise.support.checks import one_of, true_or_false

from .balance import balance_chi2, balance_kl, balance_multiclass
from .base import npe, nre, nre_c
from .pairs import contrastive_sets, joint_and_marginal

if TYPE_CHECKING:
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Term:
    """A row of the tables below: what computes a loss or a balance term.

    Arguments:
        function: of log-ratios, with the member axis first; gives one number per member.
        of: what it is a function of (see `pairs`): "joint" pairs alone, joint and marginal "pairs", or both kinds of
            contrastive "sets".
        takes: the fields of an `Objective` that it takes as keywords. A balance term that takes "unbiased" and
            "bandwidth" has an unbiased estimate.
        weight: of a base loss, κ: what it falls by, near the prior, for every nat of information; None where nobody has
            derived it.
    """

    function: Callable[..., Tensor]
    of: str
    takes: tuple[str, ...] = ()
    weight: Callable[[Objective], float] | None = None

    def rolls(self, objective: Objective) -> int:
        """How many rolls of θ it looks at."""
        if self.of == "sets":
            return objective.contrastive + 1 if objective.share_rolls else 2 * objective.contrastive
        return {"joint": 1, "pairs": 2}[self.of]

    def arguments(self, h: Tensor, objective: Objective) -> tuple[Tensor, ...]:
        """What the function is called with, from log-ratios with shape `(*, R, B)`."""
        if self.of == "joint":
            return (h[..., 0, :],)
        if self.of == "pairs":
            return joint_and_marginal(h)
        return contrastive_sets(h, objective.contrastive, objective.share_rolls)

    def keywords(self, objective: Objective) -> dict[str, Any]:
        """The objective's fields that the function takes."""
        return {name: getattr(objective, name) for name in self.takes}


def _contrastive_weight(objective: Objective) -> float:
    some = objective.gamma / (1 + objective.gamma)
    return some * (1 - some / objective.contrastive)


LOSSES = {
    "npe": Term(npe, "joint", weight=lambda _: 1.0),
    "nre": Term(nre, "pairs", weight=lambda _: 0.25),
    "nre_c": Term(nre_c, "sets", ("gamma",), weight=_contrastive_weight),
}
BALANCES = {
    "none": Term(balance_chi2, "pairs"),  # for the record, where marginal pairs are evaluated anyway
    "chi2": Term(balance_chi2, "pairs", ("unbiased", "bandwidth")),
    "kl": Term(balance_kl, "pairs"),
    "multiclass": Term(balance_multiclass, "sets", ("gamma", "unbiased", "bandwidth")),
}


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
        share_rolls: whether the two kinds of contrastive sets share rolls of θ (K + 1 in all), or have their own, as in
            the paper's released loss (2K).
    """

    loss: str
    balance: str = "none"
    strength: float = 0.0
    unbiased: bool = False
    normalized: bool = False
    normalizer: int = 16
    contrastive: int = 5
    gamma: float = 1.0
    share_rolls: bool = True

    def __post_init__(self) -> None:
        one_of("loss", self.loss, LOSSES)
        one_of("balance", self.balance, BALANCES)
        for name in ("unbiased", "normalized", "share_rolls"):
            true_or_false(name, getattr(self, name))
        term = BALANCES[self.balance]
        if term.of == "sets" and LOSSES[self.loss].of != "sets":
            raise ValueError(f"{self.balance} balance is for contrastive losses, not for {self.loss}; use 'chi2'")
        if self.unbiased and self.balance != "none" and "unbiased" not in term.takes:
            raise ValueError(f"{self.balance} balance has no unbiased estimate; use 'chi2'")

    @property
    def balanced(self) -> bool:
        """Whether the balance term has any weight."""
        return self.balance != "none" and self.strength > 0

    @property
    def can_be_negative(self) -> bool:
        """Whether the loss has no lower bound at 0, which decides how a plateau is recognised."""
        return self.loss == "npe" or (self.unbiased and self.balanced)

    @property
    def bandwidth(self) -> int:
        """How far apart two terms of the balance may be and still share a θ."""
        bandwidth = BALANCES[self.balance].rolls(self) - 1
        return max(bandwidth, self.normalizer) if self.normalized else bandwidth


def rolls_needed(objective: Objective) -> int:
    """How many rolls of θ through the batch the objective looks at.

    Example:
        >>> [rolls_needed(Objective(loss)) for loss in LOSSES]
        [1, 2, 6]
    """
    rolls = LOSSES[objective.loss].rolls(objective)
    if objective.balanced:
        normalizer = objective.normalizer + 1 if objective.normalized else 0
        rolls = max(rolls, BALANCES[objective.balance].rolls(objective), normalizer)
    return rolls


def pairs_needed(objective: Objective) -> int:
    """The fewest pairs that an objective can be computed of.

    An unbiased balance leaves out terms that share a θ, and needs one pair of terms that do not.

    Example:
        >>> [pairs_needed(Objective("nre", "chi2", 100.0, unbiased=unbiased)) for unbiased in (False, True)]
        [2, 4]
    """
    least = max(2, rolls_needed(objective))
    return max(least, 2 + 2 * objective.bandwidth) if objective.balanced and objective.unbiased else least


def prior_loss(objective: Objective) -> float:
    """The loss of a surrogate that is the prior: every log-ratio is 0, and it is balanced.

    Example:
        >>> [round(prior_loss(Objective(loss, "chi2", 100.0)), 3) for loss in LOSSES]
        [0.0, 0.693, 1.498]
    """
    import torch

    h = torch.zeros(1, rolls_needed(objective), pairs_needed(objective))
    total, _ = objective_terms(h, [objective], torch.zeros(1, dtype=torch.int64), torch.tensor([objective.strength]))
    return float(total)


def information_weight(objective: Objective) -> float:
    """κ: near the prior, the base loss falls by κ for every nat of information (see `base`).

    λ/κ is the strength of the balance term beside the information, which compares strengths over losses.

    Example:
        >>> {loss: information_weight(Objective(loss)) for loss in LOSSES}
        {'npe': 1.0, 'nre': 0.25, 'nre_c': 0.45}
    """
    weight = LOSSES[objective.loss].weight
    if weight is None:
        raise ValueError(f"κ of the loss {objective.loss!r} is not known; give its row in LOSSES a `weight`")
    return weight(objective)


def batch_temperature(objective: Objective, batch_size: float) -> float:
    """t = 1/(1 + λ/4κn): near the prior, χ² balance moves the minimum from log r to t log r (see `balance`).

    Example:
        >>> {loss: round(batch_temperature(Objective(loss, "chi2", 100.0), 256), 2) for loss in LOSSES}
        {'npe': 0.91, 'nre': 0.72, 'nre_c': 0.82}
        >>> batch_temperature(Objective("nre", "chi2", 100.0, unbiased=True), 256)
        1.0
    """
    if not objective.balanced or objective.unbiased:
        return 1.0
    if objective.balance != "chi2":
        raise ValueError(f"the temperature near the prior is derived for balance='chi2', not {objective.balance!r}")
    return 1 / (1 + objective.strength / (4 * information_weight(objective) * batch_size))


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
            sets = {name: getattr(objective, name) for name in ("contrastive", "gamma", "share_rolls")}
            kind = Objective(objective.loss, **sets)
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
    balances = total.new_full(total.shape, float("nan"))
    for k, kind in enumerate(kinds):
        mine = index == k
        # A member sees 0 in the formulas that are not its own, so that none of them can hand it a NaN gradient.
        h = log_ratios if len(kinds) == 1 else log_ratios.where(mine[:, None, None], 0.0)
        balance = _balance(h, kind)
        term = LOSSES[kind.loss]
        loss = term.function(*term.arguments(h, kind), **term.keywords(kind))
        if kind.balanced:
            loss = loss + strength * balance
        total = loss.where(mine, total)
        balances = balance.where(mine, balances)
    return total, balances


def _balance(h: Tensor, objective: Objective) -> Tensor:
    """The balance term, with shape `(*,)`; NaN where nobody asked for it and there are no marginal pairs."""
    if h.shape[-2] < 2:
        return h.new_full(h.shape[:-2], float("nan"))
    if objective.balanced and objective.normalized:
        log_z = h[..., 1 : objective.normalizer + 1, :].logsumexp(-2, keepdim=True)
        h = h - (log_z - math.log(objective.normalizer))
    term = BALANCES[objective.balance if objective.balanced else "none"]
    return term.function(*term.arguments(h, objective), **term.keywords(objective))
