"""A warning points at the user's line, whichever public call it comes from and however deep inside it arises."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.support.errors import warn

PRIOR = eq.BoxUniform([-1.0, -1.0], [1.0, 1.0])


def simulator(theta: Any) -> Any:
    return theta + 0.1 * torch.randn_like(theta)


@pytest.fixture(scope="module")
def pairs() -> eq.Simulations:
    return eq.simulate(PRIOR, simulator, 300, seed=0)


@pytest.fixture(scope="module")
def posterior(pairs) -> eq.Posterior:
    return eq.fit(pairs.theta, pairs.x, prior=PRIOR, members=1, epochs=2, progress=False)


def half_invalid(theta: Any) -> Any:
    return torch.where(theta[:, :1] > 0, theta, torch.nan)


def small(pairs, **changes) -> None:
    given = {"theta": pairs.theta, "x": pairs.x, "prior": PRIOR, "method": "npe"} | changes
    theta, x = given.pop("theta"), given.pop("x")
    eq.fit(theta, x, members=1, epochs=1, progress=False, **given)


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "simulate": lambda pairs, q, tmp: eq.simulate(PRIOR, half_invalid, 60, seed=0),
    "read_simulations": lambda pairs, q, tmp: (
        np.savez(tmp / "a.npz", thetas=pairs.theta, x=pairs.x),
        eq.read_simulations(tmp / "a.npz"),
    ),
    "fit, few pairs": lambda pairs, q, tmp: small(pairs, theta=pairs.theta[:60], x=pairs.x[:60]),
    "fit, another prior": lambda pairs, q, tmp: small(pairs, prior=eq.BoxUniform([-3.0, -3.0], [3.0, 3.0])),
    "fit, x is rounded": lambda pairs, q, tmp: small(pairs, x=pairs.x.double() + 1e7),
    "fit, a fill value": lambda pairs, q, tmp: small(
        pairs, x=torch.where(torch.arange(300)[:, None] % 100 == 7, -9999.0, pairs.x)
    ),
    "fit, a shape in doubt": lambda pairs, q, tmp: small(pairs, x=pairs.x[:, None, :].repeat(1, 1, 40)),
    "log_prob": lambda pairs, q, tmp: q.log_prob(pairs.theta, torch.full((2,), 100.0)),
    "sample": lambda pairs, q, tmp: q.sample((10,), x=torch.full((2,), 100.0)),
    "sample_batched": lambda pairs, q, tmp: q.sample_batched((10,), torch.full((3, 2), 100.0)),
    "diagnose, training pairs": lambda pairs, q, tmp: eq.diagnose(q, pairs.theta, pairs.x, samples=16, progress=False),
    "diagnose, other data": lambda pairs, q, tmp: eq.diagnose(
        q, pairs.theta[:100], pairs.x[:100] + 5.0, samples=16, progress=False
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_warning_points_at_the_line_of_the_call(call, pairs, posterior, tmp_path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[call](pairs, posterior, tmp_path)
    assert caught, f"{call} no longer warns; find another way to make it"
    ours = [w for w in caught if issubclass(w.category, UserWarning)]
    assert {w.filename for w in ours} == {__file__}


def test_code_of_the_user_between_two_of_ours_is_passed_over() -> None:
    """The line is that of the outermost call: an inner one may lie in an object that the user handed over."""
    code = "def outer(f):\n    return f()\ndef inner():\n    warn('text')\n"
    ours: dict[str, Any] = {"__name__": "equipoise.somewhere", "warn": warn}
    exec(code, ours)
    with pytest.warns(UserWarning, match="text") as caught:
        ours["outer"](lambda: ours["inner"]())
    assert caught[0].filename == __file__
