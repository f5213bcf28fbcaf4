"""What `eq.fit` with nothing but a method gives: verdicts of its mixtures and of their members, on the paper's tasks.

    python benchmarks/defaults.py [--tasks slcp,weinberg,…] [--methods bnpe_init,bnpe] [--budgets 1024] [--runs 3]

The grids train as the paper does; users get x standardised, gradients limited, and smaller batches where there are few
simulations. Every run has simulations and a seed of its own; verdicts are not corrected for their number.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import numpy as np

import equipoise as eq

MARKS = {"overconfident": "▼", "certified conservative": "▲", "inconclusive": "◇"}


def counted(verdicts: list[str]) -> str:
    """How many of each.

    Example:
        >>> counted(["overconfident", "inconclusive", "overconfident"])
        '2 ▼  0 ▲  1 ◇'
    """
    found = Counter(verdicts)
    return "  ".join(f"{found[name]} {mark}" for name, mark in MARKS.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="slcp,weinberg,two_moons")
    parser.add_argument("--methods", default="bnpe_init,bnpe")
    parser.add_argument("--budgets", default="1024")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=None)
    parser.add_argument("--strength", type=float, default=None, help="λ, where it is not the method's")
    parser.add_argument("--pairs", type=int, default=4000, help="that a posterior is judged on")
    parser.add_argument("--device", default=None)
    options = parser.parse_args()
    print(
        "| | budget | single networks | mixtures | coverage AUC | deepest dip | nominal log posterior | seconds a run |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.tasks.split(","):
        task = eq.task(name)
        fresh = eq.simulate(task.prior, task.simulate, options.pairs, seed=10_000)
        for method in options.methods.split(","):
            for budget in map(int, options.budgets.split(",")):
                singles: list[str] = []
                mixtures: list[str] = []
                areas, dips, gains, spent = [], [], [], []
                for run in range(options.runs):
                    began = time.monotonic()
                    pairs = eq.simulate(task.prior, task.simulate, budget, seed=run)
                    posterior = eq.fit(
                        pairs.theta,
                        pairs.compact(),
                        prior=task.prior,
                        method=method,
                        members=options.members,
                        epochs=options.epochs,
                        batch_size=options.batch_size,
                        balance_strength=options.strength,
                        seed=run,
                        device=options.device,
                        progress=False,
                    )
                    ds = eq.diagnose(posterior, fresh.theta, fresh.compact(), samples=128, seed=run, progress=False)
                    verdicts = {str(m): str(v) for m, v in zip(ds["member"].values, ds["verdict"].values, strict=True)}
                    mixtures.append(verdicts.pop("mixture"))
                    singles += verdicts.values()
                    whole = ds.sel({"member": "mixture"})
                    areas.append(float(whole["coverage_auc"]))
                    dips.append(float((whole["coverage"] - whole["level"]).min()))
                    gains.append(float(whole["nominal_log_prob"]))
                    spent.append(time.monotonic() - began)
                row = [f"{name}, {method}", f"{budget:,}", counted(singles), counted(mixtures)]
                row += [
                    f"{np.median(areas):+.3f}",
                    f"{min(dips):+.3f}",
                    f"{np.median(gains):+.2f}",
                    f"{np.median(spent):.0f}",
                ]
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
