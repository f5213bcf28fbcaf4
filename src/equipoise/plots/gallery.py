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

from .grids import PAGE_HEIGHT, PAGE_WIDTH
from .labels import labels_of
from .legends import new_figure
from .panels import any_number
from .posteriors import FLAT, hpd_thresholds
from .style import CONTOUR, DENSITY, GREY, INK, PAPER, RULE, printed

#: A density that varies by less than this share of its mean has no contour: it would surround nothing.
SHAPELESS = 0.2
#: Transparent to opaque, in few steps that a PNG compresses well.
MASS = LinearSegmentedColormap.from_list("mass", [(*to_rgb(DENSITY), a) for a in np.linspace(0, 1, 40) ** 0.6], N=40)
#: The side of a tile, of which neighbours are 1 apart.
TILE = 0.95
STAR: Any = {"marker": "*", "markersize": 6, "color": INK, "markeredgecolor": PAPER, "markeredgewidth": 0.6, "ls": ""}


def gallery_tasks(results: xr.Dataset) -> list[str]:
    """The tasks that have densities to show."""
    return [str(t) for t in results["task"].values if any_number(results, "gallery_density", task=str(t))]


@printed
def posterior_gallery(results: xr.Dataset, task: str, *, figure: Figure | None = None) -> Axes:
    """Posterior densities of one observation: one row per method, one column per budget, and the exact posterior.

    Each density is scaled to its own maximum. The contour surrounds the smallest region with 95% of the mass; a flat
    density has none. The star is the true parameter.

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
    tiles = {(i, j): density[i, b] for i in range(len(names.methods)) for j, b in enumerate(shown)}
    if exact is not None:
        tiles[0, len(shown)] = exact
    rows, columns = len(names.methods), len(shown) + (exact is not None)
    side = min(1.15, (PAGE_WIDTH - 1.1) / columns, (PAGE_HEIGHT - 0.8) / rows)
    figure = new_figure(figure, columns * side + 1.1, rows * side + 0.6)
    ax = figure.subplots()
    _draw_tiles(ax, {at: tile for at, tile in tiles.items() if np.isfinite(tile).any()}, rows, columns)
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
    ax.set_yticks(np.arange(rows) + TILE / 2, [row.label for row in names.methods.values()])
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("Simulation budget")
    ax.tick_params(length=0, labelsize=7.5)
    ax.spines[:].set_visible(False)
    ends = [f"{v:.3g}".replace("-", "\N{MINUS SIGN}") for v in (low[0], high[0], low[1], high[1])]
    text = f"θ₁ from {ends[0]} to {ends[1]}\nθ₂ from {ends[2]} to {ends[3]}"
    ax.annotate(text, (0, rows), xytext=(0, -2), textcoords="offset points", va="top", fontsize=7)
    handles = [Line2D([], [], label="true θ", **STAR), Line2D([], [], color=CONTOUR, linewidth=0.6, label="95% region")]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=7, handlelength=1.2)
    return ax


def _draw_tiles(ax: Axes, tiles: Mapping[tuple[int, int], Any], rows: int, columns: int) -> None:
    """Densities with shape `(grid_0, grid_1)`, by row and column, as one picture and one set of contours."""
    n, m = next(iter(tiles.values())).shape
    gap = max(1, round(min(n, m) * (1 - TILE) / TILE))
    picture = np.zeros((rows * (m + gap), columns * (n + gap)))
    contour = np.full_like(picture, np.nan)
    for (i, j), tile in tiles.items():
        mass = np.nan_to_num(np.asarray(tile, float)).T[::-1]  # θ₁ to the right, θ₂ upwards
        at = slice(i * (m + gap), i * (m + gap) + m), slice(j * (n + gap), j * (n + gap) + n)
        # The darkest blue is the highest density, but at least FLAT times the flat one: what is spread out is pale.
        picture[at] = mass / max(mass.max(), FLAT * mass.mean())
        (threshold,) = hpd_thresholds(mass, np.ones_like(mass), [0.95])
        if np.ptp(mass) > SHAPELESS * mass.mean():
            contour[at] = mass / threshold - 1
    shown: Any = {"interpolation": "bilinear", "extent": (0, columns, rows, 0), "vmin": 0, "vmax": 1}
    ax.imshow(picture, cmap=MASS, **shown)
    if np.nanmin(contour, initial=0) < 0 < np.nanmax(contour, initial=0):
        y, x = (np.linspace(0, end, 2 * k + 1)[1::2] for end, k in zip((rows, columns), contour.shape, strict=True))
        ax.contour(x, y, contour, levels=[0], colors=[CONTOUR], linewidths=0.6)
