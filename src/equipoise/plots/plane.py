"""Conservativeness against information: coverage AUC over information kept.

To the right is sharper, up is more conservative, below zero is overconfident on average. The exact posterior is at
(1, 0) and the prior at (0, 0). Where no exact posterior is known, the nominal log posterior takes the place of the
information kept.
"""

from __future__ import annotations

__all__ = ["plane", "planes"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from .grids import GREY_ONES, method_legend, panels_of_tasks
from .labels import labels_of
from .legends import axes_or_new
from .panels import BEHIND, SMALL, any_number, near, sides, width_of
from .style import GREY, INK, PAPER, Look, cycle_look, method_looks, printed

#: Where several tasks share the Axes, each has its marker.
TASK_MARKERS = "osD^vP*X"


def plane(results: xr.Dataset, *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Coverage AUC against information kept: one point per setting, joined and growing along the budgets.

    Points are medians over runs, with bars from minimum to maximum. Colours tell methods (or members) apart, markers
    tell several tasks apart. Crosses are the prior and the exact posterior, unless far from every point.

    Arguments:
        results: with `coverage_auc` and `information_kept` (or `nominal_log_prob`), over any of task, method, budget
            and run (or member).
        ax: where; None for a new figure.
        legend: whether to draw one, to the right of the Axes.
    """
    ax = axes_or_new(ax, (4.6, 3.4))
    dims = [str(d) for d in results["coverage_auc"].dims if d not in ("run", "budget")]
    key = "method" if "method" in dims else dims[0] if dims else ""
    looks = _looks(results, key)
    _points(ax, results, key, looks)
    if not ax.lines:
        ax.text(0.5, 0.5, "how sharp they are is not known", transform=ax.transAxes, ha="center", color=GREY)
    else:
        sides(ax)
        _crosses(ax, results)
    ax.set(xlabel=_sharpness(results)[1], ylabel="Coverage AUC")
    if legend:
        _legend(ax, results, key, looks)
    return ax


@printed
def planes(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """The `plane` of each task in a panel of its own; of many methods, one row per family.

    Arguments and returns as of `nominal_log_prob`, with `coverage_auc` as well.
    """
    names, looks = labels_of(results), _looks(results, "method")
    of = {task: results.sel(task=[task]) for task in names.tasks}
    across = [_sharpness(one)[1] for one in of.values()]
    figure, places = panels_of_tasks(names, across, "Coverage AUC", 2.2, figure)
    for ax, task, front in places:
        _points(ax, of[task], "method", looks, front)
    for i, (ax, task, front) in enumerate(places):  # after the last point, since panels share their limits
        if ax.lines:
            sides(ax, named=front is None)
            _crosses(ax, of[task], named=i < len(names.tasks))
    notes = ["larger marks: larger budgets"] * (len(names.budgets) > 1)
    notes += [f"shaded: overconfident · {GREY_ONES}"] * (places[0][2] is not None)
    method_legend(figure, names, " · ".join(notes))
    return np.array([ax for ax, _, _ in places], dtype=object)


def _looks(results: xr.Dataset, key: str) -> list[Look]:
    if key == "method":
        return list(method_looks(labels_of(results).methods).values())
    return [cycle_look(i) for i in range(results.sizes.get(key, 1))]


def _sharpness(results: xr.Dataset) -> tuple[xr.DataArray, str, dict[str, float]]:
    """What lies to the right in the plane, its name, and where prior and exact posterior are on it."""
    if any_number(results, "information_kept"):
        return results["information_kept"], "Information kept", {"prior": 0.0, "exact": 1.0}
    prior = results["prior_log_prob"].values if "prior_log_prob" in results else np.array(np.nan)
    # Tasks have priors of their own: one landmark is right for one task.
    found = np.unique(prior[np.isfinite(prior)])
    return results["nominal_log_prob"], "Nominal log posterior", {"prior": float(found[0])} if len(found) == 1 else {}


def _points(ax: Axes, results: xr.Dataset, key: str, looks: Sequence[Look], front: Sequence[str] | None = None) -> None:
    """The points of each method (or what else `key` is) and task; methods outside `front` are thin grey lines."""
    area, sharpness = results["coverage_auc"], _sharpness(results)[0]
    dims = [d for d in area.dims if d not in ("run", "budget")]
    small = 3.4 if area.isel(run=0, missing_dims="ignore").size < 30 else 2.2
    for index in np.ndindex(*[area.sizes[d] for d in dims]):
        at = dict(zip(dims, index, strict=True))
        y, x = (_by_budget(values.isel(at)) for values in (area, sharpness))
        there = np.isfinite(x) & np.isfinite(y)
        some = there.any(-1)
        if not some.any():
            continue
        x, y = (np.where(there, values, np.nan)[some] for values in (x, y))
        middle = np.nanmedian(x, -1), np.nanmedian(y, -1)
        if front is not None and str(results[key].values[at[key]]) not in front:
            ax.plot(*middle, **BEHIND)
            continue
        look = looks[at.get(key, 0)]
        if results.sizes.get("task", 1) > 1 and key != "task":
            look = Look(look.colour, look.line, TASK_MARKERS[at["task"] % len(TASK_MARKERS)], look.filled)
        ax.plot(*middle, color=look.colour, linewidth=0.8, linestyle=look.line, alpha=0.75)
        gap, ends_x, ends_y = np.full_like(middle[0], np.nan), _ends(x), _ends(y)
        for bar in ((ends_x, (middle[1],) * 2), ((middle[0],) * 2, ends_y)):  # one line with gaps makes a small SVG
            across, up = (np.stack([*ends, gap], -1).ravel() for ends in bar)
            ax.plot(across, up, color=look.colour, linewidth=0.7)
        growth = np.linspace(0, 1, len(some))[some] if len(some) > 1 else np.ones(1)
        sizes, face = np.square(small * (1 + 0.9 * growth)), look.colour if look.filled else PAPER
        ax.scatter(*middle, s=sizes, marker=look.marker, facecolor=face, edgecolor=look.colour, linewidth=1, zorder=3)
    ax.locator_params(axis="x", nbins=min(5, max(2, int(width_of(ax) / 0.4))))


def _ends(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.nanmin(values, -1), np.nanmax(values, -1)


def _by_budget(values: xr.DataArray) -> NDArray[Any]:
    """With shape `(budget, run)`, also where the results lack one of these dimensions."""
    for dim in ("budget", "run"):
        values = values if dim in values.dims else values.expand_dims(dim)
    values = values.sortby("budget") if "budget" in values.coords else values
    return np.asarray(values.transpose("budget", "run").values, float)


def _crosses(ax: Axes, results: xr.Dataset, named: bool = True) -> None:
    """The prior and the exact posterior as crosses where coverage AUC is 0, with the axis extended to them."""
    places = _sharpness(results)[2]
    low, high = ax.get_xlim()
    shown = {text: x for text, x in places.items() if near(x, low, high, 0.25 if len(places) == 2 else 0.0)}
    # Names have room at the bottom, unless zero is there: nothing is overconfident and as uninformed as the prior.
    bottom, top = ax.get_ylim()
    below = -bottom > 0.2 * (top - bottom)
    ends = (0.0, 1.0) if not named else (0.09, 1.0) if below else (0.0, 0.91)
    for x in shown.values():
        ax.plot(x, 0, marker="+", markersize=7, markeredgewidth=1.2, color=INK, zorder=4)
        ax.axvline(x, *ends, color=GREY, linewidth=0.5, linestyle=(0, (1, 2)), zorder=0)
    if not named or not shown:
        return
    low, high = ax.get_xlim()
    room = max(0.1, 0.18 / width_of(ax)) * (high - low)  # half a word
    ax.set_xlim(min(low, min(shown.values()) - room), max(high, max(shown.values()) + room))
    place: Any = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom" if below else "top"}
    for text, x in shown.items():
        ax.annotate(text, (x, 0.015 if below else 0.985), **place, **SMALL)


def _legend(ax: Axes, results: xr.Dataset, key: str, looks: Sequence[Look]) -> None:
    names = labels_of(results)
    words = {"method": [r.label for r in names.methods.values()], "task": list(names.tasks.values())}
    texts = words.get(key) or [str(v) for v in results[key].values] if key else []
    handles = [Line2D([], [], ls="", label=t, color=k.colour, **k.marking) for t, k in zip(texts, looks, strict=False)]
    grey: Any = {"color": GREY, "ls": ""}
    if len(names.tasks) > 1 and key != "task":
        tasks = names.tasks.values()
        handles += [Line2D([], [], marker=TASK_MARKERS[i % 8], label=t, **grey) for i, t in enumerate(tasks)]
    if len(names.budgets) > 1:
        ends = ((min(names.budgets), 4), (max(names.budgets), 8))
        handles += [Line2D([], [], marker="o", ms=s, label=f"{b:,} simulations", **grey) for b, s in ends]
    ax.legend(handles=handles, frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.06, 0.5))
