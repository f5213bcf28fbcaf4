"""Warnings are few and right: a plain problem, done as the documentation does it, gives none."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import equipoise as eq

BOX = eq.BoxUniform([-1.0, 0.5], [1.0, 2.0]).named(["centre", "width"])


def gaussian(theta: Tensor) -> Tensor:
    """Eight draws of a Gaussian."""
    return theta[:, :1] + theta[:, 1:] * torch.randn(len(theta), 8)


def counts(theta: Tensor) -> Tensor:
    """Whole numbers, many of them 0, with a long tail."""
    rate = (2 * theta[:, :1] + torch.linspace(-1, 1, 6) * theta[:, 1:]).exp()
    return torch.poisson(rate)


@pytest.mark.parametrize("simulator", [gaussian, counts])
def test_a_plain_problem_gives_no_warning(simulator: Callable[[Tensor], Tensor]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pairs = eq.simulate(BOX, simulator, 800, seed=0, progress=False)
        fresh = eq.simulate(BOX, simulator, 200, seed=1, progress=False)
        posterior = eq.fit(pairs, prior=BOX, method="npe", members=2, epochs=20, device="cpu", progress=False)
        ds = eq.diagnose(posterior, fresh.theta, fresh.x, samples=100, progress=False)
        eq.summary(ds)
        posterior.sample((100,), fresh.x[0])
        posterior.log_prob(fresh.theta, fresh.x)
        posterior.summary(fresh.x[0], n=200)
        eq.diagnose(posterior.tempered(0.8), fresh.theta, fresh.x, samples=100, progress=False)
    assert [str(w.message) for w in caught] == []


def test_the_quick_look_is_one_network_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = eq.simulate(BOX, gaussian, 300, seed=0, progress=False)
    posterior = eq.fit(pairs, prior=BOX, members=1, epochs=2, device="cpu")
    assert posterior.n_members == 1 and posterior.calibration is None and posterior.temperature == 1
    told = capsys.readouterr().err
    assert "calibrated, 1 member, 300 simulations" in told
    assert "not calibrated); 5 members or more are cross-fitted and calibrated" in told
    with pytest.raises(ValueError, match="needs out-of-fold pairs"):
        eq.fit(pairs, prior=BOX, members=1, calibrate=True)
