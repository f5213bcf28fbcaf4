"""Boxes, log-uniform and Gaussian distributions, against closed forms, scipy and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from hypothesis import given, settings
from hypothesis import strategies as st
from priors_examples import priors

import equipoise as eq


def test_box_edges_in_float32() -> None:
    prior = eq.BoxUniform([100.0], [200.0])
    edge = torch.tensor([[100.0], [200.0]])
    z = prior.to_normal(edge)
    torch.testing.assert_close(z, torch.tensor([[-5.2], [5.2]]), atol=1e-4, rtol=0)
    near = torch.nextafter(edge, torch.tensor(150.0))
    assert prior.to_normal(near).abs().le(5.2001).all() and prior.to_normal(near).abs().ge(5.0).all()
    assert torch.equal(prior.to_uniform(edge), torch.tensor([[0.0], [1.0]]))
    assert torch.equal(prior.from_uniform(torch.tensor([[0.0], [1.0]])), edge)


@given(st.floats(-1000, 1000), st.floats(1e-3, 1e4), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_box_map_is_antisymmetric_and_monotone(low: float, width: float, u: float) -> None:
    prior = eq.BoxUniform(torch.tensor([low], dtype=torch.float64), torch.tensor([low + width], dtype=torch.float64))
    theta = prior.from_uniform(torch.tensor([[u]], dtype=torch.float64))
    mirrored = prior.low + prior.high - theta
    rounding = 1e-12 * (abs(low) + width) / width / scipy.stats.norm.pdf(5.2)
    assert prior.contains(theta).all()
    assert abs(float(prior.to_normal(theta) + prior.to_normal(mirrored))) < 1e-6 + rounding
    assert float(prior.to_normal(theta + 1e-3 * width)) >= float(prior.to_normal(theta))


def test_box_is_closed_and_minus_infinity_outside() -> None:
    prior = eq.BoxUniform([0.0, -1.0], [1.0, 3.0])
    inside = torch.tensor([[0.0, -1.0], [1.0, 3.0], [0.5, 0.0]])
    torch.testing.assert_close(prior.log_prob(inside), torch.full((3,), -math.log(4.0)))
    assert (prior.log_prob(torch.tensor([[1.0001, 0.0], [0.5, -1.1]])) == -math.inf).all()
    assert prior.support.check(inside).all()
    torch.testing.assert_close(prior.entropy(), torch.tensor(math.log(4.0)))
    torch.testing.assert_close(prior.mean, torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(prior.variance, torch.tensor([1 / 12, 16 / 12]))


def test_corners_count_as_inside_in_either_dtype() -> None:
    # 0.1 and 0.7 are no binary numbers: their float32 versions lie on either side of the float64 ones.
    for dtype, other in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        prior = eq.BoxUniform(torch.tensor([-0.7, -0.1], dtype=dtype), torch.tensor([0.1, 0.7], dtype=dtype))
        for corner in (prior.low, prior.high):
            assert prior.contains(corner.to(other)) and prior.log_prob(corner.to(other)).dtype == other


def test_a_box_of_plain_numbers_is_closed_for_doubles() -> None:
    """0.1 and 0.9 in double precision lie just outside of what single precision makes of them; 1e-6 further is out."""
    prior = eq.BoxUniform([0.1], [0.9])
    tenths = torch.arange(1, 10, dtype=torch.float64)[:, None] / 10
    assert prior.contains(tenths).all() and prior.log_prob(tenths).isfinite().all()
    beyond = torch.tensor([[0.1 - 1e-6], [0.9 + 1e-6], [1e300], [math.nan]], dtype=torch.float64)
    assert not prior.contains(beyond).any()
    assert prior.to_uniform(tenths).aminmax() == (0.0, 1.0) and prior.to_normal(tenths).isfinite().all()


@given(st.floats(-30, 8), st.floats(1e-3, 29), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_log_uniform_is_a_uniform_of_the_logarithm(exponent: float, decades: float, u: float) -> None:
    ends = torch.tensor([10**exponent, 10 ** (exponent + decades)], dtype=torch.float64)
    prior = eq.as_prior(eq.LogUniform(ends[:1], ends[1:]))
    box = eq.BoxUniform(ends[:1].log(), ends[1:].log())
    theta = prior.from_uniform(torch.tensor([[u]], dtype=torch.float64))
    assert prior.contains(theta).all()
    torch.testing.assert_close(
        theta.log(), box.from_uniform(torch.tensor([[u]], dtype=torch.float64)), atol=1e-10, rtol=0
    )
    torch.testing.assert_close(prior.log_prob(theta), box.log_prob(box.mean) - theta[:, 0].log())
    rounding = 1e-12 / decades / scipy.stats.norm.pdf(5.2)
    assert abs(float(prior.to_normal(theta) - box.to_normal(theta.log()))) < 1e-6 + rounding


def test_log_uniform_in_single_precision() -> None:
    marginal = eq.LogUniform(1e-30, 1e30)  # 60 decades, whose ratio is no float32
    prior = eq.IndependentPrior([marginal])
    reference = scipy.stats.loguniform(1e-30, 1e30)
    u = torch.linspace(0, 1, 33)[:, None]
    np.testing.assert_allclose(prior.from_uniform(u)[:, 0], reference.ppf(u[:, 0].numpy()), rtol=1e-5)
    theta = prior.sample((2000,))
    assert prior.contains(theta).all() and theta.dtype == torch.float32
    assert scipy.stats.kstest(theta[:, 0].double().numpy(), reference.cdf).pvalue > 1e-5
    torch.testing.assert_close(prior.from_normal(prior.to_normal(theta)), theta, rtol=2e-4, atol=0)
    edges = torch.tensor([[1e-30], [1e30]])
    torch.testing.assert_close(prior.to_normal(edges), torch.tensor([[-5.2], [5.2]]), atol=1e-5, rtol=0)
    assert not prior.contains(torch.tensor([[-1.0], [0.0], [1.1e30]])).any()
    assert (prior.log_prob(torch.tensor([[-1.0], [0.0], [1.1e30]])) == -math.inf).all()


def test_log_uniform_as_a_torch_distribution() -> None:
    reference = scipy.stats.loguniform([0.001, 2.0], [10.0, 3.0])
    batch = eq.LogUniform(torch.tensor([0.001, 2.0], dtype=torch.float64), torch.tensor([10.0, 3.0]))
    assert batch.batch_shape == (2,) and batch.low.dtype == torch.float64
    np.testing.assert_allclose(batch.mean, reference.mean())
    np.testing.assert_allclose(batch.variance, reference.var(), rtol=1e-7)
    np.testing.assert_allclose(batch.entropy(), reference.entropy(), rtol=1e-7)
    theta = torch.tensor([[0.5, 2.5], [11.0, 1.0]], dtype=torch.float64)
    np.testing.assert_allclose(batch.log_prob(theta), reference.logpdf(theta))
    np.testing.assert_allclose(batch.cdf(theta), reference.cdf(theta))
    assert batch.expand((3, 2)).sample((4,)).shape == (4, 3, 2)
    assert batch.support.check(batch.sample((100,))).all()
    prior = eq.as_prior(td.Independent(batch, 1))
    assert isinstance(prior, eq.IndependentPrior) and repr(prior.marginals[0]) == "LogUniform(low=0.001, high=10)"
    end = torch.tensor(2.0, requires_grad=True)
    (slope,) = torch.autograd.grad(eq.LogUniform(1.0, end).rsample((5,)).sum(), end)
    assert slope > 0
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="0 < low < high"):
            eq.LogUniform(low, high)


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
