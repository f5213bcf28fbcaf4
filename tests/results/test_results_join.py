"""Results files of one grid are joined: nothing is lost, cut short or counted twice."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr

import join
import reading
from equipoise.experiments.results import AXES, read_results, save_results

WHOLE = reading.HERE / "bnre_slcp.nc"


def part(ds: xr.Dataset, **axes: list) -> xr.Dataset:
    """Some of the cells, as results of a smaller grid have them."""
    found = ds.sel(axes)
    stacks = np.isin(ds["ledger"].values.astype(str), np.unique(found["stack"].values.astype(str)))
    config = json.loads(ds.attrs["config"])
    if "budget" in axes:
        config["budgets"] = axes["budget"]
    done = int((found["cell"] != "").sum())
    found = found.isel(ledger=np.flatnonzero(stacks))
    return found.assign_attrs(config=json.dumps(config), cells_done=done, wall_seconds=1.0)


def test_two_halves_are_the_whole(tmp_path):
    whole = read_results(WHOLE)
    budgets = whole["budget"].values.tolist()
    halves = [part(whole, budget=budgets[::2]), part(whole, budget=budgets[1::2])]
    for name, half in zip(("one", "two"), halves, strict=True):
        save_results(half, tmp_path / f"{name}.nc")
    assert join.main([str(tmp_path / "one.nc"), str(tmp_path / "two.nc"), str(tmp_path / "two.nc")]) == 0
    found = read_results(tmp_path / "one.nc")
    assert found.sizes == whole.sizes and found.attrs["cells_done"] == found.attrs["cells_wanted"] == 120
    assert json.loads(found.attrs["config"])["budgets"] == budgets
    for name in [n for n in whole.variables if set(AXES) <= set(whole[n].dims)]:
        ours, theirs = found[name].transpose(*whole[name].dims).values, whole[name].values
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(ours.astype(str), theirs.astype(str), err_msg=name)
    assert sorted(found["ledger"].values.astype(str)) == sorted(whole["ledger"].values.astype(str))


def test_names_longer_than_those_before_are_kept():
    whole = read_results(reading.HERE / "rolls.nc")
    short, long = (part(whole, task=[task]) for task in ("slcp", "spatial_sir"))
    found = join.joined(short, long)
    assert found["task"].values.tolist() == ["slcp", "spatial_sir"]
    assert {str(v) for v in found["task_label"].values} == {"SLCP", "Spatial SIR"}
    there = found["cell"] != ""
    assert int(there.sel(task="spatial_sir").sum()) == 40
    assert set(np.unique(found["verdict_holm"].values[there.values]).astype(str)) <= {
        "overconfident", "certified conservative", "inconclusive",
    }  # fmt: skip


def test_results_of_other_grids_are_refused():
    first, second = (read_results(reading.HERE / f"{name}.nc") for name in ("bnre_slcp", "rolls"))
    with pytest.raises(ValueError, match=r"different grids: .*name"):
        join.joined(first, second)
