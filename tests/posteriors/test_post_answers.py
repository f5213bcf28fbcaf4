"""Answers for one observation against closed forms, and the bound posterior in sbi's own functions."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from test_post_posterior import BOX, GaussianRatio, OwnNormal, gaussian_posterior, random_posterior
from torch import Tensor

import equipoise as eq
from equipoise.networks import UserNetwork
from equipoise.posteriors import Posterior

#: θ ~ N(0, I), x = θ + NOISE ε: the posterior is N(x / (1 + NOISE²), DEVIATION²).
NOISE = 0.5
DEVIATION = NOISE / math.sqrt(1 + NOISE**2)
X = torch.tensor([0.8, -0.3])


def test_the_summary_of_a_gaussian() -> None:
    p, n = gaussian_posterior(2, NOISE), 10_000
    table = p.summary(X, n=n, seed=1)
    assert list(table.index) == ["theta_0", "theta_1"]
    mean = X.numpy() / (1 + NOISE**2)
    error = 5 * DEVIATION / math.sqrt(n)  # of a mean, exceeded once in a million times
    np.testing.assert_allclose(table["mean"], mean, atol=error)
    np.testing.assert_allclose(table["median"], mean, atol=1.3 * error)
    np.testing.assert_allclose(table["sd"], DEVIATION, atol=error)
    np.testing.assert_allclose(table["map"], mean, atol=0.02 * DEVIATION)
    np.testing.assert_allclose(table["contraction"], 1 - DEVIATION**2, atol=0.02)
    for level in (68, 95):
        half = DEVIATION * stats.norm.ppf(0.5 + level / 200)
        np.testing.assert_allclose(table[f"{level}% low"], mean - half, atol=3 * error)
        np.testing.assert_allclose(table[f"{level}% high"], mean + half, atol=3 * error)
    for shown in (table, table.round(3), table.loc[["theta_1"]]):  # in a plain script, where pandas leaves columns out
        assert "..." not in str(shown) and all(name in str(shown) for name in table)
    assert table.equals(p.summary(X, n=n, seed=1)) and table.equals(p.at(X).summary(n=n, seed=1))


@pytest.mark.parametrize("dim", [1, 5])
def test_the_mode_of_a_gaussian(dim: int) -> None:
    x = torch.linspace(-1, 1.5, dim)
    for p in (gaussian_posterior(dim, NOISE), gaussian_posterior(dim, NOISE).tempered(0.5)):
        # Tempering halves the precision of the likelihood.
        noise = NOISE if p.temperature == 1 else NOISE * math.sqrt(2)
        torch.testing.assert_close(p.map(x), x / (1 + noise**2), rtol=0, atol=0.02 * DEVIATION)


@pytest.mark.parametrize("kind", ["classifier", "random", "prior", "mixture"])
def test_the_mode_is_inside_and_not_below_any_draw(kind: str) -> None:
    p, x = random_posterior(kind), torch.linspace(-1, 1, 4)
    found = p.map(x)
    assert found.shape == (2,) and bool(BOX.contains(found))
    ticks = (torch.arange(200) + 0.5) / 200
    grid = BOX.from_uniform(torch.cartesian_prod(ticks, ticks))
    assert p.log_prob(found, x) >= p.log_prob(grid, x).max() - 0.01
    assert torch.equal(found, p.map(x))


def test_the_mode_under_a_prior_without_a_map() -> None:
    network = UserNetwork(GaussianRatio(2, NOISE), eq.as_prior(OwnNormal(2)), (2,))
    p = Posterior(network, network.init([(0, 0)], [torch.zeros(2)], [torch.ones(2)]))
    torch.testing.assert_close(p.map(X), X / (1 + NOISE**2), rtol=0, atol=0.15 * DEVIATION)  # the best draw


def test_the_region_of_a_gaussian() -> None:
    p, level, n = gaussian_posterior(2, NOISE), 0.8, 20_000
    found = p.region(X, level, n=n)
    # The density at radius² = χ²_2's quantile; a share of draws errs by 5 √(level (1 - level) / n), and this density
    # falls by one nat where the share inside grows by the share outside.
    exact = -stats.chi2.ppf(level, 2) / 2 - math.log(2 * math.pi * DEVIATION**2)
    assert found.threshold == pytest.approx(exact, abs=5 * math.sqrt(level / (1 - level) / n) + 0.01)
    fresh = p.sample((n,), X, seed=5)
    assert found.contains(fresh).double().mean() == pytest.approx(level, abs=7 * math.sqrt(0.16 / n))
    assert bool(found.contains(p.map(X))) and not bool(found.contains(X + 5)) and found.level == level


def test_predictive_draws_follow_the_simulator() -> None:
    """x' = θ + ε under the posterior: the variances add up. However the simulator wants to be called."""

    def single(theta: np.ndarray, seed: int) -> np.ndarray:
        assert theta.shape == (2,)
        return np.asarray(theta) + np.random.default_rng(seed).normal(0, NOISE, 2)

    def batch(theta: Tensor) -> Tensor:
        return theta[:, :2] + NOISE * torch.randn(len(theta), 2)

    p, n, mean = gaussian_posterior(2, NOISE), 2000, X / (1 + NOISE**2)
    spread = math.sqrt(DEVIATION**2 + NOISE**2)
    before = torch.get_rng_state()
    for simulator in (single, batch):
        found = p.predict(simulator, X, n=n, seed=2)
        assert found.shape == (n, 2) and found.dtype == torch.float32
        torch.testing.assert_close(found.mean(0), mean, rtol=0, atol=5 * spread / math.sqrt(n))
        torch.testing.assert_close(found.std(0), torch.full((2,), spread), rtol=0, atol=5 * spread / math.sqrt(n))
        assert torch.equal(found, p.predict(simulator, X, n=n, seed=2))
    assert torch.equal(before, torch.get_rng_state())

    def products(theta: np.ndarray) -> np.ndarray:  # takes a tensor too, and NumPy then warns at every call
        return np.array([1.0, 2.0]) * theta

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        doubled = p.predict(products, X, n=3, seed=1)
    assert not caught
    torch.testing.assert_close(doubled, p.predict(lambda theta: theta, X, n=3, seed=1) * torch.tensor([1.0, 2.0]))

    only_numpy = p.predict(lambda theta: theta.astype(np.float64), X, n=3)
    assert only_numpy.shape == (3, 2)


def test_a_simulator_of_another_shape_is_refused() -> None:
    p = gaussian_posterior(2, NOISE)
    with pytest.raises(ValueError, match=r"no x of shape \(2,\)(.|\n)*instead of \(5, 2\)"):
        p.predict(lambda theta: torch.zeros(len(theta), 3), X, n=5)
    with pytest.raises(TypeError, match="function of theta"):
        p.predict(X, X)


def test_sbi_calibrates_the_bound_posterior() -> None:
    """sbi's ranks of an exact posterior are uniform, by its marginals and by its density."""
    from sbi.diagnostics import run_sbc

    at = gaussian_posterior(2, NOISE).at(X)
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(100, 2, generator=g)
    x = theta + NOISE * torch.randn(100, 2, generator=g)
    for how in ("marginals", at.log_prob):
        ranks, _ = run_sbc(theta, x, at, 100, how, show_progress_bar=False)
        assert all(stats.kstest(r / 100, "uniform").pvalue > 1e-4 for r in ranks.T.numpy())


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of sbi's own code
def test_sbi_plots_the_bound_posterior() -> None:
    import matplotlib.pyplot as plt
    from sbi.analysis import pairplot

    p = gaussian_posterior(2, NOISE)
    figure, axes = pairplot(p.at(X).sample((200,), seed=1), labels=list(p.to_pandas(X, 1).columns))
    assert np.shape(axes) == (2, 2)
    plt.close(figure)


def test_the_bound_posterior_is_the_posterior() -> None:
    p, x = random_posterior("prior"), torch.linspace(-1, 1, 4)
    at = p.at(x[None])
    assert torch.equal(at.sample((5,), seed=1), p.sample((5,), x, seed=1)) and at.sample().shape == (2,)
    theta = BOX.sample((7,))
    assert torch.equal(at.log_prob(theta), p.log_prob(theta, x)) and at.prior is p.prior
    assert torch.equal(at.map(), p.map(x)) and at.region(0.5, n=100).threshold == p.region(x, 0.5, n=100).threshold


def test_draws_as_a_table_and_the_posterior_in_a_notebook() -> None:
    p, x = random_posterior("prior"), torch.linspace(-1, 1, 4)
    table = p.to_pandas(x, 20, seed=3)
    np.testing.assert_array_equal(table[["theta_0", "theta_1"]], p.sample((20,), x, seed=3))
    shown = p.tempered(0.5)._repr_html_()
    assert "<table>" in shown and "<td>3</td>" in shown and "<td>0.5</td>" in shown
    assert "none yet: eq.diagnose" in shown


def test_the_posterior_says_what_it_is() -> None:
    prior = eq.BoxUniform([-1, -1], [1, 1]).named(["beta", "gamma"])
    theta = prior.sample((1100,))
    x = theta + 0.1 * torch.randn(1100, 2)
    small = eq.METHODS["bnpe_init"].but(hidden=(8,))
    fitted = eq.fit(
        theta[:1000], x[:1000], prior=prior, method=small, start="random", members=2, epochs=1, progress=False
    )
    told = repr(fitted)
    for words in ("bnpe_init[start=random, hidden=(8,)]", "2 members", "1,000 simulations", "D=2 (beta, gamma)"):
        assert words in told, told
    assert "pairs" not in told and ", t=" not in told and ", t=0.5" in repr(fitted.tempered(0.5))
    ds = eq.diagnose(fitted, theta[1000:], x[1000:], samples=16, progress=False)
    assert f"{ds.verdict.values[-1]} by 100 pairs" in repr(fitted) and "by 100 pairs" in fitted._repr_html_()
    assert fitted.tempered(0.5).verdict is None and fitted.members[0].verdict is None


@pytest.mark.parametrize("ask", ["summary", "map", "region", "at", "to_pandas"])
def test_one_observation_is_wanted(ask: str) -> None:
    with pytest.raises(ValueError, match="one observation"):
        getattr(random_posterior("prior"), ask)(torch.zeros(2, 4))


@pytest.mark.filterwarnings("ignore:\\s*ArviZ is undergoing:FutureWarning")
def test_names_are_in_every_answer(tmp_path) -> None:
    p, x = random_posterior("prior", prior=BOX.named(["beta", "gamma"])), torch.linspace(-1, 1, 4)
    assert p.names == ("beta", "gamma") == p.select([0]).names == p.to("cpu").names
    assert list(p.summary(x, n=50).index) == list(p.to_pandas(x, 3)) == ["beta", "gamma"]
    assert p.to_arviz(x, 5)["posterior"]["gamma"].shape == (3, 5) and "beta, gamma" in p._repr_html_()
    p.save(tmp_path / "model")
    assert eq.load(tmp_path / "model").names == ("beta", "gamma")
    theta = BOX.sample((60,))
    ds = eq.diagnose(p, theta, torch.randn(60, 4), samples=8, progress=False)
    assert ds["parameter"].values.tolist() == ["beta", "gamma"] and "gamma, central interval" in str(eq.summary(ds))
    theta[3, 1] = 9.0
    with pytest.raises(ValueError, match="gamma = 9"):
        eq.diagnose(p, theta, torch.randn(60, 4), samples=8, progress=False)
