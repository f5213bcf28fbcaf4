r"""One and two dimensions: the posterior on cells, interpolated from few evaluations.

In the coordinates u = F(θ) the prior is uniform on the unit cube, so that with cells c of volume |c|

.. math:: Z(x) = \int e^{h(θ,x)} p(θ)\,dθ = \int e^{h(θ(u),x)}\,du ≈ \sum_c |c|\, e^{h(θ_c, x)}.

A network is expensive to evaluate and h is smooth, so h is evaluated at few points and interpolated to many. The cube
is cut into *patches*, 8 × 8 of them. On each, h is the polynomial of degree 3 in every coordinate through its values
at 4 × 4 Chebyshev points; it is read at the centres of 8 × 8 cells. Interpolating h and not e^h makes a Gaussian
posterior exact at any resolution, apart from the sum over cells.

Where the posterior is narrow, patches must be small. The error of a patch is judged by the polynomial's last
coefficients, which are of the order of what was left out, by how far the patch it was cut from was off at its points,
by the square of the step of h from cell to cell, and by what the second precaution below takes away. In each round
the 16 patches with the largest mass times error (their own mass, or what a neighbour's density at their border
suggests) are cut in half along each axis and evaluated anew. There is one round for everyone, and up to seven more
while the mean error of the posterior's mass exceeds `ERROR`: 2,048 evaluations, a twentieth of a 200 × 200 grid, and
1,024 for each round that a narrow posterior needs. At most `MOST` patches are kept, those with the most mass.

Two precautions keep a polynomial honest where h falls by hundreds between its points. Values more than `DEPTH` below
the largest of their patch are raised to that level, where there is no mass either way. And the polynomial may exceed
the largest of its own points by `ABOVE` at most: a peak between points is seen and cut, but cannot be made up.
"""

from __future__ import annotations

__all__ = ["EVALUATIONS", "Cells", "fits_cells", "make_cells", "sample_cells"]

import dataclasses
import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.priors import Prior

from .weighted import LogRatio

#: Patches a side at first, by the number of dimensions.
SIDE = {1: 64, 2: 8}
#: Evaluations along each axis of a patch, and cells along each axis, by the number of dimensions.
NODES, FINE = 4, {1: 128, 2: 8}
#: Patches that are cut in a round, how many rounds there are at most, and how many patches.
CUT, ROUNDS, MOST = 16, 8, 256
#: How many times better a polynomial is taken to be than the one on twice the patch.
GAIN = 8.0
#: What share of the mass may be lost when patches make room.
LOST = 1e-4
#: A further round where the mean error of the posterior's mass is larger than this, by the number of dimensions.
ERROR = {1: 0.01, 2: 0.1}
#: Where the mean error is larger than this, cells are not to be used.
UNRESOLVED = 1.0
#: How far below its maximum h still matters.
DEPTH = 15.0
#: By how much a polynomial may exceed the largest of its points.
ABOVE = 0.5
#: About how many evaluations there are of each member and observation, by the number of dimensions.
EVALUATIONS = {1: 512, 2: 2048}


@dataclasses.dataclass
class Cells:
    """Cells of the unit cube for each member and observation.

    Arguments:
        u: their centres, with shape `(M, G, B, D)`.
        width: their sides, with shape `(M, G, B)`.
        log_ratio: h at the centres, interpolated, with shape `(M, G, B)`.
        log_mass: h plus the logarithm of the prior mass; -inf for a cell that was cut. Shape `(M, G, B)`.
        error: about how wrong h is, averaged over the posterior's mass, with shape `(M, B)`. It is large where a
            posterior is thinner than the smallest patches, as a ridge can be; a peak that no evaluation comes near (a
            core of 0.003 on a flat floor, say) leaves no trace in it.
    """

    u: Tensor
    width: Tensor
    log_ratio: Tensor
    log_mass: Tensor
    error: Tensor

    @property
    def log_z(self) -> Tensor:
        """log Z(x), with shape `(M, B)`."""
        return torch.logsumexp(self.log_mass, 1)

    @property
    def thin(self) -> Tensor:
        """Which posteriors are too thin to be trusted to cells, with shape `(M, B)`."""
        return ~(self.error <= UNRESOLVED)


class Patches(NamedTuple):
    """Patches of the unit cube for each member and observation."""

    #: The lower corner, with shape `(M, L, B, D)`; the side, 0 for a patch that was cut, with shape `(M, L, B)`.
    corner: Tensor
    width: Tensor
    #: h at the Chebyshev points, with shape `(M, L, NODES^D, B)`.
    height: Tensor
    #: How far the polynomial of the patch that this one was cut from was off at these points, with shape `(M, L, B)`.
    surprise: Tensor


#: Where observations are in each part of `Patches`.
AXES = (2, 2, 3, 2)


def fits_cells(prior: Prior) -> bool:
    """Whether there are cells for this prior: it has one or two parameters and a map to the unit cube."""
    return prior.dim <= 2 and prior.has_normal_map


def make_cells(log_ratio: LogRatio, x: Any, prior: Prior, like: Tensor) -> Cells:
    """The posterior on cells.

    Arguments:
        log_ratio: h, from θ with shape `(M or 1, G, B, D)` and observations to `(M, G, B)`.
        x: B observations, along the first axis.
        prior: with one or two parameters and a map to the unit cube.
        like: a tensor of the dtype and device wanted.
    """
    dim, side = prior.dim, SIDE[prior.dim]
    ticks = torch.arange(side, dtype=like.dtype, device=like.device) / side
    corner = torch.cartesian_prod(*[ticks] * dim).reshape(1, -1, 1, dim)
    width = like.new_full(corner.shape[:-1], 1 / side)
    height = _evaluated(log_ratio, x, prior, corner, width)
    members, _, _, batch = height.shape
    width = width.expand(members, -1, batch)
    patches = Patches(corner.expand(members, -1, batch, -1), width, height, torch.zeros_like(width))
    go = torch.ones(members, batch, dtype=torch.bool, device=like.device)
    for done in range(ROUNDS + 1):
        found = _interpolated(patches, dim)
        if done == ROUNDS:
            break
        log_mass = found.log_mass.logsumexp(2)
        log_most = torch.maximum(log_mass, _across(patches, found, log_mass, dim))
        if done > 0:
            share = log_mass.softmax(1)
            # The lightest patches make room for new ones, unless they count.
            left = min(MOST - CUT * (2**dim - 1), share.shape[1])
            room = share.topk(left, dim=1).values.sum(1) > 1 - LOST
            doubt = ((log_most - log_mass.logsumexp(1, keepdim=True)).exp() * found.error).sum(1)
            go = (doubt > ERROR[dim]) & room
            if not bool(go.any()):
                break
        score = log_most + found.error.clamp_min(1e-9).log()
        patches = _cut(patches, log_mass, score, go, log_ratio, x, prior)
    offsets = _rule(dim, like.dtype, like.device).centres
    u = patches.corner.unsqueeze(2) + offsets.view(1, 1, -1, 1, dim) * patches.width[:, :, None, :, None]
    width = (patches.width / FINE[dim]).unsqueeze(2).expand(found.log_ratio.shape)
    error = (found.log_mass.logsumexp(2).softmax(1) * found.error).sum(1)
    centres, sides, heights, masses = (p.flatten(1, 2) for p in (u, width, found.log_ratio, found.log_mass))
    return Cells(centres, sides, heights, masses, error)


class Rule(NamedTuple):
    """Of a patch, the unit cube."""

    #: The Chebyshev points, with shape `(NODES^D, D)`, and the cells' centres, with shape `(FINE^D, D)`.
    nodes: Tensor
    centres: Tensor
    #: From values at the points to those at the centres: Lagrange's polynomials in each coordinate.
    interpolate: Tensor
    #: From values at the points to the coefficients of those products of Chebyshev polynomials in which one is of the
    #: highest degree.
    last: Tensor
    #: From values at the points to those at the points of the patch's halves, quarters in two dimensions.
    halve: Tensor


@cache
def _rule(dim: int, dtype: torch.dtype, device: torch.device) -> Rule:
    degrees = torch.arange(NODES, dtype=torch.float64)
    angles = (2 * degrees + 1) * math.pi / (2 * NODES)
    nodes, centres = 0.5 - 0.5 * angles.cos(), (torch.arange(FINE[dim], dtype=torch.float64) + 0.5) / FINE[dim]

    def lagrange(at: Tensor) -> Tensor:
        matrix = torch.ones(len(at), NODES, dtype=torch.float64)
        for i in range(NODES):
            for j in range(NODES):
                if j != i:
                    matrix[:, i] *= (at - nodes[j]) / (nodes[i] - nodes[j])
        return matrix

    matrix, halve = lagrange(centres), [lagrange(nodes / 2), lagrange((nodes + 1) / 2)]
    analysis = 2 / NODES * torch.cos(degrees.unsqueeze(1) * angles)
    analysis[0] /= 2
    high = degrees == NODES - 1
    if dim == 2:
        matrix, analysis = torch.kron(matrix, matrix), torch.kron(analysis, analysis)
        halve = [torch.kron(a, b) for a in halve for b in halve]
        high = (high.unsqueeze(1) | high).flatten()
    points = [torch.cartesian_prod(*[ticks] * dim).reshape(-1, dim) for ticks in (nodes, centres)]
    return Rule(*(t.to(device, dtype) for t in (*points, matrix, analysis[high], torch.cat(halve))))


def _evaluated(log_ratio: LogRatio, x: Any, prior: Prior, corner: Tensor, width: Tensor) -> Tensor:
    """h at the Chebyshev points of patches, with shape `(M, L, NODES^D, B)`."""
    nodes = _rule(prior.dim, corner.dtype, corner.device).nodes
    u = corner.unsqueeze(2) + nodes.view(1, 1, -1, 1, prior.dim) * width[:, :, None, :, None]
    values = log_ratio(prior.from_uniform(u.flatten(1, 2)).expand(-1, -1, len(x), -1), x)
    return values.unflatten(1, (corner.shape[1], -1)).nan_to_num(nan=math.nan, posinf=1e30, neginf=-1e30)


class Interpolated(NamedTuple):
    """What is known of h between the points of patches."""

    #: The logarithm of e^h at the centres of the cells, and of their unnormalised mass, with shape `(M, L, FINE^D, B)`.
    log_ratio: Tensor
    log_mass: Tensor
    #: About how wrong h and the sum over cells are on each patch, with shape `(M, L, B)`.
    error: Tensor


def _raised(height: Tensor) -> Tensor:
    """Heights with what is too far below the largest of their patch raised to that level."""
    return torch.maximum(height, height.amax(2, keepdim=True) - DEPTH)


def _bounded(height: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Polynomials through raised heights, read off by a matrix, with shape `(M, L, ·, B)`, within their bounds; and by
    how much they exceed them at most, with shape `(M, L, B)`."""
    values, most = matrix @ height, height.amax(2, keepdim=True) + ABOVE
    return torch.minimum(values, most), (values.amax(2) - most.squeeze(2)).clamp_min(0)


def _interpolated(patches: Patches, dim: int) -> Interpolated:
    height = _raised(patches.height)
    rule = _rule(dim, height.dtype, height.device)
    values, cut_off = _bounded(height, rule.interpolate)
    step = (height.amax(2) - height.amin(2)) / (2 * FINE[dim])
    error = (rule.last @ height).abs().sum(2) + step.square() + cut_off + patches.surprise / GAIN
    return Interpolated(values, values + dim * (patches.width / FINE[dim]).log().unsqueeze(2), error)


def _across(patches: Patches, found: Interpolated, log_mass: Tensor, dim: int) -> Tensor:
    """What each patch should hold if h went on across the borders of the heaviest patches, with shape `(M, L, B)`.

    A narrow peak at the border of two patches may be seen from one of them alone. So for each side of a heavy patch
    the point next to its largest border cell is looked up, and the patch around that point is credited with a border
    row of such cells.
    """
    fine = FINE[dim]
    heavy = log_mass.topk(CUT, dim=1).indices
    corner = patches.corner.gather(1, heavy.unsqueeze(-1).expand(-1, -1, -1, dim))
    cell = patches.width.gather(1, heavy) / fine
    values = found.log_ratio.gather(1, heavy.unsqueeze(2).expand(-1, -1, fine**dim, -1))
    centres = _rule(dim, corner.dtype, corner.device).centres
    most = torch.full_like(log_mass, -math.inf)
    for axis in range(dim):
        for edge, outwards in ((0, -1.0), (fine - 1, 1.0)):
            border = ((centres[:, axis] * fine - 0.5).round() == edge).nonzero().squeeze(1)
            value, where = values[:, :, border].max(2)
            point = corner + centres[border][where] * (cell * fine).unsqueeze(-1)
            point[..., axis] += outwards * cell
            # (M, CUT, L, B): which patch is around the point; none beyond the border of the cube.
            inside = torch.ones((), dtype=torch.bool, device=cell.device)
            for a in range(dim):
                offset = point[..., a].unsqueeze(2) - patches.corner[..., a].unsqueeze(1)
                inside = inside & (offset >= 0) & (offset < patches.width.unsqueeze(1))
            row = value + dim * cell.log() + (dim - 1) * math.log(fine)
            credit = torch.where(inside, row.unsqueeze(2), -math.inf).amax(1)
            most = torch.maximum(most, credit)
    return most


def _cut(
    patches: Patches, log_mass: Tensor, score: Tensor, go: Tensor, log_ratio: LogRatio, x: Any, prior: Prior
) -> Patches:
    """Cut the worst patches of the members and observations `go`, with shape `(M, B)`.

    The others stay as they are, whatever their neighbours do, and get patches of width 0 to make shapes equal.
    """
    dim, (_, count, batch) = prior.dim, patches.width.shape
    columns = go.any(0).nonzero().squeeze(1)
    everyone = bool(go.all())
    old = Patches(*(part.index_select(axis, columns) for part, axis in zip(patches, AXES, strict=True)))
    log_mass, score = log_mass[:, :, columns], score[:, :, columns]
    chosen = score.topk(CUT, dim=1).indices
    parent = _taken(old, chosen)
    pieces = 2**dim
    halves = torch.cartesian_prod(*[torch.arange(2, device=score.device)] * dim).reshape(1, 1, -1, 1, dim).to(score)
    width = parent.width / 2
    corner = (parent.corner.unsqueeze(2) + halves * width[:, :, None, :, None]).flatten(1, 2)
    width = width.repeat_interleave(pieces, 1)
    height = _evaluated(log_ratio, x if len(columns) == batch else x[columns], prior, corner, width)
    new = Patches(corner, width, height, _surprise(parent, height, dim))

    # Those that were cut go, and the lightest where there are too many.
    added = CUT * pieces
    size = min(count + added - (CUT if everyone else 0), MOST)
    left = log_mass.scatter(1, chosen, -math.inf)
    kept = left.topk(size - added, dim=1).indices
    stay = _taken(old, kept)
    stay = stay._replace(width=torch.where(left.gather(1, kept) > -math.inf, stay.width, 0.0))
    fresh = Patches(*(torch.cat(both, 1) for both in zip(stay, new, strict=True)))
    if everyone:
        return fresh
    filled = []
    for part, change, axis, fill in zip(patches, fresh, AXES, (0.0, 0.0, -1e30, 0.0), strict=True):
        pad = part.new_full((len(part), size - count, *part.shape[2:]), fill)
        whole = torch.cat([part, pad], 1)
        here = go[:, columns].reshape(len(part), *[1] * (axis - 1), len(columns), *[1] * (part.ndim - axis - 1))
        before = whole.index_select(axis, columns)
        filled.append(whole.index_copy(axis, columns, torch.where(here, change, before)))
    return Patches(*filled)


def _taken(patches: Patches, which: Tensor) -> Patches:
    """The patches `which`, with shape `(M, L', B)`."""
    return Patches(
        patches.corner.gather(1, which.unsqueeze(-1).expand(-1, -1, -1, patches.corner.shape[-1])),
        patches.width.gather(1, which),
        patches.height.gather(1, which.unsqueeze(2).expand(-1, -1, patches.height.shape[2], -1)),
        patches.surprise.gather(1, which),
    )


def _surprise(parent: Patches, height: Tensor, dim: int) -> Tensor:
    """How far the parents' polynomials were off at the points of their children, with shape `(M, children, B)`."""
    rule = _rule(dim, height.dtype, height.device)
    values, _ = _bounded(_raised(parent.height), rule.halve)
    actual = height.unflatten(1, (parent.width.shape[1], -1)).flatten(2, 3)
    floor = torch.maximum(actual.amax(2, keepdim=True), parent.height.amax(2, keepdim=True)) - DEPTH
    off = (torch.maximum(values, floor) - torch.maximum(actual, floor)).abs()
    return off.unflatten(2, (2**dim, -1)).amax(3).flatten(1, 2)


def sample_cells(
    cells: Cells, log_ratio: LogRatio, x: Any, prior: Prior, n: int, generator: torch.Generator, moves: int = 3
) -> tuple[Tensor, Tensor]:
    """Draw from the posterior: a cell by its mass, a point inside it, then Metropolis steps that correct the cells'
    flatness.

    The piecewise constant density of the cells is an almost exact proposal: it is used in an independence Metropolis
    chain, one per draw, whose acceptance ratio compares e^h at the point with e^h at its cell's centre. Each step is
    accepted nearly always, and the chain forgets its first point at that rate.

    Returns:
        θ with shape `(M, n, B, D)`, and the mean acceptance of each member and observation, with shape `(M, B)`.
    """
    members, count, batch = cells.log_mass.shape
    device, dtype = cells.log_mass.device, cells.log_mass.dtype
    weights = (cells.log_mass - cells.log_z.unsqueeze(1)).exp().transpose(1, 2).reshape(members * batch, count)
    cumulative = weights.double().cumsum(1)
    cumulative = cumulative / cumulative[:, -1:]
    flat_u = cells.u.expand(members, count, batch, -1).transpose(1, 2).reshape(members * batch, count, -1)
    flat_h = cells.log_ratio.transpose(1, 2).reshape(members * batch, count)
    flat_width = cells.width.expand(members, count, batch).transpose(1, 2).reshape(members * batch, count)

    def propose() -> tuple[Tensor, Tensor]:
        """θ with shape `(M, n, B, D)` and log(e^h / proposal density) up to a constant, with shape `(M, n, B)`."""
        uniform = torch.rand(members * batch, n, generator=generator, device=device, dtype=torch.float64)
        index = torch.searchsorted(cumulative, uniform, right=True).clamp(max=count - 1)
        jitter = torch.rand(members * batch, n, prior.dim, generator=generator, device=device, dtype=dtype) - 0.5
        centre = flat_u.gather(1, index.unsqueeze(-1).expand(-1, -1, prior.dim))
        u = (centre + jitter * flat_width.gather(1, index).unsqueeze(-1)).clamp(0, 1)
        theta = prior.from_uniform(u).view(members, batch, n, -1).transpose(1, 2)
        height = flat_h.gather(1, index).view(members, batch, n).transpose(1, 2)
        return theta, log_ratio(theta, x) - height

    theta, score = propose()
    accepted = score.new_zeros(members, batch)
    for _ in range(moves):
        other, other_score = propose()
        toss = torch.rand(score.shape, generator=generator, device=device, dtype=dtype).log()
        accept = toss < other_score - score
        theta = torch.where(accept.unsqueeze(-1), other, theta)
        score = torch.where(accept, other_score, score)
        accepted = accepted + accept.to(dtype).mean(1) / moves
    return theta, accepted
