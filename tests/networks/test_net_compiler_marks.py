"""Marks for the compiler are put on functions of modules and classes once, when something is compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from equipoise.networks import compiler_marks
from equipoise.networks.compiler_marks import apply_marks, when_compiling


def louder(function: Callable[..., str]) -> Callable[..., str]:
    return lambda *a: function(*a).upper()


def test_marks_wait_until_they_are_applied(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiler_marks, "_WAITING", [])

    def plain() -> str:
        return "plain"

    class Owner:
        def method(self) -> str:
            return "method"

    here = sys.modules[__name__]
    plain.__qualname__, Owner.method.__qualname__ = "plain", "Owner.method"
    monkeypatch.setattr(here, "plain", when_compiling(louder)(plain), raising=False)
    Owner.method = when_compiling(louder)(Owner.method)  # type: ignore[method-assign]
    monkeypatch.setattr(here, "Owner", Owner, raising=False)
    assert here.plain() == "plain" and Owner().method() == "method"  # type: ignore[attr-defined]
    apply_marks()
    apply_marks()  # once
    assert here.plain() == "PLAIN" and Owner().method() == "METHOD"  # type: ignore[attr-defined]
