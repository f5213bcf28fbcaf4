r"""The expected log posterior of each task with an exact one: E log p(θ*|x*) over pairs from the joint.

No posterior scores better on average, so nominal log posteriors are compared with it. It is a mean over simulated
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

import numpy as np
import torch

from equipoise.support import randomness
from equipoise.support.progress import Progress

from . import TASKS, task
from .abstract_task import Task
from .streams import key_of


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
    """Compute the `expectations` of all tasks, or of those named, and write them to expected.json."""
    path = Path(__file__).with_name("expected.json")
    rows = {repr(task(r["task"], **r["options"])): r for r in json.loads(path.read_text())["tasks"]}
    wanted = [(name, *e) for name, cls in TASKS.items() if not names or name in names for e in cls.expectations]
    for name, options, pairs in wanted:
        made = task(name, **options)
        value, error = estimate(made, pairs)
        numbers = {"value": round(value, 5), "standard_error": round(error, 5), "pairs": pairs, "seed": 0}
        rows[repr(made)] = {"task": name, "options": made.options, **numbers}
        print(f"{made!r}: {value:.4f} ± {error:.4f} nat from {pairs} pairs", flush=True)
    table = {"made_by": "python -m equipoise.tasks.expected", "tasks": list(rows.values())}
    path.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
