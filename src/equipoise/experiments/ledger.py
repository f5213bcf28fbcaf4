"""What every stack took: seconds, steps, where, with which versions.

The ledger stands beside the cells in `results.nc`, with a dimension of its own, so that the cost of a grid can be
added up without counting a stack once for each of its cells.
"""

from __future__ import annotations

__all__ = ["ledger", "total"]

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

Stacks = Mapping[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]

MEANINGS = {
    "members": "networks that were trained together",
    "steps": "steps of all members together; members that converged took no more",
    "place": "the GPU's own name, where there was one",
    "began": "when it began, in seconds since the epoch: stacks of several processes may share a GPU",
    "train_seconds": "simulating and training",
    "diagnose_seconds": "judging",
    "seconds": "all of it, pictures included",
    "cost": "the most it was expected to take",
}


def ledger(stacks: Stacks) -> xr.Dataset:
    """One row a stack.

    Arguments:
        stacks: headers and arrays, by identity.

    Returns:
        Variables `ledger_…` over the dimension `ledger`, whose coordinate is the identity of the stack; what a file
        does not say is NaN or empty.
    """
    rows = [_row(header, arrays) for header, arrays in stacks.values()]
    data = {
        f"ledger_{name}": ("ledger", np.array([row[name] for row in rows]), {"long_name": MEANINGS.get(name, name)})
        for name in (rows[0] if rows else ())
    }
    words = {n: (d, v.astype(object) if v.dtype.kind == "U" else v, a) for n, (d, v, a) in data.items()}
    return xr.Dataset(words, {"ledger": np.array(list(stacks), dtype=object)})


def _row(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    cells = header["cells"]
    words = {
        name: str(header.get(name, ""))
        for name in ("label", "network", "device", "place", "hardware", "torch", "equipoise")
    }
    numbers = {
        n: float(header.get(n, np.nan)) for n in ("began", "train_seconds", "diagnose_seconds", "seconds", "cost")
    }
    # Files that do not say have one training a cell.
    steps = header["steps"] if "steps" in header else total(arrays["steps"]) if "steps" in arrays else np.nan
    return {
        "task": cells[0]["task"],
        "budget": int(cells[0]["budget"]),
        "cells": len(cells),
        "members": int(header.get("trained", len(cells) * int(header["members"]))),
        "steps": float(steps),
        **words,
        **numbers,
    }


def total(numbers: ArrayLike) -> float:
    """The sum of those that are known; NaN where none is."""
    return float(np.nansum(numbers)) if np.isfinite(numbers).any() else np.nan
