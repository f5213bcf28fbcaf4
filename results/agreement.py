"""Our coverage AUCs beside those read off the published figure."""

from __future__ import annotations

__all__ = ["READING_ERROR", "against_published", "agreement", "agrees", "largest_budget", "outliers", "systematic"]

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from claims import LARGEST, PLAIN
from formats import counted, signed, table
from reading import LABELS, TASKS, Missing, Results, Setting, figure_auc, opened, optional, published

#: The largest error of a number read off the published figure.
READING_ERROR = 0.02
#: A larger difference that still agrees does so because our runs scatter.
SCATTERED = 0.05
#: What one row leaves out. It was chosen after the results, as most differences are there.
DIFFERENT = "BNRE on SLCP and Spatial SIR"
#: Variance of the median of five normal numbers, in units of their variance.
MEDIAN_OF_FIVE = 0.2868

Key = tuple[str, str, int]


def _differs(key: Key) -> bool:
    """Whether a setting is one of `DIFFERENT`."""
    return key[0] == "spatial_sir" or key[:2] == ("slcp", "bnre")


def agrees(setting: Setting, middle: float, theirs: float) -> bool:
    """Whether a published number is within its reading error and half the range of our runs."""
    low, high = setting.ends("coverage_auc")
    return abs(middle - theirs) <= READING_ERROR + (high - low) / 2


def figure_name(method: str) -> str:
    """A method's name, with the paper's where the figure has another."""
    if not method.startswith("brnpe"):
        return LABELS[method]
    return f"{LABELS[method]} (paper: {LABELS[method.replace('brnpe', 'bnpe')]})"


def against_published(task: str, folder: Path) -> str:
    """Every published number of a task beside ours."""
    ours = opened("released", folder)
    if task not in ours.tasks:
        raise Missing(f"`results/released.nc` has nothing of {TASKS[task]}")
    levels, best = ours.ds["level"].values, optional("paper", folder)
    second = optional("released_again", folder)
    recipe = {} if second is None else by_released_recipe(second)
    rows = []
    for key, theirs in published().items():
        if key[0] != task:
            continue
        other = best.settings.get(key) if best is not None else None
        start = [figure_name(key[1]), f"{key[2]:,}", signed(theirs)]
        last = signed(figure_auc(other, levels)) if other is not None else "–"
        twice = [signed(figure_auc(recipe[key], levels)) if key in recipe else "–"] if recipe else []
        s = ours.settings.get(key)
        if s is None:
            rows.append([*start, "–", "–", "–", "not computed", last, *twice])
            continue
        low, high = s.ends("coverage_auc")
        middle = figure_auc(s, levels)
        runs = f"{signed(low)} … {signed(high)}"
        yes = "yes" if agrees(s, middle, theirs) else "**no**"
        rows.append([*start, signed(middle), runs, signed(middle - theirs), yes, last, *twice])
    head = ["", "budget", "published", "ours, last weights", "our runs", "difference", "agrees", "ours, best weights"]
    return table([*head, "second runs, released ranks"] if recipe else head, rows)


def agreement(folder: Path) -> str:
    """How many of the published numbers agree: with the best weights, with the last, and with second runs of these.

    Beside them is what two exact replicates of five runs each would give, if both scattered as our runs do: the
    difference of two medians of five has variance 2 · 0.287 σ², with σ the standard deviation of our runs.
    """
    ours, best = Results("released", folder), optional("paper", folder)
    keys, levels = [k for k in published() if k in ours.settings], ours.ds["level"].values
    if not keys:
        raise Missing("no published setting is in `results/released.nc`")
    columns = {}
    if best is not None:
        there = [k for k in keys if k in best.settings]
        columns["text's protocol, best weights"] = _counts(best.settings, there, levels)
    columns["released, first runs"] = _counts(ours.settings, keys, levels)
    columns["exact replicates of the first"] = _replicates(ours.settings, keys)
    second = optional("released_again", folder)
    if second is not None:
        judged = by_released_recipe(second)
        keys = [k for k in published() if k in judged]
        columns["released, second runs, released ranks"] = _counts(judged, keys, levels)
        columns["exact replicates of the second"] = _replicates(judged, keys)
    return _beside(columns)


def _beside(columns: Mapping[str, Mapping[str, str]]) -> str:
    first = next(iter(columns.values()))
    return table(["", *columns], [[name, *(column.get(name, "–") for column in columns.values())] for name in first])


def _counts(settings: Mapping[Key, Setting], keys: Sequence[Key], levels: np.ndarray) -> dict[str, str]:
    middles = np.array([figure_auc(settings[k], levels) for k in keys])
    theirs = np.array([published()[k] for k in keys])
    agree = np.array([agrees(settings[k], m, t) for k, m, t in zip(keys, middles, theirs, strict=True)])
    gap, clear = np.abs(middles - theirs), np.abs(theirs) > READING_ERROR
    plain = np.array([k[1] in PLAIN and k[0] != "two_moons" for k in keys])
    same, others = np.sign(middles) == np.sign(theirs), np.array([not _differs(k) for k in keys])
    return {
        "published numbers compared": f"{len(keys)} of {len(published())}",
        f"within {READING_ERROR}": _share(int((gap <= READING_ERROR).sum()), len(keys)),
        f"within {READING_ERROR}, without {DIFFERENT}": _share(
            int((gap[others] <= READING_ERROR).sum()), int(others.sum())
        ),
        f"within {SCATTERED}": _share(int((gap <= SCATTERED).sum()), len(keys)),
        f"within {READING_ERROR} + half the range of our runs (*agrees*)": _share(int(agree.sum()), len(keys)),
        "*agrees*, of NRE, NRE-C, NPE and RNPE outside Two Moons": _share(int(agree[plain].sum()), int(plain.sum())),
        f"same sign, where published is beyond ±{READING_ERROR}": _share(int(same[clear].sum()), int(clear.sum())),
        "median absolute difference": f"{np.median(gap):.3f}",
        "largest absolute difference": f"{gap.max():.3f}",
    }


def _replicates(settings: Mapping[Key, Setting], keys: Sequence[Key]) -> dict[str, str]:
    def expected(within: float, some: Sequence[Key]) -> str:
        spreads = (float(np.std(settings[k].numbers["coverage_auc"], ddof=1)) for k in some)
        scale = math.sqrt(2) * math.sqrt(2 * MEDIAN_OF_FIVE)
        return _share(round(sum(math.erf(within / max(s, 1e-9) / scale) for s in spreads)), len(some))

    others = [k for k in keys if not _differs(k)]
    return {f"within {w}": expected(w, keys) for w in (READING_ERROR, SCATTERED)} | {
        f"within {READING_ERROR}, without {DIFFERENT}": expected(READING_ERROR, others)
    }


def _share(some: int, whole: int) -> str:
    return f"{some} of {whole} ({some / whole:.0%})" if whole else "–"


def outliers(folder: Path) -> str:
    """The published numbers that do not agree with the released protocol, or only because our runs scatter.

    At the budgets that the first runs lack, ours are the second.
    """
    ours = opened("released", folder)
    levels, rows = ours.ds["level"].values, []
    for k, theirs in published().items():
        if k not in ours.settings:
            continue
        s = ours.settings[k]
        middle = figure_auc(s, levels)
        gap = middle - theirs
        if agrees(s, middle, theirs) and abs(gap) <= SCATTERED:
            continue
        low, high = s.ends("coverage_auc")
        why = "only because our runs scatter" if agrees(s, middle, theirs) else "**no**"
        name = f"{figure_name(k[1])}, {TASKS[k[0]]}"
        numbers = [f"{k[2]:,}", signed(theirs), signed(middle), signed(gap), f"{signed(low)} … {signed(high)}", why]
        rows.append((-abs(gap), [name, *numbers]))
    return table(
        ["", "budget", "published", "ours", "difference", "our runs", "agrees"], [row for _, row in sorted(rows)]
    )


def systematic(folder: Path) -> str:
    """The mean difference from the published numbers by method, with its standard error from cell to cell.

    Two Moons is left out, where runs scatter most. In all cells of the first runs, and in those that the second have as
    well, which are judged by both recipes.
    """
    first, second = Results("released", folder), optional("released_again", folder)
    levels, rows = first.ds["level"].values, []
    judged = {} if second is None else by_released_recipe(second)
    every = [k for k in published() if k in first.settings and k[0] != "two_moons"]

    def mean(settings: Mapping[Key, Setting], keys: Sequence[Key]) -> str:
        gaps = [figure_auc(settings[k], levels) - published()[k] for k in keys]
        error = f" ± {np.std(gaps, ddof=1) / math.sqrt(len(gaps)):.3f}" if len(gaps) > 1 else ""
        return signed(float(np.mean(gaps))) + error if gaps else "–"

    for method in [m for m in first.methods if m in {k[1] for k in every}]:
        keys = [k for k in every if k[1] == method]
        higher = sum(figure_auc(first.settings[k], levels) > published()[k] for k in keys)
        cells = [f"{len(keys)}", f"{higher}", mean(first.settings, keys)]
        if second is not None:
            shared = [k for k in keys if k in judged]
            sets = (first.settings, second.settings, judged)
            cells += [f"{len(shared)}", *(mean(settings, shared) for settings in sets)]
        rows.append([figure_name(method), *cells])
    if not rows:
        raise Missing("no published setting is in `results/released.nc`")
    head = ["", "cells", "ours higher", "first runs"]
    if second is not None:
        head += ["shared cells", "first", "second", "second, released ranks"]
    return table(head, rows)


# --- the second runs --------------------------------------------------------------------------------------------------


def by_released_recipe(results: Results) -> dict[Key, Setting]:
    """The settings that were judged by the released recipe as well, with its coverage in the place of ours."""
    return {
        key: dataclasses.replace(
            s, curve=s.released_curve, numbers=s.numbers | {"coverage_auc": s.numbers["released_coverage_auc"]}
        )
        for key, s in results.settings.items()
        if s.released_curve is not None
    }


def largest_budget(folder: Path) -> str:
    """The published numbers at 131,072 simulations beside ours, by our ranks and by the released recipe."""
    second = opened("released_again", folder)
    levels, recipe, rows = second.ds["level"].values, by_released_recipe(second), []
    for (task, method, budget), theirs in published().items():
        s = second.settings.get((task, method, budget))
        if s is not None and budget == LARGEST:
            low, high = s.ends("coverage_auc")
            middle = figure_auc(s, levels)
            verdict = counted(s.verdicts)
            other = signed(figure_auc(recipe[s.task, s.method, s.budget], levels))
            agree = "yes" if agrees(s, middle, theirs) else "**no**"
            numbers = [signed(theirs), signed(middle), f"{signed(low)} … {signed(high)}", agree, other]
            rows.append([f"{figure_name(method)}, {TASKS[task]}", *numbers, verdict])
    head = [f"{LARGEST:,} simulations", "published", "ours", "our runs", "agrees", "released ranks", "verdicts"]
    return table(head, rows)
