"""The temperature of a posterior: what it may be, and what is known about it."""

from __future__ import annotations

__all__ = ["Calibration", "check_temperature"]

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any

from equipoise.support.words import shown


@dataclass(frozen=True)
class Calibration:
    """The temperature of a posterior, and what is known about it.

    Attributes:
        t: the temperature; 0 is the prior, 1 the posterior as it was.
        rule: "guaranteed" (fresh pairs) or "observed" (out-of-fold pairs).
        pairs: the number of pairs.
        certified: whether coverage was shown to be at least level - tolerance at t.
        p_over: the p-value of "coverage ≥ level everywhere" at t.
        p_certificate: the p-value of "coverage < level - tolerance somewhere" at t.
        alpha: the rate of false certificates.
        delta, share: the tolerance, min(delta, share · (1 - level)), or delta if `share` is None.
        levels: of the curves.
        before, after: coverage at `levels`, at the largest temperature tried and at t.
        pairs_needed: about how many pairs in all would give a certificate; None where there is one, or no number
            would if the curves stay as they are.
        message: all this in one line.
        weights: of the members in the mixture; empty where all are equal.
    """

    t: float
    rule: str
    pairs: int
    certified: bool
    p_over: float
    p_certificate: float
    alpha: float
    delta: float
    share: float | None
    levels: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    pairs_needed: int | None
    message: str
    weights: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, words and lists, for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """What `to_dict` gave."""
        names = {field.name for field in fields(cls)}
        if not names - {"weights"} <= set(values) <= names:  # older files have none
            wrong = sorted((names - {"weights"}) ^ set(values))
            raise ValueError(f"a calibration holds {', '.join(sorted(names))}; missing or unknown: {', '.join(wrong)}")
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**plain)


def check_temperature(t: Any) -> float:
    """t as a number, if it lies in (0, 1]."""
    if isinstance(t, bool) or not isinstance(t, Real) or not 0 < float(t) <= 1:
        raise ValueError(
            f"the temperature t lies in (0, 1]: 1 is the posterior as it is, near 0 the prior; got {shown(t)}"
        )
    return float(t)
