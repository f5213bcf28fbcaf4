"""What a posterior is asked for: θ and x with any leading dimensions, brought to one shape."""

from __future__ import annotations

__all__ = ["counts", "observations", "paired"]

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Size, Tensor

from equipoise.networks import Network, StackedWeights
from equipoise.support.arrays import TOO_LARGE, as_tensor
from equipoise.support.words import shown

from .evaluation import some_weights

#: More draws at once than any memory holds.
MOST_DRAWS = 10_000_000_000


def counts(sample_shape: Any) -> Size:
    """How many draws: a whole number, or a tuple of them."""
    listed = isinstance(sample_shape, tuple | list)
    given = sample_shape if listed else (sample_shape,)
    if not all(isinstance(n, Integral) and not isinstance(n, bool) for n in given):
        raise TypeError(f"sample_shape is a number of draws, or a tuple of such numbers, got {shown(sample_shape)}")
    if any(n < 0 for n in given) or math.prod(map(int, given)) > MOST_DRAWS:
        raise ValueError(f"sample_shape counts draws, at most {MOST_DRAWS:,} in all, got {shown(sample_shape)}")
    return Size(map(int, given))


def observations(network: Network, stack: StackedWeights, x: Any) -> Tensor:
    """Observations `(B, *x_shape)` from x with shape `(*X, *x_shape)`, where the weights are and in their precision.

    Whole numbers keep their dtype.
    """
    like, x_shape = some_weights(stack), network.x_shape
    if x is None:
        raise ValueError(f"the observation is missing: x, with shape {x_shape}")
    given = as_tensor(x, "x").to(like.device)
    x = given.to(like.dtype) if given.is_floating_point() else given
    if x.ndim < len(x_shape) or x.shape[x.ndim - len(x_shape) :] != x_shape:
        raise ValueError(
            f"x has shape {tuple(x.shape)}, but the posterior was trained on observations of shape {x_shape}"
        )
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise ValueError(
            f"x has values {TOO_LARGE}" if bool(given.isfinite().all()) else "x has NaN or infinite values"
        )
    return x.reshape(-1, *x_shape)


def paired(
    network: Network, stack: StackedWeights, theta: Any, x: Any
) -> tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Parameters and observations whose leading dimensions broadcast.

    No observation is repeated: what depends on x alone, a normaliser above all, is computed once for each. So the axes
    along which x is stretched are put before those along which it varies.

    Arguments:
        network: the architecture.
        stack: the weights.
        theta: with shape `(*T, D)`.
        x: with shape `(*X, *x_shape)`.

    Returns:
        θ with shape `(S, B, D)`, x with shape `(B, *x_shape)`, and what brings values with shape `(S, B)` to the
        broadcast of `*T` and `*X`.
    """
    like, dim, x_shape = some_weights(stack), network.dim, network.x_shape
    theta = as_tensor(theta, "theta").to(like.device, like.dtype)
    if theta.ndim == 0 or theta.shape[-1] != dim:
        raise ValueError(f"theta has shape {tuple(theta.shape)}, but the posterior has {dim} parameter(s)")
    given = None if x is None else as_tensor(x, "x")
    x = observations(network, stack, given)
    assert given is not None
    leading = given.shape[: given.ndim - len(x_shape)]
    try:
        shape = torch.broadcast_shapes(theta.shape[:-1], leading)
    except RuntimeError:
        raise ValueError(
            f"theta's leading dimensions {tuple(theta.shape[:-1])} do not broadcast against x's {tuple(leading)}: "
            "give one x for all theta, or one x per theta"
        ) from None
    sizes = (*[1] * (len(shape) - len(leading)), *leading)
    stretched, varied = ([a for a, size in enumerate(sizes) if (size == 1) == one] for one in (True, False))
    axes = [*stretched, *varied]
    theta = theta.expand(*shape, dim).permute(*axes, -1)
    ordered, back = theta.shape[:-1], [axes.index(a) for a in range(len(axes))]

    def unpaired(values: Tensor) -> Tensor:
        return values.reshape(ordered).permute(back).contiguous()

    return theta.reshape(-1, len(x), dim) if len(x) else theta.reshape(0, 0, dim), x, unpaired
