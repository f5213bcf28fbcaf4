"""Checks of arguments: what passes, and errors that name the argument."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from equipoise.support.checks import column_names, finite_number, one_of, parameter_names, true_or_false, whole_number


def test_what_passes_comes_back_as_python_has_it() -> None:
    for value in (3, np.int64(3), np.uint8(3)):
        assert whole_number("n", value, least=3) == 3 and type(whole_number("n", value)) is int
    for value in (0.5, np.float32(0.5), np.float64(0.5)):
        assert finite_number("n", value, above=0, below=1) == 0.5 and type(finite_number("n", value)) is float
    assert type(finite_number("n", 5)) is int  # a whole number stays one, so that descriptions stay the same
    assert one_of("n", "a", ("a", "b")) == "a" and true_or_false("n", False) is False


@pytest.mark.parametrize("value", [2, 1.0, 1.5, math.nan, True, "3", None, [3]])
def test_what_is_no_whole_number(value: object) -> None:
    with pytest.raises((ValueError, TypeError), match="count is a whole number, at least 3"):
        whole_number("count", value, least=3)


@pytest.mark.parametrize("value", [0, 1, -1, math.nan, math.inf, True, "0.5", None, 1j])
def test_what_is_no_number_in_bounds(value: object) -> None:
    with pytest.raises((ValueError, TypeError), match="share is a finite number, greater than 0, less than 1"):
        finite_number("share", value, above=0, below=1)


def test_what_is_no_choice() -> None:
    for value in ("c", None, 3, ["a"]):
        with pytest.raises((ValueError, TypeError), match="mode is one of a, b"):
            one_of("mode", value, ("a", "b"))
    for value in (0, 1, None, "yes"):
        with pytest.raises(TypeError, match="flag is True or False"):
            true_or_false("flag", value)


@pytest.mark.parametrize("names", [["a"], ["a", "a"], "ab", ["a", ""], ["a", 1], ["a", " "]])
def test_what_are_no_names(names: object) -> None:
    with pytest.raises(ValueError, match="one name for each of the 2 parameter"):
        parameter_names(names, 2)


def test_names_and_columns() -> None:
    assert parameter_names(["a", "b"], 2) == ("a", "b")
    assert column_names(pd.DataFrame({"a": [1], "b": [2]})) == ("a", "b")
    assert column_names(pd.DataFrame([[1, 2]])) is None and column_names(np.zeros((3, 2))) is None
