"""Every temperature of the default of `eq.fit` and of its parts, and what it is compared with.

    python benchmarks/temperatures.py OUT.csv [--problems NAMES] [--budgets N,…] [--runs R,…] [--methods M,…]
                                  [--device D] [--pairs N] [--seconds S]
    python benchmarks/temperatures.py OUT.nc --join A.csv B.csv …

One line per fit and way to use it. Every temperature t is looked at, for the pairs the fit was made from (out of fold)
and for fresh ones, so that rules for t can be compared afterwards: columns `p_over@t` and `p_cert@t` of both, and of
the fresh pairs `auc@t`, `dip@t` (how far coverage falls below its level, at most) and `log_prob@t` (the nominal log
posterior). `chosen` is the temperature that the rule of `eq.fit` takes. Calibration costs no simulations: all methods
have the same budget. Lines that are there are not computed again; no fit begins after `--seconds`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
from equipoise.diagnostics.bands import GRID
from equipoise.diagnostics.calibration import RULES
from equipoise.diagnostics.certificates import CERTIFICATE_LEVELS, certificate_p_value
from equipoise.diagnostics.coverage import coverage_curve
from equipoise.diagnostics.verdicts import overconfidence_p_value
from equipoise.training.crossfit import out_of_fold
from equipoise.training.settings import DEFAULT, SMALL
from problems import PROBLEMS

TEMPERATURES = np.arange(15, 51) / 50
OWN, PRIOR = 256, 64
METHODS = (
    "calibrated",
    "calibrated/20",
    "bnpe_init",
    "brnpe",
    "rejection",
    "bnpe_init/folds",
    "brnpe/folds",
    "nre/tempered",
)


def points_of(posterior: eq.Posterior, theta: Tensor, x: Tensor, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """Log-ratios and log priors of draws of q and of the prior, of θ*, in pieces of the pairs."""
    q, prior = posterior.untempered(), posterior.prior
    gen = torch.Generator(posterior.device).manual_seed(seed)
    size = (1 << (23 if posterior.device.type == "cuda" else 17)) // ((OWN + PRIOR) * posterior.n_members)
    for low in range(0, len(theta), max(1, size)):
        here, truth = x[low : low + size].to(posterior.device), theta[low : low + size].to(posterior.device)
        known = posterior.observed(here)
        torch.manual_seed(seed + low)
        broad = prior.sample((PRIOR, len(truth))).to(truth)
        at = torch.cat([truth.unsqueeze(0), q.draw(OWN, known, gen), broad])
        yield q.at(at, known).double(), prior.log_prob(at).double()


def at_temperature(
    t: float | Tensor, ratio: Tensor, log_prior: Tensor, log_g: Tensor, toss: Tensor
) -> dict[str, Tensor]:
    """HPD rank of θ*, the first point, effective points and log q_t(θ*|x*) of each pair; t may be one for each."""
    log_w, density = t * ratio - log_g, log_prior + t * ratio
    w = (log_w - log_w.amax(0)).exp()
    above = (w[1:] * (density[1:] > density[0])).sum(0)
    return {
        "rank": (above + toss * w[0]) / w.sum(0),
        "effective": w.sum(0).square() / w.square().sum(0),
        "log_prob": density[0] - log_w[1:].logsumexp(0),
    }


@torch.no_grad()
def looked_at(posterior: eq.Posterior, theta: Tensor, x: Tensor, seed: int) -> dict[str, np.ndarray]:
    """HPD ranks, effective points and log q_t(θ*|x*), each with shape `(T, n)`; see `diagnostics.tempered_ranks`."""
    found: dict[str, list[Tensor]] = {"rank": [], "effective": [], "log_prob": []}
    gen = torch.Generator(posterior.device).manual_seed(seed + 1)
    for ratio, log_prior in points_of(posterior, theta, x, seed):
        log_g = torch.logaddexp(ratio + math.log(OWN), torch.full_like(ratio, math.log(PRIOR)))
        toss = torch.rand(ratio.shape[1], generator=gen, device=ratio.device)
        at = [at_temperature(t, ratio, log_prior, log_g, toss) for t in TEMPERATURES]
        for name in found:
            found[name].append(torch.stack([one[name] for one in at]))
    return {name: torch.cat(values, 1).cpu().numpy() for name, values in found.items()}


def judged(seen: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """p-values and curves at every temperature."""
    rank = seen["rank"]
    coverage = coverage_curve(rank, CERTIFICATE_LEVELS)
    return {
        "p_over": overconfidence_p_value(coverage_curve(rank, GRID), rank.shape[1]),
        "p_cert": certificate_p_value(rank, effective=seen["effective"]),
        "auc": 0.5 - rank.mean(1),
        "dip": (CERTIFICATE_LEVELS - coverage).max(1),
        "log_prob": seen["log_prob"].mean(1),
    }


def choose(fold: dict[str, np.ndarray], threshold: float) -> float:
    """The largest temperature with certificate and p_over ≥ threshold; the smallest looked at if there is none."""
    fine = (fold["p_cert"] <= 0.05) & (fold["p_over"] >= threshold)
    return float(TEMPERATURES[np.flatnonzero(fine)[-1]]) if fine.any() else float(TEMPERATURES[0])


def out_of_fold_view(posterior: eq.Posterior, theta: Tensor, x: Tensor, seed: int) -> dict[str, np.ndarray]:
    rows, blind = out_of_fold(posterior, len(theta))
    parts = [
        looked_at(posterior.select(some), theta[r], x[r], seed + 17 * k)
        for k, (r, some) in enumerate(zip(rows, blind, strict=True))
    ]
    return judged({name: np.concatenate([p[name] for p in parts], 1) for name in parts[0]})


def rejection(theta: Tensor, x: Tensor, test: tuple[Tensor, Tensor], prior: Any) -> dict[str, np.ndarray]:
    """Rejection ABC: the nearest hundredth of the simulations (50 at least), smoothed by a Gaussian kernel."""
    theta, x, truth, seen = (v.double() for v in (theta, x.flatten(1), test[0], test[1].flatten(1)))
    scale = x.std(0).clamp_min(1e-9)
    keep, dim = max(50, len(x) // 100), theta.shape[1]
    ranks, log_probs = [], []
    gen = torch.Generator(theta.device).manual_seed(0)
    for low in range(0, len(truth), 200):
        here, star = seen[low : low + 200], truth[low : low + 200]
        near = theta[torch.cdist(here / scale, x / scale).topk(keep, largest=False).indices]
        centred = near - near.mean(1, keepdim=True)
        factor = keep ** (-1 / (dim + 4))
        cov = factor**2 * centred.mT @ centred / keep + 1e-12 * torch.eye(dim, device=theta.device)
        root = torch.linalg.cholesky(cov)
        pick = torch.randint(keep, (len(here), OWN), generator=gen, device=theta.device)
        noise = torch.randn(len(here), OWN, dim, generator=gen, device=theta.device, dtype=torch.float64)
        draws = near.gather(1, pick.unsqueeze(-1).expand(-1, -1, dim)) + noise @ root.mT
        at = torch.cat([star.unsqueeze(1), draws], 1)
        z = torch.linalg.solve_triangular(root, (at.unsqueeze(2) - near.unsqueeze(1)).flatten(1, 2).mT, upper=False)
        square = z.square().sum(1).view(len(here), OWN + 1, keep)
        log_det = root.diagonal(dim1=1, dim2=2).log().sum(1)[:, None]
        density = (-0.5 * square).logsumexp(2) - math.log(keep) - log_det - 0.5 * dim * math.log(2 * math.pi)
        inside = prior.contains(draws.flatten(0, 1).to(torch.get_default_dtype())).view(len(here), OWN)
        share = inside.double().mean(1).clamp_min(0.5 / OWN)
        toss = torch.rand(len(here), generator=gen, device=theta.device)
        above = (inside & (density[:, 1:] > density[:, :1])).sum(1)
        ranks.append((above + toss) / (inside.sum(1) + 1))
        log_probs.append(density[:, 0] - share.log())
    rank = torch.cat(ranks).cpu().numpy()[None]
    return {"rank": rank, "effective": np.full(rank.shape, OWN), "log_prob": torch.cat(log_probs).cpu().numpy()[None]}


def lines_of(problem: str, budget: int, run: int, method: str, pairs: int, device: str) -> Iterator[dict[str, Any]]:
    """Fit once, and look at every way to use what was trained."""
    one = PROBLEMS[problem]
    theta, x = (v.to(device) for v in one.simulate(budget, 100 + run))
    test = tuple(v.to(device) for v in one.simulate(pairs, 5_000 + run))
    prior = eq.as_prior(one.prior).to(device)
    base = {"problem": problem, "budget": budget, "run": run, "pairs": pairs, "device": device.split(":")[0]}
    base["prior_log_prob"] = float(prior.log_prob(test[0]).double().mean())
    started, cpu = time.monotonic(), time.process_time()
    if method == "rejection":
        yield base | {"way": "rejection ABC"} | flat("fresh", judged(rejection(theta, x, test, prior)), [1.0])
        return
    row, _, how = method.partition("/")
    settings = dataclasses.replace(SMALL if row == "calibrated" else DEFAULT, compile=False)
    options: dict[str, Any] = {"calibrate": False} if row == "calibrated" else {"members": 5}
    options |= {"": {}, "20": {"members": 20}, "folds": {"folds": 5}, "tempered": {"folds": 5, "calibrate": True}}[how]
    fitted = eq.fit(
        theta, x, prior=prior, method=row, settings=settings, seed=run, device=device, progress=False, **options
    )
    base |= {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time() - cpu}
    if how == "tempered":  # a classifier: judged as it is, at the temperature that `eq.fit` chose
        ds = eq.diagnose(fitted, test[0][:2000], test[1][:2000], progress=False).sel(member="mixture")
        rank = ds["rank"].values[None]
        seen = {"rank": rank, "effective": np.full(rank.shape, float(ds["effective_samples"]))}
        seen["log_prob"] = ds["log_prob"].values[None]
        base |= {"members": 5, "calibration_seconds": 0.0, "chosen": fitted.temperature, "pairs": rank.shape[1]}
        yield base | {"way": "nre x 5, tempered"} | flat("fresh", judged(seen), [1.0])
        return
    ways = {method.replace("/", ", "): fitted}
    if method == "calibrated":
        groups = fitted.record["group"]
        ways |= {
            f"{row['name']} x 5": fitted.select([m for m, g in enumerate(groups) if g == k])
            for k, row in enumerate(fitted.record["methods"])
            if k in groups
        }
    for name, posterior in ways.items():
        fresh = judged(looked_at(posterior, *test, seed=run))
        line = base | {"way": name, "members": posterior.n_members} | flat("fresh", fresh, TEMPERATURES)
        if "folds" in fitted.record:
            before = time.monotonic()
            fold = out_of_fold_view(posterior, theta, x, seed=run)
            line |= {"calibration_seconds": time.monotonic() - before}
            line |= {"chosen": choose(fold, RULES["observed"])} | flat("fold", fold, TEMPERATURES, ("p_over", "p_cert"))
        yield line


def flat(where: str, values: dict[str, np.ndarray], temperatures: Any, names: tuple[str, ...] = ()) -> dict[str, float]:
    chosen = {n: v for n, v in values.items() if not names or n in names}
    return {f"{where} {n}@{t:g}": float(v) for n, row in chosen.items() for t, v in zip(temperatures, row, strict=True)}


def join(out: Path, files: list[Path]) -> None:
    """All lines as one dataset, with t as a dimension."""
    import pandas as pd

    table = pd.concat([pd.read_csv(f) for f in files]).drop_duplicates(["problem", "budget", "run", "way"])
    wide = [c for c in table if "@" in c]
    names = sorted({c.split("@")[0] for c in wide})
    data = table[[c for c in table if "@" not in c]].reset_index(drop=True).rename_axis("line").to_xarray()
    for name in names:
        columns = [table.get(f"{name}@{t:g}", np.full(len(table), np.nan)) for t in TEMPERATURES]
        data[name.replace(" ", "_")] = (("line", "t"), np.stack(columns, 1).astype(np.float32))
    data.assign_coords(t=TEMPERATURES).to_netcdf(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--join", type=Path, nargs="+", metavar="CSV")
    parser.add_argument("--problems", default="slcp,weinberg,two_moons")
    parser.add_argument("--budgets", default="1024,4096,16384")
    parser.add_argument("--runs", default="0,1,2,3,4")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    if given.join:
        join(given.out, given.join)
        return
    started, done = time.monotonic(), set()
    if given.out.exists():
        with given.out.open() as file:
            done = {(r["problem"], r["budget"], r["run"], r["fit"]) for r in csv.DictReader(file)}
    wanted = (t.split(",") for t in (given.runs, given.methods, given.budgets, given.problems))
    for run, method, budget, problem in itertools.product(*wanted):
        if (problem, budget, run, method) in done or time.monotonic() - started > given.seconds:
            continue
        try:
            lines = list(lines_of(problem, int(budget), int(run), method, given.pairs, given.device))
        except Exception as error:  # the others go on
            print(f"{problem} {budget} {run} {method}: {type(error).__name__}: {error}", flush=True)
            continue
        for line in lines:
            line["fit"] = method

            new = not given.out.exists()
            with given.out.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, restval="nan")
                if new:
                    writer.writeheader()
                writer.writerow(line)
        print(f"{time.monotonic() - started:5.0f} s  {problem} {budget} {run} {method}", flush=True)


COLUMNS = [
    "problem", "budget", "run", "fit", "way", "members", "pairs", "device", "prior_log_prob", "seconds", "cpu_seconds",
    "calibration_seconds", "chosen",
    *(f"fresh {n}@{t:g}" for n in ("p_over", "p_cert", "auc", "dip", "log_prob") for t in TEMPERATURES),
    *(f"fold {n}@{t:g}" for n in ("p_over", "p_cert") for t in TEMPERATURES),
]  # fmt: skip

if __name__ == "__main__":
    main()
