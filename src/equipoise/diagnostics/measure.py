"""Everything that is read off one batch of pairs, for all members and their mixture.

A batch goes one of three ways to a set of points with weights (`points`), and from there through the same few lines.

- *Draws* (flows, and foreign posteriors): L draws of every member, weight 1; draws outside the prior's support get
  weight 0, so that what is judged is the density cut to the support. The mixture takes draw l from a member chosen at
  random, which is a draw of the mixture; where members leak by different amounts its weight is the mixture of the cut
  densities over the one of the raw densities.
- *Cells* (classifiers with up to two parameters, from `CELLS_FROM` samples on, no mixture): the posterior interpolated
  on cells (`equipoise.posteriors.cells`), whose masses are the weights. The HPD rank is that of the density itself, to
  a few thousandths; θ* stands for the mass of its own cell, and only that and ties are random. For SBC and TARP a point
  is placed at random inside each cell. Posteriors too thin for cells go the next way.
- *Proposals* (other classifiers): points shared by all members (`proposals`). The mixture is a mean over members at the
  same points. Where no mixture is asked for, every member has points of its own: members that disagree would
  otherwise spend most of theirs on each other's mass.

`recipe="released"` repeats the paper's code instead: ranks W_> / W with a strict inequality, draws as they come,
and for classifiers a fixed grid of 100 cells a side.
"""

from __future__ import annotations

__all__ = ["RECIPES", "measure", "on_cells"]

import math
from collections.abc import Callable

import torch
from torch import Tensor

from equipoise.posteriors import Cells, fits_cells, make_cells
from equipoise.priors import Prior

from .adapters import Apart, Ours
from .normalizers import as_they_are, better
from .points import Batch, Measured, Points, Ratios, Spread, measured
from .proposals import CellProposal, GaussianProposal, Proposed
from .surrogates import Surrogate, seeded

RECIPES = ("equipoise", "released")
#: Cells a side of the grid in the released recipe.
RELEASED_BINS = 100
#: Up to this many parameters proposals are constant on cells, beyond a Gaussian.
CELLS_UP_TO = 3
#: From this many samples on, a classifier of one or two parameters is interpolated: it takes about 2,000 evaluations.
CELLS_FROM = 512
#: Densities that agree to this much are tied, where one of them is interpolated.
TIED = 1e-5


@torch.no_grad()
def measure(
    surrogate: Surrogate,
    batch: Batch,
    samples: int,
    recipe: str,
    generator: torch.Generator,
    limit: int,
    mixture: bool = True,
) -> Measured:
    """All measures of a batch; at most `limit` evaluations of a member are asked for in one call."""
    strict = recipe == "released"
    if on_cells(surrogate, samples, recipe, mixture):
        alone = _from_cells(surrogate, batch, samples, generator, limit)
        return Measured(*(torch.cat([value, value]) for value in alone)) if mixture else alone
    if not mixture and not strict and isinstance(surrogate, Ours) and surrogate.has_own_points:
        return _apart(surrogate, batch, samples, generator, limit)
    way = _from_proposals if surrogate.kind == "classifier" else _from_draws
    found = way(surrogate, batch, samples, strict, generator, limit, mixture)
    if not mixture:
        return found[0]
    # A single member is its own mixture, to the last digit.
    found = [found[0], found[0]] if len(found) == 1 else found
    return Measured(*(torch.cat(pair) for pair in zip(*found, strict=True)))


def on_cells(s: Surrogate, samples: int, recipe: str, mixture: bool) -> bool:
    """Whether a surrogate is interpolated on cells."""
    fits = s.kind == "classifier" and s.prior is not None and fits_cells(s.prior)
    alone = s.n_members == 1 or (not mixture and s.has_own_points)
    return fits and samples >= CELLS_FROM and recipe != "released" and alone


def _from_cells(s: Surrogate, b: Batch, n: int, generator: torch.Generator, limit: int) -> Measured:
    """From interpolated posteriors, and from proposals for the pairs of which a member is too thin for that."""
    prior, height = s.prior, max(1, limit // (s.n_members * len(b.theta)))
    assert prior is not None
    cells = make_cells(s.ratio_of(b.x, height), prior, b.theta)
    theta = prior.from_uniform(cells.u)
    values = s.log_ratio(torch.stack([b.theta, b.rolled]), b.x)
    truth = values[:, 0] + s.log_prior(b.theta)
    density = cells.log_ratio + s.log_prior(theta)
    # A constant interpolates to itself only up to rounding.
    near = (density - truth.unsqueeze(1)).abs() <= TIED * (1 + truth.abs().unsqueeze(1))
    near = near & truth.isfinite().unsqueeze(1)
    density = torch.where(near, truth.unsqueeze(1), density)
    spread = _inside_cells(cells, prior, b.theta, generator)
    points = Points(theta, density, truth, cells.log_normalizer, cells.log_mass, spread=spread)
    ratios, no_leak = Ratios(values[:, 0], values[:, 1]), torch.zeros_like(truth)
    found = measured(points, b, False, generator, truth, ratios, no_leak)
    thin = cells.thin
    rows = thin.any(0).nonzero().squeeze(1)
    if len(rows) == 0:
        return found
    some = Batch(b.theta[rows], b.rolled[rows], b.x[rows], b.reference[rows], b.scale)
    if isinstance(s, Ours) and s.n_members > 1:
        other = _apart(s, some, n, generator, limit)
    else:
        (other,) = _from_proposals(s, some, n, False, generator, limit, False)

    def merged(mine: Tensor, theirs: Tensor) -> Tensor:
        here = thin[:, rows].view(*thin[:, rows].shape, *[1] * (mine.ndim - 2))
        return mine.index_copy(1, rows, torch.where(here, theirs.to(mine), mine[:, rows]))

    return Measured(*(merged(mine, theirs) for mine, theirs in zip(found, other, strict=True)))


def _inside_cells(cells: Cells, prior: Prior, truth: Tensor, generator: torch.Generator) -> Spread:
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
    return Spread(theta, cells.log_mass.scatter(1, home, others), own)


def _apart(s: Ours, b: Batch, n: int, generator: torch.Generator, limit: int) -> Measured:
    """The members of a classifier one by one, as pairs of a single one."""
    members, pairs = s.n_members, len(b.theta)
    theta, rolled, reference = (t.repeat(members, 1) for t in (b.theta, b.rolled, b.reference))
    (found,) = _from_proposals(
        Apart(s), Batch(theta, rolled, b.x, reference, b.scale), n, False, generator, limit, False
    )
    return Measured(*(value[0].unflatten(0, (members, pairs)) for value in found))


def _from_draws(
    s: Surrogate, b: Batch, n: int, strict: bool, generator: torch.Generator, limit: int, mixture: bool
) -> list[Measured]:
    members, pairs = s.n_members, len(b.theta)
    height = max(1, limit // (members * pairs))
    parts = [s.draw(min(height, n - done), b.x, generator) for done in range(0, n, height)]
    draws, density = torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts], 1)
    inside = s.prior.contains(draws) if s.prior is not None and s.can_leak else None
    share = density.new_ones(members, pairs) if inside is None else inside.to(density.dtype).mean(1)
    leakage = torch.full_like(share, torch.nan) if inside is None and s.kind == "foreign" else 1 - share
    cut = inside is not None and not strict
    # Half a draw stands for none: a member that has leaked away entirely keeps a finite, and terrible, density.
    log_inside = share.clamp_min(0.5 / n).log() if cut else torch.zeros_like(share)
    weight = torch.where(inside, 0.0, -math.inf).to(density.dtype) if inside is not None and cut else None

    theta = torch.stack([b.theta, b.rolled])
    mixture = mixture and members > 1
    if mixture:
        member = _chosen(s, (1, n, pairs), generator)
        mixed = draws.gather(0, member.unsqueeze(-1).expand(1, *draws.shape[1:]))
        kept = None if weight is None else weight.gather(0, member)
        theta = torch.cat(
            [theta, mixed[0] if kept is None else torch.where(kept[0].isfinite()[..., None], mixed[0], b.theta)]
        )
    values = _split(s.log_density, theta, b.x, height)
    log_prior = s.log_prior(torch.stack([b.theta, b.rolled]))

    points = Points(draws, density, values[:, 0], log_inside, weight)
    ratios = Ratios(values[:, 0] - log_prior[0], values[:, 1] - log_prior[1])
    found = measured(points, b, strict, generator, values[:, 0], ratios, leakage)
    own = s.log_prob(b.theta, b.x)
    if own is not None:
        found = _renormalised(found, own.to(found.log_prob), log_prior)
    if not mixture:
        return [found]

    raw, normalised = _mean(values, s.log_weights), _mean(values - log_inside.unsqueeze(1), s.log_weights)
    weights = None if kept is None else (normalised - raw)[:, 2:] + kept
    truth_weight = None if kept is None else (normalised - raw)[:, 0]
    zero = torch.zeros_like(normalised[:, 0])
    points = Points(mixed, normalised[:, 2:], normalised[:, 0], zero, weights, truth_weight)
    ratios = Ratios(normalised[:, 0] - log_prior[0], normalised[:, 1] - log_prior[1])
    lost = leakage.mean(0, keepdim=True)
    if s.log_weights is not None:
        lost = (s.log_weights.exp().unsqueeze(1) * leakage).sum(0, keepdim=True)
    return [found, measured(points, b, strict, generator, raw[:, 0], ratios, lost)]


def _from_proposals(
    s: Surrogate, b: Batch, n: int, strict: bool, generator: torch.Generator, limit: int, mixture: bool
) -> list[Measured]:
    members, pairs = s.n_members, len(b.theta)
    height = max(1, limit // (members * pairs))
    placed, theta = _placed(s, b, n, strict, generator, height)
    values = _split(s.log_ratio, torch.cat([torch.stack([b.theta, b.rolled]), theta]), b.x, height)
    log_prior, log_prior_points = s.log_prior(b.theta), s.log_prior(theta)
    no_leak = values.new_zeros(members, pairs)

    def points_of(values: Tensor, log_z: Tensor) -> Points:
        """The points of K densities from their log-ratios at θ*, at the θ before and at the points, `(K, 2 + S, B)`."""
        weight, own = values[:, 2:] - placed.log_g, values[:, 0] - placed.truth_log_g
        if placed.home is not None:
            # θ* is one of the points and must not count twice.
            weight = weight.scatter(1, placed.home.expand(len(values), 1, pairs), -math.inf)
        density, truth = values[:, 2:] + log_prior_points, values[:, 0] + log_prior
        return Points(theta.unsqueeze(0), density, truth, log_z, weight, own)

    weights = values[:, 2:] - placed.log_g
    sure = as_they_are(weights) if strict else better(s, b.x, weights, generator, limit)
    raw, ratios = values[:, 0] + log_prior, Ratios(values[:, 0], values[:, 1])
    found = measured(points_of(values, sure.log_normalizer), b, strict, generator, raw, ratios, no_leak)
    found = _with(found, sure.source[:members], sure.entropy[:members])
    if members == 1 or not mixture:
        return [found]
    normalised = _mean(values - sure.log_normalizer.unsqueeze(1))
    points = points_of(normalised, torch.zeros_like(normalised[:, 0]))
    raw, ratios = _mean(values)[:, 0] + log_prior, Ratios(normalised[:, 0], normalised[:, 1])
    mixed = measured(points, b, strict, generator, raw, ratios, no_leak[:1])
    return [found, _with(mixed, sure.source[members:], sure.entropy[members:])]


def _with(found: Measured, source: Tensor, entropy: Tensor) -> Measured:
    """Measures with another entropy, where it is known."""
    return found._replace(source=source, entropy=torch.where(entropy.isnan(), found.entropy, entropy))


def _placed(
    s: Surrogate, b: Batch, n: int, strict: bool, generator: torch.Generator, height: int
) -> tuple[Proposed, Tensor]:
    """Where a classifier is evaluated, and the same points as θ with shape `(S, B, D)`."""
    prior, pairs = s.prior, len(b.theta)
    assert prior is not None
    if strict or not prior.has_normal_map:
        theta = prior.from_uniform(_grid(prior.dim, b)) if strict else _prior_draws(s, n, pairs, generator).to(b.theta)
        return Proposed(theta, theta.new_zeros(theta.shape[:2]), theta.new_zeros(pairs), None), theta

    def log_ratio(u: Tensor) -> Tensor:
        return _split(s.log_ratio, prior.from_uniform(u), b.x, height)

    family = CellProposal if prior.dim <= CELLS_UP_TO else GaussianProposal
    proposal = family.learn(log_ratio, pairs, prior.dim, n, generator, b.theta.dtype)
    placed = proposal.place(prior.to_uniform(b.theta), n, generator)
    return placed, prior.from_uniform(placed.u)


def _renormalised(found: Measured, log_prob: Tensor, log_prior: Tensor) -> Measured:
    """Measures of a posterior that knows log p̂(θ*|x*), with shape `(M, B)`, better than its densities say."""
    shift = torch.where(found.log_prob.isfinite(), log_prob - found.log_prob, 0.0)
    return found._replace(
        log_prob=log_prob,
        joint=log_prob - log_prior[0],
        marginal=found.marginal + shift,
        entropy=found.entropy - shift,
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


def _split(function: Callable[[Tensor, Tensor], Tensor], theta: Tensor, x: Tensor, height: int) -> Tensor:
    """function(theta, x), `(M, S, B)`, in pieces of `height` rows of θ with shape `(S, B, D)`."""
    return torch.cat([function(part, x) for part in theta.split(height)], 1)


def _grid(dim: int, b: Batch) -> Tensor:
    """The middles of the released recipe's cells, with shape `(100^D, B, D)`."""
    if dim > 2:
        raise ValueError(
            f"the released recipe has a grid of {RELEASED_BINS} cells a side and up to 2 parameters, not {dim}"
        )
    axis = (torch.arange(RELEASED_BINS, device=b.theta.device, dtype=b.theta.dtype) + 0.5) / RELEASED_BINS
    grid = torch.stack(torch.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, 1, dim)
    return grid.expand(-1, len(b.theta), dim)


def _prior_draws(s: Surrogate, n: int, pairs: int, generator: torch.Generator) -> Tensor:
    """Independent prior draws with shape `(n, B, D)`, for priors without cumulative distribution functions."""
    assert s.prior is not None
    with seeded(generator):
        return s.prior.sample((n * pairs,)).reshape(n, pairs, -1).to(generator.device)
