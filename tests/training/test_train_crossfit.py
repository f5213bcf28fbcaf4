"""Folds, trainings with folds, and the weights of groups of members."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from training_tools import pairs, quick, same_weights, train

import equipoise as eq
from equipoise.methods import resolve
from equipoise.support.errors import CheckpointMismatch
from equipoise.training import Member
from equipoise.training.batches import Batches
from equipoise.training.crossfit import fold_rows, log_score_weights, out_of_fold


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
    with pytest.raises((ValueError, TypeError), match="folds"):
        fold_rows(n, folds, least=2)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_member_trains_on_all_but_its_fold_and_is_validated_by_that(
    on_disk: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """x[:, 0] holds the number of the row: what each member is given is seen in its batches."""
    theta, x = pairs(203)
    x[:, 0] = torch.arange(203) / 256
    np.save(tmp_path / "x.npy", x.numpy())
    trained: list[set[int]] = [set() for _ in range(4)]
    judged: list[set[int]] = [set() for _ in range(4)]
    take, validate = Batches.take, Batches.validation_batch

    def numbers(found: Tensor, seen: list[set[int]]) -> None:
        assert len(found) == 4  # members of different folds share no validation pairs
        for mine, rows in zip(seen, (256 * found[..., 0]).int().tolist(), strict=True):
            mine.update(rows)

    def taken(self: Batches, size: int) -> tuple[Tensor, Tensor]:
        code, found = take(self, size)
        numbers(found, trained)
        torch.testing.assert_close(code, self.data.code_batch(self.state.code_set, (256 * found[..., 0]).long()))
        return code, found

    def validated(self: Batches, low: int, size: int, rolled: Tensor) -> tuple[Tensor, Tensor]:
        code, found = validate(self, low, size, rolled)
        numbers(found, judged)
        torch.testing.assert_close(code[:, 0], self.data.code_batch(self.state.code_set, (256 * found[..., 0]).long()))
        return code, found

    monkeypatch.setattr(Batches, "take", taken)
    monkeypatch.setattr(Batches, "validation_batch", validated)
    given = np.load(tmp_path / "x.npy", mmap_mode="r") if on_disk else x
    p = quick(theta, given, "nre", members=4, folds=3, standardize=False, batch_size=27, epochs=3, early_stop=False)
    rows, blind = out_of_fold(p, 203)
    assert blind == [[0, 3], [1], [2]] and p.record["fold"] == [0, 1, 2, 0] and rows.shape == (3, 67)
    assert len(rows.unique()) == rows.numel()
    for m in range(4):
        mine = set(rows[m % 3].tolist())
        assert judged[m] == mine and not trained[m] & mine and len(trained[m]) > 130  # 5 batches of 27 of 136
    monkeypatch.undo()
    with pytest.raises(ValueError, match="203"):
        out_of_fold(p, 200)
    with pytest.raises(ValueError, match="folds"):
        out_of_fold(quick(theta, x, "nre"), 203)


@pytest.mark.usefixtures("double")
def test_a_member_with_a_fold_is_the_same_alone_and_in_a_stack() -> None:
    members = [Member(resolve("bnre"), seed, data=seed % 2, fold=seed % 5) for seed in range(7)]
    data = [pairs(seed=0), pairs(seed=1)]
    together = train(members, data, folds=5, split_seed=3)
    for m in (2, 6):
        (alone,) = train([members[m]], data, folds=5, split_seed=3)
        for weight, value in alone.stack.items():
            torch.testing.assert_close(together[m].stack[weight], value, rtol=0, atol=1e-8)
        np.testing.assert_allclose(together[m].history.validation_loss, alone.history.validation_loss, atol=1e-8)


def test_x_is_standardised_by_all_pairs_and_members_keep_their_folds(tmp_path: Path) -> None:
    theta, x = pairs()
    p = quick(theta, x, members=5, folds=5)
    torch.testing.assert_close(p.stack["x_loc"], x.mean(0).expand(5, -1))
    p.save(tmp_path)
    for q in (eq.load(tmp_path), eq.Posterior.joined(p.members)):
        assert q.record["fold"] == list(range(5)) and torch.equal(out_of_fold(q, 160)[0], out_of_fold(p, 160)[0])
    assert out_of_fold(p.members[3], 160)[1] == [[], [], [], [0], []]


def test_a_checkpoint_knows_its_folds(tmp_path: Path) -> None:
    theta, x = pairs()
    p = quick(theta, x, members=3, folds=3, checkpoint=tmp_path)
    assert same_weights(p, quick(theta, x, members=3, folds=3, checkpoint=tmp_path))
    for folds in (2, None):
        with pytest.raises(CheckpointMismatch):
            quick(theta, x, members=3, folds=folds, checkpoint=tmp_path)


def test_folds_that_do_not_go_with_the_rest() -> None:
    theta, x = pairs()
    for options in ({"folds": 5, "members": 4}, {"folds": 2, "members": 2, "validation_fraction": 0.1}):
        with pytest.raises(ValueError, match="folds"):
            quick(theta, x, **options)
    for folds, fold in ((None, 0), (3, None), (3, 3)):
        with pytest.raises(ValueError, match="fold"):
            train([Member(resolve("nre"), fold=fold)], [(theta, x)], folds=folds)


def test_the_log_score_out_of_fold_is_below_that_of_the_training_pairs() -> None:
    """A Gaussian with few simulations, fitted for long: each member flatters itself on the pairs that trained it."""
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(200, 1, generator=g)
    x = theta + 0.5 * torch.randn(200, 4, generator=g)
    prior = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 1)
    options: dict = {"prior": prior, "epochs": 60, "keep": "last", "early_stop": False}
    p = quick(theta, x, "npe", (32, 32), members=4, folds=4, **options)
    rows, blind = out_of_fold(p, 200)
    scores = torch.stack([member.log_prob(theta, x) for member in p.members])
    judged = torch.stack([scores[blind[f][0], rows[f]] for f in range(4)])
    own = torch.ones(4, 200, dtype=torch.bool).scatter(1, rows, False)
    assert float(judged.mean()) < float(scores[own].mean()) - 0.1


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
