"""Tempered particles: their effective sample size, against the scatter of many runs, and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.posteriors.particles import run_particles


def linear(theta: Tensor) -> Tensor:
    mix = torch.tensor([[2.0, 1, 0, 0, 0, -1], [0, 2, 1, 0, 1, 0], [0, 0, 2, 1, 0, 0], [1, 0, 0, 2, 0, 0]])
    more = torch.tensor([[0.0, -1, 0, 0, 2, 1], [0, 0, 1, 0, 0, 2]])
    return -0.5 * ((theta @ torch.cat([mix, more]).T - 0.5) / 0.3).square().sum(-1)


def two_peaks(theta: Tensor) -> Tensor:
    peaks = [math.log(w) - 0.5 * ((theta - c) / 0.15).square().sum(-1) for w, c in ((0.7, 0.8), (0.3, -0.8))]
    return torch.logaddexp(*peaks)


def banana(theta: Tensor) -> Tensor:
    bent = ((theta[..., 1] - theta[..., 0].square()) / 0.1).square()
    return -0.5 * (bent + ((theta[..., 2:] - 0.5) / 0.2).square().sum(-1))


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "dim"), [(linear, 6), (two_peaks, 3), (banana, 4)])
def test_the_effective_sample_size_that_is_told_is_the_one_that_there_is(ratio: Callable, dim: int) -> None:
    """Means of 40 runs scatter as those of as many independent draws do, and the moves are few.

    The variance of 40 means is known to a factor of 1.6 at one in a hundred, so a number that is told may be half or
    three times what is seen.
    """
    prior = eq.GaussianPrior(torch.zeros(dim), torch.eye(dim))
    calls = 0

    def counted(theta: Tensor, x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return ratio(theta)

    runs = [run_particles(counted, torch.zeros(1, 1), prior, 512, seed, torch.zeros(1)) for seed in range(40)]
    draws = torch.stack([run.theta[0, :, 0] for run in runs])
    seen = draws.var(1).mean(0) / draws.mean(1).var(0)
    told = sum(float(run.ess) for run in runs) / len(runs)
    assert told > 256 and (seen > told / 2).all() and (seen < 3 * told).all()
    assert calls / len(runs) < 150  # two hundred moves at the last temperature alone, before there were leaps
    mean, error = draws.mean((0, 1)), (draws.mean(1).var(0) / len(runs)).sqrt()
    if ratio is linear:
        rows = torch.func.jacrev(lambda t: torch.func.jacrev(linear)(t))(torch.zeros(dim))
        precision = torch.eye(dim) - rows
        exact = torch.linalg.solve(precision, torch.func.jacrev(linear)(torch.zeros(dim)))
        assert ((mean - exact).abs() < 4 * error).all()
        spread = torch.linalg.inv(precision).diagonal().sqrt()
        torch.testing.assert_close(draws.var(1).mean(0).sqrt(), spread, rtol=0.05, atol=0)
    elif ratio is two_peaks:  # equal distances from the prior's centre: the prior leaves the weights as they are
        share = (draws[..., 0] > 0).float().mean(1)
        assert abs(float(share.mean()) - 0.7) < 4 * float(share.std()) / len(runs) ** 0.5
    else:
        assert abs(float(mean[0])) < 4 * float(error[0])


def test_effective_draws_of_members_add_up_and_those_of_observations_do_not() -> None:
    torch.manual_seed(0)
    prior = eq.GaussianPrior(torch.zeros(3), torch.eye(3))
    theta = prior.sample((300,))
    few = {"method": eq.METHODS["nre"].but(hidden=(8,)), "epochs": 2, "progress": False, "device": "cpu"}
    p = eq.fit(theta, theta + torch.randn(300, 3), prior=prior, members=4, **few)
    p.sample((2000,), x=theta[0])
    assert 1000 <= p.sampler["ess"] <= 2000.5
    p.sample_batched((2000,), theta[:3])
    assert 1000 <= p.sampler["ess"] <= 2000.5
