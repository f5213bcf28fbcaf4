"""What every prior promises: its map to N(0, I), gradients, shapes, storing and moving."""

from __future__ import annotations

import json
import math

import pytest
import scipy.stats
import torch
import torch.distributions as td
from priors_examples import NAMES, priors

from equipoise.priors import prior_from_spec


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_in_float64(name: str) -> None:
    prior = priors(torch.float64)[name]
    z = torch.linspace(-4.5, 4.5, 61, dtype=torch.float64)[:, None].expand(-1, prior.dim)
    torch.testing.assert_close(prior.to_normal(prior.from_normal(z)), z, atol=1e-8, rtol=0)
    u = torch.linspace(0.01, 0.99, 61, dtype=torch.float64)[:, None].expand(-1, prior.dim)
    torch.testing.assert_close(prior.to_uniform(prior.from_uniform(u)), u, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_prior_becomes_standard_normal(name: str) -> None:
    prior = priors()[name]
    torch.manual_seed(0)
    z = prior.to_normal(prior.sample((20_000,)))
    assert z.dtype == torch.float32
    # 17 KS tests at 1e-5 each: a false alarm in 6,000 seeds, and this seed is fixed.
    for column in z.T:
        assert scipy.stats.kstest(column.numpy(), "norm").pvalue > 1e-5
    correlation = torch.corrcoef(z.T) - torch.eye(prior.dim)
    assert correlation.abs().max() < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_normal_stays_inside_however_far_out(name: str, dtype: torch.dtype) -> None:
    prior = priors(dtype)[name]
    z = torch.tensor([-40.0, -9.0, -6.0, 0.0, 6.0, 9.0, 40.0], dtype=dtype)[:, None].expand(-1, prior.dim)
    theta = prior.from_normal(z)
    assert theta.dtype == dtype
    assert theta.isfinite().all() and prior.contains(theta).all() and prior.log_prob(theta).isfinite().all()
    assert prior.to_normal(theta).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_ends_of_the_uniform_map_are_finite_and_nan_stays_nan(name: str) -> None:
    prior = priors()[name]
    theta = prior.from_uniform(torch.tensor([0.0, 1.0])[:, None].expand(-1, prior.dim))
    assert theta.isfinite().all() and prior.contains(theta).all()
    theta = torch.full((2, prior.dim), math.nan)
    assert prior.to_normal(theta).isnan().all()
    assert not prior.contains(theta).any()
    assert (prior.log_prob(theta) == -math.inf).all()


@pytest.mark.parametrize("name", NAMES)
def test_derivative_of_the_map_is_density_over_density(name: str) -> None:
    # log |det dz/dθ| = log p(θ) - log φ(z), the identity the whole construction rests on.
    prior = priors(torch.float64)[name]
    torch.manual_seed(1)
    theta = prior.sample((6,))
    for row in theta:
        jacobian = torch.autograd.functional.jacobian(prior.to_normal, row)
        phi = td.Normal(0.0, 1.0).log_prob(prior.to_normal(row)).sum()
        torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], prior.log_prob(row) - phi, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_against_finite_differences(name: str) -> None:
    prior = priors(torch.float64)[name]
    # Eight points: none at 0, where a Laplace has a kink.
    z = torch.linspace(-2.5, 2.5, 8, dtype=torch.float64)[:, None].repeat(1, prior.dim).requires_grad_()
    theta = prior.from_normal(z)
    (slope,) = torch.autograd.grad(theta.sum(), z)
    step = 1e-4
    with torch.no_grad():
        difference = (prior.from_normal(z + step) - prior.from_normal(z - step)) / (2 * step)
    if name == "gaussian":  # one z moves several θ: compare the sums over θ
        step_each = step * torch.eye(2, dtype=torch.float64)
        moved = [(prior.from_normal(z + e) - prior.from_normal(z - e)).sum(-1) / (2 * step) for e in step_each]
        difference = torch.stack(moved, -1).detach()
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-9)
    theta = theta.detach().requires_grad_()
    (back,) = torch.autograd.grad(prior.to_normal(theta).sum(), theta)
    if name != "gaussian":
        torch.testing.assert_close(back * slope, torch.ones_like(slope), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_at_and_beyond_the_edges(name: str) -> None:
    prior = priors()[name]
    for z in (-30.0, -5.3, 5.3, 30.0):
        theta = prior.from_normal(torch.full((1, prior.dim), z)).requires_grad_()
        (gradient,) = torch.autograd.grad(prior.to_normal(theta).sum(), theta)
        assert gradient.isfinite().all()
        start = torch.full((1, prior.dim), z, requires_grad=True)
        (gradient,) = torch.autograd.grad(prior.from_normal(start).sum(), start)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name: str) -> None:
    prior = priors()[name]
    assert prior.sample().shape == (prior.dim,)
    theta = prior.sample((3, 4))
    assert theta.shape == (3, 4, prior.dim)
    for f in (prior.log_prob, prior.contains):
        assert f(theta).shape == (3, 4) and f(theta[0, 0]).shape == ()
    for f in (prior.to_normal, prior.to_uniform):
        assert f(theta).shape == theta.shape
    with pytest.raises(ValueError, match="parameter"):
        prior.log_prob(torch.zeros(5, prior.dim + 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spec_round_trip_through_json(name: str, dtype: torch.dtype) -> None:
    prior = priors(dtype)[name]
    again = prior_from_spec(json.loads(json.dumps(prior.spec())))
    torch.manual_seed(0)
    theta = prior.sample((10,))
    assert type(again) is type(prior) and again.sample((1,)).dtype == dtype
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))
    assert torch.equal(again.to_normal(theta), prior.to_normal(theta))


@pytest.mark.parametrize("name", NAMES)
def test_to_the_same_device(name: str) -> None:
    prior = priors()[name]
    moved = prior.to("cpu")
    theta = prior.sample((5,))
    assert moved.device == torch.device("cpu") == prior.device
    assert torch.equal(moved.log_prob(theta), prior.log_prob(theta))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_to_a_gpu_and_arguments_from_elsewhere(name: str) -> None:
    prior = priors()[name]
    moved = prior.to("cuda")
    theta = prior.sample((100,))
    assert moved.sample((2,)).is_cuda
    torch.testing.assert_close(moved.to_normal(theta.cuda()).cpu(), prior.to_normal(theta), atol=1e-4, rtol=1e-4)
    assert prior.log_prob(theta.cuda()).is_cuda and not moved.log_prob(theta).is_cuda
