"""Priors as text, for the command line, and as JSON, for files.

uniform(-3, 3)^2                    two parameters, each uniform on [-3, 3]
loguniform(1e-3, 10), normal(0, 1)  one term per parameter, independent of each other
prior.json                          what `prior.spec()` gave, for everything else
"""

from __future__ import annotations

__all__ = ["DISTRIBUTIONS", "FORMS", "parse_prior", "prior_from_spec"]

import inspect
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor

from equipoise.support.errors import MissingPart
from equipoise.support.words import did_you_mean

from .closed_forms import BoxUniform, GaussianPrior, LogUniform
from .independent import IndependentPrior
from .prior import Prior, dtype_name, refuse_unresolved_ends
from .scipy_marginals import ScipyMarginal, family

#: Name to class and the names of its numbers.
DISTRIBUTIONS: dict[str, tuple[Callable[..., td.Distribution], tuple[str, ...]]] = {
    "uniform": (td.Uniform, ("low", "high")),
    "loguniform": (LogUniform, ("low", "high")),
    "normal": (td.Normal, ("mean", "deviation")),
    "lognormal": (td.LogNormal, ("mean of the log", "deviation of the log")),
    "halfnormal": (td.HalfNormal, ("scale",)),
    "exponential": (td.Exponential, ("rate",)),
    "gamma": (td.Gamma, ("shape", "rate")),
    "beta": (td.Beta, ("alpha", "beta")),
    "laplace": (td.Laplace, ("mean", "scale")),
    "cauchy": (td.Cauchy, ("median", "scale")),
    "studentt": (td.StudentT, ("degrees of freedom", "median", "scale")),
}
#: The most parameters that a text may describe.
MOST_PARAMETERS = 1000
#: What a JSON file may hold.
FORMS = (
    '{"kind": "box", "low": [0, -1], "high": [2, 1]}',
    '{"kind": "gaussian", "loc": [0, 0], "covariance": [[1, 0.5], [0.5, 1]]}',
    '{"kind": "independent", "marginals": [{"name": "LogUniform", "arguments": {"low": 0.001, "high": 10}}, '
    '{"name": "Normal", "arguments": {"loc": 0, "scale": 1}}]}',
)
_TERM = re.compile(r"\s*([A-Za-z_]+)\s*\(([^()]*)\)\s*(?:(?:\^|\*\*)\s*(\d+))?\s*")


def parse_prior(text: str) -> Prior:
    """The prior that a text describes.

    Example:
        >>> parse_prior("uniform(-3, 3)^2")
        BoxUniform(low=[-3.0, -3.0], high=[3.0, 3.0])
        >>> parse_prior("normal(0, 1), unifrom(0, 5)")
        Traceback (most recent call last):
            ...
        ValueError: there is no distribution 'unifrom'; did you mean 'uniform'? There are uniform, loguniform, ...
    """
    if text.strip().endswith(".json"):
        return _from_file(Path(text.strip()))
    marginals: list[td.Distribution] = []
    for part in re.split(r",(?![^()]*\))", text):  # at commas outside of parentheses
        term = _TERM.fullmatch(part)
        if term is None:
            raise ValueError(
                f"cannot read the prior {text!r} at {part.strip()[:20]!r}; write terms like uniform(-3, 3)^2 or "
                "normal(0, 1), separated by commas, or the name of a JSON file"
            )
        name, inside, power = term.groups(default="1")
        if len(power) > 9 or len(marginals) + int(power) > MOST_PARAMETERS:
            raise ValueError(f"the prior {text[:80]!r} has more than {MOST_PARAMETERS:,} parameters")
        marginals += [_marginal(name.lower(), inside)] * int(power)
    if not marginals:
        raise ValueError(f"the prior {text!r} has no parameters")
    if all(isinstance(m, td.Uniform) for m in marginals):
        return BoxUniform([float(m.low) for m in marginals], [float(m.high) for m in marginals])  # type: ignore[attr-defined]
    return IndependentPrior(marginals)


def _marginal(name: str, inside: str) -> td.Distribution:
    if name not in DISTRIBUTIONS:
        raise ValueError(did_you_mean(name, DISTRIBUTIONS, "distribution"))
    kind, wanted = DISTRIBUTIONS[name]
    try:
        numbers = [float(part) for part in inside.split(",")] if inside.strip() else []
    except ValueError:
        raise ValueError(f"{name}({inside}): these should be numbers") from None
    if len(numbers) != len(wanted):
        raise ValueError(f"{name} takes {len(wanted)} number(s), {', '.join(wanted)}; got {name}({inside})")
    rounded = list(zip(numbers, torch.tensor(numbers).tolist(), strict=True))
    why = "a number is too large"
    try:
        made = kind(*numbers, validate_args=True)
        if not any(math.isinf(kept) and math.isfinite(exact) for exact, kept in rounded):
            return made
    except ValueError as error:
        why = str(error).splitlines()[0]
    if wanted == ("low", "high"):
        refuse_unresolved_ends(name, *numbers)
        why = why if numbers[0] < numbers[1] else "low has to be less than high"
    if lost := [exact for exact, kept in rounded if kept in (0.0, math.inf, -math.inf) and kept != exact]:
        raise ValueError(
            f"{name}({inside}): {lost[0]:g} does not fit single precision, in which networks compute. Rescale the "
            "parameter: other units, or its logarithm"
        )
    raise ValueError(f"{name}({inside}) is no distribution: {why}")


def prior_from_spec(spec: dict[str, Any]) -> Prior:
    """Rebuild a prior from its `spec()`.

    Example:
        >>> prior_from_spec(BoxUniform([0.0], [2.0]).spec())
        BoxUniform(low=[0.0], high=[2.0])
    """
    match spec.get("kind"):
        case "box":
            low, high = _numbers(spec, "low"), _numbers(spec, "high")
            if low.dtype != torch.float64:  # written by hand, the numbers may not be rounded yet
                refuse_unresolved_ends("the box", spec["low"], spec["high"])
            return BoxUniform(low, high)
        case "gaussian":
            return GaussianPrior(_numbers(spec, "loc"), _numbers(spec, "covariance"))
        case "independent":
            if not isinstance(spec["marginals"], list):
                raise ValueError(f'"marginals" should be a list, got {spec["marginals"]!r}')
            return IndependentPrior([_build(m) for m in spec["marginals"]])
        case "opaque":
            text = f"the prior was {spec['repr']}, which cannot be stored without pickle; pass it again: "
            raise MissingPart(f"{text}eq.load(path, prior=…)", "prior")
    raise ValueError(f"unknown kind of prior {spec.get('kind')!r}; was the file written by a newer Equipoise?")


def _build(spec: dict[str, Any]) -> td.Distribution:
    """A marginal from its description in `IndependentPrior.spec()`."""
    form = '{"name": "Normal", "arguments": {"loc": 0, "scale": 1}}'
    if not isinstance(spec, dict) or not isinstance(spec.get("arguments", {}), dict):
        raise ValueError(f"a marginal is described like {form}, got {spec!r}")
    name, given = str(spec["name"]), spec["arguments"]
    dtype = _dtype(spec)
    if name.startswith("scipy.stats."):
        found = family(name.removeprefix("scipy.stats."))
        if found is None:
            raise ValueError(f"there is no continuous distribution {name}")
        try:
            return ScipyMarginal(found(**given), torch.empty((), dtype=dtype))
        except TypeError as error:
            raise ValueError(f"{name} takes {found.shapes or 'nothing'}, and loc and scale, got {given}") from error
    make: Any = LogUniform if name == "LogUniform" else getattr(td, name, None)
    if not (isinstance(make, type) and issubclass(make, td.Distribution)):
        raise ValueError(
            f"unknown marginal {name!r}: give a name in torch.distributions, LogUniform, or scipy.stats.NAME"
        )
    arguments: Any = {n: _numbers({**given, "dtype": dtype_name(dtype)}, n) for n in given}
    try:
        make(**arguments, validate_args=True)  # checked once, whatever torch's default is
        return make(**arguments)
    except TypeError as error:
        wanted = [n for n in inspect.signature(make).parameters if n != "validate_args"]
        raise ValueError(f"{name} takes {', '.join(wanted)}, got {given}") from error


def _numbers(spec: dict[str, Any], name: str) -> Tensor:
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


def _from_file(file: Path) -> Prior:
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        spec = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(spec, dict):
            kinds = {list: "a list", str: "a text", int: "a number", float: "a number"}
            raise TypeError(f"it holds {kinds.get(type(spec), json.dumps(spec))} instead of an object")
        if spec["kind"] not in ("box", "gaussian", "independent", "opaque"):
            raise ValueError(f'its "kind" is {json.dumps(spec["kind"])}')
        return prior_from_spec(spec)
    except MissingPart as error:
        raise ValueError(
            f"{file} is the description of a prior of your own, {spec['repr']}, which only its code can rebuild: "
            "use eq.fit or eq.load in Python, with prior="
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        why = f"it is no JSON ({error})"
    except KeyError as error:
        why = f'it has no "{error.args[0]}"'
    except (ValueError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        why = " ".join(str(error).split())
    raise ValueError(
        f"{file} does not describe a prior: {why}. Python writes such a file with json.dump(prior.spec(), file); by "
        f"hand it is one of {' or '.join(FORMS)}. Names and arguments of marginals are those of torch.distributions, "
        "and docs/priors.md has more"
    )
