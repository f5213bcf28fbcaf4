"""Statistics of pairs for classifiers, which have no draws: from interpolated cells, or from proposals."""

from __future__ import annotations

__all__ = ["CELLS_UP_TO", "from_cells", "from_proposals"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.posteriors.cells import Cells, make_cells
from equipoise.posteriors.particles import density_of
from equipoise.posteriors.proposals import CellProposal, GaussianProposal
from equipoise.priors import Prior

from .normalizers import from_points, refine_normalizers
from .point_statistics import Batch, Densities, PairStatistics, RankPoints, log_mean, statistics_of
from .recipes import RELEASED_BINS
from .surrogates import Surrogate, prior_draws

#: Up to this many parameters proposals are constant on cells, beyond a Gaussian.
CELLS_UP_TO = 3
#: Densities that agree to this much are tied, where one of them is interpolated.
TIED = 1e-5


# --- cells -----------------------------------------------------------------------------------------------------------


def from_cells(s: Surrogate, b: Batch, n: int, generator: torch.Generator, limit: int) -> PairStatistics:
    """From interpolated posteriors, and from proposals for the pairs of which a member is too thin for that."""
    prior = s.prior
    assert prior is not None
    cells = make_cells(s.in_pieces(limit), b.x, prior, b.theta)
    theta = prior.from_uniform(cells.u)
    values = s.log_ratio(torch.stack([b.theta, b.rolled]), b.x)
    truth = values[:, 0] + s.log_prior(b.theta)
    density = cells.log_ratio + s.log_prior(theta)
    # A constant interpolates to itself only up to rounding.
    near = (density - truth.unsqueeze(1)).abs() <= TIED * (1 + truth.abs().unsqueeze(1))
    density = torch.where(near & truth.isfinite().unsqueeze(1), truth.unsqueeze(1), density)
    densities = Densities(density, truth, cells.log_z, truth, values[:, 0], values[:, 1], torch.zeros_like(truth))
    among = _inside_cells(cells, prior, b.theta, generator)
    found = statistics_of(RankPoints(theta, cells.log_mass), densities, b, False, generator, among)
    thin = cells.thin
    rows = thin.any(0).nonzero().squeeze(1)
    if len(rows) == 0:
        return found
    some = Batch(b.theta[rows], b.rolled[rows], b.x[rows], b.reference[rows], b.scale)
    (other,) = from_proposals(s, some, n, False, generator, limit, False)

    def merged(mine: Tensor, theirs: Tensor) -> Tensor:
        here = thin[:, rows].view(*thin[:, rows].shape, *[1] * (mine.ndim - 2))
        return mine.index_copy(1, rows, torch.where(here, theirs.to(mine), mine[:, rows]))

    return PairStatistics(*(merged(mine, theirs) for mine, theirs in zip(found, other, strict=True)))


def _inside_cells(cells: Cells, prior: Prior, truth: Tensor, generator: torch.Generator) -> RankPoints:
    """One point anywhere in each cell, and θ* as that of its own.

    Centres lie in columns: a coordinate ranked among them would move by a whole column at a time. Where θ* follows the
    density that is constant on cells, it is the point of cell c with probability m_c given the set, and its rank is
    exactly uniform (`ranks`). HPD ranks take these weights too: a θ* that is denser than the centre of every cell would
    have rank 0 exactly, as three in a thousand had.
    """
    half, u = cells.width.unsqueeze(-1) / 2, cells.u
    place = 2 * torch.rand(u.shape, device=u.device, dtype=u.dtype, generator=generator) - 1
    theta = prior.from_uniform((u + place * half).clamp(0, 1))
    around = ((u - prior.to_uniform(truth)).abs() <= half).all(-1) & (cells.log_mass > -math.inf)
    home, found = around.to(torch.int8).argmax(1, keepdim=True), around.any(1)
    own = torch.where(found, cells.log_mass.gather(1, home).squeeze(1), -math.inf)
    others = torch.where(found.unsqueeze(1), -math.inf, cells.log_mass.gather(1, home))
    return RankPoints(theta, cells.log_mass.scatter(1, home, others), own)


# --- proposals -------------------------------------------------------------------------------------------------------


class Proposed(NamedTuple):
    """Points for B pairs, θ* among them or beside them; M' is M where every member has its own, and else 1."""

    #: With shape `(M', P, B, D)`.
    theta: Tensor
    #: log g(θ|x) - log p(θ) of the points, with shape `(M', P, B)`, and of θ*, with shape `(M', B)`.
    log_g: Tensor
    truth_log_g: Tensor
    #: The index of the point that is θ* itself, with shape `(M', B)`; None where θ* stands beside the points.
    home: Tensor | None = None


def from_proposals(
    s: Surrogate, b: Batch, n: int, released: bool, generator: torch.Generator, limit: int, mixture: bool
) -> list[PairStatistics]:
    members, pairs = s.n_members, len(b.theta)
    apart = members > 1 and s.own_points and not mixture and not released
    placed = _placed(s, b, n, released, generator, limit, apart)
    at_pairs = s.log_ratio(torch.stack([b.theta, b.rolled]), b.x)
    at_points = s.in_pieces(limit)(placed.theta, b.x)
    log_prior, log_prior_points = s.log_prior(b.theta), s.log_prior(placed.theta)
    log_w = at_points - placed.log_g
    sure = from_points(log_w) if released else refine_normalizers(s, b.x, log_w, limit)
    no_leak = torch.zeros_like(at_pairs[:, 0])

    def statistics(at_pairs: Tensor, at_points: Tensor, log_z: Tensor, raw: Tensor, rows: slice) -> PairStatistics:
        """Of K densities, from their log-ratios at the pairs, `(K, 2, B)`, and at the points, `(K, P, B)`."""
        weight = at_points - placed.log_g
        if placed.home is not None:
            # θ* is one of the points and must not count twice.
            home = placed.home.unsqueeze(1).expand(len(weight), 1, pairs)
            weight = weight.scatter(1, home, -math.inf)
        points = RankPoints(placed.theta, weight, at_pairs[:, 0] - placed.truth_log_g)
        density, truth = at_points + log_prior_points, at_pairs[:, 0] + log_prior
        joint, marginal = at_pairs[:, 0], at_pairs[:, 1]
        densities = Densities(density, truth, log_z, raw + log_prior, joint, marginal, no_leak[: len(truth)])
        found = statistics_of(points, densities, b, released, generator)
        entropy = torch.where(sure.entropy[rows].isnan(), found.entropy, sure.entropy[rows])
        return found._replace(source=sure.source[rows], entropy=entropy)

    found = statistics(at_pairs, at_points, sure.log_z, at_pairs[:, 0], slice(members))
    if members == 1 or not mixture:
        return [found]
    log_z = sure.log_z.unsqueeze(1)
    zero = torch.zeros_like(log_prior).unsqueeze(0)
    mixed = statistics(
        log_mean(at_pairs - log_z, s.log_weights),
        log_mean(at_points - log_z, s.log_weights),
        zero,
        log_mean(at_pairs, s.log_weights)[:, 0],
        slice(members, None),
    )
    return [found, mixed]


def _placed(
    s: Surrogate, b: Batch, n: int, released: bool, generator: torch.Generator, limit: int, apart: bool
) -> Proposed:
    """Where a classifier is evaluated."""
    prior, pairs, f = s.prior, len(b.theta), s.in_pieces(limit)
    assert prior is not None
    if released or not prior.has_normal_map:
        theta = prior.from_uniform(_grid(b)) if released else prior_draws(prior, n, pairs, generator).to(b.theta)
        return Proposed(theta.unsqueeze(0), theta.new_zeros(1, *theta.shape[:2]), theta.new_zeros(1, pairs))
    copies, dim, like = s.n_members if apart else 1, prior.dim, b.theta
    if dim > CELLS_UP_TO:
        density = density_of(f, b.x, prior)

        def uniforms(count: int) -> Tensor:
            shape = (count, pairs, dim + 1)
            return torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype)

        shape = (1, max(n // 4, 8 * dim), pairs, dim)
        start = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
        proposal = GaussianProposal.learn(density, start, n, uniforms, shared=not apart)
        z, truth = proposal.draw(uniforms(n)), prior.to_normal(b.theta).double().expand(copies, 1, pairs, dim)
        z = z.to(like)
        log_g, own = (proposal.log_over_prior(at, -0.5 * at.double().square().sum(-1)).to(like) for at in (z, truth))
        return Proposed(prior.from_normal(z), log_g, own.squeeze(1))

    def split(values: Tensor) -> Tensor:
        """From columns, `(P, M' B, …)`, to `(M', P, B, …)`."""
        return values.unflatten(1, (copies, pairs)).movedim(1, 0)

    def log_ratio(u: Tensor) -> Tensor:
        found = f(split(prior.from_uniform(u)), b.x)
        return found.movedim(0, 1).flatten(1, 2).unsqueeze(0) if apart else found

    proposal_on_cells = CellProposal.learn(log_ratio, copies * pairs, dim, n, generator, like.dtype)
    truth = prior.to_uniform(b.theta).repeat(copies, 1)
    u, log_g, own, home = proposal_on_cells.place(truth, n, generator)
    return Proposed(split(prior.from_uniform(u)), split(log_g), own.view(copies, pairs), home.view(copies, pairs))


def _grid(b: Batch) -> Tensor:
    """The middles of the released recipe's cells, with shape `(100^D, B, D)`."""
    dim = b.theta.shape[1]
    if dim > 2:
        raise ValueError(
            f"the released recipe has a grid of {RELEASED_BINS} cells a side and up to 2 parameters, not {dim}"
        )
    axis = (torch.arange(RELEASED_BINS, device=b.theta.device, dtype=b.theta.dtype) + 0.5) / RELEASED_BINS
    grid = torch.stack(torch.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, 1, dim)
    return grid.expand(-1, len(b.theta), dim)
