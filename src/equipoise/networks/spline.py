r"""The monotonic rational-quadratic spline of a neural spline flow (Durkan et al., 2019), with zuko's parameterisation.

K bins on [-B, B] are given by 3K - 1 unconstrained numbers: K widths, K heights, K - 1 log derivatives at the inner
knots. With the slope floor s (1e-3) they are squashed, w ← w/(1 + |2w / log s|), heights alike, d ← d/(1 + |d / log
s|); a softmax gives the bins' widths and heights as fractions of 2B, and exp the derivatives, which are 1 at both
ends. Outside [-B, B] the map is the identity. In the bin \([x_0, x_1] → [y_0, y_1]\) with end slopes \(d_0, d_1\),
\(s = (y_1-y_0)/(x_1-x_0)\) and \(ξ = (x-x_0)/(x_1-x_0)\),

.. math:: y = y_0 + \frac{(y_1-y_0)[sξ^2 + d_0 ξ(1-ξ)]}{s + (d_0+d_1-2s)ξ(1-ξ)}, \qquad
    \frac{dy}{dx} = \frac{s^2[2sξ(1-ξ) + d_0(1-ξ)^2 + d_1 ξ^2]}{[s + (d_0+d_1-2s)ξ(1-ξ)]^2}.

Where gradients are asked for, the bin is picked with a one-hot sum instead of a gather: the same numbers, but its
gradient is a product and not a scatter, so it is deterministic and a compiler can fuse it with everything around it.
Plain tensors on a CPU go through the compiled loops of `spline_kernels` instead, which are several times faster there.
"""

from __future__ import annotations

__all__ = ["plain_on_cpu", "spline_forward", "spline_inverse"]

import math

import torch
from torch import Tensor
from torch.nn import functional as F

BOUND = 5.0


def _knots(phi: Tensor, bins: int, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Horizontal and vertical knots and derivatives, each `(*, K + 1)`, from phi with shape `(*, 3K - 1)`."""
    widths, heights, derivatives = phi.split([bins, bins, bins - 1], dim=-1)
    floor = math.log(slope)
    widths = _shares(widths / (1 + (2 / floor * widths).abs()))
    heights = _shares(heights / (1 + (2 / floor * heights).abs()))
    derivatives = F.pad(derivatives / (1 + (derivatives / floor).abs()), (1, 1)).exp()
    horizontal = BOUND * (2 * torch.cumsum(F.pad(widths, (1, 0)), dim=-1) - 1)
    vertical = BOUND * (2 * torch.cumsum(F.pad(heights, (1, 0)), dim=-1) - 1)
    return horizontal, vertical, derivatives


def _shares(squashed: Tensor) -> Tensor:
    """A softmax of numbers that cannot be large, which needs no maximum to be taken out first."""
    shares = squashed.exp()
    return shares / shares.sum(-1, keepdim=True)


def _bin(knots: Tensor, others: tuple[Tensor, ...], value: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Whether `value` lies in the domain, and the left and right ends of its bin in each array of knots."""
    above = knots < value.unsqueeze(-1)
    inside, ends = above[..., 0] & ~above[..., -1], []
    if torch.is_grad_enabled():
        here = above[..., :-1] & ~above[..., 1:]
        for array in (knots, *others):
            ends += [torch.where(here, array[..., :-1], 0.0).sum(-1), torch.where(here, array[..., 1:], 0.0).sum(-1)]
    else:
        left = above[..., 1:-1].sum(-1, keepdim=True)
        for array in (knots, *others):
            array = array.expand(*left.shape[:-1], -1)
            ends += [array.gather(-1, left).squeeze(-1), array.gather(-1, left + 1).squeeze(-1)]
    return inside, ends


def _log_slope(xi: Tensor, d0: Tensor, d1: Tensor, s: Tensor, inside: Tensor) -> Tensor:
    mid = xi * (1 - xi)
    numerator = s**2 * (2 * s * mid + d0 * (1 - xi) ** 2 + d1 * xi**2)
    denominator = s + (d0 + d1 - 2 * s) * mid
    ratio = numerator / denominator**2
    return torch.where(inside, torch.where(inside, ratio, 1.0).log(), 0.0)


def spline_forward(x: Tensor, phi: Tensor, bins: int = 8, slope: float = 1e-3) -> tuple[Tensor, Tensor]:
    """The spline and the logarithm of its derivative, at x with shape `(*,)`; phi has shape `(*, 3K - 1)`."""
    if not plain_on_cpu(x, phi):
        return forward_of_tensors(x, phi, bins, slope)
    from . import spline_kernels as kernels

    if torch.is_grad_enabled() and (x.requires_grad or phi.requires_grad):
        return kernels.forward_with_gradient(x, phi, bins, slope)
    return kernels.evaluated(x, phi, bins, slope, inverse=False)


def spline_inverse(y: Tensor, phi: Tensor, bins: int = 8, slope: float = 1e-3) -> tuple[Tensor, Tensor]:
    """The inverse of `spline_forward`, and the logarithm of the *forward* derivative at the point found."""
    if not plain_on_cpu(y, phi) or (torch.is_grad_enabled() and (y.requires_grad or phi.requires_grad)):
        return inverse_of_tensors(y, phi, bins, slope)
    from . import spline_kernels as kernels

    return kernels.evaluated(y, phi, bins, slope, inverse=True)


def plain_on_cpu(value: Tensor, phi: Tensor) -> bool:
    """Whether both are arrays of one precision in memory, and no compiler or transform of functions looks on."""
    return (
        not torch.compiler.is_compiling()
        and all(type(t) is Tensor and t.device.type == "cpu" for t in (value, phi))
        and value.dtype == phi.dtype
        and value.dtype in (torch.float32, torch.float64)
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def forward_of_tensors(x: Tensor, phi: Tensor, bins: int, slope: float) -> tuple[Tensor, Tensor]:
    """`spline_forward` in tensor operations, for any device, compiler and derivative."""
    horizontal, vertical, derivatives = _knots(phi, bins, slope)
    inside, (x0, x1, y0, y1, d0, d1) = _bin(horizontal, (vertical, derivatives), x)
    width = torch.where(inside, x1 - x0, 1.0)
    s = torch.where(inside, (y1 - y0) / width, 1.0)
    xi = torch.where(inside, (x - x0) / width, 0.0)
    mid = xi * (1 - xi)
    y = y0 + (y1 - y0) * (s * xi**2 + d0 * mid) / (s + (d0 + d1 - 2 * s) * mid)
    return torch.where(inside, y, x), _log_slope(xi, d0, d1, s, inside)


def inverse_of_tensors(y: Tensor, phi: Tensor, bins: int, slope: float) -> tuple[Tensor, Tensor]:
    """`spline_inverse` in tensor operations."""
    horizontal, vertical, derivatives = _knots(phi, bins, slope)
    inside, (y0, y1, x0, x1, d0, d1) = _bin(vertical, (horizontal, derivatives), y)
    height = torch.where(inside, y1 - y0, 1.0)
    width = torch.where(inside, x1 - x0, 1.0)
    s = height / width
    rise = torch.where(inside, y - y0, 0.0)
    # ξ solves a ξ² + b ξ + c = 0; written with the root in the denominator it is stable for small a.
    a = height * (s - d0) + rise * (d0 + d1 - 2 * s)
    b = height * d0 - rise * (d0 + d1 - 2 * s)
    c = -s * rise
    xi = torch.where(inside, 2 * c / (-b - (b**2 - 4 * a * c).clamp(min=0).sqrt()), 0.0)
    x = x0 + xi * (x1 - x0)
    return torch.where(inside, x, y), _log_slope(xi, d0, d1, s, inside)
