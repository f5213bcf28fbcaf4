r"""Verdicts: is a posterior overconfident, certified conservative, or is it too early to tell?

Two questions, with the burden of proof on opposite sides, for n ranks with distribution function F (coverage).

*Overconfident* rejects "F(u) ≥ u at every level". The statistic is Berk and Jones's, one-sided,

.. math:: \gamma = \min_z P(\mathrm{Bin}(n, z) \le n \hat F(z)).

Under F(u) ≥ u the ranks are stochastically smaller than uniform ones and γ stochastically larger, so the uniform
distribution is the worst case of the hypothesis and its simulated distribution (`bands.null_statistics`) gives the
p-value. Simulation cannot resolve p below 1/draws; there the union bound P(γ ≤ c) ≤ K c over the K points of the grid
takes over, so that a correction for thousands of cells still has something to work with. Both bounds hold, so the
smaller may be reported.

*Certified conservative* rejects "F(u) < u - tol(u) at some level" (`certificates`).

For large n both can hold (coverage .94 at level .95, n = 10,000, δ = .02): *overconfident* takes precedence. If
neither holds the verdict is *inconclusive*, and the number of further pairs is reported at which one of the two would
be reached if the curve stayed where it is now.

People report regions of high levels. The same two questions *from level ½ upwards* ask nothing of lower ones, with the
distribution of γ over z ≥ ½. The verdict is the one over all levels.

Many cells (tasks × methods × budgets) are judged together by Holm's step-down, each of the two families on its own.
"""

from __future__ import annotations

__all__ = [
    "CERTIFIED",
    "INCONCLUSIVE",
    "OVERCONFIDENT",
    "Verdicts",
    "certificate_p_value",
    "holm",
    "judge",
    "judge_cells",
    "lowest",
    "tolerance",
    "too_low",
]

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bands import DRAWS, GRID, HALF, Array, binomial_cdf, null_statistics
from .certificates import (
    CERTIFICATE_LEVELS,
    SHARE,
    bisected,
    certificate,
    certificate_floor,
    certificate_p_value,
    check_options,
    pairs_to_certify,
    tolerance,
)
from .coverage import coverage_curve

OVERCONFIDENT = "overconfident"
CERTIFIED = "certified conservative"
INCONCLUSIVE = "inconclusive"


class Verdicts(NamedTuple):
    """What `judge` finds; every field has the shape of the ranks without their last axis."""

    #: "overconfident", "certified conservative" or "inconclusive".
    verdict: NDArray[np.str_]
    #: Of "coverage ≥ level everywhere": small speaks for *overconfident*.
    p_value: Array
    #: Of "coverage < level - tolerance somewhere": small speaks for *certified conservative*.
    certificate_p_value: Array
    #: How many more pairs would settle it, if the curve stays as it is: 0 where settled, inf where it never would be.
    pairs_to_settle: Array


def judge(
    rank: ArrayLike,
    *,
    alpha: float = 0.05,
    delta: float = 0.02,
    share: float | None = SHARE,
    effective: ArrayLike | None = None,
    upper: bool = False,
) -> Verdicts:
    """The verdict on each set of ranks.

    Arguments:
        rank: HPD ranks, with shape `(*, n)`.
        alpha: the rate of false verdicts, of either kind.
        delta: how far below its level a certified coverage may lie (`certificates.tolerance`).
        share: the same as a share of 1 - level, for high levels; None for `delta` at every level.
        effective: the effective number of points behind each rank, broadcast to `(*, n)`: draws, or (Σw)² / Σw² of
            weighted points, or the effective draws of a Markov chain. The certificate accounts for it, and is not given
            below 100. None for ranks that are exact.
        upper: ask about the levels from ½ upwards alone.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ranks = np.stack([rng.random(2000), rng.random(2000) ** 0.8, rng.random(2000) ** 1.25])
        >>> judge(ranks).verdict.tolist()
        ['inconclusive', 'overconfident', 'certified conservative']
    """
    check_options(alpha, delta, share)
    rank = np.asarray(rank, float)
    n = rank.shape[-1]
    on_grid = coverage_curve(rank, GRID)
    at_levels = coverage_curve(rank, CERTIFICATE_LEVELS)
    floor = np.broadcast_to(certificate_floor(rank, delta, share, effective), at_levels.shape)
    if upper:
        floor = np.where(CERTIFICATE_LEVELS < HALF, 0.0, floor)
    p_value = overconfidence_p_value(on_grid, n, upper)
    certified = certificate(at_levels, n, floor)
    verdict = label(p_value, certified, alpha)
    more = np.zeros(p_value.shape)
    open_ = verdict == INCONCLUSIVE
    if open_.any():
        more[open_] = _pairs_to_settle(on_grid[open_], at_levels[open_], n, alpha, floor[open_], upper)
    return Verdicts(verdict, p_value, certified, more)


def overconfidence_p_value(coverage: ArrayLike, n: int, upper: bool = False) -> Array:
    """The p-value of "coverage ≥ level everywhere" for curves read on `bands.GRID`, with shape `(*, K)`.

    With `upper`, everywhere from level ½ upwards.
    """
    coverage = np.asarray(coverage, float)
    asked = _asked(upper)
    gamma = binomial_cdf(np.rint(coverage[..., asked] * n), n, GRID[asked]).min(-1)
    simulated = (1 + np.searchsorted(_null(n, upper), gamma, side="right")) / (DRAWS + 1)
    p = np.minimum(simulated, asked.sum() * gamma)
    return np.where(np.isnan(coverage).any(-1), np.nan, p)


def lowest(rank: ArrayLike) -> tuple[Array, Array]:
    """Where coverage lies furthest below its level, measured by its noise: the levels of γ, and the coverage there.

    A curve can be below at the highest levels alone and well above elsewhere: its area is then positive, and the
    posterior overconfident all the same.

    Arguments:
        rank: HPD ranks, with shape `(*, n)`.

    Example:
        >>> rank = np.append(np.linspace(0, 0.5, 970), np.full(30, 0.99))  # nothing between 0.5 and 0.99
        >>> level, coverage = lowest(rank)
        >>> f"{level:.3f} {coverage:.3f}"
        '0.990 0.970'
    """
    rank = np.asarray(rank, float)
    n = rank.shape[-1]
    curve = coverage_curve(rank, GRID)
    place = binomial_cdf(np.rint(curve * n), n, GRID).argmin(-1)
    return GRID[place], np.take_along_axis(curve, place[..., None], -1)[..., 0]


def too_low(rank: ArrayLike, levels: ArrayLike, alpha: float = 0.05) -> NDArray[np.bool_]:
    """At which levels coverage is too low: as low as calibrated ranks are anywhere with probability `alpha` at most.

    Arguments:
        rank: HPD ranks, with shape `(*, n)`.
        levels: with shape `(L,)`.
        alpha: of all levels together.

    Returns:
        With shape `(*, L)`; False for ranks that are NaN.

    Example:
        >>> too_low(np.linspace(0, 1, 2000) ** 0.9, [0.001, 0.5, 0.999])
        array([False,  True, False])
    """
    rank = np.asarray(rank, float)
    n = rank.shape[-1]
    threshold = float(np.quantile(null_statistics(n).one_sided, alpha, method="lower"))
    return binomial_cdf(np.rint(coverage_curve(rank, levels) * n), n, levels) <= threshold


def label(p_value: ArrayLike, certificate_p_value: ArrayLike, alpha: float = 0.05) -> NDArray[np.str_]:
    """The verdict from its two p-values; *overconfident* takes precedence, and NaN is *inconclusive*."""
    p, c = np.asarray(p_value), np.asarray(certificate_p_value)
    return np.where(p <= alpha, OVERCONFIDENT, np.where(c <= alpha, CERTIFIED, INCONCLUSIVE))


def holm(p_value: ArrayLike) -> Array:
    """Holm's adjusted p-values over all entries but NaN: reject those up to α, and any false rejection has chance ≤ α.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_value, float)
    flat = p.ravel()
    order = np.argsort(flat)  # NaN last
    m = int((~np.isnan(flat)).sum())
    stepped = np.maximum.accumulate(flat[order][:m] * np.arange(m, 0, -1))
    adjusted = np.full_like(flat, np.nan)
    adjusted[order[:m]] = np.minimum(stepped, 1)
    return adjusted.reshape(p.shape)


def judge_cells(p_value: ArrayLike, certificate_p_value: ArrayLike, *, alpha: float = 0.05) -> NDArray[np.str_]:
    """Verdicts over many cells at once: both families of p-values go through Holm's step-down, then as for one cell.

    Arguments:
        p_value: of "coverage ≥ level everywhere" in each cell, any shape; NaN where a cell is missing.
        certificate_p_value: of "coverage < level - tolerance somewhere", same shape.
    """
    check_options(alpha, 0.0)
    return label(holm(p_value), holm(certificate_p_value), alpha)


def _asked(upper: bool) -> NDArray[np.bool_]:
    """The points of the grid at which coverage is compared with its level."""
    return np.where(upper, HALF <= GRID, True)


def _null(n: int, upper: bool) -> Array:
    null = null_statistics(n)
    return null.upper if upper else null.one_sided


def _pairs_to_settle(on_grid: Array, at_levels: Array, n: int, alpha: float, floor: Array, upper: bool) -> Array:
    """How many pairs more, were the true curve the one seen: bisection on log n for each test; `(cells,)`."""
    threshold, asked = float(np.quantile(_null(n, upper), alpha, method="lower")), _asked(upper)

    def overconfident(total: Array) -> NDArray[np.bool_]:
        return binomial_cdf(on_grid[:, asked] * total[:, None], total[:, None], GRID[asked]).min(-1) <= threshold

    needed = np.minimum(bisected(overconfident, n, len(on_grid)), pairs_to_certify(at_levels, n, alpha, floor))
    return np.maximum(np.ceil(needed - n), 1)
