"""Single panels: one Axes, one question. The figures for print and the page are made of these."""

from __future__ import annotations

__all__ = [
    "against_budget",
    "coverage_panel",
    "frame",
    "gallery_panel",
    "history_panel",
    "members_panel",
    "name_axes",
    "plane_panel",
    "short_verdict",
    "verdict_panel",
]

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator

from .layout import width_of
from .references import sides
from .results import MISSING, PARTLY, Labels, Range, Setting, signed
from .style import CONTOUR, DENSITY, GREY, INK, PAPER, RULE, VERDICTS, Look, budget_looks, method_looks

#: How the methods are drawn that a panel is not about.
BEHIND: dict[str, Any] = {"color": "#c9cdd2", "linewidth": 0.6, "zorder": 1}
#: A flat density is this many times paler than the darkest blue.
FLAT = 5
#: A density that varies by less than this share of its mean is as good as flat.
SHAPELESS = 0.2
#: Transparent to opaque: the paper, or the dark page, shows through where there is no mass.
MASS = LinearSegmentedColormap.from_list("mass", [(*to_rgb(DENSITY), a) for a in np.linspace(0, 1, 64) ** 0.6], N=256)


def coverage_panel(ax: Axes, ds: xr.Dataset, task: str, method: str) -> Axes:
    """Coverage against level, a curve a budget: median over runs with their range, or one run with its band."""
    _diagonal(ax, ds)
    level = ds["level"].values
    for budget, look in budget_looks(_ints(ds["budget"])).items():
        low, middle, high = coverage_over_runs(ds.sel({"task": task, "method": method, "budget": budget}))
        if np.isfinite(middle).all():
            ax.fill_between(level, low, high, color=look.colour, alpha=0.18, linewidth=0)
            ax.plot(level, middle, color=look.colour, linewidth=1.1)
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    ax.xaxis.set_major_formatter(FixedFormatter(["0", ".5", "1"]))
    ax.yaxis.set_major_formatter(FixedFormatter(["0", ".5", "1"]))
    return ax


def coverage_over_runs(cell: xr.Dataset) -> tuple[Any, Any, Any]:
    """Lower end, middle and upper end of a setting's curves, each with shape `(level,)`; NaN where no run is there."""
    curves = cell["coverage"].values
    there = np.isfinite(curves).all(-1)
    if not there.any():
        nothing = np.full(curves.shape[-1], np.nan)
        return nothing, nothing, nothing
    if there.sum() == 1:
        (run,) = np.flatnonzero(there)
        ends = [cell[n].values[run] if n in cell else curves[run] for n in ("coverage_lower", "coverage_upper")]
        return ends[0], curves[run], ends[1]
    present = curves[there]
    return present.min(0), np.median(present, 0), present.max(0)


def _diagonal(ax: Axes, ds: xr.Dataset) -> None:
    if "calibration_lower" in ds:
        ends = (ds["calibration_lower"].values, ds["calibration_upper"].values)
        ax.fill_between(ds["level"].values, *ends, color=GREY, alpha=0.16, linewidth=0)
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=(0, (4, 2)))


def against_budget(ax: Axes, ds: xr.Dataset, task: str, name: str, front: Sequence[str] | None = None) -> Axes:
    """A number against the budget, a line a method: median over runs, and their range as shading.

    Methods that are not in `front` are thin grey lines.
    """
    budgets = _ints(ds["budget"])
    for method, look in method_looks(_words(ds["method"])).items():
        values = np.asarray(ds[name].sel({"task": task, "method": method}).values, float)
        over = [Range.of(values[b]) for b in range(len(budgets))]
        there = [i for i, r in enumerate(over) if r.known]
        if not there:
            continue
        at = [budgets[i] for i in there]
        low, middle, high = zip(*[(over[i].low, over[i].median, over[i].high) for i in there], strict=True)
        if front is not None and method not in front:
            ax.plot(at, middle, **BEHIND)
            continue
        if len(at) > 1:
            ax.fill_between(at, low, high, color=look.colour, alpha=0.13, linewidth=0)
        else:
            ax.vlines(at, low, high, color=look.colour, linewidth=1)
        ax.plot(at, middle, color=look.colour, linestyle=look.line, markersize=3.6, **look.marking)
    _budget_axis(ax, budgets)
    return ax


def _budget_axis(ax: Axes, budgets: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ordered = sorted(budgets)
    powers = len(ordered) > 3 and all(b & (b - 1) == 0 for b in ordered)
    names = [rf"$2^{{{b.bit_length() - 1}}}$" if powers else f"{b:,}" for b in ordered]
    every = math.ceil(len(ordered) * (0.22 if powers else 0.1 * max(map(len, names))) / width_of(ax))
    names = [name if i % every == 0 else "" for i, name in enumerate(names)]  # a tick each, a name where there is room
    ax.xaxis.set_major_locator(FixedLocator(ordered))
    ax.xaxis.set_major_formatter(FixedFormatter(names))
    ax.xaxis.set_minor_locator(NullLocator())
    if len(ordered) == 1:
        ax.set_xlim(ordered[0] / 2, ordered[0] * 2)
    else:
        pad = (ordered[-1] / ordered[0]) ** 0.06
        ax.set_xlim(ordered[0] / pad, ordered[-1] * pad)


def plane_panel(
    ax: Axes,
    settings: Sequence[Setting],
    looks: dict[str, Look],
    information: bool,
    front: Sequence[str] | None = None,
) -> Axes:
    """Information kept (or the nominal log posterior) and coverage AUC: a point a setting, larger with the budget.

    Methods that are not in `front` are thin grey lines.
    """
    budgets = sorted({s.budget for s in settings})
    small = 3.4 if len(settings) < 30 else 2.2
    for method, look in looks.items():
        mine = sorted((s for s in settings if s.method == method), key=lambda s: s.budget)
        points = [(s, s.information if information else s.nominal) for s in mine]
        points = [(s, value) for s, value in points if value.known and s.auc.known]
        if not points:
            continue
        xs, ys = [v.median for _, v in points], [s.auc.median for s, _ in points]
        if front is not None and method not in front:
            ax.plot(xs, ys, **BEHIND)
            continue
        ax.plot(xs, ys, color=look.colour, linewidth=0.8, linestyle=look.line, alpha=0.75)
        ax.hlines(ys, [v.low for _, v in points], [v.high for _, v in points], color=look.colour, linewidth=0.7)
        ax.vlines(xs, [s.auc.low for s, _ in points], [s.auc.high for s, _ in points], color=look.colour, linewidth=0.7)
        sizes = [small * (1 + 0.9 * budgets.index(s.budget) / max(1, len(budgets) - 1)) for s, _ in points]
        fill = look.colour if look.filled else PAPER
        style = {"marker": look.marker, "facecolor": fill, "edgecolor": look.colour, "linewidth": 1, "zorder": 3}
        ax.scatter(xs, ys, s=np.square(sizes), **style)  # type: ignore[arg-type]
    ax.locator_params(axis="x", nbins=min(5, max(2, int(width_of(ax) / 0.4))))
    return ax


def members_panel(ax: Axes, ds: xr.Dataset, task: str, looks: dict[str, Look]) -> Axes:
    """From single networks (dots) to their mixture, in nominal log posterior and coverage AUC; an arrow a setting."""
    names = ("nominal_log_prob", "coverage_auc")
    for method, look in looks.items():
        for budget in _ints(ds["budget"]):
            cell = ds.sel({"task": task, "method": method, "budget": budget})
            single = [np.asarray(cell[f"member_{n}"].values, float).ravel() for n in names]
            start = (Range.of(single[0]).median, Range.of(single[1]).median)
            end = (Range.of(cell[names[0]].values).median, Range.of(cell[names[1]].values).median)
            if not np.isfinite([*start, *end]).all():
                continue
            ax.plot(*single, linestyle="none", marker=".", markersize=2.5, color=look.colour, alpha=0.45)
            head = {"arrowstyle": "-|>,head_length=.35,head_width=.16", "shrinkA": 0, "shrinkB": 2}
            ax.annotate("", end, start, arrowprops={**head, "color": look.colour, "linewidth": 0.9})
            ax.plot(*end, linestyle="none", markersize=5, **look.marking)
    if ax.lines:
        ax.locator_params(axis="x", nbins=5)
        sides(ax)
    return ax


def gallery_panel(ax: Axes, density: Any, low: Any, high: Any, theta: Any) -> Axes:
    """A density with shape `(grid_0, grid_1)`, the line around its smallest 95% region, and a star for the truth.

    The darkest blue is the highest density, but at least `FLAT` times the flat one: what is spread out is pale. What
    varies by less than `SHAPELESS` of its mean has no line, which would surround nothing.
    """
    extent = (low[0], high[0], low[1], high[1])
    finite = np.nan_to_num(np.asarray(density, float))
    darkest = max(finite.max(), FLAT * finite.mean())
    shown: dict[str, Any] = {"origin": "lower", "extent": extent, "aspect": "auto", "interpolation": "bilinear"}
    ax.imshow(finite.T, cmap=MASS, vmin=0, vmax=darkest, **shown)
    ordered = np.sort(finite.ravel())[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    threshold = ordered[min(int(np.searchsorted(mass, 0.95)), ordered.size - 1)]
    if ordered[-1] < threshold < ordered[0] and ordered[0] - ordered[-1] > SHAPELESS * ordered.mean():
        centres = [np.linspace(a, b, 2 * n + 1)[1::2] for a, b, n in zip(low, high, finite.shape, strict=True)]
        ax.contour(*centres, finite.T, levels=[threshold], colors=[CONTOUR], linewidths=0.6)
    ax.plot(*theta, marker="*", markersize=6, color=INK, markeredgecolor=PAPER, markeredgewidth=0.6, clip_on=False)
    return frame(ax, extent)


def frame(ax: Axes, extent: Sequence[float] = (0, 1, 0, 1)) -> Axes:
    ax.set_box_aspect(1)
    ax.set(xticks=(), yticks=(), xlim=extent[:2], ylim=extent[2:])
    ax.spines[:].set(visible=True, color=RULE)
    return ax


def name_axes(ax: Axes, low: Any, high: Any) -> None:
    """The names and the range of two parameters along a `frame`, within the panel's own width and height."""
    for axis, name, ends in ((ax.xaxis, "θ₁", (low[0], high[0])), (ax.yaxis, "θ₂", (low[1], high[1]))):
        texts = [f"{v:.3g}".replace("-", "\N{MINUS SIGN}") for v in ends]
        axis.set_ticks((ends[0], sum(ends) / 2, ends[1]), (texts[0], name, texts[1]))
        axis.set_tick_params(length=0, pad=2, labelsize=7)
    for i, inside in ((0, ("left", "bottom")), (2, ("right", "top"))):
        ax.get_xticklabels()[i].set(ha=inside[0])
        ax.get_yticklabels()[i].set(va=inside[1])


def history_panel(ax: Axes, ds: xr.Dataset, task: str, method: str, points: int | None = None) -> Axes:
    """Training (dashed) and validation loss (solid) against the epoch, a colour a budget, medians over runs."""
    epoch = np.asarray(ds["epoch"].values, float)
    keep = _thin(len(epoch), points)
    best: list[tuple[float, float, str]] = []
    for budget, look in budget_looks(_ints(ds["budget"])).items():
        cell = ds.sel({"task": task, "method": method, "budget": budget})
        for name, line, width in (("train_loss", (0, (3, 1.5)), 0.8), ("validation_loss", "-", 1.2)):
            if name in cell:
                middle = _median(np.asarray(cell[name].values, float))[keep]
                there = np.isfinite(middle)
                if there.any():
                    ax.plot(epoch[keep][there], middle[there], color=look.colour, linestyle=line, linewidth=width)
        best.append((*_best(cell, epoch), look.colour))
    xs, ys, colours = zip(*best, strict=True)
    ax.scatter(xs, ys, s=12, c=colours, edgecolor=PAPER, linewidth=0.6, zorder=3)
    _robust_limits(ax)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def _best(cell: xr.Dataset, epoch: Any) -> tuple[float, float]:
    """The epoch with the best validation loss, the median over runs as a whole number, and the loss there."""
    if "best_epoch" not in cell or "validation_loss" not in cell:
        return np.nan, np.nan
    best = float(np.rint(Range.of(cell["best_epoch"].values).median))
    middle = _median(np.asarray(cell["validation_loss"].values, float))
    there = np.isfinite(middle)
    if not there.any():
        return np.nan, np.nan
    return best, float(np.interp(best, epoch[there], middle[there]))


def _robust_limits(ax: Axes) -> None:
    """Losses of the first tenth of the epochs, or of a network that diverged, would flatten all that matters."""
    late = [np.asarray(line.get_ydata(), float)[len(np.asarray(line.get_ydata())) // 10 :] for line in ax.lines]
    values = np.concatenate(late or [np.zeros(0)])
    values = values[np.isfinite(values)]
    if values.size > 10:
        low, high = np.quantile(values, [0, 0.99])
        if high > low:
            ax.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))


def _median(values: Any) -> Any:
    """The median over runs, with shape `(run, epoch)` to `(epoch,)`; a run that has ended counts no more."""
    there = np.isfinite(values)
    filled = np.where(there, values, np.nan)
    result = np.full(values.shape[-1], np.nan)
    some = there.any(0)
    result[some] = np.nanmedian(filled[:, some], axis=0)
    return result


def _thin(n: int, points: int | None) -> Any:
    return (
        np.arange(n) if points is None or n <= points else np.unique(np.linspace(0, n - 1, points).round().astype(int))
    )


def verdict_panel(ax: Axes, settings: Sequence[Setting], labels: Labels) -> Axes:
    """Verdicts as a table, methods × budgets: symbol, how many runs, median coverage AUC."""
    methods = list(dict.fromkeys(s.method for s in settings))
    budgets = sorted({s.budget for s in settings})
    for s in settings:
        row, column = methods.index(s.method), budgets.index(s.budget)
        symbol, _, ink, tint = VERDICTS[s.state]
        hatch = "/////" if s.state == PARTLY else None
        edge = "#f3d3bd" if hatch else "none"
        box = Rectangle(
            (column - 0.48, row - 0.46), 0.96, 0.92, facecolor=tint, edgecolor=edge, hatch=hatch, linewidth=0
        )
        ax.add_patch(box)
        if s.state == MISSING:
            ax.text(column, row, symbol, color=ink, ha="center", va="center", fontsize=8)
            continue
        ax.text(
            column, row - 0.2, short_verdict(s), color=ink, ha="center", va="center", fontsize=8, family="DejaVu Sans"
        )
        ax.text(column, row + 0.23, signed(s.auc.median), color=INK, ha="center", va="center", fontsize=7)
    ax.set(xlim=(-0.5, len(budgets) - 0.5), ylim=(len(methods) - 0.5, -0.5))
    ax.set_xticks(range(len(budgets)), [labels.budget(b) for b in budgets])
    ax.set_yticks(range(len(methods)), [labels.method(m) for m in methods])
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=7.5)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def short_verdict(s: Setting) -> str:
    """The verdicts of a setting in a few characters: "▼ 3/3", "▼2 ◇1" where runs disagree, "▼" for one run."""
    marks = {"▼": s.overconfident, "▲": s.certified, "◇": s.inconclusive}
    some = {symbol: n for symbol, n in marks.items() if n}
    if len(some) > 1:
        return " ".join(f"{symbol}{n}" for symbol, n in some.items())
    ((symbol, n),) = some.items()
    return symbol if s.planned == 1 else f"{symbol} {n}/{s.runs}"


def _words(values: xr.DataArray) -> list[str]:
    return [str(v) for v in values.values]


def _ints(values: xr.DataArray) -> list[int]:
    return [int(v) for v in values.values]
