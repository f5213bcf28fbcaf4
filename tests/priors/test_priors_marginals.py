"""Maps and densities of single parameters, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from priors_examples import MARGINALS, make, mixture

import equipoise as eq
from equipoise.priors import marginals


@pytest.mark.parametrize("name", MARGINALS)
def test_map_of_a_marginal_is_scipys(name: str) -> None:
    marginal, reference = make(name), MARGINALS[name][2]
    z = np.linspace(-5, 5, 41)
    # Each tail of scipy from its own end.
    theta = np.where(z < 0, reference.ppf(scipy.stats.norm.cdf(z)), reference.isf(scipy.stats.norm.sf(z)))
    np.testing.assert_allclose(marginals.from_normal(marginal, torch.tensor(z)), theta, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(marginals.to_normal(marginal, torch.tensor(theta)), z, atol=2e-9)
    u = np.linspace(0.001, 0.999, 23)
    np.testing.assert_allclose(marginals.from_uniform(marginal, torch.tensor(u)), reference.ppf(u), rtol=1e-9)
    np.testing.assert_allclose(marginals.to_uniform(marginal, torch.tensor(reference.ppf(u))), u, rtol=1e-9)


def test_quantiles_of_a_bimodal_marginal() -> None:
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)
    theta = marginals.from_normal(mixture(), z)
    assert (theta.diff() > 0).all()
    torch.testing.assert_close(marginals.to_normal(mixture(), theta), z, atol=5e-8, rtol=0)  # 1 - F has 7 digits at 6σ


@pytest.mark.parametrize("name", ["box", "log_uniform", "gamma", "beta"])
def test_lower_tail_in_float32(name: str) -> None:
    # Each has its lower end at 0, where θ in float32 has digits enough for any z.
    z = torch.linspace(-5.15, -2.0, 30)
    if name == "box":
        prior, reference = eq.BoxUniform([0.0], [2.0]), scipy.stats.uniform(0, 2)
    elif name == "log_uniform":
        prior, reference = eq.IndependentPrior([eq.LogUniform(1e-30, 1.0)]), scipy.stats.loguniform(1e-30, 1.0)
    else:
        prior, reference = eq.IndependentPrior([make(name, torch.float32)]), MARGINALS[name][2]
    theta = prior.from_normal(z[:, None])
    np.testing.assert_allclose(theta[:, 0], reference.ppf(scipy.stats.norm.cdf(z.double())), rtol=1e-5)
    torch.testing.assert_close(prior.to_normal(theta)[:, 0], z, atol=1e-3 if name == "log_uniform" else 1e-5, rtol=0)


@pytest.mark.parametrize("name", MARGINALS)
def test_density_of_a_marginal_is_scipys(name: str) -> None:
    marginal, reference = make(name), MARGINALS[name][2]
    theta = np.concatenate([reference.ppf(np.linspace(0.01, 0.99, 21)), [-30.0, -2.5]])
    mine = eq.IndependentPrior([marginal]).log_prob(torch.tensor(theta)[:, None]).numpy()
    np.testing.assert_allclose(mine, reference.logpdf(theta), rtol=1e-10, atol=1e-10)


def test_uniform_marginals_are_closed_too() -> None:
    prior = eq.IndependentPrior([td.Uniform(0.0, 2.0), td.Exponential(1.0)])
    assert prior.contains(torch.tensor([2.0, 0.0])) and prior.log_prob(torch.tensor([2.0, 1.0])).isfinite()
    assert not prior.contains(torch.tensor([2.1, 1.0])) and not prior.contains(torch.tensor([1.0, -0.1]))
    assert not prior.contains(torch.tensor([1.0, math.inf]))


@pytest.mark.parametrize(("loc", "scale"), [(2e30, 1e29), (0.0, 1.9e19), (0.0, 1e-25), (0.0, 1.0)])
def test_normal_density_at_any_scale_of_float32(loc: float, scale: float) -> None:
    z = np.array([-2.0, 0.0, 0.5, 3.0])
    prior = eq.as_prior(eq.IndependentPrior([td.Normal(loc, scale)]))
    theta = torch.tensor(loc + scale * z, dtype=torch.float32)
    reference = scipy.stats.norm(float(np.float32(loc)), float(np.float32(scale))).logpdf(theta.double())
    np.testing.assert_allclose(prior.log_prob(theta[:, None]), reference, rtol=1e-6)
    half = eq.IndependentPrior([td.HalfNormal(scale)])
    theta = torch.tensor(scale * np.abs(z) + scale, dtype=torch.float32)
    reference = scipy.stats.halfnorm(scale=float(np.float32(scale))).logpdf(theta.double())
    np.testing.assert_allclose(half.log_prob(theta[:, None]), reference, rtol=1e-6)
