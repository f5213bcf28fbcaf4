"""Classifiers give a ratio and no density: the normaliser Z(x) that makes one of it, and draws, both from `engine`."""

from __future__ import annotations

__all__ = ["draw", "log_z"]

from typing import Any

import torch
from torch import Tensor

from equipoise.networks import Network, StackedWeights
from equipoise.support.errors import warn

from .cells import EVALUATIONS, fits_cells
from .engine import draw_points, weighted_points
from .evaluation import by_observation, chunk, log_ratio_of, some_weights
from .proposals import POINTS


def log_z(network: Network, stack: StackedWeights, x: Tensor) -> Tensor:
    """log Z(x) of each member, with shape `(M, B)` for x with shape `(B, *x_shape)`."""
    log_ratio, like = log_ratio_of(network, stack), some_weights(stack)

    def both(piece: Tensor) -> Tensor:
        features = network.embed(stack, piece.unsqueeze(0)).movedim(0, 1)
        found = weighted_points(log_ratio, features, network.prior, like)
        return torch.cat([found.log_z, found.rough.to(like)])

    evaluations = EVALUATIONS[network.dim] if fits_cells(network.prior) else POINTS
    values, rough = (
        by_observation(x, stack, evaluations, both).tensor_split(2) if len(x) else (x.new_zeros(len(like), 0),) * 2
    )
    if doubtful := int((rough > 0).any(0).sum()):
        warn(
            f"the density's normaliser is rough for {doubtful} of {len(x)} observation(s), and log_prob may be off by "
            "some tenths or more, by the same number for every θ: the posterior has several narrow peaks, of which one "
            "may have been missed, or lies along a thin curve. Compare densities of one x only, or train a flow "
            "(method 'bnpe'), which needs no normaliser",
        )
    return values


def draw(
    network: Network, stack: StackedWeights, n: int, x: Tensor, generator: torch.Generator, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """n draws of a single member for each x, with shape `(n, B, D)`, and how good they are.

    Arguments:
        network: the architecture.
        stack: the weights of one member.
        n: how many.
        x: with shape `(B, *x_shape)`.
        generator: of the random numbers.
        seed: of the particles, where they are needed.
    """
    weights, log_ratio = some_weights(stack), log_ratio_of(network, stack)
    size = max(1, chunk(weights.device) // (1 << 13)) if fits_cells(network.prior) else len(x)
    parts = []
    for piece in x.split(size):
        features = network.embed(stack, piece.unsqueeze(0)).movedim(0, 1)
        parts.append(draw_points(log_ratio, features, network.prior, n, generator, seed, weights))
    report = {name: min(part[1][name] for part in parts) for name in parts[0][1]}
    return torch.cat([part[0][0] for part in parts], 1), report
