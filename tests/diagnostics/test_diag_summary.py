"""The summary: the gain over the prior, what was not learnt, and where a curve is below."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest
import torch
import xarray as xr
from diagnostics_fakes import SIGMA, TAU, GaussianPosterior, PriorPosterior, coverage, pairs
from scipy import stats

from equipoise.diagnostics import diagnose, summary
from equipoise.priors import GaussianPrior


@pytest.fixture(scope="module")
def result() -> xr.Dataset:
    theta, x = pairs(3000, 2, seed=0)
    return diagnose(GaussianPosterior([0.7, 1.0, 1.4], 2), theta, x, samples=100)


def test_the_gain_is_that_of_the_same_pairs(result: xr.Dataset):
    log_prior = stats.norm.logpdf(result.theta.values).sum(-1)
    gained = result.log_prob.values - log_prior
    np.testing.assert_allclose(result.gain, result.nominal_log_prob - result.prior_log_prob, rtol=1e-5)
    np.testing.assert_allclose(result.gain_se, stats.sem(gained, axis=-1), rtol=1e-5)
    row = next(line for line in summary(result).splitlines() if line.startswith("mixture  "))
    mixture = result.sel(member="mixture")
    assert f"{float(mixture.gain):+.2f} ± {float(mixture.gain_se):.2f}" in row
    assert "nats over prior" in summary(result) and "learnt" not in summary(result)


@pytest.mark.parametrize("kind", ["flow", "classifier"])
def test_a_certified_prior_is_said_to_have_learnt_nothing(kind: str):
    theta, x = pairs(8000, 2, seed=0)  # of 3,000 few would be certified
    prior = PriorPosterior(GaussianPrior(torch.zeros(2), torch.eye(2)), (2,), kind)
    ds = diagnose(prior, theta, x, samples=64, tolerance="constant")
    assert set(ds.verdict.values) == {"certified conservative"}
    text = summary(ds)
    assert "+0.00 ± 0.00" in text and not re.search(r"-0\.00(?!\d)", text)
    assert "posterior: the gain over the prior is indistinguishable from 0" in text
    assert "certified conservative says no more than that here" in text


def test_members_are_named_where_they_gain_nothing_or_lose(result: xr.Dataset):
    def told(gain, error):
        ds = result.assign(gain=("member", gain), gain_se=("member", error))
        return [line for line in summary(ds).splitlines() if "prior" in line and "nats" not in line]

    nan = np.nan
    assert told([1.0, 0.2, 0.3, 0.9], [0.1] * 4) == []  # 0.2 is 2 standard errors
    (line,) = told([1.0, 0.19, -0.19, 0.9], [0.1] * 4)
    assert line.startswith("1 and 2: the gain over the prior is indistinguishable from 0")
    (line,) = told([1.0, 1.0, -0.3, 0.9], [0.1] * 4)
    assert line == "2: says less about the true parameters than the prior does"
    (line,) = told([1.0, 0.004, 1.0, -np.inf], [0.001, 0.0, nan, nan])[:1]
    assert line.startswith("1: the gain over the prior is indistinguishable")
    assert told([nan] * 4, [nan] * 4) == []


def test_columns_of_what_is_not_known_are_left_out():
    theta, x = pairs(60, 2, seed=2)

    class Foreign:
        def sample(self, shape, x):
            return torch.randn(*shape, 2)

        def log_prob(self, theta, x):
            return torch.distributions.Normal(0.0, 1.0).log_prob(theta).sum(-1)

    head, *rest = summary(diagnose(Foreign(), theta, x, samples=20)).splitlines()
    assert "nats over prior" not in head and "information" not in head
    assert any("no prior was given: the gain over it" in line for line in rest)


def test_the_summary_says_where_an_overconfident_curve_is_below(result: xr.Dataset):
    # Above at every level up to .96, below at .99 alone: the area is positive.
    rank = np.append(np.linspace(0, 0.8, 2850), np.full(150, 0.995))
    ds = result.assign(rank=result["rank"].copy(data=np.tile(rank, (4, 1))))
    ds["verdict"] = ("member", np.array(["inconclusive", "inconclusive", "inconclusive", "overconfident"], object))
    (line,) = (line for line in summary(ds).splitlines() if "worst" in line)
    found = re.search(r"coverage (0\.\d+) at level (0\.\d+) \((0\.\d+) below", line)
    assert found and 0.985 < float(found[2]) < 0.995 and found[1] == "0.950"
    assert float(found[3]) == pytest.approx(float(found[2]) - 0.95, abs=0.0011)
    ds["verdict"] = ("member", np.array(["inconclusive"] * 4, object))
    assert "worst" not in summary(ds)


def test_leakage_is_told_from_a_hundredth_on(result: xr.Dataset):
    def told(*share: float, **attrs: str) -> list[str]:
        ds = result.assign(leakage=("member", list(share))).assign_attrs(attrs)
        return [line for line in summary(ds).replace("\n  ", " ").splitlines() if line.startswith("leakage")]

    assert told(0.0, 0.009, np.nan, 0.009) == []
    (line,) = told(0.172, 0.168, 0.02, 0.12)
    assert line.startswith(
        "leakage: 17% of the mass of 0 and 1, 2% of the mass of 2 and 12% of the mass of mixture lies"
    )
    assert "What is judged is the rest, scaled to 1" in line and 'start="prior"' in line
    (line,) = told(0.172, 0.0, 0.0, 0.0, recipe="released")
    assert line == "leakage: 17% of the mass of 0 lies outside the prior, and is judged with the rest"


def test_the_summary_ends_with_what_to_do(result: xr.Dataset):
    def told(*verdicts: str, more: float = 0.0, members: int = 4) -> list[str]:
        names = ["0", "1", "2", "mixture"][4 - members :] if members != 2 else ["0", "mixture"]
        ds = result.sel(member=names)
        ds = ds.assign(verdict=("member", np.array(verdicts, object)), pairs_to_settle=("member", [more] * members))
        ds["rank"] = ds["rank"].copy(data=np.tile(result["rank"].values[0], (members, 1)))  # of one that is too narrow
        lines = summary(ds).replace("\n  ", " ").splitlines()
        said = [line for line in lines if line.startswith("what to do")]
        assert lines[len(lines) - len(said) :] == said
        return said

    good, bad, open_ = "certified conservative", "overconfident", "inconclusive"
    assert told(good, good, good, good) == []
    assert told(bad, good, bad, good) == [
        "what to do: use the mixture as a whole; 0 and 2 alone would be overconfident"
    ]
    (line,) = told(bad, bad, bad, bad)
    assert line.startswith("what to do about mixture: temper it with eq.calibrate") and "nats" in line
    (line,) = told(bad, bad, members=2)  # the same ranks: one network, which is its own mixture
    assert line.startswith("what to do about posterior: mix several networks (eq.fit, members=5), or temper it")
    (line,) = told(good, good, good, open_, more=1234.0)
    assert line.startswith("what to do about mixture: judge again with about 4,200 fresh pairs in all")
    assert told(good, good, good, open_, more=np.inf) == []


def test_notes_on_members_are_for_those_who_use_members(result: xr.Dataset):
    ds = result.assign_attrs(notes="member 1 (97): no certificate\nthe mixture was drawn")
    assert "note: the mixture was drawn" in summary(ds) and "member 1 (97)" not in summary(ds)
    assert "note: member 1 (97): no certificate" in summary(ds.isel(member=[0, 1]))


def test_networks_that_are_not_mixed_are_advised_one_by_one():
    theta, x = pairs(500, 2, seed=3)
    ds = diagnose(GaussianPosterior([0.5, 2.0, 0.6], 2), theta, x, samples=128, mixture=False)
    (line,) = (line for line in summary(ds).splitlines() if line.startswith("what to do"))
    assert line.startswith("what to do about 0 and 2: ")
    assert all(len(line) <= 100 for line in summary(ds).splitlines() if line[:4] in ("what", "  pa"))


def test_a_single_posterior_has_one_row_and_is_its_own_mixture():
    theta, x = pairs(200, 2, seed=4)
    lines = summary(diagnose(GaussianPosterior([1.0], 2), theta, x, samples=50)).splitlines()
    assert lines[0].startswith("posterior: ") and not any(line.startswith(("0 ", "mixture")) for line in lines)
    assert sum(line.startswith("posterior  ") for line in lines) == 1


def test_intervals_and_regions_that_people_report():
    """Coverage of central intervals and of joint regions, by their closed forms; and the verdict from ½ upwards."""
    theta, x = pairs(4000, 2, seed=5)
    scales, levels = [0.6, 1.0], [0.5, 0.68, 0.95]
    ds = diagnose(GaussianPosterior(scales, 2), theta, x, samples=400, report_levels=levels)
    assert ds.report_level.values.tolist() == levels
    for member, scale in zip(("0", "1"), scales, strict=True):
        one = ds.sel(member=member)
        inside = 2 * stats.norm.cdf(scale * stats.norm.ppf((1 + np.array(levels)) / 2)) - 1
        for found, error, exact in (
            (one.interval_coverage, one.interval_coverage_se, inside),
            (one.region_coverage, one.region_coverage_se, coverage(scale, 2, np.array(levels))),
        ):
            assert (abs(found - xr.DataArray(exact, dims="report_level")) < 4.5 * error).all()  # 18 numbers
            np.testing.assert_allclose(error, np.sqrt(found * (1 - found) / 4000), rtol=0.02)
    assert ds.verdict_upper.sel(member="0") == "overconfident" == ds.verdict.sel(member="0")
    assert bool(ds.too_low.sel(member="0", level=0.5)) and not ds.too_low.sel(member="1").any()
    text = summary(ds)
    row = next(line for line in text.splitlines() if line.startswith("θ2"))
    assert f"{float(ds.interval_coverage.sel(member='mixture', parameter=1, report_level=0.95)):.3f} ± " in row
    with pytest.raises(ValueError, match="report_levels"):
        diagnose(GaussianPosterior(scales, 2), theta, x, report_levels=[68, 95])


def test_a_notebook_shows_the_summary_as_text(result: xr.Dataset):
    text = summary(result)
    assert repr(text) == str(text) and text.startswith("mixture: ")
    shown = text._repr_html_()
    assert "<b>mixture: " in shown and "θ1" in shown
    # The coverage curve is in it, as a picture that needs no file.
    picture = base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', shown)[1])
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_the_local_check_is_part_of_the_dataset():
    """Half of x too narrow and half too wide: right on average, and wrong where the entropy is low."""
    n = 4000
    theta, x = pairs(n, 2, seed=6)

    class Half(GaussianPosterior):
        def _normal(self, x, extra):
            scale = torch.where(x[:, :1] > 0, 0.8, 1.3) * TAU
            return torch.distributions.Normal((x / (1 + SIGMA**2)).expand(1, *[1] * (extra), *x.shape), scale)

    ds = diagnose(Half([1.0], 2), theta, x, samples=256)
    one = ds.sel(member="mixture")
    assert one.local_coverage.dims == ("bin", "local_level") and ds.local_level.values.tolist() == [0.5, 0.8, 0.95]
    assert (one.local_p_value.isel(bin=[0, 1]) < 0.01).all() and (one.local_p_value.isel(bin=[2, 3]) > 0.5).all()
    exact = coverage(0.8, 2, ds.local_level.values)
    np.testing.assert_allclose(one.local_coverage.isel(bin=0), exact, atol=4.5 * np.sqrt(0.25 / 1000))
    assert (one.local_entropy.diff("bin") > 0).any() and "too low in 2 of 4 groups" in summary(ds)
    few = diagnose(Half([1.0], 2), theta[:79], x[:79], samples=50)
    assert np.isnan(few.local_p_value).all() and "local check" not in summary(few)
