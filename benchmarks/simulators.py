"""Simulators: Equipoise against plain loops that make one simulation at a time, in one run.

The loops are what one writes first in Python and NumPy from the description of a task: no batches, no compiler, and a
random generator that is asked for what is needed next. They draw from the same distributions as the tasks do (the tests
of the tasks check those against loops like these). Times are medians over repeats; the fast side includes the checks of
θ and the conversion to a float32 tensor, and is timed after a first call, which compiles (or reads what was compiled).
The fast side uses every core, so other work on the machine lowers the ratio.

    python benchmarks/simulators.py
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import equipoise as eq

#: Simulations a second of the authors' code, one process on 2 such cores.
AUTHORS = {"slcp": 6_700, "two_moons": 11_600, "weinberg": 980, "lotka_volterra": 150, "spatial_sir": 160}
#: Simulations of the fast side in one call, and the least ratio that is promised.
SIZES = {
    "slcp": 1_000_000,
    "two_moons": 1_000_000,
    "weinberg": 400_000,
    "lotka_volterra": 20_000,
    "spatial_sir": 10_000,
}
PROMISED = {"slcp": 100, "two_moons": 100, "weinberg": 100, "lotka_volterra": 100, "spatial_sir": 30}
REPEATS, PLAIN_SECONDS = 7, 2.0


def slcp(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    s1, s2 = theta**2
    rho = math.tanh(rng.uniform(-3.0, 3.0))
    covariance = np.array([[s1**2, rho * s1 * s2], [rho * s1 * s2, s2**2]])
    return rng.multivariate_normal([0.7, -2.9], covariance, size=4, method="cholesky").ravel()


def two_moons(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a, r = rng.uniform(-np.pi / 2, np.pi / 2), rng.normal(0.1, 0.01)
    point = np.array([r * np.cos(a) + 0.25, r * np.sin(a)])
    return point + np.array([-abs(theta[0] + theta[1]), theta[1] - theta[0]]) / np.sqrt(2)


def weinberg(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    a = 2 * math.tanh(10 * (2 * 40 - 90) / 90) * theta[0]
    cosines: list[float] = []
    while len(cosines) < 20:
        c = rng.uniform(-1.0, 1.0)
        if rng.uniform(0.0, 2.0 - a) < 1.0 + c * c + a * c:
            cosines.append(c)
    return np.array(cosines)


def spatial_sir(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    beta, gamma = theta
    infected, recovered = np.zeros((50, 50), bool), np.zeros((50, 50), bool)
    for _ in range(1 + rng.poisson(3)):
        infected[rng.integers(50), rng.integers(50)] = True
    for _ in range(100):
        if not infected.any():
            break
        padded = np.pad(infected.astype(np.int64), 1)
        n = sum(padded[1 + i : 51 + i, 1 + j : 51 + j] for i in (-1, 0, 1) for j in (-1, 0, 1))
        new = ~infected & ~recovered & (rng.random((50, 50)) < beta * n / 8)
        cured = infected & (rng.random((50, 50)) < gamma)
        infected, recovered = (infected | new) & ~recovered, recovered | cured
    return np.stack([~infected & ~recovered, infected, recovered])


def lotka_volterra(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    rates = np.exp(np.concatenate([theta, rng.uniform(-4.0, 1.0, 2)]))
    moves = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    state, series = np.array([50, 100]), np.zeros((2001, 2))
    for t in range(2001):
        x, y = state
        weights = np.cumsum(rates * np.array([x * y, x, y, x * y]))
        if weights[-1] == 0:
            break
        state = state + moves[np.searchsorted(weights, rng.uniform(0.0, weights[-1]), side="right")]
        series[t] = state
    return series


PLAIN: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "slcp": slcp,
    "two_moons": two_moons,
    "weinberg": weinberg,
    "lotka_volterra": lotka_volterra,
    "spatial_sir": spatial_sir,
}


def plain_rate(name: str, theta: np.ndarray) -> float:
    """Simulations a second of the loop: the median of blocks of rows, each about a fifth of the time allowed."""
    rng, simulate = np.random.default_rng(0), PLAIN[name]
    rates: list[float] = []
    first, block = 0, 10
    started = time.perf_counter()
    while len(rates) < REPEATS or time.perf_counter() - started < PLAIN_SECONDS:
        rows = theta[first : first + block]
        begun = time.perf_counter()
        np.stack([simulate(row, rng) for row in rows]).astype(np.float32)
        spent = time.perf_counter() - begun
        rates.append(len(rows) / spent)
        first = (first + block) % (len(theta) - 4096)
        block = int(min(4096, max(10, PLAIN_SECONDS / REPEATS * len(rows) / spent)))
    return statistics.median(rates)


def fast_rate(task: eq.Task, theta: torch.Tensor) -> float:
    """Simulations a second of `task.simulate`, the median of repeats."""
    rates = []
    for seed in range(REPEATS):
        begun = time.perf_counter()
        task.simulate(theta, seed=seed)
        rates.append(len(theta) / (time.perf_counter() - begun))
    return statistics.median(rates)


def stored_bytes(task: eq.Task) -> int:
    """Bytes of one x in the store: bits packed, integers in their own dtype."""
    compact = task.simulate_compact(task.prior.sample((1,)))
    return math.ceil(compact.size / 8) if task.storage == "bits" else compact.nbytes


def main() -> None:
    print(f"{torch.get_num_threads()} threads; medians of {REPEATS} runs; simulations a second, bytes a simulation\n")
    print(f"{'task':15} {'first':>8} {'equipoise':>11} {'plain loop':>11} {'ratio':>7} {'promised':>9}", end="")
    print(f" {'authors':>8} {'in memory':>10} {'stored':>7}")
    short = []
    for name, size in SIZES.items():
        task = eq.task(name)
        theta = task.prior.from_uniform(torch.rand(size, task.prior.dim, generator=torch.Generator().manual_seed(0)))
        begun = time.perf_counter()
        x = task.simulate(theta[:2])
        compile_seconds = time.perf_counter() - begun
        fast, plain = fast_rate(task, theta), plain_rate(name, theta.double().numpy())
        if fast < PROMISED[name] * plain:
            short.append(name)
        print(
            f"{name:15} {compile_seconds:6.2f} s {fast:11,.0f} {plain:11,.0f} {fast / plain:6.0f}× {PROMISED[name]:8}×"
            f" {AUTHORS[name]:8,} {x[0].numel() * x.element_size():10,} {stored_bytes(task):7,}",
            flush=True,
        )
    if short:
        raise SystemExit(f"below what is promised: {', '.join(short)}")


if __name__ == "__main__":
    main()
