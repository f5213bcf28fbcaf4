"""The comparison with peers, from `peers.csv`: tables in plain text, and a figure. No torch.

    python results/speed.py              print the tables

Rows of one thread are compared by CPU seconds, with five networks of sbi. Rows of more threads are compared by the
clock, with one.

`benchmarks/peers.py` writes the file, one row per problem, number of simulations, method, threads and members:

- `log_prob`, `log_prob_se`: mean log posterior density of fresh pairs, and its standard error; `exact`: that of the
  exact posterior, where it is known; `entropy`: of the prior, so that log_prob + entropy is what was learnt, in nats;
- `singles`: the mean of `log_prob` over single networks;
- `cpu_s`, `wall_s`: of the fit; `judge_s`: of judging; `load`: of the machine, the mean of 15 minutes;
- `leakage`: the mass outside the prior that was cut off; `verdict`, `coverage_auc`: of all networks together.
"""

from __future__ import annotations

__all__ = ["FIELDS", "draw", "key_of", "peers_table", "read", "table"]

import csv
import math
from collections.abc import Mapping
from itertools import product
from operator import and_
from pathlib import Path
from statistics import mean, median
from textwrap import wrap
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from equipoise.plots.style import CYCLE, GREY, INK, PRINT, VERDICTS
from formats import table as markdown
from reading import Missing

HERE = Path(__file__).parent
#: Problem, budget, method, threads, and "one" (network) or "mixture".
Key = tuple[str, int, str, int, str]
NUMBERS = ("log_prob", "log_prob_se", "singles", "exact", "entropy", "cpu_s", "wall_s", "judge_s", "leakage")
FIELDS = (
    "problem",
    "budget",
    "method",
    "threads",
    "members",
    "group",
    *NUMBERS,
    "coverage_auc",
    "verdict",
    "pairs",
    "load",
    "version",
)


class Measure(NamedTuple):
    """What is compared with what.

    Arguments:
        field: the seconds, among `NUMBERS`.
        words: what these are called.
        reference: the method and kind that the others are compared with.
        goal: the share of the reference's seconds that Equipoise may take.
        reached: what is said of a method that takes at most this share.
    """

    field: str
    words: str
    reference: tuple[str, str]
    goal: float
    reached: str


#: Of one thread: the seconds of five networks. Of more, where they wait for each other: the time of one.
CPU = Measure("cpu_s", "CPU seconds", ("sbi-maf", "mixture"), 0.25, "at most 0.25 of its CPU seconds")
WALL = Measure("wall_s", "wall seconds", ("sbi-maf", "one"), 1.0, "not slower")
#: Where the axes of the figure have ticks.
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32)
NATS = (-50, -20, -10, -5, -2, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 2, 5, 10, 20, 50)


def measure(threads: int) -> Measure:
    """What rows of so many threads are compared by."""
    return CPU if threads == 1 else WALL


def key_of(row: Mapping[str, Any]) -> Key:
    """What identifies a row. Mixtures of other numbers of networks take each other's place."""
    kind = "one" if int(row["members"]) == 1 else "mixture"
    return row["problem"], int(row["budget"]), row["method"], int(row["threads"]), kind


def read(file: Path = HERE / "peers.csv") -> dict[Key, dict[str, Any]]:
    """The rows by their keys, in the order of the file; of equal keys the last."""
    if not file.exists():
        return {}
    found: dict[Key, dict[str, Any]] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            numbers = {n: float(row[n]) if row[n] else math.nan for n in (*NUMBERS, "coverage_auc")}
            key = key_of(row)
            found.pop(key, None)
            found[key] = {**row, **numbers}
    return found


def compared(
    rows: Mapping[Key, Mapping[str, Any]], threads: int, method: str | None = None
) -> list[tuple[Key, float, float]]:
    """Each row beside the reference of its problem and budget: key, difference in nats, ratio of seconds.

    The reference is another method's, where one is given.
    """
    found, by = [], measure(threads)
    reference = method or by.reference[0], by.reference[1]
    for key, row in rows.items():
        problem, budget, mine, used, kind = key
        other = rows.get((problem, budget, reference[0], threads, reference[1]))
        if other is not None and used == threads and (mine, kind) != reference:
            found.append((key, row["log_prob"] - other["log_prob"], row[by.field] / other[by.field]))
    return found


def table(rows: Mapping[Key, Mapping[str, Any]], threads: int = 1) -> str:
    """Seconds / nats over the prior and verdict, problems × methods; then how Equipoise compares."""
    rows = {key: row for key, row in rows.items() if key[3] == threads}
    if not rows:
        return f"nothing was computed with {threads} threads"
    goals = _goals(rows, threads)
    parts = [_aligned(*_lines(rows, threads)), _legend(rows, threads), *([_aligned(*goals)] if goals[1] else [])]
    return "\n\n".join(parts)


def _aligned(head: list[str], lines: list[list[str]]) -> str:
    """A table in plain text: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in [head, *lines]
    )


def peers_table(folder: Path = HERE, threads: int = 1) -> str:
    """The same for docs/speed.md, in Markdown, with the figure (of one thread) once Equipoise is in it."""
    rows = {key: row for key, row in read(folder / "peers.csv").items() if key[3] == threads}
    if not rows:
        raise Missing(f"`results/peers.csv` has no rows with threads = {threads}")
    goals = _goals(rows, threads)
    parts = [markdown(*_lines(rows, threads)), "\n".join(wrap(f"*{_legend(rows, threads)}.*", 98))]
    parts += [markdown(*goals)] if goals[1] else []
    if threads == 1 and goals[1]:
        parts.append("![Held-out log posterior against CPU seconds, relative to sbi](figures/peers.png)")
    return "\n\n".join(parts)


def _columns(rows: Mapping[Key, Any]) -> list[tuple[str, str]]:
    return sorted({key[2::2] for key in rows}, key=lambda c: (not c[0].startswith("equipoise"), c))


def _lines(rows: Mapping[Key, Mapping[str, Any]], threads: int) -> tuple[list[str], list[list[str]]]:
    """The head and the lines of the table."""
    columns, lines = _columns(rows), []
    for problem, budget in sorted(dict.fromkeys(key[:2] for key in rows), key=lambda p: p[1]):
        cells = [rows.get((problem, budget, method, threads, kind)) for method, kind in columns]
        exact = [row["exact"] + row["entropy"] for row in cells if row is not None and math.isfinite(row["exact"])]
        texts = [_cell(row, measure(threads)) for row in cells]
        lines.append([problem, f"{budget:,}", f"{exact[0]:.2f}" if exact else "", *texts])
    return ["problem", "budget", "exact", *(f"{method}, {kind}" for method, kind in columns)], lines


def _legend(rows: Mapping[Key, Mapping[str, Any]], threads: int) -> str:
    marks = ", ".join(f"{style.symbol} {name}" for name, style in VERDICTS.items() if name in _verdicts(rows))
    return f"{measure(threads).words} of the fit / nats over the prior; threads: {threads}; {marks or 'not judged'}"


def _goals(rows: Mapping[Key, Mapping[str, Any]], threads: int) -> tuple[list[str], list[list[str]]]:
    """How Equipoise compares with sbi's flows, by budget: each goal by itself, then both at once; head and lines."""
    by, lines = measure(threads), []
    head = ["", "beside", "simulations", "at least as sharp", by.reached, "both", "median ratio", "mean nats more"]
    for other in sorted({key[2] for key in rows if key[2].startswith("sbi") and key[4] == by.reference[1]}):
        pairs = compared(rows, threads, other)
        for budget, (method, kind) in product(sorted({key[1] for key in rows}), _columns(rows)):
            mine = [(gain, ratio) for key, gain, ratio in pairs if key[1:3] == (budget, method) and key[4] == kind]
            if mine and method.startswith("equipoise"):
                sharp, quick = [gain >= 0 for gain, _ in mine], [ratio <= by.goal for _, ratio in mine]
                counts = [f"{sum(some)} of {len(mine)}" for some in (sharp, quick, map(and_, sharp, quick))]
                middle, more = median(ratio for _, ratio in mine), mean(gain for gain, _ in mine)
                beside = f"{other}, {by.reference[1]}"
                lines.append([method, beside, f"{budget:,}", *counts, f"{middle:.2f}", f"{more:+.2f}"])
    return head, lines


def _cell(row: Mapping[str, Any] | None, by: Measure) -> str:
    if row is None:
        return "–"
    mark = VERDICTS[row["verdict"]].symbol if row["verdict"] in VERDICTS else " "
    seconds = row[by.field]
    return f"{seconds:.{int(seconds < 10)}f} / {row['log_prob'] + row['entropy']:.2f} {mark}"


def _verdicts(rows: Mapping[Key, Mapping[str, Any]]) -> set[str]:
    return {row["verdict"] for row in rows.values()}


def draw(rows: Mapping[Key, Mapping[str, Any]], file: Path) -> Path | None:
    """Quality against CPU time with one thread, relative to the reference: one point per problem, budget and method.

    Gives None if there is none.
    """
    points = compared(rows, 1)
    if not points:
        return None
    names = sorted({key[2::2] for key, _, _ in points}, key=lambda c: (not c[0].startswith("equipoise"), c))
    methods = list(dict.fromkeys(method for method, _ in names))
    with mpl.rc_context(PRINT):
        figure = Figure(figsize=(6.9, 3.8), layout="constrained")
        ax = figure.subplots()
        ax.axhline(0, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
        ax.axvline(1, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
        for method, kind in names:
            mine = [(ratio, gain) for key, gain, ratio in points if key[2::2] == (method, kind)]
            colour = CYCLE[methods.index(method) % len(CYCLE)]
            ax.scatter(
                *zip(*mine, strict=True),
                s=26,
                marker="o" if kind == "mixture" else "x",
                color=colour,
                linewidths=0.9,
                label=f"{method}, {kind if kind == 'mixture' else 'one network'}",
            )
        ax.set_xscale("log")
        ax.set_yscale("symlog", linthresh=0.5)
        ax.margins(0.06)
        (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
        ax.fill_between([left, CPU.goal], 0, high, color=GREY, alpha=0.1, linewidth=0)  # the goal
        ax.set(xlim=(left, right), ylim=(low, high))
        for axis, ticks, start, end in ((ax.xaxis, RATIOS, left, right), (ax.yaxis, NATS, low, high)):
            shown = [t for t in ticks if start <= t <= end]
            axis.set_major_locator(FixedLocator(shown))
            axis.set_major_formatter(FixedFormatter([f"{t:g}".replace("-", "−") for t in shown]))
            axis.set_minor_locator(NullLocator())
        ax.set_xlabel("CPU seconds, relative to five MAFs of sbi (1 thread)")
        ax.set_ylabel("held-out log posterior beyond theirs, nats")
        figure.legend(loc="outside right upper")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=200, metadata={"Software": None})
    return file


if __name__ == "__main__":
    print("\n\n".join(table(read(), threads) for threads in (1, 2)))
