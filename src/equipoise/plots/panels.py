"""One Axes of an experiment's results each: the panels of the figures in `grids` and of the report.

Results have the dimensions task, method, budget and run, and some variables also level, epoch or member.
"""

from __future__ import annotations

__all__ = ["coverage_panel", "history_panel", "line_panel", "members_panel", "verdict_panel"]

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from .labels import labels_of
from .settings import MISSING, PARTLY, Range, settings_of, short_verdict, signed
from .style import DASHED, GREY, INK, PAPER, VERDICTS, budget_looks, method_looks

Array = NDArray[np.float64]
#: Methods that a panel is not about.
BEHIND: dict[str, Any] = {"color": "#c9cdd2", "linewidth": 0.6, "zorder": 1}
SMALL: dict[str, Any] = {"fontsize": 7, "color": INK}


def any_number(ds: xr.Dataset, name: str, **at: Any) -> bool:
    """Whether the results have the variable, with a number in it."""
    return name in ds and bool(np.isfinite(np.asarray(ds[name].sel(at).values, float)).any())


def say_missing(ax: Axes) -> None:
    place: dict[str, Any] = {"xycoords": "axes fraction", "ha": "center", "va": "center"}
    ax.annotate("not computed", (0.5, 0.5), fontsize=7, color=GREY, style="italic", **place)


def coverage_panel(
    results: xr.Dataset,
    task: str,
    *,
    ax: Axes,
    method: str | None = None,
    budget: int | None = None,
    difference: bool = False,
) -> None:
    """Expected coverage against level: one curve per budget of a method, or one per method at a budget.

    A curve is the median over runs, and its shade their range; a single run has its simultaneous band.

    Arguments:
        results: with `coverage` over task, method, budget, run and level.
        task: which task.
        method, budget: one of the two; the curves are along the other.
        difference: draw coverage minus level.
    """
    names = labels_of(results)
    over = "budget" if method is not None else "method"
    looks: Any = budget_looks(names.budgets) if method is not None else method_looks(names.methods)
    at = {"task": task, **({"method": method} if method is not None else {"budget": budget})}
    level = np.asarray(results["level"].values, float)
    base = level if difference else np.zeros_like(level)
    if "calibration_lower" in results:
        ends = (results[f"calibration_{end}"].values - base for end in ("lower", "upper"))
        ax.fill_between(level, *ends, color=GREY, alpha=0.16, linewidth=0)
    ax.plot(level[[0, -1]], (level - base)[[0, -1]], color=INK, linewidth=0.7, linestyle=DASHED)
    stored = ("coverage", "coverage_lower", "coverage_upper")
    curves = {n: results[n].sel(at).transpose(over, "run", "level").values for n in stored if n in results}
    for i, look in enumerate(looks.values()):
        low, middle, high = coverage_over_runs({name: values[i] for name, values in curves.items()})
        if np.isfinite(middle).all():  # the names let the report's page hide a curve
            shade = ax.fill_between(level, low - base, high - base, color=look.colour, alpha=0.18, linewidth=0)
            shade.set_gid(f"band-{over}-{i}")
            ax.plot(level, middle - base, color=look.colour, lw=1.1, ls=look.line, gid=f"curve-{over}-{i}")
    if not any_number(results, "coverage", **at):
        say_missing(ax)
    ax.set(xlim=(0, 1), xticks=(0, 0.5, 1), xticklabels=["0", ".5", "1"])
    if not difference:
        ax.set(ylim=(0, 1), yticks=(0, 0.5, 1), yticklabels=["0", ".5", "1"])


def coverage_over_runs(curves: dict[str, Array]) -> tuple[Array, Array, Array]:
    """Lower end, middle and upper end, each with shape `(level,)`, from curves with shape `(run, level)`.

    NaN where no run is there.
    """
    coverage = curves["coverage"]
    there = np.isfinite(coverage).all(-1)
    if there.sum() == 1:
        (run,) = np.flatnonzero(there)
        low, high = (curves.get(f"coverage_{end}", coverage)[run] for end in ("lower", "upper"))
        return low, coverage[run], high
    present = coverage[there] if there.any() else np.full((1, coverage.shape[-1]), np.nan)
    return present.min(0), np.median(present, 0), present.max(0)


def line_panel(results: xr.Dataset, task: str, name: str, *, ax: Axes, front: Sequence[str] | None = None) -> None:
    """A variable against the budget: one line per method, the median over runs, with their range as shading.

    The methods in `front` are drawn in colour, the others as thin grey lines; None for all in colour.
    """
    names = labels_of(results)
    for method, look in method_looks(names.methods).items():
        values = results[name].sel({"task": task, "method": method}).transpose("budget", "run").values
        over = {b: Range.of(runs) for b, runs in zip(names.budgets, values, strict=True)}
        over = {b: r for b, r in over.items() if r.known}
        at, middle = list(over), [r.median for r in over.values()]
        if front is not None and method not in front:
            ax.plot(at, middle, **BEHIND)
            continue
        low, high = [r.low for r in over.values()], [r.high for r in over.values()]
        if len(at) > 1:
            ax.fill_between(at, low, high, color=look.colour, alpha=0.13, linewidth=0)
        elif at:
            ax.vlines(at, low, high, color=look.colour, linewidth=1)
        ax.plot(at, middle, color=look.colour, linestyle=look.line, markersize=3.6, **look.marking)
    _budget_axis(ax, names.budgets)


def references(ax: Axes, results: xr.Dataset, task: str, name: str, named: bool = True) -> None:
    """What `line_panel` is compared with; call it after the last line, since it needs the limits.

    For the nominal log posterior, the exact posterior's value and the prior's, if near; for the balancing error a
    logarithmic axis, or 0, and the noise floor: twice the median standard error of g. With `named` the lines have
    names and the axis room for them.
    """
    if not any_number(results, name, task=task):
        say_missing(ax)
    elif name == "nominal_log_prob":
        _exact_and_prior(ax, results, task, named)
    elif name == "balancing_error":
        # A single run may come close to 0 by chance: what counts is where the medians are.
        values = results[name].sel(task=task).transpose(..., "run").values
        medians = np.nanmedian(values[np.isfinite(values).any(-1)], axis=-1)
        if medians.min() > 0:
            ax.set_yscale("log")
            ax.set_ylim(bottom=medians.min() / 2)
        else:
            ax.set_ylim(bottom=0)
        if any_number(results, "balance_signed_se", task=task):
            floor = 2 * float(np.nanmedian(results["balance_signed_se"].sel(task=task).values))
            ax.axhspan(ax.get_ylim()[0], floor, color=GREY, alpha=0.14, linewidth=0, zorder=0)


def _exact_and_prior(ax: Axes, results: xr.Dataset, task: str, named: bool) -> None:
    stored = (("exact", "expected_log_prob"), ("prior", "prior_log_prob"))
    value = {text: float(results[n].sel(task=task)) for text, n in stored if any_number(results, n, task=task)}
    low, high = ax.get_ylim()
    if "prior" in value and not near(value["prior"], low, max(high, value.get("exact", high))):
        del value["prior"]
    for text, at in value.items():
        ax.axhline(at, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=0)
        if named:  # where lines seldom are: "exact" at the smallest budget, "prior" at the largest
            place: Any = {"ha": "left", "va": "bottom"} if text == "exact" else {"ha": "right", "va": "top"}
            x = 0.01 if text == "exact" else 0.99
            ax.annotate(text, (x, at), xycoords=("axes fraction", "data"), **place, **SMALL)
    if named and value:
        span = max(high, *value.values()) - min(low, *value.values())
        margin = 0.05 * (span - (high - low))
        ceiling, floor = value.get("exact", -np.inf) + 0.1 * span, value.get("prior", np.inf) - 0.1 * span
        ax.set_ylim(min(low - margin, floor), max(high + margin, ceiling))


def near(value: float, low: float, high: float, reach: float = 0.0) -> bool:
    """Whether an axis from low to high may be extended to a value without squeezing what it shows.

    Example:
        >>> near(0, 0.5, 1), near(0, 0.9, 1), near(0, 0.2, 0.21, reach=0.25)
        (True, False, True)
    """
    room = max(high - low, reach)
    return low - room <= value <= high + room


def _budget_axis(ax: Axes, budgets: Sequence[int]) -> None:
    """A logarithmic axis with one tick per budget, and a name where there is room."""
    ordered = sorted(budgets)
    powers = len(ordered) > 3 and all(b & (b - 1) == 0 for b in ordered)
    names = [rf"$2^{{{b.bit_length() - 1}}}$" if powers else f"{b:,}" for b in ordered]
    every = math.ceil(len(ordered) * (0.22 if powers else 0.1 * max(map(len, names))) / width_of(ax))
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(ordered))
    ax.xaxis.set_major_formatter(FixedFormatter([name if i % every == 0 else "" for i, name in enumerate(names)]))
    ax.xaxis.set_minor_locator(NullLocator())
    pad = 2 if len(ordered) == 1 else (ordered[-1] / ordered[0]) ** 0.06
    ax.set_xlim(ordered[0] / pad, ordered[-1] * pad)


def width_of(ax: Axes) -> float:
    """About how wide a panel is in inches, before the layout has settled."""
    return float(ax.bbox.width / ax.get_figure(root=True).dpi)  # type: ignore[union-attr]


def sides(ax: Axes, named: bool = True) -> None:
    """Along coverage AUC: zero in view, below it shaded as overconfident, and both sides named at the right."""
    low, high = ax.get_ylim()
    margin = 0.04 * max(high - low, 0.1)
    low, high = min(low, -margin), max(high, margin)
    ax.set_ylim(low, high)
    ax.axhspan(low, 0, color=VERDICTS["overconfident"].ink, alpha=0.06, linewidth=0)
    ax.axhline(0, color=INK, linewidth=0.7, linestyle=DASHED)
    style: Any = {"fontsize": 7, "style": "italic", "color": GREY, "rotation": -90, "va": "center"}
    for name, at, room in (("conservative", high / 2, high), ("overconfident", low / 2, -low)):
        if named and room > 0.35 * (high - low):
            ax.annotate(name, (1.015, at), xycoords=("axes fraction", "data"), **style)


def members_panel(results: xr.Dataset, task: str, *, ax: Axes) -> None:
    """Single networks (dots) and their mixture, in nominal log posterior and coverage AUC: one arrow per setting."""
    names = labels_of(results)
    numbers = ("nominal_log_prob", "coverage_auc")
    for method, look in method_looks(names.methods).items():
        for budget in names.budgets:
            at = {"task": task, "method": method, "budget": budget}
            single = [np.asarray(results[f"member_{n}"].sel(at).values, float).ravel() for n in numbers]
            start: Any = [Range.of(values).median for values in single]
            end: Any = [Range.of(results[n].sel(at).values).median for n in numbers]
            if not np.isfinite([*start, *end]).all():
                continue
            ax.plot(*single, linestyle="none", marker=".", markersize=2.5, color=look.colour, alpha=0.45)
            head = {"arrowstyle": "-|>,head_length=.35,head_width=.16", "shrinkA": 0, "shrinkB": 2}
            ax.annotate("", end, start, arrowprops={**head, "color": look.colour, "linewidth": 0.9})
            ax.plot(*end, linestyle="none", markersize=5, **look.marking)
    if ax.lines:
        ax.locator_params(axis="x", nbins=5)
        sides(ax)


def history_panel(results: xr.Dataset, task: str, method: str, *, ax: Axes) -> None:
    """Training (dashed) and validation loss (solid) against the epoch: one colour per budget, medians over runs.

    The dot is the best epoch, the median over runs.
    """
    at = {"task": task, "method": method}
    epoch = np.asarray(results["epoch"].values, float)
    losses = {n: results[n].sel(at) for n in ("train_loss", "validation_loss") if n in results}
    best = results["best_epoch"].sel(at) if "best_epoch" in results else None
    for budget, look in budget_looks(labels_of(results).budgets).items():
        for name, loss in losses.items():
            values = np.asarray(loss.sel(budget=budget).transpose("run", "epoch").values, float)
            there = np.isfinite(values).any(0)  # a run that has ended counts no more
            if not there.any():
                continue
            middle = np.nanmedian(values[:, there], axis=0)
            style: Any = {"linestyle": (0, (3, 1.5)), "linewidth": 0.8} if name == "train_loss" else {"linewidth": 1.2}
            ax.plot(epoch[there], middle, color=look.colour, **style)
            if name == "validation_loss" and best is not None:
                x = np.rint(Range.of(best.sel(budget=budget).values).median)
                y = np.interp(x, epoch[there], middle)
                ax.scatter(x, y, s=12, color=look.colour, edgecolor=PAPER, linewidth=0.6, zorder=3)
    _robust_limits(ax)
    ax.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(4))
    if not ax.lines:
        say_missing(ax)


def _robust_limits(ax: Axes) -> None:
    """Leave out the losses of the first tenth of the epochs and of networks that diverged, which hide the rest."""
    late = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    values = np.concatenate([y[len(y) // 10 :] for y in late] or [np.zeros(0)])
    if values.size > 10:
        low, high = np.quantile(values, [0, 0.99])
        if high > low:
            ax.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))


def verdict_panel(results: xr.Dataset, task: str, *, ax: Axes) -> None:
    """Verdicts as a table of methods × budgets: symbol, number of runs, median coverage AUC."""
    names = labels_of(results)
    methods, budgets = list(names.methods), sorted(names.budgets)
    for s in settings_of(results.sel(task=[task])):
        row, column, style = methods.index(s.method), budgets.index(s.budget), VERDICTS[s.state]
        hatch: Any = {"hatch": "/////", "edgecolor": "#f3d3bd"} if s.state == PARTLY else {"edgecolor": "none"}
        ax.add_patch(Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=style.tint, linewidth=0, **hatch))
        middle: Any = {"ha": "center", "va": "center"}
        shift = 0 if s.state == MISSING else 0.2
        ax.text(column, row - shift, short_verdict(s), color=style.ink, fontsize=8, family="DejaVu Sans", **middle)
        if s.state != MISSING:
            ax.text(column, row + 0.23, signed(s.auc.median), color=INK, fontsize=7, **middle)
    ax.set(xlim=(-0.5, len(budgets) - 0.5), ylim=(len(methods) - 0.5, -0.5))
    ax.set_xticks(range(len(budgets)), [names.budget(b) for b in budgets])
    ax.set_yticks(range(len(methods)), [names.method(m) for m in methods])
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=7.5)
    ax.spines[:].set_visible(False)
    ax.set_title(names.task(task), pad=6, fontweight="bold")
