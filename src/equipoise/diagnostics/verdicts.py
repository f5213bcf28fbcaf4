r"""Verdicts: is a posterior overconfident, certified conservative, or is it too early to tell?

Two questions, with the burden of proof on opposite sides, for n ranks with distribution function F (coverage).

*Overconfident* rejects "F(u) ≥ u at every level". The statistic is Berk and Jones's, one-sided,

.. math:: \gamma = \min_z P(\mathrm{Bin}(n, z) \le n \hat F(z)).

Under F(u) ≥ u the ranks are stochastically smaller than uniform ones and γ stochastically larger, so the uniform
distribution is the worst case of the hypothesis and its simulated distribution (`bands.null_statistics`) gives the
p-value. Simulation cannot resolve p below 1/draws; there the union bound P(γ ≤ c) ≤ K c over the K points of the grid
takes over, so that a correction for thousands of cells still has something to work with. Both bounds hold, so the
smaller may be reported.

*Certified conservative* rejects "F(u) < u - δ at some level". At each level of a fixed grid the hypothesis F(u) < u -
δ is tested alone; all must fall. This is an intersection–union test: if F is too low at one level, the certificate
needs that one test to err, which happens with probability at most α. No correction for multiplicity is due. It is the
same as asking every one-sided Clopper–Pearson lower bound to be at least u - δ.

For large n both can hold (coverage .94 at level .95, n = 10,000, δ = .02): *overconfident* takes precedence. If
neither holds the verdict is *inconclusive*, and the number of further pairs is reported at which one of the two would
be reached if the curve stayed where it is now.

Many cells (tasks × methods × budgets) are judged together by Holm's step-down, each of the two families on its own.
"""

from __future__ import annotations

__all__ = [
    "CERTIFIED",
    "INCONCLUSIVE",
    "OVERCONFIDENT",
    "Verdicts",
    "holm",
    "judge",
    "judge_cells",
    "lowest",
]

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bands import DRAWS, GRID, Array, binomial_cdf, binomial_sf, null_statistics
from .coverage import coverage_curve

OVERCONFIDENT = "overconfident"
CERTIFIED = "certified conservative"
INCONCLUSIVE = "inconclusive"

#: The levels at which a certificate is demanded.
CERTIFICATE_LEVELS: Array = np.arange(1, 100) / 100
#: Beyond this many pairs a projection is not worth making.
MAX_PAIRS = 1e9


class Verdicts(NamedTuple):
    """What `judge` finds; every field has the shape of the ranks without their last axis."""

    #: "overconfident", "certified conservative" or "inconclusive".
    verdict: NDArray[np.str_]
    #: Of "coverage ≥ level everywhere": small speaks for *overconfident*.
    p_value: Array
    #: Of "coverage < level - δ somewhere": small speaks for *certified conservative*.
    certificate_p_value: Array
    #: How many more pairs would settle it, if the curve stays as it is: 0 where settled, inf where it never would be.
    pairs_to_settle: Array


def judge(rank: ArrayLike, *, alpha: float = 0.05, delta: float = 0.02) -> Verdicts:
    """The verdict on each set of ranks.

    Arguments:
        rank: HPD ranks, with shape `(*, n)`.
        alpha: the rate of false verdicts, of either kind.
        delta: how far below its level a certified coverage may lie.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ranks = np.stack([rng.random(2000), rng.random(2000) ** 0.8, rng.random(2000) ** 1.25])
        >>> judge(ranks).verdict.tolist()
        ['inconclusive', 'overconfident', 'certified conservative']
    """
    _check(alpha, delta)
    rank = np.asarray(rank, float)
    n = rank.shape[-1]
    on_grid = coverage_curve(rank, GRID)
    at_levels = coverage_curve(rank, CERTIFICATE_LEVELS)
    p_value = overconfidence_p_value(on_grid, n)
    certificate = certificate_p_value(at_levels, n, delta)
    verdict = label(p_value, certificate, alpha)
    more = np.zeros(p_value.shape)
    open_ = verdict == INCONCLUSIVE
    if open_.any():
        more[open_] = _pairs_to_settle(on_grid[open_], at_levels[open_], n, alpha, delta)
    return Verdicts(verdict, p_value, certificate, more)


def overconfidence_p_value(coverage: ArrayLike, n: int) -> Array:
    """The p-value of "coverage ≥ level everywhere" for curves read on `bands.GRID`, with shape `(*, K)`."""
    coverage = np.asarray(coverage, float)
    gamma = binomial_cdf(np.rint(coverage * n), n, GRID).min(-1)
    simulated = (1 + np.searchsorted(null_statistics(n).one_sided, gamma, side="right")) / (DRAWS + 1)
    p = np.minimum(simulated, len(GRID) * gamma)
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


def certificate_p_value(coverage: ArrayLike, n: int, delta: float) -> Array:
    """The p-value of "coverage < level - δ somewhere" for curves read at `CERTIFICATE_LEVELS`, with shape `(*, 99)`."""
    coverage = np.asarray(coverage, float)
    floor = np.maximum(CERTIFICATE_LEVELS - delta, 0)
    p = np.where(floor > 0, binomial_sf(np.rint(coverage * n), n, floor), 0.0).max(-1)
    return np.where(np.isnan(coverage).any(-1), np.nan, p)


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
        certificate_p_value: of "coverage < level - δ somewhere", same shape.
    """
    _check(alpha, 0.0)
    return label(holm(p_value), holm(certificate_p_value), alpha)


def _pairs_to_settle(on_grid: Array, at_levels: Array, n: int, alpha: float, delta: float) -> Array:
    """How many pairs more, were the true curve the one seen: bisection on log n for each test; `(cells,)`."""
    threshold = float(np.quantile(null_statistics(n).one_sided, alpha, method="lower"))
    floor = CERTIFICATE_LEVELS - delta
    tested = floor > 0

    def overconfident(total: Array) -> NDArray[np.bool_]:
        return binomial_cdf(on_grid * total[:, None], total[:, None], GRID).min(-1) <= threshold

    def certified(total: Array) -> NDArray[np.bool_]:
        curve = at_levels[:, tested]
        return binomial_sf(curve * total[:, None], total[:, None], floor[tested]).max(-1) <= alpha

    needed = np.full(len(on_grid), np.inf)
    for settled in (overconfident, certified):
        low, high = np.full(len(on_grid), float(n)), np.full(len(on_grid), MAX_PAIRS)
        possible = settled(high)
        for _ in range(40):
            middle = np.sqrt(low * high)
            done = settled(middle)
            low, high = np.where(done, low, middle), np.where(done, middle, high)
        needed = np.where(possible, np.minimum(needed, high), needed)
    return np.maximum(np.ceil(needed - n), 1)


def _check(alpha: float, delta: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is a rate of false verdicts and lies strictly between 0 and 1, got {alpha}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is a tolerance on coverage and lies in [0, 1), got {delta}")
