"""Whether a simulator that accepts one θ and a batch is given batches: only if that is right.

A right simulator is called one by one with a chance of 1e-4 at most, so no right one of these fails by chance. The
wrong ones are caught with a probability of nearly 1; seeds are fixed.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy import stats

import equipoise as eq
from equipoise.simulations import probing
from equipoise.simulations.probing import adapt

PRIOR = eq.BoxUniform([-1.0, 0.5], [1.0, 2.0])
SEEDS = range(5)
WEIGHTS = torch.linspace(-1, 1, 100).reshape(2, 50)


def parameters(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random((7, 2)) * [2, 1.5] + [-1, 0.5]).astype(np.float32)


def normal_numpy(theta: np.ndarray):
    return theta + np.random.normal(size=theta.shape)  # noqa: NPY002


def with_constants(theta):
    """Columns that are constant, or do not depend on the noise but on how a batch is rounded."""
    return torch.cat(
        [theta @ WEIGHTS, (theta @ WEIGHTS).softmax(-1), 0 * theta + 1 / 3, theta + torch.randn(theta.shape)], -1
    )


RIGHT = {
    "normal, torch": lambda theta: theta + torch.randn_like(theta),
    "normal, numpy": normal_numpy,
    "deterministic": lambda theta: theta @ WEIGHTS,
    "cauchy": lambda theta: theta + torch.randn_like(theta) / torch.randn_like(theta),
    "coins": lambda theta: (torch.rand_like(theta) < 0.5).float(),
    "rare": lambda theta: (torch.rand_like(theta) < 0.02).float(),
    "counts": lambda theta: torch.poisson(theta.exp()),
    "constants": with_constants,
    "image": lambda theta: theta[..., None, :1] + torch.randn(*theta.shape[:-1], 8, 8),
    "invalid": lambda theta: torch.where(torch.rand_like(theta) < 0.1, torch.nan, theta + torch.randn_like(theta)),
}


def latent(theta: np.ndarray):
    return theta + np.random.normal() + 0.1 * np.random.normal(size=theta.shape)  # noqa: NPY002


def largest(theta):
    y = theta + torch.randn_like(theta)
    return y / y.max()


def largest_of_little_noise(theta):
    """With equal θ, a batch would differ little from one."""
    y = theta + 0.01 * torch.randn_like(theta)
    return y / y.max()


def latent_seed(theta, seed):
    rng = np.random.default_rng(seed)
    return theta + rng.normal() + 0.1 * rng.normal(size=theta.shape)


WRONG = {
    "shared part": latent,
    "shared part, seed": latent_seed,
    "shared part, torch": lambda theta: theta + torch.randn(1) + 0.1 * torch.randn_like(theta),
    "shared part, either sign": lambda theta: theta * torch.randn(1) + 0.1 * torch.randn_like(theta),
    "shared scale": lambda theta: theta + torch.randn(1).exp() * torch.randn_like(theta),
    "shared column": lambda theta: torch.cat([torch.randn_like(theta), torch.randn(1).expand(theta.shape)], -1),
    "shared coin": lambda theta: theta + (torch.rand(1) < 0.5) + 0.3 * torch.randn_like(theta),
    "largest": largest,
    "largest, little noise": largest_of_little_noise,
    "sum over rows": lambda theta: torch.randn_like(theta).cumsum(0),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_about_batches(name: str) -> None:
    """Warnings are errors, so there is none."""
    for seed in SEEDS:
        assert adapt(RIGHT[name], parameters(seed), seed).batched


@pytest.mark.parametrize("name", WRONG)
def test_wrong_about_batches(name: str) -> None:
    for seed in SEEDS:
        with pytest.warns(UserWarning, match="pass batched=True"):
            assert not adapt(WRONG[name], parameters(seed), seed).batched


def test_all_noise_shared_is_no_doubt() -> None:
    """The common case: written for one θ, all of its noise shared in a batch. No warning, and little tried."""
    calls: list[int] = []

    def simulator(theta: np.ndarray):
        calls.append(1)
        return theta + np.random.normal(size=2)  # noqa: NPY002

    assert not adapt(simulator, parameters(0), 0).batched
    assert len(calls) < 15


@pytest.mark.parametrize("first", range(7))
def test_deterministic_and_wrong_wherever_the_largest_is(first: int) -> None:
    theta = np.roll(np.linspace([0.1, 0.2], [1.0, 1.1], 7).astype(np.float32), first, 0)
    assert not adapt(lambda t: t / t.max(), theta, 0).batched


def test_the_data_are_right() -> None:
    """One shared draw a block of 1024 would give a standard deviation of 0.1; here it is √1.01, ± 0.016."""
    with pytest.warns(UserWarning, match=r"batched=True.*batched=False") as caught:
        pairs = eq.simulate(PRIOR, latent, 2000, seed=1)
    assert caught[0].filename == __file__, "the warning points at the user's own line"
    said = eq.simulate(PRIOR, latent, 2000, seed=1, batched=False)
    assert torch.equal(pairs.x, said.x), "found out is as good as said"
    noise = (pairs.x - pairs.theta)[:, 0]
    assert abs(float(noise.std()) - 1.01**0.5) < 4 * (1.01 / 4000) ** 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        overruled = eq.simulate(PRIOR, latent, 1024, seed=1, batched=True)
    assert (overruled.x - overruled.theta).std() < 0.2


def test_each_row_is_divided_by_its_own_largest_element() -> None:
    with pytest.warns(UserWarning, match="batched=True"):
        pairs = eq.simulate(PRIOR, largest, 50, seed=0)
    assert bool((pairs.x == 1).any(1).all())


def test_noise_that_never_changes_is_left_to_batches() -> None:
    """A simulator that seeds itself gives every call one noise; one by one, it would give it to every row."""

    def simulator(theta: np.ndarray):
        return theta + np.random.default_rng(3).normal(size=theta.shape)

    assert adapt(simulator, parameters(0), 0).batched


@pytest.mark.parametrize("law", ["normal", "cauchy", "coins", "sparse", "rare"])
def test_right_batches_are_rarely_doubted(law: str) -> None:
    """With a chance of 1e-4 or less each, one or more of 300 has a chance of 3 %; the seeds are fixed."""
    for seed in range(300):
        rng = np.random.default_rng([seed, 7])
        x = rng.normal(size=(probing.BATCHES + probing.SINGLES, 7, 3))
        laws = {"normal": x, "cauchy": x / rng.normal(size=x.shape), "coins": x > 0, "sparse": x > 1, "rare": x > 2}
        assert probing._p_value(*np.split(laws[law], [probing.BATCHES])) > probing.LEVEL


def test_tails_against_scipy() -> None:
    x = np.linspace(0, 200, 50)
    for degrees in (7, 24):
        np.testing.assert_allclose(probing._tail(x, degrees), stats.chi2.sf(x, degrees), rtol=1e-9, atol=1e-30)
