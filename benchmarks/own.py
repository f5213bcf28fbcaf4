"""Images and series of a user's own through `eq.fit`, with the default embedding: on the device, and from disk.

    python benchmarks/own.py [--device cuda] [--simulations 8192] [--epochs 20] [--side 64] [--length 500]

Two problems that are no task of the package: a spot in a noisy image of 64 × 64 pixels (θ is where), and a damped
oscillation in three noisy channels (θ is frequency and damping), both in floats. For each:

- a step of the stack of five that `eq.fit` trains, eager, beside the authors' loop over networks of the same size;
- `eq.fit` with its default settings, but for the number of epochs, with x in memory, which then lies on the device;
- the same with x in a memory-mapped file, which a GPU with room for it reads once, and with one that is streamed: every
  batch is read from the file, which the system has in its cache, and sent when it is needed (on a CPU both are);
- the loss of the held-out pairs that each ended with, and the verdict over new pairs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import equipoise as eq
import training  # the script beside this one
from equipoise.training import data

PRIOR = eq.BoxUniform([-3.0, -3.0], [3.0, 3.0])
METHOD, MEMBERS, SHARE = "bnre", 5, data.STREAM_ABOVE


def image(theta: Tensor, side: int) -> Tensor:
    """A spot at θ in noise, with shape `(N, 1, side, side)`."""
    axis = torch.linspace(-4, 4, side)
    across = torch.exp(-((axis - theta[:, :1]) ** 2))
    down = torch.exp(-((axis - theta[:, 1:]) ** 2))
    clean = down[:, :, None] * across[:, None, :]
    return (clean + torch.randn_like(clean)).unsqueeze(1)


def series(theta: Tensor, length: int) -> Tensor:
    """Three noisy views of an oscillation with frequency and damping from θ, with shape `(N, length, 3)`."""
    t = torch.linspace(0, 10, length)
    frequency, damping = torch.exp(0.3 * theta[:, :1] + 1), torch.exp(0.3 * theta[:, 1:] - 1)
    phases = torch.tensor([0.0, 1.0, 2.0])
    clean = torch.exp(-damping * t)[:, :, None] * torch.sin((frequency * t)[:, :, None] + phases)
    return clean + torch.randn_like(clean)


def trained(theta: Tensor, x: object, options: argparse.Namespace) -> tuple[eq.Posterior, float]:
    """A posterior, and the seconds that its training took."""
    begin = time.perf_counter()
    posterior = eq.fit(
        theta, x, prior=PRIOR, method=METHOD, epochs=options.epochs, device=options.device, progress=False
    )
    return posterior, time.perf_counter() - begin


def steps(theta: Tensor, x: Tensor, seconds: float) -> tuple[float, float]:
    """What a member's step takes in the authors' loop and in a stack of ours, in microseconds."""
    shape = tuple(x.shape[1:])
    theirs = training.microseconds(training.authors_step(METHOD, shape, theta, x), theta.device, seconds)
    ours = training.our_step(METHOD, shape, theta, x, MEMBERS, compiled=False)
    return theirs, training.microseconds(ours, theta.device, seconds) / MEMBERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--simulations", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--side", type=int, default=64, help="of the image, in pixels")
    parser.add_argument("--length", type=int, default=500, help="of the series")
    parser.add_argument("--pairs", type=int, default=1000, help="new pairs for the verdict")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long steps are timed")
    options = parser.parse_args()
    device = torch.device(options.device)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(
        f"torch {torch.__version__} on {where}; {METHOD}, {MEMBERS} members, {options.simulations:,} pairs, "
        f"{options.epochs} epochs; steps in µs a member\n"
    )
    columns = ["problem", "authors' loop", f"stack of {MEMBERS}", "ratio", "x", "training, s", "best loss"]
    columns += ["coverage AUC", "verdict"]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)
    problems = {"image": partial(image, side=options.side), "series": partial(series, length=options.length)}
    for name, simulator in problems.items():
        torch.manual_seed(0)
        theta, new = PRIOR.sample((options.simulations,)), PRIOR.sample((options.pairs,))
        x, judged = simulator(theta), simulator(new)
        some = slice(16 * training.BATCH)
        theirs, ours = steps(theta[some].to(device), x[some].to(device), options.seconds)
        with tempfile.TemporaryDirectory() as folder:
            mapped = np.lib.format.open_memmap(Path(folder, "x.npy"), mode="w+", dtype=np.float32, shape=tuple(x.shape))
            mapped[:] = x.numpy()
            kinds: list[tuple[str, object, float]] = [("in memory", x, SHARE), ("in a file", mapped, SHARE)]
            for kind, source, share in [*kinds, ("streamed", mapped, 0.0)]:
                data.STREAM_ABOVE = share
                posterior, seconds = trained(theta, source, options)
                assert posterior.history is not None
                loss = float(posterior.history["best_loss"].mean())
                whole = eq.diagnose(posterior, new, judged, samples=128, progress=False).sel({"member": "mixture"})
                row = [
                    name,
                    f"{theirs:.0f}",
                    f"{ours:.0f}",
                    f"{theirs / ours:.1f}",
                    kind,
                    f"{seconds:.1f}",
                    f"{loss:.4f}",
                ]
                row += [f"{float(whole['coverage_auc']):+.3f}", str(whole["verdict"].item())]
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
