"""Reads the results files and the published numbers, for tables and figures.

Needs numpy and xarray, and no torch.
"""

from __future__ import annotations

__all__ = [
    "FILES",
    "GALLERIES",
    "HERE",
    "LABELS",
    "TASKS",
    "Missing",
    "Results",
    "Setting",
    "area_as_read",
    "budgets_of",
    "figure_auc",
    "opened",
    "optional",
    "pictured",
    "published",
]

import csv
import dataclasses
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import xarray as xr

from equipoise.plots.gallery import gallery_tasks
from equipoise.plots.labels import METHODS, TASKS

HERE = Path(__file__).parent
#: What the methods are called.
LABELS = {name: row.label for name, row in METHODS.items()}
#: The results that are drawn and tabulated, by the name of their grid.
FILES = (
    "paper", "released", "released_again", "strength", "strength_brnpe", "ablation", "start", "artefact", "leakage",
    "mixture", "bnre_slcp", "rolls", "escape", "estimate",
)  # fmt: skip
#: Results whose larger budgets are in a second file, of runs with other simulations and first weights.
AGAIN = {"released": "released_again"}
#: Tasks with two parameters, whose posteriors are drawn.
GALLERIES = ("slcp", "two_moons", "lotka_volterra", "spatial_sir")
#: The figure's "BNPE" and "BNPE Init" are the flows trained with the ratio loss.
DRAWN_AS = {"bnpe": "brnpe", "bnpe_init": "brnpe_init"}


class Missing(Exception):
    """Results that a table or figure needs and that were not computed."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One method at one task and budget: its runs.

    Arguments:
        task, method, budget: which.
        numbers: every number of a run, with shape `(runs,)`, of the computed runs.
        verdicts: of each run, after Holm's correction over all cells of the results.
        curve: the median over runs of the coverage, with shape `(levels,)`.
        released_curve: the same by the released recipe, where it was judged by that as well.
    """

    task: str
    method: str
    budget: int
    numbers: dict[str, np.ndarray]
    verdicts: list[str]
    curve: np.ndarray
    released_curve: np.ndarray | None = None

    def median(self, name: str) -> float:
        return float(np.median(self.numbers[name]))

    def ends(self, name: str) -> tuple[float, float]:
        return float(self.numbers[name].min()), float(self.numbers[name].max())

    @property
    def dip(self) -> float:
        """The minimum of coverage − level of the median curve; negative where it lies below the diagonal."""
        return float((self.curve - np.linspace(0, 1, len(self.curve))).min())

    def mostly(self, verdict: str) -> bool:
        """Whether more than half of the runs have this verdict."""
        return 2 * self.verdicts.count(verdict) > len(self.verdicts)


class Results:
    """A results file.

    Arguments:
        name: of the grid.
        folder: where the files are.
    """

    def __init__(self, name: str, folder: Path = HERE) -> None:
        self.name = name
        self.ds = _loaded(name, folder)

    @cached_property
    def settings(self) -> dict[tuple[str, str, int], Setting]:
        """Every setting with at least one computed run."""
        ds, found = self.ds, {}
        axes = ("task", "method", "budget", "run")
        numbers = {str(n): v.values for n, v in ds.data_vars.items() if v.dims == axes and v.dtype.kind in "fi"}
        verdicts, coverage = ds["verdict_holm"].values, ds["coverage"].values
        recipe = ds["released_coverage"].values if "released_coverage" in ds else np.full(coverage.shape, np.nan)
        for t, m, b in np.ndindex(coverage.shape[:3]):
            there = np.isfinite(coverage[t, m, b]).all(-1)
            if there.any():
                key = str(ds["task"].values[t]), str(ds["method"].values[m]), int(ds["budget"].values[b])
                found[key] = Setting(
                    *key,
                    {n: v[t, m, b][there] for n, v in numbers.items()},
                    [str(v) for v in verdicts[t, m, b][there]],
                    np.median(coverage[t, m, b][there], 0),
                    np.median(recipe[t, m, b][there], 0) if np.isfinite(recipe[t, m, b][there]).all() else None,
                )
        return found

    @property
    def tasks(self) -> list[str]:
        return [t for t in map(str, self.ds["task"].values) if any(k[0] == t for k in self.settings)]

    @property
    def methods(self) -> list[str]:
        return [m for m in map(str, self.ds["method"].values) if any(k[1] == m for k in self.settings)]

    @property
    def budgets(self) -> list[int]:
        return sorted({k[2] for k in self.settings})

    def each(self, tasks: list[str], methods: list[str], budgets: list[int]) -> Iterator[Setting]:
        """The computed settings among these."""
        for key in ((t, m, b) for t in tasks for m in methods for b in budgets):
            if key in self.settings:
                yield self.settings[key]


def opened(name: str, folder: Path = HERE) -> Results:
    """The results in a file, read once as long as it does not change, and the larger budgets of a second file.

    `Results(name, folder)` is what the file alone has.
    """
    files = [folder / f"{n}.nc" for n in (name, AGAIN.get(name, name))]
    return _opened(name, folder, *(file.stat().st_mtime_ns if file.exists() else 0 for file in files))


def optional(name: str, folder: Path = HERE) -> Results | None:
    """A results file, or None if it has not been computed."""
    try:
        return opened(name, folder)
    except Missing:
        return None


@lru_cache(maxsize=16)
def _opened(name: str, folder: Path, *stamps: int) -> Results:
    results = Results(name, folder)
    if name in AGAIN and (folder / f"{AGAIN[name]}.nc").exists():
        results.ds = _with_larger_budgets(results.ds, _loaded(AGAIN[name], folder))
    return results


def _loaded(name: str, folder: Path) -> xr.Dataset:
    file = folder / f"{name}.nc"
    if not file.exists():
        raise Missing(f"`results/{name}.nc` is not there")
    with xr.open_dataset(file, engine="h5netcdf") as ds:
        return ds.load()


def _with_larger_budgets(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    """The first results, and of the second the cells of budgets that the first lack."""
    there = np.isfinite(second["coverage_auc"]).any(["task", "method", "run"])
    more = second.sel(budget=[b for b in second["budget"].values[there.values] if b not in first["budget"].values])
    shared = [
        str(n) for n, v in more.data_vars.items() if "budget" in v.dims and n in first and "gallery" not in str(n)
    ]
    more = more[shared].reset_coords(drop=True)  # the first have the labels
    nothing = {n: np.nan if more[n].dtype.kind in "fi" else "" for n in shared}
    more = more.reindex({n: first[n].values for n in ("task", "method")}, fill_value=nothing)
    cells = first[[n for n, v in first.data_vars.items() if "budget" in v.dims]]
    return first.drop_dims("budget").merge(xr.concat([cells, more], "budget"))


def pictured(name: str, task: str, folder: Path = HERE) -> xr.Dataset:
    """Results of a grid, if they have posteriors of a task to draw."""
    ds = Results(name, folder).ds
    if task not in gallery_tasks(ds):
        raise Missing(f"`results/{name}.nc` has no posteriors of {TASKS[task]}")
    return ds


def budgets_of(results: Results, task: str, *methods: str) -> list[int]:
    """The budgets at which all these methods have been computed for a task."""
    return [b for b in results.budgets if all((task, m, b) in results.settings for m in methods)]


def figure_auc(setting: Setting, levels: np.ndarray) -> float:
    """The coverage AUC as it was read off the published figure.

    That shows the median over runs at each level, and was read at 0, 0.05, …, 1 and summed by the trapezoidal rule.
    """
    return area_as_read(setting.curve, levels)


def area_as_read(curve: np.ndarray, levels: np.ndarray) -> float:
    at = np.linspace(0, 1, 21)
    return float(np.trapezoid(np.interp(at, levels, curve) - at, at))


def published(folder: Path = HERE) -> dict[tuple[str, str, int], float]:
    """The published coverage AUC, by task, method (under the name that it has here) and budget."""
    with open(folder / "published-auc.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    return {(r["task"], DRAWN_AS.get(r["method"], r["method"]), int(r["budget"])): float(r["auc"]) for r in rows}
