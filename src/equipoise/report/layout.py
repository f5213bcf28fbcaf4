"""Pages, rows, columns and legends: what the figures share."""

from __future__ import annotations

__all__ = [
    "COLUMN",
    "PAGE_HEIGHT",
    "PAGE_WIDTH",
    "any_number",
    "axes_of",
    "balanced",
    "budget_legend",
    "file_name",
    "label_outer",
    "matrix_of_panels",
    "method_legend",
    "panels_of_tasks",
    "row_of_panels",
    "say_missing",
    "width_of",
]

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .results import Labels
from .style import GREY, budget_looks, families, method_looks

#: Width and height of the type area of a page, and the width of a column, in inches.
PAGE_WIDTH, PAGE_HEIGHT, COLUMN = 6.9, 9.2, 3.4
#: More methods than this are not told apart in one panel.
CROWD = 5


def axes_of(ds: xr.Dataset) -> tuple[Labels, list[str], list[str], list[int]]:
    """How things are called, and the tasks, methods and budgets of the results."""
    tasks, methods = ([str(v) for v in ds[name].values] for name in ("task", "method"))
    return Labels(str(ds.attrs.get("protocol", ""))), tasks, methods, [int(b) for b in ds["budget"].values]


def any_number(ds: xr.Dataset, name: str, **at: str) -> bool:
    """Whether the results have the variable, with a number in it."""
    return name in ds and bool(np.isfinite(np.asarray(ds[name].sel(at).values, float)).any())


def file_name(label: str) -> str:
    """A label as part of a file name or an id.

    Example:
        >>> file_name("lotka_volterra[steps=1001]")
        'lotka_volterra_steps_1001'
    """
    return re.sub(r"\W+", "_", label).strip("_")


def balanced(n: int, most: int) -> tuple[int, int]:
    """Rows and columns for n things, at most so many a row, with as few empty places as that allows.

    Example:
        >>> balanced(4, 3), balanced(5, 3), balanced(8, 8)
        ((2, 2), (2, 3), (1, 8))
    """
    rows = -(-n // most)
    return rows, -(-n // rows)


def row_of_panels(n: int, height: float = 1.9) -> tuple[Figure, list[Any]]:
    """A figure of n panels, at most three beside each other; the legend has room below."""
    rows, columns = balanced(n, 3)
    figure = Figure(figsize=({1: COLUMN, 2: 5.2, 3: PAGE_WIDTH}[columns], rows * height + 0.75))
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat[n:]:
        ax.set_visible(False)
    return figure, list(grid.flat[:n])


def panels_of_tasks(
    ds: xr.Dataset, height: float, x: Sequence[str], y: str
) -> tuple[Figure, list[tuple[Any, str, Any]]]:
    """A panel a task; of many methods, a row a family, so that lines can be told apart.

    Arguments:
        ds: the results.
        height: of a panel that stands alone, in inches.
        x: what is along the x-axis, a task.
        y: what is along the y-axis.

    Returns:
        The figure, and axes, task and the methods that are to stand out (None for all of them) of each panel.
    """
    labels, tasks, methods, _ = axes_of(ds)
    rows = families(methods)
    panels: list[tuple[Any, str, Any]]
    if len(methods) <= CROWD or len(rows) == 1 or len(tasks) * 1.1 > PAGE_WIDTH:
        figure, axes = row_of_panels(len(tasks), height)
        label_outer(axes, x, y)
        panels = [(ax, task, None) for ax, task in zip(axes, tasks, strict=True)]
        for ax, task, _ in panels:
            ax.set_title(labels.task(task))
        return figure, panels
    side = min(1.9, (PAGE_WIDTH - 0.5) / len(tasks))
    figure = Figure(figsize=(max(COLUMN, len(tasks) * side + 0.5), len(rows) * 0.85 * side + 1.1))
    grid = figure.subplots(len(rows), len(tasks), sharex="col", sharey="col", squeeze=False)
    panels = []
    for i, row in enumerate(rows):
        for ax, task, name in zip(grid[i], tasks, x, strict=True):
            panels.append((ax, task, row))
            if i == 0:
                ax.set_title(labels.task(task))
            if i == len(rows) - 1:
                ax.set_xlabel(textwrap.fill(name, max(8, int(12 * side))))
    figure.supylabel(y)
    return figure, panels


def label_outer(axes: Sequence[Any], x: Sequence[str], y: str) -> None:
    """Names of the axes of `row_of_panels`: of x below the outer panels, or below all where they differ."""
    _, columns = balanced(len(axes), 3)
    for i, ax in enumerate(axes):
        if i + columns >= len(axes) or len(set(x)) > 1:
            ax.set_xlabel(x[i])
        if i % columns == 0:
            ax.set_ylabel(y)


def matrix_of_panels(
    figure: Figure, ds: xr.Dataset, shape: tuple[int, int], share: bool
) -> Iterator[tuple[Any, str, str]]:
    """Axes, task and method of each panel: methods × tasks, or the methods in rows where there is one task."""
    labels, tasks, methods, _ = axes_of(ds)
    rows, columns = shape
    grid = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    for ax in grid.flat:
        ax.set_visible(False)
    for i, method in enumerate(methods):
        for j, task in enumerate(tasks):
            ax = grid[divmod(i, columns)] if len(tasks) == 1 else grid[i, j]
            ax.set_visible(True)
            if len(tasks) == 1:
                ax.set_title(labels.method(method))
                ax.tick_params(labelbottom=not share or i + columns >= len(methods))
            else:
                if i == 0:
                    ax.set_title(labels.task(task))
                if j == columns - 1:
                    name = labels.method(method)
                    ax.annotate(name, (1.06, 0.5), xycoords="axes fraction", rotation=-90, va="center")
            yield ax, task, method


def budget_legend(
    figure: Figure, budgets: Sequence[int], labels: Labels, extra: Sequence[Any] = (), title: str = "Simulation budget"
) -> None:
    """Budgets as colours, above the panels."""
    handles = [Line2D([], [], color=look.colour, label=labels.budget(b)) for b, look in budget_looks(budgets).items()]
    handles += list(extra)
    columns = balanced(len(handles), max(2, int(figure.get_figwidth() / 0.95)))[1]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=columns,
        title=title,
        title_fontsize=7.5,
        columnspacing=1.2,
        handlelength=1.6,
    )


def method_legend(figure: Figure, methods: Sequence[str], labels: Labels, note: str = "") -> None:
    """Methods as lines and markers, below the panels."""
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.line, markersize=3.8, label=labels.method(m), **look.marking)
        for m, look in method_looks(methods).items()
    ]
    widest = max(len(labels.method(m)) for m in methods)
    columns = balanced(len(handles), max(1, int(figure.get_figwidth() / max(1.12, 0.5 + 0.07 * widest))))[1]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        columnspacing=1.4,
        handlelength=2.6,
        title=note or None,
        title_fontsize=7,
    )


def width_of(ax: Any) -> float:
    """About how wide a panel is, in inches: what its labels have room for, before the layout has settled."""
    return float(ax.bbox.width / ax.figure.dpi)


def say_missing(ax: Any) -> None:
    """Words in place of a picture."""
    place: dict[str, Any] = {"xycoords": "axes fraction", "ha": "center", "va": "center"}
    ax.annotate("not computed", (0.5, 0.5), fontsize=7, color=GREY, style="italic", **place)
