"""Two Moons against its closed forms and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

import equipoise as eq
from equipoise.tasks import two_moons

task = eq.task("two_moons")
#: x in the middle, near each side and corner of what is possible, and out of reach of most θ.
PLACES = [(0.0, 0.0), (0.3, 0.1), (0.34, 0.0), (-1.05, 0.2), (0.2, -1.3), (-0.5, 0.75), (0.1, 1.4), (-1.15, 0.0)]


def half_circle(theta: torch.Tensor, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The radius and the angle that made x."""
    u = x[:, 0] - 0.25 + theta.sum(1).abs() / math.sqrt(2)
    v = x[:, 1] - (theta[:, 1] - theta[:, 0]) / math.sqrt(2)
    return torch.hypot(u, v).numpy(), torch.atan2(v, u).numpy()


def test_radius_and_angle() -> None:
    theta = task.prior.from_uniform(torch.rand(50_000, 2, generator=torch.Generator().manual_seed(0)).double())
    radius, angle = half_circle(theta, task.simulate(theta, seed=1).double())
    # KS at 1e-5, fixed seed; float32 moves an angle by 1e-6.
    assert scipy.stats.kstest(radius, scipy.stats.norm(0.1, 0.01).cdf).pvalue > 1e-5
    assert scipy.stats.kstest(angle, scipy.stats.uniform(-math.pi / 2, math.pi).cdf).pvalue > 1e-5
    assert abs(np.corrcoef(radius, angle)[0, 1]) < 5 / math.sqrt(50_000)


def test_likelihood_integrates_to_one() -> None:
    theta = torch.tensor([0.3, -0.5], dtype=torch.float64)
    centre = np.array([0.25 - 0.2 / math.sqrt(2), -0.8 / math.sqrt(2)])
    side = (torch.arange(800, dtype=torch.float64) + 0.5) / 800 * 0.36 - 0.18
    grid = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1) + torch.tensor(centre)
    total = task.log_likelihood(theta, grid).exp().sum() * (0.36 / 800) ** 2
    assert float(total) == pytest.approx(1, abs=1e-3)


def test_symmetry() -> None:
    generator = torch.Generator().manual_seed(0)
    theta = task.prior.from_uniform(torch.rand(200, 2, generator=generator, dtype=torch.float64))
    x = task.simulate(theta).double()
    mirrored = -theta.flip(-1)
    torch.testing.assert_close(task.log_posterior(theta, x), task.log_posterior(mirrored, x))


@pytest.mark.parametrize("place", PLACES)
def test_evidence_against_brute_force(place: tuple[float, float]) -> None:
    # P(x) of the derivation, by a fine midpoint rule in radius and angle.
    x = torch.tensor(place, dtype=torch.float64)
    level = (np.arange(3000) + 0.5) / 3000
    r = scipy.stats.norm(0.1, 0.01).ppf(level)[:, None]
    a = math.pi * (level - 0.5)
    q0, q1 = r * np.cos(a) + 0.25 - place[0], place[1] - r * np.sin(a)
    inside = ((q0 >= 0) & (q0 + np.abs(q1) <= math.sqrt(2))).mean()
    evidence = float(task._log_evidence(task._statistics(x)).exp())
    assert evidence == pytest.approx(inside / 2, rel=5e-4, abs=1e-6)  # the brute force sees nothing below 1e-6


def test_evidence_has_the_accuracy_it_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the nodes change nothing, over x from the prior predictive: no radius with a kink was forgotten."""
    theta = task.prior.from_uniform(torch.rand(5000, 2, generator=torch.Generator().manual_seed(0)))
    statistics = task._statistics(task.simulate(theta, seed=1).double())
    evidence, rule = task._log_evidence(statistics), two_moons.clustered
    monkeypatch.setattr(two_moons, "clustered", lambda n, device: rule(4 * n, device))
    torch.testing.assert_close(evidence, task._log_evidence(statistics), atol=1e-6, rtol=0)


@pytest.mark.parametrize("place", PLACES[:6])
def test_posterior_integrates_to_one(place: tuple[float, float]) -> None:
    # The crescents' ends run along the diagonals: a turned grid, so that no row of points sits on an edge.
    x = torch.tensor(place, dtype=torch.float64)
    n, width = 1100, 2.9
    step = width / n
    side = (torch.arange(n, dtype=torch.float64) + 0.5) * step - width / 2
    turn = torch.tensor([[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]], dtype=torch.float64)
    total = 0.0
    for rows in side.split(220):
        grid = torch.stack(torch.meshgrid(rows, side, indexing="ij"), -1) @ turn.T
        total += float(task.log_posterior(grid, x).exp().sum()) * step**2
    assert total == pytest.approx(1, abs=1.5e-2)


def test_true_parameters_are_never_impossible() -> None:
    theta = task.prior.from_uniform(torch.rand(300_000, 2, generator=torch.Generator().manual_seed(5)))
    assert task.log_likelihood(theta, task.simulate(theta, seed=5)).isfinite().all()
