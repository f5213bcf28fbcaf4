"""Figures of posteriors and diagnostics: results in, matplotlib Axes out.

Two kinds of results are drawn. What `equipoise.diagnose` returns, for one posterior: `coverage`, `sbc`, `tarp`,
`local_coverage`. And the `results.nc` of an experiment, with the dimensions task, method, budget, run (and level):
`coverage_grid`, `nominal_log_prob`, `balancing_error`, `plane`. Posteriors themselves are drawn from arrays:
`posterior_1d`, `posterior_2d`, `corner`.

Every function takes `ax` (or makes a figure) and returns the Axes it drew on. Torch is not needed.
"""

from __future__ import annotations

__all__ = [
    "balancing_error",
    "corner",
    "coverage",
    "coverage_grid",
    "local_coverage",
    "nominal_log_prob",
    "plane",
    "posterior_1d",
    "posterior_2d",
    "sbc",
    "tarp",
]

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter, gaussian_filter1d

Array = NDArray[np.float64]

INK, GREY, LIGHT = "#1a1d21", "#6b7178", "#d9dde1"
#: Okabe and Ito's colours, which colour-blind readers tell apart; the yellow is left out, it vanishes on white.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
#: Green for certified, red for overconfident, grey for not known yet.
VERDICTS = {"overconfident": "#C4452B", "certified conservative": "#00876C", "inconclusive": GREY}
MARKERS = "osD^vP*X"


# --- one posterior
# ----------------------------------------------------------------------------------------------------


def coverage(
    ds: xr.Dataset,
    member: str | Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    difference: bool = False,
    pointwise: bool = False,
    labels: Sequence[str] | None = None,
) -> Axes:
    """Expected coverage against level, with its simultaneous band.

    Arguments:
        ds: from `diagnose`.
        member: which to draw; None for the mixture in front of its members.
        ax: where; None for a new figure.
        difference: draw coverage minus level, which shows small departures.
        pointwise: draw the interval of each level as well.
        labels: names for the legend, one a member drawn.
    """
    ax = _axes(ax, (3.6, 3.4))
    level = ds["level"].values
    base = level if difference else 0.0
    chosen = ["mixture"] if member is None else [member] if isinstance(member, str) else list(member)
    if member is None and ds.sizes["member"] > 2:
        for i, name in enumerate(m for m in ds["member"].values if m != "mixture"):
            curve = ds["coverage"].sel(member=name) - base
            ax.plot(level, curve, color=GREY, lw=0.7, alpha=0.7, zorder=2, label="members" if i == 0 else None)
    ax.plot(level, level - base, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    for i, name in enumerate(chosen):
        one = ds.sel(member=name)
        verdict = str(one["verdict"].values)
        colour = VERDICTS[verdict] if len(chosen) == 1 else CYCLE[i % len(CYCLE)]
        ax.fill_between(level, one["coverage_low"] - base, one["coverage_high"] - base, color=colour, alpha=0.2, lw=0)
        if pointwise:
            low, high = one["coverage_low_pointwise"] - base, one["coverage_high_pointwise"] - base
            ax.fill_between(level, low, high, color=colour, alpha=0.25, lw=0)
        text = (
            labels[i] if labels is not None else str(name) if len(chosen) > 1 or ds.sizes["member"] > 2 else "posterior"
        )
        ax.plot(level, one["coverage"] - base, color=colour, lw=1.8, zorder=3, label=f"{text}: {verdict}")
    ax.set(xlim=(0, 1), xlabel="credibility level", ylabel="coverage − level" if difference else "expected coverage")
    if not difference:
        ax.set(ylim=(0, 1), aspect="equal")
        ax.text(0.97, 0.05, "overconfident", color=GREY, ha="right", fontsize="small", style="italic")
    _legend(ax, loc="upper left" if not difference else "best")
    return ax


def sbc(ds: xr.Dataset, member: str = "mixture", *, ax: Axes | None = None, names: Sequence[str] | None = None) -> Axes:
    """SBC: the share of ranks up to each level, minus the level, a line a parameter, and the 95% band of uniform ranks.

    Arguments:
        ds: from `diagnose`.
        member: which member.
        ax: where; None for a new figure.
        names: of the parameters.
    """
    ax = _axes(ax, (4.2, 2.8))
    names = names or [f"θ$_{{{int(j) + 1}}}$" for j in ds["parameter"].values]
    _uniform_band(ax, ds)
    for j, name in enumerate(names):
        one = ds.sel(member=member).isel(parameter=j)
        p = float(one["sbc_p_value"])
        ax.plot(ds["level"], one["sbc"] - ds["level"], color=CYCLE[j % len(CYCLE)], label=f"{name}  {_p(p)}")
    ax.set(xlim=(0, 1), xlabel="SBC rank", ylabel="ECDF − rank")
    _legend(ax, ncols=1 if len(names) <= 3 else 2)
    return ax


def tarp(ds: xr.Dataset, member: str | Sequence[str] = "mixture", *, ax: Axes | None = None) -> Axes:
    """TARP's expected coverage minus the level, with the 95% band of a correct posterior.

    Arguments:
        ds: from `diagnose`.
        member: which member, or several.
        ax: where; None for a new figure.
    """
    ax = _axes(ax, (4.2, 2.8))
    _uniform_band(ax, ds)
    for i, name in enumerate([member] if isinstance(member, str) else member):
        one = ds.sel(member=name)
        text = f"{name}  {_p(float(one['tarp_p_value']))}"
        ax.plot(ds["level"], one["tarp"] - ds["level"], color=CYCLE[i % len(CYCLE)], label=text)
    ax.set(xlim=(0, 1), xlabel="credibility level", ylabel="TARP coverage − level")
    _legend(ax)
    return ax


def local_coverage(local: xr.Dataset, member: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Coverage at a few levels against a scalar, with the 95% interval of each bin.

    Arguments:
        local: from `equipoise.diagnostics.local_coverage`.
        member: which member; None for the last, the mixture.
        ax: where; None for a new figure.
    """
    ax = _axes(ax, (4.4, 3.0))
    one = local.sel(member=member) if member is not None else local.isel(member=-1)
    x = one["value"].values
    offset = 0.012 * (x[-1] - x[0] if len(x) > 1 else 1.0)
    for i, level in enumerate(one["level"].values):
        colour = CYCLE[i % len(CYCLE)]
        at = one.sel(level=level)
        shift = (i - (one.sizes["level"] - 1) / 2) * offset
        error = np.stack([at["coverage"] - at["coverage_low"], at["coverage_high"] - at["coverage"]])
        ax.axhline(level, color=colour, lw=0.8, ls=(0, (4, 3)), zorder=1)
        ax.errorbar(x + shift, at["coverage"], error, color=colour, marker="o", ms=3.5, lw=1.2, elinewidth=0.9)
        ax.annotate(
            f"{level:g}", (1.01, level), xycoords=("axes fraction", "data"), color=colour, va="center", fontsize="small"
        )
    low = max(0.0, float(min(one["coverage_low"].min(), one["level"].min())) - 0.05)
    ax.set(xlabel=local.attrs.get("value", "value"), ylabel="coverage", ylim=(low, 1.03))
    return ax


# --- experiments
# ------------------------------------------------------------------------------------------------------


def coverage_grid(
    results: xr.Dataset,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    labels: dict[str, str] | None = None,
) -> NDArray[Any]:
    """The paper's figure: a row for each method, a column for each task, a line for each budget, the median over runs.

    Arguments:
        results: with `coverage` over task, method, budget, run and level.
        tasks: which columns; None for all.
        methods: which rows; None for all.
        labels: what to write for tasks and methods.

    Returns:
        The Axes, with shape `(methods, tasks)`.
    """
    labels = labels or {}
    tasks = list(tasks if tasks is not None else map(str, results["task"].values))
    methods = list(methods if methods is not None else map(str, results["method"].values))
    figure, axes = plt.subplots(
        len(methods),
        len(tasks),
        figsize=(1.25 * len(tasks) + 1.3, 1.25 * len(methods) + 0.5),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    budgets = results["budget"].values
    colours = plt.get_cmap("viridis_r")(np.linspace(0.08, 1, len(budgets)))
    level = results["level"].values
    for row, method in zip(axes, methods, strict=True):
        for ax, task in zip(row, tasks, strict=True):
            _spines(ax)
            ax.plot([0, 1], [0, 1], color=INK, lw=0.7, ls=(0, (4, 3)), zorder=1)
            cell = results["coverage"].sel({"task": task, "method": method})
            for colour, budget in zip(colours, budgets, strict=True):
                runs = cell.sel(budget=budget).dropna("run", how="any")
                if runs.sizes["run"]:
                    ax.plot(level, runs.median("run"), color=colour, lw=1.1)
            if not bool(cell.notnull().any()):
                ax.text(0.96, 0.06, "no result", color=GREY, ha="right", fontsize="x-small", style="italic")
            ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            ax.set_xticklabels(["0", ".5", "1"])
            ax.set_yticklabels(["0", ".5", "1"])
    for ax, task in zip(axes[0], tasks, strict=True):
        ax.set_title(labels.get(task, task), fontsize="medium")
    for ax, method in zip(axes[:, 0], methods, strict=True):
        ax.set_ylabel(labels.get(method, method))
    figure.supxlabel("credibility level", fontsize="medium")
    figure.supylabel("expected coverage, median of runs", fontsize="medium")
    if len(budgets) > 1:
        handles = [plt.Line2D([], [], color=c, lw=1.5) for c in colours]
        figure.legend(
            handles, [_budget(b) for b in budgets], title="simulations", loc="outside right center", frameon=False
        )
    return axes


def nominal_log_prob(results: xr.Dataset, *, axes: Any = None, labels: dict[str, str] | None = None) -> NDArray[Any]:
    """Nominal log posterior against budget: a panel a task, a line a method, the median of runs in their range.

    Where the results know them, the exact posterior (`expected_log_prob` or `exact_log_prob`) and the prior
    (`prior_log_prob`) are drawn as the ceiling and the floor.

    Arguments:
        results: with `nominal_log_prob` over task, method, budget and run.
        axes: one Axes a task; None for a new figure.
        labels: what to write for tasks and methods.
    """
    drawn = _against_budget(results, "nominal_log_prob", "nominal log posterior", axes, labels)
    for ax, task in zip(drawn, results["task"].values, strict=True):
        for name, text in (("expected_log_prob", "exact"), ("exact_log_prob", "exact"), ("prior_log_prob", "prior")):
            if name in results and "task" in results[name].dims:
                others = [d for d in results[name].dims if d != "task"]
                value = float(results[name].sel(task=task).mean(others))
                if np.isfinite(value):
                    ax.axhline(value, color=GREY, lw=0.8, ls=(0, (1, 2)), zorder=0)
                    ax.annotate(
                        text,
                        (0.99, value),
                        xycoords=("axes fraction", "data"),
                        ha="right",
                        va="bottom",
                        color=GREY,
                        fontsize="small",
                    )
    return drawn


def balancing_error(results: xr.Dataset, *, axes: Any = None, labels: dict[str, str] | None = None) -> NDArray[Any]:
    """Balancing error against budget: a panel a task, a line a method, the median of runs in their range.

    Arguments:
        results: with `balancing_error` over task, method, budget and run.
        axes: one Axes a task; None for a new figure.
        labels: what to write for tasks and methods.
    """
    drawn = _against_budget(results, "balancing_error", "balancing error", axes, labels)
    for ax in drawn:
        ax.set_yscale("log")
    return drawn


def plane(
    results: xr.Dataset, *, ax: Axes | None = None, colour: str = "method", labels: dict[str, str] | None = None
) -> Axes:
    """Conservativeness against information: coverage AUC over information kept, a point a cell.

    To the right is sharper, up is more conservative; below the line the posterior is overconfident on average. The
    exact posterior is at (1, 0), the prior at (0, 0). Runs are joined into their median, with bars from minimum to
    maximum.

    Arguments:
        results: with `coverage_auc` and `information_kept`, over any of task, method, budget and run (or member).
        ax: where; None for a new figure.
        colour: the dimension that colours tell apart; budgets tell by size, tasks by marker.
        labels: what to write in the legend.
    """
    ax, labels = _axes(ax, (4.6, 3.4)), labels or {}
    dims = [d for d in results["coverage_auc"].dims if d != "run"]
    area, kept = results["coverage_auc"], results["information_kept"]
    if "run" not in area.dims:
        area, kept = area.expand_dims("run"), kept.expand_dims("run")
    budgets = list(results["budget"].values) if "budget" in dims else []
    tasks = list(results["task"].values) if "task" in dims else []
    groups = list(results[colour].values) if colour in dims else list(results[dims[0]].values) if dims else [None]
    key = colour if colour in dims else dims[0] if dims else None
    ax.axhline(0, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    ax.axhspan(-1, 0, color=VERDICTS["overconfident"], alpha=0.06, lw=0, zorder=0)
    for x, text in ((0, "prior"), (1, "exact")):
        ax.plot(x, 0, marker="+", ms=9, mew=1.4, color=INK, zorder=4)
        ax.annotate(
            text, (x, 0), xytext=(0, -12), textcoords="offset points", ha="center", color=GREY, fontsize="small"
        )
    stacked_area, stacked_kept = area.transpose("run", *dims), kept.transpose("run", *dims)
    for index in np.ndindex(*[results.sizes[d] for d in dims]):
        at = dict(zip(dims, index, strict=True))
        a, k = stacked_area.isel(at).values, stacked_kept.isel(at).values
        fine = np.isfinite(a) & np.isfinite(k)
        if not fine.any():
            continue
        a, k = a[fine], k[fine]
        shade = CYCLE[(index[dims.index(key)] if key else 0) % len(CYCLE)]
        size = 4 + 5 * (index[dims.index("budget")] / max(len(budgets) - 1, 1)) if budgets else 6
        marker = MARKERS[index[dims.index("task")] % len(MARKERS)] if len(tasks) > 1 else "o"
        middle = np.median(k), np.median(a)
        xerr = [[middle[0] - k.min()], [k.max() - middle[0]]]
        yerr = [[middle[1] - a.min()], [a.max() - middle[1]]]
        ax.errorbar(
            *middle,
            xerr=xerr,
            yerr=yerr,
            color=shade,
            marker=marker,
            ms=size,
            mec="white",
            mew=0.5,
            elinewidth=0.7,
            zorder=3,
        )
    low, high = float(area.min()), float(area.max())
    margin = 0.12 * max(high - low, 0.1)
    ax.set(xlabel="information kept", ylabel="coverage AUC", ylim=(min(low, 0) - margin, max(high, 0) + margin))
    handles = [plt.Line2D([], [], color=CYCLE[i % len(CYCLE)], marker="o", ls="") for i in range(len(groups))]
    names = [labels.get(str(g), str(g)) for g in groups]
    if len(tasks) > 1 and key != "task":
        handles += [plt.Line2D([], [], color=GREY, marker=MARKERS[i % len(MARKERS)], ls="") for i in range(len(tasks))]
        names += [labels.get(str(t), str(t)) for t in tasks]
    if len(budgets) > 1:
        handles += [plt.Line2D([], [], color=GREY, marker="o", ls="", ms=4 + 5 * s) for s in (0, 1)]
        names += [f"{_budget(budgets[0])} simulations", f"{_budget(budgets[-1])} simulations"]
    ax.legend(handles, names, frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


# --- posteriors
# -------------------------------------------------------------------------------------------------------


def posterior_1d(
    x: ArrayLike,
    density: ArrayLike | None = None,
    *,
    truth: float | None = None,
    levels: Sequence[float] = (0.5, 0.95),
    name: str = "θ",
    ax: Axes | None = None,
    colour: str = CYCLE[0],
    label: str | None = None,
) -> Axes:
    """A posterior of one parameter, with its highest-density regions shaded.

    Arguments:
        x: a grid with shape `(n,)`; or, without `density`, samples with shape `(n,)`.
        density: at the grid, any scale.
        truth: the true parameter.
        levels: of the regions.
        name: of the parameter.
        ax: where; None for a new figure.
        colour: of the curve.
        label: for the legend.
    """
    ax = _axes(ax, (3.8, 2.6))
    x, density = _smoothed(x) if density is None else (np.asarray(x, float), np.asarray(density, float))
    density = density / np.trapezoid(density, x)
    for threshold in _hpd_thresholds(density, levels):
        ax.fill_between(x, density, where=density >= threshold, color=colour, alpha=0.22, lw=0)
    ax.plot(x, density, color=colour, lw=1.6, label=label)
    if truth is not None:
        ax.axvline(truth, color=INK, lw=1.0, ls=(0, (4, 2)))
    ax.set(xlabel=name, ylabel="posterior density", xlim=(x.min(), x.max()), ylim=(0, None))
    _legend(ax)
    return ax


def posterior_2d(
    x: ArrayLike,
    y: ArrayLike,
    density: ArrayLike | None = None,
    *,
    truth: Sequence[float] | None = None,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
    names: Sequence[str] = ("θ$_1$", "θ$_2$"),
    ax: Axes | None = None,
    colour: str = CYCLE[0],
) -> Axes:
    """A posterior of two parameters: its density, the contours of its highest-density regions, and the true θ.

    Arguments:
        x, y: the axes of a grid with shapes `(n,)` and `(m,)`; or, without `density`, samples with shape `(n,)` each.
        density: on the grid, with shape `(n, m)`, any scale.
        truth: the true parameters.
        levels: of the contours.
        names: of the parameters.
        ax: where; None for a new figure.
        colour: of density and contours.
    """
    ax = _axes(ax, (3.4, 3.2))
    if density is None:
        x, y, density = _smoothed_2d(np.asarray(x, float), np.asarray(y, float))
    x, y, density = (np.asarray(v, float) for v in (x, y, density))
    shades = LinearSegmentedColormap.from_list("density", [to_rgb("#ffffff"), to_rgb(colour), _darker(colour)])
    ax.pcolormesh(x, y, density.T, cmap=shades, shading="auto", rasterized=True)
    # Two levels may share a threshold on a coarse grid; contours need increasing ones.
    thresholds = np.unique(_hpd_thresholds(density, levels))
    thresholds = thresholds[(thresholds > density.min()) & (thresholds < density.max())]
    if len(thresholds):
        widths = np.linspace(0.6, 1.2, len(thresholds))
        ax.contour(x, y, density.T, thresholds, colors=[_darker(colour)], linewidths=widths)
    if truth is not None:
        _star(ax, truth[0], truth[1])
    ax.set(xlabel=names[0], ylabel=names[1], xlim=(x.min(), x.max()), ylim=(y.min(), y.max()))
    for side in ("top", "right"):
        ax.spines[side].set_visible(True)
    return ax


def corner(
    samples: ArrayLike,
    *,
    truth: Sequence[float] | None = None,
    names: Sequence[str] | None = None,
    limits: Sequence[tuple[float, float]] | None = None,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
    colour: str = CYCLE[0],
) -> NDArray[Any]:
    """Every pair of parameters, with the marginals on the diagonal.

    Arguments:
        samples: with shape `(n, D)`.
        truth: the true parameters.
        names: of the parameters.
        limits: of each parameter, such as the prior's; None for the range of the samples.
        levels: of the contours.
        colour: of density and contours.

    Returns:
        The Axes, with shape `(D, D)`; those above the diagonal are hidden.
    """
    samples = np.asarray(samples, float)
    if samples.ndim != 2:
        raise ValueError(f"samples should have shape (n, D), got {samples.shape}")
    dim = samples.shape[1]
    names = names or [f"θ$_{{{j + 1}}}$" for j in range(dim)]
    limits = limits or [(samples[:, j].min(), samples[:, j].max()) for j in range(dim)]
    size = 1.5 * dim + 0.6
    _, axes = plt.subplots(dim, dim, figsize=(size, size), squeeze=False, layout="constrained")
    for i in range(dim):
        for j in range(dim):
            ax = axes[i, j]
            if j > i:
                ax.set_visible(False)
                continue
            if i == j:
                at = None if truth is None else truth[i]
                posterior_1d(samples[:, i], truth=at, name=names[i], ax=ax, colour=colour, levels=levels[-1:])
                ax.set(ylabel="", yticks=[])
                ax.spines["left"].set_visible(False)
            else:
                at2 = None if truth is None else (truth[j], truth[i])
                pair = (names[j], names[i])
                posterior_2d(samples[:, j], samples[:, i], truth=at2, names=pair, ax=ax, colour=colour, levels=levels)
                ax.set_ylim(*limits[i])
            ax.set_xlim(*limits[j])
            ax.locator_params(nbins=4)
            if i < dim - 1:
                ax.set(xlabel="", xticklabels=[])
            if 0 < j < i:
                ax.set(ylabel="", yticklabels=[])
    return axes


# --- small things
# -----------------------------------------------------------------------------------------------------


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
    assert ax is not None
    _spines(ax)
    return ax


def _spines(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(GREY)
    ax.tick_params(color=GREY)


def _legend(ax: Axes, **options: Any) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="small", handlelength=1.5, facecolor="white", edgecolor="none", framealpha=0.75, **options)


def _uniform_band(ax: Axes, ds: xr.Dataset) -> None:
    level = ds["level"]
    low, high = ds["calibration_low"] - level, ds["calibration_high"] - level
    ax.fill_between(level, low, high, color=LIGHT, alpha=0.8, lw=0, label="95% band", zorder=0)
    ax.axhline(0, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=1)


def _against_budget(
    results: xr.Dataset, name: str, text: str, axes: Any, labels: dict[str, str] | None
) -> NDArray[Any]:
    """A panel a task: median over runs of a variable, a line a method, shaded from minimum to maximum."""
    labels = labels or {}
    tasks, methods = results["task"].values, results["method"].values
    figure = None
    if axes is None:
        figure, axes = plt.subplots(
            1, len(tasks), figsize=(2.3 * len(tasks) + 1.2, 2.5), squeeze=False, sharex=True, layout="constrained"
        )
    drawn = np.asarray(axes, dtype=object).ravel()
    if len(drawn) != len(tasks):
        raise ValueError(f"the results have {len(tasks)} task(s), but {len(drawn)} Axes were given")
    budget = results["budget"].values
    for ax, task in zip(drawn, tasks, strict=True):
        _spines(ax)
        for i, method in enumerate(methods):
            cell = results[name].sel({"task": task, "method": method})
            colour = CYCLE[i % len(CYCLE)]
            dashes = "-" if i < len(CYCLE) else (0, (3, 1.5))
            label = labels.get(str(method), str(method))
            ax.fill_between(budget, cell.min("run"), cell.max("run"), color=colour, alpha=0.15, lw=0)
            ax.plot(budget, cell.median("run"), color=colour, marker="o", ms=3, lw=1.4, ls=dashes, label=label)
        ax.set_xscale("log", base=2)
        ax.set_xticks(budget[:: max(1, (len(budget) + 3) // 4)])
        ax.set_title(labels.get(str(task), str(task)), fontsize="medium")
        ax.set_xlabel("simulations")
    drawn[0].set_ylabel(text)
    if figure is not None:
        figure.legend(
            *drawn[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize="small"
        )
    else:
        _legend(drawn[-1])
    return drawn


def _hpd_thresholds(density: Array, levels: Sequence[float]) -> Array:
    """The densities above which a grid holds each level of its mass."""
    ordered = np.sort(density, axis=None)[::-1]
    mass = np.cumsum(ordered) / ordered.sum()
    return ordered[np.minimum(np.searchsorted(mass, list(levels)), len(ordered) - 1)]


def _smoothed(samples: ArrayLike, bins: int = 200) -> tuple[Array, Array]:
    """A grid and a smoothed histogram of samples, with Silverman's bandwidth."""
    samples = np.asarray(samples, float)
    counts, edges = np.histogram(samples, bins=bins)
    spread = min(samples.std(), np.subtract(*np.quantile(samples, [0.75, 0.25])) / 1.34) or samples.std() or 1.0
    width = 0.9 * spread * len(samples) ** -0.2 / (edges[1] - edges[0])
    return (edges[:-1] + edges[1:]) / 2, gaussian_filter1d(counts.astype(float), max(width, 0.5), mode="reflect")


def _smoothed_2d(x: Array, y: Array, bins: int = 120) -> tuple[Array, Array, Array]:
    """Axes and a smoothed histogram of pairs of samples; the bandwidth is half of Silverman's, not to close a moon."""
    counts, ex, ey = np.histogram2d(x, y, bins=bins)
    factor = 0.5 * len(x) ** (-1 / 6)
    width = [max(factor * v.std() / (e[1] - e[0]), 0.8) for v, e in ((x, ex), (y, ey))]
    return (ex[:-1] + ex[1:]) / 2, (ey[:-1] + ey[1:]) / 2, gaussian_filter(counts, width, mode="constant")


def _star(ax: Axes, x: float, y: float) -> None:
    ax.plot(x, y, marker="*", ms=10, color=INK, mec="white", mew=0.8, ls="", zorder=5)


def _darker(colour: str) -> tuple[float, float, float]:
    r, g, b = to_rgb(colour)
    return 0.45 * r, 0.45 * g, 0.45 * b


def _budget(budget: Any) -> str:
    value = int(budget)
    return f"2$^{{{value.bit_length() - 1}}}$" if value & (value - 1) == 0 and value > 1 else f"{value:,}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
