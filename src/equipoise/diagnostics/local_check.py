"""Is coverage right where the posterior is narrow, and where it is wide?

One temperature can be right on average and wrong where it matters: a posterior that is too tight for half of the
observations and too wide for the other half can pass the certificate. Pairs are cut into bins of equal numbers by the
entropy of their posterior, a function of x alone, so that coverage of a calibrated posterior is at its level in each.
In every bin and at every level the count of pairs inside is Bin(n, level) at least, and a one-sided binomial test asks
whether it is too low; Bonferroni's correction over bins × levels bounds the chance of any false alarm by α.
"""

from __future__ import annotations

__all__ = ["LOCAL_BINS", "LOCAL_LEVELS", "LocalCheck", "local_check", "local_message", "local_table"]

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.support.words import listed

from .bands import Array, binomial_cdf
from .coverage import coverage_curve

#: What `diagnose` checks: bins of equal numbers of pairs, and levels in each.
LOCAL_BINS, LOCAL_LEVELS = 4, (0.5, 0.8, 0.95)
#: Fewer pairs than this in a bin say nothing.
LEAST_PAIRS = 20


@dataclass(frozen=True)
class LocalCheck:
    """Coverage in bins of predicted entropy.

    Attributes:
        edges: of the bins, lowest entropy first, with shape `(bins + 1,)`.
        pairs: in each bin, with shape `(bins,)`.
        levels: at which coverage is read, with shape `(levels,)`.
        coverage: with shape `(bins, levels)`.
        p_value: of "coverage ≥ level", corrected for their number, with shape `(bins, levels)`.
        fails: where it is rejected, with shape `(bins, levels)`.
        message: where coverage is too low, or that it is nowhere seen to be, in a sentence.
    """

    edges: Array
    pairs: NDArray[np.int64]
    levels: Array
    coverage: Array
    p_value: Array
    fails: NDArray[np.bool_]
    message: str

    def __str__(self) -> str:
        return self.message


def local_check(
    rank: ArrayLike,
    entropy: ArrayLike,
    levels: Sequence[float] = LOCAL_LEVELS,
    bins: int = LOCAL_BINS,
    alpha: float = 0.05,
) -> LocalCheck:
    """Test for coverage below its level within bins of predicted entropy.

    Arguments:
        rank: HPD ranks, with shape `(n,)`.
        entropy: of the posterior at each x*, or any other function of x*, with shape `(n,)`.
        levels: at which coverage is tested.
        bins: their number, with n/bins pairs in each.
        alpha: the chance of any false alarm.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> entropy = rng.normal(size=2000)
        >>> rank = rng.random(2000) ** np.where(entropy < -0.67, 0.7, 1.2)  # too tight where it is narrowest
        >>> print(local_check(rank, entropy))
        coverage is too low in 1 of 4 groups, from narrow to wide posteriors: 0.366 at level 0.5 in group 1 (p < 0.001)
    """
    rank, entropy, level = (np.asarray(v, float) for v in (rank, entropy, levels))
    n = rank.size
    if rank.ndim != 1 or entropy.shape != rank.shape:
        raise ValueError(f"rank and entropy hold one number for each pair, got shapes {rank.shape} and {entropy.shape}")
    for name, values in (("rank", rank), ("entropy", entropy)):
        if not np.isfinite(values).all():
            raise ValueError(f"{int((~np.isfinite(values)).sum())} of the {n} values of {name} are not finite")
    if not 1 <= bins <= n // 5:
        raise ValueError(f"{bins} bins of {n} pairs leave fewer than 5 pairs in each; take at most {n // 5}")
    if not (len(level) > 0 and ((level > 0) & (level < 1)).all()):
        raise ValueError(f"levels lie strictly between 0 and 1, got {list(levels)}")
    order = np.argsort(entropy, kind="stable")
    parts = np.array_split(order, bins)
    pairs = np.array([len(part) for part in parts])
    coverage = np.stack([coverage_curve(rank[part], level) for part in parts])
    p = binomial_cdf(np.rint(coverage * pairs[:, None]), pairs[:, None], level)
    p = np.minimum(p * p.size, 1)
    cuts = np.cumsum(pairs)[:-1]
    inner = (entropy[order[cuts - 1]] + entropy[order[cuts]]) / 2
    edges = np.concatenate([[entropy.min()], inner, [entropy.max()]])
    fails = p <= alpha
    return LocalCheck(edges, pairs, level, coverage, p, fails, local_message(coverage, p, level, alpha))


def local_table(rank: ArrayLike, entropy: ArrayLike) -> tuple[Array, Array, Array]:
    """The check of several densities, for a dataset.

    Arguments:
        rank: HPD ranks, with shape `(K, n)`.
        entropy: of each posterior, with shape `(K, n)`.

    Returns:
        Coverage and its p-values, with shape `(K, LOCAL_BINS, 3)`, and the median entropy in each bin, with shape
        `(K, LOCAL_BINS)`; NaN where a rank or an entropy is not finite, or a bin would hold fewer than 20 pairs.
    """
    rank, entropy = np.asarray(rank, float), np.asarray(entropy, float)
    members, n = rank.shape
    coverage, p = np.full((2, members, LOCAL_BINS, len(LOCAL_LEVELS)), np.nan)
    middle = np.full((members, LOCAL_BINS), np.nan)
    for k in range(members):
        if n >= LEAST_PAIRS * LOCAL_BINS and np.isfinite(rank[k]).all() and np.isfinite(entropy[k]).all():
            found = local_check(rank[k], entropy[k])
            coverage[k], p[k] = found.coverage, found.p_value
            middle[k] = [np.median(part) for part in np.array_split(np.sort(entropy[k]), LOCAL_BINS)]
    return coverage, p, middle


def local_message(coverage: Array, p: Array, level: Array, alpha: float = 0.05) -> str:
    """Where coverage is too low, from coverage and p-values with shape `(bins, levels)`."""
    groups, fails = f"{len(p)} groups, from narrow to wide posteriors", p <= alpha
    if not fails.any():
        return f"coverage is nowhere seen below its level in {groups}"
    told = []
    for i in np.flatnonzero(fails.any(1)):
        j = int(p[i].argmin())
        size = "< 0.001" if p[i, j] < 1e-3 else f"= {p[i, j]:.1g}"
        told.append(f"{coverage[i, j]:.3f} at level {level[j]:g} in group {i + 1} (p {size})")
    return f"coverage is too low in {fails.any(1).sum()} of {groups}: {listed(told)}"
