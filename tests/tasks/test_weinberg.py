"""Weinberg against its closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import equipoise as eq
from equipoise.tasks import weinberg

task = eq.task("weinberg")
CONSTANTS = [0.25, 0.414, 0.9, 1.24, 1.243078, 1.25, 1.5, 2.0]


def raw(c: np.ndarray, gf: float) -> np.ndarray:
    """The density of the task's description, cut at zero and not normalised."""
    return np.maximum(0.0, 1 + c**2 + 2 * math.tanh(10 * (2 * 40 - 90) / 90) * gf * c)


def test_constants() -> None:
    assert pytest.approx(-1.608910, abs=5e-7) == weinberg.SLOPE
    assert pytest.approx(1.243078, abs=5e-7) == weinberg.CRITICAL


@pytest.mark.parametrize("gf", CONSTANTS)
def test_cosines_follow_the_cut_parabola(gf: float) -> None:
    x = task.simulate(torch.full((10_000, 1), gf), seed=2).double().numpy().ravel()
    assert x.min() >= -1 and x.max() <= 1
    grid = np.linspace(-1, 1, 200_001)
    cdf = scipy.integrate.cumulative_simpson(raw(grid, gf), x=grid, initial=0)
    # 200,000 draws: a shift of the CDF by 0.0042, the authors' clipping, has a p-value of 1e-3; 1e-5 allows the noise
    # of eight constants and float32, while any mistake in the cubic is far larger.
    assert scipy.stats.kstest(x, lambda c: np.interp(c, grid, cdf / cdf[-1])).pvalue > 1e-5


@pytest.mark.parametrize("gf", CONSTANTS)
def test_mean_is_the_closed_one(gf: float) -> None:
    x = task.simulate(torch.full((50_000, 1), gf), seed=3).double().mean(1)
    total = scipy.integrate.quad(lambda c: raw(c, gf), -1, 1, limit=200)[0]
    mean = scipy.integrate.quad(lambda c: c * raw(c, gf), -1, 1, limit=200)[0] / total
    assert abs(float(x.mean()) - mean) < 5 * float(x.std()) / math.sqrt(len(x))


def test_no_draw_leaves_the_support() -> None:
    theta = task.prior.from_uniform(torch.linspace(0, 1, 20_000)[:, None])
    x = task.simulate(theta, seed=0)
    _, c0, _ = weinberg._shape(theta[:, 0].double())
    assert (x.double() <= c0[:, None] + 1e-7).all() and (x >= -1).all()
    assert task.log_likelihood(theta.double(), x).isfinite().all()


@pytest.mark.parametrize("gf", CONSTANTS)
def test_likelihood_is_normalised(gf: float) -> None:
    # One cosine runs over [-1, 1], the other 19 stay: the integral is the density of those.
    theta = torch.tensor([gf], dtype=torch.float64)
    x = torch.full((20,), -0.5, dtype=torch.float64)

    def density(c: float) -> float:
        x[0] = c
        return float(task.log_likelihood(theta, x).exp())

    c0 = float(weinberg._shape(theta)[1])
    integral = scipy.integrate.quad(density, -1, c0, epsabs=0, epsrel=1e-10)[0]
    one = raw(np.array(-0.5), gf) / scipy.integrate.quad(lambda c: raw(c, gf), -1, 1, points=[c0], limit=200)[0]
    assert integral == pytest.approx(float(one) ** 19, rel=1e-6)


@pytest.mark.parametrize("gf", CONSTANTS)
def test_posterior_integrates_to_one(gf: float) -> None:
    x = task.simulate(torch.tensor([gf]), seed=5)[0].double()
    grid = torch.linspace(0.25, 2, 20_001, dtype=torch.float64)
    density = task.log_posterior(grid[:, None], x).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=3e-5)


def test_posterior_excludes_what_the_largest_cosine_excludes() -> None:
    x = torch.full((20,), -0.9)
    x[0] = 0.8  # beyond c0 for gf > (1 + 0.64)/(0.8 · 1.6089) = 1.2741
    assert task.log_posterior(torch.tensor([1.27]), x).isfinite()
    assert task.log_posterior(torch.tensor([1.28]), x) == -math.inf
