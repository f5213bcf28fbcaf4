"""sbi's posteriors, of every kind: what they can say is judged, and what they cannot is not made up.

The potentials are exact, θ ~ N(0, I), x = θ + σ ε, so that every posterior here is the exact one, drawn in sbi's ways.
"""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch
from diagnostics_fakes import SIGMA, exact_log_prob, pairs
from sbi.inference import NPE
from sbi.inference.posteriors import (
    EnsemblePosterior,
    ImportanceSamplingPosterior,
    MCMCPosterior,
    RejectionPosterior,
    VIPosterior,
)
from sbi.inference.potentials.base_potential import BasePotential
from sbi.utils import BoxUniform
from torch import Tensor

from equipoise.diagnostics import diagnose, summary

PRIOR = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
UNKNOWN = ("log_prob", "nominal_log_prob", "nominal_log_prob_raw", "gain", "information_kept", "balance_signed")


class Exact(BasePotential):
    """log p(θ) + log p(x|θ), without its constant."""

    def __call__(self, theta: Tensor, track_gradients: bool = True) -> Tensor:
        x = self._x_o.reshape(-1, 2)
        x = x.repeat_interleave(len(theta) // len(x), 0) if len(x) > 1 else x  # sbi's batches: x by x
        return -0.5 * ((theta - x) / SIGMA).square().sum(-1) + self.prior.log_prob(theta)


def mcmc() -> MCMCPosterior:
    return MCMCPosterior(
        Exact(PRIOR), proposal=PRIOR, method="slice_np_vectorized", num_chains=2, warmup_steps=8, thin=1
    )


def rejection() -> RejectionPosterior:
    return RejectionPosterior(Exact(PRIOR), proposal=PRIOR, num_samples_to_find_max=200, num_iter_to_find_max=3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("build", [mcmc, rejection])
def test_a_density_that_is_not_normalised_is_not_reported(build):
    theta, x = pairs(60, 2, seed=0)
    posterior = build()
    ds = diagnose(posterior, theta, x, prior=PRIOR, exact_log_prob=exact_log_prob, samples=16)
    for name in (*UNKNOWN, "entropy"):
        assert np.isnan(ds[name]).all(), name
    assert f"the log_prob of this {type(posterior).__name__} is not normalised" in ds.attrs["notes"]
    assert float(ds.prior_log_prob) < 0
    text = summary(ds)
    assert "less about the true parameters" not in text and "log posterior  " not in text
    # The posterior is exact, so its ranks are uniform. Draws of the proposal, the prior, would give an area of +0.4;
    # the standard error is 0.037.
    assert abs(float(ds.coverage_auc[0])) < 0.15
    assert (ds.sbc_p_value > 1e-3).all()


def test_a_larger_test_set_does_not_bring_back_what_is_not_known():
    theta, x = pairs(60, 2, seed=0)
    ds = diagnose(rejection(), theta, x, prior=PRIOR, samples=8, test=pairs(80, 2, seed=1))
    for name in UNKNOWN:
        assert np.isnan(ds[name]).all(), name


def test_any_object_that_says_so_is_believed_and_other_warnings_are_passed_on():
    class Loud:
        def __init__(self, words: str) -> None:
            self.words = words

        def sample(self, shape, x):
            return x / (1 + SIGMA**2) + torch.randn(*shape, 2)

        def log_prob(self, theta, x):
            warnings.warn(self.words, stacklevel=2)
            return -0.5 * (theta - x / (1 + SIGMA**2)).square().sum(-1)

    theta, x = pairs(60, 2, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = diagnose(Loud("a log density, but only up to a constant"), theta, x, prior=PRIOR, samples=8)
    assert np.isnan(ds.nominal_log_prob).all() and np.isnan(ds.balance_signed).all()
    with pytest.warns(UserWarning, match="it is late"):
        ds = diagnose(Loud("it is late"), theta, x, prior=PRIOR, samples=8)
    assert np.isfinite(ds.nominal_log_prob).all()


@pytest.mark.filterwarnings("error")
def test_the_importance_sampler_is_judged_with_its_normaliser():
    theta, x = pairs(80, 2, seed=2)
    near = torch.distributions.MultivariateNormal(torch.zeros(2), 2 * torch.eye(2))
    posterior = ImportanceSamplingPosterior(Exact(PRIOR), proposal=near, method="importance")
    ds = diagnose(posterior, theta, x, prior=PRIOR, exact_log_prob=exact_log_prob, samples=32)
    # 10,000 draws for each normaliser: an effective size of several hundred at least, an error of a few per cent.
    np.testing.assert_allclose(ds["log_prob"][0], exact_log_prob(theta, x), atol=0.25)
    assert float(ds.information_kept[0]) == pytest.approx(1, abs=0.02)
    # Balance of the exact posterior, and of the same pairs: that of the log densities above.
    g = torch.sigmoid(torch.stack([exact_log_prob(t, x) - PRIOR.log_prob(t) for t in (theta, theta.roll(1, 0))]))
    assert float(ds.balance_signed[0]) == pytest.approx(float(g.sum(0).mean() - 1), abs=0.01)
    assert abs(float(ds.coverage_auc[0])) < 0.15
    assert ds.attrs["notes"] == ""


def test_a_fit_to_one_observation_is_refused_with_the_remedy():
    theta, x = pairs(60, 2, seed=0)
    with pytest.raises(ValueError, match=r"fitted to a single observation.*train_amortized"):
        diagnose(VIPosterior(Exact(PRIOR), PRIOR), theta, x, prior=PRIOR, samples=8)


@functools.cache
def direct(seed: int, box: bool):
    """A direct posterior, trained for an instant."""
    torch.manual_seed(seed)
    prior = BoxUniform(torch.zeros(2), torch.ones(2)) if box else PRIOR
    theta = prior.sample((400,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inference = NPE(prior, show_progress_bars=False, density_estimator="maf")
        inference.append_simulations(theta, theta + 0.3 * torch.randn_like(theta)).train(max_num_epochs=8)
        return inference.build_posterior()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("weights", [None, [0.8, 0.2]])
def test_an_ensemble_is_judged_as_a_mixture_of_its_members(weights, monkeypatch: pytest.MonkeyPatch):
    one, other = direct(0, box=False), direct(1, box=False)
    ensemble = EnsemblePosterior([one, other], weights=weights)
    theta, x = pairs(120, 2, seed=3)
    # Ten thousand draws for every x: why an ensemble took a second a pair.
    for posterior in (one, other):
        monkeypatch.setattr(posterior, "leakage_correction", lambda *_, **__: pytest.fail("renormalised"))
    ds = diagnose(ensemble, theta, x, samples=200)
    assert [str(m) for m in ds.member.values] == ["0", "1", "mixture"]
    theirs = [float(ensemble.log_prob(t[None], x=o, norm_posterior=False)) for t, o in zip(theta, x, strict=True)]
    np.testing.assert_allclose(ds["log_prob"].sel(member="mixture"), theirs, atol=1e-4)
    alone = diagnose(one, theta, x, samples=200)
    np.testing.assert_allclose(ds["log_prob"].sel(member="0"), alone["log_prob"].sel(member="0"), atol=1e-5)
    # Ranks by hand, from sbi's own draws of the ensemble.
    torch.manual_seed(0)
    hand = []
    for t, o in zip(theta[:25], x[:25], strict=True):
        draws = ensemble.sample((300,), x=o, show_progress_bars=False)
        density = ensemble.log_prob(draws, x=o, norm_posterior=False)
        hand.append(float((density > ensemble.log_prob(t[None], x=o, norm_posterior=False)).float().mean()))
    # Noise of 200 and of 300 draws: 0.046 at most, root mean square.
    assert np.sqrt(np.mean((ds["rank"].sel(member="mixture")[:25].values - hand) ** 2)) < 0.07


def test_densities_that_are_not_normalised_are_not_mixed():
    ensemble = EnsemblePosterior([rejection(), rejection()])
    theta, x = pairs(50, 2, seed=4)
    with pytest.raises(ValueError, match="mixture=False"):
        diagnose(ensemble, theta, x, prior=PRIOR, samples=8)
    ds = diagnose(ensemble, theta, x, prior=PRIOR, samples=8, mixture=False)
    assert list(ds.member.values) == ["0", "1"] and np.isnan(ds.nominal_log_prob).all()


@pytest.mark.filterwarnings("error")
def test_leakage_is_reported_and_not_warned_of():
    posterior = direct(0, box=True)
    theta = posterior.prior.sample((80,))
    x = theta + 0.3 * torch.randn_like(theta)
    ds = diagnose(posterior, theta, x, samples=150)
    share = np.mean([float(posterior.leakage_correction(o[None], num_rejection_samples=500)) for o in x[:25]])
    assert float(ds.leakage[0, ...].mean()) == pytest.approx(1 - share, abs=0.1)
    assert f"leakage: {100 * float(ds.leakage[0]):.0f}% of the mass of posterior lies outside" in summary(ds)
