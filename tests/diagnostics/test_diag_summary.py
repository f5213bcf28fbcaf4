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
    ds = diagnose(PriorPosterior(GaussianPrior(torch.zeros(2), torch.eye(2)), (2,), kind), theta, x, samples=64)
    assert set(ds.verdict.values) == {"certified conservative"}
    text = summary(ds)
    assert "+0.00 ± 0.00" in text and "-0.00" not in text
    assert "0 and mixture: the gain over the prior cannot be told from 0" in text
    assert "certified conservative says no more than that here" in text


def test_members_are_named_where_they_gain_nothing_or_lose(result: xr.Dataset):
    def told(gain, error):
        ds = result.assign(gain=("member", gain), gain_se=("member", error))
        return [line for line in summary(ds).splitlines() if "prior" in line and "nats" not in line]

    nan = np.nan
    assert told([1.0, 0.2, 0.3, 0.9], [0.1] * 4) == []  # 0.2 is 2 standard errors
    (line,) = told([1.0, 0.19, -0.19, 0.9], [0.1] * 4)
    assert line.startswith("1 and 2: the gain over the prior cannot be told from 0")
    (line,) = told([1.0, 1.0, -0.3, 0.9], [0.1] * 4)
    assert line == "2: says less about the true parameters than the prior does"
    (line,) = told([1.0, 0.004, 1.0, -np.inf], [0.001, 0.0, nan, nan])[:1]
    assert line.startswith("1: the gain over the prior cannot be told")
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
