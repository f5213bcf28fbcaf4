"""What the runner adds to each cell: 10 to 10,000 stacks of one trivial cell, in this process and on Dask workers.

    python benchmarks/scaling.py [--most 10000]

A trivial stack writes the file that a real one would (numbers of one cell, no picture) and computes nothing, so that
everything measured here is overhead: planning, hashing, claiming, scheduling, writing, and gathering the results. It
should stay flat.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from distributed import LocalCluster

from equipoise.experiments import Folder, Stack, load_grid, run_grid, write_results
from equipoise.experiments.records import CELL_VARIABLES, LEVELS
from equipoise.support.devices import cores

#: The goal: seconds a cell.
GOAL = 0.05


def trivial(
    stack: Stack, folder: Folder, device: str | None, threads: int, checkpoint: bool, compile: bool | None
) -> None:
    """Write what a real stack would."""
    sizes = {"level": LEVELS, "member": stack.members, "epoch": 3}
    cells = [c.identity for c in stack.cells]
    variables: dict[str, Any] = {}
    for name, dims in CELL_VARIABLES.items():
        shape = (len(cells), *(sizes[d] for d in dims))
        numbers = np.zeros(shape, np.float32 if {"level", "epoch"} & set(dims) else np.float64)
        variables[name] = (("cell", *dims), np.full(shape, "inconclusive") if "verdict" in name[-7:] else numbers)
    variables |= {"method": ("cell", [c.method for c in stack.cells]), "run": ("cell", [c.run for c in stack.cells])}
    variables |= dict.fromkeys(("expected_log_prob", "expected_log_prob_se", "prior_log_prob"), ((), 0.0))
    about = {"task": stack.cells[0].task, "budget": stack.budget, "network": stack.network, "label": stack.label}
    about |= dict.fromkeys(("torch", "equipoise", "hardware", "place", "device"), "") | {"notes": "[]"}
    about |= dict.fromkeys(("seconds", "began", "cost", "steps", "train_seconds", "diagnose_seconds"), 0.0)
    about |= {"members": stack.members, "trained": stack.size}
    folder.write_stack(stack.identity, xr.Dataset(variables, {"cell": cells, "epoch": np.arange(3)}, about))


def measure(cells: int, cluster: str | None) -> tuple[float, float, float]:
    """Seconds a cell of running, of running again (which finds nothing to do), and of gathering the results."""
    grid = load_grid(
        {"tasks": ["slcp"], "methods": ["nre"], "budgets": [1024], "runs": cells, "stack": 1, "gallery": False}
    )
    path = Path(tempfile.mkdtemp(prefix="equipoise-scaling-"))
    try:
        clock = [time.perf_counter()]
        assert run_grid(grid, path, cluster=cluster, threads=1, device="cpu", compute=trivial).complete
        clock.append(time.perf_counter())
        assert run_grid(grid, path, threads=1, compute=trivial).complete
        clock.append(time.perf_counter())
        write_results(Folder(path))
        clock.append(time.perf_counter())
        first, again, gather = np.diff(clock) / cells
        return float(first), float(again), float(gather)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=10_000, help="the largest number of cells")
    sizes = [n for n in (10, 100, 1000, 10_000) if n <= parser.parse_args().most]
    print(f"{'engine':<12}{'cells':>8}{'run':>12}{'run again':>12}{'gather':>12}   (ms a cell)")
    worst = 0.0
    clock = time.perf_counter()
    with LocalCluster(n_workers=cores(), threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        measure(8, address)  # every worker imports torch once
        start = time.perf_counter() - clock
        for name, cluster in (("in-process", None), ("Dask", address)):
            for cells in sizes:
                first, again, gather = measure(cells, cluster)
                worst = max(worst, first + gather if cells >= 100 else 0.0)
                print(f"{name:<12}{cells:>8}{1e3 * first:>12.2f}{1e3 * again:>12.2f}{1e3 * gather:>12.2f}", flush=True)
    print(f"starting the workers, once: {start:.1f} s")
    print(
        f"running and gathering, from 100 cells on: at most {1e3 * worst:.1f} ms a cell; the goal is {1e3 * GOAL:.0f}"
    )


if __name__ == "__main__":
    main()
