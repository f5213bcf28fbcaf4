"""Members: what they are, and that none depends on those it is trained with."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from training_tools import SMALL, pairs, same_weights, toy, train

import equipoise as eq
from equipoise.methods import METHODS, resolve
from equipoise.training import PAPER, Member


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", list(METHODS))
def test_a_member_alone_and_in_a_stack_is_the_same_member(name: str) -> None:
    """To 1e-8 in float64, while learning rates fall, with neighbours of other methods, strengths and data."""
    data = [pairs(seed=0), pairs(seed=1)]
    me = Member(resolve(name), seed=5, data=1)
    family = [m for m in METHODS.values() if m.network == me.method.network]
    crowd = [Member(m, seed=i, data=i % 2) for i, m in enumerate(family)]
    crowd += [Member(resolve(name, strength=7.0) if me.method.balance != "none" else me.method, seed=99)]
    (alone,) = train([me], data)
    together = train([*crowd, me], data)[-1]
    for weight, value in alone.stack.items():
        torch.testing.assert_close(together.stack[weight], value, rtol=0, atol=1e-8)
    for variable in ("train_loss", "validation_loss", "learning_rate"):
        np.testing.assert_allclose(together.history[variable], alone.history[variable], atol=1e-8)
    assert alone.history.learning_rate.values.min() < 1e-3, "no learning-rate drop was provoked"


@pytest.mark.usefixtures("double")
def test_members_that_leave_do_not_disturb_those_that_stay() -> None:
    """With so little patience that members stop at different epochs, each is what it is alone."""
    settings = dataclasses.replace(SMALL, epochs=40, patience=0, threshold=1e-3)
    members = [Member(resolve("nre"), seed=i) for i in range(6)]
    together = train(members, [pairs()], settings=settings)
    lengths = [int(p.history.epochs.item()) for p in together]
    assert len(set(lengths)) > 1 and min(lengths) < 40
    for i in (0, 5):
        (alone,) = train([members[i]], [pairs()], settings=settings)
        assert int(alone.history.epochs.item()) == lengths[i]
        for weight, value in alone.stack.items():
            torch.testing.assert_close(together[i].stack[weight], value, rtol=0, atol=1e-8)


@pytest.mark.usefixtures("double")
def test_strength_zero_is_the_unbalanced_method() -> None:
    zero, plain = train([Member(resolve("bnre", strength=0.0), 3), Member(resolve("nre"), 3)], [pairs()])
    for weight, value in plain.stack.items():
        torch.testing.assert_close(zero.stack[weight], value, rtol=0, atol=1e-12)


def test_members_that_differ_in_the_weights_kept_are_trained_once() -> None:
    """Best and last weights of one training are those of two trainings that keep one of them."""
    theta, x = toy(200)
    settings = dataclasses.replace(PAPER, epochs=12, batch_size=16, learning_rate=0.3)  # too fast: the last is not best
    both = [Member(eq.METHODS["nre"], seed, keep=keep) for seed in (0, 1) for keep in ("best", "last", None)]
    alone = {
        keep: train(
            [Member(eq.METHODS["nre"], seed) for seed in (0, 1)],
            [(theta, x)],
            settings=dataclasses.replace(settings, keep=keep),
        )
        for keep in ("best", "last")
    }
    found = train(both, [(theta, x)], settings=settings)
    assert {p.history.attrs["stack_members"] for p in found} == {2}
    for member, p in zip(both, found, strict=True):
        assert p.record["settings"]["keep"] == (member.keep or "best")
        assert same_weights(p, alone[member.keep or "best"][member.seed])
    assert not same_weights(alone["best"][0], alone["last"][0])


def test_a_member_is_checked_and_compared_by_meaning() -> None:
    for wrong in ({"keep": "lsat"}, {"keep": 3}, {"method": "nre"}, {"seed": -1}, {"data": 0.5}, {"fold": -1}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            Member(**({"method": METHODS["nre"]} | wrong))
    same = [Member(METHODS["nre_c"].but(hidden=widths)) for widths in ((8, 8), [8, np.int64(8)])]
    assert same[0] == same[1] and hash(same[0]) == hash(same[1])


def test_a_sweep_over_strengths_gives_separate_posteriors() -> None:
    theta, x = toy(300)
    strengths = (0.0, 1.0, 100.0)
    members = [Member(eq.methods.resolve("bnre", strength=s), seed=1) for s in strengths]
    posteriors = train(members, [(theta, x)])
    assert [p.record["method"]["strength"] for p in posteriors] == list(strengths)
    assert all(p.n_members == 1 for p in posteriors)
