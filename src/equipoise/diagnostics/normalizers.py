r"""Normalisers and entropies of classifiers where the points of a rank are too few for them.

A rank from weighted points is right for any number of them (`ranks`); a normaliser is not. \(\log \hat Z = \log
\frac1P \sum_i w_i\) is off by about \(\pm 1/(2E)\) with E effective points, and without bound where a proposal has
missed the mass: then all weight is on one point, and in a set that holds θ* that one is θ* itself. The entropy, a mean
over the same weights, fails with it.

So where E is below `TRUSTED_ESS`, or below an eighth of the points where those are few, both come from weighted points
made for the purpose (`equipoise.posteriors.engine`), with three parameters and more. (With fewer there are cells, which
need no points; see `pair_statistics`.) With Z(x) known, the entropy of a member is the mean of -log q over its own
points, and that of a mixture the mean over the points of all members.

Whether a pair is trusted is read off the whole set of points, θ* among them, and never off which of them is θ*: given
the set, θ* is still its k-th point with probability ∝ w_k, and the ranks of a mixture, whose density contains the
normalisers, stay as uniform as they were.
"""

from __future__ import annotations

__all__ = ["FROM_FEW", "FROM_MORE", "FROM_POINTS", "Normalizers", "from_points", "refine_normalizers"]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.posteriors.engine import TRUSTED_ESS, WeightedPoints, weighted_points
from equipoise.posteriors.particles import systematic
from equipoise.posteriors.proposals import POINTS
from equipoise.posteriors.weighted import effective_size

from .surrogates import Surrogate

#: Of few points, which are not asked for to be precise, this share has to be effective.
SHARE = 0.125
#: Up to this many parameters nothing is refined.
CELLS_DIM = 2
#: Equally weighted points of each member at which it is compared with the mixture.
COMPARED = 512
#: How much less memory a point takes than an evaluation is taken to need.
POINTS_PER_EVALUATION = 32

#: Where a normaliser comes from: enough points, points made for it, or too few points where none can be made.
FROM_POINTS, FROM_MORE, FROM_FEW = 0.0, 1.0, 2.0


class Normalizers(NamedTuple):
    """Normalisers and entropies, for K = M members and, where there are several, their mixture."""

    #: Where they come from, with shape `(K, B)`.
    source: Tensor
    #: log Z, with shape `(M, B)`.
    log_z: Tensor
    #: With shape `(K, B)`; NaN where that of the points is to be taken.
    entropy: Tensor


def from_points(log_w: Tensor) -> Normalizers:
    """log Z from weights with shape `(M, P, B)`, whatever they are."""
    log_z = log_w.logsumexp(1) - math.log(log_w.shape[1])
    everyone = torch.cat([log_z, log_z[:1]])[: len(log_z) + (len(log_z) > 1)]
    return Normalizers(torch.full_like(everyone, FROM_POINTS), log_z, torch.full_like(everyone, math.nan))


def refine_normalizers(s: Surrogate, x: Any, log_w: Tensor, limit: int) -> Normalizers:
    """log Z from weights with shape `(M, P, B)`, and from points made for it where these are too few, with the entropy.

    Arguments:
        s: a classifier.
        x: what its members read of the observations, along the first axis.
        log_w: of the points, θ* among them.
        limit: how many evaluations of a member one call may ask for.
    """
    members, points, _ = log_w.shape
    source, log_z, entropy = from_points(log_w)
    few = effective_size(log_w) < min(TRUSTED_ESS, SHARE * points)
    source = torch.where(_with_mixture(few), FROM_FEW, source)
    if s.prior is None or s.prior.dim <= CELLS_DIM or not (s.own_points or members == 1):
        return Normalizers(source, log_z, entropy)
    # A member that has diverged cannot be sampled.
    columns = (few.any(0) & log_z.isfinite().all(0)).nonzero().squeeze(1)
    size = max(1, POINTS_PER_EVALUATION * limit // (POINTS * members))
    for some in columns.split(size) if len(columns) else ():
        found = weighted_points(s.in_pieces(limit), x[some], s.prior, log_w, quick=True)
        more = _entropies(s, x[some], found, limit)
        good = few[:, some] & found.log_z.isfinite().all(0) & more.isfinite().all(0)
        log_z[:, some] = torch.where(good, found.log_z, log_z[:, some])
        good = _with_mixture(good)
        entropy[:, some] = torch.where(good, more, entropy[:, some])
        source[:, some] = torch.where(good, FROM_MORE, source[:, some])
    return Normalizers(source, log_z, entropy)


def _with_mixture(which: Tensor) -> Tensor:
    """The mixture, of several members, is concerned where one of them is: `(K, B)` from `(M, B)`."""
    return torch.cat([which, which.any(0, keepdim=True)]) if len(which) > 1 else which


def _entropies(s: Surrogate, x: Any, found: WeightedPoints, limit: int) -> Tensor:
    """Of members, each over its own points, and of their mixture; with shape `(K, B)`.

    That of the mixture is the mean of the members' and of log q - log q_mix over the points of each, of which
    `COMPARED` are enough: where members agree the difference is 0.
    """
    log_ratio, members, dim = s.in_pieces(limit), len(found.theta), found.theta.shape[-1]
    share = found.log_w.softmax(1)
    log_q = log_ratio(found.theta, x) - found.log_z.unsqueeze(1) + s.log_prior(found.theta)
    entropy = -torch.where(share > 0, share * log_q, 0.0).sum(1)
    if members == 1:
        return entropy
    picks = systematic(share.double(), 0.5, COMPARED)
    theta = found.theta.gather(1, picks.unsqueeze(-1).expand(-1, -1, -1, dim))
    ratios = (log_ratio(theta.flatten(0, 1).unsqueeze(0), x) - found.log_z.unsqueeze(1)).unflatten(1, (members, -1))
    own = torch.stack([ratios[m, m] for m in range(members)])
    gap = own - (ratios.logsumexp(0) - math.log(members))
    return torch.cat([entropy, (entropy + gap.mean(1)).mean(0, keepdim=True)])
