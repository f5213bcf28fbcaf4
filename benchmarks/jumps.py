"""How often the loss of a spline flow jumps in training, and what prevents it.

    python benchmarks/jumps.py [--device cuda] [--members 20] [--epochs 40] [--budget 131072]

NPE on SLCP in the paper's protocol: Adam at 1e-3, batches of 256, networks of the paper's size, every member with
weights and shuffles of its own. A member has jumped if the mean training loss of an epoch lies more than 0.2 above the
least one before it. Tried are products in TF32 (on a GPU) and float32, and limits on the norm of the gradient.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import numpy as np
import torch

import equipoise as eq
from equipoise.training import PAPER, Member

#: How far above its least value a loss has to rise.
JUMP = 0.2


def jumped(losses: np.ndarray) -> np.ndarray:
    """Which members jumped, with shape `(M,)`, from their losses by epoch, with shape `(epochs, M)`.

    Example:
        >>> jumped(np.array([[1.0, 1.0], [0.5, 0.5], [0.6, 0.9]])).tolist()
        [False, True]
    """
    least = np.fmin.accumulate(losses, axis=0)
    return np.asarray(np.nanmax(losses - least, axis=0) > JUMP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--budget", type=int, default=131072)
    options = parser.parse_args()
    task = eq.task("slcp")
    pairs = eq.simulate(task.prior, task.simulate, options.budget, seed=0)
    members = [Member(eq.METHODS["npe"], seed) for seed in range(options.members)]
    print(f"{options.members} flows, {options.budget:,} simulations, {options.epochs} epochs, {options.device}")
    print(f"{'products':10} {'limit':>6} {'jumped':>8} {'best validation loss, median':>30} {'seconds':>8}")
    for tf32 in (True, False) if options.device.startswith("cuda") else (False,):
        for clip in (None, 20.0, 5.0, 1.0):
            started = time.monotonic()
            found = eq.fit_many(
                members,
                [(pairs.theta, pairs.x)],
                prior=task.prior,
                settings=dataclasses.replace(PAPER, epochs=options.epochs, tf32=tf32, clip=clip),
                device=options.device,
            )
            histories = [p.history for p in found if p is not None and p.history is not None]
            losses = np.full((options.epochs, len(histories)), np.nan)
            for m, history in enumerate(histories):
                losses[: history.sizes["epoch"], m] = history["train_loss"].values[:, 0]
            lost = len(found) - len(histories)
            count = f"{int(jumped(losses).sum()) + lost}/{options.members}"
            best = float(np.median([float(h["best_loss"].values[0]) for h in histories]))
            name, limit = "TF32" if tf32 else "float32", "none" if clip is None else f"{clip:g}"
            print(f"{name:10} {limit:>6} {count:>8} {best:>30.3f} {time.monotonic() - started:>8.0f}", flush=True)


if __name__ == "__main__":
    main()
