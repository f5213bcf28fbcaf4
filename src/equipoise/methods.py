"""The methods of the paper: rows of a table, not classes.

A method is a network, a base loss, a balance term with its strength λ, and how the network starts. What a call
leaves `None` follows the row.
"""

from __future__ import annotations

__all__ = ["METHODS", "Method", "resolve"]

import dataclasses
import difflib

from .losses import BALANCES, Objective
from .networks import STARTS

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
    """

    name: str
    network: str
    loss: str
    balance: str = "none"
    strength: float = 0.0
    start: str = "random"
    paper: str = ""

    def objective(self, **options: float | int | bool) -> Objective:
        """What a member trained with this method minimises; `options` are `Objective`'s others."""
        return Objective(self.loss, self.balance, self.strength, **options)  # type: ignore[arg-type]


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
        Method(name='npe', network='flow', loss='npe', balance='kl', strength=100.0, start='random', paper='NPE')
    """
    if isinstance(method, str):
        if method not in METHODS:
            near = difflib.get_close_matches(method.lower().replace("-", "_"), METHODS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown method {method!r}.{hint} The methods are {', '.join(METHODS)}.")
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
    method.objective()  # refuses impossible combinations here, before anything runs
    return method
