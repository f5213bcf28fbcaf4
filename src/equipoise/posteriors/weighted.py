"""Weighted points of a density: what every strategy of `engine` gives, and a few functions of them."""

from __future__ import annotations

__all__ = ["LogRatio", "WeightedPoints", "effective_size", "prior_points", "tempered_weights"]

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.randomness import isolated

#: Log-ratios `(M, P, B)` of θ with shape `(M or 1, P, B, D)` and of B observations, or of what is known of them.
LogRatio = Callable[[Tensor, Any], Tensor]


@dataclasses.dataclass
class WeightedPoints:
    """Weighted points of M densities for each of B observations.

    Arguments:
        theta: the points, with shape `(M, P, B, D)`.
        log_w: log weights with shape `(M, P, B)`; their logsumexp over the points is `log_z`.
        log_z: log Z_t(x), with shape `(M, B)`.
        ess: the effective sample size (Σw)² / Σw², with shape `(M, B)`.
        rough: where no strategy resolved the posterior, with shape `(M, B)`.
    """

    theta: Tensor
    log_w: Tensor
    log_z: Tensor
    ess: Tensor
    rough: Tensor

    def replaced(self, other: WeightedPoints, columns: Tensor, where: Tensor) -> WeightedPoints:
        """These points, but `other` in some columns, for the members `where`, with shape `(M, len(columns))`.

        The shorter of the two is filled up with points of weight 0.
        """
        size = max(self.log_w.shape[1], other.log_w.shape[1])
        parts = []
        for name, fill in (("theta", 0.0), ("log_w", -math.inf), ("log_z", 0), ("ess", 0), ("rough", 0)):
            mine, theirs = getattr(self, name), getattr(other, name)
            axis = 2 if name in ("theta", "log_w") else 1
            if axis == 2:
                mine, theirs = (_filled(value, size, fill) for value in (mine, theirs))
            here = where.view(len(where), *[1] * (axis - 1), len(columns), *[1] * (mine.ndim - axis - 1))
            both = torch.where(here, theirs, mine.index_select(axis, columns))
            parts.append(mine.index_copy(axis, columns, both))
        return WeightedPoints(*parts)


def prior_points(prior: Prior, n: int, like: Tensor) -> Tensor:
    """n fixed draws of the prior, `(n, D)`: scrambled Sobol points where it has quantiles, else its own.

    Its own are the same every time if it draws from the global generator of torch or NumPy.
    """
    if prior.has_normal_map:
        u = torch.quasirandom.SobolEngine(prior.dim, scramble=True, seed=20230421).draw(n).to(like)
        return prior.from_uniform(u.clamp(1e-7, 1 - 1e-7))
    with isolated(20230421):
        return prior.sample((n,)).to(like)


def effective_size(log_w: Tensor) -> Tensor:
    """(Σw)² / Σw² of weights with shape `(*, P, B)`: how many equally weighted points would be as good; shape `(*, B)`.

    Example:
        >>> effective_size(torch.zeros(100, 1)).round()
        tensor([100.])
    """
    # No weight at all: 0/0.
    return (2 * log_w.logsumexp(-2) - (2 * log_w).logsumexp(-2)).exp().nan_to_num(0.0)


def tempered_weights(log_w: Tensor, target: float) -> Tensor:
    """Normalised weights w^β, `(*, P, B)`, with the largest power of ½ as β that keeps `target` effective points."""
    target = min(target, log_w.shape[-2] / 4)
    log_w = log_w.nan_to_num(nan=-1e30, posinf=1e30, neginf=-1e30)
    best = (log_w * 0.5**10).softmax(-2)
    for power in range(9, -1, -1):
        weight = (log_w * 0.5**power).softmax(-2)
        best = torch.where(weight.square().sum(-2, keepdim=True).reciprocal() >= target, weight, best)
    return best


def _filled(value: Tensor, size: int, fill: float) -> Tensor:
    """`(M, P, …)` with P brought to `size`."""
    missing = size - value.shape[1]
    return (
        value if missing == 0 else torch.cat([value, value.new_full((len(value), missing, *value.shape[2:]), fill)], 1)
    )
