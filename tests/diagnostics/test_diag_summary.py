"""The summary: the gain over the prior, what was not learnt, and where a curve is below."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import xarray as xr
from diagnostics_fakes import GaussianPosterior, PriorPosterior, pairs
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
    row = next(line for line in summary(result).splitlines() if line.startswith("mixture"))
    mixture = result.sel(member="mixture")
    assert f"{float(mixture.gain):+.2f} ± {float(mixture.gain_se):.2f}" in row
    assert "nats over prior" in summary(result) and "learnt" not in summary(result)


@pytest.mark.parametrize("kind", ["flow", "classifier"])
def test_a_certified_prior_is_said_to_have_learnt_nothing(kind: str):
    theta, x = pairs(3000, 2, seed=0)
    prior = PriorPosterior(GaussianPrior(torch.zeros(2), torch.eye(2)), (2,), kind)
    ds = diagnose(prior, theta, x, samples=64, tolerance="constant")
    assert set(ds.verdict.values) == {"certified conservative"}
    text = summary(ds)
    assert "+0.00 ± 0.00" in text and "-0.00" not in text
    assert "0 and mixture: the gain over the prior is indistinguishable from 0" in text
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
    (line,) = (line for line in summary(ds).splitlines() if "furthest below" in line)
    found = re.fullmatch(r".*noise: mixture at level (0\.\d+) \(coverage (0\.\d+), (0\.\d+) below\)", line)
    assert found and 0.985 < float(found[1]) < 0.995 and found[2] == "0.950"
    assert float(found[3]) == pytest.approx(float(found[1]) - 0.95, abs=0.0011)
    ds["verdict"] = ("member", np.array(["inconclusive"] * 4, object))
    assert "furthest below" not in summary(ds)


def test_leakage_is_told_from_a_hundredth_on(result: xr.Dataset):
    def told(*share: float, **attrs: str) -> list[str]:
        ds = result.assign(leakage=("member", list(share))).assign_attrs(attrs)
        return [line for line in summary(ds).splitlines() if line.startswith("leakage")]

    assert told(0.0, 0.009, np.nan, 0.009) == []
    (line,) = told(0.172, 0.168, 0.02, 0.12)
    assert line.startswith(
        "leakage: 17% of the mass of 0 and 1, 2% of the mass of 2 and 12% of the mass of mixture lies"
    )
    assert "What is judged is the rest, scaled to 1" in line and "bnpe_init" in line
    (line,) = told(0.172, 0.0, 0.0, 0.0, recipe="released")
    assert line == "leakage: 17% of the mass of 0 lies outside the prior, and is judged with the rest"


def test_the_summary_ends_with_what_to_do(result: xr.Dataset):
    def told(*verdicts: str, method: str = "", more: float = 0.0, members: int = 4) -> list[str]:
        ds = result.isel(member=slice(4 - members, None)).assign_attrs(method=method)
        ds = ds.assign(verdict=("member", np.array(verdicts, object)), pairs_to_settle=("member", [more] * members))
        ds["rank"] = ds["rank"].copy(data=np.tile(result["rank"].values[0], (members, 1)))  # of one that is too narrow
        lines = summary(ds).splitlines()
        said = [line for line in lines if line.startswith("what to do")]
        assert lines[len(lines) - len(said) :] == said
        return said

    good, bad, open_ = "certified conservative", "overconfident", "inconclusive"
    again = "or more simulations; then judge again with fresh pairs"
    cautious = 'method="brnpe" or "bnre" (more often certified, and less sharp)'
    assert told(good, good, good, good) == []
    assert told(bad, good, bad, good) == [
        "what to do: use the mixture as a whole; 0 and 2 alone would be overconfident"
    ]
    assert told(bad, bad, bad, bad, method="bnpe_init") == [f"what to do about mixture: {cautious}, {again}"]
    (line,) = told(bad, bad, members=2, method="npe")
    assert line == f"what to do about mixture: use the mixture of several networks (members=5), or {cautious}, {again}"
    (line,) = told(bad, bad, bad, bad, method="brnpe")  # which is what would have been advised
    assert "method=" not in line and "No method is safe on every task" in line
    (line,) = told(bad, bad, members=2)  # of others: nothing is known of how it was trained
    assert 'mix several networks, or train with balance (eq.fit, method="brnpe")' in line and "members=" not in line
    (line,) = told(bad, bad, bad, bad)
    assert line.startswith("what to do about mixture: train with balance")
    (line,) = told(good, good, good, open_, more=1234.0)
    assert line.startswith("what to do about mixture: judge again with about 4,200 fresh pairs in all")
    assert told(good, good, good, open_, more=np.inf) == []


def test_networks_that_are_not_mixed_are_advised_one_by_one():
    theta, x = pairs(500, 2, seed=3)
    ds = diagnose(GaussianPosterior([0.5, 2.0, 0.6], 2), theta, x, samples=128, mixture=False)
    (line,) = (line for line in summary(ds).splitlines() if line.startswith("what to do"))
    assert line.startswith("what to do about 0 and 2: ")
