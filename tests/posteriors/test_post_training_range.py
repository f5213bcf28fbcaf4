"""What a posterior remembers of its training pairs: observations unlike them, and pairs it has seen."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.posteriors import describe_training
from equipoise.posteriors.training_range import warn_if_far

PRIOR = eq.BoxUniform(-torch.ones(2), torch.ones(2))
QUICK = {"epochs": 2, "members": 2, "batch_size": 32, "progress": False}


def pairs(n: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, torch.cat([theta, 10 * theta], 1) + 0.1 * torch.randn(n, 4, generator=g)


@pytest.fixture(scope="module")
def posterior() -> eq.Posterior:
    return eq.fit(*pairs(), prior=PRIOR, method=eq.METHODS["bnpe_init"].but(hidden=(8, 8)), **QUICK)


def test_an_observation_far_from_training_is_told(posterior: eq.Posterior, tmp_path: Path) -> None:
    near, far = torch.tensor([0.5, -0.5, 12.0, -9.0]), torch.tensor([0.5, 4.0, 5.0, -5.0])
    posterior.save(tmp_path)
    for p in (posterior, eq.load(tmp_path), posterior.members[0]):
        p.sample((3,), x=near)
        p.log_prob(torch.zeros(2), near)
        for ask in (lambda p=p: p.sample((3,), x=far), lambda p=p: p.log_prob(torch.zeros(2), far)):
            with pytest.warns(
                UserWarning, match=r"the observation lies far outside.* x\[1\] is 4, and was between -1\."
            ):
                ask()
    with pytest.warns(UserWarning, match="2 of 5 observations lie far outside"):
        posterior.sample_batched((1,), torch.stack([near, far, near, near, far]))


def test_held_out_pairs_are_never_far(posterior: eq.Posterior) -> None:
    """2,000 pairs of the same simulator: noise of a tenth of the range at most, and the limit is half of it."""
    theta, x = pairs(2000, seed=1)
    posterior.log_prob(theta, x)


def test_ranges_are_the_channels_of_an_image_and_need_no_spread() -> None:
    x = torch.randint(0, 200, (50, 2, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    x[:, 1] = 7  # a channel that never varies
    memory = describe_training(torch.zeros(50, 2), x, (2, 1, 1))
    assert memory["low"] == [float(x[:, 0].min()), 7.0] and memory["high"] == [float(x[:, 0].max()), 7.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_far(memory, x[:1])
        warn_if_far(memory, x[:1].float() * (1 + 1e-6))
        warn_if_far({}, 1e9 * x[:1].float())
    changed = x[:1].clone()
    changed[0, 1, 2, 3] = 8
    with pytest.warns(UserWarning, match=r"x\[1, 2, 3\] is 8, and was between 7 and 7"):
        warn_if_far(memory, changed)
    other = x[:1].clone()
    other[0, 1, 2, 3] = 20
    with pytest.warns(UserWarning, match=r"x\[1, 2, 3\] is 20, and was between 7 and 7"):
        warn_if_far(memory, other)


def test_heavy_tails_go_beyond_their_range_by_chance() -> None:
    """The largest of many log-normal draws is twice that of few; a thousand times as much is another unit."""
    g = torch.Generator().manual_seed(2)
    few, many = (torch.exp(1.5 * torch.randn(n, 3, generator=g)) for n in (300, 4000))
    memory = describe_training(torch.zeros(300, 1), few, (3,))
    assert memory["heavy"] == [True] * 3 and bool((many.amax(0) > 1.5 * few.amax(0)).any())
    warn_if_far(memory, many)  # warnings are errors here
    with pytest.warns(UserWarning, match="far outside"):
        warn_if_far(memory, 1000 * few.median(0, keepdim=True).values)
    normal = torch.randn(5000, 2, generator=g)
    assert describe_training(torch.zeros(5000, 1), normal, (2,))["heavy"] == [False] * 2
    assert describe_training(torch.zeros(5000, 1), normal, (1,))["heavy"] == [False]


def test_a_few_of_many_observations_may_go_beyond(posterior: eq.Posterior) -> None:
    """As simulations of counts do by chance. One in a wrong unit is told, however many there are."""
    theta, x = pairs(200, seed=5)
    beyond = 1.2 * x[:1].sign() * x.abs().amax(0)
    posterior.log_prob(theta, torch.cat([beyond, x[1:]]))
    with pytest.warns(UserWarning, match="5 of 200 observations lie far outside"):
        posterior.log_prob(theta, torch.cat([2.5 * beyond.expand(5, -1), x[5:]]))
    posterior.log_prob(theta, torch.cat([2.5 * beyond.expand(4, -1), x[4:]]))
    with pytest.warns(UserWarning, match="1 of 200 observations lie far outside"):
        posterior.log_prob(theta, torch.cat([1000 * beyond, x[1:]]))


def test_pairs_of_training_do_not_judge(posterior: eq.Posterior) -> None:
    with pytest.warns(UserWarning, match="was trained on some of these pairs .* simulate new ones"):
        ds = eq.diagnose(posterior, *pairs(), samples=16, progress=False)
    assert "trained on some" in ds.notes
    theta, x = pairs(seed=1)
    assert "trained on some" not in eq.diagnose(posterior, theta, x, samples=16, progress=False).notes
    # The same parameters with new simulations are new pairs.
    theta, x = pairs()
    again = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    assert "trained on some" not in eq.diagnose(posterior, theta, again, samples=16, progress=False).notes


def test_what_cannot_be_an_observation(posterior: eq.Posterior) -> None:
    theta, x = pairs()
    with pytest.raises(ValueError, match=r"the observation is missing: x, with shape \(4,\)"):
        posterior.log_prob(theta, None)
    with pytest.raises(ValueError, match="counts draws"):
        posterior.sample((-1,), x=x[0])
    with pytest.raises(TypeError, match="complex"):
        posterior.sample((1,), x=x[0] + 1j)
    for density in (posterior.log_prob, posterior.log_ratio, lambda theta, x: posterior.prior.log_prob(theta)):
        with pytest.raises(TypeError, match="complex"):  # whose imaginary part would be dropped
            density(theta + 1j, x)
