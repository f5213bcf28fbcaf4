"""Normalisers and entropies where the points of a rank are too few for them, and precisions that are not torch's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from diagnostics_fakes import GaussianPosterior, Likelihood, pairs
from torch import Tensor

from equipoise.diagnostics import diagnose
from equipoise.networks import UserNetwork
from equipoise.posteriors import Posterior
from equipoise.priors import GaussianPrior


class Exact(torch.nn.Module):
    """Log-likelihoods of x = θ + sd · N(0, I), plus a number: ratios that are exact up to their normaliser."""

    def __init__(self, sd: float, offset: float) -> None:
        super().__init__()
        self.offset, self.sd = torch.nn.Parameter(torch.tensor(offset)), sd

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return -0.5 * ((theta - x) / self.sd).square().sum(-1) + self.offset


def exact(dim: int, sd: float, members: int = 1, kind: type[Exact] = Exact) -> Posterior:
    prior = GaussianPrior([0.0] * dim, torch.eye(dim))
    network = UserNetwork(kind(sd, 3.0), prior, (dim,))
    each = [(m, m) for m in range(members)]
    return Posterior(network, network.init(each, [torch.zeros(dim)] * members, [torch.ones(dim)] * members))


def drawn(dim: int, sd: float, n: int = 50) -> tuple[Tensor, Tensor, Tensor, float]:
    """θ, x, the exact log p(θ|x) and the entropy of p(·|x)."""
    g = torch.Generator().manual_seed(dim)
    theta = torch.randn(n, dim, generator=g)
    x = theta + sd * torch.randn(n, dim, generator=g)
    variance = sd**2 / (1 + sd**2)
    log_prob = torch.distributions.Normal(x / (1 + sd**2), math.sqrt(variance)).log_prob(theta).sum(-1)
    return theta, x, log_prob, dim / 2 * math.log(2 * math.pi * math.e * variance)


@pytest.mark.filterwarnings("ignore:up to .* of a member's ranks rest on fewer:UserWarning")
@pytest.mark.parametrize(
    ("dim", "sd", "members"),
    [(3, 0.05, 1), (3, 0.02, 2), (6, 0.03, 1)],
)
def test_narrow_posteriors_have_the_density_and_entropy_of_the_closed_form(dim: int, sd: float, members: int):
    theta, x, log_prob, entropy = drawn(dim, sd)
    ds = diagnose(exact(dim, sd, members), theta, x)
    assert "too few for the normaliser" in ds.attrs["notes"]
    # 200 effective points and more: a standard error of 0.07 a pair at most, and 0.01 of a mean over 50. From the
    # points of the ranks alone the means were off by -0.19, -0.8 and 1.2, the entropies by 0.4, 6.5 and 1.2.
    np.testing.assert_allclose(ds.nominal_log_prob, log_prob.mean(), atol=0.05)
    np.testing.assert_allclose(ds.entropy, entropy, atol=0.05)
    gap = ds["log_prob"] - log_prob.double().numpy()
    assert float(np.sqrt((gap**2).mean())) < 0.1


@pytest.mark.filterwarnings("ignore:up to .* of a member's ranks rest on fewer:UserWarning")
def test_members_apart_have_normalisers_of_their_own():
    theta, x, log_prob, entropy = drawn(3, 0.05)
    ds = diagnose(exact(3, 0.05, members=2), theta, x, samples=200, mixture=False)
    assert "too few for the normaliser" in ds.attrs["notes"]
    np.testing.assert_allclose(ds.nominal_log_prob, log_prob.mean(), atol=0.05)
    np.testing.assert_allclose(ds.entropy, entropy, atol=0.05)


def test_points_that_suffice_are_left_alone():
    theta, x = pairs(60, 4, seed=0)
    ds = diagnose(GaussianPosterior([1.0], 4, "classifier", offset=1.0), theta, x)
    assert ds.attrs["notes"] == ""


class Twins(Exact):
    """Log-likelihoods of x = ±θ + sd · N(0, I): two peaks, to which no Gaussian fits."""

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.logaddexp(super().log_ratio(theta, x), super().log_ratio(theta, -x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:up to .* of a member's ranks rest on fewer:UserWarning")
@pytest.mark.parametrize("mixture", [True, False])
def test_what_no_gaussian_fits_is_sampled(mixture: bool):
    theta, x, log_prob, entropy = drawn(3, 0.02)
    ds = diagnose(exact(3, 0.02, 2, Twins), theta, x, mixture=mixture)
    assert "too few for the normaliser" in ds.attrs["notes"] and "rest on few effective" not in ds.attrs["notes"]
    # Two peaks of one half each, apart for nearly every x. Tempered particles are off by 0.1 or so on average, and the
    # points of the ranks by 1 and more.
    np.testing.assert_allclose(ds.nominal_log_prob, log_prob.mean() - math.log(2), atol=0.25)
    np.testing.assert_allclose(ds.entropy, entropy + math.log(2), atol=0.25)


class TwinsFake(Likelihood):
    """The same without a way to evaluate members at points of their own."""

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.logaddexp(super().log_ratios(theta, x), super().log_ratios(theta, -x))


def test_too_few_points_are_told_where_members_cannot_be_sampled():
    theta, x, _, _ = drawn(3, 0.02)
    with pytest.warns(UserWarning, match="rest on fewer"):
        ds = diagnose(TwinsFake(GaussianPrior([0.0] * 3, torch.eye(3)), 0.02, members=2), theta, x)
    assert "log posterior and entropy rest on few effective points" in ds.attrs["notes"]


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


class Linear(torch.nn.Module):
    """A network that refuses inputs of another precision than its own."""

    def __init__(self, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2 * dim, 1, dtype=dtype)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.layer(torch.cat([theta, x.expand(theta.shape)], -1)).squeeze(-1)


@pytest.mark.parametrize("samples", [40, 600])
@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_classifiers_are_judged_in_their_own_precision(
    default: torch.dtype, dtype: torch.dtype, dim: int, samples: int
):
    prior = GaussianPrior(torch.zeros(dim, dtype=dtype), torch.eye(dim, dtype=dtype))
    network = UserNetwork(Linear(dim, dtype), prior, (dim,))
    stack = network.init([(0, 0)], [torch.zeros(dim, dtype=dtype)], [torch.ones(dim, dtype=dtype)])
    posterior = Posterior(network, {name: w.to(dtype) for name, w in stack.items()})
    assert posterior.dtype == dtype
    theta, x = (t.to(dtype) for t in pairs(60, dim, seed=0))
    ds = diagnose(posterior, theta, x, samples=samples)
    assert np.isfinite(ds["rank"]).all() and np.isfinite(ds.log_prob).all() and np.isfinite(ds.entropy).all()
