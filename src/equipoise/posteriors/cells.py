r"""Classifiers in one and two dimensions: the posterior on cells of equal prior mass.

In the coordinates u = F(θ) the prior is uniform on the unit cube, so a grid of equal cells in u has equal prior mass in each cell
however the prior looks, and

.. math:: Z(x) = \int e^{h(θ,x)} p(θ)\,dθ = \int e^{h(θ(u),x)}\,du ≈ \sum_c |c|\, e^{h(θ_c, x)}.

A posterior far narrower than a coarse cell needs small cells, but only where it is: every cell of a coarse grid is
evaluated at its centre, and those with the largest ratio in their neighbourhood are cut into smaller ones. With 64² coarse cells and
512 of them cut 4 × 4, the resolution is that of a 256² grid for a fifth of its evaluations.
"""

from __future__ import annotations

__all__ = ["Cells", "make_cells", "sample_cells"]

import dataclasses
import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..priors import Prior

#: Cells per side in one dimension, where everything is evaluated at full resolution.
SIDE_1D = 2048
#: Coarse cells per side in two dimensions, how many of them are cut, and into how many per side.
SIDE_2D, CUT, PIECES = 64, 512, 4


@dataclasses.dataclass
class Cells:
    """Cells of the unit cube for each member and observation.

    Arguments:
        u: their centres, with shape `(M or 1, G, B or 1, D)`.
        width: their sides, with shape `(G,)`.
        log_ratio: h at the centres, with shape `(M, G, B)`.
        log_mass: h plus the logarithm of the prior mass; -inf for a coarse cell that was cut. Shape `(M, G, B)`.
    """

    u: Tensor
    width: Tensor
    log_ratio: Tensor
    log_mass: Tensor

    @property
    def log_normalizer(self) -> Tensor:
        """log Z(x), with shape `(M, B)`."""
        return torch.logsumexp(self.log_mass, 1)


def make_cells(ratio: Callable[[Tensor], Tensor], prior: Prior, like: Tensor) -> Cells:
    """Evaluate the log-ratio on cells.

    Arguments:
        ratio: log-ratios with shape `(M, G, B)` of θ with shape `(M or 1, G, B or 1, D)`.
        prior: with one or two parameters and a map to the unit cube.
        like: a tensor of the dtype and device wanted.
    """
    side = SIDE_1D if prior.dim == 1 else SIDE_2D
    ticks = (torch.arange(side, dtype=like.dtype, device=like.device) + 0.5) / side
    u = torch.cartesian_prod(*[ticks] * prior.dim).reshape(1, -1, 1, prior.dim)
    coarse = ratio(prior.from_uniform(u))
    members, cells, batch = coarse.shape
    width = like.new_full((cells,), 1 / side)
    log_mass = coarse - math.log(cells)
    if prior.dim == 1:
        return Cells(u, width, coarse, log_mass)

    image = coarse.transpose(1, 2).reshape(members * batch, 1, side, side)
    near = F.max_pool2d(image, 3, stride=1, padding=1).view(members, batch, cells)
    chosen = near.topk(CUT, dim=2).indices.transpose(1, 2)  # (M, CUT, B)
    steps = (torch.arange(PIECES, dtype=like.dtype, device=like.device) + 0.5) / PIECES - 0.5
    offsets = torch.tensor(list(itertools.product(steps.tolist(), repeat=2)), dtype=like.dtype, device=like.device) / side
    fine = (u[0, :, 0][chosen].unsqueeze(2) + offsets[:, None, :]).flatten(1, 2)  # (M, CUT·PIECES², B, 2)
    values = ratio(prior.from_uniform(fine))
    log_mass = log_mass.scatter(1, chosen, -math.inf)
    return Cells(
        u=torch.cat([u.expand(members, -1, batch, -1), fine], 1),
        width=torch.cat([width, like.new_full((fine.shape[1],), 1 / (side * PIECES))]),
        log_ratio=torch.cat([coarse, values], 1),
        log_mass=torch.cat([log_mass, values - math.log(cells * PIECES**2)], 1),
    )


def sample_cells(
    cells: Cells, ratio: Callable[[Tensor], Tensor], prior: Prior, n: int, generator: torch.Generator, moves: int = 3
) -> tuple[Tensor, Tensor]:
    """Draw from the posterior: a cell by its mass, a point inside it, then Metropolis steps that correct the cells' flatness.

    The piecewise constant density of the cells is an almost exact proposal: it is used in an independence Metropolis chain, one a
    draw, whose acceptance ratio compares e^h at the point with e^h at its cell's centre. Each step is accepted nearly always,
    and the chain forgets its first point at that rate.

    Returns:
        θ with shape `(M, n, B, D)`, and the mean acceptance of each member and observation, with shape `(M, B)`.
    """
    members, count, batch = cells.log_mass.shape
    device, dtype = cells.log_mass.device, cells.log_mass.dtype
    weights = (cells.log_mass - cells.log_normalizer.unsqueeze(1)).exp().transpose(1, 2).reshape(members * batch, count)
    cumulative = weights.double().cumsum(1)
    cumulative = cumulative / cumulative[:, -1:]
    flat_u = cells.u.expand(members, count, batch, -1).transpose(1, 2).reshape(members * batch, count, -1)
    flat_h = cells.log_ratio.transpose(1, 2).reshape(members * batch, count)

    def propose() -> tuple[Tensor, Tensor]:
        """θ with shape `(M, n, B, D)` and log(e^h / proposal density) up to a constant, with shape `(M, n, B)`."""
        uniform = torch.rand(members * batch, n, generator=generator, device=device, dtype=torch.float64)
        index = torch.searchsorted(cumulative, uniform, right=True).clamp(max=count - 1)
        jitter = torch.rand(members * batch, n, prior.dim, generator=generator, device=device, dtype=dtype) - 0.5
        centre = flat_u.gather(1, index.unsqueeze(-1).expand(-1, -1, prior.dim))
        u = (centre + jitter * cells.width[index].unsqueeze(-1)).clamp(0, 1)
        theta = prior.from_uniform(u).view(members, batch, n, -1).transpose(1, 2)
        height = flat_h.gather(1, index).view(members, batch, n).transpose(1, 2)
        return theta, ratio(theta) - height

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
