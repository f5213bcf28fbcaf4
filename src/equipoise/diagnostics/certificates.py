r"""Certificates: is coverage at least its level, up to a tolerance?

*Certified conservative* rejects "F(u) < u - tol(u) at some level", with the tolerance

.. math:: \mathrm{tol}(u) = \min\{\delta, \rho (1 - u)\}, \qquad \delta = 0.02, \ \rho = \tfrac12,

which lets misses grow by half at most. (A constant δ lets them triple at level 0.99.) At each level of a fixed grid
the hypothesis F(u) < u - tol(u) is tested alone; all must fall. This is an intersection–union test: if F is too low at
one level, the certificate needs that one test to err, which happens with probability at most α. No correction for
multiplicity is due. It is the same as asking every one-sided Clopper–Pearson lower bound to be at least u - tol(u).
Levels with u ≤ tol(u) demand nothing. The claim is about the levels of the grid.

**Few effective points.** A rank estimated from E points has noise, which smooths the curve. From L draws of the
posterior, r = (R + V)/(L + 1) with R ~ Bin(L, true rank), so that, with k = ⌊u(L + 1)⌋ and f = u(L + 1) - k,

.. math:: F_L(u) = f\, E[F(B_{k+1})] + (1 - f)\, E[F(B_k)], \qquad B_k \sim \mathrm{Beta}(k, L + 1 - k),

a Bernstein polynomial of F. It is exactly the diagonal if F is. If F runs below the diagonal by d(u) = u - F(u), then
to second order d_L = d + ½ d'' u(1 - u)/E: a dip is pulled towards the diagonal. *Overconfident* keeps its error rate
under this, *certified conservative* does not. A dip d ∝ u(1 - u) loses the share 1/E at every level; a dip that lives
in the tail, on the scale 1 - u, has |d''| ~ d/(1 - u)² and loses a share of the order of 1/((1 - u)E). The share taken
here,

.. math:: \pi(u) = \frac{1}{3 u (1 - u)} \cdot \frac1n \sum_i \frac1{E_i},

was compared with the exact F_L of curves that miss the tolerance by nothing: Gaussians in 1 to 10 dimensions, Student t
truths with 3 to 30 degrees of freedom under Gaussian posteriors, mixtures with a share of 1 to 30% that is far too
tight. π exceeds what F_L loses in all of them, provided that E(1 - u) ≥ 1 up to the last level, 0.99: below 100 points
a tail is invisible, and F_L can be above the diagonal where F is below. So the certificate demands
F̂(u) ≥ u - (1 - π(u)) tol(u) instead, and nothing is certified if 1/mean(1/E) < 100. The mean of 1/E and not of E: one
pair in a hundred with E = 1 has a uniform rank whatever the posterior, and can hide a miss of 0.01.
"""

from __future__ import annotations

__all__ = [
    "CERTIFICATE_LEVELS",
    "LEAST_EFFECTIVE",
    "SHARE",
    "certificate_floor",
    "certificate_p_value",
    "pairs_for_certificate",
    "pairs_to_certify",
    "tolerance",
    "uncertifiable",
]

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.support.checks import finite_number
from equipoise.support.randomness import sequence
from equipoise.support.words import listed

from .bands import Array, binomial_sf
from .coverage import coverage_curve

#: The levels at which a certificate is demanded.
CERTIFICATE_LEVELS: Array = np.arange(1, 100) / 100
#: The tolerance at high levels, as a share of 1 - level.
SHARE = 0.5
#: Fewer effective points than this cannot certify the highest level, 0.99: about one of them lies beyond it.
LEAST_EFFECTIVE = 100
#: Beyond this many pairs a projection is not worth making.
MAX_PAIRS = 1e9


def tolerance(level: ArrayLike, delta: float = 0.02, share: float | None = SHARE) -> Array:
    """How far below its level a certified coverage may lie: min(delta, share · (1 - level)); delta if `share` is None.

    Example:
        >>> tolerance([0.5, 0.95, 0.98]).round(3)
        array([0.02, 0.02, 0.01])
    """
    level = np.asarray(level, float)
    return np.minimum(delta, np.inf if share is None else share * (1 - level))


def certificate_p_value(
    rank: ArrayLike, *, delta: float = 0.02, share: float | None = SHARE, effective: ArrayLike | None = None
) -> Array:
    """The p-value of "coverage < level - tolerance somewhere", `(*,)` from ranks `(*, n)`; arguments as `judge`."""
    rank = np.asarray(rank, float)
    floor = certificate_floor(rank, delta, share, effective)
    return certificate(coverage_curve(rank, CERTIFICATE_LEVELS), rank.shape[-1], floor)


def certificate_floor(
    rank: ArrayLike, delta: float = 0.02, share: float | None = SHARE, effective: ArrayLike | None = None
) -> Array:
    """What coverage is tested against at `CERTIFICATE_LEVELS`, `(99,)`, or `(*, 99)` if `effective` is given.

    0 where nothing is demanded, 1 where too few effective points show nothing.
    """
    tol = tolerance(CERTIFICATE_LEVELS, delta, share)
    # A hundredth is not representable: 0.02 - 0.02 should be 0 whatever the two are computed from.
    void = tol + 1e-12 >= CERTIFICATE_LEVELS
    if effective is None:
        return np.where(void, 0.0, CERTIFICATE_LEVELS - tol)
    effective = np.asarray(effective, float)
    if not (effective >= 0).all():
        raise ValueError("effective is a number of points for each rank and not negative or NaN")
    pull = np.broadcast_to(1 / np.maximum(effective, 1), np.shape(rank)).mean(-1)[..., None]
    lost = np.minimum(pull / (3 * CERTIFICATE_LEVELS * (1 - CERTIFICATE_LEVELS)), 1)
    floor = np.where(void, 0.0, CERTIFICATE_LEVELS - (1 - lost) * tol)
    return np.where(pull * LEAST_EFFECTIVE > 1 + 1e-9, 1.0, floor)


def certificate(coverage: Array, n: int, floor: Array) -> Array:
    """The p-value for curves at `CERTIFICATE_LEVELS`, `(*, 99)`, and a floor that broadcasts to them; `(*,)`."""
    p = _tails(np.rint(coverage * n), n, floor).max(-1)
    return np.where(np.isnan(coverage).any(-1), np.nan, p)


def _tails(count: Array, n: ArrayLike, floor: Array) -> Array:
    """P(Bin(n, floor) ≥ count) at each level; 0 where nothing is demanded, 1 where nothing can be shown."""
    p = binomial_sf(count, n, np.clip(floor, 0.0, 1.0))
    return np.where(floor <= 0, 0.0, np.where(floor >= 1, 1.0, p))


def uncertifiable(
    rank: ArrayLike, effective: ArrayLike, names: Sequence[str], *, alpha: float = 0.05, delta: float = 0.02
) -> str | None:
    """A sentence on the rows of `rank`, `(K, n)`, that would be certified if the points behind them were not so few."""
    effective = np.nan_to_num(np.asarray(effective, float))
    exact = certificate_p_value(rank, delta=delta) <= alpha
    lost = exact & ~(certificate_p_value(rank, delta=delta, effective=effective) <= alpha)
    number = 1 / (1 / np.maximum(effective, 1)).mean(-1)
    words = [f"member {name}" if name.isdigit() else name for name in names]
    few = [f"{name} ({value:.3g})" for name, value, no in zip(words, number, lost, strict=True) if no]
    if not few:
        return None
    return (
        f"{listed(few)}: no certificate, since the effective points behind a rank (harmonic mean in brackets) are too "
        f"few: {LEAST_EFFECTIVE} at least, 1,000 for high levels; take more, with samples="
    )


def pairs_for_certificate(
    coverage: ArrayLike,
    power: float = 0.8,
    *,
    alpha: float = 0.05,
    delta: float = 0.02,
    share: float | None = SHARE,
    effective: float | None = None,
    runs: int = 4000,
) -> int:
    """How many pairs certify a posterior of this coverage with probability `power`, by simulation.

    Arguments:
        coverage: the true coverage at `CERTIFICATE_LEVELS`, with shape `(99,)`.
        power: the probability that the certificate is given.
        alpha, delta, share: as `judge`.
        effective: the effective number of points behind every rank; None for exact ranks.
        runs: simulated data sets for each number of pairs; the same random numbers for all.

    Returns:
        The number of pairs, to about 2%; `MAX_PAIRS` if coverage is nowhere above the tolerance's floor.
    """
    from scipy.stats import binom  # here, since it takes long to import

    check_options(alpha, delta, share)
    coverage, floor = np.asarray(coverage, float), certificate_floor([0.0], delta, share, effective)
    tested = floor > 0
    if (coverage[tested] <= floor[tested]).any():
        return int(MAX_PAIRS)
    z = np.clip(np.diff(coverage, prepend=0) / np.maximum(1 - np.append(0, coverage[:-1]), 1e-300), 0, 1)

    def given(n: int) -> float:
        rng = np.random.default_rng(sequence(0, "diagnostics", "pairs for a certificate"))
        count, passed = np.zeros(runs, dtype=np.int64), np.ones(runs, dtype=bool)
        least = np.where(tested, binom.isf(alpha, n, floor) + 1, 0)
        for step, needed in zip(z, least, strict=True):
            count += rng.binomial(n - count, step)
            passed &= count >= needed
        return float(passed.mean())

    low, high = 10, 20
    while given(high) < power and high < MAX_PAIRS:
        low, high = high, 2 * high
    while high - low > max(1, low // 400):
        middle = (low + high) // 2
        low, high = (low, middle) if given(middle) >= power else (middle, high)
    return high


def pairs_to_certify(at_levels: Array, n: int, alpha: float, floor: Array) -> Array:
    """How many pairs in all would certify, were the true curve the one seen; inf where none would; `(cells,)`.

    Arguments:
        at_levels: coverage at `CERTIFICATE_LEVELS`, with shape `(cells, 99)`.
        n: the number of pairs behind it.
        alpha: the level of the certificate.
        floor: what coverage is tested against (`certificate_floor`), broadcast to `(cells, 99)`.
    """

    def certified(total: Array) -> NDArray[np.bool_]:
        return _tails(at_levels * total[:, None], total[:, None], floor).max(-1) <= alpha

    return bisected(certified, n, len(at_levels))


def bisected(settled: Callable[[Array], NDArray[np.bool_]], n: int, cells: int) -> Array:
    """The number of pairs from n on at which `settled` holds, by bisection on its logarithm; inf where never."""
    low, high = np.full(cells, float(n)), np.full(cells, MAX_PAIRS)
    possible = settled(high)
    for _ in range(40):
        middle = np.sqrt(low * high)
        done = settled(middle)
        low, high = np.where(done, low, middle), np.where(done, middle, high)
    return np.where(possible, high, np.inf)


def check_options(alpha: float, delta: float, share: float | None = None) -> None:
    finite_number("alpha", alpha, above=0, below=1)
    finite_number("delta", delta, least=0, below=1)
    if share is not None and not 0 < finite_number("share", share) <= 1:
        raise ValueError(f"share is the tolerance as a share of 1 - level and lies in (0, 1], or None, got {share}")
