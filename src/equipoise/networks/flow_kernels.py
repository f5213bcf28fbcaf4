r"""Autoregressive flows on a CPU without gradients, at many θ for each x: units are rows and points are columns.

The coordinates of a transform are solved one after the other, as `Flow._stages` says: the k-th needs the units that see
at most k coordinates, so that every unit is computed once, and those that see x alone once for all points of an x. Here
the units are sorted by k, which makes each step one product of a block of the weights with a block of activations. The
points of one member go through all transforms in blocks whose activations stay in the cache, and torch's threads share
the blocks.

What is not a matrix product is a compiled loop over neighbouring points, which processors do many at a time: the SELU
with what x adds to it, and the splines (`spline` has their formulas). Both need exponentials, hence one that is made of
sums and products: with n the whole number nearest to v/log 2, e^v = 2^n e^(v - n log 2), and a polynomial of degree 7
(Cephes) for the second factor; relative errors are below 2e-7.
"""

from __future__ import annotations

__all__ = ["SortedTransform", "carried"]

import dataclasses
import math
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise, product
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from equipoise.support.devices import compiled, workers

from .spline import BOUND
from .stacked_weights import StackedWeights, dense, selu

#: Points whose activations are held at once, and points whose splines are.
BLOCK, WIDTH = 1 << 11, 128
#: Of the SELU.
SCALE, ALPHA = 1.0507009873554805, 1.6732632423543772


@dataclasses.dataclass(frozen=True)
class SortedTransform:
    """One transform of M members, for B observations.

    Attributes:
        order: of the D coordinates.
        starts: for each hidden layer, where the units that see k coordinates begin, for k = 0, …, D.
        weights: of each layer, with shape `(M, O, I)`: the first reads coordinates, the others units that see some.
        from_x: what x alone adds to each layer, with shape `(M, O, B)`.
    """

    order: list[int]
    starts: list[list[int]]
    weights: list[Tensor]
    from_x: list[Tensor]

    @classmethod
    def of(
        cls,
        p: StackedWeights,
        name: str,
        stage: tuple[list[int], list[list[Tensor]]],
        shared: tuple[Tensor | None, Tensor],
        size: int,
    ) -> SortedTransform:
        """From the weights `name.i.weight`, the stages of the transform, its first layer and the numbers of a map."""
        (order, groups), (w_u, first) = stage, shared
        units = [torch.cat(group) for group in groups]
        starts = [[0, *accumulate(map(len, group))] for group in groups]
        numbers = (torch.tensor(order).unsqueeze(1) * size + torch.arange(size)).flatten()
        h = first[..., units[0]]
        weights = [h.new_zeros(len(h), len(units[0]), 0) if w_u is None else w_u[:, units[0]][..., order]]
        from_x = [h.mT.contiguous()]
        for i, rows in enumerate([*units[1:], numbers], 1):
            weight, bias = p[f"{name}.{i}.weight"][:, rows], p[f"{name}.{i}.bias"][:, rows]
            alone, others = units[i - 1].split([starts[i - 1][1], len(units[i - 1]) - starts[i - 1][1]])
            h = dense(selu(h[..., : len(alone)].clone()), weight[..., alone], bias)
            weights.append(weight[..., others])
            from_x.append(h.mT.contiguous())
        return cls(order, starts, weights, from_x)

    @property
    def units(self) -> tuple[tuple[int, ...], ...]:
        """`starts`, hashable: transforms for which it is equal share their room."""
        return tuple(map(tuple, self.starts))

    def of_member(self, m: int) -> list[list[tuple[Tensor, Any, int]]]:
        """For each coordinate and layer: the weights, what x adds, and the row of that at which the units begin."""
        depth, dim = len(self.starts), len(self.order)
        from_x = [values[m].numpy() for values in self.from_x]
        size = len(from_x[-1]) // dim
        steps = []
        for k in range(dim):
            starts = [*((s[k], s[k + 1]) for s in self.starts), (k * size, (k + 1) * size)]
            below = [k, *(s[k + 1] - s[1] for s in self.starts)]
            steps.append(
                [(self.weights[i][m, slice(*starts[i]), : below[i]], from_x[i], starts[i][0]) for i in range(depth + 1)]
            )
        return steps


class _Room:
    """Room for the activations of a block of points `(B', S)`.

    Attributes:
        seen: coordinates of a transform's input in their order, with shape `(D, B' S)`.
        layers: for each coordinate but the first, for each hidden layer: what it reads, and where its units go, as a
            tensor and as an array with the shape `(U, B', S)`.
        last: what the last layer reads for each coordinate.
        numbers, phi: where the numbers of its map go, as a tensor and as an array `(3K - 1, B', S)`.
    """

    def __init__(self, starts: Sequence[Sequence[int]], size: int, shape: tuple[int, ...]) -> None:
        columns, dim = math.prod(shape), len(starts[0]) - 1
        self.seen = torch.empty(dim, columns, dtype=torch.float32)
        active = [self.seen.new_empty(s[-1] - s[1], columns) for s in starts]
        self.layers: list[list[tuple[Tensor, Tensor, Any]]] = [[]]
        self.last = [self.seen]
        for k in range(1, dim):
            inputs, found = self.seen[:k], []
            for s, units in zip(starts, active, strict=True):
                into = units[s[k] - s[1] : s[k + 1] - s[1]]
                found.append((inputs, into, into.view(-1, *shape).numpy()))
                inputs = units[: s[k + 1] - s[1]]
            self.layers.append(found)
            self.last.append(inputs)
        self.numbers = self.seen.new_empty(size, columns)
        self.phi = self.numbers.view(size, *shape).numpy()


def _walk(
    room: _Room,
    order: list[int],
    steps: list[list[tuple[Tensor, Any, int]]],
    low: int,
    v: Tensor,
    bins: int,
    inverse: bool,
) -> tuple[Tensor, Tensor]:
    """One transform of one member or its inverse at v with shape `(D, B', S)`, S points for each of the observations
    from the number `low` on; and its slopes, with the same shape.
    """
    out, slope = torch.empty_like(v), torch.empty_like(v)
    given, found, steep = v.numpy(), out.numpy(), slope.numpy()
    seen, known = room.seen.numpy(), found if inverse else given
    for k, j in enumerate(order):
        for (inputs, into, units), (weight, from_x, row) in zip(room.layers[k], steps[k][:-1], strict=k > 0):
            torch.mm(weight, inputs, out=into)
            _add_and_selu(units, from_x, row, low)
        weight, from_x, row = steps[k][-1]
        if k:
            torch.mm(weight, room.last[k], out=room.numbers)
        _splines(room.phi, k > 0, given[j], found[j], steep[j], from_x, row, low, bins, inverse)
        seen[k] = known[j].reshape(-1)
    return out, slope


def carried(
    transforms: Sequence[SortedTransform], v: Tensor, bins: int, *, inverse: bool = False
) -> tuple[Tensor, Tensor]:
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
    columns = v.reshape(members, draws, batch, dim).permute(0, 3, 2, 1)
    out, log_slope = v.new_empty(columns.shape), v.new_zeros(members, batch, draws)
    tall, wide = max(1, min(draws, BLOCK)), max(1, BLOCK // max(draws, 1))
    blocks = list(product(range(members), range(0, batch, wide), range(0, draws, tall)))

    @torch.no_grad()
    def carry(some: list[tuple[int, int, int]]) -> None:
        rooms: dict[Any, _Room] = {}
        for m, own in groupby(some, key=lambda block: block[0]):
            steps = [transform.of_member(m) for transform in transforms]
            for _, low, first in own:
                here = (m, slice(low, low + wide), slice(first, first + tall))
                block = columns[m, :, here[1], here[2]].contiguous()
                for transform, mine in zip(transforms, steps, strict=True):
                    key = (transform.units, block.shape)
                    if key not in rooms:
                        rooms[key] = _Room(transform.starts, 3 * bins - 1, tuple(block.shape[1:]))
                    block, slope = _walk(rooms[key], transform.order, mine, low, block, bins, inverse)
                    log_slope[here] += slope.log_().sum(0)
                out[m, :, here[1], here[2]] = block

    threads = min(torch.get_num_threads(), len(blocks))
    if threads <= 1:
        carry(blocks)
    else:
        cuts = [len(blocks) * k // threads for k in range(threads + 1)]
        list(workers(torch.get_num_threads()).map(carry, (blocks[i:j] for i, j in pairwise(cuts))))
    return out.permute(0, 3, 2, 1).reshape(v.shape), log_slope.mT.reshape(v.shape[:-1])


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
def _add_and_selu(h: Any, from_x: Any, row: Any, low: Any) -> None:
    """SELU of h + from_x in the place of h, for units `(U, B', S)` that begin at a row, observations at `low`."""
    for u in range(h.shape[0]):
        for b in range(h.shape[1]):
            more, values = from_x[row + u, low + b], h[u, b]
            for i in range(len(values)):
                v = values[i] + more
                negative = _F(SCALE * ALPHA) * (exponential(v if v < _F(0) else _F(0)) - _F(1))
                values[i] = negative if v < _F(0) else _F(SCALE) * v


@fused
def _splines(
    phi: Any, moving: Any, points: Any, out: Any, slope: Any, from_x: Any, row: Any, low: Any, bins: Any, inverse: Any
) -> None:
    """Splines or their inverses, and their forward slopes, at points `(B', S)`.

    The numbers of a spline are phi, `(3K - 1, B', S)`, and what x adds to it; x alone unless `moving`.
    """
    size = 3 * bins - 1
    e, s = np.empty((size, WIDTH), np.float32), np.empty((10, WIDTH))
    squash = _F(-2 / math.log(1e-3))
    for b in range(points.shape[0]):
        for first in range(0, points.shape[1], WIDTH):
            width = min(WIDTH, points.shape[1] - first)
            value = points[b, first : first + width]
            if moving or first == 0:
                for j in range(size):
                    more, c = from_x[row + j, low + b], squash if j < 2 * bins else squash / _F(2)
                    if moving:
                        of = phi[j, b, first : first + width]
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
                out[b, first + i] = found if inside else v
                slope[b, first + i] = steep if inside else 1.0
