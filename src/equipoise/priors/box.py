"""The uniform distribution on a box."""

from __future__ import annotations

__all__ = ["BoxUniform"]

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from . import marginals as one
from .base import Prior, as_vector, dtype_name, refuse_what_single_precision_loses


def _of_single_precision(low: Tensor, high: Tensor) -> str:
    """A hint for numbers that were rounded before they came here."""
    if low.dtype == torch.float64 or (low.isfinite().all() and high.isfinite().all()):
        return ""
    return ". Single precision ends at 3.4e38: rescale a parameter that is larger"


class BoxUniform(Prior):
    """The uniform distribution on a box, closed at both ends in the precision of its corners or of θ, the coarser one.

    Arguments:
        low: the lower corner, with shape `(D,)`.
        high: the upper corner, with shape `(D,)`.

    Example:
        >>> prior = BoxUniform([-3.0, -3.0], [3.0, 3.0])
        >>> prior.log_prob(torch.tensor([[3.0, -3.0], [3.1, 0.0]]))
        tensor([-3.5835,    -inf])
    """

    def __init__(self, low: Any, high: Any) -> None:
        given = low, high
        low, high = as_vector(low, "low"), as_vector(high, "high")
        if len(low) != len(high) and all(torch.as_tensor(end).ndim for end in given):
            raise ValueError(
                f"BoxUniform has {len(low)} lower ends and {len(high)} upper ones: give one of each a parameter"
            )
        low, high = torch.broadcast_tensors(low, high.to(low.device))
        if not (low.isfinite().all() and high.isfinite().all() and (low < high).all()):
            refuse_what_single_precision_loses("BoxUniform", *given)
            raise ValueError(
                "BoxUniform needs finite corners with low < high in every coordinate, "
                f"got {low.tolist()} and {high.tolist()}{_of_single_precision(low, high)}"
            )
        dtype = torch.promote_types(low.dtype, high.dtype)
        self.low, self.high = low.to(dtype), high.to(dtype)
        super().__init__(low.shape[0])

    @property
    def device(self) -> torch.device:
        return self.low.device

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        return constraints.independent(constraints.interval(self.low, self.high), 1)

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def variance(self) -> Tensor:
        return (self.high - self.low) ** 2 / 12

    def entropy(self) -> Tensor:
        return (self.high - self.low).log().sum()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        u = torch.rand((*sample_shape, self.dim), dtype=self.low.dtype, device=self.device)
        return self.from_uniform(u)

    def contains(self, theta: Tensor) -> Tensor:
        theta = self._check(theta)
        # In the coarser of the two precisions: 0.9 in double lies above what a box in single precision made of its 0.9.
        coarse = max(theta.dtype, self.low.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        theta = theta.to(coarse)
        return ((theta >= self.low.to(theta)) & (theta <= self.high.to(theta))).all(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        value, low, high = self._beside(value)
        return torch.where(self.contains(value), -(high - low).log().sum(), -math.inf)

    def to_normal(self, theta: Tensor) -> Tensor:
        return one.uniform_to_normal(*self._beside(theta))

    def from_normal(self, z: Tensor) -> Tensor:
        return one.uniform_from_normal(*self._beside(z))

    def to_uniform(self, theta: Tensor) -> Tensor:
        theta, low, high = self._beside(theta)
        return ((theta - low) / (high - low)).clamp(0, 1)

    def from_uniform(self, u: Tensor) -> Tensor:
        u, low, high = self._beside(u)
        return torch.lerp(low, high, u)  # exact at both ends, and never outside

    def to(self, device: str | torch.device) -> BoxUniform:
        return BoxUniform(self.low.to(device), self.high.to(device))

    def spec(self) -> dict[str, Any]:
        values = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {"kind": "box", **values, "dtype": dtype_name(self.low.dtype)}

    def _beside(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """θ with the corners in its dtype and on its device, so that the corners themselves are always inside."""
        theta = self._check(theta)
        return theta, self.low.to(theta), self.high.to(theta)

    def __repr__(self) -> str:
        return f"BoxUniform(low={self.low.tolist()}, high={self.high.tolist()})"
