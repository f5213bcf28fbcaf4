"""Results summed up over runs, as the figures and the page show them.

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
    "Range",
    "Setting",
    "settings_of",
    "short_verdict",
    "signed",
]

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

OVERCONFIDENT = "overconfident"
PARTLY = "overconfident in some runs"
CERTIFIED = "certified conservative"
INCONCLUSIVE = "inconclusive"
MISSING = "missing"

#: The numbers that are summed up over runs.
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


def short_verdict(s: Setting) -> str:
    """The verdicts of a setting in a few characters: "▼ 3/3", "▼2 ◇1" where runs disagree, "▼" for one run."""
    marks = {"▼": s.overconfident, "▲": s.certified, "◇": s.inconclusive}
    some = {symbol: n for symbol, n in marks.items() if n}
    if len(some) != 1:
        return " ".join(f"{symbol}{n}" for symbol, n in some.items()) or "–"
    ((symbol, n),) = some.items()
    return symbol if s.planned == 1 else f"{symbol} {n}/{s.runs}"


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
