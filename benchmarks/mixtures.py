"""Which networks the default mixes, and how many of them: mixtures of the same trained members, compared.

    python benchmarks/mixtures.py OUT.csv [--cells problem:budget:run,…] [--device D] [--pairs N] [--seconds S]

Ten cross-fitted members of every group are trained once, and mixtures of them (`MIXTURES`) are compared. One line per
mixture: its nominal log posterior, and, of those in `JUDGED`, the temperature that the out-of-fold pairs choose and
what fresh pairs say of it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import equipoise as eq
from equipoise.diagnostics.calibration import RULES
from equipoise.methods import NEAR_PRIOR, ORDINARY
from equipoise.training.crossfit import log_score_weights, out_of_fold
from equipoise.training.settings import SMALL, SMALL_STEPS, batch_for
from frontier import TEMPERATURES, choose, judged, looked_at, out_of_fold_view
from problems import PROBLEMS

DEEP = (128, 128, 128)
GROUPS: dict[str, tuple[eq.Method, dict[str, Any]]] = {
    "N": (NEAR_PRIOR, {}),
    "O": (ORDINARY, {}),
    "N3": (NEAR_PRIOR.but(hidden=DEEP), {}),
    "O3": (ORDINARY.but(hidden=DEEP), {}),
    "A": (NEAR_PRIOR.but(univariate="affine", transforms=5, hidden=(64, 64)), {}),
    "Ns": (NEAR_PRIOR, {"min_learning_rate": 2e-4}),
    "Os": (ORDINARY, {"min_learning_rate": 2e-4}),
}
#: Members of each group in each fold.
MIXTURES = (
    "N1", "O1", "N31", "O31", "A1", "Ns1", "Os1", "N2", "O2", "N32",
    "N1 O1", "N2 O2", "N1 O1 N31", "N1 O1 N31 O31", "N31 O1", "N1 O31", "N31 O31", "N32 O32", "N1 O1 A1",
    "N1 O1 N31 A1", "N31 O1 A1", "N1 O1 N31 O31 A1", "N2 O2 N32 O32", "Ns1 Os1", "N2 O2 N32 O32 A2", "Ns2 Os2",
)  # fmt: skip
JUDGED = (
    "N1 O1", "N2 O2", "N1 O1 N31", "N31 O1", "N1 O31", "N31 O31", "N1 O1 N31 O31", "N32 O32", "N2 O2 N32 O32",
    "Ns1 Os1", "N1 O1 A1",
)  # fmt: skip
FOLDS = 5


def parts_of(mixture: str) -> dict[str, int]:
    return {word[:-1]: int(word[-1]) for word in mixture.split()}


@torch.no_grad()
def lines_of(problem: str, budget: int, run: int, pairs: int, device: str, members: int) -> list[dict[str, Any]]:
    """Train all groups, and look at every mixture."""
    one = PROBLEMS[problem]
    theta, x = (v.to(device) for v in one.simulate(budget, 100 + run))
    test = tuple(v.to(device) for v in one.simulate(pairs, 5_000 + run))
    prior = eq.as_prior(one.prior).to(device)
    fitted: dict[str, eq.Posterior] = {}
    seconds: dict[str, float] = {}
    epochs: dict[str, float] = {}
    for name, (row, changes) in GROUPS.items():
        begin = time.monotonic()
        settings = dataclasses.replace(SMALL, batch_size=batch_for(budget, 1 / FOLDS, SMALL_STEPS), compile=False)
        with torch.enable_grad():
            fitted[name] = eq.fit(
                theta, x, prior=prior, method=row, members=members, folds=FOLDS, seed=run, device=device,
                progress=False, settings=dataclasses.replace(settings, **changes),
            )  # fmt: skip
        epochs[name] = float(np.isfinite(fitted[name].history["validation_loss"].values).sum(0).mean())
        seconds[name] = time.monotonic() - begin
    begin = time.monotonic()
    rows, _ = out_of_fold(fitted["N"], budget)
    fresh, blind = {}, {}
    for name, p in fitted.items():
        for k in range(1, p.n_members // FOLDS + 1):
            fresh[name, k] = p.select(list(range(FOLDS * k))).log_prob(*test)
            folds = p.record["fold"]
            blind[name, k] = torch.cat([
                p.select([m for m in range(FOLDS * k) if folds[m] == f]).log_prob(theta[r], x[r])
                for f, r in enumerate(rows.to(device))
            ])  # fmt: skip
    base = {"problem": problem, "budget": budget, "run": run, "pairs": pairs, "device": device.split(":")[0]}
    base["prior_log_prob"] = float(prior.log_prob(test[0]).double().mean())
    lines = []
    for mixture in MIXTURES:
        counts = parts_of(mixture)
        if not set(counts.items()) <= set(fresh):
            continue
        share = log_score_weights(torch.stack([blind[key] for key in counts.items()]))
        each = torch.stack([fresh[key] for key in counts.items()]).double()
        line = base | dict.fromkeys(JUDGED_FIELDS, float("nan"))
        line |= {
            "mixture": mixture,
            "members": FOLDS * sum(counts.values()),
            "seconds": sum(seconds[n] * k * FOLDS / members for n, k in counts.items()),
            "epochs": sum(epochs[n] * k for n, k in counts.items()) / sum(counts.values()),
            "share": " ".join(f"{v:.2f}" for v in share.tolist()),
            "raw": float((each + share.log()[:, None]).logsumexp(0).mean()),
        }
        if mixture in JUDGED:
            line |= judged_line(fitted, counts, share.tolist(), (theta, x), test, run)
        lines.append(line)
    print(f"  training {sum(seconds.values()):.0f} s, judging {time.monotonic() - begin:.0f} s", flush=True)
    return lines


JUDGED_FIELDS = ("t", "tempered", "p_cert", "p_over", "auc", "dip", "raw_p_over", "largest_fine_t", "best_t")


def judged_line(
    fitted: dict[str, eq.Posterior], counts: dict[str, int], share: list[float], pairs: Any, test: Any, run: int
) -> dict[str, float]:
    """The temperature that the out-of-fold pairs choose, and what fresh pairs say of it."""
    parts = []
    for g, (name, k) in enumerate(counts.items()):
        parts.append(fitted[name].select(list(range(FOLDS * k))))
        parts[-1].record["group"] = [g] * FOLDS * k
    whole = eq.Posterior.joined(parts)
    per = [share[g] / (FOLDS * list(counts.values())[g]) for g in whole.record["group"]]
    whole = whole.weighted(per) if len(set(per)) > 1 else whole
    fold = out_of_fold_view(whole, *pairs, seed=run)
    view = judged(looked_at(whole, *test, seed=run))
    t = choose(fold, RULES["observed"])
    at = int(np.argmin(np.abs(TEMPERATURES - t)))
    fine = np.flatnonzero((view["p_cert"] <= 0.05) & (view["p_over"] > 0.05))
    found = {"t": t, "tempered": view["log_prob"][at], "raw_p_over": view["p_over"][-1]}
    found |= {name: view[name][at] for name in ("p_cert", "p_over", "auc", "dip")}
    found["largest_fine_t"] = TEMPERATURES[fine[-1]] if len(fine) else float("nan")
    found["best_t"] = TEMPERATURES[int(np.argmax(view["log_prob"]))]
    return {name: float(value) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", default="slcp:1024:0")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pairs", type=int, default=4_000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    started = time.monotonic()
    for cell in given.cells.split(","):
        if time.monotonic() - started > given.seconds:
            break
        problem, budget, run = cell.split(":")
        try:
            lines = lines_of(problem, int(budget), int(run), given.pairs, given.device, given.members)
        except Exception as error:  # the others go on
            print(f"{cell}: {type(error).__name__}: {error}", flush=True)
            continue
        new = not given.out.exists()
        with given.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            if new:
                writer.writeheader()
            writer.writerows(lines)
        print(f"{time.monotonic() - started:5.0f} s  {cell}", flush=True)


if __name__ == "__main__":
    main()
