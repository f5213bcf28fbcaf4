"""Balance, or the batch estimate of balance: what the plain estimate of the χ² term does to log-ratios.

    python benchmarks/balance.py toy               # quadrature, seconds: results/estimate-toy.csv
    python benchmarks/balance.py train --compile   # the paper's networks: results/estimate-train.csv

The derivation is in `equipoise/losses/balance.py`. *Toy*: θ ~ N(0, 1), x|θ ~ N(θ, τ²), and the family of log-ratios
h = t log r + c around the exact log r. The expected binary cross-entropy, g² and the variance of the batch mean are
integrals over two dimensions, taken on a grid. Minimised over (t, c) are the loss with the expectation of the plain
estimate, loss + λ(g² + Var s̄), and with that of the unbiased one, loss + λg². Near the prior the first gives
t = 1/(1 + λ/n).

*Train*: a balanced method with both estimates and the method without balance, from the same first weights and
simulations, on tasks whose exact posterior is known. λ and n are such that "λ × 4", "n × 4" and both can be compared.
Kept are the coverage AUC, the nominal log posterior, and the slope: the least-squares coefficient of h on the exact
log-ratio over joint pairs, both centred. It is 1 for the exact classifier and t for a tempered one. `least_loss_t` is
the t of the least loss in the family t log r + c with the exact log r of the task, where there is one. The networks
without balance are judged at several temperatures as well: between them lies the one with the log posterior of a
balanced network. There are so many simulations that none is seen more than 128 times, with n = 4,096: what differs is
the estimate alone. Rows are appended as they come; what is there is not computed again. Stored are BNRE with n up to
1,024 and on Weinberg 4,096; BRNPE on Weinberg and SLCP with n up to 1,024; and, trained on a CPU, on Weinberg, BNPE
with n up to 256 and BNRE-C with n = 64.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

import equipoise as eq
from equipoise.losses import LOSSES, Objective, batch_temperature, rolls_needed
from equipoise.posteriors.member_stack import MemberStack
from equipoise.training import PAPER, Member

RESULTS = Path(__file__).resolve().parents[1] / "results"
#: The standard deviations of the noise of the toy: from almost no information to much.
NOISE = (10.0, 3.0, 1.0, 0.3)
STRENGTHS, BATCHES = (10.0, 100.0, 1000.0), (64, 256, 1024, 4096)


def near_prior(strength: float, n: float) -> float:
    """t of the plain estimate beside the cross-entropy, near the prior."""
    return batch_temperature(Objective("nre", "chi2", strength), n)


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
        start = np.array([near_prior(strength, n), 0.0])
        found = minimize(value, start, method="Nelder-Mead", options=how)
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
                    "t_expected": round(near_prior(strength, n), 4),
                }


@dataclasses.dataclass(frozen=True)
class Design:
    """What `train` computes: of each task and method, each batch size with about as many steps.

    Arguments:
        families: methods without balance, each computed with its balanced one ("b…"), and the steps of their networks.
        hidden: layers of the networks; None for the paper's.
        temperatures: at which the networks without balance are judged besides 1.
        pairs: that judge a network.
        test: pairs behind slopes and balancing errors.
        exact: pairs behind the t of the least loss.
        validation: the share of the simulations that validates.
    """

    families: tuple[tuple[str, int], ...] = (("nre", 32_000), ("rnpe", 16_000), ("nre_c", 16_000), ("npe", 16_000))
    tasks: tuple[str, ...] = ("weinberg", "slcp", "two_moons")
    batches: tuple[int, ...] = (64, 256, 1024, 4096)
    strengths: tuple[float, ...] = (25.0, 100.0, 400.0)
    temperatures: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85)
    hidden: tuple[int, ...] | None = None
    budget: int = 1 << 20
    runs: int = 3
    pairs: int = 2000
    test: int = 8000
    exact: int = 20_000
    validation: float = 0.01


class Tempered(MemberStack):
    """Networks whose log-ratios are multiplied by a number each, judged in one pass as ratios without draws.

    Arguments:
        networks: of one architecture.
        times: one number per network.
    """

    kind = "classifier"
    can_leak = False

    def __init__(self, networks: Sequence[eq.Posterior], times: Sequence[float]) -> None:
        whole = eq.Posterior.joined(networks)
        super().__init__(whole.network, whole.stack)
        self.times = torch.tensor(times, device=whole.device, dtype=whole.dtype)

    def log_ratios(self, *arguments: Any, **options: Any) -> torch.Tensor:
        found = super().log_ratios(*arguments, **options)
        return self.times.view(-1, *[1] * (found.ndim - 1)) * found


def tempered_optimum(objective: Objective, n: float, rolls: torch.Tensor) -> float:
    """t of the least loss of h = t log r + c with the plain estimate, over that without balance of the same pairs.

    The latter would be 1 with infinitely many pairs; dividing by it takes away most of what pairs have by chance. NaN
    for the likelihood loss: a flow is normalised and has no free c.

    The covariance of neighbours is that of the pairs, in their order.

    Arguments:
        objective: a base loss with χ² balance.
        n: the batch size.
        rolls: exact log-ratios of rolls of θ through the pairs, with shape `(R, N)`.
    """
    if objective.loss == "npe":
        return math.nan
    rolls = rolls.double().clamp(-1e4, 1e4)
    term = LOSSES[objective.loss]

    def value(where: np.ndarray, strength: float) -> float:
        h = where[0] * rolls + where[1]
        s = h[0].sigmoid() + h[1].sigmoid() - 1
        centred = s - s.mean()
        spread = (centred**2).mean() + 2 * (centred * centred.roll(-1)).mean()
        loss = term.function(*term.arguments(h, objective), **term.keywords(objective))
        return float(loss + strength * (s.mean() ** 2 + spread / n))

    def best(strength: float, start: float) -> float:
        how = {"xatol": 1e-5, "fatol": 1e-12}
        return float(minimize(value, np.array([start, 0.0]), (strength,), method="Nelder-Mead", options=how).x[0])

    return best(objective.strength, batch_temperature(objective, n)) / best(0.0, 1.0)


def train(
    design: Design, done: set[tuple[str, int, str, int]], device: str | None = None, compiled: bool = False
) -> Iterator[list[dict[str, float | str]]]:
    """The rows of each stack that is not done: one of each network, and without balance one per temperature as well."""
    for name, (family, steps) in itertools.product(design.tasks, design.families):
        left = [n for n in design.batches if (name, design.budget, family, n) not in done]
        if left:
            task = eq.task(name)
            data = [eq.simulate(task.prior, task.simulate, design.budget, seed=run) for run in range(design.runs)]
            for n in left:
                yield _stack(design, task, data, family, n, steps, device, compiled)


def _stack(
    design: Design,
    task: Any,
    data: Sequence[Any],
    family: str,
    n: int,
    steps: int,
    device: str | None,
    compiled: bool,
) -> list[dict[str, float | str]]:
    sizes = {} if design.hidden is None else {"hidden": design.hidden}
    free, balanced = (eq.METHODS[m].but(**sizes) for m in (family, f"b{family}"))
    methods = {(family, 0.0): free} | {
        (f"{balanced.name}, {words}", strength): balanced.but(strength=strength, unbiased=words == "unbiased")
        for words in ("plain", "unbiased")
        for strength in design.strengths
    }
    runs = range(design.runs)
    each = (design.budget - int(design.validation * design.budget)) // n
    epochs = max(1, round(steps / each))
    judges = eq.simulate(task.prior, task.simulate, design.pairs, seed=10_000)
    test = eq.simulate(task.prior, task.simulate, design.test, seed=10_001)
    least = {s: least_loss(task.name, balanced.but(strength=s).objective, n, design.exact) for s in design.strengths}
    # One cycle of the learning rate down to 0 and the last weights: every batch size has as many steps, and what is
    # kept is what the loss of the batches leads to, not what a validation set chooses.
    settings = dataclasses.replace(
        PAPER, epochs=epochs, batch_size=n, early_stop=False, schedule="cycle", keep="last", compile=compiled
    )
    members = [Member(method, seed=run, data=run) for method in methods.values() for run in runs]
    started = time.process_time()
    found = eq.fit_many(
        members,
        [(d.theta, d.x) for d in data],
        prior=task.prior,
        settings=settings,
        validation_fraction=design.validation,
        device=device,
        progress=False,
    )
    seconds = time.process_time() - started
    networks = [p for p in found if p is not None]
    assert len(networks) == len(members)
    labels = list(itertools.product(methods, runs))
    plan = [(i, 1.0) for i in range(len(networks))]
    plan += [(i, t) for i, ((label, _), _) in enumerate(labels) if label == family for t in design.temperatures]
    judged = eq.diagnose(
        Tempered([networks[i] for i, _ in plan], [t for _, t in plan]),
        judges.theta,
        judges.x,
        samples=512,
        mixture=False,
        progress=False,
        test=(test.theta, test.x),
    )
    rows: list[dict[str, float | str]] = []
    r = exact(task, test.theta, test.x).cpu().double()
    r = r - r.mean()
    learnt = [network.log_ratio(test.theta, test.x).cpu().double() for network in networks]
    for k, (i, t) in enumerate(plan):
        (label, strength), run = labels[i]
        h = learnt[i] - learnt[i].mean()
        values = {v: round(float(judged[v][k]), 4) for v in JUDGED}
        rows.append(
            {
                "task": task.name,
                "budget": design.budget,
                "batch": n,
                "strength": strength,
                "objective": label,
                "run": run,
                "steps": epochs * each,
                "pairs": design.pairs,
                "slope": round(float((h * r).sum() / (r * r).sum()), 4),
                "least_loss_t": round(least[strength], 4) if label.endswith("plain") else 1.0,
                "t": t,
                **values,
                "seconds": round(seconds / len(members), 1),
            }
        )
    return rows


def exact(task: Any, theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The exact log-ratios."""
    return task.log_posterior(theta, x) - task.prior.log_prob(theta)


@functools.cache
def exact_rolls(name: str, rolls: int, pairs: int) -> torch.Tensor:
    """The exact log-ratios of rolls of θ through pairs of a task, with shape `(R, N)`.

    The evidence of an x, which can be an integral, is the same for all rolls: they differ by likelihoods.
    """
    task = eq.task(name)
    found = eq.simulate(task.prior, task.simulate, pairs, seed=10_002)
    likelihoods = torch.stack([task.log_likelihood(found.theta.roll(r, 0), found.x) for r in range(rolls)])
    return exact(task, found.theta, found.x) + likelihoods - likelihoods[0]


def least_loss(name: str, objective: Objective, n: float, pairs: int) -> float:
    """The t of the least loss with the exact log-ratio of a task, from fresh pairs."""
    return tempered_optimum(objective, n, exact_rolls(name, rolls_needed(objective), pairs))


def append(rows: list[dict[str, float | str]], file: Path) -> None:
    """Write rows at the end of a file, which may be new."""
    new = not file.exists()
    with open(file, "a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


#: Of a diagnosis, what is kept.
JUDGED = ("coverage_auc", "coverage_auc_se", "nominal_log_prob", "balancing_error")
#: A design of seconds.
QUICK = Design(
    (("nre", 20),),
    ("weinberg",),
    (64,),
    (100.0,),
    (0.5,),
    (8,),
    budget=512,
    runs=1,
    pairs=60,
    test=200,
    exact=2000,
    validation=0.1,
)


def design_of(options: argparse.Namespace) -> Design:
    """What the command line asks for."""
    if options.quick:
        return QUICK
    families = tuple((family, steps) for family, steps in Design.families if family in options.families)
    return Design(families, tuple(options.tasks), tuple(options.batches))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("toy", "train"), help="the problem with known answer, or networks")
    names = [family for family, _ in Design.families]
    parser.add_argument("--tasks", nargs="+", choices=Design.tasks, default=Design.tasks, help="of train")
    balanced = "of train: methods without balance, each with its balanced one"
    parser.add_argument("--families", nargs="+", choices=names, default=names, help=balanced)
    parser.add_argument("--batches", nargs="+", type=int, default=Design.batches, help="of train: batch sizes")
    parser.add_argument("--device", help="cpu or cuda; a GPU where there is one")
    parser.add_argument("--compile", action="store_true", help="compile steps, which pays back on a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the file (results/)")
    quick = "a few steps of one small stack, whatever else is asked for: to see that it runs; needs --out"
    parser.add_argument("--quick", action="store_true", help=quick)
    options = parser.parse_args(arguments)
    if options.quick and options.out == RESULTS:
        parser.error("--quick needs --out: its rows do not belong to results/")
    return options


def main() -> None:
    options = parsed()
    torch.manual_seed(0)
    file = options.out / f"estimate-{options.what}.csv"
    if options.what == "toy":
        rows = list(toy())
        file.unlink(missing_ok=True)
        append(rows, file)
    else:
        done: set[tuple[str, int, str, int]] = set()
        if file.exists():
            with open(file, encoding="utf-8") as stream:
                done = {(r["task"], int(r["budget"]), r["objective"], int(r["batch"])) for r in csv.DictReader(stream)}
        for rows in train(design_of(options), done, options.device, options.compile):
            append(rows, file)
            about = f"{rows[0]['task']}, {rows[0]['objective']}, n = {rows[0]['batch']}"
            print(f"{time.process_time():6.0f} s  {about}", flush=True)
    print(file)


if __name__ == "__main__":
    main()
