"""The methods of the paper: rows of a table, not classes.

A method is a network, a base loss, a balance term with its strength λ, and how the network starts. What a call
leaves `None` follows the row. Every other choice that describes a method (estimates of the balance, the contrastive
sets, the size of the network) is a field with the paper's value as its default: `METHODS["bnpe"].but(hidden=(64, 64))`
is a method like any other.
"""

from __future__ import annotations

__all__ = ["METHODS", "MIXTURES", "Method", "resolve", "resolve_all"]

import dataclasses
from collections.abc import Sequence
from typing import Any

from .choices import INITS, STARTS, UNIVARIATE
from .losses import BALANCES, Objective
from .support.checks import finite_number, one_of, whole_number
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
        strength: λ. Near the prior, plain χ² balance from batches of n also tempers: with the cross-entropy by
            t = 1/(1 + λ/n) (`losses.balance`).
        start: "random", or for a flow "prior" or "prior_base".
        paper: what the paper calls it.
        unbiased: estimate a χ² balance without bias from the batch, which takes this tempering away.
        normalized: balance h - log Ẑ(x) instead of h, for classifiers.
        normalizer: how many rolls of θ estimate that Ẑ(x).
        contrastive: K of NRE-C.
        gamma: γ of NRE-C.
        share_rolls: whether the joint and the marginal sets of NRE-C share rolls of θ: K + 1 in all, or 2K as in the
            paper's released loss.
        init: how a flow's weights start: "standard", "scaled" (the paper's recipe) or "identity"; None for standard
            weights in a random start and the paper's recipe otherwise.
        hidden: widths of the hidden layers; None for the paper's (6 × 256, or 3 × 256 in each transform of a flow).
        transforms: how many transforms a flow has.
        univariate: what a flow's transforms apply to each coordinate: "spline" or "affine".
        bins: how many bins a spline has.
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
    share_rolls: bool = True
    init: str | None = None
    hidden: tuple[int, ...] | None = None
    transforms: int = 3
    univariate: str = "spline"
    bins: int = 8

    def __post_init__(self) -> None:
        one_of("network", self.network, ("classifier", "flow"))
        one_of("start", self.start, STARTS)
        if self.network != "flow" and self.start != "random":
            raise ValueError(f"start={self.start!r} is for flows; {self.name!r} trains a classifier")
        if self.init is not None:
            one_of("init", self.init, INITS)
            if self.network != "flow":
                raise ValueError(f"init={self.init!r} is for flows; {self.name!r} trains a classifier")
        one_of("univariate", self.univariate, UNIVARIATE)
        if self.start == "prior_base" and self.univariate != "spline":
            raise ValueError("start='prior_base' needs splines, which stay inside [-5, 5]; take start='prior'")
        plain: dict[str, Any] = {  # NumPy's numbers as Python's
            "strength": finite_number("strength", self.strength, least=0),
            "gamma": finite_number("gamma", self.gamma, above=0),
            "contrastive": whole_number("contrastive", self.contrastive, least=1),
            "normalizer": whole_number("normalizer", self.normalizer, least=1),
            "transforms": whole_number("transforms", self.transforms, least=1),
            "bins": whole_number("bins", self.bins, least=2),
        }
        if self.hidden is not None:
            if isinstance(self.hidden, int | float | str) or not len(self.hidden):
                raise TypeError(f"hidden is the width of each layer, such as (256, 256, 256), got {self.hidden!r}")
            # However they were given, methods that mean the same are equal.
            plain["hidden"] = tuple(whole_number("each width of hidden", width, least=1) for width in self.hidden)
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        _ = self.objective  # refuses impossible combinations

    def but(self, **changes: Any) -> Method:
        """The same method with some fields changed.

        Example:
            >>> METHODS["npe"].but(hidden=(64, 64)).hidden
            (64, 64)
            >>> METHODS["npe"].but(hiden=(64, 64))
            Traceback (most recent call last):
                ...
            TypeError: there is no field of a method 'hiden'; did you mean 'hidden'? There are ...
        """
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise TypeError(did_you_mean(name, known, "field of a method"))
        return dataclasses.replace(self, **changes)

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
            share_rolls=self.share_rolls,
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


#: Small flows on the coordinates in which the prior is normal, trained by maximum likelihood. With weights near zero a
#: flow begins at the prior, which is sharper where posteriors are wide; with ordinary weights where they are narrow.
#: Eight bins are sharper on some problems and four on others, so each kind has its own (`benchmarks/networks.py`).
NEAR_PRIOR = Method("near_prior", "flow", "npe", start="prior", hidden=(96, 96, 96), bins=8)
ORDINARY = NEAR_PRIOR.but(name="ordinary", init="standard", bins=4)

#: Methods whose members are mixed in one posterior, by name. `eq.fit` cross-fits their members and tempers the mixture.
MIXTURES: dict[str, tuple[Method, ...]] = {"calibrated": (NEAR_PRIOR, ORDINARY)}


def resolve_all(
    method: str | Method | Sequence[str | Method],
    balance: str | None = None,
    strength: float | None = None,
    start: str | None = None,
) -> tuple[Method, ...]:
    """The methods that a call means: those of a mixture, one row, or several."""
    if isinstance(method, str) and method in MIXTURES:
        method = MIXTURES[method]
    if isinstance(method, str | Method) or not isinstance(method, Sequence):
        method = (method,)
    if not method:
        raise ValueError("method is an empty list; give a name, an eq.Method, or several")
    return tuple(resolve(one, balance, strength, start) for one in method)


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
            raise ValueError(did_you_mean(method, [*METHODS, *MIXTURES], "method"))
        method = METHODS[method]
    if not isinstance(method, Method):
        raise TypeError(f"method is a name of eq.METHODS or an eq.Method, got {method!r}")
    if balance is not None:
        one_of("balance", balance, BALANCES)
        method = method.but(balance=balance, strength=0.0 if balance == "none" else (method.strength or STRENGTH))
    if strength is not None:
        finite_number("balance_strength", strength, least=0)
        if strength > 0 and method.balance == "none":
            raise ValueError(
                f"balance_strength={strength} has nothing to weigh: {method.name!r} has no balance term; pass "
                "balance='chi2' as well, or choose a balanced method"
            )
        method = method.but(strength=float(strength))
    return method if start is None else method.but(start=start)
