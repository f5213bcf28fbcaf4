"""Bad input: each argument of `fit` is refused with an error that names it, before any training."""

from __future__ import annotations

import inspect
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training_tools import PRIOR, toy

import equipoise as eq

THETA, X = toy()
nan, inf = math.nan, math.inf


def row(i: int, value: float, of: torch.Tensor) -> torch.Tensor:
    return of.index_fill(0, torch.tensor([i]), value)


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever reaches the loop was not refused in time."""

    def trained(*_: object, **__: object) -> None:
        pytest.fail("training began")

    monkeypatch.setattr(sys.modules["equipoise.training.fitting"], "train_stack", trained)  # the name is the function's


def refuse(argument: str, theta: Any = THETA, x: Any = X, **options: Any) -> None:
    options = {"prior": PRIOR, "method": "nre", "progress": False} | options
    with pytest.raises((ValueError, TypeError), match=argument):
        eq.fit(theta, x, **options)


@pytest.mark.parametrize(
    "theta",
    [
        THETA[:, 0],
        THETA * 3,
        row(3, inf, THETA),
        THETA + 0j,
        THETA.to_sparse(),
        THETA.to("meta"),
        "theta",
        None,
        [[1.0], [1.0, 2.0]],
        object(),
    ],
    ids=["shape", "outside", "infinite", "complex", "sparse", "meta", "text", "none", "ragged", "object"],
)
def test_theta(theta: Any) -> None:
    refuse("theta", theta)


@pytest.mark.parametrize(
    "x",
    [
        X[:-1],
        X[:, 0],
        row(7, nan, X),
        X + 0j,
        X.numpy() + 0j,
        X.to_sparse(),
        X.to("meta"),
        torch.zeros(120, 0),
        np.full((120, 2), "a"),
        {"a": 1},
        object(),
        3.0,
    ],
    ids=[
        "rows",
        "shape",
        "nan",
        "complex",
        "complex-array",
        "sparse",
        "meta",
        "empty",
        "words",
        "dictionary",
        "object",
        "number",
    ],
)
def test_x(x: Any) -> None:
    refuse("x", x=x)


def test_a_row_that_is_refused_is_named() -> None:
    refuse("1 of 120 rows of x .*row 7", x=row(7, nan, X))
    refuse("1 of 120 rows of theta .*row 3", row(3, inf, THETA))


@pytest.mark.parametrize(
    ("argument", "values"),
    {
        "method": [None, 3, "bnpe-init", nn.Linear(1, 1)],
        "balance": ["chi", 3],
        "balance_strength": [nan, inf, -1, "100", True],
        "start": ["identity", "prior", 3],  # a classifier has no start
        "members": [0, -1, 1.5, True, "5"],
        "epochs": [0, 1.5, True, "500", nan],
        "batch_size": [1, 2.5, True, "256"],
        "validation_fraction": [0, 1, 1.5, nan, True, "0.1"],
        "calibrate": ["yes", 1],
        "folds": [1, 2.5, True, "5"],
        "standardize": ["yes", 1, None],
        "keep": ["first", 3],
        "embedding": ["cnn", 3, nn.Linear],
        "network": ["mlp", nn.Linear(2, 1)],  # without log_ratio
        "device": ["gpu", 3.5, "meta"],
        "seed": [-1, 1.5, True, "0", None],
        "checkpoint": [3, True],
        "settings": [{"clip": 5.0}, "paper"],
        "on_epoch": [3],
        "progress": ["no", 0],
        "prior": [None, "uniform(0, 1)", 3],
        "names": ["ab", ["a"], ["a", "a"], ["a", ""], [1, 2], 3],
    }.items(),
)
def test_an_argument(argument: str, values: list[Any]) -> None:
    for value in values:
        refuse(argument, **{argument: value})


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "epochs": [0, 1.5, True, nan, "3"],
        "batch_size": [1, 2.0, True],
        "learning_rate": [0, -1, inf, nan, "1e-3", True],
        "factor": [0, 1, nan],
        "patience": [-1, 1.5, True],
        "min_learning_rate": [0, 1.0, nan],
        "threshold": [-1, nan],
        "threshold_mode": ["rel", None],
        "keep": ["first", None],
        "early_stop": ["no", 1, None],
        "weight_decay": [-1, nan, inf],
        "clip": [0, -1, nan, inf, "5"],
        "partial_batch": ["yes", 0],
        "validation": ["all"],
        "split": ["random"],
        "tf32": ["x"],
        "compile": ["x", 1],
    }.items(),
)
def test_a_setting(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises((ValueError, TypeError), match=name):
            eq.Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "network": ["mlp", None],
        "loss": ["bce"],
        "balance": ["chi", None],
        "strength": [nan, -1, inf, "1", True],
        "start": ["identity"],
        "unbiased": ["yes", 1],
        "normalized": ["yes"],
        "normalizer": [0, 1.5],
        "contrastive": [0, 2.5, True],
        "gamma": [0, -1, nan, inf],
        "init": ["zeros", 3],
        "hidden": [[], [0], [-1], [1.5], "8", 64, [True]],
        "transforms": [0, 1.5, True, "3"],
        "univariate": ["linear", None, 3],
        "bins": [0, 1, 2.5, True, "8"],
    }.items(),
)
def test_a_field_of_a_method(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises((ValueError, TypeError), match=name):
            eq.METHODS["bnpe"].but(**{name: value})


def test_combinations_that_cannot_train() -> None:
    refuse("classifier", method="npe", network=nn.Linear(2, 1))
    refuse("leave 7 for training and 0 for validation", THETA[:8], X[:8])
    refuse("balance_strength", method="nre", balance_strength=10.0)
    refuse("start", method="nre", start="prior")
    refuse("calibrate", method="npe", calibrate=True)
    refuse("empty", method=[])
    refuse("method", method=["npe", "nope"])
    if not torch.cuda.is_available():
        refuse("GPU", device="cuda")


def test_tensors_with_a_graph_are_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    theta, x = THETA.clone().requires_grad_(), X.clone().requires_grad_()
    options: dict = {"method": eq.METHODS["nre"].but(hidden=(8,)), "members": 1, "epochs": 1, "progress": False}
    p = eq.fit(theta, x, prior=PRIOR, **options)
    assert not any(w.requires_grad for w in p.stack.values()) and theta.grad is None


def test_every_argument_of_fit_is_in_a_table() -> None:
    marks = [m for f in (test_an_argument,) for m in f.pytestmark]  # type: ignore[attr-defined]
    tested = {name for name, _ in marks[0].args[1]} | {"theta", "x"}
    assert tested == set(inspect.signature(eq.fit).parameters) - {"unknown"}
