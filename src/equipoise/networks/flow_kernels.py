r"""Autoregressive flows on a CPU without gradients, at many θ for each x: units are rows and points are columns.

The coordinates of a transform are solved one after the other, as `Flow._stages` says: the k-th needs the units that see
at most k coordinates, so that every unit is computed once, and those that see x alone once for all points of an x. Here
the units are sorted by k, which makes each step one product of a block of the weights with a block of activations
(`panels`). The points of one member go through all transforms in blocks whose activations stay in the cache. All
blocks of a member are one compiled call, which lets other threads run, so that torch's threads share the blocks.

Splines have their formulas in `spline`. They and the SELU need exponentials, hence one that is made of sums and
products: with n the whole number nearest to v/log 2, e^v = 2^n e^(v - n log 2), and a polynomial of degree 7 (Cephes)
for the second factor; relative errors are below 2e-7.
"""

from __future__ import annotations

__all__ = ["SortedTransforms", "carried"]

import math
from collections.abc import Sequence
from itertools import groupby, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from equipoise.support.devices import compiled, workers

from .panels import ROWS, WIDE, wide_panel
from .spline import BOUND
from .stacked_weights import StackedWeights, dense, selu

#: Points whose activations are held at once, and points whose splines are.
BLOCK, WIDTH = 1 << 10, 128
#: Columns between the rows of a block beyond its own: rows whose distance is a power of two share places of a cache.
APART = 16
#: Slopes that are multiplied before a logarithm is taken: more could leave the range of a number.
SLOPES = 32
#: Of the SELU.
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772


class SortedTransforms(NamedTuple):
    """T transforms of L hidden layers in the order in which they are applied, for M members and B observations.

    Attributes:
        order: of the coordinates, with shape `(T, D)`.
        starts: where the units of a hidden layer that see k coordinates begin, with shape `(T, L, D + 1)`.
        inputs: how many coordinates, or units that see some, a layer reads, with shape `(T, L + 1)`.
        weights_at, from_x_at: where the weights and what x adds of a layer begin, with shape `(T, L + 1)`.
        weights: with shape `(M, ·)`; each matrix ends with rows of zeros.
        from_x: what x alone adds to each unit of each layer, with shape `(M, ·, B)`.
    """

    order: np.ndarray
    starts: np.ndarray
    inputs: np.ndarray
    weights_at: np.ndarray
    from_x_at: np.ndarray
    weights: np.ndarray
    from_x: np.ndarray

    @classmethod
    def of(
        cls,
        p: StackedWeights,
        names: Sequence[str],
        stages: Sequence[tuple[list[int], list[list[Tensor]]]],
        shared: Sequence[tuple[Tensor | None, Tensor]],
        size: int,
    ) -> SortedTransforms:
        """From the weights `name.i.weight`, the stages of each transform, its first layer and the numbers of a map."""
        weights: list[Tensor] = []
        from_x: list[Tensor] = []
        for name, (order, groups), (w_u, first) in zip(names, stages, shared, strict=True):
            units = [torch.cat(group) for group in groups]
            numbers = (torch.tensor(order).unsqueeze(1) * size + torch.arange(size)).flatten()
            h = first[..., units[0]]
            weights.append(h.new_zeros(len(h), len(units[0]), 0) if w_u is None else w_u[:, units[0]][..., order])
            from_x.append(h.mT)
            for i, rows in enumerate([*units[1:], numbers], 1):
                weight, bias = p[f"{name}.{i}.weight"][:, rows], p[f"{name}.{i}.bias"][:, rows]
                fixed = len(groups[i - 1][0])
                alone, others = units[i - 1].split([fixed, len(units[i - 1]) - fixed])
                h = dense(selu(h[..., : len(alone)].clone()), weight[..., alone], bias)
                weights.append(weight[..., others])
                from_x.append(h.mT)
        shape = (len(names), len(weights) // len(names))
        parts = [torch.cat([w, w.new_zeros(len(w), ROWS, w.shape[2])], 1).flatten(1) for w in weights]
        counts = [[list(map(len, group)) for group in groups] for _, groups in stages]
        return cls(
            np.array([order for order, _ in stages]),
            np.pad(np.cumsum(counts, -1), ((0, 0), (0, 0), (1, 0))),
            np.array([w.shape[2] for w in weights]).reshape(shape),
            _before([part.shape[1] for part in parts], shape),
            _before([part.shape[1] for part in from_x], shape),
            torch.cat(parts, 1).numpy(),
            torch.cat(from_x, 1).numpy(),
        )


def _before(sizes: list[int], shape: tuple[int, int]) -> np.ndarray:
    return np.cumsum([0, *sizes[:-1]]).reshape(shape)


def carried(transforms: SortedTransforms, v: Tensor, bins: int, *, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Points carried through transforms of spline flows in their order, or back through them.

    Arguments:
        transforms: in the order in which they are applied.
        v: with shape `(M, *S, B, D)`.
        bins: of the splines.
        inverse: whether each transform is inverted.

    Returns:
        What becomes of v, and the sum of the forward log slopes, `(M, *S, B)`.
    """
    (members, *_, batch, dim), draws = v.shape, math.prod(v.shape[1:-2])
    given = v.reshape(members, draws, batch, dim)
    out, log_slope = v.new_empty(given.shape), v.new_empty(members, draws, batch)
    into, slopes = out.numpy(), log_slope.numpy()
    tall, wide = max(1, min(draws, BLOCK)), max(1, BLOCK // max(draws, 1))
    blocks = list(product(range(members), range(0, batch, wide), range(0, draws, tall)))
    tables = transforms[:5]

    def carry(some: list[tuple[int, int, int]]) -> None:
        for m, own in groupby(some, key=lambda block: block[0]):
            places = np.array([place for _, *place in own])
            mine = transforms.weights[m], transforms.from_x[m]
            points = given[m].contiguous().numpy()
            _carry(tables, mine, points, into[m], slopes[m], places, tall, wide, bins, inverse)

    threads = min(torch.get_num_threads(), len(blocks))
    if threads <= 1:
        carry(blocks)
    else:
        cuts = [len(blocks) * k // threads for k in range(threads + 1)]
        list(workers(torch.get_num_threads()).map(carry, (blocks[i:j] for i, j in pairwise(cuts))))
    return out.view(v.shape), log_slope.view(v.shape[:-1])


def _float_of_bits(context: Any, bits: Any) -> Any:
    """The float32 with the bits of an int32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), code


_as_float: Any = intrinsic(_float_of_bits)
_F = np.float32
#: Sums of products are rounded once, where the processor can.
fused = compiled(fastmath={"contract"})


@compiled(fastmath={"contract"}, forceinline=True)
def exponential(v: Any) -> Any:
    """e^v in single precision, from e^-87 to e^88; NaN stays NaN."""
    v = _F(-87) if v < _F(-87) else v
    v = _F(88) if v > _F(88) else v
    n = np.floor(v * _F(1.4426950408889634) + _F(0.5))
    r = v - n * _F(0.693359375) + n * _F(2.12194440e-4)
    p = ((_F(1.9875691500e-4) * r + _F(1.3981999507e-3)) * r + _F(8.3334519073e-3)) * r + _F(4.1665795894e-2)
    p = (p * r + _F(1.6666665459e-1)) * r + _F(5.0000001201e-1)
    return (p * r * r + r + _F(1)) * _as_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))


@fused
def _add_and_selu(h: Any, from_x: Any, row: Any, low: Any, count: Any, draws: Any) -> None:
    """SELU of h + from_x in the place of h, for the draws of some observations from the number `low` on.

    The units are rows of h and those of from_x from a row on; the draws of one observation are neighbouring columns.
    """
    for u in range(len(h)):
        for b in range(count):
            more, values = from_x[row + u, low + b], h[u, b * draws : (b + 1) * draws]
            for i in range(draws):
                v = values[i] + more
                negative = _F(SCALE * ALPHA) * (exponential(v if v < _F(0) else _F(0)) - _F(1))
                values[i] = negative if v < _F(0) else _F(SCALE) * v


@fused
def _carry(
    tables: Any, numbers: Any, points: Any, out: Any, log_slope: Any, places: Any, tall: Any, wide: Any, bins: Any,
    inverse: Any,
) -> None:  # fmt: skip
    """Blocks of the points of one member, with shape `(S, B, D)`, carried through all transforms.

    A block has up to `wide` observations from one number on, and up to `tall` draws of each from another number on.
    """
    (order, starts, inputs, weights_at, from_x_at), (weights, from_x) = tables, numbers
    (total, batch, dim), (transforms, layers, _), size = points.shape, starts.shape, 3 * bins - 1
    width = -(-min(tall * wide, total * batch) // WIDE) * WIDE + APART
    # All rows of a room are written before they are read, but for columns beyond the points: these must be finite.
    most = max(starts[:, :, -1].max(), dim, size) + ROWS
    now, seen = np.zeros((dim, width), np.float32), np.zeros((dim, width), np.float32)
    active, phi = np.zeros((layers * most, width), np.float32), np.zeros((size + ROWS, width), np.float32)
    slope, steep, logs = np.empty(width), np.empty(width, np.float32), np.empty(width)
    for low, first in places:
        count, draws = min(wide, batch - low), min(tall, total - first)
        columns = count * draws
        for i in range(draws):
            for b in range(count):
                for d in range(dim):
                    now[d, b * draws + i] = points[first + i, low + b, d]
        slope[:], logs[:], multiplied = 1, 0, 0
        for t in range(transforms):
            for k in range(dim):
                for layer in range(layers + 1 if k else 0):
                    source, source_at = (active, (layer - 1) * most * width) if layer else (seen, 0)
                    terms = starts[t, layer - 1, k + 1] - starts[t, layer - 1, 1] if layer else k
                    if layer < layers:
                        begin, end = starts[t, layer, k], starts[t, layer, k + 1]
                        into, into_at = active, layer * most + begin - starts[t, layer, 1]
                    else:
                        begin, end, into, into_at = k * size, (k + 1) * size, phi, 0
                    stride = inputs[t, layer]
                    # The last panel of a group writes the first rows of the next, which are computed later.
                    for column in range(0, columns, WIDE):
                        for row in range(begin, end, ROWS):
                            at = weights_at[t, layer] + row * stride
                            wide_panel(
                                into, (into_at + row - begin) * width + column, width, weights, at, stride, 1, source,
                                source_at + column, width, terms,
                            )  # fmt: skip
                    if layer < layers:
                        rows = active[into_at : into_at + end - begin]
                        _add_and_selu(rows, from_x, from_x_at[t, layer] + begin, low, count, draws)
                j = order[t, k]
                if not inverse:
                    seen[k, :columns] = now[j, :columns]
                row = from_x_at[t, layers] + k * size
                _splines(phi, k > 0, now[j], steep, from_x, row, low, count, draws, bins, inverse)
                if inverse:
                    seen[k, :columns] = now[j, :columns]
                for i in range(columns):
                    slope[i] *= steep[i]
                multiplied += 1
                if multiplied == SLOPES or (t == transforms - 1 and k == dim - 1):
                    for i in range(columns):
                        logs[i] += math.log(slope[i])
                    slope[:], multiplied = 1, 0
        for i in range(draws):
            for b in range(count):
                log_slope[first + i, low + b] = logs[b * draws + i]
                for d in range(dim):
                    out[first + i, low + b, d] = now[d, b * draws + i]


@fused
def _splines(
    phi: Any, moving: Any, points: Any, slope: Any, from_x: Any, row: Any, low: Any, count: Any, draws: Any, bins: Any,
    inverse: Any,
) -> None:  # fmt: skip
    """Splines or their inverses in the place of points, and their forward slopes, for draws of some observations.

    The numbers of a spline are phi and what x adds to it; x alone unless `moving`.
    """
    size = 3 * bins - 1
    # Made here, so that a compiler knows that nothing else lies in them.
    e, s = np.empty((size, WIDTH), np.float32), np.empty((10, WIDTH))
    squash = _F(-2 / math.log(1e-3))
    for b in range(count):
        for first in range(0, draws, WIDTH):
            width, at = min(WIDTH, draws - first), b * draws + first
            value = points[at : at + width]
            if moving or first == 0:
                for j in range(size):
                    more, c = from_x[row + j, low + b], squash if j < 2 * bins else squash / _F(2)
                    if moving:
                        of = phi[j, at : at + width]
                        for i in range(width):
                            v = of[i] + more
                            e[j, i] = exponential(v / (_F(1) + abs(v) * c))
                    else:
                        e[j] = exponential(more / (_F(1) + abs(more) * c))
            # Sums of widths and heights: all of them, and up to the left end of the bin; then the bin, and its slopes.
            s[:, :width] = 0.0
            all_w, all_h, sum_w, sum_h, x0, w, y0, h, d0, d1 = s
            for j in range(bins):
                for i in range(width):
                    all_w[i] += e[j, i]
                    all_h[i] += e[bins + j, i]
            for i in range(width):
                w[i], h[i], d0[i], d1[i] = e[0, i], e[bins, i], 1.0, e[2 * bins, i] if bins > 1 else 1.0
            for j in range(1, bins):
                for i in range(width):
                    sum_w[i] += e[j - 1, i]
                    sum_h[i] += e[bins + j - 1, i]
                    knot = (sum_h[i] / all_h[i] if inverse else sum_w[i] / all_w[i]) * 2 * BOUND - BOUND
                    if knot < value[i]:
                        x0[i], w[i], y0[i], h[i] = sum_w[i], e[j, i], sum_h[i], e[bins + j, i]
                        d0[i], d1[i] = e[2 * bins + j - 1, i], e[2 * bins + j, i] if j < bins - 1 else 1.0
            for i in range(width):
                v, unit_w, unit_h = float(value[i]), 2 * BOUND / all_w[i], 2 * BOUND / all_h[i]
                left, wide, lower, high = x0[i] * unit_w - BOUND, w[i] * unit_w, y0[i] * unit_h - BOUND, h[i] * unit_h
                rise = high / wide
                bend = d0[i] + d1[i] - 2 * rise
                if inverse:  # t solves α t² + β t + γ = 0; with the root in the denominator it is stable for small α
                    over = v - lower
                    alpha, beta = high * (rise - d0[i]) + over * bend, high * d0[i] - over * bend
                    root = beta * beta + 4 * alpha * rise * over
                    t = 2 * rise * over / (beta + math.sqrt(root if root > 0.0 else 0.0))
                else:
                    t = (v - left) / wide
                u = 1 - t
                q = 1 / (rise + bend * t * u)
                found = left + t * wide if inverse else lower + high * (rise * t * t + d0[i] * t * u) * q
                steep = rise * rise * (2 * rise * t * u + d0[i] * u * u + d1[i] * t * t) * q * q
                inside = (v > -BOUND) & (v <= BOUND)
                points[at + i] = found if inside else v
                slope[at + i] = steep if inside else 1.0
