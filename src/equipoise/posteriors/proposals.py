r"""Importance sampling from proposals that follow the mass of a posterior, learnt in a few rounds.

In coordinates in which the prior is known exactly, the weight of a point z drawn from a proposal g is
\(w = e^{h(z)} p(z) / g(z)\), and \(\hat Z = \frac1P \sum_i w_i\).

**A Gaussian** in z, with z ~ N(0, I) under the prior where the prior has that map and z = θ otherwise:

.. math:: g(z) = 0.8\, N(z; μ, Σ) + 0.1\, N(z; μ, 4Σ) + 0.1\, p(z).

The second part is for tails, the third for mass that has been missed: no weight exceeds \(10 e^h\). μ and Σ
are the moments of weighted points, Σ widened by a quarter: a proposal too wide costs points, one too narrow costs
trust. In every round weights are tempered, \(w^β\), with the largest β of 1, ½, ¼, … that leaves a given effective
number of points: a narrow peak is approached from afar, and its twin is not forgotten because the first point happened
to fall on the other. The effective sample size of the weights tells how good the estimate is. A posterior of several
narrow peaks, or along a thin curve, may stay out of a Gaussian's reach; then its effective sample size stays small.

- `adapted` starts from quasi-random prior draws, which suffice for a broad posterior. Of two narrow peaks far apart
  its Gaussians may end on one, with an effective sample size that does not tell.
- `around` starts from particles (`particles`). These estimate Z by a product over stages, each of which adds its noise:
  log Z is off by 0.1 for a posterior fifty times narrower than the prior in three dimensions, and by 0.5 in ten. As a
  sample of the posterior they are good enough to learn a proposal from. A peak that they have lost is not found again;
  that it may have happened is seen in their own effective sample size.

Both use the same quasi-random points for every member and observation, and no column depends on another.

**Cells**, up to three parameters, in u = F(θ) where the prior is uniform on [0, 1]^D: g is constant on the cells of a
grid, hence exact to evaluate and to sample, and multimodal or curved without further ado. It starts from one
evaluation in the middle of each of N cells, smoothed over neighbours. In each of two rounds N points are drawn from
it, and on a grid three times as fine g is multiplied by the mean weight of the points nearby: where g was right
already it stays as it is, without the noise of a histogram. A fixed grid spends nearly all of its points where there
is no mass. Draws are a Sobol set, shifted at random modulo 1 and mapped through g: the first coordinate of the set runs
through the cells in order of their cumulative mass and then along the first axis inside the cell, the others are the
position inside the cell along the other axes.
"""

from __future__ import annotations

__all__ = ["CellProposal", "GaussianProposal", "adapted", "around"]

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.quasirandom import SobolEngine

from equipoise.priors import Prior

from .particles import Density, density_of
from .weighted import LogRatio, WeightedPoints, effective_size, prior_points, tempered_weights

#: Quasi-random prior draws of `adapted`, and those that it learns from; points of each round in which it learns; and
#: how many rounds there are at most.
POINTS, FIRST, LEARN, ROUNDS = 1 << 13, 1 << 11, 1 << 10, 20
#: Points of each round of `around`; `adapted` ends with the first, and the others are for what that has not resolved.
AROUND = (1 << 12, 1 << 14, 1 << 14)
#: The effective number of points, for each parameter, that tempering preserves; and at least this many.
TARGET_EACH, TARGET = 16.0, 64.0
#: Shares of the Gaussian, of the wider one and of the prior; how many times wider the second is; and by how much the
#: covariance of the points is widened.
NARROW, WIDE, BROAD = 0.8, 0.1, 0.1
WIDER, WIDENED = 2.0, 1.25
#: For cells: the effective number of points that tempering preserves, what a round leaves of the proposal before it,
#: the share of the prior in the first proposal, and how many points, of weight 1, stand in where there are none nearby.
CELL_TARGET, KEEP, FLOOR, PSEUDO = 16.0, 0.1, 0.1, 0.02


class GaussianProposal:
    """Gaussians in the coordinates z, each mixed with a wider one and with the prior, in double precision.

    Arguments:
        mean: with shape `(M, B, D)`, where M is 1 if the members share their points.
        factor: lower-triangular factors of the covariances, with shape `(M, B, D, D)`.
    """

    def __init__(self, mean: Tensor, factor: Tensor) -> None:
        self.mean, self.factor = mean, factor

    @classmethod
    def fit(cls, z: Tensor, weights: Tensor) -> GaussianProposal:
        """From points with shape `(M, P, B, D)` and normalised weights with shape `(M, P, B)`."""
        z, weights = z.double(), weights.double()
        mean = (weights.unsqueeze(-1) * z).sum(1)
        centred = z - mean.unsqueeze(1)
        covariance = WIDENED * torch.einsum("mpb,mpbi,mpbj->mbij", weights, centred, centred)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        factor, failed = torch.linalg.cholesky_ex(covariance + torch.diag_embed(1e-6 * variance + 1e-20))
        # Points in a plane, up to rounding: their variances alone.
        alone = torch.diag_embed((variance + 1e-20).sqrt())
        return cls(mean, torch.where((failed > 0)[..., None, None], alone, factor))

    @classmethod
    def between(
        cls, mean: Tensor, covariance: Tensor, t: float, centre: Tensor | None = None, wide: Tensor | None = None
    ) -> GaussianProposal:
        """What p^(1-t) q^t is for Gaussians: with the precision tΛ + (1 - t)W.

        Arguments:
            mean, covariance: of q, with shapes `(B, D)` and `(B, D, D)`; Λ is the inverse of the second.
            t: in (0, 1].
            centre, wide: the mean of p, `(D,)`, and its precision W, `(D, D)`; those of N(0, I) unless given.
        """
        eye = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        own = t * torch.linalg.inv(covariance + (1e-4 * size + 1e-18) * eye)
        other = (1 - t) * (eye if wide is None else wide)
        inverse = torch.linalg.inv(own + other)
        pull = own @ mean.unsqueeze(-1) + (0.0 if centre is None else (other @ centre).unsqueeze(-1))
        factor = torch.linalg.cholesky(WIDENED * (inverse + inverse.mT) / 2)
        return cls((inverse @ pull).squeeze(-1).unsqueeze(0), factor.unsqueeze(0))

    @classmethod
    def learn(
        cls, density: Density, start: Tensor, samples: int, uniforms: Callable[[int], Tensor], shared: bool
    ) -> GaussianProposal:
        """Five rounds of `samples` / 4 points, the last with twice as many: 1.5 `samples` evaluations.

        Arguments:
            density: log p and h in the coordinates z (`particles.density_of`).
            start: prior draws in these coordinates, with shape `(1, P, B, D)`.
            samples: the number of points that the proposal is for.
            uniforms: from n to uniform numbers with shape `(n, B, D + 1)`.
            shared: learn one proposal for all members, from the mean of their weights.
        """
        dim, budget = start.shape[-1], max(samples // 4, 8 * start.shape[-1])
        z, log_w = start, density(start)[1]
        for share in (1, 1, 1, 2):
            weights = tempered_weights(log_w, 4.0 * dim)
            proposal = cls.fit(z, weights.mean(0, keepdim=True) if shared else weights)
            z, log_w = proposal.weighted(density, uniforms(share * budget), start)
        weights = tempered_weights(log_w, 4.0 * dim)
        return cls.fit(z, weights.mean(0, keepdim=True) if shared else weights)

    def weighted(
        self, density: Density, uniforms: Tensor, like: Tensor, broad: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Points z with shape `(M, n, B, D)` and their log weights h + log p - log g, for every member.

        The points are those that the network sees, rounded: the density of rounded points is what counts.
        """
        z = self.draw(uniforms, broad).to(like)
        log_prior, h = density(z)
        return z, h - self.log_over_prior(z, log_prior, broad is None).to(h)

    def draw(self, uniforms: Tensor, broad: Tensor | None = None) -> Tensor:
        """z with shape `(M, n, B, D)`.

        Arguments:
            uniforms: with shape `(n, B or 1, D + 1)`; the last coordinate chooses one of the three parts.
            broad: prior draws with shape `(n, D)` where the prior is not N(0, I) in z.
        """
        batch, dim = self.mean.shape[1:]
        noise = torch.special.ndtri(uniforms[..., :dim].double().clamp(1e-9, 1 - 1e-9)).expand(-1, batch, -1)
        part = uniforms[..., dim:]
        width = torch.where(part < NARROW, 1.0, WIDER)
        local = self.mean.unsqueeze(1) + torch.einsum("mbij,nbj->mnbi", self.factor, width * noise)
        return torch.where(part < NARROW + WIDE, local, noise if broad is None else broad.double().unsqueeze(1))

    def log_over_prior(self, z: Tensor, log_prior: Tensor, normal: bool = True) -> Tensor:
        """log g(z) - log p(z), with shape `(M, n, B)`.

        Arguments:
            z: with shape `(M, n, B, D)`.
            log_prior: log p(z), without the constant of N(0, I) if `normal`; with shape `(M, n, B)`.
            normal: whether p is N(0, I).
        """
        z, dim = z.double(), z.shape[-1]
        centred = (z - self.mean.unsqueeze(1)).permute(0, 2, 3, 1)
        square = torch.linalg.solve_triangular(self.factor, centred, upper=False).square().sum(2).transpose(1, 2)
        log_volume = self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).unsqueeze(1)
        if not normal:
            log_volume = log_volume + 0.5 * dim * math.log(2 * math.pi)
        narrow = -0.5 * square - log_volume + math.log(NARROW)
        wide = -0.5 * square / WIDER**2 - log_volume - dim * math.log(WIDER) + math.log(WIDE)
        local = torch.logaddexp(narrow, wide) - log_prior.double()
        return torch.logaddexp(local, torch.full_like(local, math.log(BROAD)))


def adapted(log_ratio: LogRatio, x: Any, prior: Prior, like: Tensor, enough: float, learn: bool) -> WeightedPoints:
    """Weighted points from the prior, and from Gaussians where fewer than `enough` of these are effective.

    Arguments:
        log_ratio: h, from θ with shape `(M or 1, P, B, D)` and observations to `(M, P, B)`.
        x: B observations, along the first axis.
        prior: the prior.
        like: a tensor of the dtype and device wanted.
        enough: an effective sample size that needs no further round.
        learn: False for the points from the prior alone.
    """
    theta = prior_points(prior, FIRST if learn else POINTS, like)[None, :, None, :].expand(1, -1, len(x), -1)
    log_w = log_ratio(theta, x)
    found = _points(theta.expand(len(log_w), -1, -1, -1), log_w)
    few = ~(found.ess >= enough)
    columns = few.any(0).nonzero().squeeze(1)
    if not learn or len(columns) == 0:
        return found
    theta, log_w = found.theta[:, :, columns], log_w[:, :, columns]
    for sizes in ((LEARN,) * ROUNDS, AROUND[:1]):
        z = prior.to_normal(theta) if prior.has_normal_map else theta
        weights = tempered_weights(log_w, max(TARGET, TARGET_EACH * prior.dim))
        learnt = _in_rounds(log_ratio, x[columns], prior, z, weights, sizes, enough)
        theta, log_w = learnt.theta, learnt.log_w
    return found.replaced(learnt, columns, few[:, columns] & (learnt.ess > found.ess[:, columns]))


def around(log_ratio: LogRatio, x: Any, prior: Prior, particles: Tensor, enough: float) -> WeightedPoints:
    """Weighted points around particles z with shape `(M, N, B, D)`; other arguments as in `adapted`."""
    weights = torch.full_like(particles[..., 0], 1 / particles.shape[1])
    return _in_rounds(log_ratio, x, prior, particles, weights, AROUND, enough)


def _in_rounds(
    log_ratio: LogRatio, x: Any, prior: Prior, z: Tensor, weights: Tensor, sizes: tuple[int, ...], enough: float
) -> WeightedPoints:
    """Weighted points of a Gaussian learnt from points z with weights, and anew from its own points in every round.

    A member and observation keeps the points of the first round in which `enough` of them are effective, whatever the
    others need, or those of the best round.
    """
    density, like, found = density_of(log_ratio, x, prior), z, None
    for n in sizes:
        # Fixed points: scrambled Sobol points, and prior draws where z is θ.
        sobol = SobolEngine(prior.dim + 1, scramble=True, seed=20230422).draw(n, dtype=torch.float64)
        broad = None if prior.has_normal_map else prior_points(prior, n, like)
        proposal = GaussianProposal.fit(z, weights)
        z, log_w = proposal.weighted(density, sobol.unsqueeze(1).to(like.device), like, broad)
        points = _points(prior.from_normal(z) if prior.has_normal_map else z, log_w)
        if found is None:
            found = points
        else:
            better = (found.ess < enough) & (points.ess > found.ess)
            found = found.replaced(points, torch.arange(len(x), device=like.device), better)
        if bool((found.ess >= enough).all()):
            break
        weights = tempered_weights(log_w, max(TARGET, TARGET_EACH * prior.dim))
    assert found is not None
    return found


def _points(theta: Tensor, log_w: Tensor) -> WeightedPoints:
    """Points from log weights whose mean is Z."""
    log_w = log_w.nan_to_num(nan=-math.inf) - math.log(log_w.shape[1])
    log_z = log_w.logsumexp(1)
    return WeightedPoints(theta, log_w, log_z, effective_size(log_w), torch.zeros_like(log_z, dtype=torch.bool))


class CellProposal:
    """A density on [0, 1]^D that is constant on the cells of a grid, one for each of C columns.

    Arguments:
        mass: the probability of each cell, with shape `(C, side^D)`, cells in row-major order.
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
        log_ratio: Callable[[Tensor], Tensor],
        columns: int,
        dim: int,
        samples: int,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> CellProposal:
        """The proposal after a coarse look and two rounds, S/4 evaluations each and less for large S = `samples`.

        `log_ratio` is evaluated at points u of this `dtype`, from shape `(P, C, D)` to `(K, P, C)`; the K densities
        share the proposal.
        """
        device, budget = generator.device, max(min(samples // 4, 128 + samples // 8), 16)
        side = max(2, round(budget ** (1 / dim)))
        axis = (torch.arange(side, device=device, dtype=dtype) + 0.5) / side
        centres = torch.stack(torch.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, 1, dim)
        weight = tempered_weights(log_ratio(centres.expand(-1, columns, dim)), CELL_TARGET).mean(0)
        mass = _smooth(weight.T, side, dim)
        proposal = cls((1 - FLOOR) * mass / mass.sum(-1, keepdim=True) + FLOOR / side**dim, side, dim)
        for _ in range(2):
            shift = torch.rand(1, columns, dim, device=device, dtype=dtype, generator=generator)
            u, log_g = proposal.push((_sobol(budget, dim, generator, dtype) + shift).frac())
            weight = tempered_weights(log_ratio(u) - log_g, CELL_TARGET).mean(0)
            proposal = proposal._refined(u, weight * budget)
        return proposal

    def place(self, truth: Tensor, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`samples` points of which one, chosen at random, is the truth with coordinates `(C, D)`.

        Returns:
            The points u with shape `(samples, C, D)`, log g of them with shape `(samples, C)` and of the truth with
            shape `(C,)`, and the index of the point that is the truth, with shape `(C,)`.
        """
        points = _sobol(samples, self.dim, generator, truth.dtype)
        home = torch.randint(samples, truth.shape[:1], device=truth.device, generator=generator)
        position, truth_log_g = self.pull(truth)
        u, log_g = self.push((points - points[:, 0][home] + position).remainder(1))
        return u, log_g, truth_log_g, home

    def push(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Points u and log g(u) from uniform y, each with shape `(P, C, D)` (and `(P, C)`)."""
        t = y[..., 0].double().T.contiguous()
        cell = torch.searchsorted(self.cumulative, t, right=True).clamp_max(self.cumulative.shape[-1] - 1)
        mass = self.mass.gather(1, cell)
        first = ((t - self.cumulative.gather(1, cell) + mass) / mass).clamp(0, 1)
        inside = torch.cat([first.unsqueeze(-1), y[..., 1:].double().transpose(0, 1)], -1)
        strides = self.side ** torch.arange(self.dim - 1, -1, -1, device=cell.device)
        u = (cell.unsqueeze(-1) // strides % self.side + inside) / self.side
        return u.transpose(0, 1).to(y.dtype), (mass.log() + self.dim * math.log(self.side)).T.to(y.dtype)

    def pull(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """y with push(y) = u, with shape `(C, D)`, and log g(u), with shape `(C,)`."""
        scaled = u.double() * self.side
        corner = scaled.floor().clamp(0, self.side - 1)
        cell = _flat(corner.long(), self.side).unsqueeze(-1)
        mass = self.mass.gather(1, cell).squeeze(-1)
        inside = (scaled - corner).clamp(0, 1)
        first = self.cumulative.gather(1, cell).squeeze(-1) - mass * (1 - inside[:, 0])
        y = torch.cat([first.unsqueeze(-1), inside[:, 1:]], -1)
        return y.to(u.dtype), (mass.log() + self.dim * math.log(self.side)).to(u.dtype)

    def _refined(self, u: Tensor, weight: Tensor) -> CellProposal:
        """The proposal on cells finer by a factor, from weights `(P, C)`, 1 on average, of points `(P, C, D)`."""
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
    """Averages over each cell and its neighbours, with shape `(C, side^D)`."""
    grid = mass.reshape(-1, 1, *[side] * dim)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dim - 1]
    return pool(grid, 3, 1, 1).reshape(mass.shape)
