"""Gaussian priors, against torch's."""

from __future__ import annotations

import torch
import torch.distributions as td
from priors_examples import priors

import equipoise as eq


def test_gaussian_against_torch() -> None:
    prior = priors(torch.float64)["gaussian"]
    assert isinstance(prior, eq.GaussianPrior)
    reference = td.MultivariateNormal(prior.loc, prior.covariance)
    theta = reference.sample((50,))
    torch.testing.assert_close(prior.log_prob(theta), reference.log_prob(theta))
    torch.manual_seed(0)
    draws = prior.sample((200_000,))
    torch.testing.assert_close(draws.mean(0), prior.mean, atol=0.02, rtol=0)  # six standard errors
    torch.testing.assert_close(draws.T.cov(), prior.covariance, atol=0.04, rtol=0)
    torch.testing.assert_close(prior.variance, prior.covariance.diagonal())
