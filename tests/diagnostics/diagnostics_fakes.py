"""Posteriors in closed form, with the interface of `equipoise.Posterior` that diagnostics use.

θ ~ N(0, I), x = θ + σ ε. The exact posterior is N(x / (1 + σ²), τ² I) with τ² = σ² / (1 + σ²). A surrogate N(·, (sτ)²
I) covers θ* at level u with probability F(s² F⁻¹(u)), F the distribution function of χ² with D degrees of freedom.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from equipoise.priors import GaussianPrior, Prior

SIGMA = 0.5
TAU = math.sqrt(SIGMA**2 / (1 + SIGMA**2))


def pairs(n: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, dim, generator=g)
    return theta, theta + SIGMA * torch.randn(n, dim, generator=g)


def coverage(scale: float, dim: int, levels: np.ndarray) -> np.ndarray:
    return stats.chi2.cdf(scale**2 * stats.chi2.ppf(levels, dim), dim)


def exact_log_prob(theta: Tensor, x: Tensor) -> Tensor:
    return torch.distributions.Normal(x / (1 + SIGMA**2), TAU).log_prob(theta).sum(-1)


class GaussianPosterior:
    """Members N(x / (1 + σ²), (s τ)²), one for each scale s.

    As a classifier it gives the log-ratio plus a constant, as a network that is not normalised does.
    """

    def __init__(
        self, scales: list[float], dim: int, kind: str = "flow", offset: float = 0.0, prior: Prior | None = None
    ) -> None:
        self.scales = torch.tensor(scales)
        self.kind, self.offset = kind, offset
        self.prior = prior if prior is not None else GaussianPrior(torch.zeros(dim), torch.eye(dim))
        self.n_members, self.x_shape = len(scales), (dim,)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.can_leak = False
        self.calls = 0
        self.largest = 0

    def _normal(self, x: Tensor, extra: int) -> torch.distributions.Normal:
        scale = (self.scales * TAU).reshape(-1, *[1] * (extra + 2))
        return torch.distributions.Normal(x / (1 + SIGMA**2), scale)

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        density = self._normal(x, theta.ndim - 2).log_prob(theta).sum(-1)
        self.largest = max(self.largest, density.numel())
        log_prior = self.prior.log_prob(theta)
        return density - torch.where(log_prior.isfinite(), log_prior, 0.0) + self.offset

    def sample_members(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        assert self.kind == "flow"
        normal = self._normal(x, 1)
        noise = torch.randn(self.n_members, n, *x.shape, generator=generator)
        self.largest = max(self.largest, noise[..., 0].numel())
        theta = normal.loc + normal.scale * noise
        return theta, normal.log_prob(theta).sum(-1)


class PriorPosterior:
    """The prior as surrogate, as a flow or as a classifier."""

    def __init__(self, prior: Prior, x_shape: tuple[int, ...], kind: str) -> None:
        self.prior, self.x_shape, self.kind = prior, x_shape, kind
        self.n_members, self.device, self.dtype, self.can_leak = 1, torch.device("cpu"), torch.float32, False

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.zeros(1, *theta.shape[:-1])

    def sample_members(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        theta = self.prior.from_uniform(torch.rand(1, n, len(x), self.prior.dim, generator=generator))
        return theta, self.prior.log_prob(theta)


class Likelihood:
    """Classifiers that give the log-likelihood of x = θ + sd · N(0, I): exact under any prior, and not normalised."""

    kind, can_leak, device, dtype = "classifier", False, torch.device("cpu"), torch.float32

    def __init__(self, prior: Prior, sd: float, members: int = 1) -> None:
        self.prior, self.sd, self.n_members, self.x_shape = prior, sd, members, (prior.dim,)

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        ratio = -0.5 * ((theta - x) / self.sd).square().sum(-1)
        return ratio.expand(self.n_members, *ratio.shape)

    def sample_members(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise AssertionError("a classifier has no draws")
