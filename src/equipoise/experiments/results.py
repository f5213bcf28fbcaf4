"""Results: all finished stacks of a folder as one xarray Dataset, `results.nc`.

The dimensions are task, method, budget, run and level, and besides them member, epoch, grid_0 and grid_1. Cells that
are missing are NaN or empty. Variables without a prefix belong to the posterior of a run, which is the mixture of its
members; `member_…` are the single networks. What every stack took is in `ledger_…`, with a dimension of its own, so
that the cost of a grid can be added up without counting a stack once for each of its cells.

Stacks have the same variables over one dimension (`records`): results are their concatenation, unstacked.

The file is made to be kept: curves are stored to 1/30,000 and histories and pictures to three digits, in a few kB per
cell; single numbers are whole.
"""

from __future__ import annotations

__all__ = ["collect", "joined_grid", "merge", "read_results", "save_results", "table", "write_results"]

import datetime
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from equipoise.diagnostics import judge_cells
from equipoise.diagnostics.dataset import VARIABLES
from equipoise.support.errors import DamagedFile
from equipoise.support.hdf5 import read_netcdf, write_netcdf
from equipoise.version import __version__

from .cells import NUMERICS, cells_of
from .entries import GridError, method_facts, task_label
from .folder import Folder
from .grids import Grid, load_grid, stored_grid
from .records import CELL_VARIABLES, HISTORY, LEVELS, TASK_VARIABLES, coarse

AXES = ("task", "method", "budget", "run")
#: A cell: task, method, budget and run.
Place = tuple[str, str, int, int]
#: Places, and the stack and the identity of the cell that stands there.
Placed = Mapping[Place, tuple[str, str]]
#: Attributes and variables of stacks, by identity.
Stacks = Mapping[str, tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]
#: How curves between 0 and 1 are stored, and the bits of a history's numbers that are.
PACKED = {"dtype": "int16", "scale_factor": 1 / 30000, "_FillValue": -32768}
HISTORY_BITS = 10
#: So many stacks are read before their rows are joined, which keeps memory at that of the rows.
JOINED = 256
#: What the ledger has of a stack.
LEDGER = (
    "task", "budget", "cells", "members", "steps", "label", "network", "device", "place", "hardware", "torch",
    "equipoise", "began", "train_seconds", "diagnose_seconds", "seconds", "cost",
)  # fmt: skip
#: What results need of the attributes of a stack; texts that are equal are kept once.
HEADER = frozenset({*LEDGER, "trained", "notes"})
#: What variables mean that `diagnose` does not describe.
MEANINGS = {
    "verdict_holm": "verdict with Holm's correction over all cells",
    "released_coverage": "expected coverage of the first pairs by the released recipe, on which grids were published",
    "released_coverage_auc": "coverage AUC of the first pairs by the released recipe",
    "temperature": "the temperature that the out-of-fold pairs chose; 1 is not tempered",
    "calibration_p_over": "p-value of: coverage ≥ level everywhere, of the out-of-fold pairs at the temperature",
    "calibration_p_certificate": "p-value of: coverage < level - tolerance somewhere, of the out-of-fold pairs",
    "calibration_certified": "whether the out-of-fold pairs gave a certificate",
    "calibrate_seconds": "weighting and tempering the mixture",
    "untempered_coverage": "expected coverage of the mixture as trained, at t = 1",
    "untempered_coverage_auc": "coverage AUC of the mixture as trained, at t = 1",
    "untempered_verdict": "verdict on the mixture as trained, at t = 1",
    "untempered_verdict_p_value": "p-value of: coverage ≥ level everywhere, of the mixture as trained",
    "untempered_certificate_p_value": "p-value of: coverage < level - tolerance somewhere, of the mixture as trained",
    "untempered_nominal_log_prob": "nominal log posterior of the mixture as trained, at t = 1",
    "untempered_nominal_log_prob_se": "standard error of the nominal log posterior of the mixture as trained",
    "train_seconds": "what its networks took of the training of their stack; cells may share networks",
    "steps": "steps of its networks together",
    "stack_seconds": "the whole of the stack that the cell belongs to, which `stack` names",
    "expected_log_prob": "mean log posterior of the exact posterior",
    "prior_log_prob": "mean log prior",
    "gallery_density": "density of run 0 for one observation",
    "cell": "identity of the cell",
    "ledger_members": "networks that were trained together",
    "ledger_steps": "steps of all members together; members that converged took no more",
    "ledger_place": "the GPU's own name, where there was one",
    "ledger_began": "when it began, in seconds since the epoch: stacks of several processes may share a GPU",
    "ledger_train_seconds": "simulating and training",
    "ledger_diagnose_seconds": "judging",
    "ledger_seconds": "all of it, pictures included",
    "ledger_cost": "the most it was expected to take",
}


def collect(folder: Folder, grid: Grid | None = None) -> xr.Dataset:
    """Everything that is finished in a folder.

    Arguments:
        folder: the folder.
        grid: whose axes to use; None for what was set down in the folder. Cells of earlier grids are added where they
            do not stand in the place of one of this grid's, and are what this grid would have computed there.
    """
    about = folder.read_grid()
    grid = grid or stored_grid(folder)
    folder.warn_of_unusable_files()
    rows, stacks = _read(folder)
    places, counts = ({}, {}) if rows is None else _places(grid, rows)
    if rows is None or not places:
        raise ValueError(f"no cell of {folder.path} is finished yet; `equipoise status {folder.path}` shows why")
    stood = [rows[name].values[list(places.values())] for name in ("stack", "cell")]
    placed = dict(zip(places, zip(*stood, strict=True), strict=True))
    used = sorted({stack for stack, _ in placed.values()})
    ds = _unstacked(grid, rows, places)
    del rows  # as large as the results
    ds = ds.assign(_per_task(ds, stacks, placed) | _pictures(ds, stacks, placed))
    ds["pairs"] = ((), grid.rules("flow").pairs)
    ds = ds.assign_coords(_labels(grid, ds)).merge(_ledger({s: stacks[s] for s in used}))
    meanings: dict[Any, str] = {v.name: v.meaning for v in VARIABLES} | MEANINGS
    for name in ds.keys() & meanings.keys():
        ds[name].attrs["long_name"] = meanings[name]
    headers = [header for header, _ in stacks.values()]
    notes = sorted({f"{h['label']}: {n}" for h in headers for n in json.loads(h["notes"])})
    if left_out := counts.pop("left_out"):
        notes = [f"{left_out} finished cells of other settings are in the folder and not in these results", *notes]
    ds.attrs = {
        "config": json.dumps(grid.config()),
        "protocol": grid.protocol,
        "tolerance": grid.rules("flow").tolerance,
        "equipoise": __version__,
        "torch": ", ".join(sorted({h["torch"] for h in headers})),
        "numerics": NUMERICS,
        "command": str(about.get("command", "")),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": ", ".join(sorted({h["hardware"] for h in headers})),
        "wall_seconds": float(sum(stacks[s][0]["seconds"] for s in used)),
        **counts,
        "notes": "\n".join(notes),
    }
    return ds


def write_results(folder: Folder, grid: Grid | None = None, file: Path | None = None) -> Path:
    """Write `results.nc`, whole or not at all, with a digest."""
    file = file or folder.path / "results.nc"
    save_results(collect(folder, grid), file)
    return file


def save_results(ds: xr.Dataset, file: Path) -> None:
    """Write results that are in memory, rounded as `results.nc` has them."""
    encoding: dict[str, Any] = {
        str(name): {"zlib": True, "complevel": 9, "shuffle": True} | (PACKED if "level" in v.dims else {})
        for name, v in ds.data_vars.items()
        if v.ndim and v.dtype.kind in "fi"
    }
    for name in HISTORY:
        ds[name] = ds[name].copy(data=coarse(ds[name].values, HISTORY_BITS))
    write_netcdf(ds, file, encoding)


def read_results(path: str | Path) -> xr.Dataset:
    """The results of a folder, or of a results file."""
    path = Path(path)
    file = path / "results.nc" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}; `equipoise run --out {path}` makes it")
    try:
        return read_netcdf(file)
    except DamagedFile as error:
        raise DamagedFile(f"{error}; `equipoise report DIR` writes it again") from error


def merge(sources: Sequence[str | Path], target: str | Path, *, link: bool = False) -> Folder:
    """Bring the finished stacks of several folders together in one, under the union of their grids' axes.

    Arguments:
        sources: the folders. Everything but their axes (tasks, methods, budgets, runs) has to agree.
        target: the folder to fill; it may be one of them.
        link: whether links to their files do, as for a folder that is soon removed.
    """
    folders = [Folder(s) for s in sources]
    abouts = [f.read_grid() for f in folders]
    grid = load_grid(joined_grid([stored_grid(f).config() for f in folders], [str(f.path) for f in folders]))
    out = Folder(target)
    out.write_grid(grid.config(), **{k: abouts[0][k] for k in ("threads", "command") if k in abouts[0]})
    for folder in folders:
        folder.warn_of_unusable_files()
        out.copy_stacks(folder, link)
    return out


def table(ds: xr.Dataset) -> list[dict[str, Any]]:
    """One row for each cell that is there, for CSV and JSON."""
    names = [n for n, v in ds.data_vars.items() if v.dims == AXES]
    frame = ds[names].reset_coords(drop=True).to_dataframe(AXES).reset_index()
    rows: list[dict[str, Any]] = frame[frame["cell"] != ""].to_dict("records")
    return rows


# --- putting it together ----------------------------------------------------------------------------------------------


class _Alike:
    """Rows of stacks whose variables have the same names and sizes; those of many stacks are joined as they come."""

    def __init__(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        names = {**CELL_VARIABLES, "cell": (), "method": (), "run": ()}
        self.dims = {name: ("row", *dims) for name, dims in names.items() if name in arrays}
        self.coords = {"epoch": arrays["epoch"].copy(), "member": np.arange(header["members"])}
        self.stacks: list[tuple[str, Mapping[str, Any], int]] = []
        self._parts: dict[str, list[np.ndarray]] = {name: [] for name in self.dims}

    def add(self, identity: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self.stacks.append((identity, header, len(arrays["cell"])))
        for name, parts in self._parts.items():
            parts.append(arrays[name])
        if len(self.stacks) % JOINED == 0:
            self._join()

    def _join(self) -> None:
        for name, parts in self._parts.items():
            if len(parts) > 1:
                self._parts[name] = [*parts[:-JOINED], np.concatenate(parts[-JOINED:])]

    def rows(self) -> xr.Dataset:
        data: dict[str, Any] = {n: (dims, np.concatenate(self._parts.pop(n))) for n, dims in self.dims.items()}
        identities, headers, cells = zip(*self.stacks, strict=True)
        of_stacks = {"task": "task", "budget": "budget", "hardware": "hardware", "stack_seconds": "seconds"}
        for name, attribute in of_stacks.items():
            data[name] = ("row", np.repeat(_column([h[attribute] for h in headers]), cells))
        data["stack"] = ("row", np.repeat(_column(list(identities)), cells))
        return xr.Dataset(data, self.coords)


def _read(folder: Folder) -> tuple[xr.Dataset | None, Stacks]:
    """All cells over the dimension `row`, with `cell`, `stack` and the four axes; what else stacks have."""
    alike: dict[Any, _Alike] = {}
    stacks: dict[str, Any] = {}
    own = (*TASK_VARIABLES, "cell", "picture", "gallery_density")
    for identity in folder.stacks():
        header, arrays = folder.read_stack(identity)
        key = (header["members"], arrays["epoch"].tobytes(), *sorted(arrays.keys() & CELL_VARIABLES.keys()))
        if key not in alike:
            alike[key] = _Alike(header, arrays)
        kept = {sys.intern(n): sys.intern(v) if isinstance(v, str) else v for n, v in header.items() if n in HEADER}
        alike[key].add(identity, kept, arrays)
        stacks[identity] = kept, {n: arrays[n].copy() for n in own if n in arrays}
    groups = [group.rows() for group in alike.values()]
    if len(groups) < 2:
        return (groups[0] if groups else None), stacks
    return xr.concat(groups, "row", data_vars="all", coords="minimal", compat="override", join="outer"), stacks


def _places(grid: Grid, rows: xr.Dataset) -> tuple[dict[Place, int], dict[str, int]]:
    """Which row stands at which place; how many cells are done, wanted, and left out for their settings."""
    # A cell stands where its grid says: an earlier one may have called the same cell by another name.
    wanted = {c.identity: (c.task, c.method, c.budget, c.run) for c in cells_of(grid)}
    wanted_places = set(wanted.values())
    identities = rows["cell"].values.tolist()
    own: list[Place] = list(zip(*(rows[axis].values.tolist() for axis in AXES), strict=True))
    places: dict[Place, int] = {}
    for row, identity in enumerate(identities):
        if identity in wanted:
            places.setdefault(wanted[identity], row)
    done = len(places)
    others = [row for row, identity in enumerate(identities) if identity not in wanted]
    alike = _as_this_grid_would(grid, [own[row] for row in others])
    for row in others:
        if identities[row] in alike and own[row] not in wanted_places:
            places.setdefault(own[row], row)
    left_out = sum(identities[row] not in alike for row in others)
    return places, {"cells_done": done, "cells_wanted": len(wanted_places), "left_out": left_out}


def _as_this_grid_would(grid: Grid, places: list[Place]) -> set[str]:
    """The identities that cells on other axes would have, had this grid computed them."""
    found: set[str] = set()
    for budget in {place[2] for place in places}:
        tasks, methods, _, runs = zip(*(place for place in places if place[2] == budget), strict=True)
        axes = {"tasks": list(dict.fromkeys(tasks)), "methods": list(dict.fromkeys(methods)), "runs": 1 + max(runs)}
        try:
            found |= {c.identity for c in cells_of(load_grid(grid.config() | axes | {"budgets": [budget]}))}
        except ValueError:  # what this grid would refuse, it would not have computed
            continue
    return found


def _unstacked(grid: Grid, rows: xr.Dataset, places: Mapping[Place, int]) -> xr.Dataset:
    """The rows with the four axes as dimensions, in the order of the grid; the verdicts with Holm's correction."""
    tasks, methods, budgets, runs = (list(dict.fromkeys(values)) for values in zip(*places, strict=True))
    axes: dict[str, list[Any]] = {  # the labels of the grid, then whatever else there is
        "task": list(dict.fromkeys([*(t.label for t in grid.tasks), *sorted(tasks)])),
        "method": list(dict.fromkeys([*(m.label for m in grid.methods), *sorted(methods)])),
        "budget": sorted({*grid.budgets, *budgets}),
        "run": sorted({*range(grid.runs), *runs}),
    }
    put, chosen = _Put(places, axes), list(places.values())
    ds = xr.Dataset({name: put(v[chosen].variable) for name, v in rows.drop_vars(AXES).data_vars.items()}, axes)
    ds = ds.assign_coords(rows.drop_dims("row").coords)
    ds = ds.transpose(*AXES, "member", "level", "epoch", missing_dims="ignore")
    corrected = judge_cells(ds["verdict_p_value"].values, ds["certificate_p_value"].values)
    ds["verdict_holm"] = (AXES, np.where(ds["verdict"].values == "", "", corrected.astype(object)))
    if ds.sizes["member"] == 1:  # a single network's curve is that of its run
        ds = ds.drop_vars("member_coverage")
    return ds.assign_coords(level=np.linspace(0, 1, LEVELS))


class _Put:
    """Puts the rows of variables where they stand on some axes; elsewhere is NaN, or an empty text."""

    def __init__(self, places: Iterable[tuple[Any, ...]], axes: Mapping[str, list[Any]]) -> None:
        self._axes, self._shape = tuple(axes), tuple(map(len, axes.values()))
        at = ({label: i for i, label in enumerate(labels)} for labels in axes.values())
        columns = zip(at, zip(*places, strict=True), strict=True)
        self._at = np.ravel_multi_index([[index[p] for p in column] for index, column in columns], self._shape)

    def __call__(self, rows: xr.Variable) -> xr.Variable:
        values, size = rows.values, math.prod(self._shape)
        if len(self._at) < size and values.dtype.kind in "iub":  # something is missing, and will be NaN
            values = values.astype(np.float64)
        if values.dtype.kind == "O":  # NaN where a stack does not have the variable
            values = np.where(values != values, "", values)
        nothing = {"O": "", "f": np.nan}.get(values.dtype.kind, 0)
        found = np.full((size, *values.shape[1:]), nothing, values.dtype)
        found[self._at] = values
        return xr.Variable((*self._axes, *rows.dims[1:]), found.reshape(*self._shape, *values.shape[1:]))


def _per_task(ds: xr.Dataset, stacks: Stacks, placed: Placed) -> dict[str, xr.DataArray]:
    """What belongs to a task, from the last of its stacks that has it."""
    found = {}
    for name, dims in TASK_VARIABLES.items():
        have = {place[0]: stacks[s][1][name] for place, (s, _) in placed.items() if name in stacks[s][1]}
        if have:
            values = xr.DataArray(np.stack(list(have.values())), {"task": list(have)}, ("task", *dims))
            values = values.reindex(task=ds["task"].values)
            found[name] = values.fillna("") if values.dtype.kind == "O" else values
    return found


def _pictures(ds: xr.Dataset, stacks: Stacks, placed: Placed) -> dict[str, xr.DataArray]:
    """The densities of run 0, over task, method and budget."""
    rows = {stack: {p: i for i, p in enumerate(stacks[stack][1].get("picture", ()))} for stack, _ in placed.values()}
    drawn = {p[:3]: stacks[s][1]["gallery_density"][rows[s][c]] for p, (s, c) in placed.items() if c in rows[s]}
    if not drawn:
        return {}
    axes = {axis: ds[axis].values.tolist() for axis in AXES[:3]}
    densities = xr.Variable(("picture", "grid_0", "grid_1"), np.stack(list(drawn.values())))
    return {"gallery_density": xr.DataArray(_Put(drawn, axes)(densities), axes)}


def _labels(grid: Grid, ds: xr.Dataset) -> dict[str, Any]:
    """What figures and readers need to know of the tasks and methods, along their axes."""
    rows = [method_facts(label) for label in ds["method"].values]
    found: dict[str, Any] = {f"method_{name}": ("method", [row[name] for row in rows]) for name in rows[0]}
    tasks = ds["task"].values.tolist()
    given = ds["task_label"].values.tolist() if "task_label" in ds else [""] * len(tasks)  # of older stacks
    found["task_label"] = ("task", [task_label(task, label) for task, label in zip(tasks, given, strict=True)])
    return found | {name: ds[name] for name in ("task_parameters",) if name in ds}


def _ledger(stacks: Stacks) -> xr.Dataset:
    """One row per stack: `ledger_…` over the dimension `ledger`, whose coordinate is the identity of the stack."""
    headers = [header for header, _ in stacks.values()]
    own = {"cells": [len(arrays["cell"]) for _, arrays in stacks.values()], "members": [h["trained"] for h in headers]}
    columns = {name: own.get(name) or [h.get(name, np.nan) for h in headers] for name in LEDGER}
    data = {f"ledger_{name}": ("ledger", _column(values)) for name, values in columns.items()}
    return xr.Dataset(data, {"ledger": _column(list(stacks))})


def _column(values: list[Any]) -> np.ndarray:
    """Values as an array, texts as objects."""
    found = np.array(values)
    return found.astype(object) if found.dtype.kind == "U" else found


def joined_grid(grids: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The configuration of one grid of the axes of several, which agree in everything else; `names` are for errors."""
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
