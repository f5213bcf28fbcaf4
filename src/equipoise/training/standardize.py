"""Standardisation of θ (by the prior) and of x (by the training pairs)."""

from __future__ import annotations

__all__ = ["rows_to_read", "theta_scaling", "x_scaling"]

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.networks import Embedding, Flat
from equipoise.priors import BoxUniform, Prior
from equipoise.support.errors import warn
from equipoise.support.randomness import isolated

from .data import take
from .inputs import refuse_invalid

#: How many times as large as that of most values a deviation is that few values set.
SET_BY_FEW = 30.0


def rows_to_read(most: int, x_shape: Sequence[int]) -> int:
    """How many rows of x to read: `most`, or as many as hold 2²⁵ numbers, and at least 16."""
    return max(16, min(most, (1 << 25) // math.prod(x_shape)))


def theta_scaling(prior: Prior, standardize: bool) -> tuple[Tensor, Tensor]:
    """What standardises θ, from the prior alone: mean and deviation, each with shape `(D,)`."""
    if not standardize:
        return torch.zeros(prior.dim), torch.ones(prior.dim)
    if isinstance(prior, BoxUniform):
        mean, std = prior.mean, (prior.high - prior.low) / math.sqrt(12)  # a square may overflow
    else:
        # Quantiles of draws exist for every prior; ±1 deviation of a normal is 0.159 to 0.841.
        with isolated(20230421):
            draws = prior.sample((8192,)).cpu().double()
        low, mean, high = draws.quantile(torch.tensor([0.15866, 0.5, 0.84134], dtype=torch.float64), dim=0)
        std = (high - low) / 2
    dtype = torch.get_default_dtype()
    return mean.cpu().to(dtype), torch.where(std > 0, std, 1.0).cpu().to(dtype)


def _warn_about_few_values(x: Tensor, std: Tensor, ranked: Sequence[int]) -> None:
    """Warn if a few values, such as a -9999 for what is missing, set the scale of all others.

    A normal x has a deviation `std` of (q95 - q05) / 3.29; a log-normal one with σ = 2 seven times as much. In `ranked`
    columns real outliers do no harm, so that only a value that occurs again is reported, as one for missing data does.
    """
    rows = x[: max(64, (1 << 20) // max(1, x[0].numel()))].double().cpu().numpy()
    axes = (0, *(a + 1 for a, size in enumerate(std.shape) if size == 1))
    low, high = np.quantile(rows, [0.05, 0.95], axis=axes, keepdims=True)
    ratio = np.where(high > low, std.double().cpu().numpy() / np.where(high > low, (high - low) / 3.29, 1.0), 0.0)
    if ranked:
        far = np.abs(rows - (low + high) / 2)
        once = (far == far.max(0)).sum(0) == 1
        harmless = np.isin(np.arange(std.numel()), ranked).reshape(std.shape) & once
        ratio = np.where(harmless, 0.0, ratio)
    if not (ratio > SET_BY_FEW).any():
        return
    where = np.unravel_index(int(ratio.argmax()), ratio.shape)
    group = tuple(slice(None) if a in axes else int(i) for a, i in enumerate(where))
    values = x[group].double().cpu().flatten(1) if x[group].ndim > 1 else x[group].double().cpu().unsqueeze(1)
    away = (values - (low[where] + high[where]) / 2).abs()
    row, column = divmod(int(away.argmax()), away.shape[1])
    place = ", ".join(":" if isinstance(g, slice) else str(g) for g in group)
    name = "x" if all(isinstance(g, slice) for g in group) else f"x[{place}]"
    warn(
        f"few values set the scale of {name}: one is {float(values[row, column]):g}, where nine in ten lie between "
        f"{float(low[where]):g} and {float(high[where]):g}. If it stands for what is missing, leave those pairs out or "
        "replace it; if it is real, train on a logarithm or arcsinh of x",
    )


def x_scaling(body: Embedding, x: Any, rows: Tensor, standardize: bool, x_scale: float) -> tuple[Tensor, ...]:
    """The constants of the embedding, from at most 65,536 pairs (2²⁵ numbers of a file): the mean and deviation of x,
    which are 0 and `x_scale` without standardisation, and for `Flat` with ranked columns their normal scores.
    """
    ranked = body.ranked if isinstance(body, Flat) else ()
    shape = body.statistics_shape
    constants: tuple[Tensor, ...] = torch.zeros(shape), torch.full(shape, float(x_scale))
    if standardize or ranked:
        most = 1 << 16 if isinstance(x, Tensor) else rows_to_read(1 << 16, x.shape[1:])
        some = torch.as_tensor(take(x, rows[:most]))
        if not isinstance(x, Tensor):  # which has not been checked: there may be too much of it
            refuse_invalid(some.to(torch.get_default_dtype()), "x", some, rows)
        found = body.statistics(some)
        if standardize:
            _warn_about_few_values(some, found[1], ranked)
        constants = found if standardize else (*constants, *found[2:])
    dtype = torch.get_default_dtype()
    return tuple(c.to("cpu", dtype) for c in constants)  # where weights begin, wherever x is
