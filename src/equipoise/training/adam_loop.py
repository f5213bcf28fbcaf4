"""`limit` and `adam` of `step` on a CPU: one compiled loop instead of a dozen passes over some megabytes.

Without a compiler that fuses them, those passes took a third of a step of small networks. A member's row is summed the
same way in any stack.
"""

from __future__ import annotations

__all__ = ["adam_row", "update"]

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.support.devices import compiled

#: Numbers that are summed apart, so that a processor adds them at once.
LANES = 16


def update(arrays: tuple[Tensor, ...], rate: Tensor, numbers: tuple[float, ...], steps: int) -> None:
    """One step, in place.

    Arguments:
        arrays: weights, gradient, both moments with shape `(M, P)`, and what is trainable, `(1, P)`.
        rate: the learning rate of each member, 0 for those that do not train, `(M,)`.
        numbers: weight decay, the largest norm, β₁, β₂ and ε.
        steps: t, which counts this one.
    """
    _update(*(t.numpy() for t in (*arrays, rate, torch.tensor(numbers, dtype=rate.dtype))), steps)


@compiled(fastmath={"contract"})
def _update(w: Any, gradient: Any, moment_1: Any, moment_2: Any, kept: Any, rate: Any, numbers: Any, t: Any) -> None:
    for i in range(len(w)):
        adam_row(w[i], gradient[i], moment_1[i], moment_2[i], kept[0], rate[i], numbers, t)


@compiled(fastmath={"contract"}, forceinline=True)
def adam_row(w: Any, gradient: Any, m: Any, v: Any, kept: Any, rate: Any, numbers: Any, t: Any) -> None:
    """The step number t of one member, in place; all arrays with shape `(P,)`, and numbers as in `update`."""
    decay, clip, beta_1, beta_2, eps = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    one = beta_1 / beta_1  # of the arrays' type: a literal would turn float32 into float64
    scale, whole = one, len(gradient) - len(gradient) % LANES
    if clip < math.inf:
        lanes = np.zeros(LANES, gradient.dtype)
        for first in range(0, whole, LANES):
            for lane in range(LANES):
                own = gradient[first + lane] * kept[first + lane]
                lanes[lane] += own * own
        for j in range(whole, len(gradient)):
            own = gradient[j] * kept[j]
            lanes[0] += own * own
        total = one - one
        for lane in range(LANES):
            total += lanes[lane]
        scale = min(one, clip / (math.sqrt(total) + one * 1e-6))
    step = w.dtype.type(rate / (1 - float(beta_1) ** t))
    unit, shrink = w.dtype.type(1 / math.sqrt(1 - float(beta_2) ** t)), w.dtype.type(rate * decay)
    for j in range(len(gradient)):
        own = gradient[j] * kept[j] * scale
        m[j] += (one - beta_1) * (own - m[j])
        v[j] = beta_2 * v[j] + (one - beta_2) * own * own
        w[j] -= shrink * kept[j] * w[j] + step * m[j] / (math.sqrt(v[j]) * unit + eps)
