"""Diagnostics of trained posteriors agree with the posterior's own densities and draws, for every kind of network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.diagnostics import diagnose


@pytest.fixture(scope="module", params=["npe", "bnpe_init", "nre"])
def trained(request: pytest.FixtureRequest) -> tuple[eq.Posterior, eq.Task]:
    task = eq.task("two_moons")
    data = eq.simulate(task.prior, task.simulate, 256, seed=0)
    posterior = eq.fit(
        data.theta,
        data.x,
        prior=task.prior,
        method=eq.METHODS[request.param].but(hidden=(32, 32)),
        members=2,
        epochs=3,
        batch_size=64,
        settings=eq.Settings(compile=False),
        seed=0,
        progress=False,
    )
    return posterior, task


def test_a_trained_posterior_is_judged_as_it_judges_itself(trained: tuple[eq.Posterior, eq.Task]):
    posterior, task = trained
    test = eq.simulate(task.prior, task.simulate, 60, seed=1)
    ds = diagnose(posterior, test.theta, test.x, exact_log_prob=task.log_posterior, samples=400)
    assert [str(m) for m in ds.member.values] == ["0", "1", "mixture"]
    assert np.isfinite(ds["rank"]).all() and np.isfinite(ds.balance_signed).all()
    # Densities: ours come from the points of the ranks, the posterior's from its own normaliser.
    own = posterior.log_prob(test.theta, test.x).double().numpy()
    mixture = ds["log_prob"].sel(member="mixture").values
    assert abs(mixture - own).mean() < 0.06 and abs((mixture - own).mean()) < 0.02
    # Ranks: against draws of the posterior itself, whose noise with 400 draws on each side is at most √(2/1600) =
    # 0.035.
    draws = posterior.sample_batched((400,), test.x, seed=0)
    density = posterior.log_prob(draws, test.x).double().numpy()
    by_draws = (density > own).mean(0)
    assert np.sqrt(np.mean((ds["rank"].sel(member="mixture").values - by_draws) ** 2)) < 0.04
    if posterior.can_leak:
        assert (ds.leakage > 0).all()
    else:
        assert (ds.leakage == 0).all()


def test_members_judged_apart_are_as_judged_one_by_one(trained: tuple[eq.Posterior, eq.Task]):
    """Two members that differ, in one pass without their mixture: each agrees with its own draws and densities."""
    posterior, task = trained
    test = eq.simulate(task.prior, task.simulate, 60, seed=1)
    ds = diagnose(posterior, test.theta, test.x, samples=400, mixture=False)
    assert [str(m) for m in ds.member.values] == ["0", "1"]
    for m, one in enumerate(posterior.members):
        alone = diagnose(one, test.theta, test.x, samples=400)
        mine = ds.isel(member=m)
        np.testing.assert_allclose(mine["balance_signed"], alone["balance_signed"][0], atol=1e-5)
        own = one.log_prob(test.theta, test.x).double().numpy()
        assert abs(mine["log_prob"].values - own).mean() < 0.06
        draws = one.sample_batched((400,), test.x, seed=0)
        by_draws = (one.log_prob(draws, test.x).double().numpy() > own).mean(0)
        # Noise of 400 draws on each side, at most 0.035; of one member's ranks against the other's 0.1 and more.
        assert np.sqrt(np.mean((mine["rank"].values - by_draws) ** 2)) < 0.04
    assert np.sqrt(np.mean((ds["rank"][0] - ds["rank"][1]) ** 2)) > 0.06


def test_the_root_exports_diagnose():
    assert eq.diagnose is diagnose and torch.is_grad_enabled()
