r"""The monotonic maps that an autoregressive flow applies to each coordinate: a table with one row per map.

A map of a coordinate is given by a few numbers φ, which a masked network computes from the earlier coordinates and the
features of x. With φ = 0 every map is the identity.

- *spline*: rational-quadratic (`spline`), of K bins: 3K - 1 numbers. The identity beyond ±5, so that the base may be
  uniform.
- *affine*: \(y = e^a v + b\): two numbers, the shift b and the unconstrained a, which is squashed as zuko does,
  \(a ← a/(1 + |a/\log s|)\) with the least slope s = 1e-3. One transform is Gaussian given the earlier coordinates;
  several, with the order of the coordinates reversed between them, are not.
"""

from __future__ import annotations

__all__ = ["UNIVARIATE", "Univariate", "affine_forward", "affine_inverse"]

import math
from collections.abc import Callable
from typing import NamedTuple

import zuko
from torch import Tensor

from .spline import spline_forward, spline_inverse

#: log s of the least slope.
LEAST_LOG_SLOPE = math.log(1e-3)

#: From a coordinate `(*,)`, its numbers φ `(*, size)` and the number of bins to the value and the log slope, `(*,)`.
Map = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]


class Univariate(NamedTuple):
    """One row."""

    size: Callable[[int], int]  # how many numbers describe it, from the number of bins
    forward: Map
    inverse: Map  # gives the log slope of the forward map at the point found
    hypernetworks: Callable[..., zuko.flows.Flow]  # zuko's flow of this map, for its masks and first weights


def _log_slope(a: Tensor) -> Tensor:
    return a / (1 + (a / LEAST_LOG_SLOPE).abs())


def affine_forward(v: Tensor, phi: Tensor, bins: int = 0) -> tuple[Tensor, Tensor]:
    """The affine map and the logarithm of its slope."""
    log_slope = _log_slope(phi[..., 1])
    return v * log_slope.exp() + phi[..., 0], log_slope.expand(v.shape)


def affine_inverse(y: Tensor, phi: Tensor, bins: int = 0) -> tuple[Tensor, Tensor]:
    """The inverse of `affine_forward`, and the logarithm of the *forward* slope."""
    log_slope = _log_slope(phi[..., 1])
    return (y - phi[..., 0]) * (-log_slope).exp(), log_slope.expand(y.shape)


def _affine(features: int, context: int, bins: int, **shape: object) -> zuko.flows.Flow:
    return zuko.flows.MAF(features, context, **shape)


UNIVARIATE: dict[str, Univariate] = {
    "spline": Univariate(lambda bins: 3 * bins - 1, spline_forward, spline_inverse, zuko.flows.NSF),
    "affine": Univariate(lambda bins: 2, affine_forward, affine_inverse, _affine),
}
