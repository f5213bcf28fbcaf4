"""Flows and the prior's support: the mass inside it, and draws that lie inside it.

A flow started at the prior has no mass outside the support. Any other is cut to it, which divides its density by the
mass inside: the share of fixed quasi-random draws of the flow that fall inside. Draws of the cut flow are draws of the
flow, rejected until they fall inside.
"""

from __future__ import annotations

__all__ = ["draw", "draw_from", "fixed_points", "log_inside", "raw_draws"]

import math

import torch
from torch import Tensor

from equipoise.networks import Flow, Mixture, StackedWeights

from .evaluation import by_observation, chunk, some_weights

#: Quasi-random draws behind the mass of a flow inside the prior's support.
INSIDE_POINTS = 1 << 10
#: Rejection gives up on an observation once it has seen this many draws of which less than this share lies in the
#: support.
ENOUGH_TRIES, LEAST_ACCEPTANCE = 10_000, 1e-3


def log_inside(flow: Flow | Mixture, stack: StackedWeights, x: Tensor) -> Tensor:
    """The logarithm of each member's mass inside the prior's support: `(M, B)` for x with shape `(B, *x_shape)`."""
    weights = some_weights(stack)
    sobol = torch.quasirandom.SobolEngine(flow.dim, scramble=True, seed=20230421).draw(INSIDE_POINTS)
    noise = flow.base_noise(sobol.to(weights))[None, :, None, :]

    def inside(piece: Tensor) -> Tensor:
        features = flow.embed(stack, piece.unsqueeze(0))
        theta, _ = flow.sample(stack, features, noise.expand(len(weights), -1, len(piece), -1))
        share = flow.prior.contains(theta).to(weights.dtype).mean(1)
        return share.clamp(min=0.5 / INSIDE_POINTS).log()

    return by_observation(x, stack, INSIDE_POINTS, inside)


def raw_draws(
    flow: Flow | Mixture, stack: StackedWeights, features: Tensor, n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """n draws of every member for each x, leaked ones included.

    Arguments:
        flow: the architecture.
        stack: the weights.
        features: of x, with shape `(M, B, C)`.
        n: how many.
        generator: of the random numbers.

    Returns:
        θ with shape `(M, n, B, D)` and its log-ratio with shape `(M, n, B)`, as `Flow.sample` gives it.
    """
    members, batch = features.shape[:2]
    weights = some_weights(stack)
    shape = (members, n, batch, flow.dim)
    uniform = torch.rand(shape, generator=generator, device=weights.device, dtype=weights.dtype)
    return flow.sample(stack, features, flow.base_noise(uniform))


def draw(flow: Flow | Mixture, stack: StackedWeights, n: int, x: Tensor, generator: torch.Generator) -> Tensor:
    """n draws of a single member for each x, `(n, B, D)`, rejected until they lie in the prior's support."""
    return draw_from(flow, stack, n, flow.embed(stack, x.unsqueeze(0)), generator)[0]


def draw_from(
    flow: Flow | Mixture, stack: StackedWeights, n: int, features: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """As `draw`, from the features of x, with shape `(1, B, C)`; and what `Flow.sample` says of each draw, `(n, B)`."""
    device, prior = some_weights(stack).device, flow.prior
    batch, limit = features.shape[1], chunk(device)
    height = max(1, limit // batch)
    rows = [min(height, n - done) for done in range(0, n, height)]
    parts = [raw_draws(flow, stack, features, r, generator) for r in rows]
    theta, ratio = (torch.cat([part[i][0] for part in parts]) for i in range(2))
    outside = ~prior.contains(theta)
    drawn = torch.full((batch,), float(n), device=device)  # candidates so far, by observation
    accepted = n - outside.sum(0)
    asked = 1
    while bool(outside.any()):
        hopeless = (drawn >= ENOUGH_TRIES) & (accepted < LEAST_ACCEPTANCE * drawn)
        if bool(hopeless.any()):
            worst = int(hopeless.nonzero()[0])
            raise RuntimeError(
                f"for observation {worst}, {int(accepted[worst])} of {int(drawn[worst])} draws of the flow lie "
                "inside the prior's support: almost all of its mass has leaked out. Train with start='prior' (method "
                "'bnpe_init'), which cannot leak, or check that x looks like the simulations."
            )
        row, column = outside.nonzero(as_tuple=True)
        asked = max(1, min(2 * asked, limit // len(row), 1024))
        candidates, ratios = (v[0] for v in raw_draws(flow, stack, features[:, column], asked, generator))
        good = prior.contains(candidates)
        first, found = good.to(torch.int8).argmax(0), good.any(0)
        picked = first, torch.arange(len(row), device=device)
        theta[row[found], column[found]] = candidates[picked][found]
        ratio[row[found], column[found]] = ratios[picked][found]
        outside[row[found], column[found]] = False
        drawn.index_add_(0, column, torch.full_like(column, asked, dtype=drawn.dtype))
        accepted.index_add_(0, column, good.sum(0))
    return theta, ratio


def fixed_points(
    flow: Flow | Mixture, stack: StackedWeights, n: int, features: Tensor, log_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Quasi-random points of the mixture of M members that are cut to the prior's support.

    Arguments:
        flow: the architecture.
        stack: the weights.
        n: at least so many points, equally many of each member.
        features: of x, with shape `(M, B, C)`.
        log_weights: of the members, with shape `(M,)`; None where all are equal.

    Returns:
        θ with shape `(n, B, D)`, and the logarithm of their shares up to a constant, `(n, B)`: -inf outside the
        support; those of a member that lie inside share its part of the mixture.
    """
    (members, batch), weights = features.shape[:2], some_weights(stack)
    each = -(-n // members)
    sobol = torch.quasirandom.SobolEngine(flow.dim, scramble=True, seed=20230423).draw(each * members)
    noise = flow.base_noise(sobol.to(weights)).view(each, members, 1, flow.dim).transpose(0, 1)
    pieces = noise.split(max(1, chunk(weights.device) // (members * batch)), dim=1)
    theta = torch.cat([flow.sample(stack, features, p.expand(-1, -1, batch, -1))[0] for p in pieces], 1)
    inside = flow.prior.contains(theta)
    log_share = -inside.sum(1, keepdim=True).to(weights.dtype).clamp(min=1).log()
    if log_weights is not None:
        log_share = log_share + log_weights.view(-1, 1, 1)
    return theta.flatten(0, 1), torch.where(inside, log_share, -math.inf).flatten(0, 1)
