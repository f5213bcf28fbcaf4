"""The same answers as lampe, tarp and sbi on the same inputs, and a judgement of their own posteriors."""

from __future__ import annotations

import sys
import types
import warnings

import lampe
import numpy as np
import pytest
import torch
import zuko
from diagnostics_fakes import SIGMA, TAU, GaussianPosterior, coverage, exact_log_prob, pairs
from lampe.diagnostics import expected_coverage_mc, expected_coverage_ni
from scipy import stats
from torch import Tensor

from equipoise.diagnostics import diagnose
from equipoise.diagnostics.ranks import weighted_rank
from equipoise.priors import BoxUniform, GaussianPrior

LEVELS = np.linspace(0, 1, 101)
SCALE = 0.7


def gaussian(x: Tensor) -> torch.distributions.Distribution:
    """A posterior that is too narrow, as a distribution, as lampe wants it."""
    return torch.distributions.Independent(torch.distributions.Normal(x / (1 + SIGMA**2), SCALE * TAU), 1)


def test_coverage_agrees_with_lampes_monte_carlo():
    theta, x = pairs(800, 2, seed=0)
    torch.manual_seed(0)
    level, _ = expected_coverage_mc(gaussian, list(zip(theta, x, strict=True)), n=1000)
    theirs = np.searchsorted(level.numpy(), LEVELS, side="right") / len(level)
    ours = diagnose(GaussianPosterior([SCALE], 2), theta, x, samples=1000).coverage.sel(member="0").values
    # The pairs are the same; what differs is the noise of 1000 samples in each rank, and lampe's two added ends
    # (2/802).
    assert abs(ours - theirs).max() < 0.02
    assert abs(theirs - LEVELS).max() > 0.1


@pytest.mark.filterwarnings("ignore:theta was not drawn")  # a box that holds them is enough for ranks
def test_coverage_agrees_with_lampes_numerical_integration():
    theta, x = pairs(300, 2, seed=1)
    theta, x = theta.clamp(-2.9, 2.9), x
    box = BoxUniform([-3.0, -3.0], [3.0, 3.0])
    domain = (box.low, box.high)
    level, _ = expected_coverage_ni(
        lambda t, o: gaussian(o).log_prob(t), list(zip(theta, x, strict=True)), domain, bins=200
    )
    ds = diagnose(GaussianPosterior([SCALE], 2, "classifier", prior=box), theta, x, samples=1000)
    theirs = np.sort(level.numpy()[1:-1])
    assert np.sqrt(np.mean((np.sort(ds["rank"].sel(member="0").values) - theirs) ** 2)) < 0.01


def test_tarp_agrees_with_the_tarp_package():
    # tarp 0.1.1 imports `deprecation`, to mark one function, without asking for it to be installed.
    sys.modules.setdefault("deprecation", types.SimpleNamespace(deprecated=lambda **_: lambda f: f))  # type: ignore[arg-type]
    import tarp

    theta, x = pairs(600, 2, seed=2)
    g = torch.Generator().manual_seed(0)
    samples = x / (1 + SIGMA**2) + SCALE * TAU * torch.randn(500, 600, 2, generator=g)
    reference = torch.randn(600, 2, generator=g)
    ecp, alpha = tarp.get_tarp_coverage(
        samples.numpy().copy(), theta.numpy().copy(), references=reference.numpy(), norm=False, num_alpha_bins=50
    )
    distance, own = (samples - reference).square().sum(-1), (theta - reference).square().sum(-1)
    rank = weighted_rank(-distance, -own, uniform=torch.rand(600, generator=g)).numpy()
    ours = np.array([(rank <= a).mean() for a in alpha])
    # The package bins f over its own range, so its curve is read at bin edges; ranks differ by at most 1/501.
    assert abs(ours[1:] - ecp[1:]).max() < 0.03


def test_sbc_ranks_agree_with_sbis():
    from sbi.diagnostics.sbc import _run_sbc

    theta, x = pairs(200, 3, seed=3)
    g = torch.Generator().manual_seed(0)
    samples = x / (1 + SIGMA**2) + TAU * torch.randn(99, 200, 3, generator=g)
    theirs = _run_sbc(theta, x, samples, "marginals", show_progress_bar=False)
    for j in range(3):
        v = torch.rand(200, generator=g)
        ours = weighted_rank(-samples[..., j], -theta[:, j], uniform=v)
        # r = (R + V) / (L + 1), R sbi's count.
        torch.testing.assert_close(ours, (theirs[:, j] + v) / 100)


def trained_sbi():
    """A posterior of sbi, trained for an instant: what matters is that it is sbi's."""
    from sbi.inference import NPE

    torch.manual_seed(0)
    theta, x = pairs(600, 2, seed=4)
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inference = NPE(prior, show_progress_bars=False)
        inference.append_simulations(theta, x).train(max_num_epochs=15)
        return inference.build_posterior(), prior


def test_sbis_posterior_is_judged_in_batches():
    posterior, prior = trained_sbi()
    theta, x = pairs(200, 2, seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ds = diagnose(posterior, theta, x, prior=prior, exact_log_prob=exact_log_prob, samples=200)
        again = diagnose(posterior, theta, x, samples=200)  # sbi's posterior knows its prior
    assert [str(m) for m in ds.member.values] == ["0", "mixture"]
    np.testing.assert_array_equal(ds["rank"], again["rank"])  # sbi draws from the global generator; diagnose seeds it
    # The log density at the truth is sbi's own; the prior has no edge, so nothing leaks.
    theirs = posterior.log_prob_batched(theta[None], x, norm_posterior=False)[0]
    np.testing.assert_allclose(ds["log_prob"][0], theirs.numpy(), atol=1e-5)
    assert float(ds.leakage[0]) == 0 and 0 < float(ds.information_kept[0]) < 1.05
    # Ranks by hand, one pair at a time, with sbi's own samples.
    torch.manual_seed(1)
    hand = []
    for t, o in zip(theta[:60], x[:60], strict=True):
        draws = posterior.sample((400,), x=o, show_progress_bars=False)
        density, own = (posterior.log_prob(v, x=o, norm_posterior=False) for v in (draws, t))
        hand.append((density > own).float().mean())
    assert np.sqrt(np.mean((ds["rank"][0, :60].values - np.array(hand)) ** 2)) < 0.06


def test_flows_of_zuko_and_lampe_are_judged():
    torch.manual_seed(0)
    theta, x = pairs(150, 2, seed=6)
    prior = GaussianPrior(torch.zeros(2), torch.eye(2))
    flow = zuko.flows.MAF(2, 2, transforms=1, hidden_features=(8,))
    estimator = lampe.inference.NPE(2, 2, build=zuko.flows.MAF, transforms=1, hidden_features=(8,))
    estimator.flow.load_state_dict(flow.state_dict())
    ds, other = (diagnose(p, theta, x, prior=prior, samples=100) for p in (flow, estimator))
    np.testing.assert_array_equal(ds["rank"], other["rank"])
    with torch.no_grad():
        np.testing.assert_allclose(ds["log_prob"][0], flow(x).log_prob(theta).numpy(), atol=1e-5)
    assert np.isfinite(ds.balance_signed).all()


class Minimal:
    """The least that can be judged: one observation at a time, no batches, no prior."""

    def sample(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return gaussian(x).sample(shape)

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        return gaussian(x).log_prob(theta)


def test_anything_with_sample_and_log_prob_is_judged():
    theta, x = pairs(500, 2, seed=7)
    ds = diagnose(Minimal(), theta, x, samples=300)
    one = ds.sel(member="0")
    assert one.verdict.item() == "overconfident"
    assert abs(one.coverage.values - coverage(SCALE, 2, LEVELS)).max() < 0.08
    assert np.isnan(one.balance_signed) and np.isnan(one.information_kept) and np.isnan(one.leakage)
    assert "no prior was given" in ds.attrs["notes"]
    assert stats.kstest(ds["rank"].sel(member="0").values, "uniform").pvalue < 1e-6
    same = diagnose(
        Minimal(), theta, x, samples=300, prior=torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    )
    assert np.isfinite(same.balance_signed).all() and same.attrs["notes"] == ""


def test_an_object_that_answers_with_the_wrong_shape_is_refused():
    class Wrong(Minimal):
        def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
            return super().log_prob(theta, x).unsqueeze(-1)

    theta, x = pairs(60, 2, seed=8)
    with pytest.raises(ValueError, match="log_prob should have shape"):
        diagnose(Wrong(), theta, x, samples=10)


def test_a_log_ratio_is_judged_as_a_classifier():
    theta, x = pairs(150, 2, seed=9)
    prior = GaussianPrior(torch.zeros(2), torch.eye(2))
    ratio = lambda t, o: gaussian(o).log_prob(t) - prior.log_prob(t) + 3.0 * o[:, 0]  # noqa: E731
    shapes = []

    def function(theta: Tensor, x: Tensor) -> Tensor:
        shapes.append((theta.ndim, x.shape[1:], len(theta) == len(x)))
        return ratio(theta, x)

    ds = diagnose(function, theta, x, prior=prior)
    assert set(shapes) == {(2, (2,), True)}
    # Normalised over the prior, whatever constant of x it has.
    np.testing.assert_allclose(ds["log_prob"][0], gaussian(x).log_prob(theta).numpy(), atol=0.02)
    same = diagnose(GaussianPosterior([SCALE], 2, "classifier"), theta, x)
    assert np.sqrt(np.mean((ds["rank"][0].values - same["rank"][0].values) ** 2)) < 0.01
    assert "interpolated" in ds.attrs["ranks"]


def test_lampes_ratio_estimator_is_judged_and_what_needs_more_is_refused():
    torch.manual_seed(0)
    theta, x = pairs(80, 2, seed=10)
    prior = GaussianPrior(torch.zeros(2), torch.eye(2))
    estimator = lampe.inference.NRE(2, 2, hidden_features=(16,))
    ds = diagnose(estimator, theta, x, prior=prior, samples=100)
    other = diagnose(lambda t, o: estimator(t, o), theta, x, prior=prior, samples=100)
    np.testing.assert_array_equal(ds["rank"], other["rank"])
    with torch.no_grad():
        raw = estimator(theta, x) + prior.log_prob(theta)
    np.testing.assert_allclose(ds.nominal_log_prob_raw[0], raw.mean(), atol=1e-5)
    with pytest.raises(ValueError, match=r"says nothing without the prior.*prior=prior"):
        diagnose(estimator, theta, x, samples=100)
    with pytest.raises(TypeError, match=r"cannot diagnose a AMNRE.*from \(theta, x\) to the log-ratio"):
        diagnose(lampe.inference.AMNRE(2, 2), theta, x, prior=prior, samples=100)


# --- what is not finite ----------------------------------------------------------------------------------------------


class Broken:
    """A Gaussian posterior of which some draws, or some densities, are not finite."""

    def __init__(self, part: str, value: float, share: float) -> None:
        self.part, self.value, self.share = part, value, share

    def _broken(self, values: Tensor) -> Tensor:
        values = values.clone()
        values[: int(np.ceil(self.share * len(values)))] = self.value
        return values

    def sample(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        draws = x / 2 + 0.5**0.5 * torch.randn(*shape, len(x))
        return self._broken(draws) if self.part == "sample" else draws

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        density = torch.distributions.Normal(x / 2, 0.5**0.5).log_prob(theta.nan_to_num(0.0, 0.0, 0.0)).sum(-1)
        return self._broken(density) if self.part == "log_prob" else density


@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("part", ["sample", "log_prob"])
def test_draws_and_densities_that_are_not_finite_are_refused_by_name(part: str, value: float, share: float):
    """Ranks among NaN draws came out as certified conservative."""
    prior = GaussianPrior(torch.zeros(2), torch.eye(2))
    theta = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    for kind in ("sampled", "distribution", "ratio"):
        broken = Broken(part, value, share)
        if kind == "ratio" and (part == "sample" or value < 0):
            continue  # it has no draws, and may rule θ out
        posterior = {
            "sampled": broken,
            "distribution": lambda x, broken=broken: types.SimpleNamespace(
                sample=lambda shape: torch.stack([broken.sample(shape, o) for o in x], 1),
                log_prob=lambda t: torch.stack([broken.log_prob(t[..., b, :], o) for b, o in enumerate(x)], -1),
            ),
            "ratio": lambda t, x, broken=broken: broken.log_prob(t, x),
        }[kind]
        name = "log-ratio" if kind == "ratio" else part
        with pytest.raises(ValueError, match=rf"{name}.* returned \d+ of \d+ values that are not finite"):
            diagnose(posterior, theta, theta + torch.randn(60, 2), prior=prior, samples=40)
