"""Problems like users', with fast simulators, for measuring defaults and peers.

    python benchmarks/problems.py        what they are, how long simulating takes, and ranges of x

There are three groups. `choose`: settings may be chosen on these. `confirm`: these only confirm a choice that was made
without them. `paper`: the five tasks of the paper. `AsTask` makes one a task of `equipoise run`.

>>> problem = PROBLEMS["outbreak"]
>>> theta, x = problem.simulate(100, seed=0)
>>> theta.shape, x.shape
(torch.Size([100, 5]), torch.Size([100, 16]))
"""

from __future__ import annotations

__all__ = ["PROBLEMS", "AsTask", "Problem", "named", "prior_entropy"]

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributions as td
from torch import Tensor

import equipoise as eq
from equipoise.support.randomness import integer, isolated, sequence


@dataclasses.dataclass(frozen=True)
class Problem:
    """A prior and a simulator.

    Arguments:
        name: in tables and files.
        group: "choose", "confirm" or "paper".
        prior: a prior of Equipoise.
        simulator: from θ with shape `(N, D)` in float64 and a NumPy generator to x with shape `(N, *x_shape)`.
        x_shape: the shape of one observation.
        words: what it is.
        log_posterior: the exact log p(θ|x) of pairs, with shape `(N,)`, where it is known.
    """

    name: str
    group: str
    prior: Any
    simulator: Callable[[np.ndarray, np.random.Generator], Any]
    x_shape: tuple[int, ...]
    words: str
    log_posterior: Callable[[Tensor, Tensor], Tensor] | None = None

    def simulate(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """n pairs drawn from p(θ) p(x|θ), in float32: θ with shape `(n, D)` and x with shape `(n, *x_shape)`."""
        with isolated(integer(seed, "problem", self.name, "theta")):
            theta = self.prior.sample((n,)).float()
        rng = np.random.default_rng(sequence(seed, "problem", self.name, "x"))
        x = self.simulator(theta.double().numpy(), rng)
        return theta, torch.as_tensor(x, dtype=torch.float32)


def log_normal(median: float, sigma: float) -> td.Distribution:
    return td.LogNormal(float(np.log(median)), sigma)


# --- choose -----------------------------------------------------------------------------------------------------------


def outbreak(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Weekly reports of a stochastic SEIR epidemic among 10,000, begun by five, with overdispersion; raw counts."""
    spread, latent, infectious, reported, dispersion = theta.T
    people, days, weeks = 10_000, 7, 16
    exposed, ill = np.zeros(len(theta), int), np.full(len(theta), 5)
    well = people - ill
    leave, recover = 1 - np.exp(-1 / latent), 1 - np.exp(-1 / infectious)
    x = np.zeros((len(theta), weeks))
    for week in range(weeks):
        for _ in range(days):
            infected = rng.binomial(well, 1 - np.exp(-spread / infectious * ill / people))
            onset, over = rng.binomial(exposed, leave), rng.binomial(ill, recover)
            well, exposed, ill = well - infected, exposed + infected - onset, ill + onset - over
            x[:, week] += onset
    return rng.poisson(reported[:, None] * x * rng.gamma(dispersion[:, None], 1 / dispersion[:, None], x.shape))


def exponentials(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Two decaying exponentials and an offset, at 30 times, with noise."""
    t = np.linspace(0.1, 6, 30)
    fast, slow, fast_rate, slow_rate, offset = theta.T[..., None]
    clean = fast * np.exp(-fast_rate * t) + slow * np.exp(-slow_rate * t) + offset
    return clean + 0.05 * rng.standard_normal(clean.shape)


def regression(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A line, a bump and a step at 40 places, with noise."""
    u = np.linspace(-1, 1, 40)
    level, slope, bump, centre, width, step, place, steepness = theta.T[..., None]
    clean = level + slope * u + bump * np.exp(-(((u - centre) / width) ** 2) / 2)
    clean = clean + step * np.tanh(steepness * (u - place))
    return clean + 0.3 * rng.standard_normal(clean.shape)


def lynx_hare(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Lotka–Volterra, yearly for 21 years, with log-normal noise; raw numbers of both species."""
    birth, predation, death, gain, hares, lynxes = theta.T
    z = np.log([hares, lynxes])  # in logarithms, where numbers stay positive

    def slope(z: np.ndarray) -> np.ndarray:
        n = np.exp(z.clip(-30, 12))
        return np.stack([birth - predation * n[1], gain * n[0] - death])

    rows, parts = [z], 50
    h = 1 / parts
    for _ in range(20):
        for _ in range(parts):
            a = slope(z)
            b = slope(z + h / 2 * a)
            c = slope(z + h / 2 * b)
            d = slope(z + h * c)
            z = z + h / 6 * (a + 2 * b + 2 * c + d)
        rows.append(z)
    clean = np.stack(rows, 1).T  # (N, 21, 2)
    return np.exp(clean + 0.25 * rng.standard_normal(clean.shape))


def oscillator(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A damped oscillator that starts at 1 and is driven by white noise, seen 200 times through noise."""
    frequency, damping, drive, noise = theta.T
    position, speed = np.ones(len(theta)), np.zeros(len(theta))
    x, h, parts = np.empty((len(theta), 200, 1)), 0.025, 4
    for i in range(200):
        for _ in range(parts):
            push = drive * np.sqrt(h) * rng.standard_normal(len(theta))
            speed = speed - h * (frequency**2 * position + damping * speed) + push
            position = position + h * speed
        x[:, i, 0] = position + noise * rng.standard_normal(len(theta))
    return x


def spot(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A spot in an image of photon counts: where it is, and how wide."""
    across, down, width = theta.T[..., None]
    axis = np.linspace(-1, 1, 16)
    shape = np.exp(-(((axis - down) / width) ** 2) / 2)[:, :, None]
    shape = shape * np.exp(-(((axis - across) / width) ** 2) / 2)[:, None, :]
    return rng.poisson(1 + 4 * shape)[:, None]


# --- confirm ----------------------------------------------------------------------------------------------------------

_FIXED = np.random.default_rng(20_240_601)
_FIRST, _SECOND = _FIXED.standard_normal((2, 20, 10)) / np.sqrt(10)
_DESIGN, _MEANS = _FIXED.standard_normal((16, 12)) / np.sqrt(12), _FIXED.standard_normal(12)
_LINEAR_NOISE = 0.4


def correlated_covariance(dim: int, correlation: float) -> np.ndarray:
    """The covariance of an autoregression: correlation^|i − j|."""
    return correlation ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))


def curved(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """20 quadratic functions of 10 correlated parameters, squashed, with noise."""
    clean = 2 * np.tanh(theta @ _FIRST.T + 0.3 * (theta @ _SECOND.T) ** 2)
    return clean + 0.25 * rng.standard_normal(clean.shape)


def survey(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts at 30 places that depend on a covariate: zero-inflated and overdispersed."""
    level, effect, absent, dispersion = theta.T[..., None]
    u = np.linspace(-1, 1, 30)
    mean = np.exp(level + effect * u) * rng.gamma(dispersion, 1 / dispersion, (len(theta), 30))
    return rng.poisson(mean) * (rng.random(mean.shape) >= absent)


def switch(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A signal that jumps where θ₀ + θ₁ passes zero, blind to the sign of θ₀ and with two places for θ₂."""
    a, b, c = theta.T
    on = a + b > 0
    clean = np.stack([np.abs(a), np.where(on, b, b**2 - 1), np.cos(4 * c), c * np.where(on, 0.3, 0.0), a * b], 1)
    return clean + np.array([0.1, 0.1, 0.2, 0.1, 0.5]) * rng.standard_normal(clean.shape)


def linear(theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """16 linear functions of 12 parameters, with Gaussian noise: the posterior is known."""
    return theta @ _DESIGN.T + _LINEAR_NOISE * rng.standard_normal((len(theta), 16))


def linear_log_posterior(theta: Tensor, x: Tensor) -> Tensor:
    r"""The exact log p(θ|x) of `linear`: normal with precision \(\Lambda = C^{-1} + A^\top A / \sigma^2\) and mean
    \(\Lambda^{-1} (C^{-1} \mu + A^\top x / \sigma^2)\)."""
    prior = PROBLEMS["linear"].prior
    mean, inverse = prior.loc.double(), torch.linalg.inv(prior.covariance.double())
    design = torch.from_numpy(_DESIGN)
    precision = inverse + design.T @ design / _LINEAR_NOISE**2
    right = inverse @ mean + x.double() @ design / _LINEAR_NOISE**2
    loc = torch.linalg.solve(precision, right.T).T
    return td.MultivariateNormal(loc, precision_matrix=precision).log_prob(theta.double())


# --- all --------------------------------------------------------------------------------------------------------------


def _task(name: str) -> Problem:
    task = eq.task(name)

    def simulator(theta: np.ndarray, rng: np.random.Generator) -> Tensor:
        return task.simulate(torch.from_numpy(theta).float(), seed=int(rng.integers(2**31)))

    exact = task.log_posterior if task.has_exact_posterior else None
    return Problem(name, "paper", task.prior, simulator, task.x_shape, f"the task {task.label}", exact)


def _own(group: str, simulator: Callable[..., Any], prior: Any, *x_shape: int, exact: Any = None) -> Problem:
    words = (simulator.__doc__ or "").strip().rstrip(".")
    return Problem(simulator.__name__, group, prior, simulator, x_shape, words, exact)


PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        _own(
            "choose",
            outbreak,
            eq.IndependentPrior(
                [
                    eq.LogUniform(1.3, 6.0),  # infections by one case
                    td.Uniform(1.0, 7.0),  # days until infectious
                    td.Uniform(2.0, 10.0),  # days infectious
                    td.Beta(2.0, 3.0),  # share reported
                    eq.LogUniform(1.0, 50.0),  # dispersion
                ]
            ),
            16,
        ),
        _own(
            "choose",
            exponentials,
            eq.IndependentPrior(
                [
                    td.Uniform(0.0, 2.0),
                    td.Uniform(0.0, 2.0),
                    eq.LogUniform(1.0, 10.0),
                    eq.LogUniform(0.1, 1.0),
                    td.Normal(0.0, 0.5),
                ]
            ),
            30,
        ),
        _own(
            "choose",
            regression,
            eq.IndependentPrior(
                [
                    td.Normal(0.0, 1.0),
                    td.Normal(0.0, 1.0),
                    td.Uniform(0.5, 3.0),
                    td.Uniform(-1.0, 1.0),
                    eq.LogUniform(0.05, 0.5),
                    td.Uniform(-2.0, 2.0),
                    td.Uniform(-0.8, 0.8),
                    eq.LogUniform(1.0, 10.0),
                ]
            ),
            40,
        ),
        _own(
            "choose",
            lynx_hare,
            eq.IndependentPrior(
                [
                    log_normal(0.55, 0.3),
                    log_normal(0.028, 0.3),
                    log_normal(0.8, 0.3),
                    log_normal(0.024, 0.3),
                    log_normal(30.0, 0.5),
                    log_normal(8.0, 0.5),
                ]
            ),
            21,
            2,
        ),
        _own(
            "choose",
            oscillator,
            eq.IndependentPrior(
                [eq.LogUniform(0.5, 5.0), eq.LogUniform(0.05, 2.0), eq.LogUniform(0.05, 1.0), eq.LogUniform(0.05, 0.5)]
            ),
            200,
            1,
        ),
        _own(
            "choose",
            spot,
            eq.IndependentPrior([td.Uniform(-1.0, 1.0), td.Uniform(-1.0, 1.0), eq.LogUniform(0.1, 0.6)]),
            1,
            16,
            16,
        ),
        _own("confirm", curved, eq.GaussianPrior(np.zeros(10), correlated_covariance(10, 0.6)), 20),
        _own(
            "confirm",
            survey,
            eq.IndependentPrior(
                [td.Uniform(-1.0, 3.0), td.Normal(0.0, 1.0), td.Uniform(0.0, 0.8), eq.LogUniform(0.3, 10.0)]
            ),
            30,
        ),
        _own("confirm", switch, eq.BoxUniform([-1.0] * 3, [1.0] * 3), 5),
        _own(
            "confirm",
            linear,
            eq.GaussianPrior(_MEANS, correlated_covariance(12, 0.3)),
            16,
            exact=linear_log_posterior,
        ),
        *(_task(name) for name in eq.TASKS),
    )
}


class AsTask:
    """A problem as a task of a grid: `benchmarks/problems.py:AsTask[problem=survey]`."""

    def __init__(self, problem: str) -> None:
        (self.problem,) = named([problem])
        self.prior, self.label = self.problem.prior, self.problem.name
        if self.problem.log_posterior is not None:
            self.log_posterior = self.problem.log_posterior

    def simulate(self, theta: Tensor, seed: int) -> Tensor:
        rng = np.random.default_rng(sequence(seed, "problem", self.problem.name, "x"))
        return torch.as_tensor(self.problem.simulator(theta.double().numpy(), rng), dtype=torch.float32)


def named(names: Iterable[str]) -> list[Problem]:
    """The problems of these names or groups; of all groups for "all"."""
    wanted = list(names)
    known = {*PROBLEMS, *(p.group for p in PROBLEMS.values()), "all"}
    if unknown := sorted(set(wanted) - known):
        raise ValueError(f"no problem or group is called {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [p for p in PROBLEMS.values() if {p.name, p.group, "all"} & set(wanted)]


def prior_entropy(problem: Problem, draws: int = 100_000) -> float:
    """−E log p(θ), in nats: minus the held-out log posterior of one that has learnt nothing."""
    with isolated(integer(0, "problem", problem.name, "entropy")):
        return -float(problem.prior.log_prob(problem.prior.sample((draws,)).double()).mean())


def main() -> None:
    print(f"{'problem':16}{'group':9}{'D':>3}  {'x':14}{'entropy':>8}{'s per 16,000':>14}   5% to 95% of x, largest")
    for problem in PROBLEMS.values():
        problem.simulate(2, seed=0)  # compiles the paper's
        begin = time.perf_counter()
        _, x = problem.simulate(16_000, seed=0)
        spent = time.perf_counter() - begin
        low, high = np.quantile(x.numpy().ravel()[:1_000_000], [0.05, 0.95])
        print(
            f"{problem.name:16}{problem.group:9}{problem.prior.dim:>3}  {problem.x_shape!s:14}"
            f"{prior_entropy(problem):>8.2f}{spent:>14.2f}   {low:.3g} to {high:.3g}, {x.abs().max():.3g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
