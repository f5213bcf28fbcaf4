r"""Tempered sequential Monte Carlo: particles that follow a density from the prior to the posterior.

Particles start at the prior and follow \(p(θ) e^{β h(θ, x)}\) from β = 0 to 1. Each stage raises β
as far as keeps the effective sample size of the incremental weights at half of the particles (by bisection), resamples
systematically, and moves the particles by random-walk Metropolis steps with their own covariance, scaled by
\(2.38/\sqrt{D}\) and tuned towards an acceptance of 0.25. The product of the stages' mean weights estimates Z(x). At
β = 1 the moves go on until the particles' effective sample size is at least half their number. Every second of them is
then a leap: a proposal z' from q = N(μ, 1.44 Σ), with the particles' mean and covariance after resampling, accepted
with \(\min\{1, π(z') q(z) / π(z) q(z')\}\). Where the posterior is about Gaussian a leap forgets at once what a walk
takes tens of steps to; elsewhere half of the moves are lost.

**Effective sample size.** Particles that descend from one ancestor start as copies and become independent as
they move. With \(n_a\) descendants of ancestor a among N particles, \(N_{anc} = N^2/\sum n_a^2\), and with ρ the
correlation of particles before and after all the moves since resampling, \(N_{eff} = N / (1 + ρ (N/N_{anc} - 1))\).
A correlation is seen up to \(1/\sqrt N\), which is not little beside \(N_{anc}/N\). But that of a reversible chain is
at least the square of what it was after half of the moves, and seldom much more. So ρ is this square, or what was seen
at the end less three standard errors, whichever is larger.

The coordinates are z with z ~ N(0, I) under the prior where the prior has that map, and θ itself otherwise. The same
random numbers serve every member and observation, so that what comes out for one x does not depend on what else was
asked for.
"""

from __future__ import annotations

__all__ = ["Density", "Particles", "density_of", "run_particles", "systematic"]

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.randomness import generator as make_generator
from equipoise.support.randomness import isolated

from .weighted import LogRatio, effective_size

MAX_STAGES, MAX_MOVES = 60, 200
#: How many times as wide as the particles a leap's proposal is.
LEAP = 1.2
#: After how many moves at β = 1 the effective sample size is looked at; each but the first is twice the one before, or
#: nearly.
LOOKS = (5, 10, 20, 40, 80, 160, MAX_MOVES)
#: Moves of a stage, but for the last.
MOVES = 8

#: log p and h of z with shape `(M or 1, N, B, D)`, with shapes `(M or 1, N, B)` and `(M, N, B)`.
Density = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclasses.dataclass
class Particles:
    """Equally weighted particles of each member and observation.

    Arguments:
        theta: with shape `(M, N, B, D)`.
        log_z: the estimate of log Z(x), with shape `(M, B)`.
        ess: the effective sample size, with shape `(M, B)`.
        z_first: the particles in the coordinates of `density_of`, with shape `(M, N, B, D)`, as they were after the
            first stage at β = 1 and `MOVES` moves. Moves after that go on for as long as any observation needs them.
        finished: whether they arrived at β = 1, with shape `(M, B)`.
    """

    theta: Tensor
    log_z: Tensor
    ess: Tensor
    z_first: Tensor
    finished: Tensor


def density_of(log_ratio: LogRatio, x: Any, prior: Prior) -> Density:
    """The density in the coordinates z: log p without its constant where z ~ N(0, I), and h.

    Outside the support log p is -inf and h is 0.
    """

    def density(z: Tensor) -> tuple[Tensor, Tensor]:
        if prior.has_normal_map:
            return -0.5 * z.square().sum(-1), log_ratio(prior.from_normal(z), x)
        log_prior = prior.log_prob(z).to(z)
        inside = log_prior.isfinite()
        anchor = torch.where(inside.unsqueeze(-1), z, z.new_zeros(()))
        return log_prior, torch.where(inside, log_ratio(anchor, x), 0.0)

    return density


def run_particles(log_ratio: LogRatio, x: Any, prior: Prior, n: int, seed: int, like: Tensor) -> Particles:
    """Run the sampler for all members and observations at once.

    Arguments:
        log_ratio: h, from θ with shape `(M or 1, N, B, D)` and observations to `(M, N, B)`.
        x: B observations, along the first axis.
        prior: the prior.
        n: the number of particles N.
        seed: of the random numbers, which all members and observations share.
        like: a tensor of the dtype and device wanted.
    """
    generator = make_generator(seed, "tempered", device=like.device)
    mapped, batch = prior.has_normal_map, len(x)
    start = torch.randn(n, prior.dim, generator=generator, device=like.device, dtype=like.dtype)
    if not mapped:
        with isolated(seed):
            start = prior.sample((n,)).to(like)
    z = start[None, :, None, :].expand(1, n, batch, prior.dim)
    density = density_of(log_ratio, x, prior)
    log_prior, h = density(z)
    members = len(h)
    shape = (members, n, batch, prior.dim)
    z, log_prior = z.expand(shape), log_prior.expand(h.shape)
    first = z
    beta = like.new_zeros(members, batch)
    log_z = like.new_zeros(members, batch)
    scale = like.new_full((members, batch), 2.38 / math.sqrt(prior.dim))
    ancestors = torch.arange(n, device=like.device).view(1, n, 1).expand(members, n, batch)
    ess = like.new_full((members, batch), float(n))

    last = True
    for _ in range(MAX_STAGES):
        if bool((beta >= 1).all()):
            break
        step = _next_step(h, 1 - beta, n / 2)
        weights = step.unsqueeze(1) * h
        log_z = log_z + torch.logsumexp(weights, 1) - math.log(n)
        arrived = beta >= 1
        beta = torch.where(beta + step > 1 - 1e-6, 1.0, beta + step)
        offset = torch.rand((), generator=generator, device=like.device, dtype=torch.float64)
        picks = systematic(torch.softmax(weights.double(), 1), offset, n)
        z = z.gather(1, picks.unsqueeze(-1).expand(shape))
        log_prior, h, ancestors = (t.gather(1, picks) for t in (log_prior, h, ancestors))
        before = z.clone()
        last = bool((beta >= 1).all())
        factor, centre = _cholesky(z), z.mean(1, keepdim=True)
        half = z
        for move in range(MAX_MOVES if last else MOVES):
            leap = (beta >= 1) & (move % 2 == 1)
            noise = torch.randn(n, prior.dim, generator=generator, device=like.device, dtype=like.dtype)
            toss = torch.rand(n, generator=generator, device=like.device, dtype=like.dtype).log()
            jump = torch.einsum("mbij,nj->mnbi", factor, noise)
            walk = z + jump * scale[:, None, :, None]
            other = torch.where(leap[:, None, :, None], centre + LEAP * jump, walk) if move % 2 else walk
            other_prior, other_h = density(other)
            gain = other_prior - log_prior + beta.unsqueeze(1) * (other_h - h)
            if move % 2:
                back = torch.linalg.solve_triangular(factor, (z - centre).permute(0, 2, 3, 1), upper=False)
                turn = 0.5 * (noise.square().sum(-1)[None, :, None] - back.square().sum(2).mT / LEAP**2)
                gain = gain + torch.where(leap.unsqueeze(1), turn, 0.0)
            accept = toss[None, :, None] < gain
            z = torch.where(accept.unsqueeze(-1), other, z)
            log_prior = torch.where(accept, other_prior, log_prior)
            h = torch.where(accept, other_h, h)
            rate = accept.to(like.dtype).mean(1)
            scale = torch.where(leap, scale, scale * (rate - 0.25).exp().clamp(0.5, 2.0))
            if move == MOVES - 1:
                first = torch.where(arrived[:, None, :, None], first, z)
            if last and move + 1 in LOOKS:
                ess = _effective(ancestors, before, half, z)
                half = z
                if bool((ess >= n / 2).all()):
                    break
    if not last:
        ess = _effective(ancestors, before, z, z)
    return Particles(prior.from_normal(z) if mapped else z, log_z, ess, first, beta >= 1)


def _next_step(h: Tensor, room: Tensor, target: float) -> Tensor:
    """The largest increase of β, at most `room`, that keeps the effective sample size at `target`; shape `(M, B)`."""
    low, high = torch.zeros_like(room), room
    enough = effective_size(room.unsqueeze(1) * h) >= target
    for _ in range(40):
        middle = (low + high) / 2
        good = effective_size(middle.unsqueeze(1) * h) >= target
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return torch.where(enough, room, low)


def systematic(weights: Tensor, offset: Tensor | float, n: int) -> Tensor:
    """Systematic resampling along dimension 1: indices with shape `(M, n, B)` from weights with shape `(M, P, B)`.

    Arguments:
        weights: not negative; their sum is taken to be 1.
        offset: a number in [0, 1).
        n: how many.
    """
    cumulative = weights.transpose(1, 2).cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]
    ticks = (torch.arange(n, device=weights.device, dtype=weights.dtype) + offset) / n
    picks = torch.searchsorted(cumulative.contiguous(), ticks.expand(*cumulative.shape[:2], n).contiguous(), right=True)
    return picks.clamp(max=weights.shape[1] - 1).transpose(1, 2)


def _cholesky(z: Tensor) -> Tensor:
    """The Cholesky factor of the particles' covariance, with shape `(M, B, D, D)`."""
    centred = z - z.mean(1, keepdim=True)
    covariance = torch.einsum("mnbi,mnbj->mbij", centred, centred) / z.shape[1]
    size = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    return torch.linalg.cholesky(covariance + (1e-4 * size + 1e-12) * eye)


def _effective(ancestors: Tensor, before: Tensor, half: Tensor, after: Tensor) -> Tensor:
    """The effective sample size of moved particles, with shape `(M, B)` (see the module).

    Arguments:
        ancestors: the particles' numbers at the prior, with shape `(M, N, B)`.
        before: z before the moves, with shape `(M, N, B, D)`.
        half: after half of them.
        after: after all of them.
    """
    n = ancestors.shape[1]
    counts = torch.zeros_like(ancestors, dtype=after.dtype).scatter_add(1, ancestors, torch.ones_like(after[..., 0]))
    lineages = n**2 / counts.square().sum(1)
    a = before - before.mean(1, keepdim=True)

    def correlation(z: Tensor) -> Tensor:
        b = z - z.mean(1, keepdim=True)
        return (a * b).mean(1) / (a.square().mean(1).sqrt() * b.square().mean(1).sqrt() + 1e-30)

    # The largest of D correlations: what chance alone makes of it is taken off.
    foreseen, seen = correlation(half).square() - 3 / n, correlation(after) - 3 / math.sqrt(n)
    rho = torch.maximum(foreseen, seen).amax(-1).clamp(0, 1)
    return n / (1 + rho * (n / lineages - 1))
