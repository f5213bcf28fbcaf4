"""Results as the figures and the page see them: opened, checked, named as in the paper, and summed up over runs.

A *setting* is a method at a task and a budget; its *runs* differ in simulations and weights alone. What is said of a
setting is the median of its runs and their range, and how many of them have which verdict.
"""

from __future__ import annotations

__all__ = [
    "CERTIFIED",
    "INCONCLUSIVE",
    "MISSING",
    "OVERCONFIDENT",
    "PARTLY",
    "Labels",
    "Range",
    "Setting",
    "open_results",
    "settings_of",
    "signed",
]

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

OVERCONFIDENT = "overconfident"
PARTLY = "overconfident in some runs"
CERTIFIED = "certified conservative"
INCONCLUSIVE = "inconclusive"
MISSING = "missing"

#: What is taken over runs.
NUMBERS = (
    "coverage_auc",
    "coverage_auc_se",
    "verdict_p_value",
    "nominal_log_prob",
    "information_kept",
    "balance_signed",
    "balancing_error",
    "levels_covered",
    "pairs_to_settle",
    "diverged_members",
)
CELL = ("task", "method", "budget", "run")
METHODS = {
    "nre": "NRE",
    "bnre": "BNRE",
    "nre_c": "NRE-C",
    "bnre_c": "BNRE-C",
    "npe": "NPE",
    "bnpe": "BNPE",
    "rnpe": "RNPE",
    "brnpe": "BRNPE",
    "bnpe_init": "BNPE Init",
    "brnpe_init": "BRNPE Init",
}
#: The figures of the paper call the ratio-trained flows so; the text's methods then need another name beside them.
RELEASED = {"brnpe": "BNPE", "brnpe_init": "BNPE Init", "bnpe": "BNPE (text)", "bnpe_init": "BNPE Init (text)"}
TASKS = {
    "slcp": "SLCP",
    "weinberg": "Weinberg",
    "spatial_sir": "Spatial SIR",
    "lotka_volterra": "Lotka-Volterra",
    "two_moons": "Two Moons",
}


def open_results(results: xr.Dataset | str | Path) -> xr.Dataset:
    """The dataset itself, the file, or results.nc in a directory: loaded, checked, with words for missing text.

    Example:
        >>> open_results(xr.Dataset())
        Traceback (most recent call last):
        ...
        ValueError: these are not results of a grid: the dimensions task, method, budget, run, level are missing. ...
    """
    if isinstance(results, xr.Dataset):
        ds = results.load()
    else:
        given = Path(results)
        path = given / "results.nc" if given.is_dir() else given
        if not path.exists():
            model = (given / "model.json").exists()
            what = "is a saved posterior, which `equipoise diagnose` judges" if model else "is no experiment"
            what = what if given.exists() else "does not exist"
            raise FileNotFoundError(f"{given} {what}; a report is of what `equipoise run` has written")
        with xr.open_dataset(path) as opened:
            ds = opened.load()
    gone = [d for d in (*CELL, "level") if d not in ds.dims]
    if gone:
        raise ValueError(
            f"these are not results of a grid: the dimensions {', '.join(gone)} are missing. "
            "Pass a directory that `equipoise run` has written, or its results.nc; for the curve of one posterior, "
            "`equipoise diagnose --figure` or eq.plots.coverage(ds)."
        )
    if "coverage" not in ds:
        raise ValueError("these results have no coverage: nothing was diagnosed")
    if not np.isfinite(ds["coverage"].values).any():
        raise ValueError("no cell of these results is finished: run the grid first")
    ds = ds.transpose(*CELL, "level", ...)
    return ds.assign({name: _text(ds[name]) for name in ds.data_vars if ds[name].dtype.kind in "OUS"})


def _text(values: xr.DataArray) -> xr.DataArray:
    """Missing text as "", whatever the file holds for it."""
    plain = [v.decode() if isinstance(v, bytes) else v if isinstance(v, str) else "" for v in values.values.ravel()]
    return values.copy(data=np.array(plain, dtype=object).reshape(values.shape))


def _with_options(label: str, names: dict[str, str]) -> str:
    name, _, options = label.partition("[")
    words = options.removesuffix("]").replace("=true", "").replace("=", " ").replace("_", " ").replace(",", ", ")
    return names.get(name, name) + (f" ({words})" if words else "")


@dataclass(frozen=True)
class Labels:
    """Names as the paper prints them, for one protocol."""

    protocol: str = ""

    def method(self, name: str) -> str:
        """The paper's name of a method; what it does not know stays as it is.

        Example:
            >>> Labels("paper").method("brnpe"), Labels("released").method("brnpe"), Labels().method("mine")
            ('BRNPE', 'BNPE', 'mine')
            >>> Labels().method("bnpe[strength=10,unbiased=true]")
            'BNPE (strength 10, unbiased)'
        """
        names = METHODS | RELEASED if self.protocol == "released" else METHODS
        return _with_options(name, names)

    def task(self, name: str) -> str:
        return _with_options(name, TASKS)

    def budget(self, budget: int) -> str:
        return f"{budget:,}"


@dataclass(frozen=True)
class Range:
    """A number over runs: median, smallest, largest; NaN where no run has it."""

    median: float = np.nan
    low: float = np.nan
    high: float = np.nan

    @classmethod
    def of(cls, values: Any) -> Range:
        values = np.asarray(values, float)
        values = values[~np.isnan(values)]
        return cls(float(np.median(values)), float(values.min()), float(values.max())) if values.size else cls()

    @property
    def known(self) -> bool:
        return bool(np.isfinite(self.median))


@dataclass(frozen=True)
class Setting:
    """One method at one task and budget, over its runs."""

    task: str
    method: str
    budget: int
    planned: int
    overconfident: int
    certified: int
    inconclusive: int
    overconfident_alone: int  # before Holm's correction
    certified_alone: int
    auc: Range
    auc_se: float  # the largest of the runs'
    p_value: Range
    nominal: Range
    information: Range
    balance: Range
    balancing_error: Range
    levels_covered: Range
    pairs_to_settle: Range  # of the runs that are inconclusive, alone and with the others
    diverged: int

    @property
    def runs(self) -> int:
        """How many runs were judged."""
        return self.overconfident + self.certified + self.inconclusive

    @property
    def state(self) -> str:
        """The runs' verdicts in one word: all must agree on a strong one."""
        if not self.runs:
            return MISSING
        if self.overconfident:
            return OVERCONFIDENT if self.overconfident == self.runs else PARTLY
        return CERTIFIED if self.certified == self.runs else INCONCLUSIVE


def settings_of(ds: xr.Dataset) -> list[Setting]:
    """Every setting of the grid, task by task, method by method, budget by budget."""
    shape = tuple(ds.sizes[d] for d in CELL)
    blank = np.full(shape, np.nan)

    def numbers(name: str) -> Any:
        return np.asarray(ds[name].values, float) if name in ds else blank

    judged = verdicts(ds)
    alone = ds["verdict"].transpose(*CELL).values if "verdict" in ds else judged
    value = {name: numbers(name) for name in NUMBERS}
    found = []
    for t, m, b in np.ndindex(shape[:3]):
        at = {name: v[t, m, b] for name, v in value.items()}
        words = judged[t, m, b]
        found.append(
            Setting(
                task=str(ds["task"].values[t]),
                method=str(ds["method"].values[m]),
                budget=int(ds["budget"].values[b]),
                planned=shape[3],
                overconfident=_count(words, OVERCONFIDENT),
                certified=_count(words, CERTIFIED),
                inconclusive=_count(words, INCONCLUSIVE),
                overconfident_alone=_count(alone[t, m, b], OVERCONFIDENT),
                certified_alone=_count(alone[t, m, b], CERTIFIED),
                auc=Range.of(at["coverage_auc"]),
                auc_se=Range.of(at["coverage_auc_se"]).high,
                p_value=Range.of(at["verdict_p_value"]),
                nominal=Range.of(at["nominal_log_prob"]),
                information=Range.of(at["information_kept"]),
                balance=Range.of(at["balance_signed"]),
                balancing_error=Range.of(at["balancing_error"]),
                levels_covered=Range.of(at["levels_covered"]),
                pairs_to_settle=Range.of(
                    at["pairs_to_settle"][(words == INCONCLUSIVE) & (alone[t, m, b] == INCONCLUSIVE)]
                ),
                diverged=int(np.nansum(at["diverged_members"])),
            )
        )
    return found


def verdicts(ds: xr.Dataset) -> Any:
    """The verdict of every run: with Holm's correction where the results have it, else each alone; "" where missing."""
    for name in ("verdict_holm", "verdict"):
        if name in ds:
            words: Any = ds[name].transpose(*CELL).values
            return words
    return np.full(tuple(ds.sizes[d] for d in CELL), "", dtype=object)


def _count(words: Iterable[Any], word: str) -> int:
    return sum(w == word for w in words)


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, as it is printed; nothing is said of a value that is not there.

    Example:
        >>> signed(-0.1342), signed(0.05), signed(-0.0001), signed(float("nan"))
        ('−0.134', '+0.050', '0.000', '–')
    """
    if not np.isfinite(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else ("\N{MINUS SIGN}" if value < 0 else "+") + text
