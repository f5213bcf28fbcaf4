"""Everything that is read off one batch of pairs, for all members and their mixture.

A batch goes one of four ways to a set of points with weights, and from there through `statistics_of`.

- *Shared draws* (flows with their mixture, tempered or not): draws of the mixture q, or of a q + (1 - a) p where it is
  tempered, at which every member is evaluated once. Member m ranks θ* among them with the weights q_m over that
  density, and what is tempered with its own (`tempering`), whose mean is Z_t. The draws are independent, so that all
  ranks are exactly uniform under calibration (`ranks`). Draws of each member apart would need twice the evaluations.

- *Draws* (members alone, and posteriors of other packages): L draws of every member, weight 1; draws outside the
  prior's support get weight 0, so that what is judged is the density cut to the support. The mixture takes draw l from
  a member chosen at random, which is a draw of the mixture; where members leak by different amounts its weight is the
  mixture of the cut densities over the one of the raw densities.
- *Cells* (classifiers with up to two parameters, from `CELLS_FROM` samples on, no mixture): the posterior interpolated
  on cells (`equipoise.posteriors.cells`), whose masses are the weights. The HPD rank is that of the density itself, to
  a few thousandths; θ* stands for the mass of its own cell, and only that and ties are random. For SBC and TARP a point
  is placed at random inside each cell. Posteriors too thin for cells go the next way.
- *Proposals* (other classifiers; `equipoise.posteriors.proposals`): points shared by all members. The mixture is a mean
  over members at the same points. Where no mixture is asked for, every member has points of its own: members that
  disagree would otherwise spend most of theirs on each other's mass.

`recipe="released"` repeats the paper's code instead: ranks W_> / W with a strict inequality, draws as they come,
and for classifiers a fixed grid of 100 cells a side.
"""

from __future__ import annotations

__all__ = [
    "CELLS_FROM",
    "RECIPES",
    "RELEASED_BINS",
    "Batch",
    "PairStatistics",
    "on_cells",
    "pair_statistics",
    "shares_points",
]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.posteriors.cells import Cells, fits_cells, make_cells
from equipoise.posteriors.particles import density_of
from equipoise.posteriors.proposals import CellProposal, GaussianProposal
from equipoise.posteriors.weighted import effective_size
from equipoise.priors import Prior

from .normalizers import FROM_POINTS, from_points, refine_normalizers
from .ranks import weighted_rank
from .surrogates import Surrogate, seeded

RECIPES = ("equipoise", "released")
#: Cells a side of the grid in the released recipe.
RELEASED_BINS = 100
#: Up to this many parameters proposals are constant on cells, beyond a Gaussian.
CELLS_UP_TO = 3
#: From this many samples on, a classifier of one or two parameters is interpolated: it takes about 2,000 evaluations.
CELLS_FROM = 512
#: Draws of a tempered mixture, which are weighted: so many first tell how many have the effective number that is asked
#: for, and at most so many times that number.
PILOT, MOST_TEMPERED = 32, 8
#: Densities that agree to this much are tied, where one of them is interpolated.
TIED = 1e-5


class Batch(NamedTuple):
    """Pairs (θ*, x*) on the device, with what is drawn for them."""

    #: θ* with shape `(B, D)`, the θ of the pair before with shape `(B, D)`, and what the members read of x*, along the
    #: first axis (`Surrogate.embed`).
    theta: Tensor
    rolled: Tensor
    x: Any
    #: Reference points of TARP with shape `(B, D)`, and what distances are divided by, with shape `(D,)`.
    reference: Tensor
    scale: Tensor


class PairStatistics(NamedTuple):
    """What a batch gives; K = M + 1, the members and then the mixture, or K = M without a mixture."""

    #: HPD, SBC and TARP ranks, with shapes `(K, B)`, `(K, B, D)`, `(K, B)`.
    rank: Tensor
    sbc_rank: Tensor
    tarp_rank: Tensor
    #: log p̂(θ*|x*), normalised and raw, with shape `(K, B)`.
    log_prob: Tensor
    log_prob_raw: Tensor
    #: Log-ratios of the joint pair and of the pair with the θ before, with shape `(K, B)`: raw for members.
    joint: Tensor
    marginal: Tensor
    #: Differential entropy of p̂(·|x*), mass outside the prior's support, and effective number of points, with shape
    #: `(K, B)`.
    entropy: Tensor
    leakage: Tensor
    effective: Tensor
    #: Where normaliser and entropy come from (`normalizers`), with shape `(K, B)`.
    source: Tensor


class RankPoints(NamedTuple):
    """Points among which θ* is ranked: θ `(K or 1, P, B, D)`, log weights `(K, P, B)` and that of θ* `(K, B)`.

    No weights: all are 1.
    """

    theta: Tensor
    log_w: Tensor | None = None
    truth_log_w: Tensor | None = None


class Densities(NamedTuple):
    """K densities at their points and at the pairs."""

    #: log p̂ up to the normaliser, of the points `(K, P, B)` and of θ* `(K, B)`, and the log normaliser `(K, B)`.
    log_density: Tensor
    truth: Tensor
    log_z: Tensor
    #: Raw log p̂(θ*|x*), log-ratios of the joint and of the marginal pair, and mass outside the prior: `(K, B)`.
    raw: Tensor
    joint: Tensor
    marginal: Tensor
    leakage: Tensor


@torch.no_grad()
def pair_statistics(
    surrogate: Surrogate,
    batch: Batch,
    samples: int,
    recipe: str,
    generator: torch.Generator,
    limit: int,
    mixture: bool = True,
) -> PairStatistics:
    """All statistics of a batch; at most `limit` evaluations of a member are asked for in one call."""
    released = recipe == "released"
    if on_cells(surrogate, samples, recipe, mixture):
        found = [_from_cells(surrogate, batch, samples, generator, limit)]
    elif surrogate.kind == "classifier":
        found = _from_proposals(surrogate, batch, samples, released, generator, limit, mixture)
    elif shares_points(surrogate, recipe, mixture):
        found = _from_shared_draws(surrogate, batch, samples, generator, limit)
    else:
        found = _from_draws(surrogate, batch, samples, released, generator, limit, mixture)
    if not mixture:
        return found[0]
    # A single member is its own mixture, to the last digit.
    found = [found[0], found[0]] if len(found) == 1 else found
    return PairStatistics(*(torch.cat(pair) for pair in zip(*found, strict=True)))


def on_cells(s: Surrogate, samples: int, recipe: str, mixture: bool) -> bool:
    """Whether a surrogate is interpolated on cells."""
    fits = s.kind == "classifier" and s.prior is not None and fits_cells(s.prior)
    alone = s.n_members == 1 or (not mixture and s.own_points)
    return fits and samples >= CELLS_FROM and recipe != "released" and alone


def shares_points(s: Surrogate, recipe: str, mixture: bool) -> bool:
    """Whether members and mixture are ranked among the same draws."""
    mixed = mixture and (s.n_members > 1 or s.tempered is not None)
    return s.kind == "flow" and recipe != "released" and mixed


def statistics_of(
    points: RankPoints,
    densities: Densities,
    b: Batch,
    released: bool,
    generator: torch.Generator,
    among: RankPoints | None = None,
) -> PairStatistics:
    """The statistics of K densities from their points, ranks `among` others where these are given."""
    shape, flat = densities.log_density.shape, densities.truth.shape
    place = among or points
    own = torch.full_like(densities.truth, -math.inf) if released else place.truth_log_w

    def rank(statistic: Tensor, truth: Tensor) -> Tensor:
        draw = torch.rand(flat, device=truth.device, dtype=densities.truth.dtype, generator=generator)
        uniform = torch.zeros_like(draw) if released else draw
        return weighted_rank(
            statistic.expand(shape),
            truth.expand(flat),
            uniform=uniform,
            log_weight=place.log_w,
            truth_log_weight=own,
        )

    sbc = [rank(-place.theta[..., j], -b.theta[..., j]) for j in range(b.theta.shape[-1])]
    distance = ((place.theta - b.reference) / b.scale).square().sum(-1)
    truth_distance = ((b.theta - b.reference) / b.scale).square().sum(-1)
    if points.log_w is None:
        effective = torch.full_like(densities.truth, shape[1])
        surprise = -densities.log_density.mean(1)
    else:
        effective, share = effective_size(points.log_w), points.log_w.softmax(1)
        surprise = torch.where(share > 0, -share * densities.log_density, 0.0).sum(1)
    return PairStatistics(
        rank=rank(densities.log_density, densities.truth),
        sbc_rank=torch.stack(sbc, -1),
        tarp_rank=rank(-distance, -truth_distance),
        log_prob=densities.truth - densities.log_z,
        log_prob_raw=densities.raw,
        joint=densities.joint,
        marginal=densities.marginal,
        entropy=surprise + densities.log_z,
        leakage=densities.leakage,
        effective=effective,
        source=torch.full_like(densities.truth, FROM_POINTS),
    )


# --- cells -----------------------------------------------------------------------------------------------------------


def _from_cells(s: Surrogate, b: Batch, n: int, generator: torch.Generator, limit: int) -> PairStatistics:
    """From interpolated posteriors, and from proposals for the pairs of which a member is too thin for that."""
    prior = s.prior
    assert prior is not None
    cells = make_cells(s.in_pieces(limit), b.x, prior, b.theta)
    theta = prior.from_uniform(cells.u)
    values = s.log_ratio(torch.stack([b.theta, b.rolled]), b.x)
    truth = values[:, 0] + s.log_prior(b.theta)
    density = cells.log_ratio + s.log_prior(theta)
    # A constant interpolates to itself only up to rounding.
    near = (density - truth.unsqueeze(1)).abs() <= TIED * (1 + truth.abs().unsqueeze(1))
    density = torch.where(near & truth.isfinite().unsqueeze(1), truth.unsqueeze(1), density)
    densities = Densities(density, truth, cells.log_z, truth, values[:, 0], values[:, 1], torch.zeros_like(truth))
    among = _inside_cells(cells, prior, b.theta, generator)
    found = statistics_of(RankPoints(theta, cells.log_mass), densities, b, False, generator, among)
    thin = cells.thin
    rows = thin.any(0).nonzero().squeeze(1)
    if len(rows) == 0:
        return found
    some = Batch(b.theta[rows], b.rolled[rows], b.x[rows], b.reference[rows], b.scale)
    (other,) = _from_proposals(s, some, n, False, generator, limit, False)

    def merged(mine: Tensor, theirs: Tensor) -> Tensor:
        here = thin[:, rows].view(*thin[:, rows].shape, *[1] * (mine.ndim - 2))
        return mine.index_copy(1, rows, torch.where(here, theirs.to(mine), mine[:, rows]))

    return PairStatistics(*(merged(mine, theirs) for mine, theirs in zip(found, other, strict=True)))


def _inside_cells(cells: Cells, prior: Prior, truth: Tensor, generator: torch.Generator) -> RankPoints:
    """One point anywhere in each cell, and θ* as that of its own.

    Centres lie in columns: a coordinate ranked among them would move by a whole column at a time. Where θ* follows the
    density that is constant on cells, it is the point of cell c with probability m_c given the set, and its rank is
    exactly uniform (`ranks`). HPD ranks take these weights too: a θ* that is denser than the centre of every cell would
    have rank 0 exactly, as three in a thousand had.
    """
    half, u = cells.width.unsqueeze(-1) / 2, cells.u
    place = 2 * torch.rand(u.shape, device=u.device, dtype=u.dtype, generator=generator) - 1
    theta = prior.from_uniform((u + place * half).clamp(0, 1))
    around = ((u - prior.to_uniform(truth)).abs() <= half).all(-1) & (cells.log_mass > -math.inf)
    home, found = around.to(torch.int8).argmax(1, keepdim=True), around.any(1)
    own = torch.where(found, cells.log_mass.gather(1, home).squeeze(1), -math.inf)
    others = torch.where(found.unsqueeze(1), -math.inf, cells.log_mass.gather(1, home))
    return RankPoints(theta, cells.log_mass.scatter(1, home, others), own)


# --- shared draws ----------------------------------------------------------------------------------------------------


def _from_shared_draws(s: Surrogate, b: Batch, n: int, generator: torch.Generator, limit: int) -> list[PairStatistics]:
    """Members and mixture among draws of a q + (1 - a) p."""
    t, prior = s.temperature, s.prior
    assert prior is not None
    rows, log_z = n, b.theta.new_zeros(1, len(b.theta))
    if t < 1:
        # Other draws say how many are needed, so that the number does not depend on those that are used.
        pilot = _shared_draws(s, b, min(n, PILOT), generator, limit)
        log_w = pilot.log_prior + t * (_mean(pilot.values, s.log_weights) - pilot.log_prior) - pilot.log_g
        share = effective_size(_cut(log_w[:, 2:], pilot.outside)) / (log_w.shape[1] - 2)
        rows = math.ceil(n * min(float(1 / share.median()), MOST_TEMPERED))
    points, own, outside, values, log_prior, raw, log_g = _shared_draws(s, b, rows, generator, limit)
    if bool(values.isnan().any()):  # a member that has diverged would take the others with it
        return _from_draws(s, b, n, False, generator, limit, True)
    log_inside = leakage = torch.zeros_like(values[:, 0])
    if outside is not None:
        inside = prior.contains(own).to(values.dtype).mean(1)
        # Half a draw stands for none: a member that has leaked away entirely keeps a finite, and terrible, density.
        log_inside, leakage = inside.clamp_min(0.5 / own.shape[1]).log(), 1 - inside
    whole = _mean(values - log_inside.unsqueeze(1), s.log_weights)
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
    lost = _mean(leakage.log(), s.log_weights).exp()
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
        others = _prior_draws(prior, rows, pairs, generator).to(points)
        points = torch.where((source < members).unsqueeze(-1), points, others)
    outside = ~prior.contains(points) if s.can_leak else None
    # Nothing is evaluated outside the support; what stands in the place of such a draw has no weight.
    at = points if outside is None else torch.where(outside.unsqueeze(-1), b.theta, points)
    theta = torch.cat([torch.stack([b.theta, b.rolled]), at])
    values = torch.cat([s.log_density(part, b.x) for part in theta.split(height)], 1)
    log_prior, raw = s.log_prior(theta), _mean(values, s.log_weights)
    log_g = raw if a == 1 else torch.logaddexp(raw + math.log(a), log_prior + math.log1p(-a))
    return SharedDraws(points, own, outside, values, log_prior, raw, log_g)


def _cut(log_w: Tensor, outside: Tensor | None) -> Tensor:
    """Log weights, with none outside the prior's support."""
    return log_w if outside is None else log_w.masked_fill(outside, -math.inf)


# --- draws -----------------------------------------------------------------------------------------------------------


def _from_draws(
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

    raw, normalised = _mean(values, s.log_weights), _mean(values - log_inside.unsqueeze(1), s.log_weights)
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


def _mean(values: Tensor, log_weights: Tensor | None = None) -> Tensor:
    """The log of the mean density over members, the first axis, which stays with length 1."""
    if log_weights is not None:
        return (values + log_weights.to(values).view(-1, *[1] * (values.ndim - 1))).logsumexp(0, keepdim=True)
    return values.logsumexp(0, keepdim=True) - math.log(len(values))


# --- proposals -------------------------------------------------------------------------------------------------------


class Proposed(NamedTuple):
    """Points for B pairs, θ* among them or beside them; M' is M where every member has its own, and else 1."""

    #: With shape `(M', P, B, D)`.
    theta: Tensor
    #: log g(θ|x) - log p(θ) of the points, with shape `(M', P, B)`, and of θ*, with shape `(M', B)`.
    log_g: Tensor
    truth_log_g: Tensor
    #: The index of the point that is θ* itself, with shape `(M', B)`; None where θ* stands beside the points.
    home: Tensor | None = None


def _from_proposals(
    s: Surrogate, b: Batch, n: int, released: bool, generator: torch.Generator, limit: int, mixture: bool
) -> list[PairStatistics]:
    members, pairs = s.n_members, len(b.theta)
    apart = members > 1 and s.own_points and not mixture and not released
    placed = _placed(s, b, n, released, generator, limit, apart)
    at_pairs = s.log_ratio(torch.stack([b.theta, b.rolled]), b.x)
    at_points = s.in_pieces(limit)(placed.theta, b.x)
    log_prior, log_prior_points = s.log_prior(b.theta), s.log_prior(placed.theta)
    log_w = at_points - placed.log_g
    sure = from_points(log_w) if released else refine_normalizers(s, b.x, log_w, limit)
    no_leak = torch.zeros_like(at_pairs[:, 0])

    def statistics(at_pairs: Tensor, at_points: Tensor, log_z: Tensor, raw: Tensor, rows: slice) -> PairStatistics:
        """Of K densities, from their log-ratios at the pairs, `(K, 2, B)`, and at the points, `(K, P, B)`."""
        weight = at_points - placed.log_g
        if placed.home is not None:
            # θ* is one of the points and must not count twice.
            home = placed.home.unsqueeze(1).expand(len(weight), 1, pairs)
            weight = weight.scatter(1, home, -math.inf)
        points = RankPoints(placed.theta, weight, at_pairs[:, 0] - placed.truth_log_g)
        density, truth = at_points + log_prior_points, at_pairs[:, 0] + log_prior
        joint, marginal = at_pairs[:, 0], at_pairs[:, 1]
        densities = Densities(density, truth, log_z, raw + log_prior, joint, marginal, no_leak[: len(truth)])
        found = statistics_of(points, densities, b, released, generator)
        entropy = torch.where(sure.entropy[rows].isnan(), found.entropy, sure.entropy[rows])
        return found._replace(source=sure.source[rows], entropy=entropy)

    found = statistics(at_pairs, at_points, sure.log_z, at_pairs[:, 0], slice(members))
    if members == 1 or not mixture:
        return [found]
    log_z = sure.log_z.unsqueeze(1)
    zero = torch.zeros_like(log_prior).unsqueeze(0)
    mixed = statistics(
        _mean(at_pairs - log_z, s.log_weights),
        _mean(at_points - log_z, s.log_weights),
        zero,
        _mean(at_pairs, s.log_weights)[:, 0],
        slice(members, None),
    )
    return [found, mixed]


def _placed(
    s: Surrogate, b: Batch, n: int, released: bool, generator: torch.Generator, limit: int, apart: bool
) -> Proposed:
    """Where a classifier is evaluated."""
    prior, pairs, f = s.prior, len(b.theta), s.in_pieces(limit)
    assert prior is not None
    if released or not prior.has_normal_map:
        theta = prior.from_uniform(_grid(b)) if released else _prior_draws(prior, n, pairs, generator).to(b.theta)
        return Proposed(theta.unsqueeze(0), theta.new_zeros(1, *theta.shape[:2]), theta.new_zeros(1, pairs))
    copies, dim, like = s.n_members if apart else 1, prior.dim, b.theta
    if dim > CELLS_UP_TO:
        density = density_of(f, b.x, prior)

        def uniforms(count: int) -> Tensor:
            shape = (count, pairs, dim + 1)
            return torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype)

        shape = (1, max(n // 4, 8 * dim), pairs, dim)
        start = torch.randn(shape, generator=generator, device=like.device, dtype=like.dtype)
        proposal = GaussianProposal.learn(density, start, n, uniforms, shared=not apart)
        z, truth = proposal.draw(uniforms(n)), prior.to_normal(b.theta).double().expand(copies, 1, pairs, dim)
        z = z.to(like)
        log_g, own = (proposal.log_over_prior(at, -0.5 * at.double().square().sum(-1)).to(like) for at in (z, truth))
        return Proposed(prior.from_normal(z), log_g, own.squeeze(1))

    def split(values: Tensor) -> Tensor:
        """From columns, `(P, M' B, …)`, to `(M', P, B, …)`."""
        return values.unflatten(1, (copies, pairs)).movedim(1, 0)

    def log_ratio(u: Tensor) -> Tensor:
        found = f(split(prior.from_uniform(u)), b.x)
        return found.movedim(0, 1).flatten(1, 2).unsqueeze(0) if apart else found

    proposal_on_cells = CellProposal.learn(log_ratio, copies * pairs, dim, n, generator, like.dtype)
    truth = prior.to_uniform(b.theta).repeat(copies, 1)
    u, log_g, own, home = proposal_on_cells.place(truth, n, generator)
    return Proposed(split(prior.from_uniform(u)), split(log_g), own.view(copies, pairs), home.view(copies, pairs))


def _grid(b: Batch) -> Tensor:
    """The middles of the released recipe's cells, with shape `(100^D, B, D)`."""
    dim = b.theta.shape[1]
    if dim > 2:
        raise ValueError(
            f"the released recipe has a grid of {RELEASED_BINS} cells a side and up to 2 parameters, not {dim}"
        )
    axis = (torch.arange(RELEASED_BINS, device=b.theta.device, dtype=b.theta.dtype) + 0.5) / RELEASED_BINS
    grid = torch.stack(torch.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, 1, dim)
    return grid.expand(-1, len(b.theta), dim)


def _prior_draws(prior: Prior, n: int, pairs: int, generator: torch.Generator) -> Tensor:
    """Independent prior draws with shape `(n, B, D)`, for priors without cumulative distribution functions."""
    with seeded(generator):
        return prior.sample((n * pairs,)).reshape(n, pairs, -1).to(generator.device)
