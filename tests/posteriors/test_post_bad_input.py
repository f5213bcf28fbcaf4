"""Bad input: each argument of a posterior's methods, of `eq.load` and of `eq.simulate` is refused by name."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_post_posterior import random_posterior

import equipoise as eq

nan, inf, huge = math.nan, math.inf, 10**30
WORDS: list[Any] = ["x", "", b"a", {}, object(), np.zeros((3, 3)), torch.tensor([1.0, 2.0, 3.0])]
NUMBERS: list[Any] = [-1, nan, inf, -0.5, 1.5, huge, True]
SEEDS: list[Any] = [*WORDS, *NUMBERS, [1, 2], 1 << 63]
COUNTS: list[Any] = [*WORDS, *NUMBERS, None, [1, 2], 10**12]
FLAGS: list[Any] = [*WORDS, *NUMBERS[:-1], 0, 1, None]
ARRAYS: list[Any] = ["x", b"a", object(), 3.0, [[1.0], [1.0, 2.0]], np.zeros(5), np.array(["a"]), 1j]
OBSERVATIONS: list[Any] = [*ARRAYS, None, [nan, 0.0, 0.0], [inf, 0.0, 0.0], [1e300, 0.0, 0.0]]
PATHS: list[Any] = [None, 3, 1.5, True, b"a", [], {}, object(), "a\0b"]
NAMES: list[Any] = ["ab", ["a"], ["a", "a"], ["a", ""], 3, torch.tensor(1.0)]
SHAPES: list[Any] = [*WORDS, *NUMBERS, None, (2, -1), (1.5,), (True,), (10**6, 10**6), 10**12]

P = random_posterior("random", x_shape=(3,))
THETA, X = [[0.5, 0.5]], [0.0, 0.0, 0.0]
ONE = {"x": OBSERVATIONS, "seed": SEEDS}
#: By method: arguments that are right, and what is refused of each.
METHODS: dict[str, tuple[dict[str, Any], dict[str, list[Any]]]] = {
    "sample": ({"x": X}, ONE | {"sample_shape": SHAPES, "x": [*OBSERVATIONS, [X, X]]}),
    "sample_batched": ({"x": [X], "sample_shape": 3}, ONE | {"sample_shape": SHAPES}),
    "log_prob": ({"theta": THETA, "x": X}, {"theta": [*ARRAYS, None], "x": OBSERVATIONS}),
    "log_ratio": ({"theta": THETA, "x": X}, {"theta": [*ARRAYS, None], "x": OBSERVATIONS}),
    "tempered": ({}, {"t": [*WORDS, *NUMBERS, None, 0, 0.0, 1 + 1e-9, [0.5]]}),
    "summary": ({"x": X}, ONE | {"n": [*COUNTS, 0, 1]}),
    "map": ({"x": X}, ONE),
    "region": ({"x": X}, ONE | {"n": [*COUNTS, 0, 1], "level": [*WORDS, *NUMBERS, None, 0, 1]}),
    "at": ({}, {"x": OBSERVATIONS}),
    "to_pandas": ({"x": X}, ONE | {"n": COUNTS}),
    "predict": (
        {"x": X, "simulator": lambda theta: theta},
        ONE
        | {"simulator": [None, 3, "x"], "n": [*COUNTS, 0]}
        | {"batched": [*WORDS, 0, 1, nan], "array": [*WORDS, 3, "jax"]},
    ),
    "save": ({}, {"path": PATHS, "overwrite": FLAGS}),
    "to": ({}, {"device": ["x", "", 1.5, huge, object(), []]}),
    "select": ({}, {"members": [None, 3, "x", [], [5], [0.5], [None]]}),
    "weighted": ({}, {"weights": [None, "x", {}, object(), [1.0] * 9, [-1.0], [nan], [0.0], 1.0]}),
}
WHAT = {"t": "temperature", "n": r"\bn\b|sample_shape", "x": r"\bx\b|observation", "members": "members|x"}


@pytest.mark.parametrize("method", METHODS)
def test_methods(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    right, wrong = METHODS[method]
    assert set(wrong) == set(inspect.signature(getattr(P, method)).parameters), "an argument is not tried"
    right = right | ({"path": tmp_path / "model"} if method == "save" else {})
    for argument, values in wrong.items():
        for value in values:
            with pytest.raises((ValueError, TypeError), match=WHAT.get(argument, argument)):
                getattr(P, method)(**right | {argument: value})
    assert not list(tmp_path.iterdir()), "something was written"


def test_load(tmp_path: Path) -> None:
    P.save(tmp_path / "model")
    wrong: dict[str, list[Any]] = {
        "path": PATHS,
        "prior": ["x", 3, object()],
        "embedding": ["x", 3, object(), torch.nn.Linear],
        "network": ["x", 3, object(), torch.nn.Linear],
        "device": ["x", "", 1.5, huge, object(), []],
    }
    assert set(wrong) == set(inspect.signature(eq.load).parameters)
    for argument, values in wrong.items():
        for value in values:
            with pytest.raises((ValueError, TypeError), match=argument):
                eq.load(**{"path": tmp_path / "model", argument: value})
