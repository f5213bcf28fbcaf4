"""Spatial SIR against its closed forms and a plain simulator written from the description."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

import equipoise as eq
from equipoise.tasks import spatial_sir, streams

task = eq.task("spatial_sir")
SEEDS = 2500 * (1 - (1 - 1 / 2500) * math.exp(-3 / 2500))  # E[distinct seeds]


def plain(beta: float, gamma: float, rng: np.random.Generator) -> np.ndarray:
    """One simulation, cell by cell in NumPy, shape (2, 50, 50): I and R."""
    infected, recovered = np.zeros((50, 50), bool), np.zeros((50, 50), bool)
    for _ in range(1 + rng.poisson(3)):
        infected[rng.integers(50), rng.integers(50)] = True
    for _ in range(100):
        if not infected.any():
            break
        padded = np.pad(infected.astype(float), 1)
        n = sum(padded[1 + i : 51 + i, 1 + j : 51 + j] for i in (-1, 0, 1) for j in (-1, 0, 1))
        susceptible = ~infected & ~recovered
        new = susceptible & (rng.random((50, 50)) < beta * n / 8)
        cured = infected & (rng.random((50, 50)) < gamma)
        infected, recovered = (infected | new) & ~recovered, recovered | cured
    return np.stack([infected, recovered])


def repeat(beta: float, gamma: float, n: int, seed: int = 0) -> np.ndarray:
    return task.simulate_compact(torch.tensor([[beta, gamma]]).expand(n, 2), seed=seed)


def count(x: np.ndarray) -> np.ndarray:
    return np.count_nonzero(x, axis=(1, 2))


def close(values: np.ndarray, expected: float) -> bool:
    """Whether the mean is within five standard errors; a mistake of one seed in 4 is ninety of them."""
    return abs(values.mean() - expected) <= 5 * values.std() / math.sqrt(len(values)) + 1e-12


@pytest.mark.parametrize("gamma", [0.0, 0.005, 0.02, 0.3, 1.0])
def test_without_infection_only_the_seeds_matter(gamma: float) -> None:
    x = repeat(0.0, gamma, 8000)
    infected, recovered, both = (count(y) for y in (x[:, 1], x[:, 2], x[:, 1] & x[:, 2]))
    assert close(recovered, SEEDS * (1 - (1 - gamma) ** 100))
    assert close(infected, SEEDS * (1 - gamma) ** 99)
    assert close(both, SEEDS * gamma * (1 - gamma) ** 99)
    if gamma == 1:
        assert (x[:, 1] == 0).all()


def test_number_and_place_of_the_seeds() -> None:
    x = repeat(0.0, 0.0, 10_000)[:, 1]
    counts = count(x)
    assert counts.min() == 1
    # 1 + Poisson(3), but for the few collisions; 0.02 is four standard errors and more.
    for k in range(1, 9):
        assert (counts == k).mean() == pytest.approx(scipy.stats.poisson(3).pmf(k - 1), abs=0.02)
    where = x.sum(0, dtype=np.int64)
    # Uniform over 2500 cells, 16 expected in each: chi² at 1e-6.
    assert scipy.stats.chisquare(where.ravel()).pvalue > 1e-6


def test_without_recovery_nobody_recovers() -> None:
    theta = torch.stack([torch.linspace(0, 1, 200), torch.zeros(200)], 1)
    x = task.simulate(theta)
    assert (x[:, 2] == 0).all() and (x[:, 0] + x[:, 1] == 1).all()


def test_susceptible_is_neither_infected_nor_recovered() -> None:
    theta = task.prior.from_uniform(torch.rand(500, 2, generator=torch.Generator().manual_seed(0)))
    s, i, r = (task.simulate(theta) > 0).unbind(1)
    assert torch.equal(s, ~i & ~r)
    assert (i & r).any()  # a cell that recovers stays infected for one more step


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "gamma"), [(0.9, 0.3), (0.3, 0.1), (1.0, 0.05)])
def test_same_distribution_as_the_plain_simulator(beta: float, gamma: float) -> None:
    rng = np.random.default_rng(0)
    slow = np.stack([plain(beta, gamma, rng) for _ in range(150)])
    fast = repeat(beta, gamma, 3000, seed=3)[:, 1:] > 0
    summaries = {
        "infected": lambda x: count(x[:, 0]),
        "recovered": lambda x: count(x[:, 1]),
        "infected and recovered": lambda x: count(x[:, 0] & x[:, 1]),
        # A wrong border (wrapping, a lost column) shows on the rim, a wrong count of neighbours in the patch's edges.
        "rim": lambda x: x[:, :, [0, -1], :].any(1).sum((1, 2)) + x[:, :, :, [0, -1]].any(1).sum((1, 2)),
        "border length": lambda x: count(x.any(1)[:, 1:] != x.any(1)[:, :-1]),
        "columns": lambda x: count(x.any(1)[:, :, 1:] != x.any(1)[:, :, :-1]),
    }
    for name, f in summaries.items():
        # 18 two-sample KS tests at 1e-5, fixed seeds.
        assert scipy.stats.ks_2samp(f(slow), f(fast)).pvalue > 1e-5, name


def test_grid_has_no_preferred_direction() -> None:
    x = repeat(0.5, 0.2, 6000)[:, 2]
    rows, columns = x.mean((0, 2)), x.mean((0, 1))
    # The share of recovered cells by row and by column: alike, and the same read backwards. The standard error of one
    # entry is at most 0.005 (patches are correlated), so 0.03 is six of them; a lost column would be 0.3.
    assert np.abs(rows - columns).max() < 0.03
    assert np.abs(rows - rows[::-1]).max() < 0.03 and np.abs(columns - columns[::-1]).max() < 0.03


@streams.compiled
def flip(key, p, out):
    state = np.empty(4, np.uint64)
    for i in range(out.shape[0]):
        streams.start(state, key, i)
        out[i] = spatial_sir._coins(state, p, np.uint64(0x00FFFFFFFFFFFFFF))


@streams.compiled
def compare(key, k, out):
    state = np.empty(4, np.uint64)
    full = ~np.uint64(0)
    zero = np.uint64(0)
    for i in range(out.shape[0]):
        streams.start(state, key, i)
        planes = (full if k & 1 else zero, full if k & 2 else zero, full if k & 4 else zero, full if k & 8 else zero)
        out[i] = spatial_sir._below(state, planes[0], planes[1], planes[2], planes[3])


def lanes(out: np.ndarray) -> np.ndarray:
    return np.unpackbits(out.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").mean(0)


@pytest.mark.parametrize("p", [0.0, 1e-3, 0.3, 0.5, 1 / 3, 0.999, 1.0])
def test_coins_have_their_probability_in_every_lane(p: float) -> None:
    out = np.empty(20_000, np.uint64)
    flip(streams.key_of(0, "coins"), p, out)
    share = lanes(out)
    # Five standard errors in each of 56 lanes (a false alarm in 30,000 seeds), and nothing outside the lanes asked for.
    assert np.abs(share[:56] - p).max() <= 5.5 * math.sqrt(p * (1 - p) / 20_000)
    assert (share[56:] == 0).all()


@pytest.mark.parametrize("k", range(9))
def test_counts_become_eighths(k: int) -> None:
    out = np.empty(20_000, np.uint64)
    compare(streams.key_of(1, "eighths"), k, out)
    p = k / 8
    assert np.abs(lanes(out) - p).max() <= 5.5 * math.sqrt(p * (1 - p) / 20_000)
