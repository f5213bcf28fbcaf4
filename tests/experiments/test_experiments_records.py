"""Records: what is kept of the trainings of a run, and what results say of all cells together."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from experiments_tiny import TINY

from equipoise.experiments import Folder, collect, load_grid
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
    arrays = {name: np.full(1, np.nan) for name in TRAINING}
    arrays |= {name: np.full((1, 10), np.nan, np.float32) for name in HISTORY}
    _history(arrays, 0, [history(10, b) for b in best], np.arange(10), steps=7)
    assert arrays["best_epoch"].dtype == np.float64 and arrays["best_epoch"][0] == kept
    assert arrays["steps"][0] == 70 * len(best)


OVER, CERTIFIED, OPEN = "overconfident", "certified conservative", "inconclusive"
#: Of eight cells Holm compares them with 0.05 over 8, 7, …, 1, that is 0.00625, 0.00714, 0.00833, 0.01, 0.0125, …, up
#: to the first that is larger: the first three are rejected. Alone six would be, by Bonferroni two, and stepping up
#: five; with the four missing cells counted, two.
P_VALUES = (0.001, 0.0043, 0.0080, 0.0110, 0.0122, 0.03, 0.3, 0.9)


def step_down(p: dict[tuple, float], alpha: float = 0.05) -> set[tuple]:
    """The hypotheses that Holm (1979) rejects."""
    rejected: set[tuple] = set()
    for step, (place, value) in enumerate(sorted(p.items(), key=lambda item: item[1])):
        if value > alpha / (len(p) - step):
            break
        rejected.add(place)
    return rejected


def test_verdicts_over_all_cells_are_corrected_by_holms_step_down(undisturbed, tmp_path):
    source, folder = Folder(undisturbed), Folder(tmp_path)
    folder.write_grid(source.read_grid()["grid"])
    rng = np.random.default_rng(0)
    p, c = (dict(enumerate(rng.permutation(P_VALUES))) for _ in range(2))
    below, above, alone = {}, {}, {}
    for identity in source.stacks():
        ds = xr.load_dataset(source.stack_file(identity), engine="h5netcdf")
        verdicts = []
        for i, (method, run) in enumerate(zip(ds["method"].values, ds["run"].values, strict=True)):
            place, number = (ds.attrs["task"], method, ds.attrs["budget"], run), len(below)
            below[place] = ds["verdict_p_value"][i] = p[number]
            above[place] = ds["certificate_p_value"][i] = c[number]
            alone[place] = OVER if p[number] <= 0.05 else CERTIFIED if c[number] <= 0.05 else OPEN
            verdicts.append(alone[place])
        folder.write_stack(identity, ds.assign(verdict=("cell", verdicts)))
    over, certified = step_down(below), step_down(above)
    assert len(below) == 8 and len(over) == len(certified) == 3 and certified - over

    # Budgets that were not computed are not among the cells that the correction is over.
    ds = collect(folder, load_grid(TINY | {"budgets": [128, 256, 512]}))
    assert (ds["verdict_holm"].sel(budget=512) == "").all()
    for place, word in alone.items():
        cell = ds.sel(dict(zip(("task", "method", "budget", "run"), place, strict=True)))
        expected = OVER if place in over else CERTIFIED if place in certified else OPEN
        assert (cell["verdict"].item(), cell["verdict_holm"].item()) == (word, expected)
    corrected = ds["verdict_holm"].values.ravel().tolist()
    assert [corrected.count(w) for w in (OVER, CERTIFIED)] == [3, len(certified - over)]
    assert list(alone.values()).count(OVER) == 6
