"""Time and memory under load: many cells, pairs, draws, parameters and networks; the table of docs/reliability.md.

    python benchmarks/load.py [--cells 10000] [--pairs 100000] [--only cells]

Each row is a process of its own, so that its peak memory is its own; the first has what the imports alone take. Cells
are files that a real grid's would be in everything but their numbers, one stack each. Networks are small: what is
measured is what a number of cells, pairs, draws, parameters or networks adds.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def _folder(path: Path, cells: int) -> None:
    """An experiment of so many finished stacks, of one cell each."""
    import h5py
    import xarray as xr

    from equipoise.experiments import Folder, load_grid
    from equipoise.experiments.cells import stacks_of
    from equipoise.experiments.packed import pack
    from equipoise.experiments.records import CELL_VARIABLES, EPOCHS, LEVELS
    from equipoise.support.hdf5 import MARK

    grid = load_grid({
        "tasks": ["slcp", "two_moons"], "methods": ["npe", "bnpe", "nre", "bnre", "nre_c"],
        "budgets": [2**k for k in range(6, 16)], "runs": -(-cells // 100), "stack": 1, "gallery": False,
    })  # fmt: skip
    folder, rng, shapes = Folder(path), np.random.default_rng(0), {"level": LEVELS, "member": 1, "epoch": EPOCHS}
    folder.write_grid(grid.config(), threads=1, command="equipoise run")
    data = {
        name: (("cell", *dims), rng.random((1, *(shapes[d] for d in dims)), np.float32 if dims else np.float64))
        for name, dims in CELL_VARIABLES.items()
    }
    for name in (n for n in data if n.endswith("verdict")):
        data[name] = (("cell", *CELL_VARIABLES[name]), np.full(data[name][1].shape, "inconclusive", dtype=object))
    data |= {"method": ("cell", np.array(["npe"], dtype=object)), "run": ("cell", [0])}
    data |= dict.fromkeys(("expected_log_prob", "expected_log_prob_se", "prior_log_prob"), ((), -1.0))
    coords = {"cell": np.array(["0" * 20], dtype=object), "level": np.linspace(0, 1, LEVELS), "epoch": range(EPOCHS)}
    about = dict.fromkeys(("torch", "equipoise", "hardware", "place", "device"), "some") | {"notes": "[]"}
    about |= dict.fromkeys(("seconds", "began", "cost", "steps", "train_seconds", "diagnose_seconds"), 1.0)
    ds = xr.Dataset(data, coords, about | {"members": 1, "trained": 1, "format": 2})
    made = io.BytesIO()
    ds.to_netcdf(made, engine="h5netcdf")
    (path / "stacks").mkdir()
    for stack in stacks_of(grid)[:cells]:  # written as `write_stack` does, but for xarray, which takes most of the time
        (cell,) = stack.cells
        ds.attrs |= {"task": cell.task, "budget": stack.budget, "network": stack.network, "label": stack.label}
        ds["cell"] = np.array([cell.identity], dtype=object)
        ds["method"].values[0], ds["run"].values[0] = cell.method, cell.run
        ds["verdict"].values[0] = ("overconfident", "inconclusive", "certified conservative")[rng.integers(3)]
        for name in ("coverage", "coverage_auc", "verdict_p_value", "certificate_p_value"):
            ds[name].values[...] = rng.random(ds[name].shape)
        contents = io.BytesIO(made.getvalue())
        with h5py.File(contents, "r+") as file:
            file.attrs.update(ds.attrs)
            for name in ("cell", "method", "run", "verdict", "coverage", "coverage_auc"):
                file[name][...] = ds[name].values
        whole = contents.getvalue() + pack(ds) + MARK
        file = folder.stack_file(stack.identity)
        file.write_bytes(whole + hashlib.blake2b(whole, digest_size=16).digest())


def _posterior(members: int = 1, dim: int = 2, method: str = "npe", epochs: int = 2) -> tuple[Any, Any]:
    """A small posterior of a Gaussian problem, and how to draw pairs of it."""
    import torch

    import equipoise as eq

    prior = eq.BoxUniform([-1.0] * dim, [1.0] * dim)

    def pairs(number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        theta = 2 * torch.rand(number, dim, generator=generator) - 1
        return theta, theta + 0.3 * torch.randn(number, dim, generator=generator)

    small = eq.METHODS[method].but(hidden=(16, 16), **({"transforms": 1} if "pe" in method else {}))
    posterior = eq.fit(
        *pairs(1024, 0), prior=prior, method=small, members=members, epochs=epochs, batch_size=256, progress=False,
        settings=eq.Settings(compile=False), device="cpu",
    )  # fmt: skip
    return posterior, pairs


# Each does what it needs, then yields: the clock starts there. Commands are measured with their imports.


def imports(size: int, folder: Path) -> Iterator[None]:
    yield
    import equipoise.experiments  # noqa: F401


def status(size: int, folder: Path) -> Iterator[None]:
    yield
    from equipoise.experiments import Folder, load_grid, state_of

    stored = Folder(folder)
    assert state_of(load_grid(stored.read_grid()["grid"]), stored).complete


def results(size: int, folder: Path) -> Iterator[None]:
    yield
    from equipoise.experiments import Folder, write_results

    write_results(Folder(folder))


def merging(size: int, folder: Path) -> Iterator[None]:
    yield
    from equipoise.experiments import merge, write_results

    write_results(merge([folder], folder / "merged"))


def report(size: int, folder: Path) -> Iterator[None]:
    yield
    from equipoise.experiments import Folder, write_results
    from equipoise.report import write_report

    write_report(write_results(Folder(folder)), folder / "report.html", progress=False)


def page(size: int, folder: Path) -> Iterator[None]:
    yield
    from equipoise.report import write_report

    write_report(folder / "results.nc", folder / "report.html", progress=False)


def pairs(size: int, folder: Path) -> Iterator[None]:
    import equipoise as eq

    posterior, draw = _posterior(members=5)
    drawn = draw(size, 1)
    yield
    eq.diagnose(posterior, *drawn, progress=False)


def draws(size: int, folder: Path) -> Iterator[None]:
    posterior, draw = _posterior()
    yield
    posterior.sample((size,), draw(1, 1)[1][0])


def parameters(size: int, folder: Path) -> Iterator[None]:
    import equipoise as eq

    posterior, draw = _posterior(dim=size)
    yield
    eq.diagnose(posterior, *draw(4000, 1), progress=False)


def members(size: int, folder: Path) -> Iterator[None]:
    import equipoise as eq  # noqa: F401

    yield
    posterior, draw = _posterior(members=size)
    posterior.sample((1000,), draw(1, 1)[1][0])
    posterior.log_prob(*draw(100, 2))


#: What is measured, and the words of the table with the number in them.
ROWS: dict[str, tuple[Callable[[int, Path], Iterator[None]], str]] = {
    "imports": (imports, "importing, nothing else"),
    "status": (status, "`status` of {:,} one-cell stacks"),
    "results": (results, "`results.nc` of {:,} one-cell stacks"),
    "merge": (merging, "`merge` of {:,} one-cell stacks into a directory"),
    "report": (report, "`report` of {:,} one-cell stacks"),
    "page": (page, "`report` of a results file of {:,} cells"),
    "pairs": (pairs, "`diagnose`, {:,} pairs, a mixture of five flows"),
    "draws": (draws, "{:,} draws for one observation"),
    "parameters": (parameters, "`diagnose`, D = {:,}, 4,000 pairs"),
    "members": (members, "fit {:,} networks, draw from their mixture"),
}

#: Those that read the cells of an experiment.
CELLS = ("status", "results", "merge", "report", "page")


def measure(name: str, size: int, folder: Path) -> dict[str, float]:
    """Seconds, of the clock and of the processor, and the peak memory in MB, of one row in a process of its own."""
    command = [sys.executable, __file__, "--row", name, "--size", str(size), "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _peak() -> float:
    """The peak memory of this process in MB. `getrusage` would begin with that of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main(sizes: dict[str, int], only: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if not only or set(CELLS) & set(only.split(",")):
            _folder(folder, sizes["status"])
        print("| | seconds | CPU seconds | peak memory, MB |\n|---|---|---|---|")
        for name, (_, words) in ROWS.items():
            if not only or name in only.split(","):
                found = measure(name, sizes[name], folder)
                numbers = f"{found['seconds']:.1f} | {found['cpu']:.1f} | {found['memory']:.0f}"
                print(f"| {words.format(sizes[name])} | {numbers} |", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    for name, number in (("cells", 10_000), ("pairs", 100_000), ("draws", 1_000_000), ("parameters", 20)):
        options.add_argument(f"--{name}", type=int, default=number)
    options.add_argument("--members", type=int, default=1000)
    options.add_argument("--only", default="", help="rows, with commas between")
    options.add_argument("--row", help=argparse.SUPPRESS)
    options.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.row:
        work = ROWS[given.row][0](given.size, given.folder)
        next(work)
        began, before = time.perf_counter(), time.process_time()
        next(work, None)
        found = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - before}
        print(json.dumps(found | {"memory": _peak()}))
    else:
        main(vars(given) | dict.fromkeys(("imports", *CELLS), given.cells), given.only)
