"""ArviZ takes a posterior as it is given."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import xarray as xr
from test_post_posterior import BOX, random_posterior

arviz_speaks = pytest.mark.filterwarnings("ignore:\\s*ArviZ is undergoing:FutureWarning")


@arviz_speaks
@pytest.mark.parametrize("kind", ["classifier", "prior"])
def test_arviz_summarises_the_draws(kind: str) -> None:
    import arviz as az

    p, x = random_posterior(kind), torch.randn(4)
    data = p.to_arviz(x, 2000, names=["mass", "charge"], seed=3)
    assert data["posterior"]["mass"].shape == (3, 2000)  # a chain a member
    one = p.members[1].sample((20_000,), x=x, seed=0)
    # The mean of 2,000 independent draws is within 4 of its standard errors.
    for d, name in enumerate(("mass", "charge")):
        chain = data["posterior"][name].values[1]
        assert abs(chain.mean() - float(one[:, d].mean())) < 4 * chain.std() * (1 / 2000 + 1 / 20_000) ** 0.5
    table = az.summary(data, kind="stats", round_to="none")
    assert table.loc["mass", "mean"] == pytest.approx(float(data["posterior"]["mass"].mean()))
    lp = p.log_prob(torch.from_numpy(data["posterior"].to_dataarray().values).movedim(0, -1), x)
    np.testing.assert_allclose(data["sample_stats"]["lp"].values, lp.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(data["observed_data"]["x"].values, x.numpy())
    prior = torch.from_numpy(data["prior"].to_dataarray().values).movedim(0, -1)
    assert prior.shape == (1, 2000, 2) and bool(BOX.contains(prior).all())
    # Random members disagree, copies of one member do not.
    assert float(az.rhat(data)["mass"]) > 1.02
    same = p.select([1, 1, 1]).to_arviz(x, 2000, names=["mass", "charge"], seed=3)
    assert float(az.rhat(same)["mass"]) == pytest.approx(1, abs=0.01)
    assert az.ess(same)["mass"] > 4000  # the chains are independent draws


@arviz_speaks
def test_draws_repeat_and_leave_the_global_generator_alone() -> None:
    p, x = random_posterior("prior"), torch.randn(4)
    before = torch.get_rng_state()
    first, second = (p.to_arviz(x, 10, seed=1) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first["posterior"]["theta"].dims == ("chain", "draw", "parameter")
    for group in ("posterior", "prior"):
        xr.testing.assert_equal(first[group], second[group])
    assert not first["posterior"].equals(p.to_arviz(x, 10)["posterior"])


@arviz_speaks
def test_bad_calls_are_refused() -> None:
    p = random_posterior("prior")
    for names in (["a"], ["a", "a"], "ab"):
        with pytest.raises(ValueError, match="one name for each of the 2 parameter"):
            p.to_arviz(torch.zeros(4), names=names)
    with pytest.raises(ValueError, match="one observation of shape"):
        p.to_arviz(torch.zeros(2, 4))


def test_without_arviz_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install arviz"):
        random_posterior("prior").to_arviz(torch.zeros(4))


@arviz_speaks
def test_newer_arviz_gets_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1.0 on ArviZ has no data structure of its own."""
    import arviz as az

    monkeypatch.delattr(az, "InferenceData")
    tree = random_posterior("prior").to_arviz(torch.zeros(4), 5)
    assert isinstance(tree, xr.DataTree) and tree["posterior/theta"].shape == (3, 5, 2)
