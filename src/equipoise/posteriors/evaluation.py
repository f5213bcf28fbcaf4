"""Log-ratios of a stack of members, evaluated in pieces.

A network, its stack of weights and a batch of observations give log-ratios with shape `(M, P, B)`, for P parameters per
observation. Two limits cut that array: `CHUNK` what is held at a time, and `AT_ONCE` what goes through the network in
one call. Features of x are computed once per piece, whatever P is.
"""

from __future__ import annotations

__all__ = [
    "at_once",
    "by_observation",
    "chunk",
    "log_ratio_of",
    "member_ratios",
    "some_weights",
]

from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.networks import Network, StackedWeights
from equipoise.support.progress import Progress

from .weighted import LogRatio, prior_points

#: Pairs that are evaluated at once, members counted, on a CPU and on a GPU.
CHUNK = {"cpu": 1 << 16, "cuda": 1 << 20}
#: Evaluations in one call of a classifier: on a CPU, as many as leave their activations in its cache. A flow cuts its
#: points itself.
AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 20}
#: So many numbers of x take as much memory to embed as an evaluation does: 64 copies of 4 bytes against 2 KiB.
EMBEDDED = 8


def some_weights(stack: StackedWeights) -> Tensor:
    """Some weights of a stack, with shape `(M, *)`: they tell its size, dtype and device."""
    return next(iter(stack.values()))


def chunk(device: torch.device) -> int:
    """How many pairs are evaluated at once on a device, members counted."""
    return CHUNK.get(device.type, CHUNK["cpu"])


def at_once(x: Tensor, stack: StackedWeights, evaluations: int) -> int:
    """How many observations go together, with so many evaluations of each member for each of them.

    Embedding an image holds far more than evaluating a network does: about one evaluation's memory for every
    `EMBEDDED` numbers.
    """
    weights = some_weights(stack)
    cost = max(evaluations, x[0].numel() // EMBEDDED) if len(x) else evaluations
    return max(1, chunk(weights.device) // (max(cost, 1) * len(weights)))


def by_observation(x: Tensor, stack: StackedWeights, evaluations: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of observations, piece by piece, with `evaluations` per member and observation.

    Arguments:
        x: with shape `(B, *x_shape)`.
        stack: the weights of the M members.
        evaluations: how often `function` evaluates each member for each observation.
        function: from a piece of x with shape `(b, *x_shape)` to `(M, b)`.

    Returns:
        With shape `(M, B)`.
    """
    members = len(some_weights(stack))
    if len(x) == 0:
        return x.new_zeros(members, 0)
    found = []
    with Progress("normalising", len(x)) as bar:
        for piece in x.split(at_once(x, stack, evaluations)):
            found.append(function(piece))
            bar.advance(len(piece), "observations")
    return torch.cat(found, 1)


def log_ratio_of(network: Network, stack: StackedWeights) -> LogRatio:
    """The members' log-ratios as a function of θ and of the observations' features with shape `(B, M, C)`.

    Features are `network.embed(stack, x.unsqueeze(0)).movedim(0, 1)`, computed once for each observation.
    """

    def log_ratio(theta: Tensor, features: Tensor) -> Tensor:
        codes, of = network.encode(theta), features.movedim(1, 0)
        return torch.cat([network.ratio(stack, c, of) for c in codes.split(_height(network, of), dim=1)], 1)

    return log_ratio


def member_ratios(network: Network, stack: StackedWeights, theta: Tensor, inside: Tensor, x: Tensor) -> Tensor:
    """The log-ratio of every member, with θ outside the prior's support replaced by a point inside it.

    Arguments:
        network: the architecture.
        stack: the weights.
        theta: with shape `(P, B, D)`.
        inside: whether θ is inside the support, with shape `(P, B)`.
        x: with shape `(B, *x_shape)`.

    Returns:
        With shape `(M, P, B)`.
    """
    weights = some_weights(stack)
    members, (rows, batch) = len(weights), theta.shape[:2]
    if not bool(inside.all()):
        theta = torch.where(inside.unsqueeze(-1), theta, prior_points(network.prior, 1, weights)[0])
    if rows == 0 or batch == 0:
        return theta.new_zeros(members, rows, batch)
    size, log_ratio = at_once(x, stack, rows), log_ratio_of(network, stack)
    pieces = zip(theta.unsqueeze(0).split(size, dim=2), x.split(size), strict=True)
    return torch.cat([log_ratio(t, network.embed(stack, o.unsqueeze(0)).movedim(0, 1)) for t, o in pieces], 2)


def _height(network: Network, features: Tensor) -> int:
    """How many rows of θ go through a network in one call, for features with shape `(M, B, C)`."""
    (members, batch), limits = features.shape[:2], CHUNK if network.kind == "flow" else AT_ONCE
    return max(1, limits.get(features.device.type, limits["cpu"]) // (members * batch))
