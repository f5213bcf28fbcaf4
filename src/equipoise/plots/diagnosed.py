"""Figures of what `equipoise.diagnose` returns for one posterior."""

from __future__ import annotations

__all__ = ["coverage", "local_coverage", "sbc", "tarp"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from equipoise.support.words import did_you_mean

from .legends import axes_or_new, legend_beside, legend_with_room, one_each
from .style import CYCLE, GREY, INK, RULE, VERDICTS


def coverage(
    ds: xr.Dataset,
    member: str | int | Sequence[str | int] | None = None,
    *,
    ax: Axes | None = None,
    difference: bool = False,
    pointwise: bool = False,
) -> Axes:
    """Expected coverage against level, with its simultaneous band.

    Arguments:
        ds: from `diagnose`.
        member: which to draw; None for the mixture in front of its members, or all where there is no mixture.
        ax: where; None for a new figure.
        difference: draw coverage minus level, which shows small departures.
        pointwise: draw the interval of each level as well.
    """
    chosen = _chosen(ds, member)
    ax = axes_or_new(ax, (3.6, 3.4))
    level = ds["level"].values
    base = level if difference else 0.0
    if chosen == ["mixture"] and member is None and ds.sizes["member"] > 2:
        for i, name in enumerate(m for m in ds["member"].values if m != "mixture"):
            curve = ds["coverage"].sel(member=name) - base
            ax.plot(level, curve, color=GREY, lw=0.7, alpha=0.7, zorder=2, label="members" if i == 0 else None)
    ax.plot(level, level - base, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    for i, name in enumerate(chosen):
        one = ds.sel(member=name)
        verdict = str(one["verdict"].values)
        colour = VERDICTS[verdict].ink if len(chosen) == 1 else CYCLE[i % len(CYCLE)]
        for kind, alpha in (("", 0.2), ("_pointwise", 0.25)) if pointwise else (("", 0.2),):
            low, high = (one[f"coverage_{end}{kind}"] - base for end in ("lower", "upper"))
            ax.fill_between(level, low, high, color=colour, alpha=alpha, lw=0)
        text = name if len(chosen) > 1 or ds.sizes["member"] > 2 else "posterior"
        ax.plot(level, one["coverage"] - base, color=colour, lw=1.8, zorder=3, label=f"{text}: {verdict}")
    ax.set(xlim=(0, 1), xlabel="credibility level", ylabel="coverage − level" if difference else "expected coverage")
    if difference:
        legend_with_room(ax)
        return ax
    ax.set(ylim=(0, 1), aspect="equal")
    ax.text(0.97, 0.05, "overconfident", color=GREY, ha="right", fontsize="small", style="italic")
    # A curve that is far above the diagonal runs through the upper left corner.
    legend_beside(ax, {"loc": "upper left"}, {"loc": "lower right", "bbox_to_anchor": (1, 0.09)})
    return ax


def _chosen(ds: xr.Dataset, member: str | int | Sequence[str | int] | None) -> list[str]:
    """The members to draw: those asked for, or the mixture, or all where there is none."""
    everyone = [str(m) for m in ds["member"].values]
    if member is None:
        return ["mixture"] if "mixture" in everyone else everyone
    asked = [str(m) for m in ([member] if isinstance(member, str | int) else member)]
    for name in asked:
        if name not in everyone:
            raise ValueError(did_you_mean(name, everyone, "member"))
    return asked


def sbc(
    ds: xr.Dataset, member: str | int | None = None, *, ax: Axes | None = None, names: Sequence[str] | None = None
) -> Axes:
    """SBC: the share of ranks up to each level minus the level, one line per parameter, and the band of uniform ranks.

    Arguments as of `coverage`, with one member, and `names` of the parameters.
    """
    chosen = _chosen(ds, member)[0]
    one_each("names", names, ds.sizes["parameter"], "parameter")
    names = names or [f"θ$_{{{int(j) + 1}}}$" for j in ds["parameter"].values]
    ax = axes_or_new(ax, (4.6, 2.8 + 0.17 * (len(names) // 3)))
    _uniform_band(ax, ds)
    for j, name in enumerate(names):
        one = ds.sel(member=chosen).isel(parameter=j)
        look: dict[str, Any] = {"color": CYCLE[j % len(CYCLE)], "ls": "-" if j < len(CYCLE) else (0, (3, 1.5))}
        ax.plot(ds["level"], one["sbc"] - ds["level"], label=f"{name}  {_p_text(one['sbc_p_value'])}", **look)
    ax.set(xlim=(0, 1), xlabel="SBC rank", ylabel="ECDF − rank")
    legend_with_room(ax)
    return ax


def tarp(ds: xr.Dataset, member: str | int | Sequence[str | int] | None = None, *, ax: Axes | None = None) -> Axes:
    """TARP's expected coverage minus the level, with the 95% band of a correct posterior.

    Arguments as of `coverage`.
    """
    chosen = _chosen(ds, member)
    ax = axes_or_new(ax, (4.6, 2.8))
    _uniform_band(ax, ds)
    for i, name in enumerate(chosen):
        one = ds.sel(member=name)
        text = f"{name}  {_p_text(one['tarp_p_value'])}"
        ax.plot(ds["level"], one["tarp"] - ds["level"], color=CYCLE[i % len(CYCLE)], label=text)
    ax.set(xlim=(0, 1), xlabel="credibility level", ylabel="TARP coverage − level")
    legend_with_room(ax)
    return ax


def local_coverage(
    local: xr.Dataset, member: str | int | None = None, *, ax: Axes | None = None, name: str | None = None
) -> Axes:
    """Coverage at a few levels against a scalar, with the 95% interval of each bin.

    Arguments:
        local: from `equipoise.diagnostics.local_coverage`.
        member: which member; None for the last, the mixture.
        ax: where; None for a new figure.
        name: of the scalar, for the x-axis; None for what `local` calls it.
    """
    one = local.sel(member=_chosen(local, member)[0]) if member is not None else local.isel(member=-1)
    ax = axes_or_new(ax, (4.4, 3.0))
    x = one["value"].values
    offset = 0.012 * (x[-1] - x[0] if len(x) > 1 else 1.0)
    for i, level in enumerate(one["level"].values):
        colour = CYCLE[i % len(CYCLE)]
        at = one.sel(level=level)
        shift = (i - (one.sizes["level"] - 1) / 2) * offset
        error = np.stack([at["coverage"] - at["coverage_lower"], at["coverage_upper"] - at["coverage"]])
        ax.axhline(level, color=colour, lw=0.8, ls=(0, (4, 3)), zorder=1)
        ax.errorbar(x + shift, at["coverage"], error, color=colour, marker="o", ms=3.5, lw=1.2, elinewidth=0.9)
        ax.annotate(
            f"{level:g}", (1.01, level), xycoords=("axes fraction", "data"), color=colour, va="center", fontsize="small"
        )
    low = max(0.0, float(min(one["coverage_lower"].min(), one["level"].min())) - 0.05)
    ax.set(xlabel=name or local.attrs.get("value", "value"), ylabel="coverage", ylim=(low, 1.03))
    return ax


def _uniform_band(ax: Axes, ds: xr.Dataset) -> None:
    level = ds["level"]
    low, high = ds["calibration_lower"] - level, ds["calibration_upper"] - level
    text = None if "95% band" in ax.get_legend_handles_labels()[1] else "95% band"
    ax.fill_between(level, low, high, color=RULE, alpha=0.8, lw=0, label=text, zorder=0)
    ax.axhline(0, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=1)


def _p_text(value: xr.DataArray) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {float(value):.2g}"
