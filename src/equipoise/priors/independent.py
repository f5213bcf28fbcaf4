"""Products of one-dimensional distributions."""

from __future__ import annotations

__all__ = ["IndependentPrior"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution

from . import marginals as one
from .gaussian import GaussianPrior
from .prior import Prior
from .scipy_marginals import ScipyMarginal, is_scipy
from .torch_distributions import arguments_of, describe, device_of, scalar_marginals, to_device, unvalidated
from .uniform import BoxUniform


def _scalar(j: int, marginal: Any, like: Tensor | None) -> Distribution:
    """Marginal j as a distribution with shape `()` and a CDF; SciPy's draw in the dtype and on the device of `like`."""
    match marginal:
        case BoxUniform(dim=1):
            return td.Uniform(marginal.low[0], marginal.high[0])
        case GaussianPrior(dim=1):
            return td.Normal(marginal.loc[0], marginal.scale_tril[0, 0])
        case IndependentPrior(dim=1):
            return marginal.marginals[0]
    if is_scipy(marginal):
        return ScipyMarginal(marginal, like)
    if not isinstance(marginal, Distribution):
        raise TypeError(
            f"marginal {j} is {marginal!r}; give a distribution: one of torch.distributions, eq.LogUniform, or a "
            "frozen one of scipy.stats such as scipy.stats.beta(2, 5)"
        )
    if (marginal.batch_shape or marginal.event_shape) and len(alone := scalar_marginals(marginal)) == 1:
        marginal = alone[0]  # with shape (1,), as sbi has them
    if marginal.batch_shape or marginal.event_shape:
        raise ValueError(
            f"marginal {j}, {marginal}, is not one-dimensional: its batch shape is {tuple(marginal.batch_shape)} and "
            f"its event shape {tuple(marginal.event_shape)}. Give one scalar distribution per parameter."
        )
    if one.is_discrete(marginal):
        raise ValueError(
            f"marginal {j}, {marginal}, has no continuous cdf: it is over whole numbers, and posteriors here are "
            "densities over real ones. Draw it in the simulator, or choose a continuous parameter instead."
        )
    if not one.has_cdf(marginal):
        raise ValueError(
            f"marginal {j}, {marginal}, has no continuous cdf that torch or SciPy knows, and flows started at the "
            "prior need one. Bring the whole prior as an object of your own with sample and log_prob (docs/priors.md), "
            "and train with start='random'."
        )
    return unvalidated(marginal) if type(marginal) is td.TransformedDistribution else marginal


class IndependentPrior(Prior):
    """A product of independent one-dimensional distributions, each with a CDF.

    Arguments:
        marginals: one distribution per parameter: torch's, `eq.LogUniform`, or a frozen one of `scipy.stats`. Its shape
            is `()`, or `(1,)` as in sbi. One without quantiles of its own is inverted numerically.

    Example:
        >>> import torch.distributions as td
        >>> prior = IndependentPrior([td.Normal(0.0, 1.0), td.Gamma(2.0, 3.0), td.Uniform(0.0, 5.0)])
        >>> prior.sample((4,)).shape
        torch.Size([4, 3])
    """

    def __init__(self, marginals: Sequence[Any]) -> None:
        if isinstance(marginals, Distribution) or is_scipy(marginals):
            raise TypeError(f"IndependentPrior needs a list, one distribution per parameter, got {marginals!r}")
        if not len(marginals):
            raise ValueError("IndependentPrior needs at least one marginal")
        tensors = (v for m in marginals if isinstance(m, Distribution) for v in arguments_of(m).values())
        like = next((v for v in tensors if v.is_floating_point()), None)
        self.marginals = tuple(_scalar(j, m, like) for j, m in enumerate(marginals))
        devices = {device_of(m) for m in self.marginals}
        if len(devices) > 1:
            raise ValueError(
                f"the marginals live on {len(devices)} devices, {sorted(map(str, devices))}; put them on one"
            )
        super().__init__(len(self.marginals))

    @property
    def device(self) -> torch.device:
        return device_of(self.marginals[0])

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
        return IndependentPrior([to_device(m, torch.device(device)) for m in self.marginals])

    def spec(self) -> dict[str, Any]:
        described = [describe(m) for m in self.marginals]
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
