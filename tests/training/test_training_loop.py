"""The training loop: losses and weights of the history, and what comes out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from training_tools import pairs, train

import equipoise as eq
from equipoise.methods import METHODS, resolve
from equipoise.training import PAPER, RELEASED, Member


def test_the_loss_of_the_history_is_the_loss_of_the_posterior() -> None:
    """The best validation loss, balance included, recomputed from the posterior over the whole validation set."""
    theta, x = pairs(200)
    (p,) = train([Member(resolve("bnre"), 1)], [(theta, x)])
    rows = slice(180, 200)
    joint = p.log_ratios(theta[rows], x[rows])[0]
    marginal = p.log_ratios(theta[rows].roll(1, 0), x[rows])[0]
    want = eq.losses.nre(joint, marginal) + 100 * eq.losses.balance_chi2(joint, marginal)
    assert float(p.history.best_loss.item()) == pytest.approx(float(want), rel=1e-4)
    best = int(p.history.best_epoch.item())
    assert float(p.history.validation_loss[best, 0]) == pytest.approx(float(want), rel=1e-4)


def test_last_weights_are_the_last_epochs() -> None:
    settings = dataclasses.replace(RELEASED, batch_size=32, epochs=5)
    (p,) = train([Member(resolve("nre"), 1)], [pairs(170)], settings=settings)
    theta, x = (t[153:170] for t in pairs(170))
    joint, marginal = p.log_ratios(theta, x)[0], p.log_ratios(theta.roll(1, 0), x)[0]
    assert float(p.history.validation_loss[-1, 0]) == pytest.approx(float(eq.losses.nre(joint, marginal)), rel=1e-4)
    assert int(p.history.epochs.item()) == 5


#: Validation losses of three epochs, and the sum of the squares of the kept weights, in double precision.
GOLDEN = {
    "npe": ([1.336267271, 0.9866638306, 0.6882263174], 67.93922927),
    "bnpe_init": ([-0.006417974267, -0.02094708786, -0.02651555462], 6.492507751),
    "nre": ([0.6953329558, 0.6934035482, 0.6926614526], 15.81234928),
    "bnre": ([1.055496156, 0.7352301698, 0.7330903142], 15.9253114),
    "nre_c": ([1.500091629, 1.497957505, 1.496630621], 15.789888),
    "bnre_c": ([1.860351615, 1.540108217, 1.537898598], 15.92414058),
}


@pytest.mark.usefixtures("double")
def test_numbers_stay_as_they_were() -> None:
    """A change of the loop that moves these moves every stored result."""
    settings = dataclasses.replace(PAPER, batch_size=32, epochs=3, clip=1.0, weight_decay=0.01)
    found = train([Member(METHODS[name], 1) for name in GOLDEN], [pairs()], settings=settings)
    for p, (losses, squares) in zip(found, GOLDEN.values(), strict=True):
        np.testing.assert_allclose(p.history.validation_loss.values[:, 0], losses, rtol=1e-7)
        assert float(sum(w.square().sum() for w in p.stack.values())) == pytest.approx(squares, rel=1e-7)
