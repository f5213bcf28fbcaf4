r"""Priors, and the map between a prior and the standard normal.

A prior is a `torch.distributions.Distribution` over vectors: `event_shape == (D,)`, `sample((n,))` with shape
`(n, D)`, `log_prob(theta)` with shape `(*,)`. What Equipoise adds is in `Prior`: support checks, `.to(device)`, a
description that can be stored as JSON, and, where the marginals have cumulative distribution functions, the map

.. math:: z_j = \Phi^{-1}(F_j(\theta_j)), \qquad \theta_j = F_j^{-1}(\Phi(z_j)),

under which the prior becomes N(0, I). With it a density \(q_z(z|x)\) over z is a density over θ with

.. math:: \log \frac{q(\theta|x)}{p(\theta)} = \log q_z(z|x) - \log \varphi(z),

because \(dz_j / d\theta_j = p_j(\theta_j) / \varphi(z_j)\): the Jacobian and the prior's density cancel. Nothing else is
needed to start a flow at the prior and to keep all of its mass inside the support.

In float32 the plain formula loses the upper tail: 1 - 2^-24 is the largest number below 1, while the lower tail reaches
1e-38. Both tails are therefore taken from their own end, u = F(θ) below the median and u = 1 - F(θ) above it, and clamped
at the same ±Z_MAX, so that the map is antisymmetric where the prior is symmetric.
"""

from __future__ import annotations

__all__ = ["BoxUniform", "GaussianPrior", "IndependentPrior", "OpaquePrior", "Prior", "as_prior", "prior_from_spec"]

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

#: |z| never exceeds this. Φ(-Z_MAX) is 1.0e-7: a float32 draw from the prior lands beyond it less than once in a million.
Z_MAX = 5.2


class Prior(Distribution):
    """A distribution over parameter vectors, with shape `(D,)`, that knows its support and its map to N(0, I)."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    #: Whether `to_normal`, `from_normal`, `to_uniform` and `from_uniform` are available.
    has_normal_map: bool = True

    def __init__(self, dim: int) -> None:
        super().__init__(batch_shape=Size(), event_shape=Size([dim]), validate_args=False)

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.event_shape[0]

    @property
    def device(self) -> torch.device:
        """Where draws are made."""
        raise NotImplementedError(f"{type(self).__name__} does not say where it lives")

    def contains(self, theta: Tensor) -> Tensor:
        """Whether each row of `theta`, with shape `(*, D)`, lies in the support; shape `(*,)`, False for NaN."""
        return self.log_prob(theta).isfinite()

    def to(self, device: str | torch.device) -> Prior:
        """The same prior on another device."""
        raise NotImplementedError(f"{type(self).__name__} cannot be moved to {device}")

    def spec(self) -> dict[str, Any]:
        """A JSON description from which `prior_from_spec` rebuilds the prior."""
        raise NotImplementedError(f"{type(self).__name__} cannot be described")

    def tails(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """F(θ) and 1 - F(θ) of each coordinate, each accurate where it is small."""
        raise NotImplementedError(f"{type(self).__name__} has no CDF")

    def quantile(self, lower: Tensor, upper: Tensor) -> Tensor:
        """θ with F(θ) = lower = 1 - upper, read from whichever of the two is smaller."""
        raise NotImplementedError(f"{type(self).__name__} has no quantile function")

    def to_normal(self, theta: Tensor) -> Tensor:
        """z with z ~ N(0, I) when θ follows the prior; shape `(*, D)`, |z| at most 5.2."""
        lower, upper = self.tails(theta)
        below = lower <= upper
        tiny = torch.finfo(theta.dtype).tiny
        # The branch that is not taken must not produce an infinite derivative either, hence the inner `where`.
        u = torch.where(below, lower, upper).clamp(tiny, 0.5)
        z = torch.special.ndtri(u)
        return torch.where(below, z, -z).clamp(-Z_MAX, Z_MAX)

    def from_normal(self, z: Tensor) -> Tensor:
        """θ from z: the inverse of `to_normal`; shape `(*, D)`, always inside the support."""
        return self.quantile(torch.special.ndtr(z), torch.special.ndtr(-z))

    def to_uniform(self, theta: Tensor) -> Tensor:
        """u = F(θ), uniform on [0, 1]^D when θ follows the prior; shape `(*, D)`."""
        return self.tails(theta)[0]

    def from_uniform(self, u: Tensor) -> Tensor:
        """θ from u: the inverse of `to_uniform`; shape `(*, D)`."""
        return self.quantile(u, 1 - u)


class BoxUniform(Prior):
    """The uniform distribution on a box, closed at both ends.

    Arguments:
        low: the lower corner, with shape `(D,)`.
        high: the upper corner, with shape `(D,)`.

    Example:
        >>> prior = BoxUniform([-3.0, -3.0], [3.0, 3.0])
        >>> prior.log_prob(torch.tensor([[3.0, -3.0], [3.1, 0.0]]))
        tensor([-3.5835,    -inf])
    """

    def __init__(self, low: Any, high: Any) -> None:
        low, high = torch.broadcast_tensors(_vector(low, "low"), _vector(high, "high"))
        if not (low.isfinite().all() and high.isfinite().all() and (low < high).all()):
            raise ValueError(
                f"BoxUniform needs finite corners with low < high in every coordinate, got {low.tolist()} and "
                f"{high.tolist()}"
            )
        self.low, self.high = low, high
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

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        u = torch.rand((*sample_shape, self.dim), dtype=self.low.dtype, device=self.low.device)
        return self.from_uniform(u)

    sample = torch.no_grad()(rsample)

    def contains(self, theta: Tensor) -> Tensor:
        theta = _like(theta, self.low)
        return ((theta >= self.low) & (theta <= self.high)).all(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        inside = self.contains(value)
        density = -(self.high - self.low).log().sum()
        return torch.where(inside, density, -math.inf)

    def entropy(self) -> Tensor:
        return (self.high - self.low).log().sum()

    def tails(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        theta = _like(theta, self.low)
        width = self.high - self.low
        return (theta - self.low) / width, (self.high - theta) / width

    def quantile(self, lower: Tensor, upper: Tensor) -> Tensor:
        width = self.high - self.low
        theta = torch.where(lower <= upper, self.low + width * lower, self.high - width * upper)
        return torch.minimum(torch.maximum(theta, self.low), self.high)

    def to(self, device: str | torch.device) -> BoxUniform:
        return BoxUniform(self.low.to(device), self.high.to(device))

    def spec(self) -> dict[str, Any]:
        return {"kind": "box", "low": self.low.tolist(), "high": self.high.tolist()}

    def __repr__(self) -> str:
        return f"BoxUniform(low={self.low.tolist()}, high={self.high.tolist()})"


class IndependentPrior(Prior):
    """A product of independent one-dimensional torch distributions, each with a `cdf`.

    Arguments:
        marginals: one scalar distribution a parameter. One without an `icdf` is inverted numerically.

    Example:
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
                    f"marginal {j}, {marginal}, is not one-dimensional: its batch shape is {tuple(marginal.batch_shape)} "
                    f"and its event shape {tuple(marginal.event_shape)}. Give one scalar distribution a parameter."
                )
            if _has_no_cdf(marginal):
                raise ValueError(
                    f"marginal {j}, {marginal}, has no cdf. Pass the prior as it is (any distribution with sample and "
                    "log_prob will do) and leave start='random'; only flows started at the prior need a CDF."
                )
        self.marginals = tuple(marginals)
        super().__init__(len(self.marginals))

    @property
    def device(self) -> torch.device:
        return _device_of(self.marginals[0])

    @property
    def mean(self) -> Tensor:
        return torch.stack([m.mean for m in self.marginals])

    @property
    def variance(self) -> Tensor:
        return torch.stack([m.variance for m in self.marginals])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return torch.stack([m.sample(Size(sample_shape)) for m in self.marginals], -1)

    def contains(self, theta: Tensor) -> Tensor:
        columns = theta.to(self.device).unbind(-1)
        return torch.stack([_inside(m, t) for m, t in zip(self.marginals, columns, strict=True)], -1).all(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        total: Tensor | None = None
        for marginal, theta in zip(self.marginals, value.to(self.device).unbind(-1), strict=True):
            inside = _inside(marginal, theta)
            # Outside the support torch raises or extrapolates; evaluate at a point inside and overwrite.
            safe = torch.where(inside, theta, _interior(marginal, theta))
            term = torch.where(inside, _at(marginal.log_prob, safe, marginal), -math.inf)
            total = term if total is None else total + term
        assert total is not None
        return total

    def tails(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [_marginal_tails(m, t) for m, t in zip(self.marginals, theta.to(self.device).unbind(-1), strict=True)]
        return torch.stack([p[0] for p in pairs], -1), torch.stack([p[1] for p in pairs], -1)

    def quantile(self, lower: Tensor, upper: Tensor) -> Tensor:
        columns = zip(self.marginals, lower.unbind(-1), upper.unbind(-1), strict=True)
        return torch.stack([_marginal_quantile(m, lo, up) for m, lo, up in columns], -1)

    def to(self, device: str | torch.device) -> IndependentPrior:
        return IndependentPrior([_move(m, device) for m in self.marginals])

    def spec(self) -> dict[str, Any]:
        return {"kind": "independent", "marginals": [_describe(m) for m in self.marginals]}

    def __repr__(self) -> str:
        return f"IndependentPrior([{', '.join(map(repr, self.marginals))}])"


class GaussianPrior(Prior):
    """A multivariate normal. Its map to N(0, I) whitens: z = L⁻¹(θ - μ) with covariance LLᵀ.

    The cancellation of Jacobian and density holds for any map that sends the prior to N(0, I), so correlated priors
    start a flow as well as independent ones do.
    """

    def __init__(self, loc: Any, covariance: Any) -> None:
        self.loc = _vector(loc, "loc")
        self.covariance = torch.as_tensor(covariance, dtype=self.loc.dtype, device=self.loc.device)
        self._normal = td.MultivariateNormal(self.loc, self.covariance, validate_args=False)
        super().__init__(self.loc.shape[0])

    @property
    def device(self) -> torch.device:
        return self.loc.device

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal()

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self._normal.sample(Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self._normal.log_prob(_like(value, self.loc))

    def to_normal(self, theta: Tensor) -> Tensor:
        centred = (_like(theta, self.loc) - self.loc).unsqueeze(-1)
        return torch.linalg.solve_triangular(self._normal.scale_tril.to(centred.dtype), centred, upper=False).squeeze(-1)

    def from_normal(self, z: Tensor) -> Tensor:
        return self.loc + z @ self._normal.scale_tril.to(z.dtype).mT

    def to_uniform(self, theta: Tensor) -> Tensor:
        return torch.special.ndtr(self.to_normal(theta))

    def from_uniform(self, u: Tensor) -> Tensor:
        return self.from_normal(torch.special.ndtri(u.clamp(1e-7, 1 - 1e-7)))

    def to(self, device: str | torch.device) -> GaussianPrior:
        return GaussianPrior(self.loc.to(device), self.covariance.to(device))

    def spec(self) -> dict[str, Any]:
        return {"kind": "gaussian", "loc": self.loc.tolist(), "covariance": self.covariance.tolist()}

    def __repr__(self) -> str:
        return f"GaussianPrior(loc={self.loc.tolist()}, covariance={self.covariance.tolist()})"


class OpaquePrior(Prior):
    """Any object with `sample` and `log_prob`, as users bring them; it has no map to N(0, I) and cannot be stored."""

    has_normal_map = False

    def __init__(self, distribution: Any) -> None:
        self.distribution = distribution
        draw = torch.as_tensor(distribution.sample((2,)))
        if draw.ndim != 2:
            raise ValueError(
                f"a prior is a distribution over vectors: sample((2,)) should have shape (2, D), got {tuple(draw.shape)}. "
                "Wrap scalar distributions in torch.distributions.Independent, or give eq.IndependentPrior a list."
            )
        density = torch.as_tensor(distribution.log_prob(draw))
        if density.shape != (2,):
            raise ValueError(
                f"log_prob of 2 draws of the prior should have shape (2,), got {tuple(density.shape)}. Wrap the prior in "
                "torch.distributions.Independent(prior, 1) to sum over parameters."
            )
        self._device = draw.device
        super().__init__(draw.shape[1])

    @property
    def device(self) -> torch.device:
        return self._device

    def sample(self, sample_shape: Any = ()) -> Tensor:
        draw = torch.as_tensor(self.distribution.sample(Size(sample_shape)))
        return draw if draw.dtype == torch.float64 else draw.to(torch.get_default_dtype())

    def contains(self, theta: Tensor) -> Tensor:
        return self.log_prob(theta).isfinite()

    def log_prob(self, value: Tensor) -> Tensor:
        value = value.to(self.device)
        support = getattr(self.distribution, "support", None)
        try:
            return torch.as_tensor(self.distribution.log_prob(value))
        except ValueError:  # torch's own validation refuses points outside the support instead of returning -inf
            if support is None:
                raise
            inside = support.check(value)
            inside = inside if inside.shape == value.shape[:-1] else inside.all(-1)
            anchor = torch.as_tensor(self.distribution.sample((1,)))[0]
            safe = torch.where(inside.unsqueeze(-1), value, anchor)
            return torch.where(inside, torch.as_tensor(self.distribution.log_prob(safe)), -math.inf)

    def to(self, device: str | torch.device) -> Prior:
        if torch.device(device).type == self.device.type:
            return self
        if hasattr(self.distribution, "to"):
            return OpaquePrior(self.distribution.to(device) or self.distribution)
        if isinstance(self.distribution, Distribution):
            return OpaquePrior(_move(self.distribution, device))
        return _Elsewhere(self, device)

    def spec(self) -> dict[str, Any]:
        return {"kind": "opaque", "dim": self.dim, "repr": repr(self.distribution)}

    def __repr__(self) -> str:
        return f"OpaquePrior({self.distribution!r})"


class _Elsewhere(OpaquePrior):
    """A user's prior that lives on one device, seen from another: draws and densities are carried across."""

    def __init__(self, prior: OpaquePrior, device: str | torch.device) -> None:
        super().__init__(prior.distribution)
        self.home, self._device = prior, torch.device(device)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.home.sample(sample_shape).to(self._device)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.home.log_prob(value.to(self.home.device)).to(self._device)

    def to(self, device: str | torch.device) -> Prior:
        return self.home.to(device)


def as_prior(prior: Any) -> Prior:
    """The prior a user gave, as a `Prior`.

    Box-uniform, independent and Gaussian torch distributions (and sbi's `BoxUniform`) are recognised and get their map to
    N(0, I); anything else with `sample` and `log_prob` is taken as it is.

    Example:
        >>> as_prior(td.Independent(td.Uniform(torch.zeros(2), torch.ones(2)), 1))
        BoxUniform(low=[0.0, 0.0], high=[1.0, 1.0])
    """
    if isinstance(prior, Prior):
        return prior
    if not (hasattr(prior, "sample") and hasattr(prior, "log_prob")):
        raise TypeError(f"a prior needs sample and log_prob; {type(prior).__name__} has not both")
    base = prior
    if isinstance(prior, td.Independent) and prior.reinterpreted_batch_ndims == 1:
        base = prior.base_dist
    if isinstance(base, td.Uniform) and len(base.batch_shape) == 1:
        return BoxUniform(base.low, base.high)
    if isinstance(base, td.MultivariateNormal) and not base.batch_shape:
        return GaussianPrior(base.loc, base.covariance_matrix)
    if isinstance(base, Distribution) and len(base.batch_shape) == 1 and not base.event_shape and not _has_no_cdf(base):
        return IndependentPrior([_row(base, j) for j in range(base.batch_shape[0])])
    if isinstance(prior, Distribution) and not prior.batch_shape and not prior.event_shape:
        raise ValueError(
            f"{prior} is a distribution over scalars. For one parameter use eq.IndependentPrior([prior]), or "
            "torch.distributions.Independent over a batch of one."
        )
    return OpaquePrior(prior)


def prior_from_spec(spec: dict[str, Any]) -> Prior:
    """Rebuild a prior from its `spec()`."""
    dtype = torch.get_default_dtype()
    match spec.get("kind"):
        case "box":
            return BoxUniform(torch.tensor(spec["low"], dtype=dtype), torch.tensor(spec["high"], dtype=dtype))
        case "gaussian":
            return GaussianPrior(torch.tensor(spec["loc"], dtype=dtype), torch.tensor(spec["covariance"], dtype=dtype))
        case "independent":
            return IndependentPrior([_build(m) for m in spec["marginals"]])
        case "opaque":
            raise ValueError(
                f"the prior was {spec['repr']}, which cannot be stored without pickle; pass it again: eq.load(path, prior=…)"
            )
    raise ValueError(f"unknown kind of prior {spec.get('kind')!r}; was the file written by a newer Equipoise?")


# --- one-dimensional marginals -------------------------------------------------------------------------------------


def _has_no_cdf(marginal: Distribution) -> bool:
    try:
        with torch.no_grad():
            marginal.cdf(marginal.sample())
    except NotImplementedError:
        return True
    return False


def _device_of(distribution: Distribution) -> torch.device:
    return distribution.sample().device


def _inside(marginal: Distribution, theta: Tensor) -> Tensor:
    if isinstance(marginal, td.Uniform):  # torch's support excludes the upper end on some versions
        return (theta >= marginal.low) & (theta <= marginal.high)
    return marginal.support.check(theta) & theta.isfinite()


def _interior(marginal: Distribution, theta: Tensor) -> Tensor:
    """A point of the support, for the branch of a `where` that is thrown away."""
    mean = marginal.mean
    point = mean if bool(mean.isfinite()) else marginal.sample()
    return point.to(theta.dtype)


def _at(f: Callable[[Tensor], Tensor], theta: Tensor, marginal: Distribution) -> Tensor:
    """f(θ) with the closed upper end of a uniform, which torch's own log_prob counts as outside."""
    if isinstance(marginal, td.Uniform):
        return (-(marginal.high - marginal.low).log()).expand(theta.shape)
    return f(theta)


def _marginal_tails(marginal: Distribution, theta: Tensor) -> tuple[Tensor, Tensor]:
    """F(θ) and 1 - F(θ); outside the support they are 0 and 1."""
    if isinstance(marginal, td.Normal):  # both tails exactly
        z = (theta - marginal.loc) / marginal.scale
        return torch.special.ndtr(z), torch.special.ndtr(-z)
    if isinstance(marginal, td.Uniform):
        width = marginal.high - marginal.low
        return ((theta - marginal.low) / width).clamp(0, 1), ((marginal.high - theta) / width).clamp(0, 1)
    inside = _inside(marginal, theta)
    middle = _interior(marginal, theta)
    u = marginal.cdf(torch.where(inside, theta, middle))
    u = torch.where(inside, u, (theta > middle).to(u.dtype))
    return u, 1 - u


def _marginal_quantile(marginal: Distribution, lower: Tensor, upper: Tensor) -> Tensor:
    if isinstance(marginal, td.Normal):
        z = torch.special.ndtri(torch.where(lower <= upper, lower, upper))
        return marginal.loc + marginal.scale * torch.where(lower <= upper, z, -z)
    if isinstance(marginal, td.Uniform):
        width = marginal.high - marginal.low
        theta = torch.where(lower <= upper, marginal.low + width * lower, marginal.high - width * upper)
        return torch.minimum(torch.maximum(theta, marginal.low), marginal.high)
    eps = torch.finfo(lower.dtype).eps
    u = lower.clamp(eps, 1 - eps)
    try:
        return marginal.icdf(u)
    except NotImplementedError:
        return _Bisect.apply(u, marginal)


class _Bisect(torch.autograd.Function):
    """The quantile function by bisection, with its derivative 1/p(θ) by the implicit function theorem."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, marginal: Distribution) -> Tensor:  # type: ignore[override]
        wide = u.double()
        with torch.no_grad():
            lo, hi = _bracket(marginal, wide)
            for _ in range(200):
                mid = (lo + hi) / 2
                above = marginal.cdf(mid.to(u.dtype)).double() < wide
                lo, hi = torch.where(above, mid, lo), torch.where(above, hi, mid)
                if bool((hi - lo <= 1e-15 * (1 + hi.abs())).all()):
                    break
            theta = ((lo + hi) / 2).to(u.dtype)
        ctx.save_for_backward(theta)
        ctx.marginal = marginal
        return theta

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (theta,) = ctx.saved_tensors
        return grad * (-ctx.marginal.log_prob(theta)).exp(), None


def _bracket(marginal: Distribution, u: Tensor) -> tuple[Tensor, Tensor]:
    """Two points of the support with F(lo) ≤ u ≤ F(hi), found by stepping out from an interior point."""
    middle = _interior(marginal, u)
    support = marginal.support
    floor = getattr(support, "lower_bound", -math.inf)
    ceil = getattr(support, "upper_bound", math.inf)
    floor_, ceil_ = torch.as_tensor(floor, dtype=u.dtype), torch.as_tensor(ceil, dtype=u.dtype)
    step = torch.ones_like(middle)
    lo = hi = middle
    for _ in range(200):
        low_done = bool((marginal.cdf(lo) <= u.min()).all()) or bool(lo <= floor_)
        high_done = bool((marginal.cdf(hi) >= u.max()).all()) or bool(hi >= ceil_)
        if low_done and high_done:
            break
        if not low_done:
            lo = torch.maximum(middle - step, floor_ + 1e-300) if bool(floor_.isfinite()) else middle - step
        if not high_done:
            hi = torch.minimum(middle + step, ceil_) if bool(ceil_.isfinite()) else middle + step
        step = step * 2
        if bool(floor_.isfinite()) and bool(lo <= floor_ + 1e-300):
            lo = floor_
    return lo.expand_as(u).clone(), hi.expand_as(u).clone()


def _parameters(distribution: Distribution) -> dict[str, Tensor]:
    """The arguments of a torch distribution: those its constructor was given, where it says so."""
    names = [n for n in type(distribution).arg_constraints if n in distribution.__dict__]
    return {n: torch.as_tensor(getattr(distribution, n)) for n in names}


def _move(distribution: Distribution, device: str | torch.device) -> Distribution:
    if isinstance(distribution, td.Independent):
        return td.Independent(_move(distribution.base_dist, device), distribution.reinterpreted_batch_ndims)
    return type(distribution)(**{n: v.to(device) for n, v in _parameters(distribution).items()})


def _row(distribution: Distribution, j: int) -> Distribution:
    values = {n: v.expand(distribution.batch_shape)[j] for n, v in _parameters(distribution).items()}
    return type(distribution)(**values)


def _describe(marginal: Distribution) -> dict[str, Any]:
    name = type(marginal).__name__
    if getattr(td, name, None) is not type(marginal):
        raise ValueError(f"{marginal} is not one of torch's distributions and cannot be stored without pickle")
    return {"name": name, "arguments": {n: float(v) for n, v in _parameters(marginal).items()}}


def _build(spec: dict[str, Any]) -> Distribution:
    cls = getattr(td, spec["name"], None)
    if not (isinstance(cls, type) and issubclass(cls, Distribution)):
        raise ValueError(f"unknown marginal {spec['name']!r} in a stored prior")
    built: Distribution = cls(**{n: torch.tensor(v) for n, v in spec["arguments"].items()})
    return built


# --- small helpers -------------------------------------------------------------------------------------------------


def _vector(value: Any, name: str) -> Tensor:
    tensor = torch.as_tensor(value)
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    if tensor.ndim == 0:
        tensor = tensor[None]
    if tensor.ndim != 1:
        raise ValueError(f"{name} should be a vector with one entry a parameter, got shape {tuple(tensor.shape)}")
    return tensor


def _like(theta: Tensor, reference: Tensor) -> Tensor:
    if theta.shape[-1:] != reference.shape[-1:]:
        raise ValueError(f"theta has shape {tuple(theta.shape)}, but the prior has {reference.shape[-1]} parameter(s)")
    return theta.to(reference.device)
