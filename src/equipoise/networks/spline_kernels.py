r"""The spline of `spline` on a CPU: compiled loops over points, and the gradient in closed form.

The formulation with tensors makes some forty arrays as large as the knots; on a CPU, with small networks, they are most
of a training step. Here torch computes the exponentials, which it does many at a time, and one loop does the rest of a
point, in double precision whatever the arrays hold.

**The gradient.** In the bin of x let w and h be its width and height, s = h/w, t = (x - x_0)/w, m = t(1-t), k = d_0 +
d_1 - 2s, q = s + km, P = (st² + d_0 m)/q and A = 2sm + d_0(1-t)² + d_1 t². Then y = y_0 + hP, log y' = 2 log s + log A
- 2 log q, and with cotangents a of y and l of log y' the gradients are

.. math::
    g_t &= a\,hsA/q^2 + l\,[(2s(1-2t) - 2d_0(1-t) + 2d_1 t)/A - 2k(1-2t)/q] \\
    g_s &= a\,h(t^2 - P(1-2m))/q + 2l\,[1/s + m/A - (1-2m)/q] \\
    g_{d_0} &= a\,hm(1-P)/q + l\,[(1-t)^2/A - 2m/q], \qquad
    g_{d_1} = -a\,hmP/q + l\,[t^2/A - 2m/q] \\
    g_x &= -g_{x_0} = g_t/w, \quad g_w = -(g_s s + g_t t)/w, \quad g_h = aP + g_s/w, \quad g_{y_0} = a.

A bin before that of x has its share in \(x_0\) and \(y_0\), the bin itself in w and h; the softmax takes the mean out
of these, and each squashed φ has the derivative 1/(1 + |cφ|)².
"""

from __future__ import annotations

__all__ = ["evaluated", "forward_with_gradient"]

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.support.devices import compiled

from . import spline

BOUND = spline.BOUND


def evaluated(value: Tensor, phi: Tensor, bins: int, slope: float, inverse: bool) -> tuple[Tensor, Tensor]:
    """The spline or its inverse and the logarithm of the forward derivative, without gradients, on the CPU.

    Arguments:
        value: points, with shape `(*,)`.
        phi: with shape `(*, 3K - 1)`; broadcasts with the points.
        bins: K.
        slope: the smallest slope.
        inverse: which of the two.
    """
    return _evaluated(value, _exponentials(phi, bins, slope)[0], bins, inverse)


def _exponentials(phi: Tensor, bins: int, slope: float) -> tuple[Tensor, Tensor]:
    """exp of the squashed phi, that is the slopes and the bins' shares before they are normalised; and the squashing
    factors 1/(1 + |cφ|).
    """
    scale = phi.new_full((3 * bins - 1,), -2 / math.log(slope))
    scale[2 * bins :] /= 2
    squash = phi.abs().mul_(scale).add_(1).reciprocal_()
    return (phi * squash).exp_(), squash


def _evaluated(value: Tensor, e: Tensor, bins: int, inverse: bool) -> tuple[Tensor, Tensor]:
    # Points have the shape (A, S, N) and knots (A, N): draws of one x may share its knots, which are not repeated.
    shape = torch.broadcast_shapes(value.shape, e.shape[:-1])
    own = (1,) * (len(shape) + 1 - e.ndim) + e.shape[:-1]
    repeated = [k for k, (n, m) in enumerate(zip(shape, own, strict=True)) if n != m]
    first, last = (repeated[0], repeated[-1] + 1) if repeated else (0, 0)
    if any(n != 1 for n in own[first:last]):
        e, first, last = e.expand(*shape, -1), 0, 0
    points = value.expand(shape).contiguous()
    out, ratio = torch.empty_like(points), torch.empty_like(points)
    sizes = (math.prod(shape[:first]), math.prod(shape[first:last]), math.prod(shape[last:]))
    arrays = [t.view(sizes).numpy() for t in (points, out, ratio)]
    _evaluate(arrays[0], e.reshape(sizes[0], sizes[2], 3 * bins - 1).numpy(), bins, inverse, *arrays[1:])
    return out, ratio.log_()


class _Forward(torch.autograd.Function):
    """The spline with a gradient to points `(N,)` and to phi `(N, 3K - 1)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: Tensor, bins: int, slope: float) -> tuple[Tensor, Tensor]:
        e, squash = _exponentials(phi, bins, slope)
        ctx.save_for_backward(x, phi, e, squash)
        ctx.shape = bins, slope
        return _evaluated(x, e, bins, False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (x, phi, e, squash), (bins, slope) = ctx.saved_tensors, ctx.shape
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted: tensors have one
            found = spline.forward_of_tensors(x, phi, bins, slope)
            wanted = [t for t in (x, phi) if t.requires_grad]
            given = iter(torch.autograd.grad(found, wanted, cotangents, create_graph=True))
            return *(next(given) if t.requires_grad else None for t in (x, phi)), None, None
        to_x, to_phi = x.new_empty(x.shape), phi.new_empty(phi.shape)
        arrays = (t.contiguous().numpy() for t in (x.detach(), e, squash, *cotangents, to_x, to_phi))
        _differentiate(*arrays, bins)
        return to_x, to_phi, None, None


def forward_with_gradient(x: Tensor, phi: Tensor, bins: int, slope: float) -> tuple[Tensor, Tensor]:
    """The spline at x with shape `(*,)` and the logarithm of its derivative, with gradients to x and phi."""
    shape = torch.broadcast_shapes(x.shape, phi.shape[:-1])
    x, phi = x.expand(shape).reshape(-1), phi.expand(*shape, -1).reshape(-1, 3 * bins - 1)
    y, log_slope = _Forward.apply(x, phi, bins, slope)
    return y.view(shape), log_slope.view(shape)


@compiled(forceinline=True)
def _place(e: Any, bins: Any, value: Any, inverse: Any) -> Any:
    """The bin that a value lies in: its number, left end and width, lower end and height, and the slopes at its ends.

    `e` holds K numbers whose shares are the widths, K for the heights, and the K - 1 inner slopes.
    """
    total_w, total_h = 0.0, 0.0
    for j in range(bins):
        total_w += e[j]
        total_h += e[bins + j]
    unit_w, unit_h = 2 * BOUND / total_w, 2 * BOUND / total_h
    k, sum_w, sum_h = 0, 0.0, 0.0
    while k < bins - 1:
        next_w, next_h = sum_w + e[k], sum_h + e[bins + k]
        knot = next_h * unit_h - BOUND if inverse else next_w * unit_w - BOUND
        if not knot < value:
            break
        sum_w, sum_h = next_w, next_h
        k += 1
    d0 = 1.0 if k == 0 else float(e[2 * bins + k - 1])
    d1 = 1.0 if k == bins - 1 else float(e[2 * bins + k])
    return k, sum_w * unit_w - BOUND, e[k] * unit_w, sum_h * unit_h - BOUND, e[bins + k] * unit_h, d0, d1


@compiled
def _evaluate(points: Any, e: Any, bins: Any, inverse: Any, out: Any, ratio: Any) -> None:
    """The spline or its inverse, and its slope, at points `(A, S, N)`; `e` has shape `(A, N, 3K - 1)`."""
    for a in range(points.shape[0]):
        for b in range(points.shape[1]):
            for i in range(points.shape[2]):
                value = points[a, b, i]
                if not (-BOUND < value <= BOUND):
                    out[a, b, i], ratio[a, b, i] = value, 1.0
                    continue
                _, x0, w, y0, h, d0, d1 = _place(e[a, i], bins, value, inverse)
                s = h / w
                k = d0 + d1 - 2 * s
                if inverse:  # t solves α t² + β t + γ = 0; with the root in the denominator it is stable for small α
                    rise = value - y0
                    alpha, beta, gamma = h * (s - d0) + rise * k, h * d0 - rise * k, -s * rise
                    t = -2 * gamma / (beta + math.sqrt(max(beta * beta - 4 * alpha * gamma, 0.0)))
                else:
                    t = (value - x0) / w
                u = 1 - t
                q = 1 / (s + k * t * u)
                out[a, b, i] = x0 + t * w if inverse else y0 + h * (s * t * t + d0 * t * u) * q
                ratio[a, b, i] = s * s * (2 * s * t * u + d0 * u * u + d1 * t * t) * q * q


@compiled
def _differentiate(
    points: Any, e: Any, squash: Any, cotangents: Any, log_cotangents: Any, to_x: Any, to_phi: Any, bins: Any
) -> None:
    """The gradients to points `(N,)` and to phi `(N, 3K - 1)`, as the module says."""
    for i in range(len(points)):
        x, a, g = points[i], cotangents[i], log_cotangents[i]
        to_phi[i] = 0.0
        if not (-BOUND < x <= BOUND):
            to_x[i] = a
            continue
        k, x0, w, y0, h, d0, d1 = _place(e[i], bins, x, False)
        s, t = h / w, (x - x0) / w
        u, m, bend = 1 - t, t * (1 - t), d0 + d1 - 2 * s
        q = 1 / (s + bend * m)
        part = (s * t * t + d0 * m) * q
        inner = 2 * s * m + d0 * u * u + d1 * t * t
        to_t = a * h * s * inner * q * q + g * (2 * (s * (u - t) - d0 * u + d1 * t) / inner - 2 * bend * (u - t) * q)
        to_s = a * h * (t * t - part * (1 - 2 * m)) * q + 2 * g * (1 / s + m / inner - (1 - 2 * m) * q)
        to_x[i] = to_t / w
        # A share has a gradient as part of where the bin starts, or as its size.
        before_w, here_w = -to_t / w, -(to_s * s + to_t * t) / w
        before_h, here_h = a, a * part + to_s / w
        mean_w = (before_w * (x0 + BOUND) + here_w * w) / (2 * BOUND)
        mean_h = (before_h * (y0 + BOUND) + here_h * h) / (2 * BOUND)
        unit_w, unit_h = w / e[i, k], h / e[i, bins + k]
        for j in range(bins):
            own_w, own_h = (before_w, before_h) if j < k else (here_w, here_h) if j == k else (0.0, 0.0)
            to_phi[i, j] = (own_w - mean_w) * unit_w * e[i, j] * squash[i, j] ** 2
            to_phi[i, bins + j] = (own_h - mean_h) * unit_h * e[i, bins + j] * squash[i, bins + j] ** 2
        if k > 0:
            to_d0 = a * h * m * (1 - part) * q + g * (u * u / inner - 2 * m * q)
            to_phi[i, 2 * bins + k - 1] = to_d0 * d0 * squash[i, 2 * bins + k - 1] ** 2
        if k < bins - 1:
            to_d1 = -a * h * m * part * q + g * (t * t / inner - 2 * m * q)
            to_phi[i, 2 * bins + k] = to_d1 * d1 * squash[i, 2 * bins + k] ** 2
