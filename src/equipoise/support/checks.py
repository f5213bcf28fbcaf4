"""Checks of arguments: each returns the value, or raises an error that names the argument and what it takes."""

from __future__ import annotations

__all__ = [
    "column_names", "file_path", "finite_number", "one_of", "parameter_names", "seed_number", "true_or_false",
    "whole_number",
]  # fmt: skip

import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .words import shown


def whole_number(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """An integer of at least `least` and at most `most`, as Python's; NumPy's integers are taken, True and 1.0 are not.

    Example:
        >>> whole_number("epochs", 1.5, least=1)
        Traceback (most recent call last):
            ...
        ValueError: epochs is a whole number, at least 1, got 1.5
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        kind = ValueError if isinstance(value, Real) and not isinstance(value, bool) else TypeError
        end = "" if most is None else f" and at most {most:,}"
        raise kind(f"{name} is a whole number, at least {least}{end}, got {shown(value)}")
    return int(value)


def seed_number(name: str, value: Any) -> int:
    """A seed: a whole number that files and other libraries hold as well.

    Example:
        >>> seed_number("seed", -1)
        Traceback (most recent call last):
            ...
        ValueError: seed is a whole number, at least 0 and at most 9,223,372,036,854,775,807, got -1
    """
    return whole_number(name, value, 0, (1 << 63) - 1)


def finite_number(
    name: str, value: Any, *, above: float | None = None, least: float | None = None, below: float | None = None
) -> float:
    """A finite real number, greater than `above`, at least `least` and less than `below`, as Python's.

    Example:
        >>> finite_number("learning_rate", float("inf"), above=0)
        Traceback (most recent call last):
            ...
        ValueError: learning_rate is a finite number, greater than 0, got inf
    """
    real = isinstance(value, Real) and not isinstance(value, bool)
    if (
        not real
        or not _is_finite(value)
        or (above is not None and not value > above)
        or (least is not None and not value >= least)
        or (below is not None and not value < below)
    ):
        bounds = {"greater than": above, "at least": least, "less than": below}
        said = "".join(f", {words} {bound:g}" for words, bound in bounds.items() if bound is not None)
        raise (ValueError if real else TypeError)(f"{name} is a finite number{said}, got {shown(value)}")
    return value.item() if hasattr(value, "item") else value  # NumPy's as Python's


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # whole numbers may be larger than any float
        return False


def one_of(name: str, value: Any, allowed: Iterable[str]) -> str:
    """One of some words.

    Example:
        >>> one_of("keep", "first", ("best", "last"))
        Traceback (most recent call last):
            ...
        ValueError: keep is one of best, last; got 'first'
    """
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise (ValueError if isinstance(value, str) else TypeError)(
            f"{name} is one of {', '.join(allowed)}; got {shown(value)}"
        )
    return value


def column_names(table: Any) -> tuple[str, ...] | None:
    """The names of a table's columns (pandas, polars); None where they are numbered, or where it is no table."""
    names = getattr(table, "columns", None)
    try:
        return None if names is None else parameter_names(names, len(names))
    except ValueError:
        return None


def parameter_names(names: Any, dim: int) -> tuple[str, ...]:
    """One name for each of `dim` parameters: non-empty strings, all different.

    Example:
        >>> parameter_names(["beta", "beta"], 2)
        Traceback (most recent call last):
            ...
        ValueError: names has one name for each of the 2 parameter(s), all different, got ['beta', 'beta']
    """
    listed = isinstance(names, Iterable) and not isinstance(names, str) and getattr(names, "ndim", 1) == 1
    found = tuple(names) if listed else ()
    if len(found) != dim or len(set(found)) != dim or not all(isinstance(n, str) and n.strip() for n in found):
        raise ValueError(f"names has one name for each of the {dim} parameter(s), all different, got {shown(names)}")
    return found


def file_path(name: str, value: Any) -> Path:
    """The name of a file or directory.

    Example:
        >>> file_path("path", 3)
        Traceback (most recent call last):
            ...
        TypeError: path is the name of a file or directory, got 3
    """
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise TypeError(f"{name} is the name of a file or directory, got {shown(value)}")
    if "\0" in os.fspath(value):
        raise ValueError(f"{name} is the name of a file or directory, and holds a NUL: {shown(value)}")
    return Path(value)


def true_or_false(name: str, value: Any) -> bool:
    """A truth value, not what Python would take for one.

    Example:
        >>> true_or_false("early_stop", "no")
        Traceback (most recent call last):
            ...
        TypeError: early_stop is True or False, got 'no'
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, got {shown(value)}")
    return value
