r"""Classifiers give a ratio and no density: the normaliser Z(x) that makes one of it, and draws.

.. math:: q(θ|x) = p(θ)\, e^{h(θ,x)} / Z(x), \qquad Z(x) = \int e^{h(θ,x)} p(θ)\,dθ.

With one or two parameters both come from cells (`cells`). With more, and for a prior without a map to the cube, Z(x)
comes from quasi-random prior draws and the posterior's draws from tempered particles (`tempered`). The particles also
help with what is too narrow for either estimate: a posterior too thin for cells, or an effective number of prior draws
below `TRUSTED_ESS`. Draws around the particles then give Z(x) (`importance`). If these do not resolve the posterior
either, the particles' own estimate has to do, and a warning says so.
"""

from __future__ import annotations

__all__ = ["draw", "log_z"]

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.networks import Network, Stack
from equipoise.support.errors import warn

from .cells import EVALUATIONS, fits_cells, make_cells, sample_cells
from .importance import second_look
from .ratios import Ratio, by_observation, chunk, ratio_of, some_weights
from .tempered import POINTS, Tempered, density_of, effective_weights, prior_points, tempered_sample

#: A normaliser from prior draws is trusted down to this effective sample size.
TRUSTED_ESS = 200.0
#: Down to this one, draws around particles are better than what the particles say themselves.
USEFUL_ESS = 30.0
#: Of two equal peaks, particles with this effective sample size have lost one with a probability of 2⁻¹⁹.
ANCESTORS = 20.0
#: Tempered particles: at least this many.
PARTICLES = 1024


def log_z(network: Network, stack: Stack, x: Tensor) -> Tensor:
    """log Z(x) of each member, with shape `(M, B)` for x with shape `(B, *x_shape)`."""
    small = fits_cells(network.prior)
    evaluations = EVALUATIONS[network.dim] if small else POINTS
    way = _log_z_from_cells if small else _log_z_from_prior_draws
    both = by_observation(x, stack, evaluations, lambda piece: torch.cat(way(network, stack, piece)))
    found, doubt = both.split(len(some_weights(stack))) if len(x) else (both, both)
    doubtful = int((doubt > 0).any(0).sum())
    if doubtful:
        warn(
            f"the density's normaliser is rough for {doubtful} of {len(x)} observation(s), and log_prob may be off by "
            "some tenths or more, by the same number for every θ: the posterior has several narrow peaks, of which one "
            "may have been missed, or lies along a thin curve. Compare densities of one x only, or train a flow "
            "(method 'bnpe'), which needs no normaliser",
        )
    return found


def _log_z_from_cells(network: Network, stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """log Z(x), and 1 where it is in doubt, each with shape `(M, B)`."""
    cells = make_cells(_ratio(network, stack, x), network.prior, some_weights(stack))
    thin, found = cells.thin, cells.log_normalizer
    doubt = torch.zeros_like(found)
    columns = thin.any(0).nonzero().squeeze(1)
    if len(columns) > 0:
        better, rough = _log_z_from_particles(network, stack, x[columns])
        found = found.index_copy(1, columns, torch.where(thin[:, columns], better, found[:, columns]))
        doubt = doubt.index_copy(1, columns, (thin[:, columns] & rough).to(doubt))
    return found, doubt


def _log_z_from_prior_draws(network: Network, stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """log Z(x), and 1 where it is in doubt, each with shape `(M, B)`."""
    points = prior_points(network.prior, POINTS, some_weights(stack))
    h = network.log_ratio(stack, points.unsqueeze(1), x)
    found = torch.logsumexp(h, 1) - math.log(POINTS)
    few, doubt = effective_weights(h) < TRUSTED_ESS, torch.zeros_like(found)
    narrow = few.any(0)
    if bool(narrow.any()):
        better, rough = _log_z_from_particles(network, stack, x[narrow])
        found[:, narrow] = torch.where(few[:, narrow], better, found[:, narrow])
        doubt[:, narrow] = (few[:, narrow] & rough).to(doubt)
    return found, doubt


def _log_z_from_particles(network: Network, stack: Stack, x: Tensor) -> tuple[Tensor, Tensor]:
    """log Z(x), and whether it is in doubt, each with shape `(M, B)`."""
    ratio, prior, like = _ratio(network, stack, x), network.prior, some_weights(stack)
    particles = tempered_sample(ratio, prior, len(like), len(x), PARTICLES, seed=0, like=like)
    found, ess = second_look(density_of(ratio, prior), prior, particles.z, TRUSTED_ESS)
    rough = ~((ess >= TRUSTED_ESS) & (particles.ess >= ANCESTORS) & particles.finished)
    return torch.where(ess >= USEFUL_ESS, found, particles.log_normalizer), rough


def draw(
    network: Network, stack: Stack, n: int, x: Tensor, generator: torch.Generator, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """n draws of a single member for each x, with shape `(n, B, D)`, and a word on how good they are.

    Arguments:
        network: the architecture.
        stack: the weights of one member.
        n: how many.
        x: with shape `(B, *x_shape)`.
        generator: of the random numbers.
        seed: of the particles, where they are needed.
    """
    way = _draw_from_cells if fits_cells(network.prior) else _draw_particles
    return way(network, stack, n, x, generator, seed)


def _draw_from_cells(
    network: Network, stack: Stack, n: int, x: Tensor, generator: torch.Generator, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    weights, parts, accepted = some_weights(stack), [], 1.0
    for piece in x.split(max(1, chunk(weights.device) // (1 << 13))):
        ratio = _ratio(network, stack, piece)
        cells = make_cells(ratio, network.prior, weights)
        theta, acceptance = sample_cells(cells, ratio, network.prior, n, generator)
        columns = cells.thin[0].nonzero().squeeze(1)
        if len(columns) > 0:
            found = _tempered(network, stack, piece[columns], max(PARTICLES, n), seed)
            keep = torch.randperm(found.theta.shape[1], generator=generator, device=weights.device)[:n]
            theta = theta.index_copy(2, columns, found.theta[:, keep])
            acceptance = acceptance.index_fill(1, columns, 1.0)
        parts.append(theta[0])
        accepted = min(accepted, float(acceptance.min()))
    return torch.cat(parts, 1), {"sampler": "cells and Metropolis", "acceptance": accepted}


def _draw_particles(
    network: Network, stack: Stack, n: int, x: Tensor, generator: torch.Generator, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    particles = max(PARTICLES, n)
    found = _tempered(network, stack, x, particles, seed)
    ess = float(found.ess.min())
    if ess < 0.1 * particles:
        warn(
            f"the sampler's effective sample size is {ess:.0f} of {particles} particles for at least one observation; "
            "treat these draws with care",
        )
    keep = torch.randperm(particles, generator=generator, device=some_weights(stack).device)[:n]
    return found.theta[0][keep], {"sampler": "tempered sequential Monte Carlo", "ess": ess * n / particles}


def _ratio(network: Network, stack: Stack, x: Tensor) -> Ratio:
    return ratio_of(network, stack, network.embed(stack, x.unsqueeze(0)))


def _tempered(network: Network, stack: Stack, x: Tensor, particles: int, seed: int) -> Tempered:
    weights = some_weights(stack)
    return tempered_sample(
        _ratio(network, stack, x), network.prior, len(weights), len(x), particles, seed, like=weights
    )
