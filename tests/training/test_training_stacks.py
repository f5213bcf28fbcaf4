"""Stacks that train at once against the same stacks one after the other."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from training_tools import SMALL, pairs, same_weights, train

from equipoise.methods import resolve
from equipoise.support.devices import fixed_threads
from equipoise.training import Member
from equipoise.training.flow_epochs import FlowEpochs

NPE = resolve("npe")
MEMBERS = [Member(NPE.but(bins=bins), seed) for bins in (4, 8) for seed in (1, 2)]
SETTINGS = dataclasses.replace(SMALL, epochs=6, early_stop=False, average=0.6)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """For each epoch of a member: its thread, and how many threads torch had."""
    epochs: list[tuple[int, int]] = []
    real = FlowEpochs._member

    def noted(self: FlowEpochs, m: int) -> tuple[float, float]:
        epochs.append((threading.get_ident(), torch.get_num_threads()))
        return real(self, m)

    monkeypatch.setattr(FlowEpochs, "_member", noted)
    return epochs


def test_stacks_at_once_are_those_one_after_the_other_to_the_last_bit(seen: list[tuple[int, int]]) -> None:
    with fixed_threads(1):
        alone = train(MEMBERS, [pairs()], settings=SETTINGS)
    assert {ident for ident, _ in seen} == {threading.get_ident()}
    seen.clear()
    with fixed_threads(2):
        together = train(MEMBERS, [pairs()], settings=SETTINGS)
        assert torch.get_num_threads() == 2
    assert len({ident for ident, _ in seen} - {threading.get_ident()}) == 2
    assert {threads for _, threads in seen} == {1}
    for a, b in zip(alone, together, strict=True):
        assert same_weights(a, b)
        np.testing.assert_array_equal(a.history.validation_loss, b.history.validation_loss)


def test_who_listens_to_epochs_hears_them_in_its_own_thread(seen: list[tuple[int, int]]) -> None:
    heard: list[int] = []
    with fixed_threads(2):
        train(MEMBERS, [pairs()], settings=SETTINGS, on_epoch=lambda *_: heard.append(threading.get_ident()))
    assert set(heard) == {threading.get_ident()}
    assert threading.get_ident() not in {ident for ident, _ in seen}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_stops_one_stack_stops_the_others_and_they_go_on_from_there(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(MEMBERS, [pairs()], settings=SETTINGS)
    taken: list[int] = []
    real = FlowEpochs._member

    def stopped(self: FlowEpochs, m: int) -> tuple[float, float]:
        taken.append(m)
        if len(taken) == 11:  # of 6 epochs of 4 members
            raise error("enough")
        return real(self, m)

    with fixed_threads(2):
        with monkeypatch.context() as patch:
            patch.setattr(FlowEpochs, "_member", stopped)
            with pytest.raises(error):
                train(MEMBERS, [pairs()], settings=SETTINGS, checkpoint=tmp_path)
        assert torch.get_num_threads() == 2 and len(taken) < 24
        found = train(MEMBERS, [pairs()], settings=SETTINGS, checkpoint=tmp_path)
    assert all(same_weights(a, b) for a, b in zip(found, expected, strict=True))
