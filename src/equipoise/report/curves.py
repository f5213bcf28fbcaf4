"""Coverage curves on their way into the page: every run's, small enough to mail.

A curve is a row of shares. They travel as unsigned 16-bit integers in units of 1 / 60,000, in which a share of 1,000 or
of 10,000 pairs is exact, in base 64. Bands follow from the coverage when all curves have the same number of pairs.
"""

from __future__ import annotations

__all__ = ["NONE", "SCALE", "curves"]

import base64
import math
from typing import Any

import numpy as np
import xarray as xr

from .layout import axes_of
from .results import CELL
from .style import budget_looks, method_looks

#: The unit of a share, and what stands for a missing one.
SCALE, NONE = 60_000, 65_535
#: More points than this are thinned; levels that are a multiple of 0.05 always stay.
MOST_POINTS = 400_000


def curves(ds: xr.Dataset) -> dict[str, Any]:
    """What the script draws: the curves and bands of every run, thinned only where the page would grow too large."""
    levels = np.asarray(ds["level"].values, float)
    cells = math.prod(ds.sizes[d] for d in CELL)
    stride = max(1, math.ceil(cells * len(levels) / MOST_POINTS))
    often_read = np.isclose(levels * 20, np.rint(levels * 20))  # 0.05, 0.1, …, 0.95
    keep = np.flatnonzero((np.arange(len(levels)) % stride == 0) | often_read)
    labels, tasks, methods, budgets = axes_of(ds)
    looks, shades = method_looks(methods), budget_looks(budgets)
    data: dict[str, Any] = {
        "levels": [round(float(v), 6) for v in levels[keep]],
        "scale": SCALE,
        "runs": [int(r) for r in ds["run"].values],
        "confidence": f"{1 - float(ds.attrs.get('alpha', 0.05)):.0%}",
        "tasks": [{"id": t, "label": labels.task(t)} for t in tasks],
        "methods": [
            {"id": m, "label": labels.method(m), "colour": f"var(--{looks[m].variable})", "dash": looks[m].svg_dash}
            for m in methods
        ],
        "budgets": [
            {"id": b, "label": labels.budget(b), "colour": f"var(--{shades[b].variable})", "dash": "none"}
            for b in budgets
        ],
    }
    data["coverage"] = _packed(_whole(ds["coverage"].values[..., keep]))
    if "coverage_lower" in ds and "coverage_upper" in ds:
        data |= _bands(*(_whole(ds[n].values[..., keep]) for n in ("coverage", "coverage_lower", "coverage_upper")))
    if "calibration_lower" in ds:
        ends = {"low": "calibration_lower", "high": "calibration_upper"}
        data["calibration"] = {end: [round(float(v), 4) for v in ds[name].values[keep]] for end, name in ends.items()}
    return data


def _whole(values: Any) -> Any:
    """Shares as integers, in units of 1 / SCALE."""
    return np.where(np.isfinite(values), np.rint(np.clip(np.nan_to_num(values), 0, 1) * SCALE), NONE).astype("<u2")


def _packed(values: Any) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _bands(middle: Any, low: Any, high: Any) -> dict[str, Any]:
    """The ends of the bands: a table over coverage where they follow from it alone, as they do for one number of pairs.

    The table is a fortieth of the size of all curves.
    """
    at, first, place = np.unique(middle, return_index=True, return_inverse=True)
    of_low, of_high = low.ravel()[first], high.ravel()[first]
    place = place.reshape(middle.shape)
    if (of_low[place] == low).all() and (of_high[place] == high).all():
        return {"band": {"at": _packed(at), "lower": _packed(of_low), "upper": _packed(of_high)}}
    return {"lower": _packed(low), "upper": _packed(high)}
