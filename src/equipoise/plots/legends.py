"""Axes to draw on, and legends that cover nothing."""

from __future__ import annotations

__all__: list[str] = []

from collections.abc import Sized
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox

from .style import GREY


def axes_or_new(ax: Axes | None, size: tuple[float, float]) -> Axes:
    """The given Axes, or one of a new figure with this size in inches, with quiet spines."""
    ax = ax if ax is not None else plt.subplots(figsize=size, layout="constrained")[1]
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(GREY)
    ax.tick_params(color=GREY)
    return ax


def new_figure(figure: Figure | None, width: float, height: float) -> Figure:
    """The given figure, or a new one of pyplot's, with this size in inches."""
    figure = figure or plt.figure()
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure


def legend(ax: Axes, **options: Any) -> Legend:
    look: Any = {"facecolor": "white", "edgecolor": "none", "framealpha": 0.75}
    return ax.legend(fontsize="small", handlelength=1.5, **look, **options)


def legend_with_room(ax: Axes) -> None:
    """A legend in as few rows as fit, with the y-axis carried on behind it so that it covers nothing.

    Limits that were set before are let go: the room is measured from all that is drawn.
    """
    _lay_out(ax)
    width, height = ax.get_window_extent().size
    for columns in range(min(len(ax.get_legend_handles_labels()[0]), 4), 0, -1):
        box = legend(ax, loc="upper left", ncols=columns, columnspacing=1, borderaxespad=0.2).get_window_extent()
        if box.width <= width:
            break
    ax.autoscale(axis="y")
    low, high = ax.get_ylim()
    # A layout that is made later, or a title, may leave the axes a tenth less high.
    share = min(1.1 * box.height / height, 0.6)
    ax.set_ylim(low, low + (high - low) / (1 - share))


def legend_beside(ax: Axes, *places: dict[str, Any]) -> None:
    """A legend at the first of some places where it covers nothing, its entries in two lines if need be.

    Else above, or, where a title is, at the first place all the same.
    """
    _lay_out(ax)
    for wrapped in (False, True):
        for place in places:
            made = legend(ax, **place)
            for text in made.get_texts() if wrapped else ():
                text.set_text(text.get_text().replace(": ", ":\n"))
            if not _covers_something(ax, made.get_window_extent().padded(2)):
                return
    if ax.get_title():
        legend(ax, **places[0])
        return
    for columns in (2, 1) if len(ax.get_legend_handles_labels()[0]) > 3 else (1,):
        made = legend(ax, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=columns, columnspacing=1)
        if made.get_window_extent().width <= ax.get_window_extent().width:  # a wider one pushes the axes together
            return


def _lay_out(ax: Axes) -> None:
    """Give the axes the size that they are going to have, or nearly."""
    figure: Any = ax.get_figure(root=True)
    if figure.get_layout_engine() is not None:
        figure.get_layout_engine().execute(figure)
    ax.apply_aspect()


def _covers_something(ax: Axes, box: Bbox) -> bool:
    """Whether a line, or the edge of a band, runs through a box in display coordinates."""
    drawn = [(line, [line.get_path()]) for line in ax.get_lines()] + [(c, c.get_paths()) for c in ax.collections]
    return any(
        path.transformed(artist.get_transform()).intersects_bbox(box, filled=False)
        for artist, paths in drawn
        for path in paths
    )


def one_each(what: str, given: Sized | None, wanted: int, of: str) -> None:
    """Refuses names, labels and the like that are not one for each thing they belong to."""
    if given is not None and len(given) != wanted:
        raise ValueError(f"{what} should have {wanted} entries, one for each {of}, got {len(given)}")
