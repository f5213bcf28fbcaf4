"""Experiments: figures of `results.nc`, with the dimensions task, method, budget, run and level."""

from __future__ import annotations

__all__ = ["balancing_error", "coverage_grid", "nominal_log_prob", "plane"]

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from numpy.typing import NDArray

from .style import CYCLE, GREY, INK, MARKERS, VERDICTS, axes_or_new, budget_text, known, legend, quiet_spines


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
    known("task", tasks, [str(t) for t in results["task"].values])
    known("method", methods, [str(m) for m in results["method"].values])
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
            quiet_spines(ax)
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
            handles, [budget_text(b) for b in budgets], title="simulations", loc="outside right center", frameon=False
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
    maximum. Where no exact posterior is known, the nominal log posterior takes the place of the information kept: to
    the right is sharper all the same, and only the prior has a place on it.

    Arguments:
        results: with `coverage_auc` and `information_kept` (or `nominal_log_prob`), over any of task, method, budget
            and run (or member).
        ax: where; None for a new figure.
        colour: the dimension that colours tell apart; budgets tell by size, tasks by marker.
        labels: what to write in the legend.
    """
    ax, labels = axes_or_new(ax, (4.6, 3.4)), labels or {}
    dims = [d for d in results["coverage_auc"].dims if d != "run"]
    area, kept, text, landmarks = results["coverage_auc"], *_sharpness(results)
    if "run" not in area.dims:
        area, kept = area.expand_dims("run"), kept.expand_dims("run")
    budgets = list(results["budget"].values) if "budget" in dims else []
    tasks = list(results["task"].values) if "task" in dims else []
    groups = list(results[colour].values) if colour in dims else list(results[dims[0]].values) if dims else [None]
    key = colour if colour in dims else dims[0] if dims else None
    ax.axhline(0, color=INK, lw=0.8, ls=(0, (4, 3)), zorder=1)
    ax.axhspan(-1, 0, color=VERDICTS["overconfident"], alpha=0.06, lw=0, zorder=0)
    for name, x in landmarks.items():
        ax.plot(x, 0, marker="+", ms=9, mew=1.4, color=INK, zorder=4)
        ax.annotate(
            name, (x, 0), xytext=(0, -12), textcoords="offset points", ha="center", color=GREY, fontsize="small"
        )
    stacked_area, stacked_kept = area.transpose("run", *dims), kept.transpose("run", *dims)
    for index in np.ndindex(*[results.sizes[d] for d in dims]):
        at = dict(zip(dims, index, strict=True))
        a, k = stacked_area.isel(at).values, stacked_kept.isel(at).values
        fine = np.isfinite(a) & np.isfinite(k)
        if not fine.any():
            continue
        a, k = a[fine], k[fine]
        look = _mark(index[dims.index(key)] if key else 0)
        size = 4 + 5 * (index[dims.index("budget")] / max(len(budgets) - 1, 1)) if budgets else 6
        marker = MARKERS[index[dims.index("task")] % len(MARKERS)] if len(tasks) > 1 else "o"
        middle = np.median(k), np.median(a)
        xerr = [[middle[0] - k.min()], [k.max() - middle[0]]]
        yerr = [[middle[1] - a.min()], [a.max() - middle[1]]]
        ax.errorbar(
            *middle,
            xerr=xerr,
            yerr=yerr,
            marker=marker,
            ms=size,
            elinewidth=0.7,
            zorder=3,
            **look,
        )
    low, high = float(area.min()), float(area.max())
    margin = 0.12 * max(high - low, 0.1)
    if not bool(np.isfinite(kept).any()):
        ax.text(0.5, 0.5, "how sharp they are is not known", transform=ax.transAxes, ha="center", color=GREY)
    ax.set(xlabel=text, ylabel="coverage AUC", ylim=(min(low, 0) - margin, max(high, 0) + margin))
    handles = [plt.Line2D([], [], marker="o", ls="", **_mark(i)) for i in range(len(groups))]
    names = [labels.get(str(g), str(g)) for g in groups]
    if len(tasks) > 1 and key != "task":
        handles += [plt.Line2D([], [], color=GREY, marker=MARKERS[i % len(MARKERS)], ls="") for i in range(len(tasks))]
        names += [labels.get(str(t), str(t)) for t in tasks]
    if len(budgets) > 1:
        handles += [plt.Line2D([], [], color=GREY, marker="o", ls="", ms=4 + 5 * s) for s in (0, 1)]
        names += [f"{budget_text(budgets[0])} simulations", f"{budget_text(budgets[-1])} simulations"]
    ax.legend(handles, names, frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def _sharpness(results: xr.Dataset) -> tuple[xr.DataArray, str, dict[str, float]]:
    """What lies to the right in the plane, its name, and where prior and exact posterior are on it."""
    kept = results.get("information_kept")
    if kept is not None and bool(np.isfinite(kept).any()):
        return kept, "information kept", {"prior": 0.0, "exact": 1.0}
    prior = results["prior_log_prob"].values if "prior_log_prob" in results else np.array(np.nan)
    # Tasks have priors of their own: one landmark is right for one task.
    known_prior = np.unique(prior[np.isfinite(prior)])
    landmarks = {"prior": float(known_prior[0])} if len(known_prior) == 1 else {}
    return results["nominal_log_prob"], "nominal log posterior (nats)", landmarks


def _mark(i: int) -> dict[str, Any]:
    """The i-th kind of mark: filled while colours last, then hollow."""
    shade = CYCLE[i % len(CYCLE)]
    if i < len(CYCLE):
        return {"color": shade, "mfc": shade, "mec": "white", "mew": 0.5}
    return {"color": shade, "mfc": "white", "mec": shade, "mew": 1.2}


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
        quiet_spines(ax)
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
        legend(drawn[-1])
    return drawn
