"""Figures of docs/conservative.md: the plane of the methods, and the idea of tempering. No torch."""

from __future__ import annotations

__all__ = ["frontier", "tempered_gaussian", "tempering"]

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator
from scipy import stats

from conservative import PLANE, WAYS, fits_of
from equipoise.plots.settings import CERTIFIED, OVERCONFIDENT
from equipoise.plots.style import DASHED, GREY, HUES, INK, PAPER, VERDICTS
from reading import HERE, TASKS, opened

#: s and c of the Gaussian example.
SPREAD, TIGHT = 0.3, 0.55
#: Words, colour and marker of each of `WAYS`.
LOOKS = (
    ("the same, not tempered", GREY, "o"),
    ("eq.fit, the default", HUES[0], "o"),
    ("BNPE Init × 5", HUES[2], "D"),
    ("BRNPE × 5", HUES[3], "s"),
    ("rejection ABC", HUES[1], "^"),
)


def frontier(folder: Path = HERE) -> Figure:
    """Coverage AUC against information kept, one panel per vector task; arrows follow the temperature.

    The dashed line is NPE in the paper's protocol.
    """
    by_way, paper = fits_of([way[:2] for way in WAYS], folder), opened("paper", folder)
    figure = Figure(figsize=(6.9, 3.1), layout="constrained")
    grid = figure.subplots(1, len(PLANE), sharey=True)
    for ax, task in zip(grid, PLANE, strict=True):
        best = float(paper.ds["expected_log_prob"].sel(task=task) - paper.ds["prior_log_prob"].sel(task=task))
        single = [s for s in paper.each([task], ["npe"], paper.budgets) if 1024 <= s.budget <= 16384]
        middle = [[s.median(name) for s in single] for name in ("information_kept", "coverage_auc")]
        ax.plot(*middle, color=GREY, linewidth=1, linestyle=DASHED, zorder=1)
        places = []
        for k, ((_, colour, marker), fits) in enumerate(zip(LOOKS, by_way, strict=True)):
            mine, order = [f for f in fits if f.problem == task], 6 if k == 1 else 4
            at: dict[int, tuple[float, float]] = {}
            for budget in sorted({f.budget for f in mine}):
                here = [f for f in mine if f.budget == budget]
                at[budget] = float(np.mean([f.nats for f in here])) / best, float(np.mean([f.auc for f in here]))
                bad = any(f.verdict == OVERCONFIDENT for f in here)
                ax.scatter(
                    *at[budget], s=8 * np.log2(budget / 256), marker=marker, facecolor=PAPER if bad else colour,
                    edgecolor=colour, linewidth=1.1, zorder=order,
                )  # fmt: skip
            if k and at:
                ax.plot(*zip(*at.values(), strict=True), color=colour, linewidth=1.8 if k == 1 else 1, zorder=order - 1)
            places.append(at)
        for budget, start in places[0].items():
            arrow = {"arrowstyle": "->", "color": GREY, "linewidth": 0.8, "shrinkA": 4, "shrinkB": 4}
            ax.annotate("", places[1][budget], start, arrowprops=arrow, zorder=2)
        ax.set_title(TASKS[task])
        ax.axhline(0, color=INK, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        for x, words in ((0, "prior"), (1, "exact")):
            ax.plot(x, 0, marker="+", markersize=8, markeredgewidth=1.2, color=INK, zorder=5)
            ax.annotate(words, (x, 0), (0, -20), textcoords="offset points", ha="center", color=GREY, fontsize=7)
        ax.set(xlim=(-0.12, 1.12))
        ax.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
        ax.xaxis.set_major_formatter(FixedFormatter(["0", "0.5", "1"]))
    low, high = grid[0].get_ylim()
    ink = VERDICTS[OVERCONFIDENT].ink
    for ax in grid:
        ax.axhspan(low, 0, color=ink, alpha=0.06, linewidth=0, zorder=0)
    grid[0].set(ylim=(low, high), ylabel="Coverage AUC")
    grid[-1].annotate("overconfident on average", (0.97, 0.03), xycoords="axes fraction", ha="right", color=ink)
    figure.supxlabel("Information kept")
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=5, label=words, linestyle="-" if k else "none")
        for k, (words, colour, marker) in enumerate(LOOKS)
    ]
    handles[0], handles[1] = handles[1], handles[0]
    handles.append(Line2D([], [], color=GREY, linestyle=DASHED, linewidth=1, label="NPE, one network"))
    hollow: dict[str, Any] = {"color": GREY, "marker": "o", "markerfacecolor": PAPER, "linestyle": "none"}
    handles.append(Line2D([], [], **hollow, markersize=5, label="hollow: a run is overconfident"))
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=1.8, columnspacing=1.2)
    return figure


def tempered_gaussian(t: float | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""k_t, Λ_t and V_t of one parameter in closed form.

    The prior is N(0, 1) and the exact posterior N(μ, s²) with μ ~ N(0, 1 - s²). The network says N(μ, (c s)²), c < 1.
    Then q_t = N(k_t μ, 1/Λ_t) with Λ_t = t/(c s)² + 1 - t and k_t = t/((c s)² Λ_t), and θ* - k_t μ has the variance
    V_t = s² + (1 - k_t)² (1 - s²), so that the region of level u covers θ* with probability 2Φ(z_u/√(Λ_t V_t)) - 1.
    """
    variance = (TIGHT * SPREAD) ** 2
    precision = t / variance + 1 - np.asarray(t)
    k = t / (variance * precision)
    return k, precision, SPREAD**2 + (1 - k) ** 2 * (1 - SPREAD**2)


def tempering() -> Figure:
    """Density, coverage and score along the temperature, for `tempered_gaussian`."""
    s, shown = SPREAD, (1.0, 0.8, 0.6, 0.4, 0.2, 0.05, 0.0)
    colours = {t: to_hex(mpl.colormaps["viridis"](0.9 * (1 - t))) for t in shown}
    figure = Figure(figsize=(6.9, 2.75), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    theta, level, mu = np.linspace(-1.6, 2.2, 600), np.linspace(0, 1, 201), 0.7
    truth = mu + 1.6 * s
    for t in shown:
        k, precision, variance = (float(v) for v in tempered_gaussian(t))
        look = {"color": colours[t], "linewidth": 2.0 if t in (0, 1) else 1.2}
        left.plot(theta, stats.norm.pdf(theta, k * mu, precision**-0.5), **look)
        z = stats.norm.ppf((1 + level) / 2)
        middle.plot(level, 2 * stats.norm.cdf(z / np.sqrt(precision * variance)) - 1, label=f"t = {t:g}", **look)
    left.plot(theta, stats.norm.pdf(theta, mu, s), color=INK, linewidth=1.1, linestyle=(0, (2, 1.5)))
    left.axvline(truth, color=INK, linewidth=0.6)
    left.annotate("θ*", (truth, 1), (3, -8), xycoords=("data", "axes fraction"), textcoords="offset points")
    left.annotate("network", (mu - 0.2, 1.9), ha="right", color=colours[1.0])
    left.annotate("prior", (-1.15, 0.3), ha="center", color=GREY)
    left.annotate("exact", (0.3, 0.78), ha="right", color=INK)
    left.set(title="One observation", xlabel="θ", ylabel="Density", ylim=(0, None), xlim=(theta[0], theta[-1]))
    middle.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
    middle.fill_between([0, 1], 0, [0, 1], color=VERDICTS[OVERCONFIDENT].ink, alpha=0.06, linewidth=0)
    middle.annotate("overconfident", (0.97, 0.04), ha="right", color=VERDICTS[OVERCONFIDENT].ink)
    middle.annotate("conservative", (0.03, 0.93), color=VERDICTS[CERTIFIED].ink)
    middle.set(
        title="All observations", xlabel="Credibility level", ylabel="Expected coverage", xlim=(0, 1), ylim=(0, 1)
    )
    t = np.linspace(0, 1, 401)
    k, precision, variance = tempered_gaussian(t)
    nats = 0.5 * (np.log(precision) - precision * variance + 1)
    right.plot(t, nats, color=GREY, linewidth=1.2)
    for one in shown:
        at = float(np.interp(one, t, nats))
        right.plot(one, at, marker="o", markersize=5, color=colours[one], zorder=3)
    right.axhline(-np.log(s), color=INK, linewidth=0.9, linestyle=(0, (2, 1.5)))
    right.annotate("exact", (1.0, -np.log(s)), (0, 3), textcoords="offset points", va="bottom")
    right.set(title="What is left", xlabel="Temperature t", ylabel="Nats over the prior", xlim=(-0.03, 1.03))
    right.set_ylim(-0.05, 1.36)
    right.invert_xaxis()
    right.xaxis.set_major_locator(FixedLocator([1, 0.5, 0]))
    right.xaxis.set_major_formatter(FixedFormatter(["1", "0.5", "0"]))
    figure.legend(
        *middle.get_legend_handles_labels(), loc="outside lower center", ncols=len(shown), handlelength=1.4,
        columnspacing=1.2,
    )  # fmt: skip
    return figure
