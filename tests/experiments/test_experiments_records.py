"""Records: what is kept of the trainings of a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from equipoise.experiments.records import HISTORY, TRAINING, _history


def history(epochs: int, best: int) -> SimpleNamespace:
    losses = {name: (("epoch", "member"), np.arange(epochs, dtype=float)[:, None]) for name in HISTORY}
    numbers = {"epochs": epochs, "best_epoch": best, "best_loss": 0.5, "diverged": False}
    ds = xr.Dataset(losses | {name: ("member", [value]) for name, value in numbers.items()})
    return SimpleNamespace(history=ds.assign_attrs(stack_seconds=2.0, stack_members=1))


@pytest.mark.parametrize(
    ("best", "kept"), [([1, 1, 2], 1), ([0, 1, 9], 1), ([3, 4], 4), ([5], 5)]
)  # means: 1.33, 3.33, 3.5
def test_the_best_epoch_of_several_networks_is_an_epoch(best, kept):
    arrays = {name: np.full(1, np.nan) for name in TRAINING} | {"diverged_members": np.zeros(1, int)}
    arrays |= {name: np.full((1, 10), np.nan, np.float32) for name in HISTORY}
    _history(arrays, 0, [history(10, b) for b in best], np.arange(10), steps=7)
    assert arrays["best_epoch"].dtype == np.float64 and arrays["best_epoch"][0] == kept
    assert arrays["steps"][0] == 70 * len(best)
