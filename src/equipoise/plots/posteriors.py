"""Posteriors, drawn from densities on grids or from samples."""

from __future__ import annotations

__all__ = ["corner", "posterior_1d", "posterior_2d"]

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter, gaussian_filter1d

from .style import CYCLE, INK, Array, axes_or_new, darker, legend, star


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
    ax = axes_or_new(ax, (3.8, 2.6))
    x, density = _smoothed(x) if density is None else (np.asarray(x, float), np.asarray(density, float))
    density = density / np.trapezoid(density, x)
    for threshold in _hpd_thresholds(density, levels):
        ax.fill_between(x, density, where=density >= threshold, color=colour, alpha=0.22, lw=0)
    ax.plot(x, density, color=colour, lw=1.6, label=label)
    if truth is not None:
        ax.axvline(truth, color=INK, lw=1.0, ls=(0, (4, 2)))
    ax.set(xlabel=name, ylabel="posterior density", xlim=(x.min(), x.max()), ylim=(0, None))
    legend(ax)
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
    ax = axes_or_new(ax, (3.4, 3.2))
    if density is None:
        x, y, density = _smoothed_2d(np.asarray(x, float), np.asarray(y, float))
    x, y, density = (np.asarray(v, float) for v in (x, y, density))
    shades = LinearSegmentedColormap.from_list("density", [to_rgb("#ffffff"), to_rgb(colour), darker(colour)])
    ax.pcolormesh(x, y, density.T, cmap=shades, shading="auto", rasterized=True)
    # Two levels may share a threshold on a coarse grid; contours need increasing ones.
    thresholds = np.unique(_hpd_thresholds(density, levels))
    thresholds = thresholds[(thresholds > density.min()) & (thresholds < density.max())]
    if len(thresholds):
        widths = np.linspace(0.6, 1.2, len(thresholds))
        ax.contour(x, y, density.T, thresholds, colors=[darker(colour)], linewidths=widths)
    if truth is not None:
        star(ax, truth[0], truth[1])
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
