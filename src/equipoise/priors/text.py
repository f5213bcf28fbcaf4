"""Priors as text, for the command line.

uniform(-3, 3)^2                    two parameters, each uniform on [-3, 3]
normal(0, 1), uniform(0, 5)         one term a parameter, independent of each other
prior.json                          what `prior.spec()` gave, for everything else
"""

from __future__ import annotations

__all__ = ["DISTRIBUTIONS", "parse_prior"]

import difflib
import json
import re
from collections.abc import Callable
from pathlib import Path

import torch.distributions as td

from .base import Prior
from .box import BoxUniform
from .conversion import prior_from_spec
from .independent import IndependentPrior

#: Name to class and the names of its numbers.
DISTRIBUTIONS: dict[str, tuple[Callable[..., td.Distribution], tuple[str, ...]]] = {
    "uniform": (td.Uniform, ("low", "high")),
    "normal": (td.Normal, ("mean", "deviation")),
    "lognormal": (td.LogNormal, ("mean of the log", "deviation of the log")),
    "halfnormal": (td.HalfNormal, ("scale",)),
    "exponential": (td.Exponential, ("rate",)),
    "gamma": (td.Gamma, ("shape", "rate")),
    "laplace": (td.Laplace, ("mean", "scale")),
    "cauchy": (td.Cauchy, ("median", "scale")),
}
_TERM = re.compile(r"\s*([A-Za-z_]+)\s*\(([^()]*)\)\s*(?:(?:\^|\*\*)\s*(\d+))?\s*")


def parse_prior(text: str) -> Prior:
    """The prior that a text describes.

    Example:
        >>> parse_prior("uniform(-3, 3)^2")
        BoxUniform(low=[-3.0, -3.0], high=[3.0, 3.0])
        >>> parse_prior("normal(0, 1), unifrom(0, 5)")
        Traceback (most recent call last):
            ...
        ValueError: there is no distribution 'unifrom'; did you mean 'uniform'? There are uniform, normal, ...
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
        name, inside, power = term.groups()
        marginals += [_marginal(name.lower(), inside)] * int(power or 1)
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
        close = difflib.get_close_matches(name, DISTRIBUTIONS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ValueError(f"there is no distribution {name!r}{hint} There are {', '.join(DISTRIBUTIONS)}.")
    kind, wanted = DISTRIBUTIONS[name]
    try:
        numbers = [float(part) for part in inside.split(",")] if inside.strip() else []
    except ValueError:
        raise ValueError(f"{name}({inside}): these should be numbers") from None
    if len(numbers) != len(wanted):
        raise ValueError(f"{name} takes {len(wanted)} number(s), {' and '.join(wanted)}; got {name}({inside})")
    try:
        return kind(*numbers, validate_args=True)
    except ValueError as error:
        raise ValueError(f"{name}({inside}) is no distribution: {str(error).splitlines()[0]}") from None


def _from_file(file: Path) -> Prior:
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        spec = json.loads(file.read_text(encoding="utf-8"))
        return prior_from_spec(spec)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} does not describe a prior as prior.spec() does ({error})") from error
