"""What is read off weighted points of some densities for one batch of pairs."""

from __future__ import annotations

__all__ = ["Batch", "Densities", "PairStatistics", "RankPoints", "log_mean", "statistics_of"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.posteriors.weighted import effective_size

from .normalizers import FROM_POINTS
from .ranks import weighted_rank


class Batch(NamedTuple):
    """Pairs (θ*, x*) on the device, with what is drawn for them."""

    #: θ* with shape `(B, D)`, the θ of the pair before with shape `(B, D)`, and what the members read of x*, along the
    #: first axis (`Surrogate.embed`).
    theta: Tensor
    rolled: Tensor
    x: Any
    #: Reference points of TARP with shape `(B, D)`, and what distances are divided by, with shape `(D,)`.
    reference: Tensor
    scale: Tensor


class PairStatistics(NamedTuple):
    """What a batch gives; K = M + 1, the members and then the mixture, or K = M without a mixture."""

    #: HPD, SBC and TARP ranks, with shapes `(K, B)`, `(K, B, D)`, `(K, B)`.
    rank: Tensor
    sbc_rank: Tensor
    tarp_rank: Tensor
    #: log p̂(θ*|x*), normalised and raw, with shape `(K, B)`.
    log_prob: Tensor
    log_prob_raw: Tensor
    #: Log-ratios of the joint pair and of the pair with the θ before, with shape `(K, B)`: raw for members.
    joint: Tensor
    marginal: Tensor
    #: Differential entropy of p̂(·|x*), mass outside the prior's support, and effective number of points, with shape
    #: `(K, B)`.
    entropy: Tensor
    leakage: Tensor
    effective: Tensor
    #: Where normaliser and entropy come from (`normalizers`), with shape `(K, B)`.
    source: Tensor


class RankPoints(NamedTuple):
    """Points among which θ* is ranked: θ `(K or 1, P, B, D)`, log weights `(K, P, B)` and that of θ* `(K, B)`.

    No weights: all are 1.
    """

    theta: Tensor
    log_w: Tensor | None = None
    truth_log_w: Tensor | None = None


class Densities(NamedTuple):
    """K densities at their points and at the pairs."""

    #: log p̂ up to the normaliser, of the points `(K, P, B)` and of θ* `(K, B)`, and the log normaliser `(K, B)`.
    log_density: Tensor
    truth: Tensor
    log_z: Tensor
    #: Raw log p̂(θ*|x*), log-ratios of the joint and of the marginal pair, and mass outside the prior: `(K, B)`.
    raw: Tensor
    joint: Tensor
    marginal: Tensor
    leakage: Tensor


def statistics_of(
    points: RankPoints,
    densities: Densities,
    b: Batch,
    released: bool,
    generator: torch.Generator,
    among: RankPoints | None = None,
) -> PairStatistics:
    """The statistics of K densities from their points, ranks `among` others where these are given."""
    shape, flat = densities.log_density.shape, densities.truth.shape
    place = among or points
    own = torch.full_like(densities.truth, -math.inf) if released else place.truth_log_w

    def rank(statistic: Tensor, truth: Tensor) -> Tensor:
        draw = torch.rand(flat, device=truth.device, dtype=densities.truth.dtype, generator=generator)
        uniform = torch.zeros_like(draw) if released else draw
        return weighted_rank(
            statistic.expand(shape),
            truth.expand(flat),
            uniform=uniform,
            log_weight=place.log_w,
            truth_log_weight=own,
        )

    sbc = [rank(-place.theta[..., j], -b.theta[..., j]) for j in range(b.theta.shape[-1])]
    distance = ((place.theta - b.reference) / b.scale).square().sum(-1)
    truth_distance = ((b.theta - b.reference) / b.scale).square().sum(-1)
    if points.log_w is None:
        effective = torch.full_like(densities.truth, shape[1])
        surprise = -densities.log_density.mean(1)
    else:
        effective, share = effective_size(points.log_w), points.log_w.softmax(1)
        surprise = torch.where(share > 0, -share * densities.log_density, 0.0).sum(1)
    return PairStatistics(
        rank=rank(densities.log_density, densities.truth),
        sbc_rank=torch.stack(sbc, -1),
        tarp_rank=rank(-distance, -truth_distance),
        log_prob=densities.truth - densities.log_z,
        log_prob_raw=densities.raw,
        joint=densities.joint,
        marginal=densities.marginal,
        entropy=surprise + densities.log_z,
        leakage=densities.leakage,
        effective=effective,
        source=torch.full_like(densities.truth, FROM_POINTS),
    )


def log_mean(values: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """The log of the mean density over members, the first axis, which stays with length 1."""
    if log_weights is not None:
        return (values + log_weights.to(values).view(-1, *[1] * (values.ndim - 1))).logsumexp(0, keepdim=True)
    return values.logsumexp(0, keepdim=True) - math.log(len(values))
