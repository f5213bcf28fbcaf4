"""Torch distributions: cut into scalar marginals, moved between devices, described as JSON and built again."""

from __future__ import annotations

__all__ = [
    "arguments_of",
    "build",
    "describe",
    "device_of",
    "read_numbers",
    "scalar_marginals",
    "to_device",
    "unvalidated",
]

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor
from torch.distributions import Distribution

from equipoise.support.randomness import isolated

from .prior import dtype_name
from .scipy_marginals import ScipyMarginal
from .uniform import LogUniform


def arguments_of(distribution: Distribution) -> dict[str, Tensor]:
    """The arguments that rebuild a torch distribution: `type(d)(**arguments_of(d))`. Empty where it declares none."""
    try:
        declared = distribution.arg_constraints
    except NotImplementedError:
        return {}
    accepted = inspect.signature(type(distribution).__init__).parameters
    names = [n for n in declared if n in accepted and hasattr(distribution, n)]
    if {"probs", "logits"} <= set(names):  # two spellings of one argument
        names.remove("logits")
    return {n: torch.as_tensor(getattr(distribution, n)) for n in names}


def device_of(distribution: Distribution) -> torch.device:
    """The device of the arguments; the CPU where there are none."""
    inside = vars(distribution).values()
    for value in (*arguments_of(distribution).values(), *inside):
        if isinstance(value, Tensor):
            return value.device
    return next((device_of(part) for part in inside if isinstance(part, Distribution)), torch.device("cpu"))


def scalar_marginals(prior: Any) -> list[Distribution]:
    """The marginals of a product of one-dimensional distributions; empty where it is something else."""
    if isinstance(prior, td.Independent) and prior.reinterpreted_batch_ndims == 1:
        return scalar_marginals(prior.base_dist)
    if parts := getattr(prior, "dists", None):  # sbi's MultipleIndependent
        columns = [scalar_marginals(part) for part in parts]
        return [m for column in columns for m in column] if all(columns) else []
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape and prior.event_shape == (1,):
        return [td.Normal(prior.loc[0], prior.scale_tril[0, 0])]
    if not isinstance(prior, Distribution) or len(prior.batch_shape) != 1 or prior.event_shape:
        return []
    values = {n: v.expand(prior.batch_shape) for n, v in arguments_of(prior).items()}
    if not values:
        return _elements(prior)
    make: Any = type(prior)
    try:
        return [make(**{n: v[j] for n, v in values.items()}) for j in range(prior.batch_shape[0])]
    except TypeError:  # it takes more than it declares
        return []


def _elements(batch: Distribution) -> list[Distribution]:
    """The elements of a batch, with shape `(n,)`, of a class that declares no arguments, such as a transformed one.

    Every tensor in a copy is indexed along its first dimension. The list is empty where the densities of the elements
    are not those of the batch: the tensors then mean something else.
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


def unvalidated(distribution: Distribution) -> Distribution:
    """A copy that computes outside its support, and where rounding has left it, instead of raising."""
    return _mapped(distribution, lambda t: t)


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
    twin = copy.deepcopy(distribution)
    seen: set[int] = set()  # a transform and its inverse hold each other

    def walk(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return change(thing)
        if isinstance(thing, list):
            return [walk(part) for part in thing]
        if isinstance(thing, Distribution | td.Transform) and id(thing) not in seen:
            seen.add(id(thing))
            thing.__dict__.update({name: walk(value) for name, value in thing.__dict__.items()})
            if isinstance(thing, Distribution):
                thing._validate_args = thing._validate_args and validate
                if batch_shape is not None:
                    thing._batch_shape = batch_shape(thing)
        return thing

    walk(twin)
    return twin


def describe(marginal: Distribution) -> dict[str, Any] | None:
    """Name and arguments of a distribution of torch, SciPy or Equipoise, as JSON; None for anything else."""
    if isinstance(marginal, ScipyMarginal):
        name = marginal.frozen.dist.name
        if type(marginal.frozen.dist) is not type(_scipy_family(name)):  # a user's own class
            return None
        values: dict[str, Any] = marginal.numbers
        return {"name": f"scipy.stats.{name}", "arguments": values, "dtype": dtype_name(marginal.like.dtype)}
    name, values = type(marginal).__name__, arguments_of(marginal)
    if _family(name) is not type(marginal) or not values:
        return None
    dtype = dtype_name(next(iter(values.values())).dtype)
    return {"name": name, "arguments": {n: float(v) for n, v in values.items()}, "dtype": dtype}


def build(spec: dict[str, Any]) -> Distribution:
    """The inverse of `describe`."""
    form = '{"name": "Normal", "arguments": {"loc": 0, "scale": 1}}'
    if not isinstance(spec, dict) or not isinstance(spec.get("arguments", {}), dict):
        raise ValueError(f"a marginal is described like {form}, got {spec!r}")
    name, given = str(spec["name"]), spec["arguments"]
    dtype = _dtype(spec)
    if name.startswith("scipy.stats."):
        family = _scipy_family(name.removeprefix("scipy.stats."))
        if family is None:
            raise ValueError(f"there is no continuous distribution {name}")
        try:
            return ScipyMarginal(family(**given), torch.empty((), dtype=dtype))
        except TypeError as error:
            raise ValueError(f"{name} takes {family.shapes or 'nothing'}, and loc and scale, got {given}") from error
    make: Any = _family(name)
    if not (isinstance(make, type) and issubclass(make, Distribution)):
        raise ValueError(
            f"unknown marginal {name!r} in a description of a prior: a name in torch.distributions, LogUniform, or one "
            "in scipy.stats as scipy.stats.NAME"
        )
    arguments: Any = {n: read_numbers({**given, "dtype": dtype_name(dtype)}, n) for n in given}
    try:
        make(**arguments, validate_args=True)  # checked once, whatever torch's default is
        return make(**arguments)
    except TypeError as error:
        wanted = [n for n in inspect.signature(make).parameters if n != "validate_args"]
        raise ValueError(f"{name} takes {', '.join(wanted)}, got {given}") from error


def read_numbers(spec: dict[str, Any], name: str) -> Tensor:
    """The numbers of a description under the key `name`, in its dtype."""
    try:
        exact = torch.tensor(spec[name], dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f'"{name}" should be numbers, got {spec[name]!r}') from error
    rounded = exact.to(_dtype(spec))
    if bool((exact.isfinite() & ~rounded.isfinite()).any()):
        raise ValueError(f'"{name}", {spec[name]}, is too large for single precision: rescale the parameter')
    return rounded


def _dtype(spec: dict[str, Any]) -> torch.dtype:
    dtype = getattr(torch, str(spec.get("dtype", "float32")), None)
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f'"dtype" is float32 or float64, got {spec["dtype"]!r}')
    return dtype


def _family(name: str) -> Any:
    return LogUniform if name == "LogUniform" else getattr(td, name, None)


def _scipy_family(name: str) -> Any:
    """A family of `scipy.stats` by its name; None where there is none."""
    from scipy import stats

    family = getattr(stats, name, None)
    return family if isinstance(family, stats.rv_continuous) else None
