"""The figures of the paper, and ours, from results alone: PNG and PDF, sized for print."""

from __future__ import annotations

__all__ = ["FIGURES", "figures", "write_figures"]

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import panels
from .results import CERTIFIED, INCONCLUSIVE, MISSING, OVERCONFIDENT, PARTLY, Labels, open_results, settings_of
from .style import GREY, INK, PRINT, VERDICTS, budget_looks, method_looks

#: Width and height of the type area of a page, and the width of a column, in inches.
PAGE_WIDTH, PAGE_HEIGHT, COLUMN = 6.9, 9.2, 3.4

Results = xr.Dataset | str | Path


def write_figures(results: Results, out_dir: str | Path) -> list[Path]:
    """Draws every figure the results allow.

    Arguments:
        results: a directory with results.nc, that file, or the dataset.
        out_dir: where to; made if it is not there.

    Returns:
        The files written: for each figure a PNG (300 dots an inch) and a PDF.
    """
    ds = open_results(results)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(PRINT):
        for name, figure in figures(ds):
            for suffix, options in ((".png", {"dpi": 300}), (".pdf", {"metadata": {"CreationDate": None}})):
                figure.savefig(out / (name + suffix), **options)  # type: ignore[arg-type]
                written.append(out / (name + suffix))
    return written


def figures(ds: xr.Dataset) -> Iterator[tuple[str, Figure]]:
    """Name and figure, one after the other, of all that the results hold enough for."""
    yield from verdict_pages(ds)
    for name, draw in FIGURES.items():
        figure = draw(ds)
        if figure is not None:
            yield name, figure
    for task in gallery_tasks(ds):
        yield f"gallery_{task}", gallery(ds, task)


def coverage(ds: xr.Dataset) -> Figure:
    """Expected coverage, methods × tasks, budgets as colours."""
    labels, tasks, methods, budgets = _axes(ds)
    if len(tasks) == 1:
        rows, columns = _balanced(len(methods), 4)
        where = [(divmod(i, columns), tasks[0], m) for i, m in enumerate(methods)]
    else:
        rows, columns = len(methods), len(tasks)
        where = [((i, j), t, m) for i, m in enumerate(methods) for j, t in enumerate(tasks)]
    width = min(1.7, (PAGE_WIDTH - 0.6) / columns)
    height = min(width, (PAGE_HEIGHT - 1) / rows - (0.2 if len(tasks) == 1 else 0.07))
    figure = Figure(
        figsize=(max(COLUMN, columns * width + 0.6), rows * (height + (0.2 if len(tasks) == 1 else 0.07)) + 0.9)
    )
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for ax in grid.flat:
        ax.set_visible(False)
    for (i, j), task, method in where:
        ax = grid[i, j]
        ax.set_visible(True)
        panels.coverage_panel(ax, ds, task, method)
        if not _any(ds, "coverage", task=task, method=method):
            _say_missing(ax)
        if len(tasks) == 1:
            ax.set_title(labels.method(method))
            ax.tick_params(labelbottom=i == rows - 1 or i * columns + j + columns >= len(methods))
        else:
            _name_row_and_column(ax, i == 0, j == columns - 1, labels.task(task), labels.method(method))
    figure.supxlabel("Credibility level")
    figure.supylabel("Expected coverage")
    _budget_legend(figure, budgets, labels)
    return figure


def nominal_log_prob(ds: xr.Dataset) -> Figure | None:
    """Nominal log posterior against the budget, and the exact posterior's where known."""
    return _against_budget(ds, "nominal_log_prob", "Nominal log posterior")


def balancing_error(ds: xr.Dataset) -> Figure | None:
    """Balancing error against the budget."""
    return _against_budget(ds, "balancing_error", "Balancing error")


def _against_budget(ds: xr.Dataset, name: str, label: str) -> Figure | None:
    labels, tasks, methods, _ = _axes(ds)
    if not _any(ds, name):
        return None
    figure, axes = _row(len(tasks))
    for ax, task in zip(axes, tasks, strict=True):
        budget_panel(ax, ds, task, name)
        ax.set_title(labels.task(task))
    _label(axes, "Simulation budget", label)
    _method_legend(figure, methods, labels)
    return figure


def budget_panel(ax: Any, ds: xr.Dataset, task: str, name: str) -> None:
    """`panels.against_budget` with what a reader compares with: the exact posterior's value, and 0 for an error."""
    panels.against_budget(ax, ds, task, name)
    if name == "nominal_log_prob" and _any(ds, "expected_log_prob", task=task):
        exact = float(ds["expected_log_prob"].sel(task=task))
        ax.axhline(exact, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
        ax.annotate(
            "exact", (0.99, exact), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7, color=INK
        )
        low, high = ax.get_ylim()
        ax.set_ylim(low, max(high, exact + 0.12 * (exact - low)))
    if name == "balancing_error":
        ax.set_ylim(bottom=0)
    if not _any(ds, name, task=task):
        _say_missing(ax)


def plane(ds: xr.Dataset) -> Figure | None:
    """The conservativeness–information plane."""
    labels, tasks, methods, budgets = _axes(ds)
    if not _any(ds, "nominal_log_prob"):
        return None
    settings, looks = settings_of(ds), method_looks(methods)
    figure, axes = _row(len(tasks), height=2.2)
    for ax, task in zip(axes, tasks, strict=True):
        known = _any(ds, "information_kept", task=task)
        panels.plane_panel(ax, [s for s in settings if s.task == task], looks, known)
        ax.set_title(labels.task(task), pad=13)
        ax.set_xlabel("Coverage AUC")
        ax.set_ylabel("Information kept" if known else "Nominal log posterior")
    _method_legend(figure, methods, labels, "larger marks: larger budgets" if len(budgets) > 1 else "")
    return figure


def verdict_pages(ds: xr.Dataset) -> Iterator[tuple[str, Figure]]:
    """The table of verdicts, on as many pages as it needs."""
    _, tasks, methods, budgets = _axes(ds)
    width, height = 0.72 * len(budgets) + 0.9, 0.36 * len(methods) + 0.55
    beside, below = max(1, int(PAGE_WIDTH // width)), max(1, int((PAGE_HEIGHT - 0.5) // height))
    for first in range(0, len(tasks), beside * below):
        page = tasks[first : first + beside * below]
        name = "verdicts" if len(page) == len(tasks) else f"verdicts_{first // (beside * below) + 1}"
        yield name, _verdict_table(ds, page, width, height)


def _verdict_table(ds: xr.Dataset, tasks: Sequence[str], width: float, height: float) -> Figure:
    labels = _axes(ds)[0]
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
    here = {s.state for s in settings}
    marks = [
        (VERDICTS[state][0], VERDICTS[state][2], state)
        for state in (OVERCONFIDENT, CERTIFIED, INCONCLUSIVE)
        if state in here or (state == OVERCONFIDENT and PARTLY in here) or any(_has(s, state) for s in settings)
    ]
    if MISSING in here:
        marks.append((VERDICTS[MISSING][0], GREY, "not computed"))
    handles = [Line2D([], [], linestyle="none", marker=f"${m}$", markersize=5.5, color=c, label=t) for m, c, t in marks]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(marks), 2 if figure.get_figwidth() < 4 else 4),
        handletextpad=0.2,
        columnspacing=1.2,
    )
    return figure


def _has(s: Any, state: str) -> bool:
    return bool({OVERCONFIDENT: s.overconfident, CERTIFIED: s.certified, INCONCLUSIVE: s.inconclusive}[state])


def training(ds: xr.Dataset) -> Figure | None:
    """Training histories, methods × tasks."""
    labels, tasks, methods, budgets = _axes(ds)
    if not _any(ds, "validation_loss"):
        return None
    if len(tasks) == 1:
        rows, columns = _balanced(len(methods), 3)
        where = [(divmod(i, columns), tasks[0], m) for i, m in enumerate(methods)]
    else:
        rows, columns = len(methods), len(tasks)
        where = [((i, j), t, m) for i, m in enumerate(methods) for j, t in enumerate(tasks)]
    width = max(COLUMN, min(PAGE_WIDTH, columns * 2.3))
    figure = Figure(figsize=(width, min(PAGE_HEIGHT, rows * 1.45 + 0.6)))
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat:
        ax.set_visible(False)
    for (i, j), task, method in where:
        ax = grid[i, j]
        ax.set_visible(True)
        panels.history_panel(ax, ds, task, method)
        ax.locator_params(nbins=3)
        if not ax.lines:
            _say_missing(ax)
        if len(tasks) == 1:
            ax.set_title(labels.method(method))
        else:
            _name_row_and_column(ax, i == 0, j == columns - 1, labels.task(task), labels.method(method))
    figure.supxlabel("Epoch")
    figure.supylabel("Loss")
    extra = [
        Line2D([], [], color=GREY, linewidth=1.2, label="validation"),
        Line2D([], [], color=GREY, linewidth=0.8, linestyle=(0, (3, 1.5)), label="training"),
        Line2D([], [], color=GREY, linestyle="none", marker="o", markersize=3.5, label="best epoch"),
    ]
    _budget_legend(figure, budgets, labels, extra, "Simulation budgets as colours")
    return figure


def members(ds: xr.Dataset) -> Figure | None:
    """Single networks and their mixture; only where a run has several networks."""
    labels, tasks, methods, _ = _axes(ds)
    if ds.sizes.get("member", 1) < 2 or not _any(ds, "member_coverage_auc"):
        return None
    figure, axes = _row(len(tasks), height=2.2)
    for ax, task in zip(axes, tasks, strict=True):
        panels.members_panel(ax, ds, task, method_looks(methods))
        ax.set_title(labels.task(task))
    _label(axes, "Coverage AUC", "Nominal log posterior")
    _method_legend(figure, methods, labels, "dots: single networks; arrows lead to their mixture")
    return figure


def gallery_tasks(ds: xr.Dataset) -> list[str]:
    """The tasks that have densities to show."""
    if "gallery_density" not in ds:
        return []
    name = "gallery_task" if "gallery_task" in ds["gallery_density"].dims else "task"
    return [str(t) for t in ds[name].values if np.isfinite(ds["gallery_density"].sel({name: t}).values).any()]


def gallery(ds: xr.Dataset, task: str) -> Figure:
    """The posterior of one observation, methods × budgets, and the exact one where it is known."""
    labels, _, methods, _ = _axes(ds)
    ds = ds.rename({"gallery_task": "gallery"}) if "gallery_task" in ds.dims else ds
    at = {"gallery": task} if "gallery" in ds.dims else {"task": task}
    density = ds["gallery_density"].sel(at)
    density = density.rename({"gallery_budget": "budget"}) if "gallery_budget" in density.dims else density
    budgets = [int(b) for b in density["budget"].values]
    low, high, theta = (np.asarray(ds[f"gallery_{n}"].sel(at).values, float) for n in ("low", "high", "theta"))
    exact = ds["gallery_exact"].sel(at).values if "gallery_exact" in ds else np.full((1, 1), np.nan)
    known = bool(np.isfinite(exact).any())
    columns = len(budgets) + known
    side = min(1.15, (PAGE_WIDTH - 0.7) / columns, (PAGE_HEIGHT - 0.5) / len(methods))
    figure = Figure(figsize=(max(2.2, columns * side + 0.7), len(methods) * side + 0.4))
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.03, wspace=0.02, hspace=0.02)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(len(methods), columns, squeeze=False)
    for i, method in enumerate(methods):
        for j in range(columns):
            values = exact if j == len(budgets) else density.sel({"method": method, "budget": budgets[j]}).values
            ax = grid[i, j]
            if np.isfinite(values).any():
                panels.gallery_panel(ax, values, low, high, theta)
            else:
                panels._frame(ax)
                _say_missing(ax)
            if i == 0:
                ax.set_title("exact" if j == len(budgets) else labels.budget(budgets[j]), fontsize=7.5)
            if j == 0:
                ax.set_ylabel(labels.method(method), fontsize=7.5)
    return figure


#: Every figure but the verdicts and the galleries, by file name; a function of the results that gives None where they do not hold enough.
FIGURES: dict[str, Callable[[xr.Dataset], Figure | None]] = {
    "coverage": coverage,
    "plane": plane,
    "nominal_log_prob": nominal_log_prob,
    "balancing_error": balancing_error,
    "members": members,
    "training": training,
}


def _axes(ds: xr.Dataset) -> tuple[Labels, list[str], list[str], list[int]]:
    labels = Labels(str(ds.attrs.get("protocol", "")))
    return (
        labels,
        [str(t) for t in ds["task"].values],
        [str(m) for m in ds["method"].values],
        [int(b) for b in ds["budget"].values],
    )


def _row(n: int, height: float = 1.9) -> tuple[Figure, list[Any]]:
    """A figure of n panels, at most three beside each other; the legend has room below."""
    rows, columns = _balanced(n, 3)
    figure = Figure(figsize=({1: COLUMN, 2: 5.2, 3: PAGE_WIDTH}[columns], rows * height + 0.75))
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat[n:]:
        ax.set_visible(False)
    return figure, list(grid.flat[:n])


def _label(axes: Sequence[Any], x: str, y: str) -> None:
    _, columns = _balanced(len(axes), 3)
    for i, ax in enumerate(axes):
        if i + columns >= len(axes):
            ax.set_xlabel(x)
        if i % columns == 0:
            ax.set_ylabel(y)


def _budget_legend(
    figure: Figure, budgets: Sequence[int], labels: Labels, extra: Sequence[Any] = (), title: str = "Simulation budget"
) -> None:
    handles = [Line2D([], [], color=look.colour, label=labels.budget(b)) for b, look in budget_looks(budgets).items()]
    handles += list(extra)
    room = max(2, int(figure.get_figwidth() / 0.95))
    figure.legend(
        handles=handles, loc="outside upper center", ncols=_balanced(len(handles), room)[1], title=title, title_fontsize=7.5, columnspacing=1.2, handlelength=1.6
    )  # fmt: skip


def _method_legend(figure: Figure, methods: Sequence[str], labels: Labels, note: str = "") -> None:
    handles = [
        Line2D(
            [], [], color=look.colour, linestyle=look.line, markersize=3.8, label=labels.method(m), **look.marker_style
        )
        for m, look in method_looks(methods).items()
    ]
    room = max(2, int(figure.get_figwidth() / 1.12))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=_balanced(len(handles), room)[1], columnspacing=1.4, handlelength=2.6, title=note or None, title_fontsize=7
    )  # fmt: skip


def _name_row_and_column(ax: Any, top: bool, right: bool, column: str, row: str) -> None:
    if top:
        ax.set_title(column)
    if right:
        ax.annotate(row, (1.06, 0.5), xycoords="axes fraction", rotation=-90, va="center")


def _balanced(n: int, most: int) -> tuple[int, int]:
    """Rows and columns for n things, at most so many a row, with as few empty places as that allows."""
    rows = -(-n // most)
    return rows, -(-n // rows)


def _any(ds: xr.Dataset, name: str, **at: str) -> bool:
    """Whether the results have the variable, with a number in it."""
    return name in ds and bool(np.isfinite(np.asarray(ds[name].sel(at).values, float)).any())


def _say_missing(ax: Any) -> None:
    ax.annotate(
        "not computed",
        (0.5, 0.5),
        xycoords="axes fraction",
        ha="center",
        va="center",
        fontsize=7,
        color=GREY,
        style="italic",
    )
