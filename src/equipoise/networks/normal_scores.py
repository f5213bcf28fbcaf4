r"""Normal scores ("rank-Gauss") of heavy-tailed columns of x.

Few values set the mean and deviation of a heavy-tailed column: most of its standardised numbers z are nearly equal, and
some are 40. Such a column is read in two ways: as normal scores, which tell all values apart, and as 5 tanh(z / 5),
which keeps the distances between values that are not extreme and is bounded.

The score of a value v of a column is Φ⁻¹(p), where p is its mid-rank: the share of training values below v, plus half
the share of those equal to v. Scores follow the order of the values and not their size, so that one count of a million
does not set the scale of all others.

Between the values of the training data the map is linear, through at most Q knots whose scores are evenly spaced. Every
knot is a value of the data with its exact score; a column of at most Q distinct values has a knot at each. Outside the
training data, at a distance d from the end knot with score s, the score is

    s ± tanh(a d),

with the slope a of the outermost piece. It is continuous, monotone, has no slope above a, and stays within 1 of the
scores seen in training: a network then gets no features that are far from those it has been trained on.
"""

from __future__ import annotations

__all__ = ["KNOTS", "normal_scores", "score_table", "with_scores"]

from collections.abc import Sequence

import torch
from torch import Tensor

#: Q, a power of two. Scores of 65,536 values reach ±4.3, so that those of neighbouring knots differ by 0.28.
KNOTS = 32
#: Where the standardised numbers of a ranked column level off.
LEVEL = 5.0


def score_table(x: Tensor, ranked: Sequence[int]) -> Tensor:
    """The knots of ranked columns, their scores, and the slopes of the pieces that begin there.

    Arguments:
        x: training data with shape `(N, C)`.
        ranked: the indices of K columns.

    Returns:
        With shape `(3, K, Q)`, in double precision. Columns with fewer knots repeat their last.
    """
    # In the precision of the weights, where the map is evaluated: what is one value there has one score.
    x = x.to(torch.get_default_dtype())
    return torch.stack([_column_table(x[:, column]) for column in ranked], 1)


def _column_table(column: Tensor) -> Tensor:
    """Knots, scores and slopes of one column, with shape `(3, Q)`."""
    values, counts = column.unique(return_counts=True)  # sorted
    values, counts = values.double(), counts.double()
    scores = torch.special.ndtri((counts.cumsum(0) - counts / 2) / len(column))
    if len(values) > KNOTS:
        even = torch.linspace(0, 1, KNOTS, dtype=torch.float64, device=scores.device)
        kept = torch.searchsorted(scores, scores[0] + even * (scores[-1] - scores[0]))
        kept[-1] = len(values) - 1  # which rounding may miss
        kept = kept.clamp(max=len(values) - 1).unique()
        values, scores = values[kept], scores[kept]
    slopes = (scores.diff() / values.diff()).clamp(max=torch.finfo(column.dtype).max)
    slopes = torch.cat([slopes, slopes[-1:] if len(slopes) else torch.zeros_like(scores)])
    table = torch.stack([values, scores, slopes])
    return torch.cat([table, table[:, -1:].expand(3, KNOTS - table.shape[1])], 1)


def normal_scores(table: Tensor, x: Tensor) -> Tensor:
    """Scores with shape `(M, N, K)`, from the tables of M members `(M, 3, K, Q)` and values `(M or 1, N, K)`."""
    knots, x = table[:, 0], x.expand(len(table), -1, -1).mT.contiguous()
    # A binary search for the last knot that is not above x. Compiled, `searchsorted` would not be fused with the rest.
    piece, step = torch.zeros(x.shape, dtype=torch.int64, device=x.device), KNOTS // 2
    while step:
        further = piece + step
        piece, step = torch.where(knots.gather(-1, further) <= x, further, piece), step // 2
    start, score, slope = table.gather(-1, piece.unsqueeze(1).expand(-1, 3, -1, -1)).unbind(1)
    inside = torch.minimum(torch.maximum(x, knots[..., :1]), knots[..., -1:])
    return (score + slope * (inside - start) + torch.tanh(slope * (x - inside))).mT


def with_scores(table: Tensor, z: Tensor, x: Tensor, ranked: Sequence[int]) -> Tensor:
    """Features with shape `(M, N, C + K)`: numbers that are not ranked, those that are, and the scores of those.

    Arguments:
        table: the tables of M members, with shape `(M, 3, K, Q)`.
        z: standardised numbers with shape `(M, N, C)`.
        x: the numbers as they are, with shape `(M or 1, N, C)`.
        ranked: the ascending indices of K columns.
    """
    others = sorted({*range(z.shape[-1])} - {*ranked})
    bounded = LEVEL * torch.tanh(_columns(z, ranked) / LEVEL)
    return torch.cat([_columns(z, others), bounded, normal_scores(table, _columns(x, ranked).to(z.dtype))], -1)


def _columns(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Some entries of the last axis, cut as runs of neighbours: a CUDA graph cannot record an index from the host."""
    chosen = {*columns}
    starts, ends = [c for c in columns if c - 1 not in chosen], [c + 1 for c in columns if c + 1 not in chosen]
    return torch.cat([x[..., :0], *(x[..., a:b] for a, b in zip(starts, ends, strict=True))], -1)
