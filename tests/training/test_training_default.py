"""The default of `eq.fit`: two kinds of members, cross-fitted, weighted by score, tempered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributions as td

import equipoise as eq
from equipoise.methods import MIXTURES
from equipoise.training.crossfit import out_of_fold, weighted_by_score
from equipoise.training.inputs import Pairs

PRIOR = eq.GaussianPrior(torch.zeros(2), torch.eye(2))


def gaussian_pairs(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x = θ + N(0, 0.3²): the posterior is Gaussian and known."""
    g = torch.Generator().manual_seed(seed)
    theta = torch.randn(n, 2, generator=g)
    return theta, theta + 0.3 * torch.randn(n, 2, generator=g)


def exact(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    variance = 0.09 / 1.09
    return td.Normal(x / 1.09, variance**0.5).log_prob(theta).sum(-1)


@pytest.fixture(scope="module")
def fitted() -> eq.Posterior:
    theta, x = gaussian_pairs(600, 0)
    return eq.fit(theta, x, prior=PRIOR, epochs=30, progress=False, device="cpu")


def test_the_default_is_calibrated_near_the_exact_posterior_and_says_so(fitted: eq.Posterior) -> None:
    assert fitted.n_members == 10 and fitted.calibration is not None and fitted.calibration.rule == "observed"
    assert 0 < fitted.temperature <= 1 and str(fitted.calibration) in repr(fitted) and "calibrated" in repr(fitted)
    theta, x = gaussian_pairs(200, 1)
    lost = float((exact(theta, x) - fitted.log_prob(theta, x)).mean())
    assert 0 < lost < 0.25  # the prior is 1.6 nats away
    ranks = eq.diagnose(fitted, theta, x, progress=False).coverage_auc.sel(member="mixture")
    assert float(ranks) > -0.06  # three standard errors


def test_members_take_folds_and_kinds_in_turn(fitted: eq.Posterior) -> None:
    rows, blind = out_of_fold(fitted, 600)
    assert rows.shape == (5, 120) and all(len(some) == 2 for some in blind)
    groups = fitted.record["group"]
    assert all({groups[m] for m in some} == {0, 1} for some in blind)
    assert [m["name"] for m in fitted.record["methods"]] == [m.name for m in MIXTURES["calibrated"]]
    share = fitted.log_weights
    assert share is not None and float(share.exp().sum()) == pytest.approx(1, abs=1e-6)


def test_it_is_saved_whole(fitted: eq.Posterior, tmp_path: Path) -> None:
    theta, x = gaussian_pairs(20, 2)
    fitted.save(tmp_path)
    again = eq.load(tmp_path)
    assert again.calibration == fitted.calibration and again.temperature == fitted.temperature
    torch.testing.assert_close(again.log_prob(theta, x), fitted.log_prob(theta, x))
    assert torch.equal(again.sample((5,), x=x[0], seed=1), fitted.sample((5,), x=x[0], seed=1))


def test_the_history_says_what_was_chosen(fitted: eq.Posterior, tmp_path: Path) -> None:
    """The architecture of each member and how x is read, also of some members and of a posterior from files."""
    fitted.save(tmp_path)
    for posterior in (fitted, eq.load(tmp_path), fitted.select([0, 7])):
        history = posterior.history
        words = history["network"].values.tolist()
        assert len(words) == history.sizes["member"] == posterior.n_members
        for said, group in zip(words, posterior.record["group"], strict=True):
            method = MIXTURES["calibrated"][group]
            hidden, start = list(method.hidden), method.start
            assert all(part in said for part in (f"start={start}", f"hidden={hidden}", f"bins={method.bins}"))
        assert set(history["embedding"].values) == {"kind=flat, x_shape=[2]"}
    theta, x = gaussian_pairs(200, 3)
    small = eq.METHODS["nre"].but(hidden=(8,))
    heavy = eq.fit(theta, (3 * x).exp(), prior=PRIOR, method=small, members=1, epochs=1, progress=False, device="cpu")
    assert heavy.history["network"].values.tolist() == ["kind=classifier, hidden=[8]"]
    assert heavy.history["embedding"].item().endswith("ranked=[0, 1]")


def test_weights_follow_the_score(fitted: eq.Posterior) -> None:
    """A group that is far worse at its out-of-fold pairs is left out."""
    worse = fitted._with(1.0, None)
    stack = {n: w.clone() for n, w in worse.stack.items()}
    stack["1.x_loc"] += 5.0  # the second kind sees observations that are shifted far away
    broken = eq.Posterior(worse.network, stack, worse.history, worse.record)
    kept = weighted_by_score(broken, broken.record["group"], Pairs(*gaussian_pairs(600, 0)))
    assert kept.n_members == 5 and set(kept.record["group"]) == {0}


def test_what_the_call_may_change() -> None:
    theta, x = gaussian_pairs(150, 0)
    options: dict = {"prior": PRIOR, "epochs": 2, "progress": False, "device": "cpu"}
    plain = eq.fit(theta, x, calibrate=False, **options)
    assert plain.calibration is None and plain.temperature == 1 and plain.n_members == 10
    look = eq.fit(theta, x, members=1, **options)  # a quick look: one network, one split
    assert look.calibration is None and "folds" not in look.record
    with pytest.warns(UserWarning, match="out-of-fold pairs are too few"):
        few = eq.fit(theta, x, members=5, **options)
    assert few.n_members == 5 and few.calibration is not None and not few.calibration.certified
    both = eq.fit(
        theta, x, method=["npe", eq.METHODS["npe"].but(univariate="affine", hidden=(8,))], members=2, **options
    )
    assert both.network.spec()["kind"] == "mixture" and both.n_members == 2


def test_a_prior_without_a_map_to_the_normal_is_fitted_too() -> None:
    class Opaque:
        def sample(self, shape: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(*shape, 2)

        def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
            return td.Normal(0.0, 1.0).log_prob(theta).sum(-1)

    theta, x = gaussian_pairs(200, 0)
    p = eq.fit(theta, x, prior=Opaque(), epochs=2, calibrate=False, progress=False, device="cpu")
    assert p.log_prob(theta[:3], x[:3]).isfinite().all()
