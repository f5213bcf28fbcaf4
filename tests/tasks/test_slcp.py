"""SLCP against its closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import equipoise as eq

task = eq.task("slcp")


def standardised(n: int, theta=(1.5, -0.8), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = task.simulate(torch.tensor([theta]).expand(n, 2), seed=seed).double().numpy()
    return (x[:, 0::2] - 0.7) / theta[0] ** 2, (x[:, 1::2] + 2.9) / theta[1] ** 2


def test_marginals_are_normal() -> None:
    zx, zy = standardised(20_000)
    # Eight KS tests at 1e-5 with a fixed seed.
    for column in (*zx.T, *zy.T):
        assert scipy.stats.kstest(column, "norm").pvalue > 1e-5


def test_correlation_is_the_nuisances() -> None:
    zx, zy = standardised(200_000)
    products = zx * zy
    # E ρ = 0, and two points share ρ: E[z1 z1' · z2 z2'] = E ρ² = 1 - tanh(3)/3.
    assert abs(products.mean()) < 5 * products.mean(1).std() / math.sqrt(len(products))
    shared = (products[:, 0] * products[:, 1] + products[:, 2] * products[:, 3]) / 2
    assert abs(shared.mean() - (1 - math.tanh(3) / 3)) < 5 * shared.std() / math.sqrt(len(shared))
    # Different simulations draw different ρ: no correlation across rows.
    across = products[:-1, 0] * products[1:, 0]
    assert abs(across.mean()) < 5 * across.std() / math.sqrt(len(across))


def test_four_points_of_one_simulation_are_independent() -> None:
    zx, _ = standardised(100_000)
    correlation = np.corrcoef(zx.T) - np.eye(4)
    assert np.abs(correlation).max() < 5 / math.sqrt(100_000)


def brute_likelihood(theta: np.ndarray, x: np.ndarray) -> float:
    points = x.reshape(4, 2)
    s1, s2 = theta**2

    def density(u: float) -> float:
        rho = math.tanh(u)
        covariance = [[s1**2, rho * s1 * s2], [rho * s1 * s2, s2**2]]
        return math.exp(scipy.stats.multivariate_normal([0.7, -2.9], covariance).logpdf(points).sum() - top) / 6

    top = max(
        scipy.stats.multivariate_normal([0.7, -2.9], [[s1**2, math.tanh(u) * s1 * s2], [math.tanh(u) * s1 * s2, s2**2]])
        .logpdf(points)
        .sum()
        for u in np.linspace(-3, 3, 25)
    )
    return math.log(scipy.integrate.quad(density, -3, 3, limit=200, epsabs=0, epsrel=1e-9)[0]) + top


@pytest.mark.parametrize("theta", [(1.0, 1.0), (-2.9, 0.4), (0.2, 2.5)])
def test_likelihood_is_the_integral_over_the_nuisance(theta: tuple[float, float]) -> None:
    t = torch.tensor(theta, dtype=torch.float64)
    x = task.simulate(t, seed=7)[0].double()
    for other in (t, t * 0.85, (t * 1.2).clamp(-3, 3)):
        expected = brute_likelihood(other.numpy(), x.numpy())
        assert float(task.log_likelihood(other, x)) == pytest.approx(expected, abs=1e-6)


def test_likelihood_ratios_average_to_one() -> None:
    theta, other = torch.tensor([1.2, 0.9], dtype=torch.float64), torch.tensor([1.15, 0.93], dtype=torch.float64)
    x = task.simulate(theta.expand(20_000, 2), seed=3).double()
    ratio = (task.log_likelihood(other, x) - task.log_likelihood(theta, x)).exp()
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(len(ratio))
    assert ratio.std() > 0.1  # the check would notice a likelihood that does not depend on θ


def test_four_fold_symmetry() -> None:
    theta = torch.tensor([[1.3, 0.7]])
    x = task.simulate(theta)
    signs = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    values = task.log_posterior(theta * signs, x)
    torch.testing.assert_close(values, values[:1].expand(4))


@pytest.mark.parametrize("theta", [(1.0, 2.0), (2.9, -2.9), (0.05, 2.0), (-0.3, 0.2)])
def test_posterior_integrates_to_one(theta: tuple[float, float]) -> None:
    x = task.simulate(torch.tensor(theta), seed=3)[0].double()
    node, weight = np.polynomial.legendre.leggauss(240)
    # In log θ, where the posterior is smooth, from e⁻⁷ to 3; four quadrants.
    log_theta = torch.tensor((node + 1) / 2 * (math.log(3) + 7) - 7)
    weight = torch.tensor(weight) / 2 * (math.log(3) + 7)
    grid = torch.stack(torch.meshgrid(log_theta.exp(), log_theta.exp(), indexing="ij"), -1)
    density = (task.log_posterior(grid, x) + grid.log().sum(-1)).exp()
    assert float(4 * (weight[:, None] * weight * density).sum()) == pytest.approx(1, abs=2e-4)


def test_rounding_of_x_does_not_make_theta_impossible() -> None:
    small = torch.logspace(-7, -3, 40, dtype=torch.float64)
    theta = torch.stack([small, torch.full_like(small, 1.5)], -1)
    x = task.simulate(theta, seed=1)
    assert x.dtype == torch.float32
    ours = task.log_posterior(theta, x)
    assert (ours > -20).all()
    # The density that takes float32 numbers for exact ones has no idea.
    assert task.log_posterior(theta, x.double()).min() < -1e4
    # Where θ is not tiny the two agree.
    theta = torch.tensor([[0.05, 0.1], [1.0, 2.0]], dtype=torch.float64)
    x = task.simulate(theta)
    torch.testing.assert_close(task.log_posterior(theta, x), task.log_posterior(theta, x.double()), atol=1e-4, rtol=0)
