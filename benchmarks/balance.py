"""Balance, or the batch estimate of balance: what the plain estimate of the χ² term does to log-ratios.

    python benchmarks/balance.py toy       # quadrature, a second: results/estimate-toy.csv
    python benchmarks/balance.py train     # small classifiers, minutes on a CPU: results/estimate-train.csv

The derivation is in `equipoise/losses/balance.py`. *Toy*: θ ~ N(0, 1), x|θ ~ N(θ, τ²), and the family of log-ratios
h = t log r + c around the exact log r. The expected binary cross-entropy, g² and the variance of the batch mean are
integrals over two dimensions, taken on a grid. Minimised over (t, c) are the loss with the expectation of the plain
estimate, loss + λ(g² + Var s̄), and with that of the unbiased one, loss + λg². Near the prior the first gives
t = 1/(1 + λ/n).

*Train*: BNRE with both estimates and NRE, with batches of 64 and 1024, on Weinberg, whose exact posterior is known.
Kept are the coverage AUC, the nominal log posterior, and the slope: the least-squares coefficient of h on the exact
log-ratio over joint pairs, both centred. It is 1 for the exact classifier and t for a tempered one.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import time
from collections.abc import Iterator
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


def train(
    batches: tuple[int, ...] = (64, 1024), budget: int = 8192, steps: int = 600, runs: int = 3, pairs: int = 500
) -> Iterator[dict[str, float | str]]:
    """One row for each task, batch size, objective and run. With either batch size there are about as many steps."""
    small = {"hidden": (64, 64, 64)}
    bnre = eq.METHODS["bnre"].but(**small)
    methods = {
        "nre": eq.METHODS["nre"].but(**small),
        "bnre, plain": bnre,
        "bnre, unbiased": bnre.but(unbiased=True),
    }
    name = "weinberg"
    for n in batches:
        task = eq.task(name)
        data = [eq.simulate(task.prior, task.simulate, budget, seed=run) for run in range(runs)]
        theta, x = (p := eq.simulate(task.prior, task.simulate, pairs, seed=10_000)).theta, p.x
        exact = task.log_posterior(theta, x) - task.prior.log_prob(theta)
        members = [Member(method, seed=run, data=run) for method in methods.values() for run in range(runs)]
        epochs = -(-steps // (int(0.9 * budget) // n))
        settings = dataclasses.replace(PAPER, epochs=epochs, batch_size=n, early_stop=False)
        started = time.process_time()
        found = eq.fit_many(members, [(d.theta, d.x) for d in data], prior=task.prior, settings=settings)
        seconds = time.process_time() - started
        for (label, run), posterior in zip(itertools.product(methods, range(runs)), found, strict=True):
            assert posterior is not None
            h, r = (v.double() - v.double().mean() for v in (posterior.log_ratio(theta, x), exact))
            judged = eq.diagnose(posterior, theta, x, seed=0).isel(member=0)
            yield {
                "task": name,
                "budget": budget,
                "batch": n,
                "strength": 0.0 if label == "nre" else bnre.strength,
                "objective": label,
                "run": run,
                "slope": round(float((h * r).sum() / (r * r).sum()), 4),
                "coverage_auc": round(float(judged["coverage_auc"]), 4),
                "nominal_log_prob": round(float(judged["nominal_log_prob"]), 4),
                "balancing_error": round(float(judged["balancing_error"]), 4),
                "seconds": round(seconds / len(members), 2),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("toy", "train"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = list(toy() if options.what == "toy" else train())
    with open(options.out / f"estimate-{options.what}.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(options.out / f"estimate-{options.what}.csv")


if __name__ == "__main__":
    main()
