"""Products of one-dimensional distributions."""

from __future__ import annotations

__all__ = ["IndependentPrior"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Distribution

from . import marginals as one
from .base import Prior


class IndependentPrior(Prior):
    """A product of independent one-dimensional torch distributions, each with a `cdf`.

    Arguments:
        marginals: one scalar distribution a parameter. One without an `icdf` is inverted numerically.

    Example:
        >>> import torch.distributions as td
        >>> prior = IndependentPrior([td.Normal(0.0, 1.0), td.Gamma(2.0, 3.0), td.Uniform(0.0, 5.0)])
        >>> prior.sample((4,)).shape
        torch.Size([4, 3])
    """

    def __init__(self, marginals: Sequence[Distribution]) -> None:
        if not marginals:
            raise ValueError("IndependentPrior needs at least one marginal")
        for j, marginal in enumerate(marginals):
            if marginal.batch_shape or marginal.event_shape:
                raise ValueError(
                    f"marginal {j}, {marginal}, is not one-dimensional: its batch shape is "
                    f"{tuple(marginal.batch_shape)} and its event shape {tuple(marginal.event_shape)}. "
                    "Give one scalar distribution a parameter."
                )
            if not one.has_cdf(marginal):
                raise ValueError(
                    f"marginal {j}, {marginal}, has no continuous cdf. Pass the prior as it is (any distribution with "
                    "sample and log_prob will do) and leave start='random'; only flows started at the prior need a CDF."
                )
        devices = {one.device_of(m) for m in marginals}
        if len(devices) > 1:
            raise ValueError(
                f"the marginals live on {len(devices)} devices, {sorted(map(str, devices))}; put them on one"
            )
        self.marginals = tuple(marginals)
        super().__init__(len(self.marginals))

    @property
    def device(self) -> torch.device:
        return one.device_of(self.marginals[0])

    @property
    def mean(self) -> Tensor:
        return torch.stack([m.mean for m in self.marginals])

    @property
    def variance(self) -> Tensor:
        return torch.stack([m.variance for m in self.marginals])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.stack([m.sample(Size(sample_shape)) for m in self.marginals], -1)

    def contains(self, theta: Tensor) -> Tensor:
        return self._each(one.contains, theta).all(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._each(one.log_prob, value).sum(-1)

    def to_normal(self, theta: Tensor) -> Tensor:
        return self._each(one.to_normal, theta)

    def from_normal(self, z: Tensor) -> Tensor:
        return self._each(one.from_normal, z)

    def to_uniform(self, theta: Tensor) -> Tensor:
        return self._each(one.to_uniform, theta)

    def from_uniform(self, u: Tensor) -> Tensor:
        return self._each(one.from_uniform, u)

    def to(self, device: str | torch.device) -> IndependentPrior:
        return IndependentPrior([one.moved(m, torch.device(device)) for m in self.marginals])

    def spec(self) -> dict[str, Any]:
        described = [one.describe(m) for m in self.marginals]
        if None in described:  # a transformed distribution or a mixture, whose code cannot be stored
            return {"kind": "opaque", "dim": self.dim, "repr": repr(self)}
        return {"kind": "independent", "marginals": described}

    def _each(self, f: Callable[[Distribution, Tensor], Tensor], theta: Tensor) -> Tensor:
        """f of each marginal and its column; shape `(*, D)`, on the device of θ."""
        theta = self._check(theta)
        columns = theta.to(self.device).unbind(-1)
        return torch.stack([f(m, t) for m, t in zip(self.marginals, columns, strict=True)], -1).to(theta.device)

    def __repr__(self) -> str:
        return f"IndependentPrior([{', '.join(map(repr, self.marginals))}])"
