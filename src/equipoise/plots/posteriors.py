"""Posteriors, drawn from densities on grids or from samples."""

from __future__ import annotations

__all__ = ["corner", "posterior_1d", "posterior_2d", "predictive"]

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import gaussian_filter
from scipy.special import chdtri

from equipoise.support.checks import column_names

from .legends import axes_or_new, legend, one_each
from .style import CYCLE, INK, darker

Array = NDArray[np.float64]

#: A flat density is this many times paler than the darkest shade.
FLAT = 5
#: Shares of Scott's bandwidth that are tried; moons and rings need the smaller ones.
SHARES = (0.2, 0.3, 0.4, 0.55, 0.75, 1.0)
#: The least bandwidth, in bins, and how many times wider it is in the tails at most.
LEAST_WIDTH, WIDEST = 0.8, 2.5


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

    Samples that are indistinguishable from uniform ones are shaded all over: their regions would be noise.

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
    if density is None:
        (x,), density, flat = _smoothed(np.asarray(x, float))
    else:
        x, density = np.asarray(x, float), np.asarray(density, float)
        flat = _level(density)
    density = np.asarray(density / np.abs(np.trapezoid(density, x)), float)
    for threshold in [0.0] * len(levels) if flat else hpd_thresholds(density, _widths(x), levels):
        ax.fill_between(x, density, where=density >= threshold, color=colour, alpha=0.22, lw=0)
    ax.plot(x, density, color=colour, lw=1.6, label=label)
    if truth is not None:
        ax.axvline(truth, color=INK, lw=1.0, ls=(0, (4, 2)))
    ax.set(xlabel=name, ylabel="posterior density", xlim=(x.min(), x.max()), ylim=(0, None))
    if label is not None:
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

    Samples that are indistinguishable from uniform ones have one shade and no contours, which would be of noise.

    Arguments as of `posterior_1d`, but:
        x, y: the axes of a grid with shapes `(n,)` and `(m,)`; or, without `density`, samples with shape `(n,)` each.
        density: on the grid, with shape `(n, m)`, any scale.
    """
    one_each("truth", truth, 2, "parameter")
    one_each("names", names, 2, "parameter")
    ax = axes_or_new(ax, (3.4, 3.2))
    if density is None:
        (x, y), density, flat = _smoothed(np.asarray(x, float), np.asarray(y, float))
    else:
        flat = _level(np.asarray(density, float))
    x, y, density = (np.asarray(v, float) for v in (x, y, density))
    if flat:
        density = np.full_like(density, density.mean())
    shades = LinearSegmentedColormap.from_list("density", [to_rgb("#ffffff"), to_rgb(colour), darker(colour)])
    area = np.outer(_widths(x), _widths(y))
    darkest = max(density.max(), FLAT * np.average(density, weights=area))
    ax.pcolormesh(x, y, density.T, cmap=shades, vmin=0, vmax=darkest, shading="auto", rasterized=True)
    # Two levels may share a threshold on a coarse grid; contours need increasing ones.
    thresholds = np.unique(hpd_thresholds(density, area, levels))
    thresholds = thresholds[(thresholds > density.min()) & (thresholds < density.max())]
    if len(thresholds):
        widths = np.linspace(0.6, 1.2, len(thresholds))
        ax.contour(x, y, density.T, thresholds, colors=[darker(colour)], linewidths=widths)
    if truth is not None:
        ax.plot(*truth, marker="*", ms=10, color=INK, mec="white", mew=0.8, ls="", zorder=5)
    ax.set(xlabel=names[0], ylabel=names[1], xlim=(x.min(), x.max()), ylim=(y.min(), y.max()))
    ax.spines[["top", "right"]].set_visible(True)
    return ax


def _limits(values: NDArray[Any], truth: float | None) -> tuple[float, float]:
    """The range of samples, but for tails that would press the rest together, and the truth in any case."""
    low, high = np.quantile(values, [0.005, 0.995])
    room = 0.25 * (high - low)
    low, high = max(values.min(), low - room), min(values.max(), high + room)
    if truth is not None:
        low, high = min(low, truth - 0.05 * (high - low)), max(high, truth + 0.05 * (high - low))
    return float(low), float(high)


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

    Arguments as of `posterior_2d`, and:
        samples: with shape `(n, D)`, or a table, whose columns then are the names unless others are given.
        limits: of each parameter, such as the prior's; None for the range of the samples, far tails left out.

    Returns:
        The Axes, with shape `(D, D)`; those above the diagonal are hidden.
    """
    names = column_names(samples) if names is None else names
    samples = np.asarray(samples, float)
    if samples.ndim != 2:
        raise ValueError(f"samples should have shape (n, D), got {samples.shape}")
    dim = samples.shape[1]
    for what, given in (("truth", truth), ("names", names), ("limits", limits)):
        one_each(what, given, dim, "parameter")
    names = names or [f"θ$_{{{j + 1}}}$" for j in range(dim)]
    if not np.isfinite(samples).all():
        raise ValueError("samples have NaN or infinite values")
    limits = limits or [_limits(samples[:, j], None if truth is None else truth[j]) for j in range(dim)]
    size = 1.5 * dim + 0.6
    _, axes = plt.subplots(dim, dim, figsize=(size, size), squeeze=False, layout="constrained")
    for (i, j), ax in np.ndenumerate(axes):
        if j > i:
            ax.set_visible(False)
            continue
        if i == j:
            at = None if truth is None else truth[i]
            posterior_1d(samples[:, i], truth=at, name=names[i], ax=ax, colour=colour, levels=levels[-1:])
            ax.set(ylabel="", yticks=[])
            ax.spines["left"].set_visible(False)
        else:
            both = None if truth is None else (truth[j], truth[i])
            pair: Any = {"truth": both, "names": (names[j], names[i]), "colour": colour, "levels": levels}
            posterior_2d(samples[:, j], samples[:, i], ax=ax, **pair)
            ax.set_ylim(*limits[i])
        ax.set_xlim(*limits[j])
        ax.locator_params(nbins=3)  # four numbers of several digits would touch
        ax.tick_params(labelsize="small")
        if i < dim - 1:
            ax.set(xlabel="", xticklabels=[])
        if 0 < j < i:
            ax.set(ylabel="", yticklabels=[])
    return axes


def predictive(
    draws: ArrayLike,
    x: ArrayLike,
    *,
    levels: Sequence[float] = (0.5, 0.95),
    names: Sequence[str] | None = None,
    at: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Posterior predictive draws as central bands, element by element, and the observation as dots.

    Arguments:
        draws: as of `posterior.predict`, with shape `(n, K)`, or `(n, T, C)` for a series of C channels.
        x: the observation, with shape `(K,)` or `(T, C)`.
        levels: of the bands.
        names: of the channels.
        at: where on the horizontal axis each element or step of x lies, such as times; None for 0, 1, ….
        ax: where; None for a new figure.
    """
    made, seen = np.asarray(draws, float), np.asarray(x, float)
    if made.ndim not in (2, 3) or made.shape[1:] != seen.shape:
        raise ValueError(f"draws have shape (n, K) or (n, T, C), and x that of one, got {made.shape} and {seen.shape}")
    made = made[np.isfinite(made).reshape(len(made), -1).all(1)]
    if not len(made) or not np.isfinite(seen).all():
        raise ValueError("x, or every draw, has NaN or infinite values")
    series = seen.ndim == 2
    place = np.arange(len(seen)) if at is None else np.asarray(at)
    if place.shape != (len(seen),):
        raise ValueError(f"at should have one place for each step of x, {len(seen)}, got shape {place.shape}")
    channels = seen.shape[1] if series else 1
    one_each("names", names, channels, "channel")
    ax = axes_or_new(ax, (4.8, 3.0))
    for c in range(channels):
        values, shown = (made[..., c], seen[:, c]) if series else (made, seen)
        colour, name = CYCLE[c % len(CYCLE)], "" if names is None else f"{names[c]}: "
        for k, level in enumerate(sorted(levels, reverse=True)):
            low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
            shade: Any = {"color": colour, "alpha": min(0.2 + 0.2 * k, 0.8), "lw": 0}
            ax.fill_between(place, low, high, label=f"{name}{level:.0%} predicted", **shade)
        ax.plot(place, shown, "o", color=colour if channels > 1 else INK, ms=3, label=f"{name}observed")
    ax.set(xlabel="step" if series else "element of x", ylabel="x")
    if channels == 1 or names is not None:
        legend(ax)
    return ax


def _widths(axis: Array) -> Array:
    """How much of an axis each of its points stands for: half of the way to either neighbour."""
    return np.abs(np.gradient(axis))


def hpd_thresholds(density: Array, size: Array, levels: Sequence[float]) -> Array:
    """The densities above which a grid holds each level of its mass, its points standing for cells of these sizes."""
    order = np.argsort(density, axis=None)[::-1]
    mass = np.cumsum((density * size).ravel()[order])
    return density.ravel()[order[np.minimum(np.searchsorted(mass / mass[-1], list(levels)), len(order) - 1)]]


def _level(density: Array) -> bool:
    """Whether a density on a grid varies by less than a hundredth: rounding, not shape."""
    return bool(np.ptp(density) < 0.01 * density.max())


def _smoothed(*samples: Array) -> tuple[list[Array], Array, bool]:
    """Axes, a smoothed histogram of samples of one or two parameters, and whether it is flat up to noise."""
    one, n = len(samples) == 1, len(samples[0])
    values = np.stack(samples, -1)
    counts, edges = np.histogramdd(values, bins=200 if one else 120)
    spread = [v.std() for v in samples]
    if one:
        spread = [min(spread[0], np.subtract(*np.quantile(samples, [0.75, 0.25])) / 1.34) or spread[0] or 1.0]
    factor, least = (0.9 * n**-0.2, 0.5) if one else (0.5 * n ** (-1 / 6), LEAST_WIDTH)
    width = [max(factor * s / (e[1] - e[0]), least) for s, e in zip(spread, edges, strict=True)]
    density = gaussian_filter(counts, width, mode="reflect")
    flat = _noise(density, width)
    if not flat:
        density = _adaptive(counts, _best_width(values, edges, spread))
    return [(e[:-1] + e[1:]) / 2 for e in edges], density, flat


def _best_width(values: Array, edges: Sequence[Array], spread: Sequence[float]) -> list[float]:
    """The bandwidth along each axis, in bins: the share of Scott's at which either half predicts the other best."""
    # Draws that were resampled come twice, and would predict each other. The order stays: sorted halves are alike, too.
    values = values[np.sort(np.unique(values, axis=0, return_index=True)[1])]
    halves = [np.histogramdd(v, bins=edges)[0] for v in (values[::2], values[1::2])]
    scott = np.array([s / (e[1] - e[0]) for s, e in zip(spread, edges, strict=True)])

    def width(share: float, n: float) -> Array:
        return np.maximum(share * scott * max(n, 1) ** (-1 / (4 + len(scott))), LEAST_WIDTH)

    def score(share: float) -> float:
        smooth = [gaussian_filter(h, width(share, len(values) / 2), mode="reflect") for h in halves]
        told = [np.log(0.99 * s / max(s.sum(), 1) + 0.01 / s.size) for s in smooth]
        return float((halves[1] * told[0]).sum() + (halves[0] * told[1]).sum())

    return list(width(max(SHARES, key=score), len(values)))


def _adaptive(counts: Array, width: Sequence[float]) -> Array:
    """A histogram smoothed by these widths where samples are dense, by wider ones in the tails (Abramson's rule)."""
    pilot = gaussian_filter(counts, width, mode="reflect")
    typical = np.exp(np.average(np.log(np.maximum(pilot, 1e-12)), weights=counts))
    wider = np.clip(np.sqrt(typical / np.maximum(pilot, 1e-12)), 1, WIDEST)
    steps = np.rint(np.log(wider) / np.log(1.25))
    density = np.zeros_like(counts)
    for step in np.unique(steps[counts > 0]):
        density += gaussian_filter(counts * (steps == step), [1.25**step * w for w in width], mode="reflect")
    return density


def _noise(density: Array, width: Sequence[float]) -> bool:
    """Whether a histogram that was smoothed with these widths, in bins, varies no more than one of uniform samples.

    Counts of uniform samples are Poisson. Along an axis of n bins, smoothing with a Gaussian of width s divides their
    variance by 2√π s, of which reflection at the ends takes back a factor 1 + √π s / n, and leaves neighbours
    correlated as exp(-d² / 4s²), so that the variance over the bins has n / (√(2π) s) degrees of freedom.
    """
    axes = list(zip(density.shape, width, strict=True))
    expected = density.mean() * np.prod([(1 / s + np.sqrt(np.pi) / n) / (2 * np.sqrt(np.pi)) for n, s in axes])
    freedom = max(np.prod([n / (np.sqrt(2 * np.pi) * s) for n, s in axes]) - 1, 1)
    return bool(density.var() < expected * chdtri(freedom, 0.001) / freedom)
