r"""The expected log posterior of each task with an exact one: E log p(θ*|x*) over pairs from the joint.

No posterior scores better on average, so it is the yardstick of the nominal log posterior. It is a mean over simulated
pairs, with its standard error, computed by

    python -m equipoise.tasks.expected [TASK]...

(ten minutes on two cores) and kept in `expected.json`, from which `task.expected_log_posterior()` reads it. The pairs
are drawn in float64: see "Rounding" in `equipoise.tasks.slcp`.
"""

from __future__ import annotations

__all__ = ["estimate", "main"]

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.support import randomness
from equipoise.support.progress import Progress

from . import task
from .base import Task
from .streams import key_of

#: What is kept: the task, its options, and the number of pairs that brings the standard error below 0.01.
KEPT: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("slcp", {}, 40_000),
    ("weinberg", {}, 400_000),
    ("two_moons", {}, 400_000),
    ("lotka_volterra", {"steps": 2001}, 24_000),
    ("lotka_volterra", {"steps": 1001}, 24_000),
)


def estimate(task: Task, pairs: int, seed: int = 0, progress: bool | None = None) -> tuple[float, float]:
    """E log p(θ*|x*) from `pairs` simulated pairs, and its standard error.

    Example:
        >>> from equipoise.tasks import task
        >>> value, error = estimate(task("two_moons"), 2000)
        >>> kept, _ = task("two_moons").expected_log_posterior()
        >>> abs(value - kept) < 5 * error
        True
    """
    generator = randomness.generator(seed, "expected", task.name)
    theta = task.prior.from_uniform(torch.rand(pairs, task.prior.dim, generator=generator, dtype=torch.float64))
    key = key_of(seed, "expected", task.name)
    x = torch.from_numpy(task._draw(theta.numpy(), key, np.float64)).double()
    block, values = 1000, []
    with Progress(f"expected log posterior of {task.name}", total=pairs, show=progress) as bar:
        for t, y in zip(theta.split(block), x.split(block), strict=True):
            values.append(task.log_posterior(t, y))
            bar.advance(len(t))
    log_posterior = torch.cat(values)
    return log_posterior.mean().item(), log_posterior.std().item() / math.sqrt(pairs)


def main(names: Sequence[str] = ()) -> None:
    """Compute what is kept, of all tasks or of those named, and write it beside this file."""
    path = Path(__file__).with_name("expected.json")
    rows = {repr(task(r["task"], **r["options"])): r for r in json.loads(path.read_text())["tasks"]}
    for name, options, pairs in KEPT:
        if names and name not in names:
            continue
        made = task(name, **options)
        value, error = estimate(made, pairs)
        numbers = {"value": round(value, 5), "standard_error": round(error, 5), "pairs": pairs, "seed": 0}
        rows[repr(made)] = {"task": name, "options": made.options, **numbers}
        print(f"{made!r}: {value:.4f} ± {error:.4f} nat from {pairs} pairs", flush=True)
    table = {"made_by": "python -m equipoise.tasks.expected", "tasks": list(rows.values())}
    path.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
