r"""Where to evaluate a ratio: proposals that follow the mass of p̂(·|x), learnt in a few rounds.

A classifier gives log r(θ, x) = log p̂(θ|x) - log p(θ) + const and no samples. Its ranks are read from points with
weights (`ranks`), and the art is to put the points where the mass is. In the coordinates u = F(θ) the prior is
uniform on [0, 1]^D, so the weight of a point proposed with density g(u|x) is r(θ, x) / g(u|x): the prior cancels.

**Up to three parameters: cells.** g is constant on the cells of a grid, hence exact to evaluate and to sample, and
multimodal or curved without further ado. It starts from one evaluation in the middle of each of N cells, smoothed
over neighbours. In each of two rounds N points are drawn from it, and on a grid three times as fine g is multiplied
by the mean weight of the points nearby: where g was right already it stays as it is, without the noise of a
histogram. The S points that count are then drawn from the final g. N is S/4, and less for S above 1000: 1.75 S
evaluations, and 1.4 S in the limit. A fixed grid spends nearly all of its points where there is no mass.

The draws are a Sobol set, shifted at random modulo 1 and mapped through g: the first coordinate of the set runs
through the cells in order of their cumulative mass and then along the first axis inside the cell, the others are the
position inside the cell along the other axes.

**Four parameters and more: a Gaussian.** z = Φ⁻¹(u) makes the prior N(0, I). g is a Gaussian in z, fitted in five
rounds to weighted draws (1.5 S evaluations), mixed with the prior itself so that no weight can explode.

In every round weights are tempered, w^β, with the largest β of 1, ½, ¼, … that leaves a given effective number of
points: a narrow peak is approached from afar and its twin is not forgotten because the first point happened to fall
on the other. With several members one proposal serves all: weights are averaged over members, and the mixture comes
for free.
"""

from __future__ import annotations

__all__ = ["CellProposal", "GaussianProposal", "Proposed"]

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.quasirandom import SobolEngine

#: log r(θ, x) of every member: θ with shape `(S, B, D)` to `(M, S, B)`.
LogRatio = Callable[[Tensor], Tensor]

#: The effective number of points that tempering preserves while a proposal is learnt.
TARGET = 16.0
#: What a round leaves of the proposal before it, so that mass it has not seen keeps points.
KEEP = 0.1
#: The share of the prior in the first proposal.
FLOOR = 0.1
#: How many points, of weight 1, stand in for the points nearby where there are none.
PSEUDO = 0.02


class Proposed(NamedTuple):
    """Points for B pairs, θ* among them or beside them."""

    #: With shape `(S, B, D)`, coordinates u of the points.
    u: Tensor
    #: log g(u|x) of the points, with shape `(S, B)`.
    log_g: Tensor
    #: log g of θ*, with shape `(B,)`.
    truth_log_g: Tensor
    #: The index of the point that is θ* itself, with shape `(B,)`; None where θ* stands beside the points.
    home: Tensor | None


def tempered(log_weight: Tensor, target: float = TARGET) -> Tensor:
    """Normalised weights w^β of points, `(*, S, B)`, with the largest power of ½ as β that keeps `target` points."""
    target = min(target, log_weight.shape[-2] / 4)
    log_weight = log_weight.nan_to_num(nan=-1e30, posinf=1e30, neginf=-1e30)
    best = (log_weight * 0.5**10).softmax(-2)
    for power in range(9, -1, -1):
        weight = (log_weight * 0.5**power).softmax(-2)
        best = torch.where(weight.square().sum(-2, keepdim=True).reciprocal() >= target, weight, best)
    return best


class CellProposal:
    """A density on [0, 1]^D that is constant on the cells of a grid, one for each of B observations.

    Arguments:
        mass: the probability of each cell, with shape `(B, side^D)`, cells in row-major order.
        side: cells along each axis.
        dim: D.
    """

    def __init__(self, mass: Tensor, side: int, dim: int) -> None:
        self.side, self.dim = side, dim
        # In double precision: the boundaries between twenty thousand cells would not survive a sum in single.
        self.cumulative = mass.double().cumsum(-1)
        self.cumulative /= self.cumulative[:, -1:].clone()
        self.mass = self.cumulative.diff(dim=-1, prepend=torch.zeros_like(self.cumulative[:, :1]))

    @classmethod
    def learn(
        cls,
        log_ratio: LogRatio,
        n_pairs: int,
        dim: int,
        samples: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> CellProposal:
        """The proposal after a coarse look and two rounds, S/4 evaluations each and less for large S = `samples`.

        `log_ratio` is evaluated at points of this `dtype`.
        """
        device, budget = generator.device, max(min(samples // 4, 128 + samples // 8), 16)
        side = max(2, round(budget ** (1 / dim)))
        axis = (torch.arange(side, device=device, dtype=dtype) + 0.5) / side
        centres = torch.stack(torch.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, 1, dim)
        weight = tempered(log_ratio(centres.expand(-1, n_pairs, dim))).mean(0)
        mass = _smooth(weight.T, side, dim)
        proposal = cls((1 - FLOOR) * mass / mass.sum(-1, keepdim=True) + FLOOR / side**dim, side, dim)
        for _ in range(2):
            shift = torch.rand(1, n_pairs, dim, device=device, dtype=dtype, generator=generator)
            u, log_g = proposal.push((_sobol(budget, dim, generator, dtype) + shift).frac())
            weight = tempered(log_ratio(u) - log_g).mean(0)
            proposal = proposal._refined(u, weight * budget)
        return proposal

    def place(self, truth: Tensor, samples: int, generator: torch.Generator) -> Proposed:
        """`samples` points of which one, chosen at random, is the truth with coordinates `(B, D)`."""
        points = _sobol(samples, self.dim, generator, truth.dtype)
        home = torch.randint(samples, truth.shape[:1], device=truth.device, generator=generator)
        position, truth_log_g = self.pull(truth)
        u, log_g = self.push((points - points[:, 0][home] + position).remainder(1))
        return Proposed(u, log_g, truth_log_g, home)

    def push(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Points u and log g(u) from uniform y, each with shape `(S, B, D)` (and `(S, B)`)."""
        t = y[..., 0].double().T.contiguous()
        cell = torch.searchsorted(self.cumulative, t, right=True).clamp_max(self.cumulative.shape[-1] - 1)
        mass = self.mass.gather(1, cell)
        first = ((t - self.cumulative.gather(1, cell) + mass) / mass).clamp(0, 1)
        inside = torch.cat([first.unsqueeze(-1), y[..., 1:].double().transpose(0, 1)], -1)
        u = (self._corner(cell) + inside) / self.side
        return u.transpose(0, 1).to(y.dtype), (mass.log() + self.dim * math.log(self.side)).T.to(y.dtype)

    def pull(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """y with push(y) = u, with shape `(B, D)`, and log g(u), with shape `(B,)`."""
        scaled = u.double() * self.side
        corner = scaled.floor().clamp(0, self.side - 1)
        cell = self._flat(corner.long()).unsqueeze(-1)
        mass = self.mass.gather(1, cell).squeeze(-1)
        inside = (scaled - corner).clamp(0, 1)
        first = self.cumulative.gather(1, cell).squeeze(-1) - mass * (1 - inside[:, 0])
        y = torch.cat([first.unsqueeze(-1), inside[:, 1:]], -1)
        return y.to(u.dtype), (mass.log() + self.dim * math.log(self.side)).to(u.dtype)

    def _refined(self, u: Tensor, weight: Tensor) -> CellProposal:
        """The proposal on cells finer by a factor, from weights `(S, B)`, 1 on average, of points `(S, B, D)`."""
        factor = 3 if self.dim <= 2 else 2
        side = self.side * factor
        cell = _flat((u * side).long().clamp(0, side - 1), side).T
        empty = torch.zeros(u.shape[1], side**self.dim, dtype=u.dtype, device=u.device)
        total, count = empty.scatter_add(1, cell, weight.T), empty.scatter_add(1, cell, torch.ones_like(weight.T))
        for _ in range(2):
            total, count = _smooth(total, side, self.dim), _smooth(count, side, self.dim)
        last = self.mass.to(u.dtype).reshape(-1, *[self.side, 1] * self.dim)
        last = last.expand(-1, *[self.side, factor] * self.dim).reshape(empty.shape) / factor**self.dim
        fresh = last * (total + PSEUDO) / (count + PSEUDO)
        return CellProposal((1 - KEEP) * fresh / fresh.sum(-1, keepdim=True) + KEEP * last, side, self.dim)

    def _flat(self, corner: Tensor) -> Tensor:
        return _flat(corner, self.side)

    def _corner(self, cell: Tensor) -> Tensor:
        strides = self.side ** torch.arange(self.dim - 1, -1, -1, device=cell.device)
        return cell.unsqueeze(-1) // strides % self.side


class GaussianProposal:
    """A Gaussian in z = Φ⁻¹(u), mixed with the prior N(0, I); one for each of B observations.

    Arguments:
        mean: with shape `(B, D)`.
        scale: lower-triangular factors of the covariances, with shape `(B, D, D)`.
        prior_share: the weight of N(0, I) in the mixture.
    """

    def __init__(self, mean: Tensor, scale: Tensor, prior_share: float = FLOOR) -> None:
        self.mean, self.scale, self.prior_share = mean, scale, prior_share

    @classmethod
    def learn(
        cls,
        log_ratio: LogRatio,
        n_pairs: int,
        dim: int,
        samples: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
        rounds: int = 5,
        target: float | None = None,
    ) -> GaussianProposal:
        """The proposal after some rounds, the last with twice the points; 1.5 `samples` evaluations for five of them.

        `log_ratio` is evaluated at points of this `dtype`. A larger `target`, the effective number of points in a
        round, takes more rounds and loses fewer peaks.
        """
        device, budget = generator.device, max(samples // 4, 8 * dim)
        eye = torch.eye(dim, device=device, dtype=dtype).expand(n_pairs, dim, dim)
        proposal = cls(torch.zeros(n_pairs, dim, device=device, dtype=dtype), eye, prior_share=1.0)
        for share in (*[1] * (rounds - 1), 2):
            z = proposal.draw(share * budget, generator)
            log_weight = log_ratio(torch.special.ndtr(z)) - proposal.log_density(z)
            weight = tempered(log_weight, target or 4.0 * dim).mean(0).unsqueeze(-1)
            mean = (weight * z).sum(0)
            centred = z - mean
            covariance = torch.einsum("sbi,sbj->bij", weight * centred, centred)
            # Widened by a quarter, and never degenerate: a proposal too wide costs points, one too narrow costs trust.
            proposal = cls(mean, torch.linalg.cholesky(1.25 * covariance + 1e-4 * eye))
        return proposal

    def place(self, truth: Tensor, samples: int, generator: torch.Generator) -> Proposed:
        """`samples` independent points, and the truth with coordinates `(B, D)` beside them."""
        z = self.draw(samples, generator)
        at_truth = torch.special.ndtri(truth.clamp(1e-7, 1 - 1e-7))
        return Proposed(torch.special.ndtr(z), self.log_density(z), self.log_density(at_truth[None])[0], None)

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """z with shape `(n, B, D)`."""
        shape = (n, *self.mean.shape)
        noise = torch.randn(shape, device=self.mean.device, dtype=self.mean.dtype, generator=generator)
        broad = torch.rand(shape[:2], device=self.mean.device, generator=generator) < self.prior_share
        return torch.where(broad.unsqueeze(-1), noise, self.mean + torch.einsum("bij,sbj->sbi", self.scale, noise))

    def log_density(self, z: Tensor) -> Tensor:
        """log g in the coordinates u, that is the density in z over that of N(0, I), with shape `(S, B)`."""
        white = (
            torch.linalg.solve_triangular(self.scale, (z - self.mean).permute(1, 2, 0), upper=False).square().sum(1).T
        )
        log_volume = self.scale.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        gaussian = (z.square().sum(-1) - white) / 2 - log_volume
        if self.prior_share >= 1:
            return torch.zeros_like(gaussian)
        floor = torch.full_like(gaussian, math.log(self.prior_share))
        return torch.logaddexp(gaussian + math.log1p(-self.prior_share), floor)


def _sobol(n: int, dim: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """A scrambled Sobol set with shape `(n, 1, D)` on the generator's device."""
    seed = int(torch.randint(2**31, (), device=generator.device, generator=generator))
    return SobolEngine(dim, scramble=True, seed=seed).draw(n, dtype=dtype).unsqueeze(1).to(generator.device)


def _flat(corner: Tensor, side: int) -> Tensor:
    """Row-major cell indices of integer corners with shape `(*, D)`."""
    flat = corner[..., 0]
    for j in range(1, corner.shape[-1]):
        flat = flat * side + corner[..., j]
    return flat


def _smooth(mass: Tensor, side: int, dim: int) -> Tensor:
    """Averages over each cell and its neighbours, with shape `(B, side^D)`."""
    grid = mass.reshape(-1, 1, *[side] * dim)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dim - 1]
    return pool(grid, 3, 1, 1).reshape(mass.shape)
