r"""The log-ratio of a stack of spline flows at one θ for each x, with its gradient by hand: a training step on a CPU.

Small networks leave automatic differentiation little to do and much to keep in order: the matrix products are less than
half of such a step. Here units are rows and points are columns, as in `flow_kernels`. A layer is one product for all
members, whose result is then changed in place by one loop over neighbouring points, and its gradient is two products,
of which the first goes to where the optimiser reads it.

With \(h_i\) what layer i computes, \(a_i = \text{SELU}(h_i)\) and cotangents \(\bar h\), the gradients are

.. math:: \bar W_i = \bar h_i a_{i-1}^\top, \quad \bar b_i = \bar h_i 1, \quad \bar a_{i-1} = W_i^\top \bar h_i, \quad
    \bar h_{i-1} = \bar a_{i-1} \odot \text{SELU}'(h_{i-1}),

where SELU' is the scale for a > 0, and else a + scale · α. `spline_kernels` has the gradient of a spline.
"""

from __future__ import annotations

__all__ = ["Shape", "log_ratio", "release"]

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from equipoise.support.devices import compiled

from .flow_kernels import ALPHA, SCALE, WIDTH, _exp, fused
from .spline import BOUND

_F = np.float32
#: As `fused`, and sums in any order, so that they use all lanes of a processor.
summed = compiled(fastmath={"contract", "reassoc", "nsz"})


class Shape(NamedTuple):
    """Of a flow: coordinates, bins, whether the base is normal (else uniform), and where the weights of each transform
    lie in a row of the buffer: for each layer the first entries of weight and bias, outputs and inputs.
    """

    dim: int
    bins: int
    normal: bool
    layers: tuple[tuple[tuple[int, ...], ...], ...]


def log_ratio(shape: Shape, weights: Tensor, u: Tensor, offset: Tensor, features: Tensor) -> Tensor:
    """log base(T(u)) + log|T'(u)| + offset, with shape `(M, B)` and a gradient to the weights.

    Arguments:
        shape: of the flow.
        weights: the buffer, with shape `(M, P)`, in single precision as everything here.
        u: coordinates, with shape `(M, B, D)`.
        offset: with shape `(M, B)`.
        features: of x, with shape `(M, B, C)`.
    """
    found: Tensor = _LogRatio.apply(weights, u, features, shape)
    return found + offset


def release() -> None:
    """Free the memory that is kept for the next step."""
    _Room.free.clear()


class _LogRatio(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, u: Tensor, features: Tensor, shape: Shape) -> Tensor:
        room = _Room.of(shape, *features.shape)
        ratio = _forward(room, weights.detach(), u, features)
        if weights.requires_grad:
            ctx.room = room
            ctx.save_for_backward(weights)
        else:
            room.leave()
        return ratio

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        (weights,), room = ctx.saved_tensors, ctx.room
        if room is None:
            raise RuntimeError("this gradient was computed before; evaluate the log-ratios again")
        ctx.room, gradient = None, torch.zeros_like(weights)
        _backward(room, weights.detach(), gradient, cotangent.contiguous())
        room.leave()
        return gradient, None, None, None


class _Pair(NamedTuple):
    """One piece of memory with shape `(M, ·, B)`, as torch and NumPy see it."""

    tensor: Tensor
    array: np.ndarray


class _Room:
    """Room for all that a step computes, which the next of the same sizes uses again: making it takes as long as some
    of the products.

    Arguments:
        shape: of the flow.
        sizes: members, points and features.
    """

    #: Rooms that nobody uses, of at most so many sizes.
    free: ClassVar[dict[tuple[Any, ...], list[_Room]]] = {}
    MOST: ClassVar[int] = 8

    def __init__(self, shape: Shape, sizes: tuple[int, ...]) -> None:
        (members, batch, _), dim = sizes, shape.dim

        def new(rows: int) -> _Pair:
            tensor = torch.empty(members, rows, batch, dtype=torch.float32)
            return _Pair(tensor, tensor.numpy())

        self.shape, self.key = shape, (shape, sizes)
        self.inputs = [[new(layer[3]) for layer in layers] for layers in shape.layers]  # of each layer
        self.phi, self.e = ([new(layers[-1][2]) for layers in shape.layers] for _ in range(2))
        self.v = [new(dim) for _ in range(len(shape.layers) + 1)]  # between transforms
        self.slope, self.to_v = new(dim), [new(dim), new(dim)]
        self.to_h = [new(layer[3]) for layer in shape.layers[0]]

    @classmethod
    def of(cls, shape: Shape, *sizes: int) -> _Room:
        """One that is free, or a new one."""
        try:
            return cls.free[shape, sizes].pop()
        except (KeyError, IndexError):
            return cls(shape, sizes)

    def leave(self) -> None:
        """Let another step use it."""
        if self.key not in self.free and len(self.free) >= self.MOST:
            self.free.clear()
        self.free.setdefault(self.key, []).append(self)


class _Cut:
    """The parts of a buffer `(M, P)`, as views."""

    def __init__(self, flat: Tensor) -> None:
        self.flat, self.array, self.origin = flat, flat.numpy(), flat.storage_offset()
        self.members, self.stride = flat.shape[0], flat.stride(0)

    def weight(self, layer: tuple[int, ...]) -> Tensor:
        """Of a layer, with shape `(M, O, I)`."""
        at, _, outputs, inputs = layer
        return self.flat.as_strided((self.members, outputs, inputs), (self.stride, inputs, 1), self.origin + at)

    def bias(self, layer: tuple[int, ...]) -> np.ndarray:
        """Of a layer, with shape `(M, O)`, as an array."""
        return self.array[:, layer[1] : layer[1] + layer[2]]


def _forward(room: _Room, weights: Tensor, u: Tensor, features: Tensor) -> Tensor:
    """The log-ratio without its offset, with shape `(M, B)`; what its gradient needs is left in the room."""
    shape, cut, (members, batch, dim) = room.shape, _Cut(weights), u.shape
    ratio, features = weights.new_zeros(members, batch), features.mT
    room.v[0].tensor.copy_(u.mT)
    for t, layers in enumerate(shape.layers):
        inputs, phi, v = room.inputs[t], room.phi[t], room.v[t]
        if dim == 1:  # which has no earlier coordinate
            inputs[0].tensor.copy_(features)
        else:
            torch.cat([v.tensor, features], 1, out=inputs[0].tensor)
        for i, layer in enumerate(layers[:-1]):
            torch.bmm(cut.weight(layer), inputs[i].tensor, out=inputs[i + 1].tensor)
            _selu(inputs[i + 1].array, cut.bias(layer))
        torch.bmm(cut.weight(layers[-1]), inputs[-1].tensor, out=phi.tensor)
        arrays = phi.array, cut.bias(layers[-1]), room.e[t].array, v.array, room.v[t + 1].array, room.slope.array
        _splines(*arrays, shape.bins)
        ratio += room.slope.tensor.log_().sum(1)
    if shape.normal:
        ratio -= 0.5 * room.v[-1].tensor.square().sum(1) + 0.5 * dim * math.log(2 * math.pi)
    return ratio


def _backward(room: _Room, weights: Tensor, gradient: Tensor, cotangent: Tensor) -> None:
    """Write the gradient of the log-ratio to all weights, for cotangents with shape `(M, B)`."""
    shape, cut, into, given = room.shape, _Cut(weights), _Cut(gradient), cotangent.numpy()
    to_v, to_u = room.to_v
    if shape.normal:
        torch.mul(room.v[-1].tensor, -cotangent.unsqueeze(1), out=to_v.tensor)
    else:
        to_v.tensor.zero_()
    for t in reversed(range(len(shape.layers))):
        layers, inputs, to_h = shape.layers[t], room.inputs[t], room.phi[t]
        arrays = to_h.array, room.e[t].array, room.v[t].array, to_v.array, given, to_u.array
        _splines_back(*arrays, into.bias(layers[-1]), shape.bins)
        for i in reversed(range(len(layers))):
            torch.bmm(to_h.tensor, inputs[i].tensor.mT, out=into.weight(layers[i]))
            if i:
                of, to_h = to_h, room.to_h[i]
                torch.bmm(cut.weight(layers[i]).mT, of.tensor, out=to_h.tensor)
                _selu_back(inputs[i].array, to_h.array, into.bias(layers[i - 1]))
            elif t and shape.dim > 1:
                _add_product(cut.weight(layers[0]).numpy(), to_h.array, to_u.array)
        to_v, to_u = to_u, to_v


@fused
def _selu(h: Any, bias: Any) -> None:
    """SELU of h + bias in the place of h, with shape `(M, U, B)`."""
    for m in range(h.shape[0]):
        for u in range(h.shape[1]):
            more, values = bias[m, u], h[m, u]
            for i in range(len(values)):
                v = values[i] + more
                negative = _F(SCALE * ALPHA) * (_exp(v if v < _F(0) else _F(0)) - _F(1))
                values[i] = negative if v < _F(0) else _F(SCALE) * v


@summed
def _selu_back(a: Any, d: Any, to_bias: Any) -> None:
    """From cotangents of a = SELU(h) to those of h, in their place, `(M, U, B)`; and their sums over points."""
    for m in range(d.shape[0]):
        for u in range(d.shape[1]):
            values, of = d[m, u], a[m, u]
            total = _F(0)
            for i in range(len(values)):
                values[i] *= of[i] + _F(SCALE * ALPHA) if of[i] < _F(0) else _F(SCALE)
                total += values[i]
            to_bias[m, u] = total


@fused
def _add_product(weight: Any, to_h: Any, to_u: Any) -> None:
    """Add W^T h̄ for the first inputs, the coordinates; so few of them are quicker without a matrix product."""
    for m in range(to_h.shape[0]):
        for u in range(to_h.shape[1]):
            of = to_h[m, u]
            for d in range(to_u.shape[1]):
                w, into = weight[m, u, d], to_u[m, d]
                if w != _F(0):  # masked
                    for i in range(len(of)):
                        into[i] += w * of[i]


@fused
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


@fused
def _splines(phi: Any, bias: Any, e: Any, points: Any, out: Any, slope: Any, bins: Any) -> None:
    """Splines at points `(M, D, B)` and their slopes. To their numbers phi, `(M, D(3K - 1), B)`, the bias is added, and
    e gets the exponentials of what is left of them after squashing.
    """
    size = 3 * bins - 1
    squash = _F(-2 / math.log(1e-3))
    s, which = np.empty((10, WIDTH)), np.empty(WIDTH, np.int32)
    for m in range(points.shape[0]):
        for d in range(points.shape[1]):
            for j in range(size):
                more, c = bias[m, d * size + j], squash if j < 2 * bins else squash / _F(2)
                of, into = phi[m, d * size + j], e[m, d * size + j]
                for i in range(len(of)):
                    v = of[i] + more
                    of[i] = v
                    into[i] = _exp(v / (_F(1) + abs(v) * c))
            for first in range(0, points.shape[2], WIDTH):
                value = points[m, d, first : first + WIDTH]
                _find(e[m, d * size : (d + 1) * size, first : first + WIDTH], value, bins, s, which)
                into, steep = out[m, d, first : first + WIDTH], slope[m, d, first : first + WIDTH]
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


@summed
def _splines_back(
    phi: Any, e: Any, points: Any, cotangents: Any, log_cotangents: Any, to_points: Any, to_bias: Any, bins: Any
) -> None:
    """The gradients to points `(M, D, B)`, to phi, in its place, and to what was added to it, `(M, D(3K - 1))`."""
    size = 3 * bins - 1
    squash = _F(-2 / math.log(1e-3))
    s, which = np.empty((10, WIDTH)), np.empty(WIDTH, np.int32)
    g = np.empty((8, WIDTH), np.float32)
    for m in range(points.shape[0]):
        for d in range(points.shape[1]):
            rows = slice(d * size, (d + 1) * size)
            for first in range(0, points.shape[2], WIDTH):
                here = slice(first, first + WIDTH)
                value, exps = points[m, d, here], e[m, rows, here]
                _find(exps, value, bins, s, which)
                _slopes_back(value, s, cotangents[m, d, here], log_cotangents[m, here], g, to_points[m, d, here])
                of = phi[m, rows, here]
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
                numbers, total = phi[m, d * size + j], _F(0)
                for i in range(len(numbers)):
                    total += numbers[i]
                to_bias[m, d * size + j] = total


@fused
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
