"""Epochs in one compiled call against the steps of any network, with torch's gradients."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from training_tools import SMALL, pairs, same_weights, train

from equipoise.methods import resolve
from equipoise.training import Member, loop

MEMBERS = [Member(resolve("npe").but(hidden=(24, 17)), seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"schedule": "cycle", "average": 0.6, "clip": None},
        {"weight_decay": 0.1, "clip": 0.5, "partial_batch": True, "validation": "batches"},
        {"keep": "last", "batch_size": 50, "partial_batch": True},
    ],
)
def test_an_epoch_is_its_steps(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs: later ones amplify rounding."""
    settings = dataclasses.replace(SMALL, epochs=3, early_stop=False, **changes)
    by_hand = train(MEMBERS, [pairs()], settings=settings)
    monkeypatch.setattr(loop, "trains_by_hand", lambda *_: False)
    by_steps = train(MEMBERS, [pairs()], settings=settings)
    for one, other in zip(by_hand, by_steps, strict=True):
        for name in ("train_loss", "validation_loss", "learning_rate"):
            np.testing.assert_allclose(one.history[name], other.history[name], rtol=2e-4, atol=2e-5)
        assert one.history["balance"].isnull().all() and other.history["balance"].isnull().all()
        for name, weights in one.stack.items():
            torch.testing.assert_close(weights, other.stack[name], rtol=1e-2, atol=1e-3)


def test_a_member_is_the_same_alone_and_in_a_stack() -> None:
    settings = dataclasses.replace(SMALL, epochs=6)
    together = train(MEMBERS, [pairs()], settings=settings)
    for member, stacked in zip(MEMBERS, together, strict=True):
        (alone,) = train([member], [pairs()], settings=settings)
        assert same_weights(alone, stacked)
