"""The end of an epoch: plateaus against torch's, early stops, divergence."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from equipoise.methods import resolve
from equipoise.training import PAPER, Settings
from equipoise.training.loop import apply_plateau_rule, epochs_left
from equipoise.training.state import MemberState
from equipoise.training.step import cycle


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mode", ["relative", "absolute"])
def test_the_plateau_rule_is_torchs(mode: str) -> None:
    settings = Settings(patience=3, threshold=1e-2, early_stop=False, threshold_mode=mode)
    losses = 1 + torch.randn(60, 5, generator=torch.Generator().manual_seed(0)).cumsum(0).abs() * 0.05
    state = MemberState.fresh(torch.zeros(5, 4), 1e-3, epochs=1)
    state.absolute.fill_(mode == "absolute")
    kind = "abs" if mode == "absolute" else "rel"
    optimisers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3) for _ in range(5)]
    schedulers = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=3, threshold=1e-2, threshold_mode=kind, min_lr=1e-5)
        for o in optimisers
    ]
    for epoch, row in enumerate(losses):
        state.weights.fill_(float(epoch))
        state.epoch.fill_(epoch)
        apply_plateau_rule(state, row, row, settings)
        for m, scheduler in enumerate(schedulers):
            scheduler.step(float(row[m]))
        want = torch.tensor([o.param_groups[0]["lr"] for o in optimisers])
        torch.testing.assert_close(state.learning_rate, want)
    torch.testing.assert_close(state.best_loss, losses.min(0).values)
    torch.testing.assert_close(state.best_weights[:, 0], losses.argmin(0).double())
    assert state.active.all()


def test_a_converged_member_stops_and_a_diverged_one_is_marked() -> None:
    settings = Settings(patience=0, learning_rate=1e-3, min_learning_rate=1e-3)
    state = MemberState.fresh(torch.zeros(3, 1), 1e-3, epochs=1)
    improving = torch.tensor([3.0, 2.0, 1.0, 0.5])
    for epoch in range(4):
        losses = torch.tensor([improving[epoch], 1.0, float("nan") if epoch == 2 else 1.0 - 0.1 * epoch])
        state.epoch.fill_(epoch)
        apply_plateau_rule(state, losses, losses, settings)
    assert state.active.tolist() == [True, False, False]
    assert state.diverged.tolist() == [False, False, True]
    assert state.best_epoch.tolist() == [3, 0, 1]


def test_in_a_cycle_rates_are_given_and_patience_alone_stops() -> None:
    settings = Settings(schedule="cycle", patience=2, epochs=30)
    state = MemberState.fresh(torch.zeros(2, 1), 1e-3, epochs=1)
    stopped = {}
    for epoch in range(12):
        losses = torch.tensor([9.0 - min(epoch, 4), 9.0 - epoch])
        least, most = epochs_left(state, settings, epoch)
        assert least <= 3 and most == 30 - epoch
        apply_plateau_rule(state, losses, losses, settings)
        stopped |= {m: epoch for m in range(2) if not state.active[m] and m not in stopped}
    assert stopped == {0: 7}  # the best at 4, and three more epochs
    assert (state.learning_rate == 1e-3).all()


@pytest.mark.usefixtures("double")
def test_a_cycle_falls_as_torchs_cosine() -> None:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=85)
    for k in range(86):
        part = torch.tensor((15 + k) / 100)
        assert float(2 * cycle(part)) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-9)
        optimiser.step()
        scheduler.step()
    assert [float(cycle(torch.tensor(v))) for v in (0.0, 0.075)] == pytest.approx([0, 0.5])


def test_the_least_that_is_left_is_what_members_train_that_do_not_improve() -> None:
    settings = Settings(patience=3, epochs=100)
    state = MemberState.fresh(torch.zeros(2, 1), 1e-3, epochs=1)
    left, done = [], 0
    while state.active.any():
        left.append(epochs_left(state, settings, done))
        # One improves in the first five epochs, and what was counted for it begins again.
        losses = torch.tensor([9.0, 9.0 - min(done, 4)])
        apply_plateau_rule(state, losses, losses, settings)
        done += 1
    assert [least for least, _ in left] == [12] * 5 + list(range(12, 0, -1))
    assert all(least <= most <= 3 * least and most <= max(least, k) for k, (least, most) in enumerate(left))
    assert epochs_left(state, settings, done) == (0, 0)
    assert epochs_left(state, dataclasses.replace(settings, early_stop=False), 30) == (70, 70)
    assert epochs_left(MemberState.fresh(torch.zeros(1, 1), 1e-3, epochs=1), settings, 99) == (1, 1)


def test_absolute_thresholds_are_for_losses_that_can_be_negative() -> None:
    """A relative threshold would take slow worsening of a negative loss for improvement."""
    rising = torch.linspace(-3.0, -2.99, 30)
    rates = {}
    for absolute in (True, False):
        state = MemberState.fresh(torch.zeros(1, 1), 1e-3, epochs=1)
        state.absolute.fill_(absolute)
        for loss in rising:
            apply_plateau_rule(state, loss[None], loss[None], dataclasses.replace(PAPER, threshold=1e-3))
        rates[absolute] = float(state.learning_rate)
    assert rates[True] < 1e-3 and rates[False] == pytest.approx(1e-3)
    assert resolve("npe").objective.can_be_negative and not resolve("bnre").objective.can_be_negative
