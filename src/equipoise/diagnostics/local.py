"""Conditional coverage: where a posterior fails, not only that it does.

Expected coverage averages over θ and x, and two errors may cancel in it. Here the pairs are sorted by any scalar
function of θ or x (a parameter, a summary of the data, the entropy of the posterior) and cut into bins with equal
numbers of pairs; within each, coverage is estimated with its exact interval. A function of x alone must leave
coverage at its level in every bin if the posterior is right; a function of θ need not, for even the exact posterior
covers rare θ less than common ones.
"""

from __future__ import annotations

__all__ = ["local_coverage"]

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from .bands import pointwise_band
from .coverage import coverage_auc, coverage_curve


def local_coverage(
    result: xr.Dataset | ArrayLike,
    value: Any,
    *,
    levels: ArrayLike = (0.5, 0.9, 0.95),
    bins: int = 10,
    confidence: float = 0.95,
    name: str | None = None,
) -> xr.Dataset:
    """Coverage within bins of a scalar.

    Arguments:
        result: what `diagnose` returned, or HPD ranks with shape `(member, pair)`.
        value: one number per pair, with shape `(n,)`: an array, a tensor, or the name of a variable of `result` over
            pairs.
        levels: the levels at which coverage is read.
        bins: how many bins, each with n/bins pairs.
        confidence: of the interval in each bin, Clopper and Pearson's.
        name: what `value` is, for the plot.

    Returns:
        Dimensions member, bin, level: `coverage`, `coverage_lower`, `coverage_upper`, `coverage_auc`,
            `coverage_auc_se`, and for each bin `value`, the median, with its edges `value_low` and `value_high`, and
            `pairs`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=1000)
        >>> ranks = rng.random((1, 1000)) ** np.where(x > 0, 1.5, 0.7)  # conservative for x > 0, overconfident below
        >>> local = local_coverage(ranks, x, levels=[0.5], bins=2)
        >>> local.coverage.values.squeeze().round(1)
        array([0.4, 0.6])
    """
    if isinstance(result, xr.Dataset):
        rank, members = result["rank"].transpose("member", "pair").values, result["member"].values
        if isinstance(value, str):
            name, value = name or value, result[value].values
    else:
        rank = np.atleast_2d(np.asarray(result, float))
        members = np.array([str(m) for m in range(len(rank))])
    value = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, float)
    levels, n = np.asarray(levels, float), rank.shape[-1]
    if value.shape != (n,):
        raise ValueError(f"value should hold one number for each of the {n} pairs, got shape {value.shape}")
    if not np.isfinite(value).all():
        raise ValueError(f"{int((~np.isfinite(value)).sum())} of the {n} values are not finite")
    if not 1 <= bins <= n // 5:
        raise ValueError(f"{bins} bins of {n} pairs leave fewer than 5 pairs in each; take at most {n // 5}")
    parts = np.array_split(np.argsort(value, kind="stable"), bins)
    curves = [coverage_curve(rank[:, p], levels) for p in parts]
    bands = [pointwise_band(c, len(p), confidence) for c, p in zip(curves, parts, strict=True)]
    areas = [coverage_auc(rank[:, p]) for p in parts]
    dims = ("member", "bin", "level")
    return xr.Dataset(
        {
            "coverage": (dims, np.stack(curves, 1)),
            "coverage_lower": (dims, np.stack([b[0] for b in bands], 1)),
            "coverage_upper": (dims, np.stack([b[1] for b in bands], 1)),
            "coverage_auc": (dims[:2], np.stack([a[0] for a in areas], 1)),
            "coverage_auc_se": (dims[:2], np.stack([a[1] for a in areas], 1)),
            "value": ("bin", [np.median(value[p]) for p in parts]),
            "value_low": ("bin", [value[p].min() for p in parts]),
            "value_high": ("bin", [value[p].max() for p in parts]),
            "pairs": ("bin", [len(p) for p in parts]),
        },
        coords={"member": members, "level": levels},
        attrs={"value": name or "value", "confidence": confidence},
    )
