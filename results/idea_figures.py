"""Figures of docs/ideas.md: overconfidence and balance, for one Gaussian parameter. No torch, no results.

The prior is N(0, 1), x = θ + noise of standard deviation `NOISE`, and the exact posterior is N(μ, s²) with
μ = (1 - s²) x. A surrogate says N(μ, (c s)²): c < 1 is too narrow, c > 1 too wide.
"""

from __future__ import annotations

__all__ = ["balance", "covered", "gap", "overconfidence"]

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from numpy.polynomial.hermite_e import hermegauss
from scipy import stats
from scipy.special import expit

from equipoise.plots.settings import CERTIFIED, OVERCONFIDENT
from equipoise.plots.style import GREY, HUES, INK, PAPER, VERDICTS

NOISE = 0.5
#: The standard deviation of the exact posterior.
SPREAD = NOISE / np.sqrt(1 + NOISE**2)
#: Too narrow, and too wide.
NARROW, WIDE = 0.55, 1.5
BAD, GOOD = VERDICTS[OVERCONFIDENT].ink, VERDICTS[CERTIFIED].ink


def covered(level: np.ndarray | float, c: float) -> np.ndarray:
    """The expected coverage of regions of a level: 2Φ(c z) - 1, with z the exact half-width in standard deviations."""
    return 2 * stats.norm.cdf(c * stats.norm.ppf((1 + np.asarray(level)) / 2)) - 1


def gap(c: float, points: int = 120) -> tuple[float, float]:
    """E σ(h) over joint and over marginal pairs, by Gauss–Hermite quadrature in (μ, θ)."""
    node, weight = hermegauss(points)
    weight = weight / weight.sum()
    mu = np.sqrt(1 - SPREAD**2) * node[:, None]

    def mean(theta: np.ndarray) -> float:
        h = stats.norm.logpdf(theta, mu, c * SPREAD) - stats.norm.logpdf(theta)
        return float((expit(h) * weight[:, None] * weight).sum())

    return mean(mu + SPREAD * node), mean(np.broadcast_to(node, (points, points)))


def overconfidence() -> Figure:
    """One observation, forty observations, all observations."""
    figure = Figure(figsize=(6.9, 2.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    looks = ((NARROW, BAD, "too narrow"), (1.0, INK, "exact"), (WIDE, GOOD, "conservative"))
    theta, truth = np.linspace(-2, 2.1, 500), 0.72
    for c, colour, words in looks:
        left.plot(theta, stats.norm.pdf(theta, 0, c * SPREAD), color=colour, linewidth=1.6, label=words)
    left.axvline(truth, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
    left.annotate("θ*", (truth, 1), (3, -8), xycoords=("data", "axes fraction"), textcoords="offset points")
    left.set(title="One observation", xlabel="θ", ylabel="Density", ylim=(0, None), xlim=(theta[0], theta[-1]))
    _intervals(middle)
    level = np.linspace(0, 1, 201)
    for c, colour, _ in looks:
        right.plot(level, covered(level, c), color=colour, linewidth=1.6)
    right.fill_between([0, 1], 0, [0, 1], color=BAD, alpha=0.06, linewidth=0)
    right.annotate("overconfident", (0.97, 0.04), ha="right", color=BAD)
    right.annotate("conservative", (0.03, 0.93), color=GOOD)
    right.set(title="All observations", xlabel="Credibility level", ylabel="Expected coverage")
    right.set(xlim=(0, 1), ylim=(0, 1))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _intervals(ax: Any, n: int = 40, level: float = 0.9) -> None:
    """Central intervals of the narrow surrogate for n simulated observations, and whether they hold the truth."""
    truth, noise = np.random.default_rng(3).normal(size=(2, n))
    mean = (1 - SPREAD**2) * (truth + NOISE * noise)
    half = NARROW * SPREAD * stats.norm.ppf((1 + level) / 2)
    order = np.argsort(truth)
    missed = abs(truth - mean)[order] > half
    for row, (at, value) in enumerate(zip(mean[order], truth[order], strict=True)):
        colour = BAD if missed[row] else GREY
        ax.plot([at - half, at + half], [row, row], color=colour, linewidth=1.5)
        ax.plot(value, row, marker="o", markersize=2.6, color=colour if missed[row] else INK)
    ax.yaxis.set_major_locator(NullLocator())
    words = f"{n - missed.sum()} hold θ*, not {round(level * n)}"
    ax.set(title=f"{n} observations", xlabel="θ, intervals of level 90%", ylim=(-1, n + 4))
    ax.annotate(words, (0.5, 0.985), xycoords="axes fraction", ha="center", va="top", color=BAD)


def balance() -> Figure:
    """Joint and marginal pairs under the classifier, its two means, and the balance term, along the width."""
    figure = Figure(figsize=(6.9, 2.9), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draws = np.random.default_rng(1)
    theta = draws.normal(size=150)
    x = theta + NOISE * draws.normal(size=150)
    grid = np.linspace(-3, 3, 161)
    mu = (1 - SPREAD**2) * grid[:, None]
    probability = expit(stats.norm.logpdf(grid, mu, SPREAD) - stats.norm.logpdf(grid))
    left.imshow(
        probability, cmap="Greys", alpha=0.55, vmin=0, vmax=1, origin="lower", extent=(-3, 3, -3, 3), aspect="auto"
    )
    left.plot(theta, x, "o", color=HUES[0], markersize=2.6, label="joint pairs")
    left.plot(np.roll(theta, 1), x, "x", color=HUES[1], markersize=3.2, label="marginal pairs")
    left.set(title="The classifier σ(h)", xlabel="θ", ylabel="x", xlim=(-3, 3), ylim=(-3, 3))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, handletextpad=0.2)

    widths = np.geomspace(0.3, 1 / SPREAD, 60)
    joint, marginal = np.array([gap(float(c)) for c in widths]).T
    middle.plot(widths, joint, color=HUES[0], linewidth=1.6)
    middle.plot(widths, 1 - marginal, color=HUES[1], linewidth=1.6)
    plain = {"facecolor": PAPER, "edgecolor": "none", "pad": 1}
    middle.annotate("mean σ(h) of\njoint pairs", (0.55, 0.50), color=HUES[0], bbox=plain)
    middle.annotate("mean 1 − σ(h) of\nmarginal pairs", (0.56, 0.79), color=HUES[1], bbox=plain)
    middle.set(title="Balanced where they meet", ylabel="Probability")
    right.plot(widths, joint + marginal - 1, color=INK, linewidth=1.6)
    right.fill_between(widths, joint + marginal - 1, 0, where=widths <= 1, color=BAD, alpha=0.15, linewidth=0)
    right.annotate("too narrow:\ng < 0", (0.32, -0.09), color=BAD)
    right.annotate("too wide:\ng > 0", (1.08, -0.09), color=GOOD)
    right.set(title="The sum g; balance is g²", ylabel="g")
    for ax in (middle, right):
        ax.axvline(1, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
        ax.set(xscale="log", xlabel="Width of q, in exact widths")
        ax.xaxis.set_major_locator(FixedLocator([0.3, 0.5, 1, 2]))
        ax.xaxis.set_major_formatter(FixedFormatter(["0.3", "0.5", "1", "2"]))
        ax.xaxis.set_minor_locator(NullLocator())
    right.axhline(0, color=INK, linewidth=0.6)
    return figure
