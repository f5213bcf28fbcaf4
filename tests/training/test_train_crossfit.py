"""Folds, and the weights of groups of members."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from equipoise.training.crossfit import fold_rows, log_score_weights


@given(n=st.integers(10, 400), folds=st.integers(2, 5), seed=st.integers(0, 5))
@settings(deadline=None)
def test_every_row_judges_once_and_trains_all_members_of_other_folds(n: int, folds: int, seed: int) -> None:
    train, judge = fold_rows(n, folds, seed=seed)
    assert len(judge.unique()) == judge.numel() == n // folds * folds
    for mine, others in zip(judge, train, strict=True):
        assert sorted([*mine.tolist(), *others.tolist()]) == list(range(n))
    assert torch.equal(fold_rows(n, folds, seed=seed)[1], judge)


def test_folds_do_not_follow_the_order_of_the_rows() -> None:
    _, judge = fold_rows(1000, 5)
    # The mean of 200 of 0 … 999 has a standard deviation of 18.
    assert ((judge.double().mean(1) - 499.5).abs() < 90).all()
    assert not torch.equal(judge, fold_rows(1000, 5, seed=1)[1])


@pytest.mark.parametrize(("n", "folds"), [(100, 1), (100, True), (100, 2.5), (7, 5)])
def test_folds_that_cannot_be(n, folds) -> None:
    with pytest.raises(ValueError, match="folds"):
        fold_rows(n, folds, least=2)


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_the_weights_are_scipys(groups: int) -> None:
    g = torch.Generator().manual_seed(groups)
    log_prob = 2 * torch.randn(groups, 300, generator=g, dtype=torch.float64)
    density = log_prob.exp().numpy()
    found = minimize(
        lambda w: -float(torch.from_numpy(w @ density).log().mean()),
        x0=[1 / groups] * groups,
        bounds=[(0, 1)] * groups,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14},
    )
    weights = log_score_weights(log_prob)
    torch.testing.assert_close(weights, torch.from_numpy(found.x), atol=2e-4, rtol=0)
    assert float(weights.sum()) == pytest.approx(1)


def test_a_true_mixture_is_found_again() -> None:
    """Pairs of 0.3 N(-2, 1) + 0.7 N(2, 1): the weights of the two, with a standard error of about 0.01."""
    g = torch.Generator().manual_seed(0)
    centre = torch.where(torch.rand(4000, generator=g) < 0.3, -2.0, 2.0)
    theta = centre + torch.randn(4000, generator=g)
    log_prob = torch.stack([torch.distributions.Normal(c, 1.0).log_prob(theta) for c in (-2.0, 2.0)])
    assert float(log_score_weights(log_prob)[0]) == pytest.approx(0.3, abs=0.04)


def test_what_says_nothing_leaves_weights_equal() -> None:
    assert log_score_weights(torch.zeros(4, 10)).tolist() == pytest.approx([0.25] * 4)
    assert log_score_weights(torch.full((2, 10), -torch.inf)).tolist() == [0.5, 0.5]
