"""Torch distributions taken apart, moved, described as JSON and built again."""

from __future__ import annotations

__all__ = ["build", "describe", "device_of", "moved", "numbers", "parameters", "scalars"]

import copy
import inspect
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor
from torch.distributions import Distribution

from .base import dtype_name
from .loguniform import LogUniform
from .scipys import ScipyMarginal


def parameters(distribution: Distribution) -> dict[str, Tensor]:
    """The arguments that rebuild a torch distribution: `type(d)(**parameters(d))`. Empty where it does not say."""
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
    """Where the parameters live; the CPU where there are none to ask."""
    for value in parameters(distribution).values():
        return value.device
    for value in vars(distribution).values():
        if isinstance(value, Tensor):
            return value.device
    parts = (part for part in vars(distribution).values() if isinstance(part, Distribution))
    return next((device_of(part) for part in parts), torch.device("cpu"))


def scalars(prior: Any) -> list[Distribution]:
    """The marginals of a product of one-dimensional distributions; empty where it is something else."""
    if isinstance(prior, td.Independent) and prior.reinterpreted_batch_ndims == 1:
        return scalars(prior.base_dist)
    if parts := getattr(prior, "dists", None):  # sbi's MultipleIndependent
        columns = [scalars(part) for part in parts]
        return [m for column in columns for m in column] if all(columns) else []
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape and prior.event_shape == (1,):
        return [td.Normal(prior.loc[0], prior.scale_tril[0, 0])]
    if not isinstance(prior, Distribution) or len(prior.batch_shape) != 1 or prior.event_shape:
        return []
    values = {n: v.expand(prior.batch_shape) for n, v in parameters(prior).items()}
    make: Any = type(prior)
    try:
        return [make(**{n: v[j] for n, v in values.items()}) for j in range(prior.batch_shape[0])] if values else []
    except TypeError:  # it takes more than it declares
        return []


def moved(marginal: Distribution, device: torch.device) -> Distribution:
    """A copy of a distribution with every tensor in it, however deep, on `device`."""
    twin = copy.deepcopy(marginal)
    seen: set[int] = set()  # a transform and its inverse hold each other

    def walk(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return thing.to(device)
        if isinstance(thing, list):
            return [walk(part) for part in thing]
        if isinstance(thing, Distribution | td.Transform) and id(thing) not in seen:
            seen.add(id(thing))
            thing.__dict__.update({name: walk(value) for name, value in thing.__dict__.items()})
        return thing

    walk(twin)
    return twin


def describe(marginal: Distribution) -> dict[str, Any] | None:
    """Name and arguments of a plain distribution, torch's, SciPy's or ours, as JSON; None for anything else."""
    if isinstance(marginal, ScipyMarginal):
        name = marginal.frozen.dist.name
        if type(marginal.frozen.dist) is not type(_scipys(name)):  # of the user's own making
            return None
        return {"name": f"scipy.stats.{name}", "arguments": marginal.numbers, "dtype": dtype_name(marginal.like.dtype)}
    name, values = type(marginal).__name__, parameters(marginal)
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
        family = _scipys(name.removeprefix("scipy.stats."))
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
    arguments: Any = {n: numbers({**given, "dtype": dtype_name(dtype)}, n) for n in given}
    try:
        make(**arguments, validate_args=True)  # looked at once, whatever torch's default is
        return make(**arguments)
    except TypeError as error:
        wanted = [n for n in inspect.signature(make).parameters if n != "validate_args"]
        raise ValueError(f"{name} takes {', '.join(wanted)}, got {given}") from error


def numbers(spec: dict[str, Any], name: str) -> Tensor:
    """The numbers of a description that are called `name`, in its dtype."""
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


def _scipys(name: str) -> Any:
    """A family of `scipy.stats` by its name; None where there is none."""
    from scipy import stats

    family = getattr(stats, name, None)
    return family if isinstance(family, stats.rv_continuous) else None
