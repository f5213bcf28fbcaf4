"""A grid of eight stacks that takes seconds, and how to run it and compare its results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from forked import COMMAND, Forked

from equipoise.experiments import Folder

TINY: dict[str, Any] = {
    "name": "tiny",
    "tasks": ["slcp"],
    "methods": ["npe", "bnre"],
    "budgets": [128, 256],
    "runs": 2,
    "members": 2,
    "pairs": 60,
    "test": 60,
    "samples": 16,
    "hidden": [8, 8],
    "training": {"epochs": 3, "batch_size": 32},
    "stack": 2,
}
#: What two computations of one cell may differ in: how long they took.
CLOCKS = ("train_seconds", "diagnose_seconds")


def write_toml(path: Path, grid: dict[str, Any]) -> Path:
    """A grid as TOML. Strings, numbers and lists look the same in JSON."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in grid.items() if not isinstance(v, dict)]
    for key, table in grid.items():
        if isinstance(table, dict):
            lines += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(grid: Path, out: Path, *options: str) -> list[str]:
    """Of the command `equipoise`."""
    return ["run", "--grid", str(grid), "--out", str(out), "--threads", "1", *options]


def command(grid: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "equipoise", *arguments(grid, out, *options)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


def start(grid: Path, out: Path, *options: str) -> Forked:
    """The command in a process of its own."""
    return Forked(COMMAND, *arguments(grid, out, "--no-report", *options), together=True)


def cells(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Everything that is kept of each cell, by its identity."""
    folder, found = Folder(path), {}
    for identity in folder.stacks():
        ds = xr.load_dataset(folder.stack_file(identity), engine="h5netcdf")
        for cell in ds["cell"].values:
            assert cell not in found, "a cell was computed twice"
            one = ds.sel(cell=cell)
            found[cell] = {
                str(n): one[n].values for n, v in ds.data_vars.items() if "cell" in v.dims and n not in CLOCKS
            }
    return found


def assert_same_cells(a: Path, b: Path) -> None:
    """The two folders have the same cells, and every number in them is the same to the last bit."""
    left, right = cells(a), cells(b)
    assert left.keys() == right.keys()
    for identity, numbers in left.items():
        assert numbers.keys() == right[identity].keys()
        for name, value in numbers.items():
            np.testing.assert_array_equal(value, right[identity][name], err_msg=f"{identity} {name}")
