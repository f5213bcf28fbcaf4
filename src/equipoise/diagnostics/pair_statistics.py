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

__all__ = ["on_cells", "pair_statistics", "shares_points"]

import torch

from equipoise.posteriors.cells import fits_cells

from .drawn_points import from_draws, from_shared_draws
from .point_statistics import Batch, PairStatistics
from .proposed_points import from_cells, from_proposals
from .recipes import CELLS_FROM
from .surrogates import Surrogate


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
        found = [from_cells(surrogate, batch, samples, generator, limit)]
    elif surrogate.kind == "classifier":
        found = from_proposals(surrogate, batch, samples, released, generator, limit, mixture)
    elif shares_points(surrogate, recipe, mixture):
        found = from_shared_draws(surrogate, batch, samples, generator, limit)
    else:
        found = from_draws(surrogate, batch, samples, released, generator, limit, mixture)
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
