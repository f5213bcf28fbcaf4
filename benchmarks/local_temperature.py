"""One temperature for every x, or one for each: what log t(x) = a + b s(x) gains over b = 0.

    python benchmarks/local_temperature.py OUT.csv [--problems NAMES] [--budgets N,…] [--runs R,…] [--device D]
                                           [--pairs N] [--seconds S]

s(x) is the predicted entropy of the untempered mixture, standardised over its own x. The slope b maximises the
out-of-fold log score of the tempered posterior, with t ≤ 1; then one factor exp(a) is chosen as `eq.fit` chooses t. A
line has, for both, the verdict and nominal log posterior on fresh pairs, and the coverage at level 0.95 in the worst of
four bins by entropy. Lines that are there are not computed again; no fit begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
from equipoise.diagnostics.calibration import RULES
from equipoise.diagnostics.local_check import local_check
from equipoise.training.crossfit import out_of_fold
from equipoise.training.settings import SMALL
from problems import PROBLEMS
from temperatures import OWN, PRIOR, TEMPERATURES, at_temperature, choose, judged, points_of

#: Slopes that are tried.
SLOPES = (-0.4, -0.2, -0.1, 0.0, 0.1, 0.2, 0.4)
KEYS = ("problem", "budget", "run")

Seen = dict[str, np.ndarray]


@torch.no_grad()
def looked_at(posterior: eq.Posterior, theta: Tensor, x: Tensor, seed: int) -> dict[float, Seen]:
    """HPD ranks, effective points and log q_t(θ*|x*) at t(x) = min(1, t exp(b s(x))) by slope, with shape `(T, n)`."""
    pieces = list(points_of(posterior, theta, x, seed))
    ratio, log_prior = (torch.cat([p[i] for p in pieces], 1) for i in (0, 1))
    entropy = -(ratio + log_prior)[1 : OWN + 1].mean(0)
    s = (entropy - entropy.mean()) / entropy.std()
    log_g = torch.logaddexp(ratio + math.log(OWN), torch.full_like(ratio, math.log(PRIOR)))
    gen = torch.Generator(ratio.device).manual_seed(seed + 1)
    toss = torch.rand(ratio.shape[1], generator=gen, device=ratio.device)
    found: dict[float, Seen] = {}
    for slope in SLOPES:
        powers = [(t * (slope * s).exp()).clamp(max=1.0) for t in TEMPERATURES]
        at = [at_temperature(t, ratio, log_prior, log_g, toss) for t in powers]
        found[slope] = {name: torch.stack([one[name] for one in at]).cpu().numpy() for name in at[0]}
        found[slope]["entropy"] = entropy.cpu().numpy()
    return found


def line_of(problem: str, budget: int, run: int, pairs: int, device: str) -> dict[str, Any]:
    one = PROBLEMS[problem]
    theta, x = (v.to(device) for v in one.simulate(budget, 100 + run))
    test = tuple(v.to(device) for v in one.simulate(pairs, 5_000 + run))
    prior = eq.as_prior(one.prior).to(device)
    settings = dataclasses.replace(SMALL, compile=False)
    fitted = eq.fit(theta, x, prior=prior, calibrate=False, settings=settings, seed=run, device=device, progress=False)
    rows, blind = out_of_fold(fitted, len(theta))
    parts = [
        looked_at(fitted.select(some), theta[r], x[r], run + 17 * k)
        for k, (r, some) in enumerate(zip(rows, blind, strict=True))
    ]
    folds = {b: judged({n: np.concatenate([p[b][n] for p in parts], 1) for n in ("rank", "effective", "log_prob")})
             for b in SLOPES}  # fmt: skip
    best = max(SLOPES, key=lambda b: folds[b]["log_prob"].max())
    fresh = looked_at(fitted, *test, seed=run)
    line: dict[str, Any] = {"problem": problem, "budget": budget, "run": run, "pairs": pairs, "slope": best}
    for name, slope in (("one", 0.0), ("local", best)):
        chosen = choose(folds[slope], RULES["observed"])
        k = int(np.argmin(np.abs(TEMPERATURES - chosen)))
        seen = judged({n: fresh[slope][n] for n in ("rank", "effective", "log_prob")})
        local = local_check(fresh[slope]["rank"][k], fresh[slope]["entropy"])
        line |= {
            f"{name} t": chosen,
            f"{name} log_prob": seen["log_prob"][k],
            f"{name} p_over": seen["p_over"][k],
            f"{name} p_cert": seen["p_cert"][k],
            f"{name} dip": seen["dip"][k],
            f"{name} worst_bin": local.coverage[:, -1].min(),
            f"{name} local_p": local.p_value.min(),
        }
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", default="slcp,weinberg,two_moons,survey,switch,curved,linear")
    parser.add_argument("--budgets", default="1000,4000")
    parser.add_argument("--runs", default="0,1,2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    started, done = time.monotonic(), set()
    if given.out.exists():
        with given.out.open() as file:
            done = {tuple(row[k] for k in KEYS) for row in csv.DictReader(file)}
    for run, budget, problem in itertools.product(*(t.split(",") for t in (given.runs, given.budgets, given.problems))):
        if (problem, budget, run) in done or time.monotonic() - started > given.seconds:
            continue
        line = line_of(problem, int(budget), int(run), given.pairs, given.device)
        new = not given.out.exists()
        with given.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(line))
            if new:
                writer.writeheader()
            writer.writerow({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in line.items()})
        print(f"{time.monotonic() - started:5.0f} s  {problem} {budget} {run}", flush=True)


if __name__ == "__main__":
    main()
