"""Bad input: each argument of `diagnose`, `calibrate` and `summary` is refused by name, before any work."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from diagnostics_fakes import GaussianPosterior, pairs

import equipoise as eq

THETA, X = pairs(60, 2, seed=1)
nan, inf = math.nan, math.inf
WORDS: list[Any] = ["x", "", b"a", {}, [1, 2], np.zeros((3, 3)), object(), torch.tensor([1.0, 2.0])]
NUMBERS: list[Any] = [-1, nan, inf, -0.5, 10**30]
SEEDS: list[Any] = [*WORDS, *NUMBERS, True, 1.5, None, 1 << 63]
SHARES: list[Any] = [*WORDS, *NUMBERS, True, None, 1, 1.5]
FLAGS: list[Any] = [*WORDS, *NUMBERS, 0, 1]
ARRAYS: list[Any] = ["x", b"a", None, object(), 3.0, [[1.0], [1.0, 2.0]], np.zeros((60, 5)), np.full((60, 2), nan)]
PRIORS: list[Any] = ["x", 3, object(), [1], {}, eq.BoxUniform([0.0, 0.0], [1.0, 1.0])]

#: What `calibrate` refuses of each argument but its posterior.
CALIBRATE: dict[str, list[Any]] = {
    "theta": [*ARRAYS, THETA[:, 0], THETA[:10]],
    "x": [*ARRAYS, X[:10]],
    "prior": PRIORS,
    "alpha": [*SHARES, 0, 0.0],
    "delta": SHARES,
    "seed": SEEDS,
    "progress": FLAGS,
}
#: The same of `diagnose`.
DIAGNOSE: dict[str, list[Any]] = CALIBRATE | {
    "exact_log_prob": ["x", b"a", object(), 3.0, np.zeros(5), np.full(60, nan), lambda theta, x: "x"],
    "samples": [*WORDS, *NUMBERS, True, 1.5, 0],
    "levels": ["x", b"a", object(), 3.0, [], [2.0], [nan], [-0.1]],
    "report_levels": ["x", b"a", object(), None, 3.0, [], [2.0], [nan]],
    "tolerance": [*WORDS, None, 3],
    "recipe": [*WORDS, None, 3],
    "test": [*WORDS, 3, (THETA,), (THETA, X[:10]), (3, 4)],
    "mixture": [*FLAGS, None],
    "tf32": [*FLAGS, None],
    "memory": [*WORDS, *NUMBERS, True, 0, 1.5, 100],
}


@pytest.fixture
def posterior(monkeypatch: pytest.MonkeyPatch) -> GaussianPosterior:
    """One that must not be asked."""
    made = GaussianPosterior([1.0], 2, "flow")

    def asked(*_: Any, **__: Any) -> None:
        pytest.fail("work began")

    for name in ("log_ratios", "sample_members"):
        monkeypatch.setattr(made, name, asked)
    return made


def named(argument: str) -> str:
    return {"prior": "prior|marginal|Prior", "x": r"\bx\b|observation"}.get(argument, rf"\b{argument}\b")


@pytest.mark.parametrize("argument", [*list(inspect.signature(eq.diagnose).parameters)[1:]])
def test_diagnose(argument: str, posterior: GaussianPosterior) -> None:
    for value in DIAGNOSE[argument]:
        with pytest.raises((ValueError, TypeError), match=named(argument)):
            eq.diagnose(posterior, **{"theta": THETA, "x": X, "progress": False, argument: value})


@pytest.mark.parametrize("argument", [*list(inspect.signature(eq.calibrate).parameters)[1:]])
def test_calibrate(argument: str, posterior: GaussianPosterior) -> None:
    for value in CALIBRATE[argument]:
        with pytest.raises((ValueError, TypeError), match=named(argument)):
            eq.calibrate(posterior, **{"theta": THETA, "x": X, "progress": False, argument: value})


def test_a_prior_that_is_the_posteriors_own_may_be_given_again() -> None:
    made = GaussianPosterior([1.0], 2, "flow")
    same = torch.distributions.MultivariateNormal(made.prior.loc, made.prior.covariance)
    for prior in (made.prior, same):
        assert eq.diagnose(made, THETA, X, prior=prior, samples=8, progress=False).attrs["pairs"] == 60


@pytest.mark.parametrize("value", [None, 3, "x", {}, np.zeros(3)])
def test_summary(value: Any) -> None:
    with pytest.raises(TypeError, match=r"eq\.diagnose"):
        eq.summary(value)
