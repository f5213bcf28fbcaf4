"""The exact posteriors are calibrated and balanced: simulator and density checked together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import equipoise as eq

SHORT = eq.task("lotka_volterra", steps=200)


def pairs(task: eq.Task, n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    theta = task.prior.from_uniform(torch.rand(n, task.prior.dim, generator=generator))
    return theta, task.simulate(theta, seed=seed)


def jittered(task: eq.Task, side: int, seed: int) -> Tensor:
    """One uniform point in each cell of a grid over the prior, with shape (side^D, D)."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.meshgrid(*[torch.arange(side, dtype=torch.float64)] * task.prior.dim, indexing="ij")
    cells = torch.stack(axes, -1).reshape(-1, task.prior.dim)
    return task.prior.from_uniform((cells + torch.rand(cells.shape, generator=generator, dtype=torch.float64)) / side)


def ranks(task: eq.Task, theta: Tensor, x: Tensor, side: int) -> np.ndarray:
    """The posterior mass that is denser than θ*, over a jittered grid."""
    points = jittered(task, side, seed=1)
    if task.name == "slcp":  # one quadrant stands for four, finer
        points, theta = points.abs(), theta.abs()
    found = []
    for t, y in zip(theta.double().split(20), x.split(20), strict=True):
        grid = task.log_posterior(points[:, None], y)
        weight = grid.softmax(0)
        found.append((weight * (grid > task.log_posterior(t, y))).sum(0))
    return torch.cat(found).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "side"), [("slcp", 200, 100), ("weinberg", 1000, 500), ("lotka_volterra", 150, 40)]
)
def test_coverage_is_uniform(name: str, n: int, side: int) -> None:
    task = SHORT if name == "lotka_volterra" else eq.task(name)
    theta, x = pairs(task, n, seed=11)
    r = ranks(task, theta, x, side)
    # KS at 1e-4. A posterior whose log density is off by a factor 1.3 fails it at these sizes.
    assert scipy.stats.kstest(r, "uniform").pvalue > 1e-4
    assert abs(r.mean() - 0.5) < 4 / math.sqrt(12 * n)


def test_coverage_of_two_moons_is_uniform() -> None:
    """Ranks among exact posterior draws, made by turning the simulator's half circle around x."""
    task = eq.task("two_moons")
    n, draws = 600, 100
    theta, x = pairs(task, n, seed=12)
    rng = np.random.default_rng(0)
    a, r = rng.uniform(-math.pi / 2, math.pi / 2, (12 * draws, n)), rng.normal(0.1, 0.01, (12 * draws, n))
    q0, q1 = r * np.cos(a) + 0.25 - x[:, 0].numpy(), x[:, 1].numpy() - r * np.sin(a)
    sign = rng.choice([-1, 1], q0.shape)
    sample = torch.tensor(np.stack([sign * q0 - q1, sign * q0 + q1], -1) / math.sqrt(2))
    good = torch.tensor((q0 >= 0) & (q0 + np.abs(q1) <= math.sqrt(2)))
    enough = good.sum(0) >= draws  # leaves out the few x of which almost all θ are outside the prior
    assert enough.float().mean() > 0.97
    denser = torch.where(good, task.log_posterior(sample, x.double()) > task.log_posterior(theta.double(), x), 0.0)
    rank = (denser.sum(0) / good.sum(0))[enough].numpy()
    assert scipy.stats.kstest(rank, "uniform").pvalue > 1e-4
    # All of those draws have positive density: the support is right.
    assert task.log_posterior(sample, x.double())[good].isfinite().float().mean() > 0.9999


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n"), [("slcp", 1200), ("weinberg", 10_000), ("two_moons", 20_000), ("lotka_volterra", 500)]
)
def test_balanced(name: str, n: int) -> None:
    """E_joint σ(log r) + E_marginal σ(log r) = 1 with r = p(θ|x)/p(θ)."""
    task = SHORT if name == "lotka_volterra" else eq.task(name)
    theta, x = pairs(task, n, seed=13)
    both = torch.stack([theta, theta.roll(1, 0)]).double()
    d = torch.sigmoid(task.log_posterior(both, x) - task.prior.log_prob(theta)).sum(0) - 1
    # Neighbours share a θ, so the variance of the sum has the covariance with the next row twice.
    centred = d - d.mean()
    variance = (centred**2).mean() + 2 * (centred * centred.roll(1)).mean()
    assert abs(float(d.mean())) < 4.5 * math.sqrt(float(variance) / n)
    assert float(torch.sigmoid(task.log_posterior(both[0], x) - task.prior.log_prob(theta)).mean()) > 0.55
