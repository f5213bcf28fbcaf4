r"""A second look at a normaliser: importance sampling around particles.

Tempered particles (`tempered`) estimate Z(x) by a product over stages, each of which adds its noise: with a thousand
particles log Z is off by 0.1 for a posterior fifty times narrower than the prior in three dimensions, and by 0.5 in
ten. As a sample of the posterior the same particles are good enough to learn a proposal from. With z the particles'
coordinates, in which the prior has the density p(z), with μ and Σ their mean and covariance, and

.. math:: g(z) = \tfrac12 N(z; μ, Σ) + \tfrac14 N(z; μ, 4Σ) + \tfrac14 p(z),
          \qquad \hat Z = \frac1S \sum_i \frac{p(z_i)\, e^{h(z_i)}}{g(z_i)}, \quad z_i \sim g,

the error of \(\log \hat Z\) is that of one mean. The second part is for tails, the third for mass that the particles
have missed: no weight exceeds 4 e^h. Each part has its share of the points exactly, scrambled Sobol points where it has
quantiles. The effective sample size of the weights tells how good the estimate is. Where it is small, μ and Σ are
learnt anew from the weighted points, and there are four times as many of them. A posterior of several narrow peaks, or
along a thin curve, may stay out of a Gaussian's reach; then its effective sample size stays small.

A peak that the particles have lost is not found again. That it may have happened is seen in the particles' own
effective sample size: few ancestors, and moves that do not lead from one peak to another.
"""

from __future__ import annotations

__all__ = ["second_look"]

import math

import torch
from torch import Tensor

from equipoise.priors import Prior

from .tempered import Density, effective_weights, prior_points

#: Points of each round, of which a half, a quarter and a quarter are those of the three parts. Rounds after the first
#: are for what it has not resolved.
ROUNDS = (1 << 12, 1 << 14, 1 << 14)
#: How many times wider the second part is than the first.
WIDE = 2.0
#: The effective number of weighted points, for each parameter, from which a proposal is learnt anew.
LEARN_FROM = 16.0


def second_look(density: Density, prior: Prior, particles: Tensor, enough: float) -> tuple[Tensor, Tensor]:
    """log Z(x) and the effective number of points behind it, each with shape `(M, B)`.

    The same points serve every member and observation, and no column depends on another.

    Arguments:
        density: log p and h of z with shape `(M, S, B, D)`, each with shape `(M, S, B)`.
        prior: the prior.
        particles: z with shape `(M, N, B, D)`.
        enough: an effective number of points that needs no further round.
    """
    members, _, batch, dim = particles.shape
    points = particles.double()
    weights = points.new_full(points.shape[:-1], 1 / points.shape[1])
    log_z = points.new_full((members, batch), -math.inf)
    ess = torch.zeros_like(log_z)
    for n in ROUNDS:
        mean, factor = _moments(points, weights)
        noise = _noise(n // 2, n // 4, dim).to(points)
        broad = prior_points(prior, n // 4, particles)
        broad = (prior.to_normal(broad) if prior.has_normal_map else broad).view(1, -1, 1, dim)
        local = mean.unsqueeze(1) + torch.einsum("mbij,nj->mnbi", factor, noise)
        # The points are those that the network sees, rounded; the density of rounded points is what counts.
        z = torch.cat([local.to(particles), broad.expand(members, -1, batch, -1)], 1)
        log_prior, h = (value.double() for value in density(z))
        if prior.has_normal_map:
            log_prior = log_prior - 0.5 * dim * math.log(2 * math.pi)
        points = z.double()
        log_g = _log_proposal(points, log_prior, mean, factor)
        log_w = (log_prior + h - log_g).nan_to_num(nan=-math.inf)
        found, size = torch.logsumexp(log_w, 1) - math.log(n), effective_weights(log_w)
        better = (ess < enough) & (size > ess)
        log_z, ess = torch.where(better, found, log_z), torch.where(better, size, ess)
        if bool((ess >= enough).all()):
            break
        weights = _tempered_weights(log_w, LEARN_FROM * dim)
    return log_z.to(particles), ess.to(particles)


def _noise(narrow: int, wide: int, dim: int) -> Tensor:
    """Quasi-random standard normal vectors, and wider ones, with shape `(narrow + wide, D)`."""
    u = torch.quasirandom.SobolEngine(dim, scramble=True, seed=20230422).draw(narrow + wide, dtype=torch.float64)
    noise = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9))
    noise[narrow:] *= WIDE
    return noise


def _moments(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `(M, B, D)` and Cholesky factor of the covariance `(M, B, D, D)` of weighted points, in double precision."""
    mean = (weights.unsqueeze(-1) * points).sum(1)
    centred = points - mean.unsqueeze(1)
    covariance = torch.einsum("mnb,mnbi,mnbj->mbij", weights, centred, centred)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    ridge = torch.diag_embed(1e-6 * variance + 1e-20)
    factor, failed = torch.linalg.cholesky_ex(covariance + ridge)
    # Points in a plane, up to rounding: their variances alone.
    alone = torch.diag_embed((variance + 1e-20).sqrt())
    return mean, torch.where((failed > 0)[..., None, None], alone, factor)


def _log_proposal(z: Tensor, log_prior: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """log g(z), with shape `(M, S, B)`."""
    dim = z.shape[-1]
    centred = (z - mean.unsqueeze(1)).permute(0, 2, 3, 1)
    square = torch.linalg.solve_triangular(factor, centred, upper=False).square().sum(2).transpose(1, 2)
    log_volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).unsqueeze(1) + 0.5 * dim * math.log(2 * math.pi)
    narrow = -0.5 * square - log_volume + math.log(0.5)
    wide = -0.5 * square / WIDE**2 - log_volume - dim * math.log(WIDE) + math.log(0.25)
    return torch.logsumexp(torch.stack([narrow, wide, log_prior + math.log(0.25)]), 0)


def _tempered_weights(log_w: Tensor, target: float) -> Tensor:
    """Normalised weights w^β with the largest power of ½ as β that keeps `target` effective points, `(M, S, B)`."""
    best = torch.softmax(log_w * 0.5**10, 1)
    for power in range(9, -1, -1):
        tried = log_w * 0.5**power
        best = torch.where(effective_weights(tried).unsqueeze(1) >= target, torch.softmax(tried, 1), best)
    return best
