"""Figures of an experiment's results, with the dimensions task, method, budget and run: panels in rows and columns.

They have the type and size of a printed page. Each takes `figure`, an empty one, or makes one with pyplot, and shows
all tasks and methods of the results; choose with `results.sel({"task": [...], "method": [...]})`.
"""

from __future__ import annotations

__all__ = ["balancing_error", "coverage_grid", "members", "nominal_log_prob", "training", "verdict_table"]

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from .labels import Labels, labels_of
from .legends import new_figure
from .panels import coverage_panel, history_panel, line_panel, members_panel, references, verdict_panel
from .settings import MISSING, settings_of
from .style import GREY, VERDICTS, budget_looks, families, method_looks, printed

#: Width and height of the type area of a page, and the width of a column, in inches.
PAGE_WIDTH, PAGE_HEIGHT, COLUMN = 6.9, 9.2, 3.4
#: With more methods than this, panels have one row per family of methods.
CROWD = 5
#: What a row of panels says of the methods of other rows.
GREY_ONES = "grey: the other methods"
#: For each panel its Axes, its task, and the methods drawn in colour (None for all).
Places = list[tuple[Axes, str, list[str] | None]]


def coverage_grid(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """The paper's figure: one row per method, one column per task, one line per budget.

    Lines are medians over runs, and shades their range. Panels of one task are wrapped into rows of four.

    Arguments:
        results: with `coverage` over task, method, budget, run and level.
        figure: an empty figure; None for a new one.

    Returns:
        The Axes, with shape `(methods, tasks)`.
    """
    return _matrix(results, coverage_panel, ("Credibility level", "Expected coverage"), figure, square=True)


def training(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """Losses against the epoch: one row per method, one column per task, one colour per budget.

    Arguments and returns as of `coverage_grid`, with `train_loss` and `validation_loss` over run and epoch.
    """
    extra = [
        Line2D([], [], color=GREY, linewidth=1.2, label="validation"),
        Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (3, 1.5)), label="training"),
        Line2D([], [], color=GREY, linestyle="none", marker="o", markersize=3.5, label="best epoch"),
    ]
    return _matrix(results, history_panel, ("Epoch", "Loss"), figure, square=False, extra=extra)


@printed
def _matrix(
    results: xr.Dataset,
    panel: Callable[..., Any],
    axis_names: tuple[str, str],
    figure: Figure | None,
    square: bool,
    extra: Sequence[Any] = (),
) -> NDArray[Any]:
    """Panels with shape `(methods, tasks)`, budgets in the legend; the methods of one task are wrapped."""
    names = labels_of(results)
    tasks, methods = list(names.tasks), list(names.methods)
    wrapped = len(tasks) == 1
    rows, columns = balanced(len(methods), 4 if square else 3) if wrapped else (len(methods), len(tasks))
    gap = 0.2 if wrapped else 0.07
    width = min(1.7 if square else 2.3, (PAGE_WIDTH - 0.6) / columns)
    height = max(0.45, min(width if square else 1.45, (PAGE_HEIGHT - 1) / rows - gap))
    figure = new_figure(figure, max(COLUMN, columns * width + 0.6), rows * (height + gap) + 0.9)
    grid = _subplots(figure, rows, columns, len(methods) * len(tasks), sharex=square, sharey=square)
    axes = grid.ravel()[: len(methods)].reshape(-1, 1) if wrapped else grid
    for (i, j), ax in np.ndenumerate(axes):
        panel(results, tasks[j], method=methods[i], ax=ax)
        if wrapped:
            ax.set_title(names.method(methods[i]))
            ax.tick_params(labelbottom=not square or i + columns >= len(methods))
        elif i == 0:
            ax.set_title(names.task(tasks[j]))
        if not wrapped and j == columns - 1:
            text = textwrap.fill(names.method(methods[i]), 16)
            ax.annotate(text, (1.06, 0.5), xycoords="axes fraction", rotation=-90, va="center", ha="left")
    figure.supxlabel(axis_names[0])
    figure.supylabel(axis_names[1])
    handles = [Line2D([], [], color=k.colour, label=names.budget(b)) for b, k in budget_looks(names.budgets).items()]
    handles += list(extra)
    ncols = balanced(len(handles), max(2, int(figure.get_figwidth() / 0.95)))[1]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=ncols, columnspacing=1.2, handlelength=1.6,
        title="Simulation budget", title_fontsize=7.5,
    )  # fmt: skip
    return axes


def nominal_log_prob(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """Nominal log posterior against the budget: one panel per task, one line per method.

    Lines are medians over runs, and shades their range. Dotted are the exact posterior and, if near, the prior.

    Arguments:
        results: with `nominal_log_prob` over task, method, budget and run.
        figure: an empty figure; None for a new one.

    Returns:
        The Axes, one per task; of more than five methods one row per family, row by row.
    """
    return _against_budget(results, "nominal_log_prob", "Nominal log posterior", figure)


def balancing_error(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """Balancing error against the budget: one panel per task, one line per method.

    Arguments and returns as of `nominal_log_prob`, with `balancing_error`.
    """
    return _against_budget(results, "balancing_error", "Balancing error", figure)


@printed
def _against_budget(results: xr.Dataset, name: str, label: str, figure: Figure | None) -> NDArray[Any]:
    names = labels_of(results)
    figure, places = panels_of_tasks(names, ["Simulation budget"] * len(names.tasks), label, 1.9, figure)
    for ax, task, front in places:
        line_panel(results, task, name, ax=ax, front=front)
    for i, (ax, task, _) in enumerate(places):  # after the last line, since panels share their limits
        references(ax, results, task, name, named=i < len(names.tasks))
    known = name == "balancing_error" and "balance_signed_se" in results
    floor = "grey band: up to twice the standard error" if known else ""
    method_legend(figure, names, " · ".join(filter(None, [floor, GREY_ONES if places[0][2] else ""])))
    return np.array([ax for ax, _, _ in places], dtype=object)


@printed
def members(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """Single networks and their mixture, one panel per task; for results with several networks per run.

    Arguments and returns as of `nominal_log_prob`, with `member_coverage_auc` and `member_nominal_log_prob`.
    """
    names = labels_of(results)
    across = ["Nominal log posterior"] * len(names.tasks)
    figure, places = panels_of_tasks(names, across, "Coverage AUC", 2.2, figure, families_apart=False)
    for ax, task, _ in places:
        members_panel(results, task, ax=ax)
    method_legend(figure, names, "dots: single networks; arrows lead to their mixture")
    return np.array([ax for ax, _, _ in places], dtype=object)


@printed
def verdict_table(results: xr.Dataset, *, figure: Figure | None = None) -> NDArray[Any]:
    """Verdicts, one table per task: methods × budgets, with symbol, number of runs and median coverage AUC.

    Arguments and returns as of `coverage_grid`; the Axes are one per task.
    """
    names = labels_of(results)
    width, height, columns, _ = verdict_layout(names)
    rows, columns = -(-len(names.tasks) // columns), min(columns, len(names.tasks))
    figure = new_figure(figure, max(COLUMN, columns * width), rows * height + 0.5)
    axes = _subplots(figure, rows, columns, len(names.tasks)).ravel()[: len(names.tasks)]
    for ax, task in zip(axes, names.tasks, strict=True):
        verdict_panel(results, task, ax=ax)
    settings = settings_of(results)
    there = {
        state: any(s.state == MISSING if state == MISSING else getattr(s, state.split()[0]) for s in settings)
        for state in VERDICTS
        if " in " not in state
    }
    handles = [
        Line2D([], [], ls="none", marker=f"${VERDICTS[state].symbol}$", markersize=5.5, color=VERDICTS[state].ink,
               label="not computed" if state == MISSING else state)
        for state in there if there[state]
    ]  # fmt: skip
    ncols = min(len(handles), 2 if figure.get_figwidth() < 4 else 4)
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, handletextpad=0.2, columnspacing=1.2)
    return axes


def verdict_layout(names: Labels) -> tuple[float, float, int, int]:
    """Width and height of a table of verdicts in inches, and how many fit beside and below each other on a page."""
    width, height = 0.72 * len(names.budgets) + 0.9, 0.36 * len(names.methods) + 0.55
    return width, height, max(1, int(PAGE_WIDTH // width)), max(1, int((PAGE_HEIGHT - 0.5) // height))


def balanced(n: int, most: int) -> tuple[int, int]:
    """Rows and columns for n things, at most so many per row, with as few empty places as that allows.

    Example:
        >>> balanced(4, 3), balanced(5, 3), balanced(8, 8)
        ((2, 2), (2, 3), (1, 8))
    """
    rows = -(-n // most)
    return rows, -(-n // rows)


def _subplots(figure: Figure, rows: int, columns: int, used: int, **options: Any) -> NDArray[Any]:
    grid: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in grid.flat[used:]:
        ax.set_visible(False)
    return grid


def panels_of_tasks(
    names: Labels, x: Sequence[str], y: str, height: float, figure: Figure | None, families_apart: bool = True
) -> tuple[Figure, Places]:
    """One panel per task; with many methods also one row per family, so that lines can be told apart.

    Arguments:
        names: the labels of the results.
        x, y: the names of the x-axes, one per task, and of the y-axis.
        height: of a panel in inches.
        figure: an empty figure; None for a new one.
        families_apart: whether many methods are spread over rows.
    """
    tasks, rows = list(names.tasks), families(names.methods)
    places: Places = []
    if families_apart and len(names.methods) > CROWD and len(rows) > 1 and len(tasks) * 1.1 <= PAGE_WIDTH:
        side = min(1.9, (PAGE_WIDTH - 0.5) / len(tasks))
        figure = new_figure(figure, max(COLUMN, len(tasks) * side + 0.5), len(rows) * 0.85 * side + 1.1)
        grid = figure.subplots(len(rows), len(tasks), sharex="col", sharey="col", squeeze=False)
        for axes, front in zip(grid, rows, strict=True):
            places += [(ax, task, front) for ax, task in zip(axes, tasks, strict=True)]
        for ax, name in zip(grid[-1], x, strict=True):
            ax.set_xlabel(textwrap.fill(name, max(8, int(12 * side))))
        figure.supylabel(y)
    else:
        n, columns = balanced(len(tasks), 3)
        figure = new_figure(figure, {1: COLUMN, 2: 5.2, 3: PAGE_WIDTH}[columns], n * height + 0.75)
        grid = _subplots(figure, n, columns, len(tasks))
        places = [(ax, task, None) for ax, task in zip(grid.flat, tasks, strict=False)]
        for i, (ax, _, _) in enumerate(places):
            ax.set_xlabel(x[i] if i + columns >= len(tasks) or len(set(x)) > 1 else "")
            ax.set_ylabel(y if i % columns == 0 else "")
    for ax, task, _ in places[: len(tasks)]:
        ax.set_title(names.task(task))
    return figure, places


def method_legend(figure: Figure, names: Labels, note: str = "") -> None:
    """Methods as lines and markers, below the panels."""
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.line, markersize=3.8, label=names.method(m), **look.marking)
        for m, look in method_looks(names.methods).items()
    ]
    widest = max(len(row.label) for row in names.methods.values())
    ncols = balanced(len(handles), max(1, int(figure.get_figwidth() / max(1.12, 0.5 + 0.07 * widest))))[1]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=ncols, columnspacing=1.4, handlelength=2.6,
        title=note or None, title_fontsize=7,
    )  # fmt: skip
