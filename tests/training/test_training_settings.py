"""Settings: what `fit` takes, what overrides what, and where former keywords are now."""

from __future__ import annotations

import dataclasses
import inspect

import numpy as np
import pytest
from training_tools import PRIOR, same_weights, toy

import equipoise as eq
from equipoise.training import DEFAULT, PAPER, RELEASED

#: The contract's, in its order.
CONTRACT = [
    "theta",
    "x",
    "prior",
    "method",
    "balance",
    "balance_strength",
    "start",
    "members",
    "epochs",
    "batch_size",
    "validation_fraction",
    "standardize",
    "keep",
    "embedding",
    "network",
    "device",
    "seed",
    "checkpoint",
]
SMALL = eq.METHODS["nre"].but(hidden=(8,))


def fit(*pairs: object, **options: object) -> eq.Posterior:
    return eq.fit(*pairs, **({"prior": PRIOR, "method": SMALL, "members": 1, "progress": False} | options))


def test_fit_has_the_contracts_keywords_and_few_others() -> None:
    parameters = list(inspect.signature(eq.fit).parameters)
    assert parameters[: len(CONTRACT)] == CONTRACT
    others = {"folds", "calibrate", "names", "settings", "on_epoch", "progress", "unknown"}
    assert set(parameters[len(CONTRACT) :]) == others


def test_settings_without_arguments_are_the_defaults_of_fit() -> None:
    assert eq.Settings() == DEFAULT
    assert (DEFAULT.clip, DEFAULT.split, DEFAULT.batch_size) == (5.0, "shuffled", None)
    assert (PAPER.clip, PAPER.split, PAPER.batch_size, PAPER.min_learning_rate) == (None, "prefix", 256, 1e-5)
    assert RELEASED.keep == "last" and not RELEASED.early_stop and RELEASED.clip is None
    assert eq.Settings(learning_rate=2e-3).min_learning_rate == 2e-5


def test_keywords_of_fit_override_the_settings() -> None:
    settings = eq.Settings(epochs=3, batch_size=16, keep="last", learning_rate=3e-3)
    used = fit(*toy(), settings=settings).record["settings"]
    assert (used["epochs"], used["batch_size"], used["keep"], used["learning_rate"]) == (3, 16, "last", 3e-3)
    used = fit(*toy(), settings=settings, epochs=1, batch_size=32, keep="best").record["settings"]
    assert (used["epochs"], used["batch_size"], used["keep"], used["learning_rate"]) == (1, 32, "best", 3e-3)


@pytest.mark.parametrize(
    ("keyword", "value", "words"),
    [
        ("learning_rate", 1e-4, r"settings=eq\.Settings\(learning_rate=0\.0001\)"),
        ("clip", None, r"settings=eq\.Settings\(clip=None\)"),
        ("compile", False, r"settings=eq\.Settings\(compile=False\)"),
        ("hidden", (64, 64), r"but\(hidden=\(64, 64\)\)"),
        ("epoch", 3, "did you mean 'epochs'"),
    ],
)
def test_an_unknown_keyword_is_told_where_it_belongs(keyword: str, value: object, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        fit(*toy(), **{keyword: value})


def test_simulations_train_as_their_theta_and_x_do(tmp_path) -> None:
    made = eq.simulate(PRIOR, lambda t: t + 0.1, 120, seed=0, store=tmp_path / "pairs", block_size=60, progress=False)
    expected = fit(made.theta, made.x, epochs=1)
    assert same_weights(expected, fit(made, epochs=1))
    assert same_weights(expected, fit(eq.Store(tmp_path / "pairs"), epochs=1))
    with pytest.raises(TypeError, match="x is missing"):
        fit(made.theta)


def test_numbers_of_numpy_are_numbers() -> None:
    settings = eq.Settings(epochs=np.int64(3), learning_rate=np.float64(1e-2), clip=np.float32(2.0))
    assert settings == eq.Settings(epochs=3, learning_rate=1e-2, clip=2.0)
    assert {type(v) for v in dataclasses.asdict(settings).values()} <= {int, float, bool, str, type(None)}


def test_what_decides_a_result_leaves_out_the_compiler() -> None:
    assert eq.Settings(compile=True).numbers() == eq.Settings(compile=False).numbers()
    assert set(DEFAULT.numbers()) == {f.name for f in dataclasses.fields(eq.Settings)} - {"compile"}
