"""Results summed up over runs, as the figures and the page show them.

A *setting* is a method at a task and a budget; its *runs* differ in simulations and weights alone. What is said of a
setting is the median of its runs and their range, and how many of them have which verdict.
"""

from __future__ import annotations

__all__ = ["CERTIFIED", "INCONCLUSIVE", "MISSING", "OVERCONFIDENT", "PARTLY", "Range", "Setting", "settings_of"]

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

OVERCONFIDENT = "overconfident"
PARTLY = "overconfident in some runs"
CERTIFIED = "certified conservative"
INCONCLUSIVE = "inconclusive"
MISSING = "missing"

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
    auc_se: Range
    p_value: Range
    nominal: Range
    information: Range
    balance: Range
    levels_covered: Range
    pairs_to_settle: Range  # of the runs that are inconclusive, alone and with the others
    diverged: int
    temperature: Range = Range()  # of calibrated mixtures
    nats_lost: Range = Range()  # to the temperature
    untempered_overconfident: int = 0  # alone

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


#: The variable behind each number of a setting.
VARIABLES = {
    "auc": "coverage_auc",
    "auc_se": "coverage_auc_se",
    "p_value": "verdict_p_value",
    "nominal": "nominal_log_prob",
    "information": "information_kept",
    "balance": "balance_signed",
    "levels_covered": "levels_covered",
    "pairs_to_settle": "pairs_to_settle",
    "diverged": "diverged_members",
    "temperature": "temperature",
    "nats_lost": "untempered_nominal_log_prob",
}


def settings_of(ds: xr.Dataset) -> list[Setting]:
    """Every setting of the grid, task by task, method by method, budget by budget.

    Verdicts are with Holm's correction where the results have it, else of each run alone; "" where one is missing.
    """
    shape = tuple(ds.sizes[d] for d in CELL)

    def values(name: str, missing: Any) -> Any:
        return ds[name].transpose(*CELL).values if name in ds else np.full(shape, missing, dtype=object)

    alone = values("verdict", "")
    judged = values("verdict_holm", "") if "verdict_holm" in ds else alone
    numbers = {field: values(name, np.nan).astype(float) for field, name in VARIABLES.items()}
    # Of the other runs more pairs are not asked for.
    numbers["pairs_to_settle"][(judged != INCONCLUSIVE) | (alone != INCONCLUSIVE)] = np.nan
    numbers["nats_lost"] = numbers["nats_lost"] - numbers["nominal"]
    raw = values("untempered_verdict", "")
    found = []
    for t, m, b in np.ndindex(shape[:3]):
        ranges: dict[str, Any] = {field: Range.of(number[t, m, b]) for field, number in numbers.items()}
        ranges["diverged"] = int(np.nansum(numbers["diverged"][t, m, b]))
        found.append(
            Setting(
                task=str(ds["task"].values[t]),
                method=str(ds["method"].values[m]),
                budget=int(ds["budget"].values[b]),
                planned=shape[3],
                overconfident=int((judged[t, m, b] == OVERCONFIDENT).sum()),
                certified=int((judged[t, m, b] == CERTIFIED).sum()),
                inconclusive=int((judged[t, m, b] == INCONCLUSIVE).sum()),
                overconfident_alone=int((alone[t, m, b] == OVERCONFIDENT).sum()),
                certified_alone=int((alone[t, m, b] == CERTIFIED).sum()),
                untempered_overconfident=int((raw[t, m, b] == OVERCONFIDENT).sum()),
                **ranges,
            )
        )
    return found


def short_verdict(s: Setting) -> str:
    """The verdicts of a setting in a few characters: "▼ 3/3", "▼2 ◇1" where runs disagree, "▼" for one run."""
    marks = {"▼": s.overconfident, "▲": s.certified, "◇": s.inconclusive}
    some = {symbol: n for symbol, n in marks.items() if n}
    if len(some) != 1:
        return " ".join(f"{symbol}{n}" for symbol, n in some.items()) or "–"
    ((symbol, n),) = some.items()
    return symbol if s.planned == 1 else f"{symbol} {n}/{s.runs}"


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign, as it is printed; a dash for NaN.

    Example:
        >>> signed(-0.1342), signed(0.05), signed(-0.0001), signed(float("nan"))
        ('−0.134', '+0.050', '0.000', '–')
    """
    if not np.isfinite(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else ("\N{MINUS SIGN}" if value < 0 else "+") + text
