"""The static figures of the page: one SVG a panel, so that the page can arrange them for any width."""

from __future__ import annotations

__all__ = ["Drawing", "draw_all"]

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from markupsafe import Markup
from matplotlib.figure import Figure

from equipoise.support.progress import Progress

from . import figures, panels
from .layout import any_number, axes_of, file_name
from .references import crosses, sides
from .results import settings_of
from .style import CONTOUR, PRINT, method_looks
from .svg import inline_svg

#: Points of all losses together; with very many panels each gets fewer.
MOST_HISTORY_POINTS = 16_000
NUMBERS_ABOVE = "The numbers are in the table of all verdicts."


@dataclass
class Drawing:
    """A titled figure, or a titled group of them."""

    title: str
    svg: Markup = field(default_factory=Markup)
    panels: list[Drawing] = field(default_factory=list)


def draw_all(ds: xr.Dataset, colours: Mapping[str, str], progress: bool | None = None) -> dict[str, list[Drawing]]:
    """All static figures, by section.

    Arguments:
        ds: the results.
        colours: which colour is which CSS variable.
        progress: False for no progress bar.
    """
    colours = {**colours, CONTOUR: "density"}

    def draw(
        section: str, name: str, title: str, alt: str, size: tuple[float, float], fill: Callable[[Any], Any]
    ) -> Drawing:
        figure = Figure(figsize=size)
        fill(figure.subplots())
        return Drawing(title, Markup(inline_svg(figure, f"{section}-{file_name(name)}", f"{title}: {alt}", colours)))

    sections: dict[str, Callable[[], list[Drawing]]] = {
        "plane": lambda: _planes(ds, draw),
        "nominal": lambda: _budgets(ds, draw, "nominal_log_prob", "Nominal log posterior"),
        "balance": lambda: _budgets(ds, draw, "balancing_error", "Balancing error"),
        "members": lambda: _members(ds, draw),
        "training": lambda: _histories(ds, draw),
        "gallery": lambda: _galleries(ds, colours),
    }
    drawn = {}
    with mpl.rc_context(PRINT), Progress("drawing the report", len(sections), progress) as bar:
        for name, section in sections.items():
            drawn[name] = section()
            bar.advance(1, name)
    return drawn


Draw = Callable[..., Drawing]
SMALL = (3.05, 2.4)


def _planes(ds: xr.Dataset, draw: Draw) -> list[Drawing]:
    labels, tasks, methods, _ = axes_of(ds)
    settings, looks, drawn = settings_of(ds), method_looks(methods), []
    for task in (t for t in tasks if any_number(ds, "nominal_log_prob", task=t)):
        known = any_number(ds, "information_kept", task=task)
        across = "information kept" if known else "nominal log posterior"

        def fill(ax: Any, task: str = task, known: bool = known, across: str = across) -> None:
            panels.plane_panel(ax, [s for s in settings if s.task == task], looks, known)
            sides(ax)
            crosses(ax, ds, task)
            ax.set(xlabel=across.capitalize(), ylabel="Coverage AUC")

        alt = f"coverage AUC against {across}, a point for each method and budget. {NUMBERS_ABOVE}"
        drawn.append(draw("plane", task, labels.task(task), alt, SMALL, fill))
    return drawn


def _budgets(ds: xr.Dataset, draw: Draw, name: str, label: str) -> list[Drawing]:
    labels, tasks, _, _ = axes_of(ds)
    drawn = []
    for task in (t for t in tasks if any_number(ds, name, task=t)):

        def fill(ax: Any, task: str = task) -> None:
            figures.budget_panel(ax, ds, task, name)
            ax.set(xlabel="Simulation budget", ylabel=label)

        alt = f"{label.lower()} against the simulation budget, a line for each method. {NUMBERS_ABOVE}"
        drawn.append(draw(name, task, labels.task(task), alt, SMALL, fill))
    return drawn


def _members(ds: xr.Dataset, draw: Draw) -> list[Drawing]:
    labels, tasks, methods, _ = axes_of(ds)
    if ds.sizes.get("member", 1) < 2:
        return []
    looks, drawn = method_looks(methods), []
    for task in (t for t in tasks if any_number(ds, "member_coverage_auc", task=t)):

        def fill(ax: Any, task: str = task) -> None:
            panels.members_panel(ax, ds, task, looks)
            ax.set(xlabel="Nominal log posterior", ylabel="Coverage AUC")

        alt = (
            "arrows from single networks to their mixture, in nominal log posterior and coverage AUC. "
            "The numbers are in the table below."
        )
        drawn.append(draw("members", task, labels.task(task), alt, SMALL, fill))
    return drawn


def _histories(ds: xr.Dataset, draw: Draw) -> list[Drawing]:
    """Losses, one group a task."""
    labels, tasks, methods, budgets = axes_of(ds)
    points = int(np.clip(MOST_HISTORY_POINTS // (2 * len(tasks) * len(methods) * len(budgets)), 15, 100))
    groups = []
    for task in tasks:
        group = []
        for method in methods:
            if not any_number(ds, "validation_loss", task=task, method=method):
                continue

            def fill(ax: Any, task: str = task, method: str = method) -> None:
                panels.history_panel(ax, ds, task, method, points)
                ax.locator_params(nbins=4)
                ax.set(xlabel="Epoch", ylabel="Loss")

            alt = f"training and validation loss against the epoch on {labels.task(task)}, a colour for each budget"
            group.append(draw("training", f"{task} {method}", labels.method(method), alt, (2.2, 1.6), fill))
        if group:
            groups.append(Drawing(labels.task(task), panels=group))
    return groups


def _galleries(ds: xr.Dataset, colours: Mapping[str, str]) -> list[Drawing]:
    labels, drawn = axes_of(ds)[0], []
    for task in figures.gallery_tasks(ds):
        title = labels.task(task)
        alt = f"{title}: posterior densities of one observation, methods by budgets, with the true parameter as a star"
        svg = inline_svg(figures.gallery(ds, task), f"gallery-{file_name(task)}", alt, colours)
        drawn.append(Drawing(title, Markup(svg)))
    return drawn
