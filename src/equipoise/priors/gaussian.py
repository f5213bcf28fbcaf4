"""Normal distributions with any covariance."""

from __future__ import annotations

__all__ = ["GaussianPrior"]

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from .marginals import Z_MAX
from .prior import Prior, as_vector, dtype_name, ndtr, normal_cdf


class GaussianPrior(Prior):
    """A multivariate normal. Its map to N(0, I) whitens: z = L⁻¹(θ - μ) with covariance LLᵀ.

    The cancellation of Jacobian and density holds for any map that sends the prior to N(0, I), so correlated priors
    start a flow as well as independent ones do.

    Arguments:
        loc: the mean μ, with shape `(D,)`.
        covariance: the covariance, with shape `(D, D)`.
    """

    def __init__(self, loc: Any, covariance: Any) -> None:
        self.loc = as_vector(loc, "loc")
        self.covariance = torch.as_tensor(covariance).to(self.loc)
        dim = self.loc.shape[0]
        if self.covariance.shape != (dim, dim) or not torch.allclose(self.covariance, self.covariance.mT):
            raise ValueError(
                f"the covariance should be a symmetric matrix with shape {(dim, dim)}, got {self.covariance.tolist()}"
            )
        self.scale_tril, failed = torch.linalg.cholesky_ex(self.covariance)
        if bool(failed):
            raise ValueError(f"the covariance is not positive definite: {self.covariance.tolist()}")
        super().__init__(dim)

    @property
    def device(self) -> torch.device:
        return self.loc.device

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
        return self.from_normal(torch.special.ndtri(u.double().clamp(limit, 1 - limit)).to(u.dtype))

    def to(self, device: str | torch.device) -> GaussianPrior:
        return GaussianPrior(self.loc.to(device), self.covariance.to(device))

    def spec(self) -> dict[str, Any]:
        values = {"loc": self.loc.tolist(), "covariance": self.covariance.tolist()}
        return {"kind": "gaussian", **values, "dtype": dtype_name(self.loc.dtype)}

    def __repr__(self) -> str:
        return f"GaussianPrior(loc={self.loc.tolist()}, covariance={self.covariance.tolist()})"
