"""Stacks of no computation: well formed, and without numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from equipoise.experiments import Stack
from equipoise.experiments.records import CELL_VARIABLES, LEVELS, SECOND, TEMPERED


def blank(stack: Stack, **attributes: Any) -> xr.Dataset:
    """What is kept of a stack, with NaN for each number."""
    sizes = {"level": LEVELS, "member": stack.members, "epoch": 1}
    data: dict[str, Any] = {}
    for name, dims in CELL_VARIABLES.items():
        if name not in (*SECOND, *TEMPERED):
            values = np.full((len(stack.cells), *(sizes[d] for d in dims)), np.nan)
            data[name] = ("cell", *dims), np.full(values.shape, "", object) if name.endswith("verdict") else values
    data["method"] = "cell", np.array([c.method for c in stack.cells], object)
    data["run"] = "cell", [c.run for c in stack.cells]
    cells = np.array([c.identity for c in stack.cells], object)
    coords = {"cell": cells, "level": np.linspace(0, 1, LEVELS), "epoch": [0]}
    about = {"task": stack.task.label, "budget": stack.budget, "network": stack.network, "label": stack.label}
    about |= {"members": stack.members, "trained": stack.size, "seconds": 1.0, "notes": "[]"}
    return xr.Dataset(data, coords, about | {"torch": "", "hardware": ""} | attributes)
