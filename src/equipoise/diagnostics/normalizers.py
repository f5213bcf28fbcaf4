r"""Normalisers and entropies of classifiers where the points of a rank are too few for them.

A rank from weighted points is right for any number of them (`ranks`); a normaliser is not. \(\log \hat Z = \log
\frac1S \sum_i w_i\) is off by about \(\pm 1/(2E)\) with E effective points, and without bound where a proposal has
missed the mass: then all weight is on one point, and in a set that holds θ* that one is θ* itself. The entropy, a mean
over the same weights, fails with it.

So where E is below `TRUSTED`, or below an eighth of the points where those are few, both come from draws that are
made for the purpose, with three parameters and more. (With fewer there are cells, which need no points; see
`measure`.) First comes a second look: a Gaussian learnt in many rounds, which approaches a narrow posterior from afar
(`proposals`), and more points; it takes 13,000 evaluations. What it does not resolve either is sampled by tempered
particles (`Surrogate.particles`), a hundred thousand evaluations and more. With Z(x) known, the entropy of a member is
the mean of -log q over its own draws, and that of a mixture the mean over the draws of all members.

Whether a pair is trusted is read off the whole set of points, θ* among them, and never off which of them is θ*: given
the set, θ* is still its k-th point with probability ∝ w_k, and the ranks of a mixture, whose density contains the
normalisers, stay as uniform as they were.
"""

from __future__ import annotations

__all__ = ["FROM_DRAWS", "FROM_FEW", "FROM_POINTS", "Better", "as_they_are", "better"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .proposals import GaussianProposal
from .ranks import effective_size
from .surrogates import PARTICLES, Surrogate

#: A normaliser from this many effective points is off by 0.0025 on average; it is trusted.
TRUSTED = 200.0
#: Of few points, which are not asked for to be precise, this share has to be effective.
SHARE = 0.125
#: Up to this many parameters nothing is drawn.
CELLS_DIM = 2
#: Points of the second look, and rounds in which it is learnt.
POINTS, ROUNDS = 2048, 20
#: Effective points of a round: with few of them one of two peaks may be lost.
TARGET = 64.0
#: How much less memory a particle takes than an evaluation is taken to need.
PARTICLES_AN_EVALUATION = 8

#: Where a normaliser comes from: enough points, draws made for it, or too few points where there are no such draws.
FROM_POINTS, FROM_DRAWS, FROM_FEW = 0.0, 1.0, 2.0


class Better(NamedTuple):
    """Normalisers and entropies, for K = M members and, where there are several, their mixture."""

    #: Where they come from, with shape `(K, B)`.
    source: Tensor
    #: log Z, with shape `(M, B)`.
    log_normalizer: Tensor
    #: With shape `(K, B)`; NaN where that of the points is to be taken.
    entropy: Tensor


def as_they_are(log_weight: Tensor) -> Better:
    """log Z from weights with shape `(M, S, B)`, whatever they are."""
    log_z = log_weight.logsumexp(1) - math.log(log_weight.shape[1])
    everyone = torch.cat([log_z, log_z[:1]])[: len(log_z) + (len(log_z) > 1)]
    return Better(torch.full_like(everyone, FROM_POINTS), log_z, torch.full_like(everyone, math.nan))


def better(s: Surrogate, x: Tensor, log_weight: Tensor, generator: torch.Generator, limit: int) -> Better:
    """log Z from weights with shape `(M, S, B)`, and from draws made for it where these are too few, with the entropy.

    Arguments:
        s: a classifier.
        x: with shape `(B, *x_shape)`; or of fewer observations, which repeat (`Apart`).
        log_weight: of the points, θ* among them.
        generator: of the random numbers.
        limit: how many evaluations of a member one call may ask for.
    """
    members, points, pairs = log_weight.shape
    source, log_z, entropy = as_they_are(log_weight)
    kinds = len(source)
    few = effective_size(log_weight) < min(TRUSTED, SHARE * points)
    source = torch.where(torch.cat([few, few.any(0, keepdim=True)])[:kinds], FROM_FEW, source)
    # A member that has diverged cannot be sampled.
    wanted = few.any(0) & log_z.isfinite().all(0) & (s.prior is not None and s.prior.dim > CELLS_DIM)
    copies = pairs // len(x)
    size = max(1, PARTICLES_AN_EVALUATION * limit // (PARTICLES * members * copies))
    for way in (_from_a_second_look, _from_particles):
        columns = wanted.view(copies, -1).any(0).nonzero().squeeze(1)
        for some in columns.split(size) if len(columns) else ():
            found = way(s, x[some], copies * len(some), generator, limit, log_z)
            if found is None:
                break
            rows = (some + len(x) * torch.arange(copies, device=some.device).unsqueeze(1)).flatten()
            good = wanted[rows] & found[0].isfinite().all(0) & found[1].isfinite().all(0)
            use = few[:, rows] & good
            log_z[:, rows] = torch.where(use, found[0], log_z[:, rows])
            use = torch.cat([use, use.any(0, keepdim=True)])[:kinds]
            entropy[:, rows] = torch.where(use, found[1], entropy[:, rows])
            source[:, rows] = torch.where(use, FROM_DRAWS, source[:, rows])
            wanted[rows] &= ~good
    return Better(source, log_z, entropy)


def _from_a_second_look(
    s: Surrogate, x: Tensor, pairs: int, generator: torch.Generator, limit: int, like: Tensor
) -> tuple[Tensor, Tensor] | None:
    """log Z with shape `(M, B)` and entropies with shape `(K, B)`, NaN where a Gaussian does not fit either."""
    prior = s.prior
    if prior is None or not prior.has_normal_map:
        return None
    height = max(1, limit // (len(like) * pairs))

    def log_ratio(u: Tensor) -> Tensor:
        return torch.cat([s.log_ratio(prior.from_uniform(part), x) for part in u.split(height)], 1)

    proposal = GaussianProposal.learn(log_ratio, pairs, prior.dim, POINTS, generator, like.dtype, ROUNDS, TARGET)
    z = proposal.draw(POINTS, generator)
    ratio, log_g = log_ratio(torch.special.ndtr(z)), proposal.log_density(z)
    log_z = (ratio - log_g).logsumexp(1) - math.log(POINTS)
    log_z = torch.where(effective_size(ratio - log_g) >= TRUSTED, log_z, math.nan)
    log_q = ratio - log_z.unsqueeze(1)
    if len(log_q) > 1:
        log_q = torch.cat([log_q, log_q.logsumexp(0, keepdim=True) - math.log(len(log_q))])
    log_prior = s.log_prior(prior.from_uniform(torch.special.ndtr(z)))
    return log_z, -((log_q - log_g).softmax(1) * (log_q + log_prior)).sum(1)


def _from_particles(
    s: Surrogate, x: Tensor, pairs: int, generator: torch.Generator, limit: int, like: Tensor
) -> tuple[Tensor, Tensor] | None:
    """log Z with shape `(M, B)` and entropies with shape `(K, B)`; None for what cannot be sampled."""
    drawn = s.particles(x, generator, like)
    if drawn is None:
        return None
    log_z, theta = drawn
    members, n = theta.shape[:2]
    height = max(1, limit // (members * pairs))
    rows = theta.flatten(0, 1)
    ratio = torch.cat([s.log_ratio(part, x) for part in rows.split(height)], 1)
    log_q = ratio - log_z.unsqueeze(1)
    own = torch.stack([log_q[m, m * n : (m + 1) * n] for m in range(members)])
    log_prior = s.log_prior(rows)
    entropy = -(own + log_prior.unflatten(0, (members, n))).mean(1)
    if members > 1:
        mixture = log_q.logsumexp(0) - math.log(members) + log_prior
        entropy = torch.cat([entropy, -mixture.mean(0, keepdim=True)])
    return log_z, entropy
