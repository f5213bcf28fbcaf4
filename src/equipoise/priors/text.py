"""Priors as text, for the command line.

uniform(-3, 3)^2                    two parameters, each uniform on [-3, 3]
loguniform(1e-3, 10), normal(0, 1)  one term per parameter, independent of each other
prior.json                          what `prior.spec()` gave, for everything else
"""

from __future__ import annotations

__all__ = ["DISTRIBUTIONS", "FORMS", "parse_prior"]

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributions as td

from equipoise.support.words import did_you_mean

from .conversion import prior_from_spec
from .independent import IndependentPrior
from .prior import Prior, refuse_unresolved_ends
from .uniform import BoxUniform, LogUniform

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
    position = 0
    while True:
        term = _TERM.match(text, position)
        if term is None:
            raise ValueError(
                f"cannot read the prior {text!r} at {text[position:][:20]!r}; write terms like uniform(-3, 3)^2 or "
                "normal(0, 1), uniform(0, 5), separated by commas, or the name of a JSON file"
            )
        name, inside, power = term.groups(default="1")
        if len(power) > 9 or len(marginals) + int(power) > MOST_PARAMETERS:
            raise ValueError(f"the prior {text[:80]!r} has more than {MOST_PARAMETERS:,} parameters")
        marginals += [_marginal(name.lower(), inside)] * int(power)
        position = term.end()
        if position == len(text):
            break
        if text[position] != ",":
            raise ValueError(
                f"cannot read the prior {text!r} at {text[position:][:20]!r}; terms are separated by commas"
            )
        position += 1
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
    try:
        if any(math.isinf(kept) and math.isfinite(exact) for exact, kept in _rounded(numbers)):
            raise ValueError("a number is too large")
        return kind(*numbers, validate_args=True)
    except ValueError as error:
        why = str(error).splitlines()[0]
    if wanted == ("low", "high"):
        refuse_unresolved_ends(name, *numbers)
        why = why if numbers[0] < numbers[1] else "low has to be less than high"
    lost = [exact for exact, kept in _rounded(numbers) if kept in (0.0, math.inf, -math.inf) and kept != exact]
    if lost:
        raise ValueError(
            f"{name}({inside}): {lost[0]:g} does not fit single precision, in which networks compute. Rescale the "
            "parameter: other units, or its logarithm"
        )
    raise ValueError(f"{name}({inside}) is no distribution: {why}")


def _rounded(numbers: list[float]) -> list[tuple[float, float]]:
    """Each number, and what becomes of it in the precision of networks."""
    return list(zip(numbers, torch.tensor(numbers).tolist(), strict=True))


def _from_file(file: Path) -> Prior:
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        spec = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _no_prior(file, f"it is no JSON ({error})") from error
    if not isinstance(spec, dict):
        raise _no_prior(file, f"it holds {_called(spec)} instead of an object")
    if spec.get("kind") == "opaque":
        raise ValueError(
            f"{file} is the description of a prior of your own, {spec.get('repr')}, which only its code can rebuild: "
            "use eq.fit or eq.load in Python, with prior="
        )
    if spec.get("kind") not in ("box", "gaussian", "independent"):
        raise _no_prior(file, f'its "kind" is {json.dumps(spec["kind"])}' if "kind" in spec else 'it has no "kind"')
    try:
        return prior_from_spec(spec)
    except KeyError as error:
        raise _no_prior(file, f'it has no "{error.args[0]}"') from error
    except (ValueError, TypeError, AttributeError) as error:
        raise _no_prior(file, " ".join(str(error).split())) from error


def _called(thing: Any) -> str:
    return {list: "a list", str: "a text", int: "a number", float: "a number"}.get(type(thing), json.dumps(thing))


def _no_prior(file: Path, why: str) -> ValueError:
    """The error for a file that describes no prior, with what it should have looked like."""
    return ValueError(
        f"{file} does not describe a prior: {why}. Python writes such a file with json.dump(prior.spec(), file); by "
        f"hand it is one of {' or '.join(FORMS)}. Names and arguments of marginals are those of torch.distributions, "
        "and docs/priors.md has more"
    )
