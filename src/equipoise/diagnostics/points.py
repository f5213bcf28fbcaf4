"""Weighted points of a batch of pairs, and what is read off them: the same few lines, wherever the points come from."""

from __future__ import annotations

__all__ = ["Batch", "Measured", "Points", "Ratios", "Spread", "measured"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .normalizers import FROM_POINTS
from .ranks import effective_size, weighted_rank


class Batch(NamedTuple):
    """Pairs (θ*, x*) on the device, with what is drawn for them."""

    #: θ* with shape `(B, D)`, the θ of the pair before with shape `(B, D)`, and x* with shape `(B, *x_shape)`.
    theta: Tensor
    rolled: Tensor
    x: Tensor
    #: Reference points of TARP with shape `(B, D)`, and what distances are divided by, with shape `(D,)`.
    reference: Tensor
    scale: Tensor


class Measured(NamedTuple):
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


class Spread(NamedTuple):
    """Points for the statistics that look at θ alone, with their weights and that of θ*, shapes as in `Points`."""

    theta: Tensor
    log_weight: Tensor | None
    truth_log_weight: Tensor | None


class Points(NamedTuple):
    """Weighted points of each of K densities, and θ* among or beside them."""

    #: θ with shape `(K or 1, S, B, D)`.
    theta: Tensor
    #: log p̂ up to the normaliser, of the points `(K, S, B)` and of θ* `(K, B)`.
    log_density: Tensor
    truth: Tensor
    #: The logarithm of the normaliser of `log_density`, with shape `(K, B)`.
    log_normalizer: Tensor
    #: Log weights, `(K, S, B)` and `(K, B)`; None where all are 1.
    log_weight: Tensor | None = None
    truth_log_weight: Tensor | None = None
    #: Weights that count θ* as the point of its cell, and other points for SBC and TARP; None where these serve.
    spread: Spread | None = None


class Ratios(NamedTuple):
    """Log-ratios of K densities, of the joint pair and of the pair with the θ before, with shape `(K, B)`."""

    joint: Tensor
    marginal: Tensor


def measured(
    points: Points, b: Batch, strict: bool, generator: torch.Generator, raw: Tensor, ratios: Ratios, leakage: Tensor
) -> Measured:
    """The measures of K densities from their points."""
    shape, flat = points.log_density.shape, points.truth.shape
    among = points.spread or Spread(points.theta, points.log_weight, points.truth_log_weight)
    beside = torch.full_like(points.truth, -math.inf)

    def rank(statistic: Tensor, truth: Tensor, log_weight: Tensor | None, own: Tensor | None) -> Tensor:
        draw = torch.rand(flat, device=points.truth.device, dtype=points.truth.dtype, generator=generator)
        uniform = torch.zeros_like(draw) if strict else draw
        return weighted_rank(
            statistic.expand(shape),
            truth.expand(flat),
            uniform=uniform,
            log_weight=log_weight,
            truth_log_weight=beside if strict else own,
        )

    sbc = [rank(-among.theta[..., j], -b.theta[..., j], *among[1:]) for j in range(b.theta.shape[-1])]
    distance = ((among.theta - b.reference) / b.scale).square().sum(-1)
    truth_distance = ((b.theta - b.reference) / b.scale).square().sum(-1)
    if points.log_weight is None:
        effective = torch.full_like(points.truth, shape[1])
        surprise = -points.log_density.mean(1)
    else:
        effective = effective_size(points.log_weight)
        share = points.log_weight.softmax(1)
        surprise = torch.where(share > 0, -share * points.log_density, 0.0).sum(1)
    return Measured(
        rank=rank(points.log_density, points.truth, *among[1:]),
        sbc_rank=torch.stack(sbc, -1),
        tarp_rank=rank(-distance, -truth_distance, *among[1:]),
        log_prob=points.truth - points.log_normalizer,
        log_prob_raw=raw,
        joint=ratios.joint,
        marginal=ratios.marginal,
        entropy=surprise + points.log_normalizer,
        leakage=leakage,
        effective=effective,
        source=torch.full_like(points.truth, FROM_POINTS),
    )
