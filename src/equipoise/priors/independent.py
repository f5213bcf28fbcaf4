"""Products of one-dimensional distributions, and torch's distributions as such: cut into scalars, moved, described."""

from __future__ import annotations

__all__ = ["IndependentPrior", "scalar_marginals", "to_device", "unwrapped"]

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import is_dependent

from equipoise.support.checks import parameter_names
from equipoise.support.randomness import isolated

from . import marginals as one
from .closed_forms import BoxUniform, GaussianPrior, LogUniform
from .marginals import device_of
from .prior import Prior, dtype_name
from .scipy_marginals import ScipyMarginal, has_scipy_cdf, is_scipy
from .scipy_marginals import family as scipy_family


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
    marginal = unwrapped(marginal)
    if not isinstance(marginal, Distribution):
        raise TypeError(
            f"marginal {j} is {marginal!r}; give a distribution of torch.distributions, eq.LogUniform, or a frozen one "
            "of scipy.stats such as scipy.stats.beta(2, 5)"
        )
    if (marginal.batch_shape or marginal.event_shape) and len(alone := scalar_marginals(marginal)) == 1:
        marginal = alone[0]  # with shape (1,), as sbi has them
    if marginal.batch_shape or marginal.event_shape:
        raise ValueError(
            f"marginal {j}, {marginal}, is not one-dimensional: its shape is "
            f"{(*marginal.batch_shape, *marginal.event_shape)}. Give one scalar distribution per parameter."
        )
    _check_arguments(j, marginal)
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
    # A copy that computes outside its support, and where rounding has left it, instead of raising.
    return _mapped(marginal, lambda t: t) if type(marginal) is td.TransformedDistribution else marginal


def _check_arguments(j: int, marginal: Distribution) -> None:
    """Raise where an argument of marginal j is none that its distribution has: torch need not have checked it."""
    for name, value in _arguments_of(marginal).items():
        constraint = marginal.arg_constraints[name]
        right = value.isfinite() if is_dependent(constraint) else value.isfinite() & constraint.check(value)
        if not bool(right.all()):
            raise ValueError(
                f"marginal {j} is no distribution: {name} of {type(marginal).__name__} is {value.tolist()}"
            )


class IndependentPrior(Prior):
    """A product of independent one-dimensional distributions, each with a CDF.

    Arguments:
        marginals: one distribution per parameter: torch's, `eq.LogUniform`, or a frozen one of `scipy.stats`. Its shape
            is `()`, or `(1,)` as in sbi. One without quantiles of its own is inverted numerically. A dictionary
            gives the parameters names.

    Example:
        >>> import torch.distributions as td
        >>> prior = IndependentPrior([td.Normal(0.0, 1.0), td.Gamma(2.0, 3.0), td.Uniform(0.0, 5.0)])
        >>> prior.sample((4,)).shape
        torch.Size([4, 3])
        >>> IndependentPrior({"beta": td.Uniform(0.0, 2.0), "gamma": td.Uniform(0.0, 1.0)}).names
        ('beta', 'gamma')
    """

    def __init__(self, marginals: Sequence[Any] | Mapping[str, Any]) -> None:
        names = tuple(marginals) if isinstance(marginals, Mapping) else None
        marginals = list(marginals.values()) if isinstance(marginals, Mapping) else marginals
        if not isinstance(marginals, Sequence) or isinstance(marginals, str):
            raise TypeError(f"IndependentPrior needs a list, one distribution per parameter, got {marginals!r}")
        if not len(marginals):
            raise ValueError("IndependentPrior needs at least one marginal")
        tensors = (v for m in marginals if isinstance(m, Distribution) for v in _arguments_of(m).values())
        like = next((v for v in tensors if v.is_floating_point()), None)
        self.marginals = tuple(_scalar(j, m, like) for j, m in enumerate(marginals))
        devices = {device_of(m) for m in self.marginals}
        if len(devices) > 1:
            raise ValueError(f"the marginals live on several devices, {sorted(map(str, devices))}; put them on one")
        super().__init__(len(self.marginals), devices.pop())
        # SciPy says by warnings, of which a process has one list, where it has no quantile.
        self.in_threads = not any(has_scipy_cdf(m) for m in self.marginals)
        self.names = None if names is None else parameter_names(names, self.dim)

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
        return IndependentPrior([to_device(m, torch.device(device)) for m in self.marginals]).named(self.names)

    def spec(self) -> dict[str, Any]:
        described = [_describe(m) for m in self.marginals]
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


def _arguments_of(distribution: Distribution) -> dict[str, Tensor]:
    """The arguments that rebuild a torch distribution: `type(d)(**_arguments_of(d))`. Empty where it declares none."""
    try:
        declared = distribution.arg_constraints
    except NotImplementedError:
        return {}
    accepted = inspect.signature(type(distribution).__init__).parameters
    names = [n for n in declared if n in accepted and hasattr(distribution, n)]
    if {"probs", "logits"} <= set(names):  # two spellings of one argument
        names.remove("logits")
    return {n: torch.as_tensor(getattr(distribution, n)) for n in names}


#: Classes of sbi that change the dtype of a torch distribution, or the shape of its densities, and nothing else.
WRAPPERS = ("PytorchReturnTypeWrapper", "OneDimPriorWrapper")


def unwrapped(prior: Any) -> Any:
    """The torch distribution inside sbi's wrappers; anything else as it is."""
    while type(prior).__name__ in WRAPPERS and isinstance(inside := getattr(prior, "prior", None), Distribution):
        prior = inside
    return prior


def scalar_marginals(prior: Any) -> list[Distribution]:
    """The marginals of a product of one-dimensional distributions; empty where it is something else."""
    prior = unwrapped(prior)
    if isinstance(prior, td.Independent) and prior.reinterpreted_batch_ndims == 1:
        return scalar_marginals(prior.base_dist)
    if parts := getattr(prior, "dists", None):  # sbi's MultipleIndependent
        columns = [scalar_marginals(part) for part in parts]
        return [m for column in columns for m in column] if all(columns) else []
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape and prior.event_shape == (1,):
        return [td.Normal(prior.loc[0], prior.scale_tril[0, 0])]
    if not isinstance(prior, Distribution) or len(prior.batch_shape) != 1 or prior.event_shape:
        return []
    values = {n: v.expand(prior.batch_shape) for n, v in _arguments_of(prior).items()}
    if not values:
        return _elements(prior)
    make: Any = type(prior)
    try:
        return [make(**{n: v[j] for n, v in values.items()}) for j in range(prior.batch_shape[0])]
    except TypeError:  # it takes more than it declares
        return []


def _elements(batch: Distribution) -> list[Distribution]:
    """The elements of a batch, with shape `(n,)`, of a class that declares no arguments, such as a transformed one.

    Every tensor is indexed along its first dimension. The list is empty where densities are not those of the batch.
    """
    count = batch.batch_shape[0]

    def element(j: int) -> Distribution:
        return _mapped(batch, lambda t: t[j] if t.ndim and len(t) == count else t, lambda d: d._batch_shape[1:])

    try:
        found = [element(j) for j in range(count)]
        with isolated(0), torch.no_grad():
            theta = batch.sample((3,))
            ours = torch.stack([d.log_prob(theta[:, j]) for j, d in enumerate(found)], -1)
            theirs = batch.log_prob(theta)
    except Exception:  # whatever a class that was not made for this may raise
        return []
    return found if ours.shape == theirs.shape and torch.allclose(ours, theirs, equal_nan=True) else []


def to_device(distribution: Distribution, device: torch.device) -> Distribution:
    """A copy of a distribution with every tensor in it, however deep, on `device`."""
    return _mapped(distribution, lambda t: t.to(device), validate=True)


def _mapped(
    distribution: Distribution,
    change: Callable[[Tensor], Tensor],
    batch_shape: Callable[[Distribution], torch.Size] | None = None,
    validate: bool = False,
) -> Distribution:
    """A copy with `change` applied to every tensor in it, and with another batch shape where one is given.

    Where `validate` is False, neither it nor the distributions in it check their arguments.
    """
    twins: dict[int, Any] = {}  # a transform and its inverse hold each other, which `copy.deepcopy` loses

    def walk(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return change(thing)
        if isinstance(thing, list):
            return [walk(part) for part in thing]
        if isinstance(thing, weakref.ref):  # to an inverse, in older versions of torch, which then makes another
            return None
        if not isinstance(thing, Distribution | td.Transform):
            return thing
        if id(thing) not in twins:
            twin: Any = object.__new__(type(thing))
            twins[id(thing)] = twin
            twin.__dict__.update({name: walk(value) for name, value in vars(thing).items()})
            if isinstance(thing, Distribution):
                twin._validate_args = thing._validate_args and validate
                twin._batch_shape = thing._batch_shape if batch_shape is None else batch_shape(thing)
        return twins[id(thing)]

    return walk(distribution)


def _describe(marginal: Distribution) -> dict[str, Any] | None:
    """Name and arguments of a distribution of torch, SciPy or Equipoise, as JSON; None for anything else."""
    if isinstance(marginal, ScipyMarginal):
        name = marginal.frozen.dist.name
        if type(marginal.frozen.dist) is not type(scipy_family(name)):  # a user's own class
            return None
        return {"name": f"scipy.stats.{name}", "arguments": marginal.numbers, "dtype": dtype_name(marginal.like.dtype)}
    name, values = type(marginal).__name__, _arguments_of(marginal)
    if not values or type(marginal) not in (LogUniform, getattr(td, name, None)):
        return None
    dtype = dtype_name(next(iter(values.values())).dtype)
    return {"name": name, "arguments": {n: float(v) for n, v in values.items()}, "dtype": dtype}
