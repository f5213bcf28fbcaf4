"""The figures of the paper, and ours, from results alone: PNG and PDF, sized for print."""

from __future__ import annotations

__all__ = ["FIGURES", "budget_panel", "figures", "gallery", "gallery_tasks", "write_figures"]

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from equipoise.support.progress import Progress

from . import panels
from .layout import (
    COLUMN,
    PAGE_HEIGHT,
    PAGE_WIDTH,
    any_number,
    axes_of,
    balanced,
    budget_legend,
    file_name,
    label_outer,
    matrix_of_panels,
    method_legend,
    panels_of_tasks,
    row_of_panels,
    say_missing,
)
from .references import crosses, references, sides
from .results import CERTIFIED, INCONCLUSIVE, MISSING, OVERCONFIDENT, open_results, settings_of
from .style import CONTOUR, GREY, INK, PAPER, PRINT, VERDICTS, method_looks

#: What a row of panels says of the methods that are not its own.
GREY_ONES = "grey: the other methods"


def write_figures(results: xr.Dataset | str | Path, out_dir: str | Path, progress: bool | None = None) -> list[Path]:
    """Draws every figure the results allow.

    Arguments:
        results: a directory with results.nc, that file, or the dataset.
        out_dir: where to; made if it is not there.
        progress: False for no progress bar.

    Returns:
        The files written: for each figure a PNG (300 dots an inch) and a PDF.
    """
    ds = open_results(results)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    total = len(axes_of(ds)[1]) + len(FIGURES) + len(gallery_tasks(ds))
    with mpl.rc_context(PRINT), Progress("drawing figures", total, progress, at_most=True) as bar:
        for name, figure in figures(ds):
            figure.savefig(out / f"{name}.png", dpi=300)
            figure.savefig(out / f"{name}.pdf", metadata={"CreationDate": None})
            written += [out / f"{name}.png", out / f"{name}.pdf"]
            bar.advance(1, name)
    return written


def figures(ds: xr.Dataset) -> Iterator[tuple[str, Figure]]:
    """Name and figure, one after the other, of all that the results hold enough for."""
    yield from verdict_pages(ds)
    for name, draw in FIGURES.items():
        figure = draw(ds)
        if figure is not None:
            yield name, figure
    for task in gallery_tasks(ds):
        yield f"gallery_{file_name(task)}", gallery(ds, task)


def coverage(ds: xr.Dataset) -> Figure:
    """Expected coverage, methods × tasks, budgets as colours."""
    labels, tasks, methods, budgets = axes_of(ds)
    rows, columns = balanced(len(methods), 4) if len(tasks) == 1 else (len(methods), len(tasks))
    gap = 0.2 if len(tasks) == 1 else 0.07
    width = min(1.7, (PAGE_WIDTH - 0.6) / columns)
    height = max(0.45, min(width, (PAGE_HEIGHT - 1) / rows - gap))
    figure = Figure(figsize=(max(COLUMN, columns * width + 0.6), rows * (height + gap) + 0.9))
    for ax, task, method in matrix_of_panels(figure, ds, (rows, columns), share=True):
        panels.coverage_panel(ax, ds, task, method)
        if not any_number(ds, "coverage", task=task, method=method):
            say_missing(ax)
    figure.supxlabel("Credibility level")
    figure.supylabel("Expected coverage")
    budget_legend(figure, budgets, labels)
    return figure


def nominal_log_prob(ds: xr.Dataset) -> Figure | None:
    """Nominal log posterior against the budget, and the exact posterior's and the prior's."""
    return _against_budget(ds, "nominal_log_prob", "Nominal log posterior")


def balancing_error(ds: xr.Dataset) -> Figure | None:
    """Balancing error against the budget."""
    return _against_budget(ds, "balancing_error", "Balancing error")


def _against_budget(ds: xr.Dataset, name: str, label: str) -> Figure | None:
    labels, tasks, methods, _ = axes_of(ds)
    if not any_number(ds, name):
        return None
    figure, places = panels_of_tasks(ds, 1.9, ["Simulation budget"] * len(tasks), label)
    for ax, task, front in places:
        panels.against_budget(ax, ds, task, name, front)
    for i, (ax, task, _) in enumerate(places):  # after the last line, since panels share their limits
        references(ax, ds, task, name, named=i < len(tasks))
    method_legend(figure, methods, labels, GREY_ONES if places[0][2] else "")
    return figure


def budget_panel(ax: Any, ds: xr.Dataset, task: str, name: str) -> None:
    """`panels.against_budget` with what a reader compares with."""
    panels.against_budget(ax, ds, task, name)
    references(ax, ds, task, name)


def plane(ds: xr.Dataset) -> Figure | None:
    """The conservativeness–information plane."""
    labels, tasks, methods, budgets = axes_of(ds)
    if not any_number(ds, "nominal_log_prob"):
        return None
    settings, looks = settings_of(ds), method_looks(methods)
    known = {task: any_number(ds, "information_kept", task=task) for task in tasks}
    across = ["Information kept" if known[task] else "Nominal log posterior" for task in tasks]
    figure, places = panels_of_tasks(ds, 2.2, across, "Coverage AUC")
    for ax, task, front in places:
        panels.plane_panel(ax, [s for s in settings if s.task == task], looks, known[task], front)
    for i, (ax, task, front) in enumerate(places):  # after the last point, since panels share their limits
        sides(ax, named=front is None)
        crosses(ax, ds, task, named=i < len(tasks))
    notes = ["larger marks: larger budgets"] * (len(budgets) > 1)
    notes += [f"shaded: overconfident · {GREY_ONES}"] * (places[0][2] is not None)
    method_legend(figure, methods, labels, " · ".join(notes))
    return figure


def verdict_pages(ds: xr.Dataset) -> Iterator[tuple[str, Figure]]:
    """The table of verdicts, on as many pages as it needs."""
    _, tasks, methods, budgets = axes_of(ds)
    width, height = 0.72 * len(budgets) + 0.9, 0.36 * len(methods) + 0.55
    beside, below = max(1, int(PAGE_WIDTH // width)), max(1, int((PAGE_HEIGHT - 0.5) // height))
    for first in range(0, len(tasks), beside * below):
        page = tasks[first : first + beside * below]
        name = "verdicts" if len(page) == len(tasks) else f"verdicts_{first // (beside * below) + 1}"
        yield name, _verdict_table(ds, page, width, height)


def _verdict_table(ds: xr.Dataset, tasks: Sequence[str], width: float, height: float) -> Figure:
    labels = axes_of(ds)[0]
    settings = [s for s in settings_of(ds) if s.task in tasks]
    columns = max(1, min(len(tasks), int(PAGE_WIDTH // width)))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(max(COLUMN, columns * width), rows * height + 0.5))
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[len(tasks) :]:
        ax.set_visible(False)
    for ax, task in zip(axes.flat, tasks, strict=False):
        panels.verdict_panel(ax, [s for s in settings if s.task == task], labels)
        ax.set_title(labels.task(task), pad=6, fontweight="bold")
    counts = {
        OVERCONFIDENT: sum(s.overconfident for s in settings),
        CERTIFIED: sum(s.certified for s in settings),
        INCONCLUSIVE: sum(s.inconclusive for s in settings),
        MISSING: sum(s.state == MISSING for s in settings),
    }
    marks = [
        (VERDICTS[state][0], VERDICTS[state][2], "not computed" if state == MISSING else state)
        for state, n in counts.items()
        if n
    ]
    handles = [Line2D([], [], linestyle="none", marker=f"${m}$", markersize=5.5, color=c, label=t) for m, c, t in marks]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(marks), 2 if figure.get_figwidth() < 4 else 4),
        handletextpad=0.2,
        columnspacing=1.2,
    )
    return figure


def training(ds: xr.Dataset) -> Figure | None:
    """Training histories, methods × tasks."""
    labels, tasks, methods, budgets = axes_of(ds)
    if not any_number(ds, "validation_loss"):
        return None
    rows, columns = balanced(len(methods), 3) if len(tasks) == 1 else (len(methods), len(tasks))
    width = max(COLUMN, min(PAGE_WIDTH, columns * 2.3))
    figure = Figure(figsize=(width, max(rows * 0.7, min(PAGE_HEIGHT, rows * 1.45 + 0.6))))
    for ax, task, method in matrix_of_panels(figure, ds, (rows, columns), share=False):
        panels.history_panel(ax, ds, task, method)
        ax.locator_params(nbins=3)
        if not ax.lines:
            say_missing(ax)
    figure.supxlabel("Epoch")
    figure.supylabel("Loss")
    extra = [
        Line2D([], [], color=GREY, linewidth=1.2, label="validation"),
        Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (3, 1.5)), label="training"),
        Line2D([], [], color=GREY, linestyle="none", marker="o", markersize=3.5, label="best epoch"),
    ]
    budget_legend(figure, budgets, labels, extra, "Simulation budgets as colours")
    return figure


def members(ds: xr.Dataset) -> Figure | None:
    """Single networks and their mixture; only where a run has several networks."""
    labels, tasks, methods, _ = axes_of(ds)
    if ds.sizes.get("member", 1) < 2 or not any_number(ds, "member_coverage_auc"):
        return None
    figure, axes = row_of_panels(len(tasks), height=2.2)
    for ax, task in zip(axes, tasks, strict=True):
        panels.members_panel(ax, ds, task, method_looks(methods))
        ax.set_title(labels.task(task))
    label_outer(axes, ["Nominal log posterior"] * len(tasks), "Coverage AUC")
    method_legend(figure, methods, labels, "dots: single networks; arrows lead to their mixture")
    return figure


def gallery_tasks(ds: xr.Dataset) -> list[str]:
    """The tasks that have densities to show."""
    if "gallery_density" not in ds:
        return []
    return [str(t) for t in ds["task"].values if any_number(ds, "gallery_density", task=str(t))]


def gallery(ds: xr.Dataset, task: str) -> Figure:
    """The posterior of one observation, methods × budgets, and once, at the right, the exact one where it is known."""
    labels, _, methods, budgets = axes_of(ds)
    here = ds.sel(task=task)
    density = here["gallery_density"]
    budgets = [b for b in budgets if any_number(here.sel(budget=b), "gallery_density")]
    low, high, theta = (np.asarray(here[f"gallery_{n}"].values, float) for n in ("low", "high", "theta"))
    known = any_number(here, "gallery_exact")
    columns = len(budgets) + known
    side = min(1.15, (PAGE_WIDTH - 0.8) / columns, (PAGE_HEIGHT - 0.8) / len(methods))
    roomy = side > 1  # for "simulations" beside every number
    figure = Figure(figsize=(max(2.2, columns * side + 0.8), len(methods) * side + (0.5 if roomy else 0.7)))
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.03, wspace=0.02, hspace=0.02)
    grid = figure.subplots(len(methods), columns, squeeze=False)
    for i, method in enumerate(methods):
        for j, budget in enumerate(budgets):
            _posterior(grid[i, j], density.sel({"method": method, "budget": budget}).values, low, high, theta)
            if i == 0:
                grid[i, j].set_title(labels.budget(budget) + " simulations" * roomy, fontsize=7.5)
        grid[i, 0].set_ylabel(labels.method(method), fontsize=7.5)
    if known:
        _posterior(grid[0, -1], here["gallery_exact"].values, low, high, theta)
        grid[0, -1].set_title("exact", fontsize=7.5)
        for ax in grid[1:, -1]:
            ax.set_axis_off()
        if len(methods) > 1:
            _gallery_key(grid[1, -1], "95% region" if roomy else "95%\nregion")
    panels.name_axes(grid[-1, 0], low, high)
    figure.align_ylabels(grid[:, 0])
    if not roomy:
        figure.suptitle("Simulations", fontsize=7.5)
    return figure


def _posterior(ax: Any, values: Any, low: Any, high: Any, theta: Any) -> None:
    if np.isfinite(values).any():
        panels.gallery_panel(ax, values, low, high, theta)
    else:
        panels.frame(ax, (low[0], high[0], low[1], high[1]))
        say_missing(ax)


def _gallery_key(ax: Any, line: str) -> None:
    """What star and line are, in a place that is empty."""
    star: Any = {"marker": "*", "markersize": 6, "color": INK, "markeredgecolor": PAPER, "markeredgewidth": 0.6}
    handles = [
        Line2D([], [], linestyle="none", label="true θ", **star),
        Line2D([], [], color=CONTOUR, linewidth=0.6, label=line),
    ]
    ax.legend(handles=handles, loc="upper center", fontsize=7, handlelength=1, handletextpad=0.5, borderpad=0)


#: Every figure but the verdicts and the galleries, by file name; None where the results do not hold enough for it.
FIGURES: dict[str, Callable[[xr.Dataset], Figure | None]] = {
    "coverage": coverage,
    "plane": plane,
    "nominal_log_prob": nominal_log_prob,
    "balancing_error": balancing_error,
    "members": members,
    "training": training,
}
