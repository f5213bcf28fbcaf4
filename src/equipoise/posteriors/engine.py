r"""Weighted points of a density that is known by its log-ratio: the one engine behind draws, normalisers and ranks.

A log-ratio f and a prior p define, for an exponent t in (0, 1],

.. math:: q_t(θ|x) = p(θ)\, e^{t f(θ, x)} / Z_t(x), \qquad Z_t(x) = \int e^{t f(θ,x)} p(θ)\,dθ.

f is any function of θ and x: a classifier's output, a flow's log density minus the log prior, or the log-ratio of a
mixture. A strategy gives points with weights for each observation, and everything else is read off them:

- *cells* (`cells`): one or two parameters and a prior with a map to the unit cube. f is interpolated on adaptive cells.
- *adapted proposal* (`proposals`): importance sampling, from the prior or from Gaussians learnt from the weights.
- *particles* (`particles`): tempered sequential Monte Carlo, and importance sampling around the particles.

`weighted_points` takes cells where there are any and the adapted proposal elsewhere. Where these do not resolve a
posterior (it is too thin for cells, or the effective sample size is below `TRUSTED_ESS`) it takes particles. If
these do not resolve it either, the particles' own estimate is used, and the result is marked as `rough`.

Every column of the result depends on its own observation alone, and nothing is drawn at random between calls: the same
x gives the same Z.
"""

from __future__ import annotations

__all__ = ["TRUSTED_ESS", "draw_points", "weighted_points"]

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.errors import warn

from .cells import fits_cells, make_cells, sample_cells
from .particles import run_particles
from .proposals import adapted, around
from .weighted import LogRatio, WeightedPoints, effective_size

#: Importance sampling is trusted down to this effective sample size: the standard error of log Z is then below 0.07.
TRUSTED_ESS = 200.0
#: Down to this one, draws around particles are better than the particles' own estimate of Z.
USEFUL_ESS = 30.0
#: Of two equal peaks, particles with this effective sample size have lost one with a probability of 2⁻¹⁹.
MIN_PARTICLE_ESS = 20.0
#: Particles estimate log Z to about 0.5 in ten dimensions: an estimate around them that is further off is in doubt.
MAX_LOG_Z_GAP = 2.5
#: Tempered particles: at least this many.
PARTICLES = 1024


def tempered_ratio(log_ratio: LogRatio, t: float) -> LogRatio:
    """t · f."""
    if not 0 < t <= 1:
        raise ValueError(f"t lies in (0, 1], got {t}")
    return log_ratio if t == 1 else lambda theta, x: t * log_ratio(theta, x)


@torch.no_grad()
def weighted_points(
    log_ratio: LogRatio, x: Any, prior: Prior, like: Tensor, *, t: float = 1.0, quick: bool = False
) -> WeightedPoints:
    """Weighted points of p(θ) exp(t f(θ, x)), by the first strategy that resolves it.

    Arguments:
        log_ratio: f, from θ with shape `(M or 1, P, B, D)` and x to `(M, P, B)`; called for some of the observations
            at a time.
        x: B observations, or features of them, along the first axis.
        prior: p.
        like: a tensor of the dtype and device wanted.
        t: the exponent, in (0, 1].
        quick: with three parameters and more, learn Gaussians before particles are tried. It takes a tenth of the
            evaluations, and may lose one of several narrow peaks without noticing.
    """
    f = tempered_ratio(log_ratio, t)
    if fits_cells(prior):
        cells = make_cells(f, x, prior, like)
        theta, ess = prior.from_uniform(cells.u), effective_size(cells.log_mass)
        found = WeightedPoints(theta, cells.log_mass, cells.log_z, ess, torch.zeros_like(cells.thin))
        doubtful = cells.thin
    else:
        found = adapted(f, x, prior, like, TRUSTED_ESS, learn=quick)
        doubtful = ~(found.ess >= TRUSTED_ESS)
    columns = doubtful.any(0).nonzero().squeeze(1)
    if len(columns) == 0:
        return found
    return found.replaced(particle_points(f, x[columns], prior, like), columns, doubtful[:, columns])


def particle_points(log_ratio: LogRatio, x: Any, prior: Prior, like: Tensor) -> WeightedPoints:
    """Points around tempered particles, or the particles themselves where these points do not fit the posterior."""
    smc = run_particles(log_ratio, x, prior, PARTICLES, seed=0, like=like)
    found = around(log_ratio, x, prior, smc.z_first, TRUSTED_ESS)
    agree = (found.log_z - smc.log_z).abs() < MAX_LOG_Z_GAP
    found.rough = ~((found.ess >= TRUSTED_ESS) & (smc.ess >= MIN_PARTICLE_ESS) & smc.finished & agree)
    log_w = (smc.log_z - math.log(PARTICLES)).unsqueeze(1).expand(smc.theta.shape[:-1])
    own = WeightedPoints(smc.theta, log_w, smc.log_z, smc.ess, found.rough)
    everything = torch.arange(len(x), device=like.device)
    return found.replaced(own, everything, ~(found.ess >= USEFUL_ESS))


@torch.no_grad()
def draw_points(
    log_ratio: LogRatio,
    x: Any,
    prior: Prior,
    n: int,
    generator: torch.Generator,
    seed: int,
    like: Tensor,
    *,
    t: float = 1.0,
) -> tuple[Tensor, dict[str, Any]]:
    """n draws of each density p(θ) exp(t f(θ, x)) / Z_t(x) for each x: from cells, and by particles elsewhere.

    Arguments:
        n: how many.
        generator: of the random numbers.
        seed: of the particles, where they are needed.
        log_ratio, x, prior, like, t: as in `weighted_points`.

    Returns:
        θ with shape `(M, n, B, D)`, and how good they are: the sampler, and its acceptance or effective sample size.
    """
    f = tempered_ratio(log_ratio, t)
    if not fits_cells(prior):
        theta, ess = _draw_particles(f, x, prior, n, generator, seed, like)
        size, worst = theta.shape[1], float(ess.min())
        if worst < 0.1 * n:
            warn(
                f"the sampler's effective sample size is {worst:.0f} of {size} draws for at least one observation; "
                "treat these draws with care"
            )
        return theta, {"sampler": "tempered sequential Monte Carlo", "ess": worst}
    cells = make_cells(f, x, prior, like)
    theta, acceptance = sample_cells(cells, f, x, prior, n, generator)
    columns = cells.thin.any(0).nonzero().squeeze(1)
    if len(columns) > 0:
        better, _ = _draw_particles(f, x[columns], prior, n, generator, seed, like)
        thin = cells.thin[:, columns]
        theta[:, :, columns] = torch.where(thin[:, None, :, None], better, theta[:, :, columns])
        acceptance[:, columns] = torch.where(thin, 1.0, acceptance[:, columns])
    return theta, {"sampler": "cells and Metropolis", "acceptance": float(acceptance.min())}


def _draw_particles(
    f: LogRatio, x: Any, prior: Prior, n: int, generator: torch.Generator, seed: int, like: Tensor
) -> tuple[Tensor, Tensor]:
    """n particles, with shape `(M, n, B, D)`, and how many of them are effective, with shape `(M, B)`."""
    size = max(PARTICLES, n)
    found = run_particles(f, x, prior, size, seed, like)
    keep = torch.randperm(size, generator=generator, device=like.device)[:n]
    return found.theta[:, keep], found.ess * n / size
