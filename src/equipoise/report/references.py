"""What a reader compares with: the prior and the exact posterior, and the sides of zero."""

from __future__ import annotations

__all__ = ["crosses", "near", "references", "sides"]

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from .layout import any_number, say_missing, width_of
from .style import GREY, INK, VERDICTS

#: The smallest type.
SMALL: dict[str, Any] = {"fontsize": 7, "color": INK}


def near(value: float, low: float, high: float, reach: float = 0.0) -> bool:
    """Whether an axis from low to high may be carried on to a value without squeezing what it shows.

    Example:
        >>> near(0, 0.5, 1), near(0, 0.9, 1), near(0, 0.2, 0.21, reach=0.25)
        (True, False, True)
    """
    room = max(high - low, reach)
    return low - room <= value <= high + room


def crosses(ax: Axes, ds: xr.Dataset, task: str, named: bool = True) -> None:
    """The prior and the exact posterior as crosses on the line of coverage AUC 0, with the axis carried on to them.

    Along the information kept they are at 0 and at 1; along the nominal log posterior the prior is where it is. One
    that is far from every point stays out. Call it after `sides`, which sets the limits of y.
    """
    if not ax.lines:
        return
    places, reach = {"prior": 0.0, "exact": 1.0}, 0.25
    if not any_number(ds, "information_kept", task=task):
        known = any_number(ds, "prior_log_prob", task=task)
        places, reach = ({"prior": float(ds["prior_log_prob"].sel(task=task))} if known else {}), 0.0
    low, high = ax.get_xlim()
    shown = {text: x for text, x in places.items() if near(x, low, high, reach)}
    # Nothing is overconfident and as uninformed as the prior, or as informed as the exact posterior: names have room
    # at the bottom, unless zero is there.
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


def sides(ax: Axes, named: bool = True) -> None:
    """Zero in view, what is below it shaded, and both sides named at the right edge; nothing where nothing is drawn."""
    if not ax.lines:
        return
    low, high = ax.get_ylim()
    margin = 0.04 * max(high - low, 0.1)
    low, high = min(low, -margin), max(high, margin)
    ax.set_ylim(low, high)
    ax.axhspan(low, 0, color=VERDICTS["overconfident"][2], alpha=0.06, linewidth=0)
    ax.axhline(0, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
    for name, at, room in (("conservative", high / 2, high), ("overconfident", low / 2, -low)):
        if named and room > 0.35 * (high - low):
            style: dict[str, Any] = {"fontsize": 7, "style": "italic", "color": GREY, "rotation": -90, "va": "center"}
            ax.annotate(name, (1.015, at), xycoords=("axes fraction", "data"), **style)


def references(ax: Axes, ds: xr.Dataset, task: str, name: str, named: bool = True) -> None:
    """Lines at the exact posterior's value and at the prior's, and 0 or a logarithmic axis for an error.

    With `named` the lines have their names and the axis room for them; panels below one that has need neither.
    """
    if not any_number(ds, name, task=task):
        say_missing(ax)
    if name == "nominal_log_prob":
        _floor_and_ceiling(ax, ds, task, named)
    if name == "balancing_error":
        # Errors of balanced methods differ by factors, all of them near 0. A single run may come close to 0 by chance:
        # what counts is where the medians are.
        values = ds[name].sel(task=task).values
        medians = np.nanmedian(values[np.isfinite(values).any(-1)], axis=-1)
        if len(medians) and medians.min() > 0:
            ax.set_yscale("log")
            ax.set_ylim(bottom=medians.min() / 2)
        else:
            ax.set_ylim(bottom=0)


def _floor_and_ceiling(ax: Axes, ds: xr.Dataset, task: str, named: bool) -> None:
    """The exact posterior's value, always, and the prior's where it is near.

    Names are where lines seldom are: the ceiling's at the smallest budget, the floor's at the largest.
    """
    value = {
        text: float(ds[name].sel(task=task))
        for text, name in (("exact", "expected_log_prob"), ("prior", "prior_log_prob"))
        if any_number(ds, name, task=task)
    }
    low, high = ax.get_ylim()
    if "prior" in value and not near(value["prior"], low, max(high, value.get("exact", high))):
        del value["prior"]
    for text, at in value.items():
        ax.axhline(at, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=0)
        if named:
            place: Any = {"ha": "left", "va": "bottom"} if text == "exact" else {"ha": "right", "va": "top"}
            x = 0.01 if text == "exact" else 0.99
            ax.annotate(text, (x, at), xycoords=("axes fraction", "data"), **place, **SMALL)
    if named and value:
        span = max(high, *value.values()) - min(low, *value.values())
        margin = 0.05 * (span - (high - low))  # what is drawn keeps its distance from the edge of a longer axis
        ceiling, floor = value.get("exact", -np.inf) + 0.1 * span, value.get("prior", np.inf) - 0.1 * span
        ax.set_ylim(min(low - margin, floor), max(high + margin, ceiling))
