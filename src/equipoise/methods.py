"""The methods of the paper: rows of a table, not classes.

A method is a network, a base loss, a balance term with its strength λ, and how the network starts. What a call
leaves `None` follows the row. Every other choice that describes a method (estimates of the balance, the contrastive
sets, the size of the network) is a field with the paper's value as its default: `dataclasses.replace(METHODS["bnpe"],
hidden=(64, 64))` is a method like any other.
"""

from __future__ import annotations

__all__ = ["METHODS", "Method", "resolve"]

import dataclasses

from .losses import BALANCES, Objective
from .networks import INITS, STARTS
from .support.words import did_you_mean

#: λ of the balanced methods, the paper's.
STRENGTH = 100.0


@dataclasses.dataclass(frozen=True)
class Method:
    """One row.

    Arguments:
        name: how it is called here.
        network: "classifier" or "flow".
        loss: "npe" (negative log likelihood), "nre" (binary cross-entropy) or "nre_c" (contrastive).
        balance: "none", "chi2", "kl" or "multiclass".
        strength: λ.
        start: "random", or for a flow "prior" or "prior_base".
        paper: what the paper calls it.
        unbiased: estimate a χ² balance without bias from the batch.
        normalized: balance h - log Ẑ(x) instead of h, for classifiers.
        normalizer: how many rolls of θ estimate that Ẑ(x).
        contrastive: K of NRE-C.
        gamma: γ of NRE-C.
        init: how a flow's weights start: "standard", "scaled" (the paper's recipe) or "identity"; None for standard
            weights in a random start and the paper's recipe otherwise.
        hidden: widths of the hidden layers; None for the paper's (6 × 256, or 3 × 256 in each transform of a flow).
        transforms: how many transforms a flow has.
    """

    name: str
    network: str
    loss: str
    balance: str = "none"
    strength: float = 0.0
    start: str = "random"
    paper: str = ""
    unbiased: bool = False
    normalized: bool = False
    normalizer: int = 16
    contrastive: int = 5
    gamma: float = 1.0
    init: str | None = None
    hidden: tuple[int, ...] | None = None
    transforms: int = 3

    def __post_init__(self) -> None:
        if isinstance(self.hidden, int | str):
            raise TypeError(f"hidden is the width of each layer, such as (256, 256, 256), got {self.hidden!r}")
        if self.hidden is not None:  # however it was given, methods that mean the same are equal
            object.__setattr__(self, "hidden", tuple(self.hidden))
        if self.init is not None and (self.init not in INITS or self.network != "flow"):
            raise ValueError(f"init is one of {', '.join(INITS)}, for flows; got {self.init!r} for {self.name}")

    @property
    def objective(self) -> Objective:
        """What a member trained with this method minimises."""
        return Objective(
            self.loss,
            self.balance,
            self.strength,
            unbiased=self.unbiased,
            normalized=self.normalized,
            normalizer=self.normalizer,
            contrastive=self.contrastive,
            gamma=self.gamma,
        )


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("nre", "classifier", "nre", paper="NRE"),
        Method("bnre", "classifier", "nre", "chi2", STRENGTH, paper="BNRE"),
        Method("nre_c", "classifier", "nre_c", paper="NRE-C"),
        Method("bnre_c", "classifier", "nre_c", "chi2", STRENGTH, paper="BNRE-C"),
        Method("npe", "flow", "npe", paper="NPE"),
        Method("bnpe", "flow", "npe", "chi2", STRENGTH, paper="BNPE, as the text defines it"),
        Method("rnpe", "flow", "nre", paper="RNPE"),
        Method("brnpe", "flow", "nre", "chi2", STRENGTH, paper="BNPE, as the figures show it"),
        Method("bnpe_init", "flow", "npe", "chi2", STRENGTH, "prior", paper="BNPE Init, as the text defines it"),
        Method("brnpe_init", "flow", "nre", "chi2", STRENGTH, "prior", paper="BNPE Init, as the figures show it"),
    )
}


def resolve(
    method: str | Method, balance: str | None = None, strength: float | None = None, start: str | None = None
) -> Method:
    """The method a call means: its row, with what the call says otherwise.

    Example:
        >>> resolve("npe", balance="kl")
        Method(name='npe', network='flow', loss='npe', balance='kl', strength=100.0, start='random', paper='NPE', ...)
    """
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(did_you_mean(method, METHODS, "method"))
        method = METHODS[method]
    if balance is not None:
        if balance not in BALANCES:
            raise ValueError(f"balance is one of {', '.join(BALANCES)}, got {balance!r}")
        default = 0.0 if balance == "none" else (method.strength or STRENGTH)
        method = dataclasses.replace(method, balance=balance, strength=default)
    if strength is not None:
        if strength > 0 and method.balance == "none":
            raise ValueError(
                f"balance_strength={strength} has nothing to weigh: {method.name!r} has no balance term. Pass "
                "balance='chi2' as well, or "
                f"choose a balanced method ({', '.join(m.name for m in METHODS.values() if m.balance != 'none')})."
            )
        method = dataclasses.replace(method, strength=float(strength))
    if start is not None:
        if start not in STARTS:
            raise ValueError(f"start is one of {', '.join(STARTS)}, got {start!r}")
        if method.network != "flow" and start != "random":
            raise ValueError(f"start={start!r} is for flows; {method.name!r} trains a classifier")
        method = dataclasses.replace(method, start=start)
    _ = method.objective  # refuses impossible combinations here, before anything runs
    return method
