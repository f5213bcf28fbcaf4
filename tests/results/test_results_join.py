"""Results files of one grid are joined: nothing is lost, cut short or counted twice."""

from __future__ import annotations

import json
from collections.abc import Hashable

import numpy as np
import pytest
import xarray as xr

import join
import reading
from equipoise.experiments.results import read_results, save_results


def stored(name: str) -> xr.Dataset:
    return read_results(reading.HERE / f"{name}.nc")


def part(ds: xr.Dataset, axis: str, values: list) -> xr.Dataset:
    """Some of the cells, as results of a smaller grid have them; their verdicts with correction are not known."""
    found = ds.sel({axis: values})
    used = np.isin(ds["ledger"].values.astype(str), np.unique(found["stack"].values.astype(str)))
    found = found.isel(ledger=np.flatnonzero(used))
    config = json.loads(ds.attrs["config"])
    key = axis + "s"
    config[key] = [v for v, label in zip(config[key], ds[axis].values.tolist(), strict=True) if label in values]
    done = int((found["cell"] != "").sum())
    found["verdict_holm"] = found["verdict_holm"].where(found["cell"] == "", "inconclusive")
    return found.assign_attrs(config=json.dumps(config), cells_done=done, wall_seconds=1.0)


def same(ours: xr.Dataset, theirs: xr.Dataset, name: Hashable) -> None:
    ours, theirs = (ds.sortby("ledger")[name] for ds in (ours, theirs))
    ours, theirs = ours.transpose(*theirs.dims).values, theirs.values
    if theirs.dtype.kind != "f":
        ours, theirs = ours.astype(str), theirs.astype(str)
    np.testing.assert_array_equal(ours, theirs, err_msg=str(name))


@pytest.mark.parametrize(("name", "axis"), [("bnre_slcp", "budget"), ("frontier", "task"), ("rolls", "task")])
def test_two_halves_are_the_whole(name, axis, tmp_path):
    whole = stored(name)
    values = whole[axis].values.tolist()
    halves = [part(whole, axis, some) for some in (values[::2], values[1::2])]
    files = [tmp_path / f"{k}.nc" for k in range(2)]
    for file, half in zip(files, halves, strict=True):
        save_results(half, file)
    assert join.main([str(files[0]), str(files[1]), str(files[1])]) == 0
    found = read_results(files[0])
    whole = whole.sel({axis: found[axis].values})
    assert found.sizes == whole.sizes and set(found.variables) == set(whole.variables)
    for variable in whole.variables:
        same(found, whole, variable)
    for key in ("cells_done", "wall_seconds"):
        assert found.attrs[key] == pytest.approx(whole.attrs[key])
    ours, theirs = (json.loads(ds.attrs["config"]) for ds in (found, whole))
    assert all(sorted(map(str, ours[k])) == sorted(map(str, theirs[k])) for k in ("tasks", "methods", "budgets"))
    assert sorted(found.attrs["notes"].splitlines()) == sorted(set(whole.attrs["notes"].splitlines()))


def test_cells_that_are_there_stay_and_are_not_paid_for_twice():
    whole = stored("bnre_slcp")
    budgets = whole["budget"].values.tolist()
    first, second = part(whole, "budget", budgets[:4]), part(whole, "budget", budgets[2:])
    second["coverage_auc"] = second["coverage_auc"] + 1
    other = {n: (second[n].dims, np.char.add(second[n].values.astype(str), "x")) for n in ("stack", "ledger")}
    found = join.joined(first, second.assign(other))
    of_first = found["coverage_auc"].sel(budget=budgets[:4])
    np.testing.assert_array_equal(of_first, whole["coverage_auc"].sel(budget=budgets[:4]))
    np.testing.assert_array_equal(found["coverage_auc"].sel(budget=budgets[4:]) - 1 < 0.5, True)
    assert found.sizes["ledger"] == whole.sizes["ledger"]
    assert found.attrs["wall_seconds"] == pytest.approx(whole.attrs["wall_seconds"])


def test_longer_names_are_whole_in_the_file(tmp_path):
    whole = stored("rolls")
    short, long = (part(whole, "task", [task]) for task in ("slcp", "spatial_sir"))
    for name, half in (("short", short), ("long", long)):
        save_results(half, tmp_path / f"{name}.nc")
    join.main([str(tmp_path / "short.nc"), str(tmp_path / "long.nc")])
    found = read_results(tmp_path / "short.nc")
    assert {str(v) for v in found["task_label"].values} == {"SLCP", "Spatial SIR"}
    assert {str(v) for v in found["ledger_task"].values} == {"slcp", "spatial_sir"}
    assert int((found["cell"] != "").sel(task="spatial_sir").sum()) == 40


def test_stored_ledgers_name_tasks_of_their_grid():
    for file in sorted(reading.HERE.glob("*.nc")):
        with xr.open_dataset(file) as ds:
            if "ledger_task" in ds:
                assert set(ds["ledger_task"].values.astype(str)) <= set(ds["task"].values.astype(str)), file.name


def test_results_of_other_grids_are_refused():
    first = stored("bnre_slcp")
    with pytest.raises(ValueError, match=r"different grids: .*name"):
        join.joined(first, stored("rolls"))
    with pytest.raises(ValueError, match=r"different grids: numerics differ"):
        join.joined(first, first.assign_attrs(numerics=1))
    config = json.loads(first.attrs["config"]) | {"pairs": 17}
    with pytest.raises(ValueError, match=r"cannot be merged: pairs is 17 in the one and None in the other"):
        join.joined(first, first.assign_attrs(config=json.dumps(config)))
