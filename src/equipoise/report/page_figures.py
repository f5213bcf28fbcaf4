"""The figures of the page: one SVG per panel, so that the page can arrange them for any width."""

from __future__ import annotations

__all__ = ["Picture", "draw_all"]

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
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
SQUARE = ((2.3, 2.05), (0.46, 0.08, 0.4, 0.06))
WIDE = ((3.05, 2.4), (0.62, 0.22, 0.42, 0.08))
FLAT = ((2.2, 1.6), (0.5, 0.1, 0.38, 0.06))
#: Comments, rotations by nothing, ends of lines, ids that nothing refers to, and fonts, which are the page's.
UNUSED = re.compile(
    r"""<!--.*?-->|[ ]transform="rotate\(-0[ ][^"]*"|font-family:[^;"]*;[ ]?|"""
    r""";[ ]stroke-(?:dashoffset:[ ]0|linecap:[ ]square|linejoin:[ ]miter)(?=[;"])|"""
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

    @property
    def width(self) -> int:
        """In CSS pixels; what is a little wider than a phone shrinks, and what is much wider scrolls."""
        return int(self.svg.partition(' width="')[2].partition('"')[0])


def draw_all(
    ds: xr.Dataset, tooltips: Mapping[tuple[str, str, int], str], progress: bool | None = None
) -> dict[str, list[Picture]]:
    """All figures of the page, by section; `tooltips` say by task, method and budget what pointing at a curve tells."""
    names = labels_of(ds)
    sections: dict[str, Callable[[], Iterator[Picture]]] = {
        "coverage": lambda: _coverage(ds, names, tooltips),
        **{name: partial(_per_task, ds, names, name) for name in PER_TASK},
        "training": lambda: _training(ds, names),
        "gallery": lambda: _galleries(ds, names),
    }
    drawn = {}
    with mpl.rc_context(PRINT), Progress("drawing the report", len(sections), progress) as bar:
        for name, section in sections.items():
            drawn[name] = list(section())
            bar.advance(1, name)
    return drawn


def _coverage(ds: xr.Dataset, names: Labels, tooltips: Mapping[tuple[str, str, int], str]) -> Iterator[Picture]:
    """Coverage by method, then by budget, then by method minus the level, as far as the page has room."""
    cells = len(names.tasks) * len(names.methods) * len(names.budgets)
    stride = max(1, math.ceil(cells * ds.sizes["level"] / MOST_POINTS))
    ds = ds.isel(level=np.unique([*range(0, ds.sizes["level"], stride), ds.sizes["level"] - 1]))
    # How far coverage is from its level anywhere, up to a tenth.
    extent = max(0.1, math.ceil(10 * float(np.abs(ds["coverage"] - ds["level"]).max())) / 10)
    left = MOST_PANELS
    for view, by in (("method", "method"), ("budget", "budget"), ("difference", "method")):
        others: list[Any] = list(names.methods) if by == "method" else names.budgets
        along: list[Any] = names.budgets if by == "method" else list(names.methods)
        left -= len(names.tasks) * len(others)
        if left < 0 and view != "method":
            return
        minus = view != "method"
        what = "coverage − level" if minus else "expected coverage"
        for (i, task), (j, other) in product(enumerate(names.tasks), enumerate(others)):
            if not any_number(ds, "coverage", task=task, **{by: other}):
                continue

            def fill(ax: Axes, task: str = task, by: str = by, other: Any = other, minus: bool = minus) -> None:
                coverage_panel(ds, task, ax=ax, difference=minus, **{by: other})
                if minus:
                    ax.set_ylim(-extent, extent)
                ax.text(0.03, 0.97, "conservative", transform=ax.transAxes, va="top", **SIDE)
                ax.text(0.97, 0.03, "overconfident", transform=ax.transAxes, ha="right", **SIDE)
                ax.set_xlabel("Credibility level")
                ax.set_ylabel("Coverage − level" if minus else "Expected coverage", labelpad=2)

            label = names.method(other) if by == "method" else f"{names.budget(other)} simulations"
            curves = "budget" if by == "method" else "method"
            alt = f"{label}, {names.task(task)}: {what} against the level, one curve per {curves}"
            told = {}
            for k, one in enumerate(along):
                method, budget = (other, one) if by == "method" else (one, other)
                title = names.budget(budget) if by == "method" else names.method(method)
                told[f"{curves}-{k}"] = f"{title}: {tooltips[task, method, budget]}"
            svg = _svg(fill, SQUARE, alt, f"{view}-{i}-{j}", told)
            yield Picture(task, svg, other if by == "method" else "", other if by == "budget" else 0, view)


SIDE: Any = {"fontsize": 6.5, "style": "italic", "color": GREY}
#: By section: the variable, and what one wide panel per task shows.
PER_TASK = {
    "plane": ("nominal_log_prob", "coverage AUC against information, one point per method and budget"),
    "nominal": ("nominal_log_prob", "nominal log posterior against the simulation budget, one line per method"),
    "balance": ("balancing_error", "balancing error against the simulation budget, one line per method"),
    "members": ("member_coverage_auc", "arrows from single networks to their mixture"),
}


def _per_task(ds: xr.Dataset, names: Labels, section: str) -> Iterator[Picture]:
    """One wide panel per task that has the numbers for it."""
    variable, what = PER_TASK[section]

    def fill(ax: Axes, task: str) -> None:
        if section == "plane":
            plots.plane(ds.sel(task=[task]), ax=ax, legend=False)
        elif section == "members":
            members_panel(ds, task, ax=ax)
            ax.set(xlabel="Nominal log posterior", ylabel="Coverage AUC")
        else:
            line_panel(ds, task, variable, ax=ax)
            references(ax, ds, task, variable)
            ax.set(xlabel="Simulation budget", ylabel=what.split(" against")[0].capitalize())

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
    for (i, task), (j, method) in product(enumerate(names.tasks), enumerate(names.methods)):
        if any_number(ds, "validation_loss", task=task, method=method):

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
        yield Picture(task, inline_svg(figure, alt, f"gallery-{i}", {}))


def _svg(
    fill: Callable[[Axes], None], shape: Shape, alt: str, name: str, tooltips: Mapping[str, str] | None = None
) -> Markup:
    """One panel with fixed margins: a layout engine would draw it several times."""
    (width, height), (left, right, bottom, top) = shape
    figure = Figure(figsize=(width, height))
    ends = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    fill(figure.add_axes(ends))
    return inline_svg(figure, alt, name, tooltips or {})


def inline_svg(figure: Figure, alt: str, name: str, tooltips: Mapping[str, str]) -> Markup:
    """The figure as an `<svg>` element.

    Arguments:
        figure: the figure.
        alt: what a reader who cannot see it should know.
        name: unique in the page; the ids inside start with it.
        tooltips: what pointing at a curve or its band tells, by the end of their ids.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing, dpi=80)
    text = buffer.getvalue()
    text = UNUSED.sub("", text[text.index(">", text.index("<svg")) + 1 :])
    text = re.sub(r'(?<= [dxy]=")[^"]*', lambda found: _rounded(found[0]), text)
    text = re.sub(r"\n\s*", " ", text)
    for end, told in tooltips.items():
        for kind in ("curve", "band"):
            start = f'<g id="{kind}-{end}">'
            text = text.replace(start, f"{start}<title>{escape(told)}</title>")
    text = re.sub(r'(?<= id=")|(?<=href="#)|(?<=url\(#)', f"{name}-", text)
    width, height = (72 * float(v) for v in figure.get_size_inches())
    size = f'width="{width * PIXELS_PER_POINT:.0f}" height="{height * PIXELS_PER_POINT:.0f}"'
    return Markup(f'<svg viewBox="0 0 {width:g} {height:g}" {size} role="img" aria-label="{escape(alt)}">{text}')


def _rounded(numbers: str) -> str:
    """Coordinates to a hundredth of a point; of long lines to a tenth, as steps from point to point."""
    if len(numbers) < 400 or "C" in numbers:
        return re.sub(r"\s+", " ", re.sub(r"-?\d+\.\d{3,}", lambda v: f"{float(v[0]):.2f}", numbers))
    lines = []
    for line in numbers.split("M")[1:]:
        tenths = np.rint([10 * float(v) for v in re.findall(r"[-\d.]+", line)]).astype(int).reshape(-1, 2)
        x, y, *steps = np.diff(tenths, axis=0, prepend=[[0, 0]]).ravel() / 10
        lines.append(f"M{x:g} {y:g}l" + " ".join(f"{v:g}" for v in steps) + "z" * ("z" in line))
    return "".join(lines)
