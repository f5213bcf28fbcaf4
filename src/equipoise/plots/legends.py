"""Axes to draw on, and legends that cover nothing."""

from __future__ import annotations

__all__: list[str] = []

from collections.abc import Sequence, Sized
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.transforms import Bbox

from equipoise.support.words import did_you_mean

from .style import GREY, INK


def axes_or_new(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
    assert ax is not None
    quiet_spines(ax)
    return ax


def new_figure(figure: Figure | None, width: float, height: float) -> Figure:
    """The given figure, or a new one of pyplot's, with this size in inches."""
    if figure is None:
        return plt.figure(figsize=(width, height), layout="constrained")
    figure.set_size_inches(width, height)
    figure.set_layout_engine("constrained")
    return figure


def quiet_spines(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(GREY)
    ax.tick_params(color=GREY)


def legend(ax: Axes, **options: Any) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small", handlelength=1.5, facecolor="white", edgecolor="none", framealpha=0.75, **options)


def legend_with_room(ax: Axes) -> None:
    """A legend in as few rows as fit, with the y-axis carried on behind it so that it covers nothing.

    Limits that were set before are let go: the room is measured from all that is drawn.
    """
    _lay_out(ax)
    entries = len(ax.get_legend_handles_labels()[0])
    width, height = ax.get_window_extent().size
    for columns in range(min(entries, 4), 0, -1):
        legend(ax, loc="upper left", ncols=columns, columnspacing=1, borderaxespad=0.2)
        made = ax.get_legend()
        assert made is not None
        box = made.get_window_extent()
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
            legend(ax, **place)
            made = ax.get_legend()
            if made is None:
                return
            for text in made.get_texts() if wrapped else ():
                text.set_text(text.get_text().replace(": ", ":\n"))
            if not _covers_something(ax, made.get_window_extent().padded(2)):
                return
    if ax.get_title():
        legend(ax, **places[0])
        return
    width = ax.get_window_extent().width
    for columns in (2, 1) if len(ax.get_legend_handles_labels()[0]) > 3 else (1,):
        legend(ax, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=columns, columnspacing=1)
        made = ax.get_legend()
        if made is not None and made.get_window_extent().width <= width:  # a wider one would push the axes together
            return


def _lay_out(ax: Axes) -> None:
    """Give the axes the size that they are going to have, or nearly."""
    figure = ax.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
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


def known(what: str, asked: Sequence[str], there: Sequence[str]) -> None:
    """Refuses names that the results do not have."""
    for name in asked:
        if name not in there:
            raise ValueError(did_you_mean(name, there, what))


def p_text(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def star(ax: Axes, x: float, y: float) -> None:
    ax.plot(x, y, marker="*", ms=10, color=INK, mec="white", mew=0.8, ls="", zorder=5)
