"""Results: all finished stacks of a folder as one xarray Dataset, `results.nc`.

The dimensions are task, method, budget, run and level, and besides them member, epoch, grid_0 and grid_1. Cells that
are missing are NaN or empty. Variables without a prefix belong to the posterior of a run, which is the mixture of its
members; `member_…` are the single networks. What every stack took is in `ledger_…`.

The file is made to be kept: curves are stored to 1/30,000 and histories and pictures to three digits, in a few kB a
cell; single numbers are whole.
"""

from __future__ import annotations

__all__ = ["collect", "merge", "read_results", "table", "write_results"]

import datetime
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from equipoise.diagnostics import judge_cells
from equipoise.support.words import STAYS
from equipoise.version import __version__

from .cells import NUMERICS, cells_of
from .entries import GridError
from .folder import Folder
from .gallery import SIDE, coarse
from .grids import Grid, load_grid
from .ledger import ledger
from .records import CURVES, HISTORY, LEVELS, PER_CELL, PER_MEMBER, TRAINING

AXES = ("task", "method", "budget", "run")
#: Numbers of a cell besides `PER_CELL`.
OTHERS = (*TRAINING, "diverged_members")
#: How curves between 0 and 1 are stored, and the bits of a history's numbers that are.
PACKED = {"dtype": "int16", "scale_factor": 1 / 30000, "_FillValue": -32768}
HISTORY_BITS = 10
MEANINGS = {
    "coverage": "expected coverage",
    "coverage_auc": "area between coverage and the diagonal, positive where conservative",
    "verdict": "verdict of the run alone",
    "verdict_holm": "verdict with Holm's correction over all cells",
    "verdict_p_value": "p-value of: coverage ≥ level everywhere",
    "certificate_p_value": "p-value of: coverage < level - 0.02 somewhere",
    "pairs_to_settle": f"about how many further pairs would settle the verdict {STAYS}",
    "nominal_log_prob": "mean log posterior of the true parameters",
    "nominal_log_prob_raw": "mean log posterior of the true parameters, not normalised",
    "information_kept": "0 for the prior, 1 for the exact posterior",
    "leakage": "mass outside the prior's support",
    "balancing_error": "balancing error; of mixtures, over the coverage pairs",
    "balance_signed": "balance, negative where too narrow",
    "train_seconds": "what its networks took of the training of their stack; cells may share networks",
    "steps": "steps of its networks together",
    "stack_seconds": "the whole of the stack that the cell belongs to, which `stack` names",
    "expected_log_prob": "mean log posterior of the exact posterior",
    "prior_log_prob": "mean log prior",
    "gallery_density": "density of run 0 for one observation",
    "cell": "identity of the cell",
}


def collect(folder: Folder, grid: Grid | None = None) -> xr.Dataset:
    """Everything that is finished in a folder.

    Arguments:
        folder: the folder.
        grid: whose axes to use; None for what was set down in the folder. Cells of earlier grids are added where they
            do not stand in the place of one of this grid's, and are what this grid would have computed there.
    """
    about = folder.read_grid()
    grid = grid or load_grid(about["grid"])
    stacks = {identity: folder.read_stack(identity) for identity in folder.stacks()}
    # A cell stands where its grid says: an earlier one may have called the same cell by another name.
    wanted = {c.identity: (c.task, c.method, c.budget, c.run) for c in cells_of(grid)}
    mine = set(wanted.values())
    finished = [
        (cell, (identity, i))
        for identity, (header, arrays) in stacks.items()
        if arrays["coverage"].shape[1] == LEVELS
        for i, cell in enumerate(header["cells"])
    ]
    places: dict[tuple[Any, ...], tuple[str, int]] = {}
    for cell, where in finished:
        if cell["identity"] in wanted:
            places.setdefault(wanted[cell["identity"]], where)
    others = [(cell, where) for cell, where in finished if cell["identity"] not in wanted]
    alike = _as_this_grid_would(grid, [cell for cell, _ in others])
    for cell, where in others:
        place = tuple(cell[a] for a in AXES)
        if cell["identity"] in alike and place not in mine:
            places.setdefault(place, where)
    left_out = sum(cell["identity"] not in alike for cell, _ in others)
    notes = sorted({f"{h['label']}: {n}" for h, _ in stacks.values() for n in h["notes"]})
    if left_out:
        notes = [f"{left_out} finished cells of other settings are in the folder and not in these results", *notes]
    if not places:
        raise ValueError(f"no cell of {folder.path} is finished yet; `equipoise status {folder.path}` shows why")
    ds = _assemble(grid, stacks, places)
    used = {s for s, _ in places.values()}
    ds = ds.merge(ledger({s: stacks[s] for s in sorted(used)}))
    seconds = {s: stacks[s][0]["seconds"] for s in used}
    ds.attrs = {
        "config": json.dumps(grid.config()),
        "protocol": grid.protocol,
        "equipoise": __version__,
        "torch": ", ".join(sorted({h["torch"] for h, _ in stacks.values()})),
        "numerics": NUMERICS,
        "command": about.get("command", ""),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": ", ".join(sorted({h["hardware"] for h, _ in stacks.values()})),
        "wall_seconds": float(sum(seconds.values())),
        "cells_done": sum(place in mine for place in places),
        "cells_wanted": len(mine),
        "notes": "\n".join(notes),
    }
    return ds


def _as_this_grid_would(grid: Grid, cells: list[dict[str, Any]]) -> set[str]:
    """The identities that cells on other axes would have, had this grid computed them."""
    found: set[str] = set()
    for budget in {cell["budget"] for cell in cells}:
        some = [cell for cell in cells if cell["budget"] == budget]
        axes = {f"{a}s": list(dict.fromkeys(cell[a] for cell in some)) for a in ("task", "method")}
        runs = 1 + max(cell["run"] for cell in some)
        try:
            larger = load_grid(grid.config() | axes | {"budgets": [budget], "runs": runs})
        except ValueError:  # what this grid would refuse, it would not have computed
            continue
        found |= {cell.identity for cell in cells_of(larger)}
    return found


def write_results(folder: Folder, grid: Grid | None = None, file: Path | None = None) -> Path:
    """Write `results.nc`, whole or not at all."""
    file = file or folder.path / "results.nc"
    ds = collect(folder, grid)
    encoding: dict[str, Any] = {
        str(name): {"zlib": True, "complevel": 9, "shuffle": True} | (PACKED if "level" in v.dims else {})
        for name, v in ds.data_vars.items()
        if v.ndim and v.dtype.kind in "fi"
    }
    for name in HISTORY:
        ds[name] = ds[name].copy(data=coarse(ds[name].values, HISTORY_BITS))
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
    ds.to_netcdf(temporary, engine="h5netcdf", encoding=encoding)
    os.replace(temporary, file)
    return file


def read_results(path: str | Path) -> xr.Dataset:
    """The results of a folder, or of a results file."""
    path = Path(path)
    file = path / "results.nc" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}; `equipoise run --out {path}` makes it")
    with xr.open_dataset(file, engine="h5netcdf") as ds:
        return ds.load()


def merge(sources: Sequence[str | Path], target: str | Path) -> Folder:
    """Bring the finished stacks of several folders together in one, under the union of their grids' axes.

    Arguments:
        sources: the folders. Everything but their axes (tasks, methods, budgets, runs) has to agree.
        target: the folder to fill; it may be one of them.
    """
    folders = [Folder(s) for s in sources]
    abouts = [f.read_grid() for f in folders]
    grid = load_grid(_union([a["grid"] for a in abouts], [str(f.path) for f in folders]))
    out = Folder(target)
    out.write_grid(grid.config(), **{k: abouts[0][k] for k in ("threads", "command") if k in abouts[0]})
    for folder in folders:
        for identity in folder.stacks():
            file = out.stack_file(identity)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
                shutil.copyfile(folder.stack_file(identity), temporary)
                os.replace(temporary, file)
            out.failure_file(identity).unlink(missing_ok=True)
    return out


def table(ds: xr.Dataset) -> list[dict[str, Any]]:
    """One row a cell that is there, for CSV and JSON."""
    names = [n for n, v in ds.data_vars.items() if v.dims == AXES]
    values = {n: ds[n].values for n in names}
    rows = []
    for index in zip(*np.nonzero(ds["cell"].values != ""), strict=True):
        row = {axis: ds[axis].values[i].item() for axis, i in zip(AXES, index, strict=True)}
        rows.append(
            row
            | {
                str(n): values[n][index].item() if hasattr(values[n][index], "item") else values[n][index]
                for n in names
            }
        )
    return rows


# --- putting it together ----------------------------------------------------------------------------------------------


def _assemble(
    grid: Grid,
    stacks: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]],
    places: dict[tuple[Any, ...], tuple[str, int]],
) -> xr.Dataset:
    coords: dict[str, Any] = {
        "task": _ordered([t.label for t in grid.tasks], (p[0] for p in places)),
        "method": _ordered([m.label for m in grid.methods], (p[1] for p in places)),
        "budget": sorted({*grid.budgets, *(p[2] for p in places)}),
        "run": sorted({*range(grid.runs), *(p[3] for p in places)}),
    }
    used = {s for s, _ in places.values()}
    epochs = np.unique(np.concatenate([stacks[s][1]["epoch"] for s in used]))
    several = max(stacks[s][0]["members"] for s in used) > 1
    sizes = {"level": LEVELS, "member": max(stacks[s][0]["members"] for s in used), "epoch": len(epochs)}
    shape = tuple(len(coords[a]) for a in AXES)
    dims: dict[str, tuple[str, ...]] = dict.fromkeys((*PER_CELL, *OTHERS, "stack_seconds"), ())
    dims |= dict.fromkeys(CURVES, ("level",)) | dict.fromkeys(HISTORY, ("epoch",))
    dims |= {f"member_{n}": ("member",) for n in PER_MEMBER}
    if several:  # a single network's curve is that of its run
        dims["member_coverage"] = ("member", "level")
    words: dict[str, tuple[str, ...]] = {
        "verdict": (),
        "member_verdict": ("member",),
        "cell": (),
        "hardware": (),
        "stack": (),
    }
    data = {
        n: np.full(
            (*shape, *(sizes[d] for d in extra)), np.nan, np.float64 if extra in ((), ("member",)) else np.float32
        )
        for n, extra in dims.items()
    }
    text = {n: np.full((*shape, *(sizes[d] for d in extra)), "", dtype=object) for n, extra in words.items()}

    position = {a: {v: i for i, v in enumerate(coords[a])} for a in AXES}
    for place, (stack, i) in places.items():
        index = tuple(position[a][v] for a, v in zip(AXES, place, strict=True))
        header, arrays = stacks[stack]
        rows = np.searchsorted(epochs, arrays["epoch"])
        for name, extra in dims.items():
            if name == "stack_seconds":
                data[name][index] = header["seconds"]
            elif name not in arrays:  # a stack of an earlier version
                continue
            elif extra == ("epoch",):
                data[name][index][rows] = arrays[name][i]
            elif extra[:1] == ("member",):
                data[name][index][: header["members"]] = arrays[name][i]
            else:
                data[name][index] = arrays[name][i]
        text["verdict"][index] = str(arrays["verdict"][i])
        text["member_verdict"][index][: header["members"]] = arrays["member_verdict"][i].astype(object)
        text["cell"][index], text["hardware"][index], text["stack"][index] = (
            header["cells"][i]["identity"],
            header["hardware"],
            stack,
        )

    holm = judge_cells(data["verdict_p_value"], data["certificate_p_value"]).astype(object)
    text["verdict_holm"] = np.where(text["verdict"] == "", "", holm)
    words["verdict_holm"] = ()
    coords |= {"level": np.linspace(0, 1, LEVELS), "member": np.arange(sizes["member"]), "epoch": epochs}
    variables = {n: ((*AXES, *extra), data[n]) for n, extra in dims.items()} | {
        n: ((*AXES, *words[n]), v) for n, v in text.items()
    }
    ds = xr.Dataset(variables, coords)
    _add_tasks(ds, grid, stacks, places)
    for name, meaning in MEANINGS.items():
        if name in ds:
            ds[name].attrs["long_name"] = meaning
    return ds


def _add_tasks(
    ds: xr.Dataset,
    grid: Grid,
    stacks: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]],
    places: dict[tuple[Any, ...], tuple[str, int]],
) -> None:
    """What belongs to a task, and the pictures."""
    tasks = {t: i for i, t in enumerate(ds["task"].values)}
    methods, budgets = ({v: i for i, v in enumerate(ds[a].values)} for a in ("method", "budget"))
    per_task = {n: np.full(len(tasks), np.nan) for n in ("expected_log_prob", "expected_log_prob_se", "prior_log_prob")}
    chosen = {p: where for p, where in places.items() if "gallery_cell" in stacks[where[0]][1]}
    pictures = [p for p, (s, i) in chosen.items() if i in stacks[s][1]["gallery_cell"]]
    for place, (stack, _) in places.items():
        for name, values in per_task.items():
            values[tasks[place[0]]] = stacks[stack][0]["expected"][name]
    for name, values in per_task.items():
        ds[name] = ("task", values)
    ds["pairs"] = ((), grid.rules("flow").pairs)
    if not pictures:
        return
    density = np.full((len(tasks), len(methods), len(budgets), SIDE, SIDE), np.nan, np.float32)
    exact: np.ndarray = np.full((len(tasks), SIDE, SIDE), np.nan, np.float32)
    theta, low, high = (np.full((len(tasks), 2), np.nan) for _ in range(3))
    x = np.full(len(tasks), "", dtype=object)
    for place in pictures:
        stack, i = places[place]
        header, arrays = stacks[stack]
        t = tasks[place[0]]
        row = arrays["gallery_cell"].tolist().index(i)
        density[t, methods[place[1]], budgets[place[2]]] = arrays["gallery_density"][row]
        exact[t], theta[t] = arrays["gallery_exact"], arrays["gallery_theta"]
        low[t], high[t] = header["box"]
        x[t] = json.dumps(np.round(arrays["gallery_x"].astype(float), 6).tolist())
    ds["gallery_density"] = (("task", "method", "budget", "grid_0", "grid_1"), density)
    ds["gallery_exact"] = (("task", "grid_0", "grid_1"), exact)
    for name, corner in (("gallery_theta", theta), ("gallery_low", low), ("gallery_high", high)):
        ds[name] = (("task", "parameter"), corner)
    ds["gallery_x"] = ("task", x)


def _ordered(first: list[str], others: Iterable[str]) -> list[str]:
    """The labels of the grid, then whatever else there is."""
    return list(dict.fromkeys([*first, *sorted(set(others))]))


def _union(grids: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """One grid of the axes of several, which agree in everything else."""
    union = dict(grids[0])
    for grid, name in zip(grids[1:], names[1:], strict=True):
        for key in sorted({*union, *grid} - {"tasks", "methods", "budgets", "runs", "name", "stack", "user_tasks"}):
            if union.get(key) != grid.get(key):
                raise GridError(
                    f"{name} and {names[0]} cannot be merged: {key} is {grid.get(key)!r} in the one and "
                    f"{union.get(key)!r} in the other"
                )
        for axis in ("tasks", "methods", "budgets"):
            union[axis] = [*union[axis], *(v for v in grid[axis] if v not in union[axis])]
        union["runs"] = max(union["runs"], grid["runs"])
        known, theirs = union.get("user_tasks", {}), grid.get("user_tasks", {})
        if changed := [label for label in known if theirs.get(label, known[label]) != known[label]]:
            raise GridError(f"{name} and {names[0]} cannot be merged: the file of {changed[0]} changed between them")
        union["user_tasks"] = {**known, **theirs}
    union["budgets"] = sorted(union["budgets"])
    return union
