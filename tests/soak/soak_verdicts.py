"""How often verdicts are wrong, and what they find, counted on posteriors in closed form.

Every function gives rows of a table. `scale` multiplies the number of simulated data sets: 1 for the long run, less
for the tests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize, stats

from equipoise.diagnostics import bands, certificates, uniformity_p_value, verdicts, weighted_rank
from equipoise.diagnostics.coverage import coverage_curve

LEVELS = certificates.CERTIFICATE_LEVELS
SIZES = (500, 1000, 2000, 4000)
#: A count that a rate at its bound exceeds once in a million.
TINY = 1e-6


class Row(NamedTuple):
    """Of `runs` data sets `count` had the event; `bound` is the rate that is promised, or None."""

    table: str
    name: str
    count: int
    runs: int
    bound: float | None = 0.05

    @property
    def holds(self) -> bool:
        return self.bound is None or self.count <= stats.binom.isf(TINY, self.runs, self.bound)

    @property
    def rate(self) -> float:
        return self.count / self.runs


# --- ranks of calibrated posteriors ----------------------------------------------------------------------------------


def _ranks(statistic, truth, rng, log_weight=None, truth_log_weight=None) -> np.ndarray:
    """Ranks `(n,)` from a statistic of points `(S, n)` and of the truth `(n,)`, as the package computes them."""
    as_tensor = torch.as_tensor
    weights = {} if log_weight is None else {"log_weight": as_tensor(log_weight)}
    if truth_log_weight is not None:
        weights["truth_log_weight"] = as_tensor(truth_log_weight)
    uniform = as_tensor(rng.random(len(truth)))
    return weighted_rank(as_tensor(statistic), as_tensor(truth), uniform=uniform, **weights).numpy()


def gaussian(dim: int, draws: int) -> Callable:
    return lambda n, rng: _ranks(-rng.chisquare(dim, (draws, n)), -rng.chisquare(dim, n), rng)


def weighted(dim: int, points: int, scale: float) -> Callable:
    """Points of N(0, scale² I) with weights for N(0, I); only their radius matters."""

    def ranks(n: int, rng: np.random.Generator) -> np.ndarray:
        proposed, truth = scale**2 * rng.chisquare(dim, (points, n)), rng.chisquare(dim, n)
        weight = 0.5 * (1 / scale**2 - 1)
        return _ranks(-proposed, -truth, rng, weight * proposed, weight * truth)

    return ranks


def flat(n: int, rng: np.random.Generator) -> np.ndarray:
    return _ranks(np.zeros((10, n)), np.zeros(n), rng)


def discrete_theta(n: int, rng: np.random.Generator) -> np.ndarray:
    chances = np.array([0.5, 0.2, 0.2, 0.05, 0.05])
    theta, points = rng.choice(5, n, p=chances), rng.choice(5, (20, n), p=chances)
    return _ranks(chances[points], chances[theta], rng)


def discrete_x(n: int, rng: np.random.Generator) -> np.ndarray:
    theta = rng.random(n)
    a = 1 + rng.binomial(5, theta)
    b = 7 - a
    points = rng.beta(a, b, (20, n))
    return _ranks(stats.beta.logpdf(points, a, b), stats.beta.logpdf(theta, a, b), rng)


def mixture(n: int, rng: np.random.Generator) -> np.ndarray:
    def draw(shape):
        return np.where(rng.random(shape) < 0.3, rng.normal(-2, 0.2, shape), rng.normal(1, 1.0, shape))

    def density(t):
        return np.logaddexp(np.log(0.3) + stats.norm.logpdf(t, -2, 0.2), np.log(0.7) + stats.norm.logpdf(t, 1, 1))

    return _ranks(density(draw((20, n))), density(draw(n)), rng)


CALIBRATED: dict[str, Callable] = {
    "exact ranks": lambda n, rng: rng.random(n),
    "D = 1, 1 draw": gaussian(1, 1),
    "D = 3, 10 draws": gaussian(3, 10),
    "D = 10, 20 draws": gaussian(10, 20),
    "weighted points, D = 2, E about 10": weighted(2, 20, 1.5),
    "weighted points, D = 10, E about 2": weighted(10, 20, 1.5),
    "ties: a flat posterior": flat,
    "ties: discrete θ": discrete_theta,
    "discrete x": discrete_x,
    "a mixture of two Gaussians": mixture,
}


def _pieces(make: Callable, total: int, rng: np.random.Generator) -> np.ndarray:
    size = 200_000
    return np.concatenate([make(min(size, total - k), rng) for k in range(0, total, size)])


def overconfident_p(rank: np.ndarray) -> np.ndarray:
    return verdicts.overconfidence_p_value(coverage_curve(rank, bands.GRID), rank.shape[-1])


def false_overconfident(scale: float = 1.0) -> Iterator[Row]:
    """How often calibrated posteriors are called overconfident."""
    for k, (name, make) in enumerate(CALIBRATED.items()):
        pool = _pieces(make, int(4_000_000 * scale), np.random.default_rng([1, k]))
        for n in SIZES:
            ranks = pool[: len(pool) // n * n].reshape(-1, n)[:2000]
            yield Row(
                "called overconfident, calibrated",
                f"{name}, n = {n}",
                int((overconfident_p(ranks) <= 0.05).sum()),
                len(ranks),
            )


# --- certificates of what lacks coverage ------------------------------------------------------------------------------


def dipped(level: float, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Ranks whose coverage lacks the tolerance at one level and is far above elsewhere: the worst case."""
    floor, eps = level - float(certificates.tolerance(level)), 1e-3
    after = min(level + 0.2, 0.6 + 0.4 * level)
    values, levels = [0, floor - eps, floor - 1e-9, after, 1], [0, eps, level, level + eps, 1]
    return np.interp(rng.random(shape), values, levels)


def false_certificates(scale: float = 1.0) -> Iterator[Row]:
    """How often the worst case is certified, for exact ranks."""
    runs = int(20_000 * scale)
    for n in SIZES:
        worst: Row | None = None
        for level in (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.97, 0.98):
            rng = np.random.default_rng([2, n, round(100 * level)])
            sizes = [min(1000, runs - k) for k in range(0, runs, 1000)]
            p = np.concatenate([certificates.certificate_p_value(dipped(level, (k, n), rng)) for k in sizes])
            row = Row("certified, worst case", f"n = {n}, level {level}", int((p <= 0.05).sum()), runs)
            worst = row if worst is None or row.count > worst.count else worst
        assert worst is not None
        yield worst


def _lacks(curve: Callable[[np.ndarray, float], np.ndarray], low: float, high: float) -> float:
    """The parameter at which a family of curves misses the tolerance by nothing; too tight below it."""
    floor = LEVELS - certificates.tolerance(LEVELS)
    tested = floor > 1e-9
    return optimize.brentq(lambda s: (curve(LEVELS, s) - floor)[tested].min() + 1e-9, low, high, xtol=1e-12)


def too_tight(dim: int) -> Callable:
    """True ranks under a Gaussian posterior in D dimensions that misses the tolerance by nothing."""
    inverse = stats.chi2.ppf(LEVELS, dim)
    scale = _lacks(lambda u, s: stats.chi2.cdf(s**2 * inverse, dim), 0.7, 1.0)
    return lambda shape, rng: stats.chi2.cdf(rng.chisquare(dim, shape) / scale**2, dim)


def heavy_tails(degrees: float) -> Callable:
    """Student t truth under a Gaussian posterior, D = 1."""
    inverse = stats.norm.ppf(0.5 + LEVELS / 2)
    scale = _lacks(lambda u, s: 2 * stats.t.cdf(s * inverse, degrees) - 1, 0.5, 10.0)
    return lambda shape, rng: 2 * stats.norm.cdf(abs(rng.standard_t(degrees, shape)) / scale) - 1


def some_far_too_tight(scale: float) -> Callable:
    """Calibrated but for a share of the pairs, where the posterior is far too tight, D = 1."""
    inverse = stats.norm.ppf(0.5 + LEVELS / 2)
    narrow = 2 * stats.norm.cdf(scale * inverse) - 1
    share = 1 - _lacks(lambda u, good: good * u + (1 - good) * narrow, 0.0, 1.0)

    def ranks(shape, rng):
        rank = rng.random(shape)
        z = stats.norm.ppf(0.5 + rank / 2)
        return np.where(rng.random(shape) < share, 2 * stats.norm.cdf(z / scale) - 1, rank)

    return ranks


LACKING: dict[str, Callable[[], Callable]] = {
    **{f"Gaussian, D = {d}": lambda d=d: too_tight(d) for d in (1, 2, 5, 10)},
    "Student t with 3 degrees of freedom": lambda: heavy_tails(3),
    "some pairs at half the width": lambda: some_far_too_tight(0.5),
    "some pairs at a tenth of the width": lambda: some_far_too_tight(0.1),
}
EFFECTIVE = (1, 10, 100, 200, 1000, 10_000, np.inf)


def false_certificates_of_draws(scale: float = 1.0, n: int = 4000) -> Iterator[Row]:
    """How often a posterior that misses the tolerance by nothing is certified, by the draws behind a rank."""
    runs = max(20, int(2000 * scale))
    for k, (name, make) in enumerate(LACKING.items()):
        draw = make()
        for number in EFFECTIVE:
            count = 0
            rng = np.random.default_rng([3, k, 0 if np.isinf(number) else int(number)])
            for _ in range(0, runs, 20):
                rank, effective = draw((20, n), rng), None
                if np.isfinite(number):
                    rank = (rng.binomial(int(number), rank) + rng.random(rank.shape)) / (number + 1)
                    effective = np.full(n, number)
                count += int((certificates.certificate_p_value(rank, effective=effective) <= 0.05).sum())
            total = len(range(0, runs, 20)) * 20
            yield Row("certified by draws, misses the tolerance", f"{name}, E = {number}", count, total)


def false_certificates_of_weights(scale: float = 1.0, n: int = 2000) -> Iterator[Row]:
    """The same for weighted points of a wider proposal, with their own effective numbers."""
    runs = max(10, int(200 * scale))
    for dim, points, wide in ((1, 50, 1.5), (1, 400, 1.5), (2, 400, 1.5), (5, 400, 1.3), (10, 800, 1.2)):
        inverse = stats.chi2.ppf(LEVELS, dim)
        tight = _lacks(lambda u, s, inverse=inverse, dim=dim: stats.chi2.cdf(s**2 * inverse, dim), 0.7, 1.0)
        rng, count, numbers = np.random.default_rng([4, dim, points]), 0, []
        weight = 0.5 * (1 / wide**2 - 1)
        for _ in range(runs):
            proposed = wide**2 * rng.chisquare(dim, (points, n))
            truth = rng.chisquare(dim, n) / tight**2
            rank = _ranks(-proposed, -truth, rng, weight * proposed, weight * truth)
            w = np.exp(weight * proposed)
            numbers.append(w.sum(0) ** 2 / (w**2).sum(0))
            count += int(certificates.certificate_p_value(rank, effective=numbers[-1]) <= 0.05)
        name = f"D = {dim}, {points} points, E about {np.mean(numbers):.0f}"
        yield Row("certified by weighted points, misses the tolerance", name, count, runs)


# --- bands and families -----------------------------------------------------------------------------------------------


def bands_miss(scale: float = 1.0) -> Iterator[Row]:
    """How often the true curve leaves the simultaneous 95% band somewhere."""
    runs, levels = int(4000 * scale), np.linspace(0, 1, 101)
    for n in (100, *SIZES):
        for width, dim in ((0.7, 1), (1.0, 2), (1.5, 5)):
            truth = stats.chi2.cdf(width**2 * stats.chi2.ppf(levels, dim), dim)
            rng = np.random.default_rng([5, n, dim])
            rank = stats.chi2.cdf(rng.chisquare(dim, (runs, n)) / width**2, dim)
            low, high = bands.simultaneous_band(coverage_curve(rank, levels), n)
            missed = ((truth < low - 1e-12) | (truth > high + 1e-12)).any(-1)
            yield Row("95% bands that miss the curve", f"width {width}, D = {dim}, n = {n}", int(missed.sum()), runs)


def holm_errs(scale: float = 1.0) -> Iterator[Row]:
    """How often any cell of a family gets a false verdict after Holm's correction."""
    runs, n = max(20, int(1000 * scale)), 1000
    for cells in (10, 100):
        false = {"overconfident": 0, "certified": 0}
        rng = np.random.default_rng([6, cells])
        for _ in range(runs):
            p = overconfident_p(rng.random((cells, n)))
            false["overconfident"] += int((verdicts.holm(p) <= 0.05).any())
            p = certificates.certificate_p_value(dipped(0.9, (cells, n), rng))
            false["certified"] += int((verdicts.holm(p) <= 0.05).any())
        for what, count in false.items():
            yield Row("a false verdict in a family, Holm", f"{cells} cells, {what}", count, runs)


# --- power ------------------------------------------------------------------------------------------------------------


def _gaussian_world(n: int, runs: int, rng, dim: int, scale: float = 1.0, bias: float = 0.0, degrees: float = np.inf):
    """HPD, SBC and TARP ranks of N(bias e₁, scale² I) where θ* has N(0, I), or Student's t in each coordinate."""
    theta = rng.normal(size=(runs, n, dim)) if np.isinf(degrees) else rng.standard_t(degrees, (runs, n, dim))
    theta[..., 0] -= bias
    reference = rng.normal(0, 2, (runs, n, dim))
    hpd = stats.chi2.cdf((theta**2).sum(-1) / scale**2, dim)
    sbc = stats.norm.cdf(np.moveaxis(theta, -1, 1) / scale)
    noncentrality = (reference**2).sum(-1) / scale**2
    tarp = stats.ncx2.cdf(((theta - reference) ** 2).sum(-1) / scale**2, dim, noncentrality)
    return hpd, sbc, tarp


def _dip_world(n: int, runs: int, rng):
    return np.interp(rng.random((runs, n)), [0, 0.9, 0.92, 1], [0, 0.9, 0.95, 1]), None, None


WORLDS: dict[str, Callable] = {
    "calibrated, D = 2": lambda n, runs, rng: _gaussian_world(n, runs, rng, 2),
    "10% too wide, D = 2": lambda n, runs, rng: _gaussian_world(n, runs, rng, 2, 1.1),
    "10% too tight, D = 1": lambda n, runs, rng: _gaussian_world(n, runs, rng, 1, 0.9),
    "5% too tight, D = 2": lambda n, runs, rng: _gaussian_world(n, runs, rng, 2, 0.95),
    "5% too tight, D = 5": lambda n, runs, rng: _gaussian_world(n, runs, rng, 5, 0.95),
    "shifted by 0.4 sd, D = 2": lambda n, runs, rng: _gaussian_world(n, runs, rng, 2, bias=0.4),
    "Student t (5) truth, D = 2": lambda n, runs, rng: _gaussian_world(n, runs, rng, 2, degrees=5),
    "coverage .92 at .95 alone": _dip_world,
}


def power(scale: float = 1.0, n: int = 1000) -> dict[str, dict[str, Row]]:
    """How often each test objects: *overconfident*, one-sided KS, Anderson–Darling, binomial at .95, SBC, TARP."""
    runs, found = max(20, int(400 * scale)), {}
    least = stats.binom.ppf(0.05, n, 0.95)  # fewer than this many covered are rejected
    for k, (name, make) in enumerate(WORLDS.items()):
        hpd, sbc, tarp = make(n, runs, np.random.default_rng([7, k]))
        order = np.sort(hpd, -1)
        i = np.arange(1, n + 1)
        inner = np.clip(order, 1e-15, 1 - 1e-15)
        darling = -n - ((2 * i - 1) * (np.log(inner) + np.log1p(-inner[:, ::-1]))).mean(-1)
        objects = {
            "overconfident": overconfident_p(hpd) <= 0.05,
            "KS, one-sided": (order - (i - 1) / n).max(-1) > np.sqrt(-np.log(0.05) / 2 / n),
            "Anderson–Darling": darling > 2.492,
            "binomial at .95": (hpd <= 0.95).sum(-1) < least,
        }
        if sbc is not None:
            objects["SBC"] = uniformity_p_value(sbc).min(-1) * sbc.shape[1] <= 0.05
            objects["TARP"] = uniformity_p_value(tarp) <= 0.05
        found[name] = {test: Row("power", name, int(o.sum()), runs, None) for test, o in objects.items()}
    return found


TABLES = (
    false_overconfident, false_certificates, false_certificates_of_draws, false_certificates_of_weights, bands_miss,
    holm_errs,
)  # fmt: skip


def main(scale: float) -> dict[str, int]:
    """Count everything, print a line for each rate, and say how many of how many are above what is promised."""
    counts = {"rates": 0, "datasets": 0, "wrong": 0}
    for table in TABLES:
        for row in table(scale):
            print(f"{row.table}; {row.name}: {row.count} of {row.runs}, {100 * row.rate:.1f}%", flush=True)
            counts["rates"] += 1
            counts["datasets"] += row.runs
            counts["wrong"] += not row.holds
    for world, tests in power(scale).items():
        print(world + ": " + ", ".join(f"{test} {100 * row.rate:.0f}%" for test, row in tests.items()), flush=True)
    return counts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("scale", type=float)
    total = main(options.parse_args().scale)
    print(" ".join(f"{key} {value}" for key, value in total.items()))
    sys.exit(min(total["wrong"], 1))
