"""What `torch.compile` is told of functions, told only when something is compiled.

The decorators of `torch.compiler` import the compiler: 300 MB and a few seconds, which reading results, or a training
that compiles nothing, need not take.
"""

from __future__ import annotations

__all__ = ["apply_marks", "when_compiling"]

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
#: Functions of modules and classes, and the decorator that each is waiting for.
_WAITING: list[tuple[Callable[..., Any], Callable[[Any], Any]]] = []


def when_compiling(decorator: Callable[[Any], Any]) -> Callable[[F], F]:
    """Decorate a function of a module or a class once `apply_marks` is called, and leave it as it is until then."""

    def mark(function: F) -> F:
        _WAITING.append((function, decorator))
        return function

    return mark


def apply_marks() -> None:
    """Tell `torch.compile` what it must know of networks; to be called before anything is compiled."""
    while _WAITING:
        function, decorator = _WAITING.pop()
        *path, name = function.__qualname__.split(".")
        owner = functools.reduce(getattr, path, sys.modules[function.__module__])
        setattr(owner, name, decorator(function))
