"""Calibrated posteriors: overconfident ones become conservative, against closed forms.

θ ~ N(0, I), x = θ + σ ε as in `diagnostics_fakes`. A surrogate of width k times that of the exact posterior, of
variance v, stays Gaussian when it is tempered, with precision 1 - t + t/(k² v).
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from diagnostics_fakes import SIGMA, TAU, pairs
from scipy import special, stats
from torch import Tensor, nn

import equipoise as eq
from equipoise.diagnostics.calibrating import ranks_of
from equipoise.diagnostics.calibration import TEMPERATURES
from equipoise.diagnostics.tempered_posterior import TemperedPosterior
from equipoise.networks import Flat, Flow, UserNetwork
from equipoise.posteriors import Posterior
from equipoise.posteriors.tempering import Observed, Untempered


class Narrow:
    """A posterior of another package, `scale` times as wide as the exact one."""

    def __init__(self, scale: float, dim: int, potential: bool = False) -> None:
        self.scale, self.potential = scale, potential
        self.prior = eq.GaussianPrior(torch.zeros(dim), torch.eye(dim))

    def normal(self, x: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(x / (1 + SIGMA**2), self.scale * TAU)

    def sample(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return self.normal(x).sample(shape)

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        if self.potential:
            warnings.warn("this log_prob is not normalized", stacklevel=2)
            return self.normal(x).log_prob(theta).sum(-1) + x.sum(-1)
        return self.normal(x).log_prob(theta).sum(-1)


class NarrowInBatches(Narrow):
    def sample_batched(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return self.normal(x).sample(shape)

    def log_prob_batched(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.normal(x).log_prob(theta).sum(-1)


class NarrowRatio(nn.Module):
    """A classifier that takes the noise for `scale` times what it is."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.tensor(scale * SIGMA))

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return -0.5 * ((theta - x) / self.noise).square().sum(-1)


def tempered_normal(x: Tensor, scale: float, t: float) -> torch.distributions.Normal:
    precision = t / (scale * TAU) ** 2 + 1 - t
    return torch.distributions.Normal(x / (1 + SIGMA**2) * t / (scale * TAU) ** 2 / precision, precision**-0.5)


def classifier(scale: float, dim: int) -> Posterior:
    network = UserNetwork(NarrowRatio(scale), eq.GaussianPrior(torch.zeros(dim), torch.eye(dim)), (dim,))
    return Posterior(network, network.init([(0, 0)], [torch.zeros(dim)], [torch.ones(dim)]))


@pytest.mark.parametrize("has_draws", [True, False], ids=["draws", "ratio"])
@pytest.mark.parametrize(("dim", "v", "k"), [(1, 0.01, 0.7), (2, 0.05, 0.8), (10, 0.1, 0.8)])
def test_ranks_at_every_temperature_are_those_of_the_closed_form(dim: int, v: float, k: float, has_draws: bool) -> None:
    n, rng, width = 200, np.random.default_rng(0), k * v**0.5
    mean = np.sqrt(1 - v) * rng.normal(size=(n, dim))
    theta = mean + v**0.5 * rng.normal(size=(n, dim))
    prior = eq.GaussianPrior(torch.zeros(dim), torch.eye(dim))

    def log_ratio(at: Tensor, x: Observed) -> Tensor:
        return torch.distributions.Normal(x.x, width).log_prob(at).sum(-1) - prior.log_prob(at)

    def draw(m: int, x: Observed, generator: torch.Generator) -> Tensor:
        return x.x + width * torch.randn(m, *x.x.shape, generator=generator)

    q = Untempered(prior, torch.zeros(()), log_ratio, draw if has_draws else None)
    x = Observed(torch.tensor(mean, dtype=torch.float32), torch.zeros(n, 1))
    star = torch.tensor(theta, dtype=torch.float32)
    found = ranks_of(q, x, star, torch.Generator().manual_seed(1), np.random.default_rng(0))
    precision = 1 - TEMPERATURES + TEMPERATURES / width**2
    shrunk = (TEMPERATURES / (width**2 * precision))[:, None, None] * mean
    exact = special.gammainc(dim / 2, ((theta - shrunk) ** 2).sum(-1) * precision[:, None] / 2)
    # Ranks have an error of 1/√(4E) at most, E > 150; over 200 pairs it is averaged out, unless there is a bias.
    assert (1 / (1 / found.effective).mean(-1) > 150).all()
    assert np.abs(found.rank - exact).mean(-1).max() < 0.03
    assert np.abs((found.rank - exact).mean(-1)).max() < 0.006


def test_an_overconfident_posterior_becomes_conservative() -> None:
    theta, x = pairs(2000, 2, seed=1)
    found = eq.calibrate(NarrowInBatches(0.8, 2), theta, x, progress=False)
    known = found.calibration
    assert known.certified and known.rule == "guaranteed" and known.pairs == 2000 and known.p_over >= 0.5
    t = found.temperature
    assert t == known.t and 0.3 < t < 0.8
    assert min(np.subtract(known.before, known.levels)) < -0.05  # 64% of the variance: coverage .85 at .95
    # The claim, in closed form: the true coverage of q_t at every level.
    law = tempered_normal(torch.zeros(1), 0.8, t)
    shrink = float(tempered_normal(torch.ones(1), 0.8, t).mean) * (1 + SIGMA**2)
    variance = TAU**2 + (1 - shrink) ** 2 * (1 - TAU**2)
    levels = np.arange(1, 100) / 100
    true = stats.chi2.cdf(stats.chi2.ppf(levels, 2) * float(law.variance) / variance, 2)
    assert (true >= levels - np.minimum(0.02, (1 - levels) / 2)).all()
    # Density and draws are those of q_t.
    law = tempered_normal(x[0], 0.8, t)
    draws = found.sample((2000,), x[0], seed=1)
    assert draws.shape == (2000, 2) and stats.kstest(law.cdf(draws)[:, 0], "uniform").pvalue > 1e-5
    torch.testing.assert_close(found.log_prob(draws, x[0]), law.log_prob(draws).sum(-1), rtol=0.0, atol=0.05)
    assert torch.equal(found.sample((5,), x[0], seed=1), found.sample((5,), x[0], seed=1))
    # Judged on other pairs.
    theta, x = pairs(150, 2, seed=2)
    assert str(eq.diagnose(found, theta, x, progress=False).verdict.sel(member="mixture").values) != "overconfident"


def test_a_classifier_of_ours_becomes_conservative() -> None:
    theta, x = pairs(1000, 2, seed=1)
    p = classifier(0.7, 2)
    found = eq.calibrate(p, theta, x, progress=False)
    assert isinstance(found, Posterior) and found.calibration is not None and found.calibration.certified
    assert found.temperature == found.calibration.t < 1
    theta, x = pairs(400, 2, seed=2)
    before, after = (eq.diagnose(q, theta, x, progress=False) for q in (p, found))
    assert list(before.verdict.values) == ["overconfident"] * 2
    # The network is as it was; what is judged as the mixture is tempered.
    assert after.verdict.sel(member="0") == "overconfident" and after.verdict.sel(member="mixture") != "overconfident"
    t = found.temperature
    precision = 1 + t / (0.7 * SIGMA) ** 2
    exact = torch.distributions.Normal(t * x / (0.7 * SIGMA) ** 2 / precision, precision**-0.5)
    nominal = float(exact.log_prob(theta).sum(-1).mean())
    assert float(after.nominal_log_prob.sel(member="mixture")) == pytest.approx(nominal, abs=0.02)


def test_a_tempered_flow_is_judged_as_what_it_is() -> None:
    """The flow N(½, s² I) tempered: pairs drawn from q_t itself are calibrated, and its log density is known."""
    dim, s, t = 2, 0.2, 0.5
    prior = eq.GaussianPrior(torch.zeros(dim), torch.eye(dim))
    options = {"theta_loc": torch.full((dim,), 0.5), "theta_scale": torch.full((dim,), s)}
    net = Flow(prior, Flat((1,)), "random", "identity", hidden=(8,), transforms=1, **options)
    p = Posterior(net, net.init([(0, 0), (1, 0)], [torch.zeros(1)] * 2, [torch.ones(1)] * 2)).tempered(t)
    precision = t / s**2 + 1 - t
    law = torch.distributions.Normal(0.5 * t / s**2 / precision, precision**-0.5)
    torch.manual_seed(0)
    theta, x = law.sample((250, dim)), torch.randn(250, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these θ are not draws of the prior
        ds = eq.diagnose(p, theta, x, progress=False)
    mixture, member = ds.sel(member="mixture"), ds.sel(member="0")
    assert stats.kstest(mixture["rank"], "uniform").pvalue > 1e-4
    assert (mixture.sbc_p_value > 1e-4).all() and float(mixture.tarp_p_value) > 1e-4
    assert float(mixture.nominal_log_prob) == pytest.approx(float(law.log_prob(theta).sum(-1).mean()), abs=0.02)
    entropy = float(law.entropy()) * dim
    assert float(mixture.entropy) == pytest.approx(entropy, abs=0.03)
    assert member.verdict == "overconfident"  # of pairs that are wider than the network


def test_nothing_certified_is_said_in_words() -> None:
    theta, x = pairs(100, 2, seed=1)
    with pytest.warns(UserWarning, match="100 fresh pairs"):
        found = eq.calibrate(Narrow(0.8, 2), theta, x, progress=False)
    known = found.calibration
    assert not known.certified and known.pairs_needed > 100 and 0 < known.t <= 1
    # Hopeless at every temperature: the lowest, and still not the prior.
    with pytest.warns(UserWarning, match="every temperature"):
        found = eq.calibrate(Narrow(0.002, 2), theta, x, progress=False)
    assert found.temperature == TEMPERATURES[0] and not found.calibration.certified
    assert len(found.calibration.after) == len(found.calibration.levels)


def test_what_is_not_normalised_and_log_ratios_are_calibrated_too() -> None:
    theta, x = pairs(300, 2, seed=1)
    prior = Narrow(1.0, 2).prior

    def log_ratio(theta: Tensor, x: Tensor) -> Tensor:
        return -0.5 * ((theta - x) / (0.7 * SIGMA)).square().sum(-1)

    exact = tempered_normal(x[0], 0.7, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = eq.calibrate(Narrow(0.7, 2, potential=True), theta, x, prior=prior, progress=False)
        ratio = eq.calibrate(log_ratio, theta, x, prior=prior, progress=False)
        at = TemperedPosterior(Narrow(0.7, 2, potential=True), 0.5, (2,), prior).log_prob(theta[:9], x[0])
    assert potential.temperature < 1 and ratio.temperature < 1
    torch.testing.assert_close(at, exact.log_prob(theta[:9]).sum(-1), rtol=0.0, atol=0.05)
    assert ratio.sample((10,), x[0]).shape == potential.sample((10,), x[0]).shape == (10, 2)


@pytest.mark.parametrize("posterior", [Narrow(0.7, 2), NarrowInBatches(0.7, 2), Narrow(0.7, 2, potential=True)])
@pytest.mark.filterwarnings("ignore:this log_prob is not normalized")
def test_tempered_posteriors_are_judged_many_pairs_at_once(posterior: Narrow) -> None:
    theta, x = pairs(150, 2, seed=1)
    t = 0.5
    ds = eq.diagnose(TemperedPosterior(posterior, t, (2,), posterior.prior), theta, x, samples=400, progress=False)
    exact = tempered_normal(x, 0.7, t)
    log_prob = exact.log_prob(theta).sum(-1).numpy()
    np.testing.assert_allclose(ds["log_prob"].values.reshape(-1, 150)[-1], log_prob, atol=0.05)
    square = ((theta - exact.mean) / exact.stddev).square().sum(-1).numpy()
    rank = ds["rank"].values.reshape(-1, 150)[-1]  # the mass of the region that θ* is on the edge of
    assert np.abs(rank - stats.chi2(2).cdf(square)).mean() < 0.03


def test_bad_input_is_refused() -> None:
    theta, x = pairs(100, 2, seed=1)
    posterior = Narrow(0.8, 2)
    del posterior.prior
    with pytest.raises(ValueError, match="prior="):
        eq.calibrate(posterior, theta, x)
    with pytest.raises(ValueError, match="alpha"):
        eq.calibrate(Narrow(0.8, 2), theta, x, alpha=2.0)
    with pytest.raises(ValueError, match="theta"):
        eq.calibrate(Narrow(0.8, 2), theta[:, :1], x)
    with pytest.raises(ValueError, match="observation"):
        TemperedPosterior(Narrow(0.8, 2), 0.5, (2,)).log_prob(theta[0], x[:3])
    with pytest.raises(ValueError, match="temperature"):
        TemperedPosterior(Narrow(0.8, 2), 0.0, (2,))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_posterior_of_sbi() -> None:
    from sbi.inference import NPE

    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    torch.manual_seed(0)
    inference = NPE(prior, show_progress_bars=False, density_estimator="maf")
    inference.append_simulations(*pairs(64, 2, seed=0)).train(max_num_epochs=200, stop_after_epochs=200)
    posterior = inference.build_posterior()
    found = eq.calibrate(posterior, *pairs(600, 2, seed=1), progress=False)
    assert found.temperature < 1 and found.calibration.pairs == 600
    theta, x = pairs(50, 2, seed=2)
    assert found.sample((7,), x[0]).shape == (7, 2) and found.log_prob(theta, x[0]).isfinite().all()
    ds = eq.diagnose(found, theta, x, samples=64, progress=False)
    assert str(ds.verdict.sel(member="mixture").values) != "overconfident"
