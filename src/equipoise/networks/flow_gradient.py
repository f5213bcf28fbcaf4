r"""The log-ratio of a spline flow at one θ for each x, with its gradient by hand, for training on a CPU.

Small networks leave automatic differentiation little to do and much to keep in order. Here all of it is compiled loops
over one member. Units are rows and points are columns, so that neighbouring numbers belong to neighbouring points.

**Sorted units.** A hidden unit sees x and the first k coordinates of its transform's order, for some k. A mask holds
the weights between units at zero where the second sees more than the first. Sorted by k, what is not masked in a row of
weights is its beginning, so that a product leaves out most of what is masked (`panels`). `Packing` says where each
weight lies in the sorted, padded matrices.

**Gradient.** With \(h_i\) what layer i computes, \(a_i = \text{SELU}(h_i)\) and cotangents \(\bar h\),

.. math:: \bar W_i = \bar h_i a_{i-1}^\top, \quad \bar b_i = \bar h_i 1, \quad \bar a_{i-1} = W_i^\top \bar h_i, \quad
    \bar h_{i-1} = \bar a_{i-1} \odot \text{SELU}'(h_{i-1}),

where SELU' is the scale for a > 0, and else a + scale · α. `spline_kernels` has the gradient of a spline.

What a compiled function calls becomes a part of it. So a result does not depend on which of the two was compiled by
this process and which was read from the disk.
"""

from __future__ import annotations

__all__ = ["Packing", "Room", "backward", "forward", "log_ratio_with_gradient", "new_room", "read_points"]

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.support.devices import compiled

from .flow_kernels import ALPHA, SCALE, SLOPES, WIDTH, exponential
from .panels import NARROW, ROWS, WIDE, narrow_panel, wide_panel
from .spline import BOUND

_F = np.float32
#: Sums of products are rounded once, where the processor can.
inlined = compiled(fastmath={"contract"}, forceinline=True)
#: Rows and columns of a matrix of weights are padded to multiples of these, columns of points to one of `WIDE`.
PAD_ROWS, PAD_COLUMNS = 8, NARROW
#: Numbers that are summed apart, so that a processor adds them at once.
LANES = 16


class Packing(NamedTuple):
    """Where the weights of a flow lie, for T transforms of L layers; plain arrays, as compiled code takes them.

    Attributes:
        sizes: coordinates, features, bins, and 1 for a normal base (0 for a uniform one).
        entries: of each packed number, its place in a member's row of the buffer; -1 for zeros.
        rows, columns: of the matrix of each layer, with shape `(L,)`.
        weights, biases: the first packed number of each, with shape `(T, L)`.
        sees: how many columns each panel of rows sees, with shape `(T, L, ·)`.
        seen_from: the first row that sees a panel of columns, with shape `(T, L, ·)`.
        order: of the coordinates, with shape `(T, D)`.
    """

    sizes: np.ndarray
    entries: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    biases: np.ndarray
    sees: np.ndarray
    seen_from: np.ndarray
    order: np.ndarray

    @classmethod
    def of(
        cls,
        sizes: tuple[int, int, int, bool],
        places: Sequence[Sequence[Sequence[int]]],
        stages: Sequence[tuple[list[int], list[list[Tensor]]]],
        trainable: np.ndarray,
    ) -> Packing:
        """The packing of a flow.

        Arguments:
            sizes: coordinates, features, bins, and whether the base is normal.
            places: for each transform and layer, where weight and bias lie in a row of the buffer, outputs and inputs.
            stages: for each transform, the order of its coordinates and the units of each hidden layer by how many
                coordinates they see.
            trainable: 0 for entries of a row that a mask holds at zero.
        """
        dim, features, bins, _ = sizes
        rows = [_padded(layer[2], PAD_ROWS) for layer in places[0]]
        columns = [_padded(layer[3], PAD_COLUMNS) for layer in places[0]]
        index: list[np.ndarray] = []
        sees: list[np.ndarray] = []
        seen_from: list[np.ndarray] = []
        weights, biases, at = [], [], 0
        for layers, (order, groups) in zip(places, stages, strict=True):
            numbers = np.array(order)[:, None] * (3 * bins - 1) + np.arange(3 * bins - 1)
            units = [torch.cat(group).cpu().numpy() for group in groups] + [numbers.ravel()]
            # One coordinate has no earlier one, and its hypernetwork reads x alone.
            inputs = np.arange(features) if dim == 1 else np.concatenate([dim + np.arange(features), order])
            for i, (weight, bias, _, width) in enumerate(layers):
                matrix: np.ndarray = np.full((rows[i], columns[i]), -1)
                offset: np.ndarray = np.full(rows[i], -1)
                own = weight + units[i][:, None] * width + inputs
                matrix[: len(units[i]), : len(inputs)] = np.where(trainable[own] > 0, own, -1)
                offset[: len(units[i])] = bias + units[i]
                index += [matrix.ravel(), offset]
                weights.append(at)
                biases.append(at + matrix.size)
                at += matrix.size + len(offset)
                there: np.ndarray = np.any((matrix >= 0).reshape(-1, ROWS, columns[i]), axis=1)
                sees.append(np.where(np.any(there, axis=1), columns[i] - there[:, ::-1].argmax(1), 0))
                there = np.any((matrix >= 0).T.reshape(-1, ROWS, rows[i]), axis=1)
                seen_from.append(np.where(np.any(there, axis=1), there.argmax(1), rows[i]))
                inputs = units[i]
        shape = (len(places), len(rows))
        return cls(
            np.array([*sizes]),
            np.concatenate(index),
            np.array(rows),
            np.array(columns),
            np.array(weights).reshape(shape),
            np.array(biases).reshape(shape),
            _table(sees, shape),
            _table(seen_from, shape),
            np.array([order for order, _ in stages]),
        )


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to


def _table(rows: list[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """Rows of several lengths as an array `(*shape, ·)`."""
    found = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for into, row in zip(found, rows, strict=True):
        into[: len(row)] = row
    return found.reshape(*shape, -1)


class Room(NamedTuple):
    """Room for all that a step computes of B points, padded to B' columns.

    Attributes:
        first, first_points: what the first layers read, with shapes `(columns, B')` and `(B', columns)`; the features
            stay, the coordinates are those of one transform at a time.
        inputs: what the other layers read, with shape `(T, L, ·, B')`.
        phi, e: the numbers of the splines and their exponentials, with shape `(T, rows, B')`.
        v: coordinates before, between and after the transforms, with shape `(T + 1, D, B')`.
        slopes: of one transform, with shape `(D, B')`.
        to_v: cotangents of coordinates, with shape `(2, D, B')`.
        to_h: cotangents of layers, with shape `(2, ·, B')`.
        points: inputs of one layer with one row per point, `B' × ·` numbers.
        cotangents: of the log-ratios, with shape `(B',)`.
        ratio: the log-ratios, with shape `(B',)`.
    """

    first: np.ndarray
    first_points: np.ndarray
    inputs: np.ndarray
    phi: np.ndarray
    e: np.ndarray
    v: np.ndarray
    slopes: np.ndarray
    to_v: np.ndarray
    to_h: np.ndarray
    points: np.ndarray
    cotangents: np.ndarray
    ratio: np.ndarray


def new_room(packing: Packing, batch: int) -> Room:
    """Room for up to so many points."""
    (dim, *_), (transforms, layers) = packing.sizes, packing.weights.shape
    width, numbers = _padded(batch, WIDE), packing.rows[-1]
    most = int(max([*packing.rows, *packing.columns]))

    def new(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)  # padding must be finite, and what no weight reads is never written

    return Room(
        new(packing.columns[0], width),
        new(width, packing.columns[0]),
        new(transforms, layers, most, width),
        new(transforms, numbers, width),
        new(transforms, numbers, width),
        new(transforms + 1, dim, width),
        new(dim, width),
        new(2, dim, width),
        new(2, most, width),
        new(width * most),
        new(width),
        new(width),
    )


def log_ratio_with_gradient(
    packing: Packing, weights: Tensor, u: Tensor, features: Tensor, cotangents: Tensor
) -> tuple[Tensor, Tensor]:
    """log base(T(u)) + log|T'(u)| of one member, and the gradient of its products with cotangents to the weights.

    Arguments:
        packing: of the flow.
        weights: a row of the buffer, with shape `(P,)`, in single precision as everything here.
        u: coordinates, with shape `(B, D)`.
        features: of x, with shape `(B, C)`.
        cotangents: with shape `(B,)`.

    Returns:
        Log-ratios without their offset, with shape `(B,)`, and the gradient, with shape `(P,)`.
    """
    batch, own = len(u), packing.entries >= 0
    room = new_room(packing, batch)
    packed, gradient = (np.zeros(len(own), np.float32) for _ in range(2))
    packed[own] = weights.numpy()[packing.entries[own]]
    read_points(packing, room, u.numpy(), features.numpy(), np.arange(batch))
    _forward(packing, room, packed, batch)
    room.cotangents[:batch] = cotangents.numpy()
    _backward(packing, room, packed, gradient, batch)
    found = torch.zeros_like(weights)
    found.numpy()[packing.entries[own]] = gradient[own]
    return torch.from_numpy(room.ratio[:batch].copy()), found


@compiled(fastmath={"contract"})
def _forward(packing: Any, room: Any, weights: Any, batch: Any) -> None:
    forward(packing, room, weights, batch)


@compiled(fastmath={"contract"})
def _backward(packing: Any, room: Any, weights: Any, gradient: Any, batch: Any) -> None:
    backward(packing, room, weights, gradient, batch)


@inlined
def read_points(packing: Any, room: Any, u: Any, features: Any, rows: Any) -> None:
    """Put some rows of coordinates `(N, D)` and features `(N, C)` where `forward` reads them; columns beyond get 0."""
    dim, count = packing.sizes[0], packing.sizes[1]
    first, points, v = room.first, room.first_points, room.v[0]
    for b in range(len(rows)):
        row = rows[b]
        for c in range(count):
            points[b, c] = features[row, c]
        for d in range(dim):
            v[d, b] = u[row, d]
    points[len(rows) :] = 0
    v[:, len(rows) :] = 0
    for low in range(0, len(points), LANES):  # pieces of rows that stay in the cache
        for c in range(count):
            for b in range(low, low + LANES):
                first[c, b] = points[b, c]


@inlined
def forward(packing: Any, room: Any, w: Any, batch: Any) -> None:
    """The log-ratios of the points that were read, without their offset; the room keeps what their gradient needs."""
    (transforms, layers), width = packing.weights.shape, room.first.shape[1]
    dim, features, bins, normal = packing.sizes[0], packing.sizes[1], packing.sizes[2], packing.sizes[3]
    ratio, total = room.ratio, np.zeros(width)
    product = np.empty(width)
    for t in range(transforms):
        if dim > 1:
            for k in range(dim):
                room.first[features + k] = room.v[t, packing.order[t, k]]
        for i in range(layers):
            a, a_at = room.first, 0
            if i:
                a, a_at = room.inputs.reshape(-1, width), (t * layers + i) * room.inputs.shape[2] * width
            out, out_at = room.inputs.reshape(-1, width), (t * layers + i + 1) * room.inputs.shape[2] * width
            if i == layers - 1:
                out, out_at = room.phi.reshape(-1, width), t * room.phi.shape[1] * width
            at, columns = packing.weights[t, i], packing.columns[i]
            for low in range(0, width, WIDE):
                for j in range(packing.rows[i] // ROWS):
                    row = j * ROWS
                    wide_panel(
                        out, out_at + row * width + low, width, w, at + row * columns, columns, 1, a, a_at + low, width,
                        packing.sees[t, i, j],
                    )  # fmt: skip
            if i < layers - 1:
                _selu(room.inputs[t, i + 1], w[packing.biases[t, i] : packing.biases[t, i] + packing.rows[i]])
        bias = w[packing.biases[t, -1] : packing.biases[t, -1] + packing.rows[-1]]
        _splines(room.phi[t], bias, room.e[t], room.v[t], room.v[t + 1], room.slopes, packing.order[t], bins)
        for first in range(0, dim, SLOPES):
            product[:] = 1
            for d in range(first, min(first + SLOPES, dim)):
                for b in range(batch):
                    product[b] *= room.slopes[d, b]
            for b in range(batch):
                total[b] += math.log(product[b])
    for b in range(batch):
        ratio[b] = total[b]
    if normal:
        total[:] = 0
        for d in range(dim):
            for b in range(batch):
                v = float(room.v[-1, d, b])
                total[b] += v * v
        for b in range(batch):
            ratio[b] -= 0.5 * (total[b] + dim * math.log(2 * math.pi))


@inlined
def backward(packing: Any, room: Any, w: Any, gradient: Any, batch: Any) -> None:
    """Write the gradient of the log-ratios times their cotangents, which are 0 beyond the points, to packed weights.

    Where a mask holds a weight at zero, what is written means nothing.
    """
    (transforms, layers), width = packing.weights.shape, room.first.shape[1]
    dim, features, bins, normal = packing.sizes[0], packing.sizes[1], packing.sizes[2], packing.sizes[3]
    most, cotangents, to_h = room.to_h.shape[1], room.cotangents, room.to_h.reshape(-1, width)
    now = 0
    for d in range(dim):
        for b in range(width):
            room.to_v[0, d, b] = -cotangents[b] * room.v[-1, d, b] if normal else _F(0)
    for t in range(transforms - 1, -1, -1):
        bias = gradient[packing.biases[t, -1] : packing.biases[t, -1] + packing.rows[-1]]
        _splines_back(
            room.phi[t], room.e[t], room.v[t], room.to_v[now], cotangents, room.to_v[1 - now], bias, packing.order[t],
            bins,
        )  # fmt: skip
        now, turn = 1 - now, 0
        if dim > 1:
            for k in range(dim):
                for b in range(batch):
                    room.first_points[b, features + k] = room.v[t, packing.order[t, k], b]
        for i in range(layers - 1, -1, -1):
            at, columns, rows = packing.weights[t, i], packing.columns[i], packing.rows[i]
            h, h_at = room.phi.reshape(-1, width), t * room.phi.shape[1] * width
            if i < layers - 1:
                h, h_at = to_h, (1 - turn) * most * width
            points = room.first_points.reshape(-1)
            if i:
                points = room.points
                _transpose(room.inputs[t, i], points, columns, batch)
            for j in range(rows // ROWS):
                low, end = 0, packing.sees[t, i, j]
                while low < end:
                    if end - low > NARROW and low + WIDE <= columns:
                        wide_panel(
                            gradient, at + j * ROWS * columns + low, columns, h, h_at + j * ROWS * width, width, 1,
                            points, low, columns, batch,
                        )  # fmt: skip
                        low += WIDE
                    else:
                        narrow_panel(
                            gradient, at + j * ROWS * columns + low, columns, h, h_at + j * ROWS * width, width, 1,
                            points, low, columns, batch,
                        )  # fmt: skip
                        low += NARROW
            # The cotangents of the layer's inputs; of the first layer's, those of coordinates that a transform made.
            begin = 0 if i else features // ROWS
            end = columns // ROWS if i or (t and dim > 1) else begin
            for low in range(0, width, WIDE):
                for j in range(begin, end):
                    row = packing.seen_from[t, i, j]
                    wide_panel(
                        to_h, (turn * most + j * ROWS) * width + low, width, w, at + row * columns + j * ROWS, 1,
                        columns, h, h_at + row * width + low, width, rows - row,
                    )  # fmt: skip
            if i:
                bias = gradient[packing.biases[t, i - 1] : packing.biases[t, i - 1] + packing.rows[i - 1]]
                _selu_back(room.inputs[t, i], room.to_h[turn], bias)
            elif end > begin:
                for k in range(dim):
                    for b in range(width):
                        room.to_v[now, packing.order[t, k], b] += room.to_h[turn, features + k, b]
            turn = 1 - turn


@inlined
def _transpose(a: Any, points: Any, columns: Any, batch: Any) -> None:
    """From `(·, B')` to one row per point, with so many columns."""
    for low in range(0, columns, LANES):
        for b in range(batch):
            for c in range(low, low + LANES):
                points[b * columns + c] = a[c, b]


@inlined
def _sum(values: Any) -> Any:
    """The sum of an array whose length is a multiple of `LANES`."""
    lanes = np.zeros(LANES, np.float32)
    for first in range(0, len(values), LANES):
        for lane in range(LANES):
            lanes[lane] += values[first + lane]
    total = _F(0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@inlined
def _selu(h: Any, bias: Any) -> None:
    """SELU of h + bias in the place of h, `(·, B')`, for as many rows as there are biases."""
    for u in range(len(bias)):
        more, values = bias[u], h[u]
        for i in range(len(values)):
            v = values[i] + more
            negative = _F(SCALE * ALPHA) * (exponential(v if v < _F(0) else _F(0)) - _F(1))
            values[i] = negative if v < _F(0) else _F(SCALE) * v


@inlined
def _selu_back(a: Any, d: Any, to_bias: Any) -> None:
    """From cotangents of a = SELU(h) to those of h, in their place, `(·, B')`; and their sums over points."""
    for u in range(len(to_bias)):
        values, of = d[u], a[u]
        for i in range(len(values)):
            values[i] *= of[i] + _F(SCALE * ALPHA) if of[i] < _F(0) else _F(SCALE)
        to_bias[u] = _sum(values)


@inlined
def _find(e: Any, value: Any, bins: Any, s: Any, which: Any) -> None:
    """Where values `(width,)` lie among knots: into s, `(8, ·)`, left end and width, lower end and height of the bin,
    the slopes at its ends, and the units of widths and heights; and which bin it is.
    """
    width = len(value)
    x0, w, y0, h, d0, d1, all_w, all_h = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
    for i in range(width):
        all_w[i] = e[0, i]
        all_h[i] = e[bins, i]
        x0[i] = y0[i] = 0.0
        w[i], h[i], which[i] = e[0, i], e[bins, i], np.int32(0)
        d0[i] = 1.0
        d1[i] = e[2 * bins, i] if bins > 1 else 1.0
    for j in range(1, bins):
        for i in range(width):
            all_w[i] += e[j, i]
            all_h[i] += e[bins + j, i]
    left, low = s[8], s[9]
    for i in range(width):
        left[i] = low[i] = 0.0
        all_w[i] = 2 * BOUND / all_w[i]
        all_h[i] = 2 * BOUND / all_h[i]
    for j in range(1, bins):
        more = e[2 * bins + j] if j < bins - 1 else e[2 * bins + j - 1]
        last, number = j == bins - 1, np.int32(j)
        for i in range(width):
            left[i] += e[j - 1, i]
            low[i] += e[bins + j - 1, i]
            here = left[i] * all_w[i] - BOUND < value[i]
            x0[i] = left[i] if here else x0[i]
            y0[i] = low[i] if here else y0[i]
            w[i] = e[j, i] if here else w[i]
            h[i] = e[bins + j, i] if here else h[i]
            d0[i] = e[2 * bins + j - 1, i] if here else d0[i]
            d1[i] = (1.0 if last else more[i]) if here else d1[i]
            which[i] = number if here else which[i]
    for i in range(width):
        x0[i] = x0[i] * all_w[i] - BOUND
        w[i] *= all_w[i]
        y0[i] = y0[i] * all_h[i] - BOUND
        h[i] *= all_h[i]


@inlined
def _splines(phi: Any, bias: Any, e: Any, points: Any, out: Any, slope: Any, order: Any, bins: Any) -> None:
    """Splines at points `(D, B')` and their slopes. To their numbers phi, `(·, B')`, 3K - 1 rows for each coordinate in
    its order, the bias is added, and e gets the exponentials of what is left of them after squashing.
    """
    size = 3 * bins - 1
    squash = _F(-2 / math.log(1e-3))
    s, which = np.empty((10, WIDTH)), np.empty(WIDTH, np.int32)
    for k in range(len(order)):
        d = order[k]
        for j in range(size):
            more, c = bias[k * size + j], squash if j < 2 * bins else squash / _F(2)
            of, into = phi[k * size + j], e[k * size + j]
            for i in range(len(of)):
                v = of[i] + more
                of[i] = v
                into[i] = exponential(v / (_F(1) + abs(v) * c))
        for first in range(0, points.shape[1], WIDTH):
            value = points[d, first : first + WIDTH]
            _find(e[k * size : (k + 1) * size, first : first + WIDTH], value, bins, s, which)
            into, steep = out[d, first : first + WIDTH], slope[d, first : first + WIDTH]
            x0, w, y0, h, d0, d1 = s[0], s[1], s[2], s[3], s[4], s[5]
            for i in range(len(value)):
                v = float(value[i])
                rise = h[i] / w[i]
                t = (v - x0[i]) / w[i]
                u = 1 - t
                q = 1 / (rise + (d0[i] + d1[i] - 2 * rise) * t * u)
                found = y0[i] + h[i] * (rise * t * t + d0[i] * t * u) * q
                steepness = rise * rise * (2 * rise * t * u + d0[i] * u * u + d1[i] * t * t) * q * q
                inside = (v > -BOUND) & (v <= BOUND)
                into[i] = found if inside else v
                steep[i] = steepness if inside else 1.0


@inlined
def _splines_back(
    phi: Any, e: Any, points: Any, cotangents: Any, log_cotangents: Any, to_points: Any, to_bias: Any, order: Any,
    bins: Any,
) -> None:  # fmt: skip
    """The gradients to points `(D, B')`, to phi, in its place, and to what was added to it."""
    size = 3 * bins - 1
    squash = _F(-2 / math.log(1e-3))
    s, which = np.empty((10, WIDTH)), np.empty(WIDTH, np.int32)
    g = np.empty((8, WIDTH), np.float32)
    for k in range(len(order)):
        d = order[k]
        rows = slice(k * size, (k + 1) * size)
        for first in range(0, points.shape[1], WIDTH):
            here = slice(first, first + WIDTH)
            value, exps = points[d, here], e[rows, here]
            _find(exps, value, bins, s, which)
            _slopes_back(value, s, cotangents[d, here], log_cotangents[here], g, to_points[d, here])
            of = phi[rows, here]
            for part in range(2):
                before, own, after = g[3 * part], g[3 * part + 1], g[3 * part + 2]
                for j in range(bins):
                    numbers, of_e, number = of[part * bins + j], exps[part * bins + j], np.int32(j)
                    for i in range(len(value)):
                        share = before[i] if number < which[i] else after[i]
                        share = own[i] if number == which[i] else share
                        r = _F(1) / (_F(1) + abs(numbers[i]) * squash)
                        numbers[i] = share * of_e[i] * r * r
            to_d0, to_d1 = g[6], g[7]
            for j in range(bins - 1):
                numbers, of_e, number = of[2 * bins + j], exps[2 * bins + j], np.int32(j)
                for i in range(len(value)):
                    to = to_d1[i] if number == which[i] else _F(0)
                    to = to_d0[i] if number + np.int32(1) == which[i] else to
                    r = _F(1) / (_F(1) + abs(numbers[i]) * (squash / _F(2)))
                    numbers[i] = to * of_e[i] * r * r
        for j in range(size):
            to_bias[k * size + j] = _sum(phi[k * size + j])


@inlined
def _slopes_back(value: Any, s: Any, cotangents: Any, log_cotangents: Any, g: Any, to_points: Any) -> None:
    """The gradients of `spline_kernels` in the bin that s describes: to points, and into g, `(8, ·)`, those to shares
    of the width before the bin, of the bin and after it; the same for heights; and to both slopes.
    """
    x0, w, y0, h, d0, d1, unit_w, unit_h = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
    for i in range(len(value)):
        v, a, b = float(value[i]), float(cotangents[i]), float(log_cotangents[i])
        inside = (v > -BOUND) & (v <= BOUND)
        over_w = 1 / w[i]
        rise, t = h[i] * over_w, (v - x0[i]) * over_w
        u, m, bend = 1 - t, t * (1 - t), d0[i] + d1[i] - 2 * rise
        q = 1 / (rise + bend * m)
        part = (rise * t * t + d0[i] * m) * q
        inner = 2 * rise * m + d0[i] * u * u + d1[i] * t * t
        over = 1 / inner
        to_t = a * h[i] * rise * inner * q * q + b * (
            2 * (rise * (u - t) - d0[i] * u + d1[i] * t) * over - 2 * bend * (u - t) * q
        )
        to_s = a * h[i] * (t * t - part * (1 - 2 * m)) * q + 2 * b * (1 / rise + m * over - (1 - 2 * m) * q)
        to_points[i] = to_t * over_w if inside else a
        before_w, here_w = -to_t * over_w, -(to_s * rise + to_t * t) * over_w
        here_h = a * part + to_s * over_w
        mean_w = (before_w * (x0[i] + BOUND) + here_w * w[i]) / (2 * BOUND)
        mean_h = (a * (y0[i] + BOUND) + here_h * h[i]) / (2 * BOUND)
        to_d0 = a * h[i] * m * (1 - part) * q + b * (u * u * over - 2 * m * q)
        to_d1 = -a * h[i] * m * part * q + b * (t * t * over - 2 * m * q)
        g[0, i] = (before_w - mean_w) * unit_w[i] if inside else 0.0
        g[1, i] = (here_w - mean_w) * unit_w[i] if inside else 0.0
        g[2, i] = -mean_w * unit_w[i] if inside else 0.0
        g[3, i] = (a - mean_h) * unit_h[i] if inside else 0.0
        g[4, i] = (here_h - mean_h) * unit_h[i] if inside else 0.0
        g[5, i] = -mean_h * unit_h[i] if inside else 0.0
        g[6, i] = to_d0 if inside else 0.0
        g[7, i] = to_d1 if inside else 0.0
