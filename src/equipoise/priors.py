r"""Priors, and the map between a prior and the standard normal.

A prior is a `torch.distributions.Distribution` over vectors: `event_shape == (D,)`, `sample((n,))` with shape `(n, D)`,
`log_prob(theta)` with shape `(*,)`. What Equipoise adds is in `Prior`: support checks, `.to(device)`, a description
that can be stored as JSON, and, where the marginals have cumulative distribution functions, the map

.. math:: z_j = \Phi^{-1}(F_j(\theta_j)), \qquad \theta_j = F_j^{-1}(\Phi(z_j)),

under which the prior becomes N(0, I). With it a density \(q_z(z|x)\) over z is a density over θ with

.. math:: \log \frac{q(\theta|x)}{p(\theta)} = \log q_z(z|x) - \log \varphi(z),

because \(dz_j / d\theta_j = p_j(\theta_j) / \varphi(z_j)\): the Jacobian and the prior's density cancel. Nothing else
is needed to start a flow at the prior and to keep all of its mass inside the support. How the map stays accurate in
float32 is told in `equipoise.marginals`.

Every method works in the dtype and on the device of its argument, whatever those of the prior.
"""

from __future__ import annotations

__all__ = ["BoxUniform", "GaussianPrior", "IndependentPrior", "OpaquePrior", "Prior", "as_prior", "prior_from_spec"]

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from . import marginals as one
from .randomness import undisturbed


class Prior(Distribution, ABC):
    """A distribution over parameter vectors, with shape `(D,)`, that knows its support and its map to N(0, I)."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    #: Whether `to_normal`, `from_normal`, `to_uniform` and `from_uniform` are available.
    has_normal_map: bool = True

    def __init__(self, dim: int) -> None:
        super().__init__(batch_shape=Size(), event_shape=Size([dim]), validate_args=False)

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.event_shape[0]

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where draws are made."""

    @abstractmethod
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, with shape `(*sample_shape, D)`."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """log p(θ) of each row of `value`, with shape `(*, D)`; shape `(*,)`, -inf outside the support."""

    def contains(self, theta: Tensor) -> Tensor:
        """Whether each row of `theta`, with shape `(*, D)`, lies in the support; shape `(*,)`, False for NaN."""
        return self.log_prob(theta).isfinite()

    @abstractmethod
    def to_normal(self, theta: Tensor) -> Tensor:
        """z with z ~ N(0, I) when θ follows the prior; shape `(*, D)`, always finite inside the support."""

    @abstractmethod
    def from_normal(self, z: Tensor) -> Tensor:
        """θ from z: the inverse of `to_normal`; shape `(*, D)`, always inside the support."""

    @abstractmethod
    def to_uniform(self, theta: Tensor) -> Tensor:
        """u, uniform on [0, 1]^D when θ follows the prior; shape `(*, D)`."""

    @abstractmethod
    def from_uniform(self, u: Tensor) -> Tensor:
        """θ from u: the inverse of `to_uniform`; shape `(*, D)`, always inside the support."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Prior:
        """The same prior on another device."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """A JSON description from which `prior_from_spec` rebuilds the prior."""

    def _check(self, theta: Tensor) -> Tensor:
        theta = torch.as_tensor(theta)
        if theta.shape[-1:] != self.event_shape:
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but the prior has {self.dim} parameter(s)")
        return theta if theta.is_floating_point() else theta.to(torch.get_default_dtype())


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
        low, high = _vector(low, "low"), _vector(high, "high")
        low, high = torch.broadcast_tensors(low, high.to(low.device))
        if not (low.isfinite().all() and high.isfinite().all() and (low < high).all()):
            raise ValueError(
                "BoxUniform needs finite corners with low < high in every coordinate, "
                f"got {low.tolist()} and {high.tolist()}"
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
        theta, low, high = self._beside(theta)
        return ((theta >= low) & (theta <= high)).all(-1)

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
        return {"kind": "box", "low": self.low.tolist(), "high": self.high.tolist(), "dtype": _name(self.low.dtype)}

    def _beside(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """θ with the corners in its dtype and on its device, so that the corners themselves are always inside."""
        theta = self._check(theta)
        return theta, self.low.to(theta), self.high.to(theta)

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
        return {"kind": "independent", "marginals": [one.describe(m) for m in self.marginals]}

    def _each(self, f: Callable[[Distribution, Tensor], Tensor], theta: Tensor) -> Tensor:
        """f of each marginal and its column; shape `(*, D)`, on the device of θ."""
        theta = self._check(theta)
        columns = theta.to(self.device).unbind(-1)
        return torch.stack([f(m, t) for m, t in zip(self.marginals, columns, strict=True)], -1).to(theta.device)

    def __repr__(self) -> str:
        return f"IndependentPrior([{', '.join(map(repr, self.marginals))}])"


class GaussianPrior(Prior):
    """A multivariate normal. Its map to N(0, I) whitens: z = L⁻¹(θ - μ) with covariance LLᵀ.

    The cancellation of Jacobian and density holds for any map that sends the prior to N(0, I), so correlated priors
    start a flow as well as independent ones do.

    Arguments:
        loc: the mean μ, with shape `(D,)`.
        covariance: the covariance, with shape `(D, D)`.
    """

    def __init__(self, loc: Any, covariance: Any) -> None:
        self.loc = _vector(loc, "loc")
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
        return torch.special.ndtr(self.to_normal(theta))

    def from_uniform(self, u: Tensor) -> Tensor:
        limit = one.probability(-one.Z_MAX)
        return self.from_normal(torch.special.ndtri(u.double().clamp(limit, 1 - limit)).to(u.dtype))

    def to(self, device: str | torch.device) -> GaussianPrior:
        return GaussianPrior(self.loc.to(device), self.covariance.to(device))

    def spec(self) -> dict[str, Any]:
        values = {"loc": self.loc.tolist(), "covariance": self.covariance.tolist()}
        return {"kind": "gaussian", **values, "dtype": _name(self.loc.dtype)}

    def __repr__(self) -> str:
        return f"GaussianPrior(loc={self.loc.tolist()}, covariance={self.covariance.tolist()})"


class OpaquePrior(Prior):
    """Any object with `sample` and `log_prob`, as users bring them; it has no map to N(0, I) and cannot be stored.

    Moved to another device it stays where it is: draws and densities are carried across.
    """

    has_normal_map = False

    def __init__(self, distribution: Any, device: str | torch.device | None = None) -> None:
        self.distribution = distribution
        with undisturbed():  # looking at a prior must not advance the user's generator
            draw = torch.as_tensor(distribution.sample((2,)))
            if draw.ndim != 2:
                raise ValueError(
                    "a prior is a distribution over vectors: sample((2,)) should have shape (2, D), got "
                    f"{tuple(draw.shape)}. Wrap scalar distributions in torch.distributions.Independent, or give "
                    "eq.IndependentPrior a list."
                )
            density = torch.as_tensor(distribution.log_prob(draw))
        if density.shape != (2,):
            raise ValueError(
                f"log_prob of 2 draws of the prior should have shape (2,), got {tuple(density.shape)}. Wrap the prior "
                "in torch.distributions.Independent(prior, 1) to sum over parameters."
            )
        self._anchor = draw[0]
        self._device = torch.device(device) if device is not None else draw.device
        super().__init__(draw.shape[1])

    @property
    def device(self) -> torch.device:
        return self._device

    def sample(self, sample_shape: Any = ()) -> Tensor:
        draw = torch.as_tensor(self.distribution.sample(Size(sample_shape)))
        return draw.to(self.device) if draw.is_floating_point() else draw.to(self.device, torch.get_default_dtype())

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._check(value)
        here = value.to(self._anchor.device)
        # torch's own validation refuses points outside the support, or NaN, instead of returning -inf.
        inside = here.isfinite().all(-1)
        if (support := _support(self.distribution)) is not None:
            within = support.check(here)
            inside = inside & (within if within.shape == inside.shape else within.all(-1))
        safe = torch.where(inside.unsqueeze(-1), here, self._anchor.to(here.dtype))
        density = torch.as_tensor(self.distribution.log_prob(safe))
        return torch.where(inside, density, -math.inf).to(value.device)

    def _no_map(self, _: Tensor) -> Tensor:
        raise ValueError(
            f"{self.distribution!r} has no map to N(0, I): only priors with a CDF have one. Describe it with "
            "eq.BoxUniform, eq.IndependentPrior or eq.GaussianPrior, or choose what needs no map (start='random')."
        )

    to_normal = from_normal = to_uniform = from_uniform = _no_map  # type: ignore[assignment]

    def to(self, device: str | torch.device) -> OpaquePrior:
        return OpaquePrior(self.distribution, device)

    def spec(self) -> dict[str, Any]:
        return {"kind": "opaque", "dim": self.dim, "repr": repr(self.distribution)}

    def __repr__(self) -> str:
        return f"OpaquePrior({self.distribution!r})"


def as_prior(prior: Any) -> Prior:
    """The prior a user gave, as a `Prior`.

    Box-uniform, independent and Gaussian torch distributions (and sbi's `BoxUniform` and `MultipleIndependent`) are
    recognised and get their map to N(0, I); anything else with `sample` and `log_prob` is taken as it is.

    Example:
        >>> as_prior(td.Independent(td.Uniform(torch.zeros(2), torch.ones(2)), 1))
        BoxUniform(low=[0.0, 0.0], high=[1.0, 1.0])
    """
    if isinstance(prior, Prior):
        return prior
    if not (hasattr(prior, "sample") and hasattr(prior, "log_prob")):
        given = f"the text {prior!r}" if isinstance(prior, str) else type(prior).__name__
        shell = "; text is for the shell (equipoise fit --prior)" if isinstance(prior, str) else ""
        raise TypeError(
            f"a prior is eq.BoxUniform(low, high), eq.GaussianPrior, eq.IndependentPrior, a torch distribution over "
            f"vectors, or anything else with sample and log_prob; got {given}{shell}"
        )
    if isinstance(prior, Distribution) and not prior.batch_shape and not prior.event_shape:
        raise ValueError(
            f"{prior} is a distribution over scalars. For one parameter use eq.IndependentPrior([prior]), or "
            "torch.distributions.Independent over a batch of one."
        )
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape:
        return GaussianPrior(prior.loc, prior.covariance_matrix)
    rows = one.scalars(prior)
    boxes = [m for m in rows if isinstance(m, td.Uniform)]
    if rows and len(boxes) == len(rows):
        return BoxUniform(torch.stack([m.low for m in boxes]), torch.stack([m.high for m in boxes]))
    if rows and all(one.has_cdf(m) for m in rows):
        return IndependentPrior(rows)
    return OpaquePrior(prior)


def prior_from_spec(spec: dict[str, Any]) -> Prior:
    """Rebuild a prior from its `spec()`.

    Example:
        >>> prior_from_spec(BoxUniform([0.0], [2.0]).spec())
        BoxUniform(low=[0.0], high=[2.0])
    """
    dtype = getattr(torch, spec.get("dtype", "float32"))
    match spec.get("kind"):
        case "box":
            return BoxUniform(torch.tensor(spec["low"], dtype=dtype), torch.tensor(spec["high"], dtype=dtype))
        case "gaussian":
            return GaussianPrior(torch.tensor(spec["loc"], dtype=dtype), torch.tensor(spec["covariance"], dtype=dtype))
        case "independent":
            return IndependentPrior([one.build(m) for m in spec["marginals"]])
        case "opaque":
            raise ValueError(
                f"the prior was {spec['repr']}, which cannot be stored without pickle; "
                "pass it again: eq.load(path, prior=…)"
            )
    raise ValueError(f"unknown kind of prior {spec.get('kind')!r}; was the file written by a newer Equipoise?")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _support(distribution: Any) -> Any:
    try:
        return getattr(distribution, "support", None)
    except NotImplementedError:  # what torch's base class says for "unknown"
        return None


def _vector(value: Any, name: str) -> Tensor:
    tensor = torch.atleast_1d(torch.as_tensor(value))
    if tensor.ndim != 1:
        raise ValueError(f"{name} should be a vector with one entry a parameter, got shape {tuple(tensor.shape)}")
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
