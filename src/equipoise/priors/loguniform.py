r"""The log-uniform distribution: log θ is uniform on [log low, log high], so that every decade has the same mass.

.. math:: p(\theta) = \frac{1}{\theta \log(high / low)}, \qquad F(\theta) = \frac{\log(\theta / low)}{\log(high / low)}.
"""

from __future__ import annotations

__all__ = ["LogUniform"]

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from .base import as_numbers, refuse_what_single_precision_loses


class LogUniform(Distribution):
    """The log-uniform (reciprocal) distribution on [low, high], closed at both ends.

    A marginal for `IndependentPrior`; with vectors as ends, a prior by itself.

    Arguments:
        low: the lower end, above 0; a number, or several with shape `(*,)`.
        high: the upper end.

    Example:
        >>> decades = LogUniform(0.001, 10.0)
        >>> decades.cdf(torch.tensor([0.001, 0.01, 0.1, 1.0, 10.0]))
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "low": constraints.positive,
        "high": constraints.positive,
    }

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        given = low, high
        low, high = as_numbers(low, "low"), as_numbers(high, "high")
        dtype = torch.promote_types(low.dtype, high.dtype)
        self.low, self.high = (t.to(dtype) for t in torch.broadcast_tensors(low, high.to(low.device)))
        if not ((self.low > 0).all() and (self.low < self.high).all() and self.high.isfinite().all()):
            refuse_what_single_precision_loses("LogUniform", *given)
            raise ValueError(
                f"LogUniform needs finite ends with 0 < low < high, got {self.low.tolist()} and {self.high.tolist()}"
            )
        super().__init__(self.low.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.interval(self.low, self.high)

    @property
    def log_width(self) -> Tensor:
        """log(high / low)."""
        return self.high.log() - self.low.log()

    @property
    def mean(self) -> Tensor:
        return (self.high - self.low) / self.log_width

    @property
    def variance(self) -> Tensor:
        return (self.high**2 - self.low**2) / (2 * self.log_width) - self.mean**2

    def entropy(self) -> Tensor:
        return self.log_width.log() + (self.high.log() + self.low.log()) / 2

    def expand(self, batch_shape: Any, _instance: Any = None) -> LogUniform:
        return LogUniform(self.low.expand(Size(batch_shape)), self.high.expand(Size(batch_shape)))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        return self.icdf(torch.rand(shape, dtype=self.low.dtype, device=self.low.device))

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (value >= self.low.to(value.dtype)) & (value <= self.high.to(value.dtype))
        safe = torch.where(inside, value, self.low.to(value.dtype))
        return torch.where(inside, -safe.log() - self.log_width.log(), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        low, high = self.low.to(value.dtype), self.high.to(value.dtype)
        return ((value.clamp(low, high).log() - low.log()) / (high.log() - low.log())).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        low, high = self.low.to(value.dtype), self.high.to(value.dtype)
        return torch.lerp(low.log(), high.log(), value).exp().clamp(low, high)  # the exponential may round outwards

    def __repr__(self) -> str:
        return f"LogUniform(low={_shown(self.low)}, high={_shown(self.high)})"


def _shown(value: Tensor) -> str:
    """Numbers as they were typed: 0.001, not 0.0010000000474974513."""
    if value.ndim:
        return f"[{', '.join(map(_shown, value))}]"
    return f"{float(value):.{7 if value.dtype == torch.float32 else 16}g}"
