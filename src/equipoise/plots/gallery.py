"""The posterior of one observation as each method and budget has it, from the densities that results store."""

from __future__ import annotations

__all__ = ["gallery_tasks", "posterior_gallery"]

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from .grids import PAGE_HEIGHT, PAGE_WIDTH
from .labels import labels_of
from .legends import new_figure
from .panels import any_number
from .posteriors import hpd_thresholds
from .style import CONTOUR, DENSITY, GREY, INK, PAPER, RULE, printed

#: A posterior whose 95% region takes more than this share of the box has no contour: it says next to nothing.
SHAPELESS = 0.8
#: Transparent to opaque, in few steps that a PNG compresses well.
MASS = LinearSegmentedColormap.from_list("mass", [(*to_rgb(DENSITY), a) for a in np.linspace(0, 1, 40)], N=40)
#: The scale of all densities: powers of ten of what the flat one is.
LOWEST, HIGHEST = -1.0, 2.0
#: Where the exact posterior takes less than this share of the box along both sides, the box is cut to it.
CUT = 0.7
#: The side of a tile, of which neighbours are 1 apart.
TILE = 0.95
STAR: Any = {"marker": "*", "markersize": 6, "color": INK, "markeredgecolor": PAPER, "markeredgewidth": 0.6, "ls": ""}


def gallery_tasks(results: xr.Dataset) -> list[str]:
    """The tasks that have densities to show."""
    return [str(t) for t in results["task"].values if any_number(results, "gallery_density", task=str(t))]


@printed
def posterior_gallery(results: xr.Dataset, task: str, *, figure: Figure | None = None) -> Axes:
    """Posterior densities of one observation: one row per method, one column per budget, and the exact posterior.

    All densities have one logarithmic scale, relative to the flat density. The contour surrounds the smallest region
    with 95% of the mass; a posterior that is nearly flat has none. The star is the true parameter. Where the exact
    posterior takes a small part of the box, the box is cut to it.

    Arguments:
        results: with `gallery_density` and what belongs to it.
        task: which task.
        figure: an empty figure; None for a new one.

    Returns:
        One Axes, on which the density of row i and column j lies in (j, j + 1) × (i, i + 1), upside down.
    """
    names, here = labels_of(results), results.sel(task=task)
    density = here["gallery_density"].transpose("method", "budget", "grid_0", "grid_1").values
    shown = np.flatnonzero(np.isfinite(density).any(axis=(0, 2, 3)))
    low, high, theta = (np.asarray(here[f"gallery_{n}"].values, float) for n in ("low", "high", "theta"))
    exact = here["gallery_exact"].values if any_number(here, "gallery_exact") else None
    window, low, high = _window(exact, low, high)
    tiles = {(i, j): density[i, b] for i in range(len(names.methods)) for j, b in enumerate(shown)}
    if exact is not None:
        tiles[0, len(shown)] = exact
    rows, columns = len(names.methods), len(shown) + (exact is not None)
    side = min(1.15, (PAGE_WIDTH - 1.5) / columns, (PAGE_HEIGHT - 1.0) / rows)
    figure = new_figure(figure, columns * side + 1.5, rows * side + 0.9)
    ax = figure.subplots()
    ax.set_anchor("W")  # few tiles leave room at the right, beside the scale
    picture = _draw_tiles(ax, {at: t for at, t in tiles.items() if np.isfinite(t).any()}, rows, columns, window)
    bar = figure.colorbar(picture, ax=ax, shrink=0.25, aspect=14, pad=0.01, anchor=(0, 1), ticks=[-1, 0, 1, 2])
    bar.ax.set_yticklabels(["≤ 0.1", "1", "10", "≥ 100"], fontsize=7)
    bar.ax.set_title("density,\nprior = 1", fontsize=7, loc="left")
    bar.outline.set_linewidth(0.4)
    place = (theta - low) / (high - low)
    for (i, j), tile in tiles.items():
        ax.add_patch(Rectangle((j, i), TILE, TILE, facecolor="none", edgecolor=RULE, linewidth=0.6, zorder=3))
        if np.isfinite(tile).any():
            ax.plot(j + TILE * place[0], i + TILE * (1 - place[1]), clip_on=False, zorder=4, **STAR)
        else:
            say: Any = {"ha": "center", "va": "center", "fontsize": 7, "color": GREY, "style": "italic"}
            ax.annotate("not\ncomputed", (j + TILE / 2, i + TILE / 2), **say)
    budgets = [names.budget(names.budgets[b]) for b in shown] + ["exact"] * (exact is not None)
    ax.set(xlim=(-0.02, columns), ylim=(rows, -0.02), aspect="equal")
    ax.set_xticks(np.arange(columns) + TILE / 2, budgets)
    ax.set_yticks(np.arange(rows) + TILE / 2, [row.label.replace(" (", "\n(") for row in names.methods.values()])
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("Simulation budget")
    ax.tick_params(length=0, labelsize=7.5)
    ax.spines[:].set_visible(False)
    ends = [f"{v:.3g}".replace("-", "\N{MINUS SIGN}") for v in (low[0], high[0], low[1], high[1])]
    across, up = (names.parameter(task, j) for j in (0, 1))
    text = f"across: {across}, from {ends[0]} to {ends[1]}\nup: {up}, from {ends[2]} to {ends[3]}"
    ax.annotate(text, (0, rows), xytext=(0, -2), textcoords="offset points", va="top", fontsize=7)
    handles = [Line2D([], [], label="true θ", **STAR), Line2D([], [], color=CONTOUR, linewidth=0.6, label="95% region")]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=7, handlelength=1.2)
    return ax


def _window(exact: Any, low: NDArray[Any], high: NDArray[Any]) -> tuple[Any, NDArray[Any], NDArray[Any]]:
    """What to show of a density with shape `(grid_0, grid_1)`, and the ends of the axes."""
    whole = (slice(None), slice(None))
    if exact is None:
        return whole, low, high
    window, ends = [], []
    for axis in (0, 1):
        mass = np.cumsum(np.nan_to_num(exact).sum(1 - axis))
        first, last = np.searchsorted(mass / mass[-1], [0.001, 0.999])
        margin = max(4, (last - first) // 3)
        first, last = max(0, first - margin), min(len(mass), last + margin + 1)
        window.append(slice(first, last))
        ends.append(low[axis] + (high[axis] - low[axis]) * np.array([first, last]) / len(mass))
    if max((w.stop - w.start) / n for w, n in zip(window, exact.shape, strict=True)) > CUT:
        return whole, low, high
    (left, right), (bottom, top) = ends
    return tuple(window), np.array([left, bottom]), np.array([right, top])


def _draw_tiles(ax: Axes, tiles: Mapping[tuple[int, int], Any], rows: int, columns: int, window: Any) -> Any:
    """Densities with shape `(grid_0, grid_1)`, by row and column, as one picture and one set of contours."""
    n, m = next(iter(tiles.values()))[window].shape
    gap = max(1, round(min(n, m) * (1 - TILE) / TILE))
    picture = np.full((rows * (m + gap), columns * (n + gap)), LOWEST)
    contour = np.full_like(picture, np.nan)
    for (i, j), tile in tiles.items():
        mass = np.nan_to_num(np.asarray(tile, float))
        mass /= mass.mean()  # 1 for the flat density
        (threshold,) = hpd_thresholds(mass, np.ones_like(mass), [0.95])
        shown = mass[window].T[::-1]  # θ₁ to the right, θ₂ upwards
        at = slice(i * (m + gap), i * (m + gap) + m), slice(j * (n + gap), j * (n + gap) + n)
        picture[at] = np.log10(np.maximum(shown, 10**LOWEST))
        if (mass >= threshold).mean() < SHAPELESS:
            contour[at] = shown / threshold - 1
    how: Any = {"interpolation": "bilinear", "extent": (0, columns, rows, 0), "vmin": LOWEST, "vmax": HIGHEST}
    drawn = ax.imshow(picture, cmap=MASS, **how)
    if np.nanmin(contour, initial=0) < 0 < np.nanmax(contour, initial=0):
        y, x = (np.linspace(0, end, 2 * k + 1)[1::2] for end, k in zip((rows, columns), contour.shape, strict=True))
        ax.contour(x, y, contour, levels=[0], colors=[CONTOUR], linewidths=0.6)
    return drawn
