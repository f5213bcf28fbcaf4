"""How the default's networks are trained: schedules of the learning rate, averages of weights, sizes and bins.

    python benchmarks/schedules.py OUT.csv [--cells problem:budget,…] [--configs NAMES]

Ten cross-fitted members, five that begin at the prior and five with ordinary weights, on one thread. One line per cell
and configuration: nats over the prior of their mixture, weighted by out-of-fold score and not tempered, and of single
members, at 4,000 fresh pairs; epochs of all members together; and CPU seconds. One seed.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import equipoise as eq
from equipoise.methods import NEAR_PRIOR, ORDINARY
from equipoise.training.settings import SMALL, SMALL_STEPS, batch_for
from problems import PROBLEMS

PLATEAU: dict[str, Any] = {
    "epochs": 500, "schedule": "plateau", "learning_rate": 2e-3, "min_learning_rate": 2e-5, "average": 0.0,
    "patience": 10,
}  # fmt: skip
CYCLE: dict[str, Any] = {"epochs": 60, "learning_rate": 8e-3, "average": 0.0, "early_stop": False}
FIRST: dict[str, Any] = {"hidden": (128, 128), "bins": (4, 4)}
DEEP: dict[str, Any] = {"hidden": (96, 96, 96), "bins": (4, 4)}
#: Sizes of the networks, bins of both kinds, and what differs from the settings of the default.
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plateaus": (FIRST, PLATEAU),
    "cycle": (FIRST, CYCLE),
    "cycle, averaged": (FIRST, CYCLE | {"average": 0.98}),
    "cycle, averaged, 96 x 3": (DEEP, CYCLE | {"average": 0.98}),
    "patience, 96 x 3": (DEEP, {}),
    "patience, 64 x 3": (DEEP | {"hidden": (64, 64, 64)}, {}),
    "patience, 128 x 3": (DEEP | {"hidden": (128, 128, 128)}, {}),
    "patience, 96 x 3, 8 bins": (DEEP | {"bins": (8, 8)}, {}),
    "patience, 96 x 3, 4 and 8 bins": (DEEP | {"bins": (4, 8)}, {}),
    "default": (DEEP | {"bins": (8, 4)}, {}),
}
CELLS = "slcp:1024,outbreak:1000,two_moons:1024,exponentials:1000,regression:2000"


def line_of(problem: str, budget: int, config: str) -> dict[str, Any]:
    """Fit one configuration, and score it."""
    one, (shape, changes) = PROBLEMS[problem], CONFIGS[config]
    prior, (theta, x), fresh = eq.as_prior(one.prior), one.simulate(budget, 3), one.simulate(4000, 7)
    rows = [r.but(hidden=shape["hidden"], bins=b) for r, b in zip((NEAR_PRIOR, ORDINARY), shape["bins"], strict=True)]
    batch = batch_for(budget, 0.2, SMALL_STEPS)
    settings = dataclasses.replace(SMALL, compile=False, batch_size=batch, **changes)
    begin = time.process_time()
    posterior = eq.fit(
        theta, x, prior=prior, method=rows, members=10, folds=5, settings=settings, calibrate=False, progress=False,
        seed=1, device="cpu",
    )  # fmt: skip
    spent = time.process_time() - begin
    least = float(prior.log_prob(fresh[0]).double().mean())
    with torch.no_grad():
        each = [float(m.log_prob(*fresh).double().mean()) - least for m in posterior.members]
        whole = float(posterior.log_prob(*fresh).double().mean()) - least
    assert posterior.history is not None
    epochs = int(posterior.history["epochs"].sum())
    return {
        "problem": problem, "budget": budget, "config": config, "mixture": round(whole, 3),
        "single": round(float(np.mean(each)), 3), "epochs": epochs, "cpu_seconds": round(spent, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--configs", default=";".join(CONFIGS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for cell in given.cells.split(","):
        for config in given.configs.split(";"):
            problem, _, budget = cell.partition(":")
            line = line_of(problem, int(budget), config)
            new = not given.out.exists()
            with given.out.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(line))
                if new:
                    writer.writeheader()
                writer.writerow(line)
            print(line, flush=True)


if __name__ == "__main__":
    main()
