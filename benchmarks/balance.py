"""Balance, or the batch estimate of balance: what the plain estimate of the χ² term does to log-ratios.

    python benchmarks/balance.py toy       # quadrature, a second: results/estimate-toy.csv
    python benchmarks/balance.py train     # small classifiers, twenty minutes of a core: results/estimate-train.csv

The derivation is in `equipoise/losses/balance.py`. *Toy*: θ ~ N(0, 1), x|θ ~ N(θ, τ²), and the family of log-ratios
h = t log r + c around the exact log r. The expected binary cross-entropy, g² and the variance of the batch mean are
integrals over two dimensions, taken on a grid. Minimised over (t, c) are the loss with the expectation of the plain
estimate, loss + λ(g² + Var s̄), and with that of the unbiased one, loss + λg². Near the prior the first gives
t = 1/(1 + λ/n).

*Train*: BNRE with both estimates and NRE, from the same first weights and simulations, on tasks whose exact posterior
is known. λ and n are such that "λ × 4", "n × 4" and both can be compared. Kept are the coverage AUC, the nominal log
posterior, and the slope: the least-squares coefficient of h on the exact log-ratio over joint pairs, both centred. It
is 1 for the exact classifier and t for a tempered one. `t_expected` is the t of the least loss in the family t log r +
c with the exact log r of the task. NRE is judged at several temperatures as well: between them lies the one with
BNRE's nominal log posterior. Rows are appended as they come; what is there is not computed again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize

import equipoise as eq
from equipoise.training import PAPER, Member

RESULTS = Path(__file__).resolve().parents[1] / "results"
#: The standard deviations of the noise of the toy: from almost no information to much.
NOISE = (10.0, 3.0, 1.0, 0.3)
STRENGTHS, BATCHES = (10.0, 100.0, 1000.0), (64, 256, 1024, 4096)


class Toy:
    """The conjugate Gaussian problem on a grid over (θ, x).

    Arguments:
        noise: τ.
        points: of the grid, along each axis.
    """

    def __init__(self, noise: float, points: int = 121) -> None:
        theta = np.linspace(-7, 7, points)[:, None]
        x = (np.linspace(-7, 7, points) * np.hypot(1, noise))[None]
        variance = 1 / (1 + noise**-2)
        log_r = -0.5 * (theta - variance * x / noise**2) ** 2 / variance - 0.5 * np.log(variance) + 0.5 * theta**2
        prior, evidence = (np.exp(-0.5 * z**2) for z in (theta, x / np.hypot(1, noise)))
        prior, evidence = prior / prior.sum(), evidence / evidence.sum()
        self.log_r, self.marginal = log_r, prior * evidence
        self.joint = self.marginal * np.exp(log_r)
        self.joint /= self.joint.sum()

    @property
    def information(self) -> float:
        """E log r over joint pairs, in nats."""
        return float((self.joint * self.log_r).sum())

    def terms(self, t: float, c: float) -> tuple[float, float, float]:
        """The cross-entropy, g, and n times the variance of the batch mean, of h = t log r + c.

        Within a term, θ and the rolled θ stand before one x. Neighbours share a θ, before its own x and before the
        next one, and that θ goes with the x of both pairs of the first.
        """
        h = t * self.log_r + c
        loss = 0.5 * ((self.joint * np.logaddexp(0, -h)).sum() + (self.marginal * np.logaddexp(0, h)).sum())
        d = 0.5 * (1 + np.tanh(h / 2))
        of_joint, of_marginal = ((p * d).sum() for p in (self.joint, self.marginal))
        spread = (self.joint * d**2).sum() - of_joint**2 + (self.marginal * d**2).sum() - of_marginal**2
        evidence, prior = self.marginal.sum(0), self.marginal.sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            shared_x = np.nansum((self.joint * d).sum(0) * (self.marginal * d).sum(0) / evidence)
            shared_theta = np.nansum((self.joint * d).sum(1) * (self.marginal * d).sum(1) / prior)
            given_theta, given_x = (self.marginal * d).sum(1) / prior, (self.marginal * d).sum(0) / evidence
        both = of_joint * of_marginal
        marginal_ones = (self.joint * given_theta[:, None] * given_x).sum() - of_marginal**2
        variance = spread + 2 * (shared_x - both) + 2 * (shared_theta - both) + 2 * marginal_ones
        return float(loss), float(of_joint + of_marginal - 1), float(variance)

    def best(self, strength: float, n: float) -> tuple[float, float]:
        """t and c of the least loss; n is infinite for the unbiased estimate."""

        def value(where: np.ndarray) -> float:
            loss, g, variance = self.terms(*where)
            return loss + strength * (g**2 + variance / n)

        # Values change little near the prior: they are minimised to the last digits.
        how = {"xatol": 1e-7, "fatol": 1e-15, "maxiter": 2000}
        found = minimize(value, np.array([1 / (1 + strength / n), 0.0]), method="Nelder-Mead", options=how)
        return float(found.x[0]), float(found.x[1])


def toy() -> Iterator[dict[str, float | str]]:
    """One row for each noise, λ and batch size."""
    for noise in NOISE:
        problem = Toy(noise)
        for strength in STRENGTHS:
            free = problem.best(strength, np.inf)
            for n in BATCHES:
                plain = problem.best(strength, n)
                yield {
                    "noise": noise,
                    "information": round(problem.information, 4),
                    "strength": strength,
                    "batch": n,
                    "t_plain": round(plain[0], 4),
                    "t_unbiased": round(free[0], 4),
                    "t_expected": round(1 / (1 + strength / n), 4),
                }


@dataclasses.dataclass(frozen=True)
class Design:
    """What `train` computes: of each task, each batch size with each number of steps.

    Attributes:
        temperatures, pairs: at which and by which a network is judged, with one parameter and with two, where it takes
            longer.
        test: pairs behind slopes and balancing errors.
    """

    plan: tuple[tuple[str, int], ...] = (("weinberg", 6000), ("slcp", 4000), ("two_moons", 4000))
    batches: tuple[int, ...] = (64, 256, 1024)
    strengths: tuple[float, ...] = (25.0, 100.0, 400.0)
    temperatures: tuple[tuple[float, ...], ...] = ((0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85), (0.02, 0.1, 0.35, 0.7))
    hidden: tuple[int, ...] = (32, 32, 32)
    budget: int = 65_536
    runs: int = 2
    pairs: tuple[int, int] = (800, 500)
    test: int = 20_000


def tempered_optimum(exact: np.ndarray, rolled: np.ndarray, strength: float, n: float) -> float:
    """t of the least loss of h = t log r + c with the plain estimate, from exact log-ratios of joint and rolled pairs.

    The covariance of neighbours is that of the pairs, in their order.
    """
    exact, rolled = (np.clip(v, -1e4, 1e4) for v in (exact, rolled))

    def value(where: np.ndarray) -> float:
        joint, marginal = where[0] * exact + where[1], where[0] * rolled + where[1]
        loss = 0.5 * (np.logaddexp(0, -joint).mean() + np.logaddexp(0, marginal).mean())
        s = 0.5 * (np.tanh(joint / 2) + np.tanh(marginal / 2))
        centred = s - s.mean()
        spread = (centred**2).mean() + 2 * (centred * np.roll(centred, -1)).mean()
        return float(loss + strength * (s.mean() ** 2 + spread / n))

    start = np.array([1 / (1 + strength / n), 0.0])
    return float(minimize(value, start, method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-12}).x[0])


def train(design: Design, done: set[tuple[str, int, int]]) -> Iterator[list[dict[str, float | str]]]:
    """The rows of each stack that is not done: one of each network, and of NRE one for each temperature as well."""
    nre, bnre = (eq.METHODS[name].but(hidden=design.hidden) for name in ("nre", "bnre"))
    methods = {("nre", 0.0): nre} | {
        (f"bnre, {words}", strength): bnre.but(strength=strength, unbiased=words == "unbiased")
        for words in ("plain", "unbiased")
        for strength in design.strengths
    }
    runs = range(design.runs)
    for n, (name, wanted) in itertools.product(design.batches, design.plan):
        each = int(0.9 * design.budget) // n
        epochs = max(1, round(wanted / each))
        if (name, n, epochs * each) in done:
            continue
        task = eq.task(name)
        data = [eq.simulate(task.prior, task.simulate, design.budget, seed=run) for run in runs]
        pairs, temperatures = (v[task.prior.dim - 1] for v in (design.pairs, design.temperatures))
        judges = eq.simulate(task.prior, task.simulate, pairs, seed=10_000)
        test = eq.simulate(task.prior, task.simulate, design.test, seed=10_001)
        both = torch.stack([test.theta, test.theta.roll(1, 0)])
        exact, rolled = (task.log_posterior(theta, test.x) - task.prior.log_prob(theta) for theta in both)
        members = [Member(method, seed=run, data=run) for method in methods.values() for run in runs]
        # One cycle of the learning rate down to 0 and the last weights: every batch size has as many steps, and what
        # is kept is what the loss of the batches leads to, not what a validation set chooses.
        settings = dataclasses.replace(
            PAPER, epochs=epochs, batch_size=n, early_stop=False, schedule="cycle", learning_rate=3e-3, keep="last",
            compile=False,
        )  # fmt: skip
        started = time.process_time()
        found = eq.fit_many(
            members, [(d.theta, d.x) for d in data], prior=task.prior, settings=settings, progress=False
        )
        seconds = time.process_time() - started
        rows: list[dict[str, float | str]] = []
        for ((label, strength), run), posterior in zip(itertools.product(methods, runs), found, strict=True):
            assert posterior is not None
            h, r = (v.double() - v.double().mean() for v in (posterior.log_ratio(test.theta, test.x), exact))
            plain = label == "bnre, plain"
            base = {
                "task": name,
                "budget": design.budget,
                "batch": n,
                "strength": strength,
                "objective": label,
                "run": run,
                "steps": epochs * each,
                "pairs": pairs,
                "slope": round(float((h * r).sum() / (r * r).sum()), 4),
                "t_expected": round(tempered_optimum(exact.numpy(), rolled.numpy(), strength, n), 4) if plain else 1.0,
            }
            for t in (1.0, *(temperatures if label == "nre" else ())):
                ratio = partial(_times, t, posterior)
                judged = eq.diagnose(
                    ratio, judges.theta, judges.x, task.prior, samples=512, mixture=False, progress=False,
                    test=(test.theta, test.x),
                ).isel(member=0)  # fmt: skip
                names = ("coverage_auc", "coverage_auc_se", "nominal_log_prob", "balancing_error")
                rows.append(
                    base | {"t": t} | {v: round(float(judged[v]), 4) for v in names}
                    | {"seconds": round(seconds / len(members), 1)}
                )  # fmt: skip
        yield rows


def _times(t: float, posterior: eq.Posterior, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return t * posterior.log_ratio(theta, x)


def append(rows: list[dict[str, float | str]], file: Path) -> None:
    """Write rows at the end of a file, which may be new."""
    new = not file.exists()
    with open(file, "a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


#: A design of seconds.
QUICK = Design((("weinberg", 20),), (64,), (100.0,), ((0.5,),), (8,), budget=512, runs=1, pairs=(60, 60), test=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("toy", "train"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="a few steps of small networks: to see that it runs")
    options = parser.parse_args()
    torch.manual_seed(0)
    file = options.out / f"estimate-{options.what}.csv"
    if options.what == "toy":
        file.unlink(missing_ok=True)
        append(list(toy()), file)
    else:
        done: set[tuple[str, int, int]] = set()
        if file.exists():
            with open(file, encoding="utf-8") as stream:
                done = {(r["task"], int(r["batch"]), int(r["steps"])) for r in csv.DictReader(stream)}
        for rows in train(QUICK if options.quick else Design(), done):
            append(rows, file)
            print(f"{time.process_time():6.0f} s  {rows[0]['task']}, n = {rows[0]['batch']}", flush=True)
    print(file)


if __name__ == "__main__":
    main()
