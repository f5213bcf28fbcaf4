"""The study behind the default networks: architectures, starts, batches and patience on many problems.

    python benchmarks/networks.py OUT [--seconds S] [--processes P] [--problems NAMES] [--budgets N] [--configs NAMES]

Every job fits five cross-fitted members of one configuration to the simulations of one problem, on one thread, and
writes what is needed to compare configurations and mixtures of them afterwards: the log densities of every member at
2,000 fresh pairs and at its out-of-fold pairs, and the CPU seconds of the fit. A job whose file is there is not run
again; no job begins after `--seconds`. `--table FILE.csv` writes what is in OUT as a table: nats over the prior of
single networks, of the mixture of five, and of mixtures of two configurations weighted by out-of-fold score (`MIXED`).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

#: Fields of a method, settings and arguments of `fit` that make a configuration.
AFFINE: dict[str, Any] = {"start": "prior", "univariate": "affine", "transforms": 5, "hidden": (64, 64)}
SPLINE: dict[str, Any] = {"start": "prior", "transforms": 3, "hidden": (64, 64), "bins": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "affine": AFFINE,
    "affine 128": AFFINE | {"hidden": (128, 128)},
    "affine random": AFFINE | {"start": "random"},
    "affine batch 64": AFFINE | {"batch_size": 64},
    "affine batch 256": AFFINE | {"batch_size": 256},
    "affine patience 20": AFFINE | {"patience": 20},
    "spline": SPLINE,
    "spline 8 bins": SPLINE | {"bins": 8},
    "spline 128": SPLINE | {"hidden": (128, 128), "bins": 8},
    "spline 5": SPLINE | {"transforms": 5, "bins": 8},
    "spline 128 random": SPLINE | {"hidden": (128, 128), "bins": 8, "start": "random"},
    "spline 128 batch 64": SPLINE | {"hidden": (128, 128), "bins": 8, "batch_size": 64},
    "spline 128 batch 256": SPLINE | {"hidden": (128, 128), "bins": 8, "batch_size": 256},
    "spline 128 patience 20": SPLINE | {"hidden": (128, 128), "bins": 8, "patience": 20},
    "spline 256 x 3": SPLINE | {"hidden": (256, 256, 256), "bins": 8},
    "spline 128 convolution": SPLINE | {"hidden": (128, 128), "bins": 8, "embedding": "convolution"},
    "spline 128 4 bins batch 64": SPLINE | {"hidden": (128, 128), "batch_size": 64},
    "spline 128 4 bins random batch 64": SPLINE | {"hidden": (128, 128), "batch_size": 64, "start": "random"},
    "spline batch 64": SPLINE | {"batch_size": 64},
    "spline random batch 64": SPLINE | {"batch_size": 64, "start": "random"},
    "spline 128 4 bins batch 32": SPLINE | {"hidden": (128, 128), "batch_size": 32},
    "spline 2 128 4 bins batch 64": SPLINE | {"hidden": (128, 128), "batch_size": 64, "transforms": 2},
    "spline 96 x 3 4 bins batch 64": SPLINE | {"hidden": (96, 96, 96), "batch_size": 64},
    "spline 128 4 bins rate 2": SPLINE | {"hidden": (128, 128), "batch_size": 128, "learning_rate": 2e-3},
    "standard rate 2": SPLINE | {"hidden": (128, 128), "init": "standard", "learning_rate": 2e-3},
    "random rate 2": SPLINE | {"hidden": (128, 128), "start": "random", "learning_rate": 2e-3},
    "prior batch 256 rate 4": SPLINE | {"hidden": (128, 128), "batch_size": 256, "learning_rate": 4e-3},
    "prior rate 3": SPLINE | {"hidden": (128, 128), "learning_rate": 3e-3},
    "prior 128 x 2 rate 2 batch 64": SPLINE | {"hidden": (128, 128), "learning_rate": 2e-3, "batch_size": 64},
    "prior 96 x 3 rate 2 batch 64": SPLINE | {"hidden": (96, 96, 96), "learning_rate": 2e-3, "batch_size": 64},
    "prior 128 x 3 rate 2 batch 64": SPLINE | {"hidden": (128, 128, 128), "learning_rate": 2e-3, "batch_size": 64},
    "spline 128 4 bins batch 256": SPLINE | {"hidden": (128, 128), "batch_size": 256},
    "spline 128 4 bins": SPLINE | {"hidden": (128, 128)},
    "spline 128 no scores": SPLINE | {"hidden": (128, 128), "bins": 8, "scores": False},
}
#: Pairs of configurations whose mixture, weighted by out-of-fold score, is in the table.
MIXED = (
    ("affine", "spline"),
    ("spline 128 batch 64", "spline 128 random"),
    ("spline 128 4 bins batch 64", "spline 128 4 bins random batch 64"),
    ("spline 128 4 bins rate 2", "affine batch 64"),
    ("spline 128 4 bins rate 2", "standard rate 2"),
    ("spline 96 x 3 4 bins batch 64", "standard rate 2"),
)
PROBLEMS = (
    "outbreak",
    "exponentials",
    "regression",
    "lynx_hare",
    "oscillator",
    "spot",
    "slcp",
    "weinberg",
    "two_moons",
)
MEMBERS, TEST, BATCH = 5, 2000, 128


def job(problem: str, budget: int, config: str, seed: int, out: str) -> None:
    """Fit one configuration and write its file."""
    import torch

    import equipoise as eq
    from equipoise.networks import Flat
    from equipoise.training.crossfit import out_of_fold
    from problems import PROBLEMS as ALL

    torch.set_num_threads(1)
    options = dict(CONFIGS[config])
    fields = {
        k: options.pop(k) for k in ("start", "init", "univariate", "transforms", "hidden", "bins") if k in options
    }
    rate, patience = options.pop("learning_rate", 1e-3), options.pop("patience", 10)
    settings = eq.Settings(compile=False, patience=patience, learning_rate=rate)
    given: dict[str, Any] = {"batch_size": BATCH} | options
    one = ALL[problem]
    theta, x = one.simulate(budget, seed)
    test_theta, test_x = one.simulate(TEST, 1_000 + seed)
    if not given.pop("scores", True):
        given["embedding"] = Flat(tuple(x.shape[1:]))
    started = time.process_time()
    posterior = eq.fit(
        theta, x, prior=one.prior, method=eq.METHODS["npe"].but(**fields), members=MEMBERS, folds=5, calibrate=False,
        settings=settings, seed=seed, device="cpu", progress=False, **given,
    )  # fmt: skip
    seconds = time.process_time() - started
    rows, blind = out_of_fold(posterior, budget)
    members = posterior.members
    fold = np.stack([members[m].log_prob(theta[r], x[r]).numpy() for r, (m,) in zip(rows, blind, strict=True)])
    test = np.stack([m.log_prob(test_theta, test_x).numpy() for m in members])
    prior = float(one.prior.log_prob(test_theta).mean())
    epochs = posterior.history["epochs"].values
    np.savez(out, test=test, fold=fold, rows=rows.numpy(), seconds=seconds, epochs=epochs, prior=prior)


def run(out: Path, jobs: Iterable[tuple[str, int, str, int]], processes: int, seconds: float) -> None:
    """Run jobs in processes, each with one thread, until the time is over."""
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    out.mkdir(parents=True, exist_ok=True)
    started, waiting = time.monotonic(), iter(jobs)
    with ProcessPoolExecutor(processes) as pool:
        running: set[Future[None]] = set()
        names: dict[Future[None], str] = {}
        while True:
            while len(running) < processes and time.monotonic() - started < seconds:
                wanted = next(waiting, None)
                if wanted is None:
                    break
                file = out / ("--".join(str(part).replace(" ", "_") for part in wanted) + ".npz")
                if not file.exists():
                    future = pool.submit(job, *wanted, str(file))
                    running.add(future)
                    names[future] = file.stem
            if not running:
                return
            done, running = wait(
                running, timeout=max(1.0, seconds + 60 - (time.monotonic() - started)), return_when=FIRST_COMPLETED
            )
            for future in done:
                error = future.exception()
                print(f"{time.monotonic() - started:6.0f} s  {names[future]}  {error or ''}", flush=True)
            if not done:
                print(f"not finished in time: {[names[f] for f in running]}")
                for process in list(pool._processes.values()):
                    process.kill()
                return


def logmeanexp(values: np.ndarray) -> np.ndarray:
    top = values.max(0)
    return top + np.log(np.exp(values - top).mean(0))


def write_table(out: Path, file: Path) -> None:
    """What every fit has found, and what mixtures of two configurations would."""
    import torch

    from equipoise.training.crossfit import log_score_weights

    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for path in sorted(out.glob("*.npz")):
        problem, budget, config, seed = path.stem.split("--")
        with np.load(path) as data:
            found.setdefault((problem, budget, seed), {})[config.replace("_", " ")] = dict(data)
    rows = []
    for (problem, budget, seed), fits in found.items():
        start: dict[str, Any] = {"problem": problem, "budget": budget, "seed": seed}
        for config, data in fits.items():
            prior, mixture = float(data["prior"]), logmeanexp(data["test"])
            scores = {"single": data["test"].mean() - prior, "mixture": mixture.mean() - prior}
            rows.append(start | {"config": config, **scores, "cpu_seconds": float(data["seconds"])})
        for pair in MIXED:
            if not all(config in fits for config in pair):
                continue
            both = [fits[config] for config in pair]
            weights = log_score_weights(torch.from_numpy(np.stack([d["fold"].ravel() for d in both]))).numpy()
            test = np.stack([logmeanexp(d["test"]) for d in both])
            top = test.max(0)
            score = (top + np.log(weights @ np.exp(test - top))).mean() - float(both[0]["prior"])
            seconds = sum(float(d["seconds"]) for d in both)
            shares = " ".join(f"{w:.2f}" for w in weights)
            mixed = {"config": " + ".join(pair), "mixture": score, "cpu_seconds": seconds, "weights": shares}
            rows.append(start | mixed)
    columns = ["problem", "budget", "seed", "config", "single", "mixture", "cpu_seconds", "weights"]
    with file.open("w", newline="") as target:
        writer = csv.DictWriter(target, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.4g}" if isinstance(v, float | np.floating) else v for k, v in row.items()} for row in rows
        )
    print(f"{len(rows)} rows in {file}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--budgets", default="2000")
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table is None:
        seeds, budgets = ([int(v) for v in text.split(",")] for text in (given.seeds, given.budgets))
        every = itertools.product(seeds, budgets, given.configs.split(","), given.problems.split(","))
        run(given.out, ((p, b, c, s) for s, b, c, p in every), given.processes, given.seconds)
    write_table(given.out, given.table or given.out / "table.csv")


if __name__ == "__main__":
    main()
