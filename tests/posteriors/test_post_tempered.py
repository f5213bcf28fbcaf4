"""Tempered posteriors: against closed forms, and as any other posterior."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import equipoise as eq
from equipoise.networks import Classifier, Flat, Flow, UserNetwork
from equipoise.posteriors import Calibration, Posterior

BOX = eq.BoxUniform(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
KINDS = ["classifier", "random", "prior"]


class GaussianRatio(nn.Module):
    """log N(θ; x, noise²) as a classifier without weights but one."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.tensor(noise))

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return -0.5 * ((theta - x) / self.noise).square().sum(-1)


def gaussian_flow(dim: int, s: float, centre: float) -> Posterior:
    """N(centre, s² I) for every x, under the prior N(0, I): a flow whose splines are the identity."""
    prior = eq.GaussianPrior(torch.zeros(dim), torch.eye(dim))
    options = {"theta_loc": torch.full((dim,), centre), "theta_scale": torch.full((dim,), s)}
    net = Flow(prior, Flat((2,)), "random", "identity", hidden=(8,), transforms=1, **options)
    return Posterior(net, net.init([(0, 0), (1, 0)], [torch.zeros(2)] * 2, [torch.ones(2)] * 2))


def gaussian_classifier(dim: int, noise: float) -> Posterior:
    prior = eq.GaussianPrior(torch.zeros(dim), torch.eye(dim))
    network = UserNetwork(GaussianRatio(noise), prior, (dim,))
    return Posterior(network, network.init([(0, 0)], [torch.zeros(dim)], [torch.ones(dim)]))


def random_posterior(kind: str, members: int = 3) -> Posterior:
    """An untrained posterior with lively weights."""
    body = Flat((4,))
    flow = kind != "classifier"
    net = Flow(BOX, body, kind, hidden=(24, 24)) if flow else Classifier(BOX, body, hidden=(24, 24))
    stack = net.init([(m, 0) for m in range(members)], [torch.zeros(4)] * members, [torch.ones(4)] * members)
    if not flow:
        stack["mlp.2.weight"] = 4 * stack["mlp.2.weight"]
    return Posterior(net, stack)


def calibration(t: float) -> Calibration:
    curve = (0.1, 0.9)
    return Calibration(t, "guaranteed", 1000, True, 0.6, 0.01, 0.05, 0.02, 0.5, curve, curve, curve, None, "in words")


def check_gaussian(p: Posterior, x: Tensor, mean: Tensor, sd: float, draws: int = 1500) -> None:
    """Density and draws of p are those of N(mean, sd² I)."""
    theta = mean + sd * torch.randn(200, len(mean), generator=torch.Generator().manual_seed(0))
    exact = torch.distributions.Normal(mean, sd).log_prob(theta).sum(-1)
    found = p.log_prob(theta, x)
    # A constant for one x: four times its stated error. What varies with θ has no error but rounding.
    assert float((found - exact).mean().abs()) < 0.05
    assert float((found - exact).std()) < 2e-3
    log_prior = p.prior.log_prob(theta)
    torch.testing.assert_close(p.log_ratio(theta, x), found - log_prior, rtol=1e-4, atol=1e-3)
    sample = p.sample((draws,), x=x, seed=1).double()
    for j in range(len(mean)):
        assert stats.kstest(sample[:, j].numpy(), stats.norm(float(mean[j]), sd).cdf).pvalue > 1e-5
    radius = ((sample - mean) / sd).square().sum(-1).numpy()
    assert stats.kstest(radius, stats.chi2(len(mean)).cdf).pvalue > 1e-5


@pytest.mark.parametrize("t", [0.4, 0.9])
@pytest.mark.parametrize(("dim", "s"), [(1, 0.1), (2, 0.3), (10, 0.6)])
def test_a_gaussian_flow_stays_gaussian(dim: int, s: float, t: float) -> None:
    """Precisions of q and of the prior add, with weights t and 1 - t."""
    p = gaussian_flow(dim, s, 0.5).tempered(t)
    precision = t / s**2 + 1 - t
    check_gaussian(p, torch.zeros(2), torch.full((dim,), 0.5 * t / s**2 / precision), precision**-0.5)
    assert p.sampler["sampler"] == "rejection"


def test_a_flow_too_narrow_for_rejection() -> None:
    """t = 0.5 of a posterior 50 times narrower than the prior in three dimensions: one draw in 5,000 is accepted."""
    s, t = 0.003, 0.5
    p = gaussian_flow(3, s, 0.5).tempered(t)
    precision = t / s**2 + 1 - t
    mean, sd = 0.5 * t / s**2 / precision, precision**-0.5
    draws = p.sample((1000,), x=torch.zeros(2), seed=1)
    assert p.sampler["sampler"] == "tempered sequential Monte Carlo"
    assert ((draws.mean(0) - mean).abs() < 0.25 * sd).all() and (abs(draws.std(0) / sd - 1) < 0.2).all()
    theta = torch.full((3,), mean)
    exact = torch.distributions.Normal(torch.full((3,), mean), sd).log_prob(theta).sum()
    assert float(p.log_prob(theta, torch.zeros(2)) - exact) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(("dim", "noise"), [(1, 0.2), (2, 0.3), (10, 1.0)])
def test_a_gaussian_classifier_stays_gaussian(dim: int, noise: float) -> None:
    """The likelihood to the power t: a noise larger by t^-½."""
    t = 0.5
    p = gaussian_classifier(dim, noise).tempered(t)
    x, precision = torch.linspace(-0.5, 0.5, dim), 1 + t / noise**2
    theta = p.sample((1000,), x=x, seed=1)
    mean, sd = t * x / noise**2 / precision, precision**-0.5
    exact = torch.distributions.Normal(mean, sd).log_prob(theta).sum(-1)
    torch.testing.assert_close(p.log_prob(theta, x), exact, rtol=0.0, atol=0.05)
    torch.testing.assert_close(p.log_ratio(theta, x), exact - p.prior.log_prob(theta), rtol=0.0, atol=0.05)
    assert ((theta.mean(0) - mean).abs() < 0.25 * sd).all() and (abs(theta.std(0) / sd - 1) < 0.2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_mixture_is_tempered_and_normalised(kind: str) -> None:
    """On a midpoint grid of the box: p^(1-t) q^t over its integral, whatever the network and however it leaks."""
    p, t = random_posterior(kind), 0.6
    ticks = (torch.arange(200) + 0.5) / 200
    theta = BOX.from_uniform(torch.cartesian_prod(ticks, ticks))
    x = torch.randn(4, generator=torch.Generator().manual_seed(1))
    power = t * (p.log_prob(theta, x) - BOX.log_prob(theta)).double()
    exact = power - power.exp().mean().log()
    found = p.tempered(t).log_ratio(theta, x).double()
    torch.testing.assert_close(found, exact, rtol=0.0, atol=0.03)
    draws = p.tempered(t).sample((4000,), x=x, seed=3)
    assert BOX.contains(draws).all()
    density, u = exact.exp().view(200, 200), BOX.to_uniform(draws).double()
    for axis in (0, 1):
        cdf = np.append(0, (density.mean(1 - axis).cumsum(0) / 200).numpy())
        exact_cdf = lambda v, cdf=cdf: np.interp(v, np.linspace(0, 1, 201), cdf / cdf[-1])  # noqa: E731
        assert stats.kstest(u[:, axis].numpy(), exact_cdf).pvalue > 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_posterior_like_any_other(kind: str, tmp_path: Path) -> None:
    raw = random_posterior(kind)
    p = raw.tempered(0.7)
    theta, x = BOX.sample((5, 7)), torch.randn(5, 7, 4)
    whole = p.log_prob(theta, x)
    assert whole.shape == p.log_ratio(theta, x).shape == (5, 7)
    torch.testing.assert_close(p.log_prob(theta[2, 3], x[2, 3]), whole[2, 3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(p.log_prob(theta, x[:, :1])[3, 4], p.log_prob(theta[3, 4], x[3, 0]))
    assert p.log_prob(torch.tensor([5.0, 5.0]), x[0, 0]) == -math.inf
    assert p.log_prob(theta[:0], x[0, 0]).shape == (0, 7)
    assert p.sample((2, 3), x=x[0, 0]).shape == (2, 3, 2)
    draws = p.sample_batched((6,), x[0], seed=1)
    assert draws.shape == (6, 7, 2) and BOX.contains(draws).all()
    assert torch.equal(draws, p.sample_batched((6,), x[0], seed=1))
    assert p.sample_batched((0,), x[0]).shape == (0, 7, 2)
    # The members are the networks, untempered; what is selected keeps the temperature.
    for one, other in zip(p.members, raw.members, strict=True):
        assert one.temperature == 1
        assert torch.equal(one.log_prob(theta[0], x[0]), other.log_prob(theta[0], x[0]))
    assert p.select([0, 2]).temperature == p.to("cpu").temperature == 0.7
    assert "0.7" in repr(p) and "0.7" not in repr(raw)
    p.calibration = calibration(0.7)
    p.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    assert again.temperature == 0.7 and again.calibration == p.calibration
    assert "in words" in repr(again) and again.to("cpu").calibration is not None
    assert torch.equal(again.log_prob(theta, x), whole)


def test_temperatures_multiply_and_are_checked() -> None:
    p = random_posterior("prior")
    assert p.temperature == 1 and p.calibration is None
    assert p.tempered(0.5).tempered(0.5).temperature == 0.25
    assert p.tempered(1.0) is p
    for t in (0, -0.1, 1.1, math.nan, "0.5", None, True):
        with pytest.raises(ValueError, match="temperature t"):
            p.tempered(t)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="temperature"):
        Posterior.joined([p, p.tempered(0.5)])
    assert Posterior.joined([p.tempered(0.5)] * 2).temperature == 0.5


def test_an_untempered_posterior_is_stored_as_ever(tmp_path: Path) -> None:
    import json

    random_posterior("prior").save(tmp_path / "model")
    stored = json.loads((tmp_path / "model" / "model.json").read_text())
    assert stored["format"] == 2 and "temperature" not in stored
    # A reader that knows no temperatures must refuse a tempered posterior.
    random_posterior("prior").tempered(0.5).save(tmp_path / "model", overwrite=True)
    assert json.loads((tmp_path / "model" / "model.json").read_text())["format"] == 3


def test_arviz_has_one_chain() -> None:
    pytest.importorskip("arviz")
    p = random_posterior("prior").tempered(0.5)
    data = p.to_arviz(torch.zeros(4), 50, seed=0)
    theta = torch.as_tensor(np.asarray(data["posterior"]["theta"]))
    assert theta.shape == (1, 50, 2)
    torch.testing.assert_close(
        torch.as_tensor(np.asarray(data["sample_stats"]["lp"]))[0], p.log_prob(theta[0], torch.zeros(4))
    )


@pytest.mark.parametrize("kind", ["random", "prior"])
@pytest.mark.parametrize("members", [1, 3])
def test_draws_come_with_the_density_at_them(kind: str, members: int) -> None:
    posterior = random_posterior(kind, members)
    if members > 1:
        posterior = posterior.weighted([0.5, 0.3, 0.2])
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    q, known = posterior.untempered(), posterior.observed(x)
    theta, ratio = q.rated(40, known, torch.Generator().manual_seed(1))
    wanted = posterior.log_prob(theta, x) - BOX.log_prob(theta)
    torch.testing.assert_close(ratio, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(theta, q.draw(40, known, torch.Generator().manual_seed(1)))
