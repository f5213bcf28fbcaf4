"""Names of packages that are imported when they are first asked for."""

from __future__ import annotations

import inspect

import pytest

import equipoise.diagnostics
import equipoise.training
from equipoise.support.imports import lazy


@pytest.mark.parametrize("package", [equipoise.training, equipoise.diagnostics])
def test_a_lazy_name_is_no_module(package) -> None:
    """A module of the same name would take its place once it is imported."""
    assert not [name for name in package.__all__ if inspect.ismodule(getattr(package, name))]


def test_a_name_is_read_from_its_module_and_others_have_the_error_of_python() -> None:
    of = lazy("equipoise.support", {"listed": "words"})
    assert of("listed")(["a"], 3) == "a"
    with pytest.raises(AttributeError, match=r"^module 'equipoise\.support' has no attribute 'duration'$"):
        of("duration")
