"""Time and memory under load: many cells, pairs, parameters and networks. Prints the table of docs/reliability.md.

    python benchmarks/load.py [--cells 10000] [--pairs 100000] [--only cells]

Each row is a process of its own, so that its peak memory is its own: `base` is what the imports alone take. Cells are
files that a real grid's would be in everything but their numbers, one stack each. Networks are small: what is measured
is what a number of cells, pairs, parameters or networks adds.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def _folder(path: Path, cells: int) -> None:
    """An experiment of so many finished stacks, of one cell each."""
    import h5py
    import xarray as xr

    from equipoise.experiments import Folder, load_grid
    from equipoise.experiments.cells import stacks_of
    from equipoise.experiments.records import CELL_VARIABLES, EPOCHS, LEVELS
    from equipoise.support.hdf5 import MARK

    runs = -(-cells // 100)
    grid = load_grid({
        "tasks": ["slcp", "two_moons"], "methods": ["npe", "bnpe", "nre", "bnre", "nre_c"],
        "budgets": [2**k for k in range(6, 16)], "runs": runs, "stack": 1, "gallery": False,
    })  # fmt: skip
    folder, rng, shapes = Folder(path), np.random.default_rng(0), {"level": LEVELS, "member": 1, "epoch": EPOCHS}
    folder.write_grid(grid.config(), threads=1, command="equipoise run")
    (path / "stacks").mkdir()
    template = b""
    for stack in stacks_of(grid)[:cells]:
        (cell,) = stack.cells
        about = {"task": cell.task, "budget": stack.budget, "network": stack.network, "label": stack.label}
        if not template:
            variables = {
                name: (("cell", *dims), rng.random((1, *(shapes[d] for d in dims)), np.float32 if dims else np.float64))
                for name, dims in CELL_VARIABLES.items()
            }
            for name in (n for n in variables if n.endswith("verdict")):
                variables[name] = (("cell", *CELL_VARIABLES[name]), np.full(variables[name][1].shape, "inconclusive"))
            variables |= {"method": ("cell", [cell.method]), "run": ("cell", [cell.run])}
            variables |= dict.fromkeys(("expected_log_prob", "expected_log_prob_se", "prior_log_prob"), ((), -1.0))
            about |= dict.fromkeys(("torch", "equipoise", "hardware", "place", "device"), "some") | {"notes": "[]"}
            about |= dict.fromkeys(("seconds", "began", "cost", "steps", "train_seconds", "diagnose_seconds"), 1.0)
            about |= {"members": 1, "trained": 1}
            coords = {"cell": [cell.identity], "level": np.linspace(0, 1, LEVELS), "epoch": np.arange(EPOCHS)}
            folder.write_stack(stack.identity, xr.Dataset(variables, coords, about))
            template = folder.stack_file(stack.identity).read_bytes()[: -16 - len(MARK)]
            continue
        made = io.BytesIO(template)
        with h5py.File(made, "r+") as file:
            file["cell"][0], file["method"][0], file["run"][0] = cell.identity, cell.method, cell.run
            for name in ("coverage_auc", "verdict_p_value", "certificate_p_value"):
                file[name][...] = rng.random(file[name].shape)
            file["verdict"][0] = ("overconfident", "inconclusive", "certified conservative")[rng.integers(3)]
            file.attrs.update(about)
        contents = made.getvalue() + MARK
        contents += hashlib.blake2b(contents, digest_size=16).digest()
        folder.stack_file(stack.identity).write_bytes(contents)
