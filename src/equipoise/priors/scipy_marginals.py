r"""Marginals of SciPy: its frozen distributions, and its CDFs of those distributions for which torch has none.

SciPy computes in float64 on the CPU, whatever the device of θ, in a microsecond or two per number. The derivatives that
torch needs are densities,

.. math:: \frac{d}{d\theta} F(\theta) = p(\theta), \qquad \frac{d}{d\theta} (1 - F(\theta)) = -p(\theta).

Both tails are computed, so that neither is rounded away. An angle is a special case: torch draws a von Mises from
\([-\pi, \pi]\) wherever its centre is, and gives it a periodic density on the whole line. Here its support is that
interval, on which it has mass 1.
"""

from __future__ import annotations

__all__ = ["ScipyMarginal", "family", "has_scipy_cdf", "is_scipy", "quantile", "tails"]

import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from .prior import ndtr

Function = Callable[[np.ndarray], Any]

#: Torch's continuous distributions without a CDF that SciPy has.
KNOWN = (td.Beta, td.StudentT, td.FisherSnedecor, td.VonMises)


def is_scipy(thing: Any) -> bool:
    """Whether something comes from `scipy.stats`, which is not imported to find out."""
    return type(thing).__module__.startswith("scipy.stats")


def family(name: str) -> Any:
    """A continuous family of `scipy.stats` by its name; None where there is none."""
    from scipy import stats

    found = getattr(stats, name, None)
    return found if isinstance(found, stats.rv_continuous) else None


def has_scipy_cdf(marginal: Distribution) -> bool:
    """Whether the CDF of a marginal is SciPy's."""
    return isinstance(marginal, (ScipyMarginal, *KNOWN))


def tails(marginal: Distribution, theta: Tensor) -> tuple[Tensor, Tensor]:
    """F(θ) and 1 - F(θ) for θ inside the support, in float64 where θ is; derivatives are ±p(θ)."""
    frozen, theta = _frozen(marginal), theta.double()
    lower = _KnownSlope.apply(theta, frozen.cdf, lambda t: marginal.log_prob(t).exp())
    upper = _KnownSlope.apply(theta, frozen.sf, lambda t: -marginal.log_prob(t).exp())
    return lower, upper


def quantile(marginal: Distribution, z: Tensor) -> Tensor:
    """θ with F(θ) = Φ(z), each half from its own tail, in float64 and without a derivative.

    Raises `NotImplementedError` where SciPy has no formula and would search for each number by itself, and where it
    gives up (far out in the tails of a steep beta).
    """
    from scipy import stats

    frozen = _frozen(marginal)
    if not hasattr(frozen, "dist") or type(frozen.dist)._ppf is stats.rv_continuous._ppf:
        raise NotImplementedError(f"SciPy has no formula for quantiles of {marginal}")
    near = ndtr(-z.detach().double().abs())
    with warnings.catch_warnings(record=True) as troubles:
        warnings.simplefilter("always")
        theta = torch.where(z <= 0, _on_cpu(frozen.ppf, near), _on_cpu(frozen.isf, near))
    if troubles or not bool((theta.isfinite() | z.isnan()).all()):
        raise NotImplementedError(f"SciPy has no such quantiles of {marginal}")
    return theta


def _frozen(marginal: Distribution) -> Any:
    """SciPy's functions of a marginal: `cdf` and `sf`, and `ppf` and `isf` except for angles."""
    from scipy import stats

    match marginal:
        case ScipyMarginal():
            return marginal.frozen
        case td.Beta():
            return stats.beta(float(marginal.concentration1), float(marginal.concentration0))
        case td.StudentT():
            return stats.t(float(marginal.df), float(marginal.loc), float(marginal.scale))
        case td.FisherSnedecor():
            return stats.f(float(marginal.df1), float(marginal.df2))
        case td.VonMises():
            whole = stats.vonmises(float(marginal.concentration), float(marginal.loc))
            start = float(whole.cdf(-math.pi))  # SciPy's goes on counting beyond a period

            def cdf(theta: np.ndarray) -> Any:
                return np.clip(whole.cdf(theta) - start, 0, 1)

            return SimpleNamespace(cdf=cdf, sf=lambda theta: 1 - cdf(theta))
    raise NotImplementedError(f"SciPy has no CDF of {marginal}")


def _on_cpu(function: Function, theta: Tensor) -> Tensor:
    """A NumPy function of θ, computed on the CPU and returned on the device of θ."""
    value = function(theta.detach().cpu().double().numpy())
    return torch.as_tensor(np.asarray(value, dtype=np.float64), device=theta.device)


def _numbers(frozen: Any) -> dict[str, float]:
    """The arguments of a frozen distribution by name."""
    shapes = [name.strip() for name in (frozen.dist.shapes or "").split(",") if name.strip()]
    given = dict(zip([*shapes, "loc", "scale"], frozen.args, strict=False)) | frozen.kwds
    if any(np.size(value) != 1 for value in given.values()):
        raise ValueError(
            f"scipy.stats.{frozen.dist.name} was given arrays, {given}: give one scalar distribution per parameter"
        )
    return {name: float(np.asarray(value).item()) for name, value in given.items()}


class _KnownSlope(torch.autograd.Function):
    """A NumPy function with a derivative that torch computes."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, function: Function, slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.slope = slope
        ctx.save_for_backward(theta)
        return _on_cpu(function, theta).to(theta.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (theta,) = ctx.saved_tensors
        return gradients[0] * ctx.slope(theta), None, None


class ScipyMarginal(Distribution):
    """A frozen continuous distribution of `scipy.stats` with one-dimensional draws, as a torch distribution.

    Draws follow torch's global generator. The derivative of the log density, which SciPy does not give, is a central
    difference in float64, good to about eight digits.

    Arguments:
        frozen: `scipy.stats.beta(2, 5)` and the like.
        like: a tensor with the dtype of draws, on the device of draws.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, frozen: Any, like: Tensor | None = None) -> None:
        from scipy import stats

        if not isinstance(getattr(frozen, "dist", None), stats.rv_continuous):
            raise TypeError(
                f"{frozen!r} is no frozen continuous distribution of scipy.stats with one dimension, such as "
                "scipy.stats.beta(2, 5)"
            )
        if frozen.dist.name == "vonmises":
            raise ValueError(
                "scipy.stats.vonmises has a periodic density on the whole line, which is no prior: use "
                "torch.distributions.VonMises, which lives on [-π, π], or scipy.stats.vonmises_line"
            )
        self.frozen, self.like = frozen, torch.empty((), device="cpu") if like is None else like.new_empty(())
        self.numbers = _numbers(frozen)
        low, high = (float(end) for end in frozen.support())
        if not low < high:
            raise ValueError(f"{self!r} is no distribution: SciPy refuses its numbers")
        self._support: Any = {
            (True, True): constraints.interval(low, high),
            (True, False): constraints.greater_than_eq(low),
            (False, True): constraints.less_than(high),
            (False, False): constraints.real,
        }[math.isfinite(low), math.isfinite(high)]
        super().__init__(validate_args=False)

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return self._support

    @property
    def mean(self) -> Tensor:
        return self.like.new_tensor(float(self.frozen.mean()))

    @property
    def variance(self) -> Tensor:
        return self.like.new_tensor(float(self.frozen.var()))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        seed = int(torch.randint(2**63 - 1, ()))
        drawn = self.frozen.rvs(size=tuple(Size(sample_shape)), random_state=np.random.default_rng(seed))
        return torch.as_tensor(drawn, dtype=self.like.dtype, device=self.like.device)

    def log_prob(self, value: Tensor) -> Tensor:
        return _KnownSlope.apply(value.double(), self.frozen.logpdf, self._slope).to(value.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        return tails(self, value)[0].to(value.dtype)

    def _slope(self, theta: Tensor) -> Tensor:
        """d log p / dθ: a central difference whose step is small beside the width and the distance to the ends."""
        low, high = self.frozen.support()
        spread = float(self.frozen.ppf(0.75) - self.frozen.ppf(0.25))
        step = 1e-5 * torch.minimum(theta - low, high - theta).clamp(0, spread)
        after, before = (_on_cpu(self.frozen.logpdf, theta + side * step) for side in (1, -1))
        return torch.where(step > 0, (after - before) / ((theta + step) - (theta - step)), 0.0).detach()

    def __repr__(self) -> str:
        return f"scipy.stats.{self.frozen.dist.name}({', '.join(f'{n}={v:g}' for n, v in self.numbers.items())})"
