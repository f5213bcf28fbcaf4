r"""Cross-fitting: every simulation is judged by members that never trained on it.

The N simulations are shuffled into F folds of equal size. A member of fold f trains on all the others and stops early
on fold f, so that the members of fold f are blind to it but for the epoch they chose there. All simulations together
are then out-of-fold pairs: what they say of the members costs no simulations.

**Weights.** Groups of members (starts, architectures) are mixed with the weights that maximise the out-of-fold log
score of their mixture,

.. math:: \max_w \sum_i \log \sum_g w_g\, q_g(θ_i | x_i), \qquad w_g \ge 0, \quad \sum_g w_g = 1,

with \(q_g\) the members of group g that are blind to pair i. The problem is concave; expectation–maximisation,
\(w_g \leftarrow \text{mean}_i\, w_g q_g(i) / \sum_h w_h q_h(i)\), climbs to its maximum.
"""

from __future__ import annotations

__all__ = ["calibrated", "fold_rows", "log_score_weights", "out_of_fold", "weighted_by_score"]

from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.diagnostics.calibrating import MOST_PAIRS, calibrate_out_of_fold
from equipoise.posteriors import Posterior
from equipoise.support.checks import whole_number
from equipoise.support.randomness import generator, integer

from .data import take
from .inputs import Pairs

#: The most steps of the climb, and the largest change of a weight at which it ends.
STEPS, SETTLED = 10_000, 1e-9


def fold_rows(n: int, folds: int, least: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The rows that the members of each fold train on, and those that judge them.

    Arguments:
        n: how many simulations there are.
        folds: F.
        least: the fewest pairs that a member can be judged by.
        seed: of the shuffle.

    Returns:
        Sorted rows with shapes `(F, n - n // F)` and `(F, n // F)`. Where F does not divide n, the rows left over
        train every member.

    Example:
        >>> train, judge = fold_rows(11, 5)
        >>> train.shape, judge.shape, len(judge.unique())
        (torch.Size([5, 9]), torch.Size([5, 2]), 10)
    """
    size = n // whole_number("folds", folds, least=2)
    if size < least:
        raise ValueError(
            f"{n} simulations in {folds} folds leave {size} to judge each member, which needs at least {least}; use "
            "fewer folds, more simulations, or folds=None for one common split"
        )
    rows = torch.randperm(n, generator=generator(seed, "folds"))
    judge = rows[: size * folds].reshape(folds, size).sort(1).values
    mask = torch.ones(folds, n, dtype=torch.bool).scatter(1, judge, False)
    return mask.nonzero()[:, 1].reshape(folds, -1), judge


def out_of_fold(posterior: Posterior, n: int) -> tuple[Tensor, list[list[int]]]:
    """The pairs that judge a cross-fitted posterior, and the members that never trained on them.

    Arguments:
        posterior: of `fit(..., folds=F)`.
        n: how many pairs it was fitted to, as a check.

    Returns:
        Rows of θ and x with shape `(F, n // F)`, and for each fold the members that are blind to it.
    """
    record = posterior.record
    if "folds" not in record:
        raise ValueError("the posterior was not fitted with folds: its members share one validation set")
    if n != record["pairs"]:
        raise ValueError(f"the posterior was fitted to {record['pairs']} pairs, got {n}; give the same pairs")
    _, rows = fold_rows(n, record["folds"], seed=record["split_seed"])
    return rows, [[m for m, f in enumerate(record["fold"]) if f == fold] for fold in range(record["folds"])]


def weighted_by_score(posterior: Posterior, groups: Sequence[int], pairs: Pairs) -> Posterior:
    """The mixture with weights of groups of members (architectures, starts) by their out-of-fold log score.

    Arguments:
        posterior: of members of all folds.
        groups: the number of the group of each member; members of a group share its weight.
        pairs: that it was fitted to.

    Returns:
        The mixture without members of weight 0; as it is where a group has no member in some fold.
    """
    rows, blind = out_of_fold(posterior, len(pairs.theta))
    names = sorted(set(groups))
    if len(names) == 1 or any({groups[m] for m in some} != set(names) for some in blind):
        return posterior
    scores = [
        torch.stack(
            [posterior.select([m for m in some if groups[m] == g]).log_prob(*_some(pairs, here)) for g in names]
        )
        for here, some in zip(rows, blind, strict=True)
    ]
    share = log_score_weights(torch.cat(scores, 1))
    return posterior.weighted([float(share[names.index(g)]) / groups.count(g) for g in groups])


def calibrated(posterior: Posterior, pairs: Pairs, seed: int, progress: bool | None) -> Posterior:
    """The mixture at the temperature that its out-of-fold pairs choose, of which `MOST_PAIRS` are looked at."""
    rows, blind = out_of_fold(posterior, len(pairs.theta))
    most = MOST_PAIRS // len(rows)
    parts = []
    for here, some in zip(rows, blind, strict=True):
        if not some:  # the members of this fold diverged
            continue
        chosen = here[torch.randperm(len(here), generator=generator(seed, "calibrate"))[:most]].sort().values
        parts.append((posterior.select(some), *_some(pairs, chosen)))
    return calibrate_out_of_fold(posterior, parts, integer(seed, "calibrate"), progress=progress)


def _some(pairs: Pairs, rows: Tensor) -> tuple[Tensor, Tensor]:
    return pairs.theta[rows], torch.as_tensor(take(pairs.x, rows))


def log_score_weights(log_prob: Tensor) -> Tensor:
    """The weights of the mixture with the best mean log score, with shape `(G,)`.

    Arguments:
        log_prob: log densities of G groups at n out-of-fold pairs, with shape `(G, n)`.

    Example:
        >>> log_score_weights(torch.tensor([[0.0, 0.0], [-9.0, -9.0]])).tolist()
        [1.0, 0.0]
    """
    # Pairs at which no group has a density say nothing of the weights; neither does a constant of a pair.
    best = log_prob.double().amax(0)
    density = (log_prob.double() - best)[:, best.isfinite()].exp()
    weights = torch.full((len(density),), 1 / len(density), dtype=torch.float64, device=log_prob.device)
    if density.shape[1] == 0:
        return weights
    for _ in range(STEPS):
        joint = weights.unsqueeze(1) * density
        climbed = (joint / joint.sum(0)).mean(1)
        done = float((climbed - weights).abs().max()) < SETTLED
        weights = climbed
        if done:
            break
    return torch.where(weights < 1e-6, 0.0, weights) / weights[weights >= 1e-6].sum()
