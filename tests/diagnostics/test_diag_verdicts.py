"""Bands and verdicts on ranks with known distributions. Seeds are fixed; false-alarm rates are stated."""

from __future__ import annotations

import time

import numpy as np
import pytest
from diagnostics_fakes import coverage
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.diagnostics import bands, certificates, verdicts
from equipoise.diagnostics.coverage import coverage_auc, coverage_curve, levels_covered
from equipoise.diagnostics.uniformity import uniformity_p_value

LEVELS = np.linspace(0, 1, 101)


def gaussian_ranks(scale: float, dim: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """HPD ranks of θ* under a Gaussian posterior `scale` times too wide, in `dim` dimensions."""
    q = np.random.default_rng(seed).chisquare(dim, shape)
    return stats.chi2.cdf(q / scale**2, dim)


def piecewise(levels: list[float], values: list[float], shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Ranks whose coverage curve runs linearly through the given points."""
    u = np.random.default_rng(seed).random(shape)
    return np.interp(u, [0, *values, 1], [0, *levels, 1])


def p_values(ranks: np.ndarray) -> np.ndarray:
    return verdicts.overconfidence_p_value(coverage_curve(ranks, bands.GRID), ranks.shape[-1])


def test_curve_follows_the_closed_form():
    for scale, dim in ((0.7, 1), (1.0, 2), (1.5, 5)):
        curve = coverage_curve(gaussian_ranks(scale, dim, (200_000,), 0), LEVELS)
        # The Kolmogorov distance of 200,000 draws exceeds 0.005 once in 20,000.
        assert abs(curve - coverage(scale, dim, LEVELS)).max() < 0.005


def test_area_is_a_half_minus_the_mean_rank():
    rank = gaussian_ranks(1.3, 2, (3, 500), 1)
    area, error = coverage_auc(rank)
    fine = np.linspace(0, 1, 20_001)
    integral = np.trapezoid(coverage_curve(rank, fine) - fine, fine)
    np.testing.assert_allclose(area, 0.5 - rank.mean(-1))
    np.testing.assert_allclose(area, integral, atol=1e-4)
    np.testing.assert_allclose(error, stats.sem(rank, axis=-1))


def test_median_of_runs_is_taken_level_by_level():
    runs = gaussian_ranks(1.0, 2, (5, 400), 2)
    curves = coverage_curve(runs, LEVELS)
    median = np.median(curves, 0)
    assert median.shape == LEVELS.shape and (np.diff(median) >= 0).all()
    assert ((median >= curves.min(0)) & (median <= curves.max(0))).all()


def test_levels_covered_counts_inner_levels():
    assert levels_covered(LEVELS, LEVELS) == 99
    assert levels_covered(LEVELS - 1e-6, LEVELS) == 0
    assert levels_covered(coverage_curve(np.zeros(10), LEVELS), LEVELS) == 99


@pytest.mark.parametrize(("k", "n"), [(0, 50), (50, 50), (47, 50), (930, 1000)])
def test_pointwise_band_is_clopper_and_pearsons(k: int, n: int):
    low, high = bands.pointwise_band(k / n, n)
    exact = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose([low, high], [exact.low, exact.high], atol=1e-12)


@given(st.integers(0, 60), st.integers(1, 60), st.floats(0.001, 0.999))
def test_binomial_tails_are_scipys(k: int, n: int, p: float):
    k = min(k, n)
    np.testing.assert_allclose(bands.binomial_cdf(k, n, p), stats.binom.cdf(k, n, p), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(bands.binomial_sf(k, n, p), stats.binom.sf(k - 1, n, p), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("n", [50, 700])
def test_null_statistics_are_those_of_uniform_ranks(n: int):
    ranks = np.random.default_rng(n).random((3000, n))
    counts = (ranks[:, :, None] <= bands.GRID).sum(1) if n < 100 else np.rint(coverage_curve(ranks, bands.GRID) * n)
    one = stats.binom.cdf(counts, n, bands.GRID).min(-1)
    two = 2 * np.minimum(stats.binom.cdf(counts, n, bands.GRID), stats.binom.sf(counts - 1, n, bands.GRID)).min(-1)
    null = bands.null_statistics(n)
    # Two-sample Kolmogorov–Smirnov; each p-value falls below 1e-4 once in 10,000.
    assert stats.ks_2samp(one, null.one_sided).pvalue > 1e-4
    assert stats.ks_2samp(two, null.two_sided).pvalue > 1e-4


@pytest.mark.parametrize(("scale", "dim"), [(0.7, 2), (1.0, 2), (1.5, 3)])
@pytest.mark.parametrize("n", [100, 1000])
def test_simultaneous_band_holds_the_true_curve_at_its_rate(scale: float, dim: int, n: int):
    curves = coverage_curve(gaussian_ranks(scale, dim, (2000, n), n), LEVELS)
    low, high = bands.simultaneous_band(curves, n)
    truth = coverage(scale, dim, LEVELS)
    held = ((low <= truth + 1e-12) & (truth <= high + 1e-12)).all(-1).mean()
    # 2000 repetitions at 95%: ±0.0195 is four standard errors. Discreteness makes the band somewhat wider.
    assert 0.95 - 0.0195 < held < 0.995
    low, high = bands.pointwise_band(curves, n)
    assert ((low <= truth + 1e-12) & (truth <= high + 1e-12)).mean(0).min() > 0.95 - 0.0195


@pytest.mark.parametrize("n", [50, 1000])
def test_calibration_band_holds_the_curve_of_calibrated_ranks(n: int):
    ranks = np.random.default_rng(3).random((2000, n))
    curves = coverage_curve(ranks, LEVELS)
    low, high = bands.calibration_band(LEVELS, n)
    held = ((low <= curves + 1e-12) & (curves <= high + 1e-12)).all(-1)
    assert 0.93 < held.mean() < 0.99
    assert abs((uniformity_p_value(ranks) <= 0.05).mean() - 0.05) < 0.0195


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_overconfident_is_rarely_said_of_what_is_not(n: int, scale: float):
    rate = (p_values(gaussian_ranks(scale, 2, (2000, n), n + 1)) <= 0.05).mean()
    # At most 5%, plus three standard errors of 2000 repetitions.
    assert rate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize(("level", "n"), [(0.5, 1000), (0.9, 1000), (0.95, 10_000), (0.98, 10_000), (0.3, 10_000)])
def test_a_certificate_is_rarely_given_to_what_lacks_it_at_one_level(level: float, n: int):
    # Coverage is too low by the tolerance at one level and nowhere else: the hardest case for an intersection–union
    # test. The dip is narrow, and everything else far above, so that the certificate hangs on that level alone.
    delta, eps = float(verdicts.tolerance(level)), 1e-3
    after = min(level + 0.2, 0.6 + 0.4 * level)
    ranks = piecewise([eps, level, level + eps], [level - delta - eps, level - delta, after], (2000, n), n)
    certificate = verdicts.certificate_p_value(ranks) <= 0.05
    # Four standard errors of 2000 repetitions. The certificate is not vacuous here either: it errs at nearly its rate.
    assert 0.01 < certificate.mean() <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("start", [0.8, 0.9])
def test_power_against_092_at_095(start: float):
    # A dip that is confined to the levels around .95, the hard case: one-sided Kolmogorov–Smirnov finds it a quarter
    # of the time.
    ranks = piecewise([start, 0.95], [start, 0.92], (1000, 1000), 7)
    assert (p_values(ranks) <= 0.05).mean() >= 0.85
    deviation = (np.sort(ranks, -1) - np.arange(1000) / 1000).max(-1)
    assert (deviation > 1.2239 / np.sqrt(1000)).mean() < 0.35
    # A Gaussian that is too narrow by the same measure.
    scale = stats.norm.ppf(0.96) / stats.norm.ppf(0.975)
    assert (p_values(gaussian_ranks(scale, 1, (300, 1000), 8)) <= 0.05).mean() >= 0.95


def test_overconfident_takes_precedence():
    ranks = np.interp((np.arange(20_000) + 0.5) / 20_000, [0, 0.94, 1], [0, 0.95, 1])
    found = verdicts.judge(ranks)
    assert found.certificate_p_value <= 0.05 and found.p_value <= 0.05
    assert found.verdict == "overconfident"


def test_verdicts_of_clear_cases():
    found = verdicts.judge(np.stack([gaussian_ranks(s, 2, (1500,), 10) for s in (0.6, 1.0, 1.6)]))
    assert found.verdict.tolist() == ["overconfident", "inconclusive", "certified conservative"]
    assert found.pairs_to_settle[0] == found.pairs_to_settle[2] == 0 < found.pairs_to_settle[1]


@pytest.mark.parametrize("scale", [0.93, 1.0, 1.1])
def test_pairs_to_settle_is_where_the_present_curve_would_settle(scale: float):
    n, runs = 300, 0
    for seed in range(12):
        ranks = gaussian_ranks(scale, 2, (n,), seed)
        found = verdicts.judge(ranks)
        if found.verdict != "inconclusive" or not found.pairs_to_settle < 20_000:
            continue
        runs += 1
        # The same curve with as many pairs as the projection asks for, and with a third fewer of the additional ones.
        for share, settled in ((1.1, True), (0.65, False)):
            total = n + int(share * found.pairs_to_settle)
            on_grid, at_levels = (coverage_curve(ranks, g) for g in (bands.GRID, certificates.CERTIFICATE_LEVELS))
            over = bands.binomial_cdf(on_grid * total, total, bands.GRID).min()
            threshold = np.quantile(bands.null_statistics(n).one_sided, 0.05)
            floor = np.maximum(certificates.certificate_floor(ranks), 1e-12)
            certified = bands.binomial_sf(at_levels * total, total, floor).max()
            assert (over <= threshold or certified <= 0.05) == settled
    assert runs >= 4


def test_a_calibrated_curve_is_certified_once_its_noise_fits_into_the_tolerance():
    # With coverage equal to the level, the lower bound at level ½ is ½ - 1.645 √(¼/n): within δ = .02 of it from n =
    # 1691 on.
    found = verdicts.judge((np.arange(1000) + 0.5) / 1000)
    assert found.verdict == "inconclusive"
    assert abs(1000 + found.pairs_to_settle - (1.645 * 0.5 / 0.02) ** 2) < 100


@pytest.mark.parametrize("n", [50, 100_000])
def test_judging_is_fast_for_few_and_many_pairs(n: int):
    bands.null_statistics.cache_clear()
    ranks = np.random.default_rng(0).random((41, n))
    started = time.perf_counter()
    verdicts.judge(ranks)
    assert time.perf_counter() - started < 10


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12))
def test_holm_is_its_definition(p: list[float]):
    adjusted = verdicts.holm(p)
    for alpha in (0.01, 0.05, 0.3):
        rejected = set()
        for step, i in enumerate(np.argsort(p, kind="stable")):
            if p[i] * (len(p) - step) > alpha:
                break
            rejected.add(int(i))
        assert {i for i, a in enumerate(adjusted) if a <= alpha} == rejected


def test_holm_keeps_the_family_wise_rate_and_resolves_thousands_of_cells():
    families = np.random.default_rng(11).random((200, 40, 200))
    wrong = [(verdicts.judge_cells(p_values(f), np.ones(40)) == "overconfident").any() for f in families]
    # 5% of 200 families is 10; 21 or more has probability 1e-3.
    assert sum(wrong) <= 20
    p = np.append(np.full(1999, 0.5), verdicts.judge(gaussian_ranks(0.6, 2, (1000,), 12)).p_value)
    assert verdicts.judge_cells(p, np.ones(2000))[-1] == "overconfident"
    assert np.isnan(verdicts.holm([0.01, np.nan])[1])


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 1.5}, {"delta": -0.1}, {"share": 0.0}])
def test_bad_options_are_refused(options: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(options))):
        verdicts.judge(np.random.default_rng(0).random(100), **options)


def test_the_verdict_from_half_upwards_asks_nothing_of_lower_levels():
    rng = np.random.default_rng(5)
    false = (verdicts.judge(rng.random((1000, 500)), upper=True).p_value <= 0.05).mean()
    assert 0.02 < false < 0.08  # 5%; outside with probability 2e-5
    u = rng.random(3000)
    low_only = np.where(u < 0.4, 0.4 * np.sqrt(u / 0.4), u)  # coverage is too low up to level 0.4, and right above
    assert verdicts.judge(low_only).verdict == "overconfident"
    upper = verdicts.judge(low_only, upper=True)
    assert upper.verdict != "overconfident" and upper.p_value > 0.05
    high_only = np.where(u > 0.9, 1 - (1 - u) / 3, u * 0.9)  # too low at the highest levels alone
    assert verdicts.judge(high_only, upper=True).verdict == "overconfident"
    assert verdicts.judge(u**2, upper=True).verdict == "certified conservative"
