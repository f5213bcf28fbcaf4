"""What a posterior says of itself: its `repr`, and the table that a notebook shows."""

from __future__ import annotations

__all__ = ["html", "one_line"]

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from equipoise.methods import METHODS, MIXTURES

if TYPE_CHECKING:
    from .posterior import Posterior


def one_line(posterior: Posterior) -> str:
    """The `repr` of a posterior."""
    n = posterior.n_members
    parts = [_method(posterior.record), f"{n} member{'s' * (n > 1)}", *_simulations(posterior.record)]
    named = "" if posterior.names is None else f" ({', '.join(posterior.names)})"
    parts += [f"D={posterior.prior.dim}{named}", f"x_shape={posterior.x_shape}", str(posterior.device)]
    if posterior.temperature != 1 and posterior.calibration is None:
        parts.append(f"t={posterior.temperature:.4g}")
    parts += [words for words in (_calibration(posterior), _verdict(posterior)) if words]
    return f"Posterior({', '.join(parts)})"


def html(posterior: Posterior) -> str:
    """A small table for notebooks: what the posterior is, and what is known about it."""
    names = posterior.names or tuple(f"theta_{j}" for j in range(posterior.prior.dim))
    rows = {
        "method": _method(posterior.record),
        "members": posterior.n_members,
        "trained on": next(iter(_simulations(posterior.record)), "unknown"),
        "parameters": ", ".join(names),
        "x": f"shape {posterior.x_shape}",
        "temperature": f"{posterior.temperature:.4g}",
        "calibration": _calibration(posterior) or "none",
        "verdict": _verdict(posterior) or "none yet: eq.diagnose(posterior, theta, x) on fresh pairs",
    }
    cells = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>Posterior</caption>{cells}</table>"


def _method(record: Mapping[str, Any]) -> str:
    """The name of the method, with what a call said otherwise in brackets: bnpe_init[start=random].

    Example:
        >>> _method({"method": {"name": "npe", "balance": "kl", "strength": 10.0}})
        'npe[balance=kl, strength=10.0]'
    """
    given = record.get("method", {})
    name = str(given.get("name", "posterior"))
    table = MIXTURES.get(name) or ((METHODS[name],) if name in METHODS else ())
    stored = record.get("methods") or [given]
    changes: dict[str, Any] = {}
    for row, values in zip(table, stored, strict=False):
        for field, value in values.items():
            value = tuple(value) if isinstance(value, list) else value  # as JSON has them
            if field not in ("name", "paper") and getattr(row, field, value) != value:
                changes[field] = value
    return name + (f"[{', '.join(f'{field}={value}' for field, value in changes.items())}]" if changes else "")


def _simulations(record: Mapping[str, Any]) -> list[str]:
    return [f"{record['pairs']:,} simulations"] if "pairs" in record else []


def _calibration(posterior: Posterior) -> str:
    """What is known of the temperature; "" where nothing was promised."""
    if posterior.calibration is not None:
        return posterior.calibration.message
    promised = posterior.record.get("method", {}).get("name") in MIXTURES
    return "not calibrated" if promised and posterior.temperature == 1 else ""


def _verdict(posterior: Posterior) -> str:
    """What `diagnose` found last."""
    if posterior.verdict is None:
        return ""
    verdict, pairs = posterior.verdict
    return f"{verdict} by {pairs:,} pairs"
