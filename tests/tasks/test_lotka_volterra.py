"""Lotka–Volterra against enumeration, brute-force quadrature and plain simulators written from the description."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch

import equipoise as eq

MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])


def rates(phi: np.ndarray, x: float, y: float) -> np.ndarray:
    return np.exp(phi) * np.array([x * y, x, y, x * y])


def plain_jumps(theta, steps: int, rng: np.random.Generator) -> np.ndarray:
    phi = np.concatenate([theta, rng.uniform(-4, 1, 2)])
    state, out = np.array([50, 100]), np.zeros((steps, 2), int)
    for t in range(steps):
        r = rates(phi, *state)
        if r.sum() == 0:
            break
        state = state + MOVES[rng.choice(4, p=r / r.sum())]
        out[t] = state
    return out


def plain_times(theta, steps: int, duration: float, rng: np.random.Generator) -> np.ndarray:
    phi = np.concatenate([theta, rng.uniform(-4, 1, 2)])
    state, now, out, row = np.array([50, 100]), 0.0, np.zeros((steps, 2), int), 0
    times = duration * np.arange(1, steps + 1) / steps
    while row < steps:
        r = rates(phi, *state)
        now = now + rng.exponential(1 / r.sum()) if r.sum() > 0 else math.inf
        while row < steps and times[row] <= now:
            out[row] = state
            row += 1
        if r.sum() > 0:
            state = state + MOVES[rng.choice(4, p=r / r.sum())]
    return out


def brute_likelihood(theta, path: np.ndarray, nodes: int = 240) -> float:
    """log p(x|θ) by Gauss–Legendre over both nuisances, from the rates alone."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    node, weight = (node + 1) / 2 * 5 - 4, weight / 2
    phi3, phi4 = np.meshgrid(node, node, indexing="ij")
    total = np.zeros_like(phi3)
    previous = np.array([50.0, 100.0])
    for state in path:
        x, y = previous
        if x > 0 and y > 0:  # otherwise there is one possible event
            each = [np.exp(theta[0]) * x * y, np.exp(theta[1]) * x, np.exp(phi3) * y, np.exp(phi4) * x * y]
            kind = [tuple(m) for m in MOVES].index(tuple(int(v) for v in state - previous))
            total += np.log(each[kind]) - np.log(sum(each))
        previous = state
    top = total.max()
    return float(top + np.log((np.exp(total - top) * weight[:, None] * weight).sum()))


# --- the jump chain ------------------------------------------------------------------------------------------------


def test_every_step_is_one_event_and_extinction_is_final() -> None:
    task = eq.task("lotka_volterra", steps=500)
    theta = task.prior.from_uniform(torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)))
    x = task.simulate_compact(theta).astype(int)
    path = np.concatenate([np.tile([[50, 100]], (2000, 1, 1)), x], 1)
    change = np.abs(np.diff(path, axis=1)).sum(-1)
    dead = path[:, :-1].sum(-1) == 0
    assert (change[~dead] == 1).all() and (change[dead] == 0).all() and (path >= 0).all()


def test_share_of_extinctions() -> None:
    # About 70% of prior draws at the 1001 steps of the authors' code, more at 2001.
    theta = eq.task("lotka_volterra").prior.from_uniform(
        torch.rand(5000, 2, generator=torch.Generator().manual_seed(0))
    )
    share = [
        (eq.task("lotka_volterra", steps=s).simulate(theta)[:, -1].sum(-1) == 0).float().mean() for s in (1001, 2001)
    ]
    assert 0.68 < share[0] < 0.75 and 0.78 < share[1] < 0.86


@pytest.mark.parametrize("theta", [(-2.0, 0.5), (0.8, -3.0)])
def test_short_paths_have_their_probabilities(theta: tuple[float, float]) -> None:
    """All 64 paths of three steps: the likelihood sums to one, and simulated frequencies follow it."""
    task = eq.task("lotka_volterra", steps=3)
    moves = np.array(list(itertools.product(MOVES, repeat=3)))
    paths = np.array([50, 100]) + moves.cumsum(1)
    t = torch.tensor(theta, dtype=torch.float64)
    probability = task.log_likelihood(t, torch.tensor(paths, dtype=torch.float64)).exp().numpy()
    assert probability.sum() == pytest.approx(1, abs=1e-5)
    x = task.simulate_compact(t.expand(100_000, 2), seed=5).astype(int)
    index = {p.tobytes(): i for i, p in enumerate(paths.astype(np.int64))}
    counts = np.bincount([index[row.astype(np.int64).tobytes()] for row in x], minlength=64)
    expected = probability * 100_000
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    statistic = ((observed - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum()
    assert scipy.stats.chi2(len(wanted) - 1).sf(statistic) > 1e-5


def test_same_distribution_as_the_plain_simulator() -> None:
    task, theta = eq.task("lotka_volterra", steps=300), np.array([-3.0, 0.0])
    rng = np.random.default_rng(0)
    slow = np.stack([plain_jumps(theta, 300, rng) for _ in range(300)])
    fast = task.simulate_compact(torch.tensor(theta).expand(5000, 2), seed=1)
    for t, species in itertools.product((20, 100, 299), (0, 1)):
        assert scipy.stats.ks_2samp(slow[:, t, species], fast[:, t, species]).pvalue > 1e-5


# --- its posterior -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "seed"), [(1, 0), (30, 1), (300, 2), (300, 3), (2001, 4), (2001, 9)])
def test_likelihood_against_brute_force(steps: int, seed: int) -> None:
    task = eq.task("lotka_volterra", steps=steps)
    generator = torch.Generator().manual_seed(seed)
    theta = task.prior.from_uniform(torch.rand(2, generator=generator, dtype=torch.float64))
    x = task.simulate(theta, seed=seed)[0].double()
    near = (theta + 0.15 * torch.randn(2, generator=generator, dtype=torch.float64)).clamp(-4, 1)
    for t in (theta, near):
        assert float(task.log_likelihood(t, x)) == pytest.approx(brute_likelihood(t.numpy(), x.numpy()), abs=1e-4)
    far = torch.tensor([0.9, -3.9], dtype=torch.float64)
    assert float(task.log_likelihood(far, x)) == pytest.approx(brute_likelihood(far.numpy(), x.numpy()), abs=1e-2)


@pytest.mark.parametrize("steps", [1, 40, 400, 2001])
def test_posterior_integrates_to_one(steps: int) -> None:
    task = eq.task("lotka_volterra", steps=steps)
    theta = task.prior.from_uniform(torch.rand(4, 2, generator=torch.Generator().manual_seed(steps)))
    x = task.simulate(theta, seed=steps).double()
    node, weight = np.polynomial.legendre.leggauss(120)
    node, weight = torch.tensor((node + 1) / 2 * 5 - 4), torch.tensor(weight / 2 * 5)
    grid = torch.stack(torch.meshgrid(node, node, indexing="ij"), -1).reshape(-1, 1, 2)
    total = (task.log_posterior(grid, x).exp().reshape(120, 120, 4) * (weight[:, None] * weight)[..., None]).sum((0, 1))
    torch.testing.assert_close(total, torch.ones(4, dtype=torch.float64), atol=2e-3, rtol=0)


def test_evidence_is_that_of_a_finer_grid() -> None:
    # Gauss–Legendre with 200 nodes a side resolves the ridge: the tolerance the module states.
    task = eq.task("lotka_volterra")
    x = task.simulate(torch.tensor([[-3.2, -2.6]]), seed=9).double()
    node, weight = np.polynomial.legendre.leggauss(200)
    node, weight = torch.tensor((node + 1) / 2 * 5 - 4), torch.tensor(weight / 2 * 5)
    grid = torch.stack(torch.meshgrid(node, node, indexing="ij"), -1).reshape(-1, 2)
    total = (task.log_posterior(grid, x[0]).exp().reshape(200, 200) * weight[:, None] * weight).sum()
    assert float(total) == pytest.approx(1, abs=2e-4)


def test_shift_of_all_rates_changes_nothing() -> None:
    # Along φ1 = φ2 the posterior varies through the nuisances' box alone: for a short series that is little.
    task = eq.task("lotka_volterra", steps=20)
    x = task.simulate(torch.tensor([-1.5, -1.5]), seed=0)
    values = task.log_posterior(torch.tensor([[-1.6, -1.6], [-1.5, -1.5], [-1.4, -1.4]], dtype=torch.float64), x)
    assert (values - values[1]).abs().max() < 0.05


def test_paths_that_the_chain_cannot_take_are_refused() -> None:
    task = eq.task("lotka_volterra", steps=5)
    x = task.simulate(torch.zeros(1, 2)).double()
    theta = torch.zeros(2, dtype=torch.float64)
    jump = x.clone()
    jump[0, 2] += 3
    with pytest.raises(ValueError, match="series 0 is no path"):
        task.log_posterior(theta, jump)
    with pytest.raises(ValueError, match="undo any scaling"):
        task.log_posterior(theta, x / 100)


# --- the physical clock --------------------------------------------------------------------------------------------


def test_clock_against_the_plain_simulator() -> None:
    task = eq.task("lotka_volterra", steps=10, clock="time", duration=0.05)
    theta, rng = np.array([-3.5, 0.5]), np.random.default_rng(0)
    slow = np.stack([plain_times(theta, 10, 0.05, rng) for _ in range(500)])
    fast = task.simulate_compact(torch.tensor(theta).expand(5000, 2), seed=1)
    for t, species in itertools.product((0, 4, 9), (0, 1)):
        assert scipy.stats.ks_2samp(slow[:, t, species], fast[:, t, species]).pvalue > 1e-5


def test_cap_on_events_leaves_a_marker() -> None:
    task = eq.task("lotka_volterra", steps=200, clock="time", max_events=500)
    theta = task.prior.from_uniform(torch.rand(500, 2, generator=torch.Generator().manual_seed(0)))
    x = task.simulate(theta)
    marked = x == -1
    assert torch.equal(marked[..., 0], marked[..., 1])  # both columns
    assert (marked[:, 1:, 0] >= marked[:, :-1, 0]).all()  # and to the end
    assert 0.2 < float(marked[:, -1, 0].float().mean()) < 1 and (x >= -1).all()
    assert x.max() <= 100 + 500
    # A higher cap changes only what was marked: the same row draws the same events.
    more = eq.task("lotka_volterra", steps=200, clock="time", max_events=5000).simulate(theta)
    assert torch.equal(torch.where(marked, x, more), x)
    assert (more == -1).sum() < marked.sum()


def test_dead_stay_dead_on_the_clock() -> None:
    task = eq.task("lotka_volterra", steps=50, clock="time", duration=1000.0, max_events=10_000)
    x = task.simulate(torch.tensor([[1.0, 1.0]]).expand(200, 2))
    dead = x.sum(-1) == 0
    assert dead.any() and (dead[:, 1:] >= dead[:, :-1]).all()


def test_storage_is_as_small_as_the_counts_allow() -> None:
    theta = torch.zeros(1, 2)
    assert eq.task("lotka_volterra").simulate_compact(theta).dtype == np.int16
    assert eq.task("lotka_volterra", steps=40_000).simulate_compact(theta).dtype == np.int32
    assert eq.task("lotka_volterra", steps=10, clock="time").simulate_compact(theta).dtype == np.int32
