"""`limit` and `adam` of `step` on a CPU: one compiled loop instead of a dozen passes over some megabytes.

Without a compiler that fuses them, those passes took a third of a step of small networks. Sums over a row are
reassociated, so that they use all lanes of a processor; a member's row is summed the same way in any stack.
"""

from __future__ import annotations

__all__ = ["update"]

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.support.devices import compiled


def update(arrays: tuple[Tensor, ...], rate: Tensor, numbers: tuple[float, ...]) -> None:
    """One step, in place.

    Arguments:
        arrays: weights, gradient, both moments with shape `(M, P)`, and what is trainable, `(1, P)`.
        rate: the learning rate of each member, 0 for those that do not train, `(M,)`.
        numbers: weight decay, the largest norm, β₁, β₂, ε, 1 - β₁^t and √(1 - β₂^t).
    """
    c = torch.tensor(numbers, dtype=rate.dtype)
    _update(*(t.numpy() for t in (*arrays, rate, c)))


@compiled(fastmath={"reassoc", "contract", "nsz"})
def _update(w: Any, gradient: Any, moment_1: Any, moment_2: Any, trainable: Any, rate: Any, c: Any) -> None:
    decay, clip, beta_1, beta_2, eps, bias_1, bias_2 = c[0], c[1], c[2], c[3], c[4], c[5], c[6]
    one = beta_1 / beta_1  # of the arrays' type: a literal would turn float32 into float64
    kept = trainable[0]
    for i in range(w.shape[0]):
        g, m, v = gradient[i], moment_1[i], moment_2[i]
        scale = one
        if clip < math.inf:
            total = one - one
            for j in range(len(g)):
                own = g[j] * kept[j]
                total += own * own
            scale = min(one, clip / (math.sqrt(total) + one * 1e-6))
        step, unit, shrink = rate[i] / bias_1, one / bias_2, rate[i] * decay
        for j in range(len(g)):
            own = g[j] * kept[j] * scale
            m[j] += (one - beta_1) * (own - m[j])
            v[j] = beta_2 * v[j] + (one - beta_2) * own * own
            w[i, j] -= shrink * kept[j] * w[i, j] + step * m[j] / (math.sqrt(v[j]) * unit + eps)
