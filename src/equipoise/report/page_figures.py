"""The figures of the page: one SVG per panel, so that the page can arrange them for any width."""

from __future__ import annotations

__all__ = ["Picture", "draw_all"]

import io
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import xarray as xr
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from equipoise import plots
from equipoise.plots.gallery import gallery_tasks
from equipoise.plots.labels import Labels, labels_of
from equipoise.plots.panels import any_number, coverage_panel, history_panel, line_panel, members_panel, references
from equipoise.plots.style import GREY, PRINT
from equipoise.support.progress import Progress

#: A point of a figure is this many CSS pixels, so that 8-point type reads as 13 pixels.
PIXELS_PER_POINT = 1.6
#: Panels of coverage and training together. Of large grids, `equipoise figures` draws what the page leaves out.
MOST_PANELS = 100
#: Points of all coverage curves together, and of all losses; with more curves each has fewer.
MOST_POINTS, MOST_EPOCHS = 10_000, 16_000
#: Width, height and margins (left, right, bottom, top) of panels in inches.
SQUARE = ((2.2, 2.05), (0.42, 0.08, 0.4, 0.06))
WIDE = ((3.05, 2.4), (0.62, 0.22, 0.42, 0.08))
FLAT = ((2.2, 1.6), (0.5, 0.1, 0.38, 0.06))
#: Comments, rotations by nothing, ids that nothing refers to, and fonts, which are the page's.
UNUSED = re.compile(
    r"""<!--.*?-->|[ ]transform="rotate\(-0[ ][^"]*"|font-family:[^;"]*;[ ]?|"""
    r"""[ ]id="(?:figure|axes|patch|line2d|text|[xy]tick|legend|matplotlib\.axis|\w*Collection|\w*ContourSet)_\d+["]""",
    re.DOTALL,
)
Shape = tuple[tuple[float, float], tuple[float, float, float, float]]


class Picture(NamedTuple):
    """A figure of the page: where it belongs, and the drawing as an `<svg>` element."""

    task: str
    svg: Markup
    method: str = ""
    budget: int = 0
    view: str = ""


def draw_all(ds: xr.Dataset, progress: bool | None = None) -> dict[str, list[Picture]]:
    """All figures of the page, by section."""
    names = labels_of(ds)
    sections: dict[str, Callable[[], Iterator[Picture]]] = {
        "coverage": lambda: _coverage(ds, names),
        **{name: partial(_per_task, ds, names, name) for name in ("plane", "nominal", "balance", "members")},
        "training": lambda: _training(ds, names),
        "gallery": lambda: _galleries(ds, names),
    }
    drawn = {}
    with mpl.rc_context(PRINT), Progress("drawing the report", len(sections), progress) as bar:
        for name, section in sections.items():
            drawn[name] = list(section())
            bar.advance(1, name)
    return drawn


def _coverage(ds: xr.Dataset, names: Labels) -> Iterator[Picture]:
    """Coverage by method, then by budget, then by method minus the level, as far as the page has room."""
    cells = len(names.tasks) * len(names.methods) * len(names.budgets)
    stride = max(1, math.ceil(cells * ds.sizes["level"] / MOST_POINTS))
    kept = [n for n in ds.data_vars if str(n).startswith(("coverage", "calibration_")) and "level" in ds[n].dims]
    ds = ds[[*kept, *(n for n in ds.data_vars if str(n).startswith("method_"))]]
    ds = ds.isel(level=np.unique([*range(0, ds.sizes["level"], stride), ds.sizes["level"] - 1]))
    extent = _extent(ds)
    left = MOST_PANELS
    for view, by, difference in (
        ("method", "method", False),
        ("budget", "budget", True),
        ("difference", "method", True),
    ):
        others: list[Any] = list(names.methods) if by == "method" else names.budgets
        left -= len(names.tasks) * len(others)
        if left < 0 and view != "method":
            return
        for task in names.tasks:
            for other in others:
                if not any_number(ds, "coverage", task=task, **{by: other}):
                    continue
                label = names.method(other) if by == "method" else f"{names.budget(other)} simulations"
                what = "coverage minus level" if difference else "expected coverage"
                curves = "budget" if by == "method" else "method"

                def fill(ax: Axes, task: str = task, by: str = by, other: Any = other, d: bool = difference) -> None:
                    coverage_panel(ds, task, ax=ax, difference=d, **{by: other})
                    ax.set(xlabel="Credibility level", **({"ylim": (-extent, extent)} if d else {}))
                    ax.text(0.03, 0.97, "conservative", transform=ax.transAxes, va="top", **SIDE)
                    ax.text(0.97, 0.03, "overconfident", transform=ax.transAxes, ha="right", **SIDE)

                alt = f"{label}, {names.task(task)}: {what} against the level, one curve per {curves}"
                svg = _svg(fill, SQUARE, alt, f"{view}-{list(names.tasks).index(task)}-{others.index(other)}")
                yield Picture(task, svg, other if by == "method" else "", other if by == "budget" else 0, view)


SIDE: Any = {"fontsize": 6.5, "style": "italic", "color": GREY}


def _extent(ds: xr.Dataset) -> float:
    """How far coverage is from its level anywhere, up to a tenth."""
    return max(0.1, math.ceil(10 * float(np.abs(ds["coverage"] - ds["level"]).max())) / 10)


def _per_task(ds: xr.Dataset, names: Labels, section: str) -> Iterator[Picture]:
    """One wide panel per task that has the numbers for it."""
    variable, what = {
        "plane": ("nominal_log_prob", "coverage AUC against information, one point per method and budget"),
        "nominal": ("nominal_log_prob", "nominal log posterior against the simulation budget, one line per method"),
        "balance": ("balancing_error", "balancing error against the simulation budget, one line per method"),
        "members": ("member_coverage_auc", "arrows from single networks to their mixture"),
    }[section]

    def fill(ax: Axes, task: str) -> None:
        if section == "plane":
            plots.plane(ds.sel(task=[task]), ax=ax, legend=False)
        elif section == "members":
            members_panel(ds, task, ax=ax).set(xlabel="Nominal log posterior", ylabel="Coverage AUC")
        else:
            line_panel(ds, task, variable, ax=ax).set(
                xlabel="Simulation budget", ylabel=what.split(" against")[0].capitalize()
            )
            references(ax, ds, task, variable)

    for i, task in enumerate(names.tasks):
        if any_number(ds, variable, task=task) and (section != "members" or ds.sizes["member"] > 1):
            alt = f"{names.task(task)}: {what}. The numbers are in the tables."
            yield Picture(task, _svg(partial(fill, task=task), WIDE, alt, f"{section}-{i}"))


def _training(ds: xr.Dataset, names: Labels) -> Iterator[Picture]:
    """Losses; fewer epochs where there are many curves."""
    panels = len(names.tasks) * len(names.methods)
    if 2 * panels + len(names.tasks) * len(names.budgets) > MOST_PANELS or "epoch" not in ds.dims:
        return
    points = int(np.clip(MOST_EPOCHS // (2 * panels * len(names.budgets)), 15, 100))
    kept = [n for n in ("train_loss", "validation_loss", "best_epoch") if n in ds]
    epochs = np.unique(np.linspace(0, ds.sizes["epoch"] - 1, points).round().astype(int))
    thin = ds[kept].isel(epoch=epochs)
    for i, task in enumerate(names.tasks):
        for j, method in enumerate(names.methods):
            if not any_number(ds, "validation_loss", task=task, method=method):
                continue

            def fill(ax: Axes, task: str = task, method: str = method) -> None:
                history_panel(thin, task, method, ax=ax)
                ax.set(xlabel="Epoch", ylabel="Loss")

            alt = f"{names.method(method)}, {names.task(task)}: training and validation loss, one colour per budget"
            yield Picture(task, _svg(fill, FLAT, alt, f"training-{i}-{j}"), method)


def _galleries(ds: xr.Dataset, names: Labels) -> Iterator[Picture]:
    tiles = len(names.methods) * len(names.budgets)
    step = math.ceil(ds.sizes.get("grid_0", 0) / (34 if tiles > 24 else 50)) or 1  # small tiles need few points
    ds = ds.isel(grid_0=slice(None, None, step), grid_1=slice(None, None, step), missing_dims="ignore")
    for i, task in enumerate(gallery_tasks(ds)):
        figure = Figure()
        ax = plots.posterior_gallery(ds, task, figure=figure)
        ax.images[0].set_interpolation("nearest")  # a smooth picture is five times as large
        alt = f"{names.task(task)}: posterior densities of one observation, methods by budgets, with the true parameter"
        yield Picture(task, inline_svg(figure, alt, f"gallery-{i}"))


def _svg(fill: Callable[[Axes], None], shape: Shape, alt: str, name: str) -> Markup:
    """One panel with fixed margins: a layout engine would draw it several times."""
    (width, height), (left, right, bottom, top) = shape
    figure = Figure(figsize=(width, height))
    ends = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    fill(figure.add_axes(ends))
    return inline_svg(figure, alt, name)


def inline_svg(figure: Figure, alt: str, name: str) -> Markup:
    """The figure as an `<svg>` element.

    Arguments:
        figure: the figure.
        alt: what a reader who cannot see it should know.
        name: unique in the page; the ids inside start with it.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing, dpi=80)
    text = buffer.getvalue()
    text = text[text.index(">", text.index("<svg")) + 1 :]
    text = UNUSED.sub("", text)
    text = re.sub(r'(?<= id=")|(?<=href="#)|(?<=url\(#)', f"{name}-", text)
    text = re.sub(r'(?<= [dxy]=")[^"]*', lambda found: _rounded(found[0]), text)
    width, height = (72 * float(v) for v in figure.get_size_inches())
    size = f'width="{width * PIXELS_PER_POINT:.0f}" height="{height * PIXELS_PER_POINT:.0f}"'
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" {size} role="img" aria-label="{escape(alt)}">'
    return Markup(opening + re.sub(r"\n\s*", " ", text))


def _rounded(numbers: str) -> str:
    """Coordinates to a tenth of a point, of small shapes such as markers to a hundredth; "L" goes without saying."""
    digits = 1 if len(numbers) > 400 else 2
    numbers = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.{digits}f}", numbers)
    return re.sub(r"\s+(L\s+)?", " ", numbers)
