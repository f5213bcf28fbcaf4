"""Figures of what `equipoise.diagnose` returns for one posterior."""

from __future__ import annotations

__all__ = ["coverage", "local_coverage", "sbc", "summary", "tarp"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


def summary(
    ds: xr.Dataset, *, names: Sequence[str] | None = None, title: str | None = None, figure: Figure | None = None
) -> np.ndarray:
    """One figure for a talk: the verdict, the coverage curve with its band, and the intervals that people report.

    On the right, a point is how often the central interval of a parameter, or the joint region, holds the truth; the
    bar is two standard errors to either side, and the vertical line is the level that is promised.

    Arguments:
        ds: from `diagnose`.
        names: of the parameters; None for those of `ds`, or θ₁, θ₂, ….
        title: None for the verdict in words.
        figure: where; None for a new one.

    Returns:
        The two Axes, with shape `(2,)`.
    """
    chosen = _chosen(ds, None)[-1]
    one = ds.sel(member=chosen)
    verdict = str(one["verdict"].values)
    rows = [*_parameter_names(ds, names), "joint region"]
    height = max(3.9, 1.6 + 0.34 * len(rows))
    if figure is None:
        import matplotlib.pyplot as plt

        figure = plt.figure(figsize=(9.2, height), layout="constrained")
    axes: np.ndarray = figure.subplots(1, 2, width_ratios=(1, 1.25))
    _curve(axes[0], one, verdict)
    _intervals(axes[1], one, rows)
    gain = float(one["gain"])
    told = title or verdict[:1].upper() + verdict[1:]
    figure.suptitle(told, color=VERDICTS[verdict].ink, fontsize=15, fontweight="bold")
    words = f"{ds.attrs['pairs']:,} simulated pairs"
    if np.isfinite(gain):
        words += f"; {gain:.2f} nats of information over the prior"
    figure.supxlabel(words, fontsize=9.5, color=GREY)
    return axes


def _curve(ax: Axes, one: xr.Dataset, verdict: str) -> None:
    """Coverage against level with its simultaneous band."""
    level, colour = one["level"].values, VERDICTS[verdict].ink
    ax.plot(level, level, color=INK, lw=1.0, ls=(0, (4, 3)), zorder=1)
    ax.fill_between(level, one["coverage_lower"], one["coverage_upper"], color=colour, alpha=0.2, lw=0)
    ax.plot(level, one["coverage"], color=colour, lw=2.2, zorder=3)
    ax.text(0.05, 0.93, "conservative", color=GREY, fontsize=10, style="italic")
    ax.text(0.95, 0.05, "overconfident", color=GREY, ha="right", fontsize=10, style="italic")
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="credibility level", ylabel="expected coverage", box_aspect=1)
    ax.spines[["top", "right"]].set_visible(False)


def _intervals(ax: Axes, one: xr.Dataset, rows: Sequence[str]) -> None:
    """Coverage of intervals and joint regions at the report levels, one row each."""
    place = np.arange(len(rows))[::-1]
    for i, level in enumerate(one["report_level"].values):
        at, colour = one.sel(report_level=level), CYCLE[i % len(CYCLE)]
        share = np.append(at["interval_coverage"], at["region_coverage"])
        error = np.append(at["interval_coverage_se"], at["region_coverage_se"])
        ax.axvline(level, color=colour, lw=1.0, ls=(0, (4, 3)), zorder=1)
        ax.errorbar(share, place, xerr=2 * error, color=colour, fmt="o", ms=5, lw=1.6, capsize=0, zorder=3)
        ax.annotate(
            f"{100 * level:g}%",
            (level, 1.01),
            xycoords=("data", "axes fraction"),
            color=colour,
            ha="center",
            va="bottom",
            fontsize=10,
        )
    ax.axhspan(-0.5, 0.5, color=RULE, alpha=0.45, lw=0, zorder=0)
    ax.set_yticks(place, rows)
    ax.set(ylim=(-0.5, len(rows) - 0.5), xlabel="coverage of central intervals, and of the joint region")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _parameter_names(ds: xr.Dataset, names: Sequence[str] | None) -> list[str]:
    """The names given, or those of the dataset, or θ₁, θ₂, … where it numbers its parameters."""
    one_each("names", names, ds.sizes["parameter"], "parameter")
    values = ds["parameter"].values
    numbered = np.issubdtype(values.dtype, np.integer)
    return list(names or [f"θ$_{{{int(v) + 1}}}$" if numbered else str(v) for v in values])


def sbc(
    ds: xr.Dataset, member: str | int | None = None, *, ax: Axes | None = None, names: Sequence[str] | None = None
) -> Axes:
    """SBC: the share of ranks up to each level minus the level, one line per parameter, and the band of uniform ranks.

    Arguments as of `coverage`, with one member, and `names` of the parameters.
    """
    chosen = _chosen(ds, member)[0]
    names = _parameter_names(ds, names)
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
