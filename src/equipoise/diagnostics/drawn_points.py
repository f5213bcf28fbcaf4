"""Statistics of pairs from draws of a posterior: of each member, or shared by members and mixture."""

from __future__ import annotations

__all__ = ["from_draws", "from_shared_draws"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.posteriors.weighted import effective_size

from .point_statistics import Batch, Densities, PairStatistics, RankPoints, log_mean, statistics_of
from .surrogates import Surrogate, prior_draws

#: Draws of a tempered mixture, which are weighted: so many first tell how many have the effective number that is asked
#: for, and at most so many times that number.
PILOT, MOST_TEMPERED = 32, 8


# --- shared draws ----------------------------------------------------------------------------------------------------


def from_shared_draws(s: Surrogate, b: Batch, n: int, generator: torch.Generator, limit: int) -> list[PairStatistics]:
    """Members and mixture among draws of a q + (1 - a) p."""
    t, prior = s.temperature, s.prior
    assert prior is not None
    rows, log_z = n, b.theta.new_zeros(1, len(b.theta))
    if t < 1:
        # Other draws say how many are needed, so that the number does not depend on those that are used.
        pilot = _shared_draws(s, b, min(n, PILOT), generator, limit)
        log_w = pilot.log_prior + t * (log_mean(pilot.values, s.log_weights) - pilot.log_prior) - pilot.log_g
        share = effective_size(_cut(log_w[:, 2:], pilot.outside)) / (log_w.shape[1] - 2)
        rows = math.ceil(n * min(float(1 / share.median()), MOST_TEMPERED))
    points, own, outside, values, log_prior, raw, log_g = _shared_draws(s, b, rows, generator, limit)
    if bool(values.isnan().any()):  # a member that has diverged would take the others with it
        return from_draws(s, b, n, False, generator, limit, True)
    log_inside = leakage = torch.zeros_like(values[:, 0])
    if outside is not None:
        inside = prior.contains(own).to(values.dtype).mean(1)
        # Half a draw stands for none: a member that has leaked away entirely keeps a finite, and terrible, density.
        log_inside, leakage = inside.clamp_min(0.5 / own.shape[1]).log(), 1 - inside
    whole = log_mean(values - log_inside.unsqueeze(1), s.log_weights)
    if t < 1:
        whole = log_prior + t * (whole - log_prior)

    def weighted(density: Tensor) -> RankPoints:
        log_w = density - log_g
        return RankPoints(points.unsqueeze(0), _cut(log_w[:, 2:], outside), log_w[:, 0])

    mixed = weighted(whole)
    if t < 1:
        assert mixed.log_w is not None
        log_z = mixed.log_w.logsumexp(1) - math.log(rows)
    elif outside is None:
        mixed = RankPoints(mixed.theta)

    def statistics(
        among: RankPoints, density: Tensor, log_z: Tensor, at_truth: Tensor, ratios: Tensor, leakage: Tensor
    ) -> PairStatistics:
        found = Densities(density[:, 2:], density[:, 0], log_z, at_truth, ratios[:, 0], ratios[:, 1], leakage)
        return statistics_of(among, found, b, False, generator)

    ratios = (values - log_prior)[:, :2]
    each = statistics(weighted(values), values, log_inside, values[:, 0], ratios, leakage)
    lost = log_mean(leakage.log(), s.log_weights).exp()
    truth = raw[:, 0] if t == 1 else whole[:, 0] - log_z
    ratios = (whole - log_prior)[:, :2] - log_z.unsqueeze(1)
    return [each, statistics(mixed, whole, log_z, truth, ratios, lost if t == 1 else torch.zeros_like(lost))]


class SharedDraws(NamedTuple):
    """P draws of a q + (1 - a) p for each pair, behind the two θ of the pair, and what the members make of them."""

    #: The draws, with shape `(P, B, D)`, and those of each member behind them, with shape `(M, ·, B, D)`.
    points: Tensor
    own: Tensor
    #: Which of the draws lie outside the prior's support, with shape `(P, B)`; None where none can.
    outside: Tensor | None
    #: log p̂ of the members, `(M, 2 + P, B)`, and of the prior, of the mixture and of the proposal, `(· , 2 + P, B)`.
    values: Tensor
    log_prior: Tensor
    raw: Tensor
    log_g: Tensor


def _shared_draws(s: Surrogate, b: Batch, rows: int, generator: torch.Generator, limit: int) -> SharedDraws:
    """Draws of a q + (1 - a) p, each from a member chosen at random or from the prior; a = 1 where t = 1.

    A larger a than t leaves half of the draws to the members where t is small, and weights that are bounded by 2.
    """
    members, pairs, prior = s.n_members, len(b.theta), s.prior
    assert prior is not None
    a, height = max(s.temperature, 0.5), max(1, limit // (members * pairs))
    source = _chosen(s, (rows, pairs), generator)
    if a < 1:
        coin = torch.rand(source.shape, device=source.device, generator=generator)
        source = torch.where(coin < a, source, members)
    # The k-th point of a pair that is from member m is the k-th draw of that member.
    place = torch.zeros_like(source)
    for m in range(members):
        mine = source == m
        place = torch.where(mine, mine.cumsum(0) - 1, place)
    most = rows if s.can_leak else int(place.max()) + 1
    own = torch.cat([s.draw(min(height, most - done), b.x, generator)[0] for done in range(0, most, height)], 1)
    points = own[source.clamp(max=members - 1), place, torch.arange(pairs, device=own.device)]
    if a < 1:
        others = prior_draws(prior, rows, pairs, generator).to(points)
        points = torch.where((source < members).unsqueeze(-1), points, others)
    outside = ~prior.contains(points) if s.can_leak else None
    # Nothing is evaluated outside the support; what stands in the place of such a draw has no weight.
    at = points if outside is None else torch.where(outside.unsqueeze(-1), b.theta, points)
    theta = torch.cat([torch.stack([b.theta, b.rolled]), at])
    values = torch.cat([s.log_density(part, b.x) for part in theta.split(height)], 1)
    log_prior, raw = s.log_prior(theta), log_mean(values, s.log_weights)
    log_g = raw if a == 1 else torch.logaddexp(raw + math.log(a), log_prior + math.log1p(-a))
    return SharedDraws(points, own, outside, values, log_prior, raw, log_g)


def _cut(log_w: Tensor, outside: Tensor | None) -> Tensor:
    """Log weights, with none outside the prior's support."""
    return log_w if outside is None else log_w.masked_fill(outside, -math.inf)


# --- draws of each member --------------------------------------------------------------------------------------------


def from_draws(
    s: Surrogate, b: Batch, n: int, released: bool, generator: torch.Generator, limit: int, mixture: bool
) -> list[PairStatistics]:
    members, pairs = s.n_members, len(b.theta)
    height = max(1, limit // (members * pairs))
    parts = [s.draw(min(height, n - done), b.x, generator) for done in range(0, n, height)]
    draws, density = torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts], 1)
    inside = s.prior.contains(draws) if s.prior is not None and s.can_leak else None
    share = density.new_ones(members, pairs) if inside is None else inside.to(density.dtype).mean(1)
    leakage = torch.full_like(share, torch.nan) if inside is None and s.kind == "foreign" else 1 - share
    cut = inside is not None and not released
    # Half a draw stands for none: a member that has leaked away entirely keeps a finite, and terrible, density.
    log_inside = share.clamp_min(0.5 / n).log() if cut else torch.zeros_like(share)
    weight = torch.where(inside, 0.0, -math.inf).to(density.dtype) if inside is not None and cut else None

    theta = torch.stack([b.theta, b.rolled])
    mixture = mixture and members > 1
    if mixture:
        member = _chosen(s, (1, n, pairs), generator)
        mixed = draws.gather(0, member.unsqueeze(-1).expand(1, *draws.shape[1:]))
        kept = None if weight is None else weight.gather(0, member)
        at = mixed[0] if kept is None else torch.where(kept[0].isfinite()[..., None], mixed[0], b.theta)
        theta = torch.cat([theta, at])
    values = torch.cat([s.log_density(part, b.x) for part in theta.split(height)], 1)
    log_prior = s.log_prior(torch.stack([b.theta, b.rolled]))

    ratios = values[:, :2] - log_prior
    densities = Densities(density, values[:, 0], log_inside, values[:, 0], ratios[:, 0], ratios[:, 1], leakage)
    found = statistics_of(RankPoints(draws, weight), densities, b, released, generator)
    own = s.log_prob(b.theta, b.x)
    if own is not None:
        found = _renormalised(found, own.to(found.log_prob), log_prior[0])
    if not mixture:
        return [found]

    raw, normalised = log_mean(values, s.log_weights), log_mean(values - log_inside.unsqueeze(1), s.log_weights)
    points = RankPoints(mixed)
    if kept is not None:
        points = RankPoints(mixed, (normalised - raw)[:, 2:] + kept, (normalised - raw)[:, 0])
    lost = leakage.mean(0, keepdim=True)
    if s.log_weights is not None:
        lost = (s.log_weights.exp().unsqueeze(1) * leakage).sum(0, keepdim=True)
    ratios, truth = normalised[:, :2] - log_prior, normalised[:, 0]
    densities = Densities(
        normalised[:, 2:], truth, torch.zeros_like(truth), raw[:, 0], ratios[:, 0], ratios[:, 1], lost
    )
    return [found, statistics_of(points, densities, b, released, generator)]


def _renormalised(found: PairStatistics, log_prob: Tensor, log_prior: Tensor) -> PairStatistics:
    """Statistics of a posterior that knows log p̂(θ*|x*), with shape `(M, B)`, better than its densities say."""
    shift = torch.where(found.log_prob.isfinite(), log_prob - found.log_prob, 0.0)
    return found._replace(
        log_prob=log_prob, joint=log_prob - log_prior, marginal=found.marginal + shift, entropy=found.entropy - shift
    )


def _chosen(s: Surrogate, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Which member each draw of the mixture is from, as their weights say."""
    if s.log_weights is None:
        return torch.randint(s.n_members, shape, device=generator.device, generator=generator)
    weights = s.log_weights.exp().to(generator.device)
    return torch.multinomial(weights, math.prod(shape), replacement=True, generator=generator).view(shape)
