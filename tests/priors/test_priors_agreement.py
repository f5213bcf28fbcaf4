"""Whether θ follows the prior: against scipy's test, silent where it does, plain where it does not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.distributions as td
from scipy import stats

import equipoise as eq
from equipoise.priors import agreement
from equipoise.priors.agreement import warn_unless_drawn_from


class Coins:
    """A prior with ties, known by its draws alone: a coin of ±1, which is 0 at times, beside a normal."""

    def sample(self, shape=()):
        return torch.stack([torch.randint(-1, 2, tuple(shape)).float(), torch.randn(tuple(shape))], -1)

    def log_prob(self, theta):
        return td.Normal(0.0, 1.0).log_prob(theta[..., 1])


PRIORS = {
    "box": eq.BoxUniform([-3.0, 0.0], [3.0, 1e-30]),
    "far": eq.BoxUniform([1e6], [1e6 + 1]),  # 16 values in single precision
    "gaussian": eq.GaussianPrior([0.0, 1.0], [[1.0, 1.2], [1.2, 2.0]]),
    "independent": eq.IndependentPrior([td.Gamma(2.0, 3.0), td.Cauchy(0.0, 1.0), td.LogNormal(0.0, 1.0)]),
    "opaque": eq.as_prior(Coins()),
}


@pytest.mark.parametrize("name", list(PRIORS))
@pytest.mark.parametrize("n", [1, 20, 1000, 20_001])
def test_draws_of_the_prior_are_not_remarked_upon(name: str, n: int) -> None:
    """A warning would be an error. Each has a chance of 1e-6."""
    prior = PRIORS[name]
    for seed in range(5):
        torch.manual_seed(seed)
        assert warn_unless_drawn_from(prior, prior.sample((n,)).float()) == ""
    assert warn_unless_drawn_from(None, torch.ones(5, 1)) == ""


@pytest.mark.parametrize("name", ["box", "gaussian", "independent"])
def test_the_level_is_scipys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level of 0.05 it warns exactly where scipy's p-value, times the number of parameters, is below that."""
    monkeypatch.setattr(agreement, "LEVEL", 0.05)
    prior, found = PRIORS[name], []
    cdfs = {
        "box": [stats.uniform(-3, 6).cdf, stats.uniform(0, 1e-30).cdf],
        "gaussian": [stats.norm(0, 1).cdf, stats.norm(1, np.sqrt(2)).cdf],
        "independent": [stats.gamma(2, scale=1 / 3).cdf, stats.cauchy.cdf, stats.lognorm(1).cdf],
    }[name]
    for seed in range(60):
        torch.manual_seed(seed)
        theta = prior.sample((300,)).double()
        p = min(stats.kstest(theta[:, j].numpy(), cdf).pvalue for j, cdf in enumerate(cdfs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append((bool(warn_unless_drawn_from(prior, theta)), len(cdfs) * p))
    clear = [(told, p) for told, p in found if abs(p - 0.05) > 1e-3]  # rounding in float32 is allowed for
    assert all(told == (p < 0.05) for told, p in clear) and any(told for told, _ in clear)


def test_a_narrower_theta_is_told_with_where_it_lies() -> None:
    torch.manual_seed(0)
    theta = 0.1 * torch.randn(600, 2)
    with pytest.warns(UserWarning, match="not drawn from this prior") as told:
        text = warn_unless_drawn_from(eq.BoxUniform([-1.0, -1.0], [1.0, 1.0]), theta)
    assert str(told[0].message) == text and len(told) == 1 and told[0].filename == __file__
    assert "2 of 2 parameters differ" in text and "of the prior between -0.89" in text
    assert "give the prior that they were drawn from" in text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gaussian", lambda t: t + torch.tensor([0.0, 0.8])),
        ("independent", lambda t: t * torch.tensor([1.0, 1.0, 3.0])),
        ("opaque", lambda t: torch.stack([t[:, 0], 0.5 * t[:, 1]], -1)),
        ("opaque", lambda t: torch.stack([t[:, 0].abs(), t[:, 1]], -1)),
        ("far", lambda t: t.clamp(max=1e6 + 0.5)),
    ],
)
def test_one_parameter_that_differs_is_found(name: str, change) -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=r"theta\[:, \d\] lie between"):
        warn_unless_drawn_from(PRIORS[name], change(PRIORS[name].sample((1000,)).float()))


def test_random_generators_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    warn_unless_drawn_from(PRIORS["opaque"], torch.zeros(3, 2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
