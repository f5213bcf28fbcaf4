r"""Expected coverage, read off HPD ranks.

The rank r of a pair (θ*, x*) is the mass that the surrogate p̂(θ|x*) puts on parameters denser than θ*. The
highest-density region of level u holds θ* exactly when r ≤ u, so the expected coverage of the paper is the
distribution function of r,

.. math:: \mathrm{coverage}(u) = P(r \le u), \qquad
          \int_0^1 (\mathrm{coverage}(u) - u)\, du = \tfrac12 - E[r],

the last by ∫P(r ≤ u)du = 1 - E[r]. A calibrated surrogate has uniform ranks: a diagonal curve and an area of 0. A
conservative one has small ranks, a curve above the diagonal and a positive area.
"""

from __future__ import annotations

__all__ = ["coverage_auc", "coverage_curve", "levels_covered"]

import numpy as np
from numpy.typing import ArrayLike

from .bands import Array


def coverage_curve(rank: ArrayLike, levels: ArrayLike) -> Array:
    """The share of ranks up to each level.

    Arguments:
        rank: HPD ranks, with shape `(*, n)`.
        levels: with shape `(K,)`.

    Returns:
        With shape `(*, K)`; NaN for a curve with a NaN among its ranks.

    Example:
        >>> coverage_curve([0.1, 0.4, 0.6, 0.9], [0.0, 0.5, 1.0])
        array([0. , 0.5, 1. ])
    """
    rank, levels = np.asarray(rank, float), np.asarray(levels, float)
    n = rank.shape[-1]
    flat = np.sort(rank.reshape(-1, n), axis=-1)
    counts = (
        np.stack([np.searchsorted(row, levels, side="right") for row in flat])
        if len(flat)
        else np.empty((0, len(levels)))
    )
    curve = np.where(np.isnan(flat).any(-1, keepdims=True), np.nan, counts / n)
    return curve.reshape(*rank.shape[:-1], len(levels))


def coverage_auc(rank: ArrayLike) -> tuple[Array, Array]:
    """The area between coverage curve and diagonal, ½ - mean(r), and its standard error sd(r)/√n; `(*,)` each.

    Example:
        >>> area, error = coverage_auc([0.1, 0.2, 0.3, 0.4])
        >>> round(float(area), 3), round(float(error), 3)
        (0.25, 0.065)
    """
    rank = np.asarray(rank, float)
    return 0.5 - rank.mean(-1), rank.std(-1, ddof=1) / np.sqrt(rank.shape[-1])


def levels_covered(curve: ArrayLike, levels: ArrayLike) -> np.ndarray:
    """The number of levels strictly between 0 and 1 at which coverage ≥ level, the paper's own ordering; `(*,)`."""
    curve, levels = np.asarray(curve, float), np.asarray(levels, float)
    inner = (levels > 0) & (levels < 1)
    # A hundredth of a level is not representable: 0.29 * 100 is 28.999999999999996. The slack is far below 1/n.
    return (curve[..., inner] >= levels[inner] - 1e-12).sum(-1)
