r"""Distributions with maps in closed form: uniform on a box, log-uniform, and normal with any covariance.

A uniform measures its distance from the nearer end. This keeps both tails of the map to N(0, 1), and makes it
antisymmetric. For a log-uniform, log θ is uniform on [log low, log high], so that every decade has the same mass:

.. math:: p(\theta) = \frac{1}{\theta \log(high / low)}, \qquad F(\theta) = \frac{\log(\theta / low)}{\log(high / low)}.

A Gaussian prior is whitened, z = L⁻¹(θ - μ) with covariance LLᵀ. The cancellation of Jacobian and density holds for any
map that sends the prior to N(0, I), so correlated priors start a flow as well as independent ones do.
"""

from __future__ import annotations

__all__ = ["Z_MAX", "BoxUniform", "GaussianPrior", "LogUniform", "uniform_from_normal", "uniform_to_normal"]

import math
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.special import ndtri

from .prior import Prior, as_numbers, as_vector, dtype_name, ndtr, normal_cdf, refuse_unresolved_ends

#: |z| of a uniform never exceeds this: Φ(-5.2) = 1e-7 is about the spacing of float32 at the edge of a box.
Z_EDGE = 5.2
#: |z| of any other distribution never exceeds this: beyond it 1 - F has no digits left in float64.
Z_MAX = 8.0


def uniform_to_normal(theta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """z of a uniform on [low, high], from the nearer end; ±5.2 at the ends and outside."""
    below = theta - low <= high - theta
    z = ndtri((torch.where(below, theta - low, high - theta) / (high - low)).clamp(min=normal_cdf(-Z_EDGE)))
    return torch.where(below, z, -z)


def uniform_from_normal(z: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """θ of a uniform on [low, high] from z, measured from the nearer end and never outside."""
    theta = torch.where(z <= 0, low + (high - low) * ndtr(z), high - (high - low) * ndtr(-z))
    return torch.minimum(torch.maximum(theta, low), high)


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
        if len(low) != len(high) and all(as_numbers(end, "an end").ndim for end in given):
            raise ValueError(
                f"BoxUniform has {len(low)} lower ends and {len(high)} upper: give one of each per parameter"
            )
        low, high = torch.broadcast_tensors(low, high.to(low.device))
        if not (low.isfinite().all() and high.isfinite().all() and (low < high).all()):
            refuse_unresolved_ends("BoxUniform", *given)
            raise ValueError(
                "BoxUniform needs finite corners (single precision ends at 3.4e38) with low < high in every "
                f"coordinate, got {low.tolist()} and {high.tolist()}"
            )
        dtype = torch.promote_types(low.dtype, high.dtype)
        self.low, self.high = low.to(dtype), high.to(dtype)
        super().__init__(low.shape[0], low.device)

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
        return uniform_to_normal(*self._beside(theta))

    def from_normal(self, z: Tensor) -> Tensor:
        return uniform_from_normal(*self._beside(z))

    def to_uniform(self, theta: Tensor) -> Tensor:
        theta, low, high = self._beside(theta)
        return ((theta - low) / (high - low)).clamp(0, 1)

    def from_uniform(self, u: Tensor) -> Tensor:
        u, low, high = self._beside(u)
        return torch.lerp(low, high, u)  # exact at both ends, and never outside

    def to(self, device: str | torch.device) -> BoxUniform:
        return BoxUniform(self.low.to(device), self.high.to(device)).named(self.names)

    def spec(self) -> dict[str, Any]:
        values = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {"kind": "box", **values, "dtype": dtype_name(self.low.dtype)}

    def _beside(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """θ with the corners in its dtype and on its device, so that the corners themselves are always inside."""
        theta = self._check(theta)
        return theta, self.low.to(theta), self.high.to(theta)

    def __repr__(self) -> str:
        return f"BoxUniform(low={self.low.tolist()}, high={self.high.tolist()})"


class GaussianPrior(Prior):
    """A multivariate normal.

    Arguments:
        loc: the mean μ, with shape `(D,)`.
        covariance: the covariance, with shape `(D, D)`.
    """

    def __init__(self, loc: Any, covariance: Any) -> None:
        self.loc = as_vector(loc, "loc")
        self.covariance = as_numbers(covariance, "covariance").to(self.loc)
        dim = self.loc.shape[0]
        for name, values in (("loc", self.loc), ("covariance", self.covariance)):
            if not bool(values.isfinite().all()):
                raise ValueError(f"GaussianPrior needs finite numbers, got {name} = {values.tolist()}")
        if self.covariance.shape != (dim, dim) or not torch.allclose(self.covariance, self.covariance.mT):
            raise ValueError(
                f"the covariance should be a symmetric matrix with shape {(dim, dim)}, got {self.covariance.tolist()}"
            )
        self.scale_tril, failed = torch.linalg.cholesky_ex(self.covariance)
        if bool(failed):
            raise ValueError(f"the covariance is not positive definite: {self.covariance.tolist()}")
        super().__init__(dim, self.loc.device)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal()

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        return constraints.real_vector

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.from_normal(torch.randn((*sample_shape, self.dim), dtype=self.loc.dtype, device=self.device))

    def log_prob(self, value: Tensor) -> Tensor:
        z = self.to_normal(value)
        log_det = self.scale_tril.diagonal().log().sum().to(z)
        density = -(z**2).sum(-1) / 2 - log_det - self.dim * math.log(2 * math.pi) / 2
        return torch.where(z.isnan().any(-1), -math.inf, density)

    def to_normal(self, theta: Tensor) -> Tensor:
        theta = self._check(theta)
        centred = (theta - self.loc.to(theta)).unsqueeze(-1)
        return torch.linalg.solve_triangular(self.scale_tril.to(theta), centred, upper=False).squeeze(-1)

    def from_normal(self, z: Tensor) -> Tensor:
        z = self._check(z)
        return self.loc.to(z) + z @ self.scale_tril.to(z).mT

    def to_uniform(self, theta: Tensor) -> Tensor:
        return ndtr(self.to_normal(theta))

    def from_uniform(self, u: Tensor) -> Tensor:
        limit = normal_cdf(-Z_MAX)
        return self.from_normal(ndtri(u.double().clamp(limit, 1 - limit)).to(u.dtype))

    def to(self, device: str | torch.device) -> GaussianPrior:
        return GaussianPrior(self.loc.to(device), self.covariance.to(device)).named(self.names)

    def spec(self) -> dict[str, Any]:
        values = {"loc": self.loc.tolist(), "covariance": self.covariance.tolist()}
        return {"kind": "gaussian", **values, "dtype": dtype_name(self.loc.dtype)}

    def __repr__(self) -> str:
        return f"GaussianPrior(loc={self.loc.tolist()}, covariance={self.covariance.tolist()})"


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
            refuse_unresolved_ends("LogUniform", *given)
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

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        return self.icdf(torch.rand(shape, dtype=self.low.dtype, device=self.low.device))

    def log_prob(self, value: Tensor) -> Tensor:
        low, high = self.low.to(value.dtype), self.high.to(value.dtype)
        inside = (value >= low) & (value <= high)
        return torch.where(inside, -torch.where(inside, value, low).log() - self.log_width.log(), -math.inf)

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
