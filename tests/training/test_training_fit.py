"""`fit` and `fit_many` from outside: every method on every task, arguments, known posteriors."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from training_tools import quick, toy, train

import equipoise as eq
from equipoise.methods import METHODS
from equipoise.training import PAPER, Member

SIZES = {"lotka_volterra": {"steps": 101}}


@pytest.mark.parametrize("method", list(eq.METHODS))
@pytest.mark.parametrize("name", list(eq.TASKS))
def test_every_method_trains_on_every_task(name: str, method: str) -> None:
    task = eq.task(name, **SIZES.get(name, {}))
    pairs = eq.simulate(task.prior, task.simulate, 100, seed=0)
    p = quick(pairs.theta, pairs.x, method, (8, 8), prior=task.prior, members=2, epochs=1, batch_size=16)
    theta, x = pairs.theta[:3], pairs.x[:3]
    log_prob = p.log_prob(theta, x)
    assert log_prob.shape == (3,) and log_prob.isfinite().all()
    draws = p.sample_batched((4,), x, seed=0)
    assert draws.shape == (4, 3, task.prior.dim) and task.prior.contains(draws).all()
    assert p.history.validation_loss.shape == (1, 2) and np.isfinite(p.history.validation_loss).all()


def test_arrays_and_whole_numbers_are_accepted() -> None:
    theta, x = toy()
    a = quick(theta.double().numpy(), x.double().numpy(), seed=3)
    b = quick(theta, x, seed=3)
    for name, weight in b.stack.items():
        torch.testing.assert_close(a.stack[name], weight)
    counts = (10 * x).round().to(torch.int32)
    c = quick(theta, counts, seed=3)
    d = quick(theta, counts.float(), seed=3)
    torch.testing.assert_close(c.log_prob(theta[:5], counts[:5]), d.log_prob(theta[:5], counts[:5].float()))


def test_the_same_seed_gives_the_same_posterior_and_another_another() -> None:
    theta, x = toy()
    a, b, c = (quick(theta, x, members=2, seed=s) for s in (1, 1, 2))
    assert torch.equal(a.log_prob(theta, x), b.log_prob(theta, x))
    assert not torch.equal(a.log_prob(theta, x), c.log_prob(theta, x))
    one, two = a.members
    assert not torch.equal(one.log_prob(theta, x), two.log_prob(theta, x))


def test_training_leaves_the_global_generator_alone() -> None:
    theta, x = toy()
    torch.manual_seed(11)
    want = torch.rand(3)
    torch.manual_seed(11)
    quick(theta, x)
    assert torch.equal(torch.rand(3), want)


@pytest.mark.filterwarnings("ignore:.*learnt next to nothing")  # which is so, and not what this is about
def test_a_tracker_hears_what_the_history_keeps() -> None:
    theta, x = toy(200)
    heard: list[tuple[int, dict[str, np.ndarray]]] = []
    fixed: dict = {"members": 3, "epochs": 30, "learning_rate": 0.02, "patience": 1, "method": "bnre"}
    p = quick(theta, x, **fixed, on_epoch=lambda epoch, values: heard.append((epoch, values)))
    assert [epoch for epoch, _ in heard] == list(range(p.history.sizes["epoch"])) and len(heard) < 30
    for name in ("train_loss", "validation_loss", "balance", "validation_balance", "learning_rate"):
        np.testing.assert_array_equal(np.stack([v[name] for _, v in heard]), p.history[name].values.astype(float))
    assert any(np.isnan(v["train_loss"]).any() for _, v in heard)  # a member that stopped before the others


def test_a_tracker_of_many_members_hears_each_under_its_place() -> None:
    theta, x = toy(200)
    rows = [Member(METHODS["nre"], 0), Member(METHODS["npe"], 0), Member(METHODS["nre"], 0, keep="last")]
    heard: dict[int, list[np.ndarray]] = {}
    found = train(
        rows,
        [(theta, x)],
        settings=dataclasses.replace(PAPER, epochs=2, batch_size=32),
        on_epoch=lambda epoch, values: heard.setdefault(epoch, []).append(values["train_loss"]),
    )
    for epoch, stacks in heard.items():
        assert len(stacks) == 2  # flows and classifiers
        whole = np.nanmax(np.stack(stacks), 0)
        np.testing.assert_array_equal(whole, [p.history["train_loss"].values[epoch, 0] for p in found])


def test_a_prior_without_cdfs_works_with_a_random_start() -> None:
    class Triangle:
        """Uniform on the triangle θ_1 + θ_2 ≤ 1 of the unit square."""

        def sample(self, shape: tuple[int, ...]) -> Tensor:
            u = torch.rand(*shape, 2)
            flip = u.sum(-1, keepdim=True) > 1
            return torch.where(flip, 1 - u, u)

        def log_prob(self, theta: Tensor) -> Tensor:
            inside = (theta >= 0).all(-1) & (theta.sum(-1) <= 1)
            return torch.where(inside, math.log(2.0), -math.inf)

    torch.manual_seed(0)
    prior = Triangle()
    theta = prior.sample((200,))
    x = theta + 0.1 * torch.randn(200, 2)
    for method in ("npe", "nre"):
        p = quick(theta, x, prior=prior, method=method, epochs=3)
        draws = p.sample((50,), x=x[0], seed=0)
        assert prior.log_prob(draws).isfinite().all()
    with pytest.raises(ValueError, match="cumulative distribution functions"):
        quick(theta, x, prior=prior, method="bnpe_init")


def test_progress_of_training_says_what_is_left_after_the_first_plateau(monkeypatch, capsys) -> None:
    monkeypatch.setattr("equipoise.support.progress.INTERVAL", -1.0)  # a line an epoch
    p = quick(*toy(), epochs=200, patience=1, members=2, method="npe", progress=None)
    lines = capsys.readouterr().err.splitlines()
    assert p.history is not None and 10 < len(lines) - 1 == p.history.sizes["epoch"] < 200
    assert lines[1].startswith("training: 1/200 epochs · 2 of 2 members training · validation loss")
    lower = (p.history.learning_rate.shift(epoch=-1, fill_value=0) < 1e-3).any("member").values  # in the next epoch
    assert all(line.endswith("left") == fell for line, fell in zip(lines[1:-1], lower[:-1], strict=True))
    assert "0 of 2 members training" in lines[-1] and "left" not in lines[-1]
    loss, best = (p.history.validation_loss.values[2].mean(), p.history.validation_loss.values[:3].min(0).mean())
    assert f"validation loss {loss:.3f}, best {best:.3f}" in lines[3]


def test_few_pairs_have_small_batches_unless_said_otherwise() -> None:
    theta = 2 * torch.rand(200, 2, generator=torch.Generator().manual_seed(0)) - 1
    for given, used in ((None, 32), (150, 150)):
        p = quick(theta, theta + 0.1, "nre", epochs=1, batch_size=given)
        assert p.record["settings"]["batch_size"] == used
