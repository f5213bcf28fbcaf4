r"""Bands for coverage curves, and the null distribution behind them.

Let r₁, …, r_n be ranks with distribution function F, so that coverage at level u is F(u), and let N(u) = n F̂(u)
count the ranks up to u. N(u) is Bin(n, F(u)). At one level the exact interval for F(u) is Clopper and Pearson's. For
a whole curve, each level is judged by the probability of a count as extreme as the one seen,

.. math:: \gamma_1 = \min_z P(\mathrm{Bin}(n, z) \le N_z), \qquad
          \gamma_2 = \min_z 2 \min\{P(\mathrm{Bin}(n, z) \le N_z), P(\mathrm{Bin}(n, z) \ge N_z)\},

where N_z counts the ranks with F(r) ≤ z (Berk and Jones 1979; Owen 1995; Säilynoja, Bürkner and Vehtari 2022). F(r)
is uniform whatever F is, so both statistics have one distribution for each n. It is simulated here: the counts along
increasing z are a Markov chain with binomial steps, so a draw costs as many binomials as there are z, at n = 50 as at
n = 100,000.

- γ₁ small says that coverage falls below the level somewhere. With z equal to the level it is the test behind the
  verdict *overconfident* (`verdicts`).
- The set of curves with γ₂ above its 5% quantile is a simultaneous band: at every level a Clopper–Pearson interval,
  with a confidence raised from 95% to 1 - quantile so that the whole true curve lies inside 95% of the time.

The z are 199 points evenly spaced in arcsin √z, the scale on which the noise of a proportion is the same everywhere:
dense enough that a curve read at about a hundred levels, wherever its true values fall, is covered at the stated
rate.
"""

from __future__ import annotations

__all__ = ["calibration_band", "pointwise_band", "simultaneous_band", "simultaneous_threshold"]

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from equipoise.support.randomness import sequence

Array = NDArray[np.float64]

#: Where the curves are compared, in the scale of the true coverage.
GRID: Array = np.sin(np.linspace(0, np.pi / 2, 201)[1:-1]) ** 2
#: Levels that people report begin here.
HALF = 0.5
#: Simulated curves behind each threshold. The level of a 5% threshold is then known to ±0.15%.
DRAWS = 20_000


class NullStatistics(NamedTuple):
    """Sorted draws of γ₁, of γ₁ from level ½ upwards, and of γ₂, for calibrated ranks, each with shape `(DRAWS,)`."""

    one_sided: Array
    upper: Array
    two_sided: Array


def binomial_cdf(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """P(Bin(n, p) ≤ k) for real k, interpolating between the integers; 0 below 0 and 1 from n on."""
    k, n, p = np.broadcast_arrays(np.asarray(k, float), np.asarray(n, float), np.asarray(p, float))
    inner = np.clip(k, 0, n - 0.5)
    value = special.betainc(n - inner, inner + 1, 1 - p)
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, value))


def binomial_sf(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Array:
    """P(Bin(n, p) ≥ k) for real k; 1 up to 0 and 0 beyond n."""
    k, n, p = np.broadcast_arrays(np.asarray(k, float), np.asarray(n, float), np.asarray(p, float))
    inner = np.clip(k, 0.5, n)
    value = special.betainc(inner, n - inner + 1, p)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, value))


@lru_cache(maxsize=64)
def null_statistics(n: int) -> NullStatistics:
    """The distribution of these statistics over `n` calibrated ranks, simulated once for each n."""
    if n < 1:
        raise ValueError(f"a band needs at least one rank, got n = {n}")
    rng = np.random.default_rng(sequence(0, "diagnostics", "null statistics", n))
    one, upper, two = np.ones(DRAWS), np.ones(DRAWS), np.ones(DRAWS)
    count, below = np.zeros(DRAWS, dtype=np.int64), 0.0
    for z in GRID:
        count += rng.binomial(n - count, (z - below) / (1 - below))
        below = z
        first, last = int(count.min()), int(count.max())
        k = np.arange(first, last + 1)
        cdf, sf = binomial_cdf(k, n, z)[count - first], binomial_sf(k, n, z)[count - first]
        np.minimum(one, cdf, out=one)
        if z >= HALF:
            np.minimum(upper, cdf, out=upper)
        np.minimum(two, 2 * np.minimum(cdf, sf), out=two)
    return NullStatistics(np.sort(one), np.sort(upper), np.sort(two))


def simultaneous_threshold(n: int, confidence: float = 0.95) -> float:
    """The 1 - `confidence` quantile of γ₂: what each level's interval may miss so that the whole curve seldom is.

    Example:
        >>> 0.0005 < simultaneous_threshold(1000) < 0.05
        True
    """
    _check(confidence)
    return float(np.quantile(null_statistics(n).two_sided, 1 - confidence, method="lower"))


def pointwise_band(coverage: ArrayLike, n: int, confidence: float = 0.95) -> tuple[Array, Array]:
    """Clopper–Pearson intervals, one level at a time.

    Arguments:
        coverage: the empirical coverage F̂(u), with shape `(*, levels)`.
        n: the number of pairs behind it.
        confidence: the rate at which each level's interval holds its true coverage.

    Returns:
        The lower and the upper ends, each with shape `(*, levels)`.

    Example:
        >>> low, high = pointwise_band([0.95], 1000)
        >>> round(low.item(), 3), round(high.item(), 3)
        (0.935, 0.963)
    """
    _check(confidence)
    return _clopper_pearson(coverage, n, 1 - confidence)


def simultaneous_band(coverage: ArrayLike, n: int, confidence: float = 0.95) -> tuple[Array, Array]:
    """A band that holds the true curve, whatever it is, at all levels at once; shapes as `pointwise_band`."""
    return _clopper_pearson(coverage, n, simultaneous_threshold(n, confidence))


def calibration_band(levels: ArrayLike, n: int, confidence: float = 0.95) -> tuple[Array, Array]:
    """Where the whole empirical curve of a calibrated posterior lies with probability `confidence`; `(levels,)`.

    Example:
        >>> low, high = calibration_band([0.0, 0.5, 1.0], 1000)
        >>> bool(low[1] < 0.5 < high[1])
        True
    """
    u = np.asarray(levels, float)
    gamma = simultaneous_threshold(n, confidence)
    from scipy.stats import binom

    low = np.where(u <= 0, 0, np.where(u >= 1, n, binom.ppf(gamma / 2, n, u)))
    high = np.where(u <= 0, 0, np.where(u >= 1, n, n - binom.ppf(gamma / 2, n, 1 - u)))
    return low / n, high / n


def _clopper_pearson(coverage: ArrayLike, n: int, alpha: float) -> tuple[Array, Array]:
    k = np.rint(np.asarray(coverage, float) * n)
    with np.errstate(invalid="ignore"):
        low = np.where(k == 0, 0.0, special.betaincinv(np.maximum(k, 1), n - k + 1, alpha / 2))
        high = np.where(k == n, 1.0, special.betaincinv(k + 1, np.maximum(n - k, 1), 1 - alpha / 2))
    missing = np.isnan(k)
    return np.where(missing, np.nan, low), np.where(missing, np.nan, high)


def _check(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence lies strictly between 0 and 1, got {confidence}")
