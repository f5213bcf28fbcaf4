"""A stack from nothing to its file, against the same thing written out; and what results hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from experiments_tiny import TINY, assert_same_cells

import equipoise as eq
from equipoise.experiments import (
    Folder,
    GridError,
    cells_of,
    collect,
    load_grid,
    merge,
    read_results,
    run_grid,
    stacks_of,
    table,
    write_results,
)
from equipoise.experiments.costs import cost
from equipoise.experiments.gallery import FINE, SIDE, observation, picture_points
from equipoise.experiments.records import thinned
from equipoise.training import Member, fit_many

PER_CELL = """
    coverage_auc coverage_auc_se verdict verdict_holm verdict_p_value pairs_to_settle levels_covered nominal_log_prob
    nominal_log_prob_se nominal_log_prob_raw information_kept entropy leakage balancing_error balance_signed
    balance_signed_se train_seconds diagnose_seconds epochs steps best_epoch best_validation_loss diverged_members cell
    hardware stack
"""


DEEP = """
import equipoise as eq


class Deep:
    prior = eq.BoxUniform([-1.0] * 3, [1.0] * 3)

    def simulate(self, theta):
        return theta
"""


def cell_of(path, method, budget, run):
    folder = Folder(path)
    for identity in folder.stacks():
        header, arrays = folder.read_stack(identity)
        for i, place in enumerate(zip(arrays["method"], arrays["run"], strict=True)):
            if (*place, header["budget"]) == (method, run, budget):
                return header, arrays, i
    raise AssertionError("no such cell")


@pytest.mark.parametrize("method", ["npe", "bnre"])
def test_a_cell_is_what_the_public_functions_give(undisturbed, method):
    stack = next(
        s for s in stacks_of(load_grid(TINY)) if s.cells[0].method == method and s.budget == 256 and s.runs == [1]
    )
    task = eq.task("slcp")
    larger = eq.simulate(task.prior, task.simulate, 512, seed=stack.stream("run", 1))
    coverage = eq.simulate(task.prior, task.simulate, 60, seed=stack.stream("coverage"))
    small = dataclasses.replace(eq.METHODS[method], hidden=(8, 8))
    members = [Member(small, stack.stream("run", 1, "member", m)) for m in range(2)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    posteriors = fit_many(
        members,
        [(larger.theta[:256], larger.x[:256])],
        prior=task.prior,
        settings=stack.settings,
        device="cpu",
    )
    _, arrays, i = cell_of(undisturbed, method, 256, 1)
    for m, posterior in enumerate(posteriors):
        assert posterior is not None and posterior.history is not None
        ds = eq.diagnose(posterior, coverage.theta, coverage.x, samples=16)
        # The balance needs no random numbers, the log posterior of a flow none that matter.
        np.testing.assert_allclose(
            arrays["member_balancing_error"][i, m], float(ds.balancing_error.sel(member="mixture")), rtol=1e-5
        )
        np.testing.assert_allclose(
            arrays["member_nominal_log_prob"][i, m], float(ds.nominal_log_prob.sel(member="0")), atol=0.2
        )
    losses = np.stack([p.history["validation_loss"].values[:, 0] for p in posteriors])  # type: ignore[union-attr]
    np.testing.assert_allclose(arrays["validation_loss"][i], losses.mean(0), rtol=1e-6)
    torch.set_num_threads(before)


def test_results_have_the_dimensions_and_variables_that_are_promised(undisturbed):
    with xr.open_dataset(undisturbed / "results.nc") as ds:
        assert ds["coverage"].dims == ("task", "method", "budget", "run", "level")
        sizes = {"task": 1, "method": 2, "budget": 2, "run": 2, "level": 101, "member": 2, "epoch": 3}
        assert ds.sizes == sizes | {"grid_0": SIDE, "grid_1": SIDE, "parameter": 2, "ledger": 8}
        for name in PER_CELL.split():
            assert ds[name].dims == ("task", "method", "budget", "run"), name
            values = ds[name].values
            assert (
                (values != "").all()
                if values.dtype.kind in "OUT"
                else np.isfinite(values[..., :]).all() or name == "pairs_to_settle"
            )
        for name in ("coverage_lower", "coverage_upper"):
            assert ds[name].dims == ds["coverage"].dims
        for name in ("train_loss", "validation_loss", "balance"):
            assert ds[name].dims == ("task", "method", "budget", "run", "epoch")
        for name in ("member_coverage_auc", "member_nominal_log_prob", "member_balancing_error", "member_verdict"):
            assert ds[name].dims == ("task", "method", "budget", "run", "member")
        assert bool((ds["coverage_lower"] <= ds["coverage"] + 1e-6).all()) and bool(
            (ds["coverage"] <= ds["coverage_upper"] + 1e-6).all()
        )
        config = json.loads(ds.attrs["config"])
        assert load_grid(config) == load_grid(TINY)
        for name in ("protocol", "equipoise", "torch", "numerics", "command", "created", "hardware", "wall_seconds"):
            assert name in ds.attrs
        assert float(ds["prior_log_prob"][0]) == pytest.approx(-np.log(36))
        assert int(ds["pairs"]) == 60


def test_results_carry_what_figures_need_to_know_of_methods_and_tasks(undisturbed):
    ds = read_results(undisturbed)
    for name in ("network", "loss", "balance", "strength", "start"):
        expected = [getattr(eq.METHODS[m], name) for m in ("npe", "bnre")]
        assert ds[f"method_{name}"].dims == ("method",) and ds[f"method_{name}"].values.tolist() == expected
    assert ds["method_label"].values.tolist() == ["NPE", "BNRE"]
    assert ds["task_label"].dims == ("task",) and ds["task_label"].values.tolist() == [
        getattr(eq.TASKS["slcp"], "label", "slcp")
    ]


def test_the_ledger_counts_every_stack_once(undisturbed):
    ds = read_results(undisturbed)
    folder = Folder(undisturbed)
    assert sorted(ds["ledger"].values) == folder.stacks()
    header, _ = folder.read_stack(str(ds["ledger"].values[0]))
    row = ds.isel(ledger=0)
    for name in ("train_seconds", "diagnose_seconds", "began", "seconds", "cost"):
        assert float(row[f"ledger_{name}"]) == header[name] > 0
    assert header["train_seconds"] + header["diagnose_seconds"] <= header["seconds"]
    for name in ("label", "network", "device", "hardware", "torch", "equipoise"):
        assert str(row[f"ledger_{name}"].values) == header[name] != ""
    # 3 epochs of 115 and 230 pairs in batches of 32, two members: 2 × 3 × (3 and 7) steps.
    np.testing.assert_array_equal(ds["steps"].transpose(..., "budget").values.reshape(-1, 2), [[18, 42]] * 4)
    assert float(ds["ledger_steps"].sum()) == float(ds["steps"].sum()) and int(ds["ledger_members"].sum()) == 16


def test_what_is_kept_is_small_and_exact_enough(undisturbed, tmp_path):
    made, kept = collect(Folder(undisturbed)), read_results(undisturbed)
    for name in ("coverage", "coverage_lower", "coverage_upper", "member_coverage"):
        np.testing.assert_allclose(kept[name], made[name], atol=1 / 50000)
    for name in ("train_loss", "validation_loss", "balance"):
        np.testing.assert_allclose(kept[name], made[name], rtol=2**-11)
    for name in ("coverage_auc", "verdict_p_value", "nominal_log_prob", "balancing_error"):
        np.testing.assert_array_equal(kept[name], made[name])
    # A grid of single networks has no second curve for each.
    run_grid(load_grid(TINY | {"members": 1, "budgets": [128]}), tmp_path, threads=1, device="cpu")
    assert "member_coverage" not in collect(Folder(tmp_path))


def test_numbers_of_a_cell_agree_with_each_other(undisturbed):
    ds = read_results(undisturbed)
    # ∫ coverage - level is ½ - mean(rank): the trapezoidal rule on 101 levels of a curve of 60 steps errs by less
    # than half a level.
    area = np.trapezoid(ds["coverage"].values - ds["level"].values, ds["level"].values, axis=-1)
    np.testing.assert_allclose(area, ds["coverage_auc"].values, atol=0.006)
    np.testing.assert_allclose(abs(ds["balance_signed"]), ds["balancing_error"])
    exact, prior = (float(cell_of(undisturbed, "npe", 128, 0)[1][n]) for n in ("expected_log_prob", "prior_log_prob"))
    assert prior == pytest.approx(-np.log(36)) and exact > prior
    assert set(np.unique(ds["verdict"].values)) <= {"overconfident", "certified conservative", "inconclusive"}


def test_pictures_are_densities(undisturbed):
    ds = read_results(undisturbed)
    cell = float((ds["gallery_high"] - ds["gallery_low"]).prod()) / SIDE**2
    # A density normalised over the box sums to 1; smooth ones do so to a few per cent on 100 points a side.
    np.testing.assert_allclose(ds["gallery_density"].sum(("grid_0", "grid_1")) * cell, 1.0, atol=0.05)
    np.testing.assert_allclose(ds["gallery_exact"].sum(("grid_0", "grid_1")) * cell, 1.0, atol=0.05)
    task, stack = eq.task("slcp"), stacks_of(load_grid(TINY))[0]
    theta, x = observation(task, stack.stream("gallery"))
    np.testing.assert_array_equal(ds["gallery_theta"].values[0], theta.numpy())
    np.testing.assert_allclose(json.loads(str(ds["gallery_x"].values[0])), x.numpy(), atol=1e-5)
    cell = picture_points(task)[10 * FINE : 11 * FINE, 70 * FINE : 71 * FINE]
    np.testing.assert_allclose(cell.mean((0, 1)), [-3 + 6 * 10.5 / SIDE, -3 + 6 * 70.5 / SIDE], atol=1e-5)
    exact = task.log_posterior(cell.reshape(-1, 2), x).exp().mean().item()
    assert float(ds["gallery_exact"][0, 10, 70]) == pytest.approx(exact, rel=2**-8, abs=1e-5)


def test_the_tidy_table_has_a_row_a_cell(undisturbed):
    ds = read_results(undisturbed)
    rows = table(ds)
    assert len(rows) == 8 and len({r["cell"] for r in rows}) == 8
    row = rows[3]
    place = {k: row[k] for k in ("task", "method", "budget", "run")}
    assert row["coverage_auc"] == float(ds["coverage_auc"].sel(place))


def test_what_is_missing_is_nan_and_counted(tmp_path):
    grid = load_grid(TINY | {"methods": ["bnre"], "members": 1, "stack": None})
    run_grid(
        load_grid(TINY | {"methods": ["bnre"], "members": 1, "stack": None, "budgets": [128]}),
        tmp_path,
        threads=1,
        device="cpu",
    )
    ds = collect(Folder(tmp_path), grid)
    assert np.isfinite(ds["coverage_auc"].sel(budget=128)).all() and np.isnan(ds["coverage_auc"].sel(budget=256)).all()
    assert (ds["verdict"].sel(budget=256) == "").all() and (ds["verdict_holm"].sel(budget=256) == "").all()
    assert (ds.attrs["cells_done"], ds.attrs["cells_wanted"]) == (2, 4)


def test_single_networks_take_their_balance_from_the_test_set(tmp_path):
    grid = load_grid(TINY | {"methods": ["npe"], "budgets": [128], "runs": 1, "members": 1, "test": 3000})
    run_grid(grid, tmp_path, threads=1, device="cpu")
    ds = collect(Folder(tmp_path))
    # The standard error of the balance falls with the square root of the pairs: 3000 instead of 60.
    assert float(ds["balance_signed_se"].squeeze()) < 0.03
    assert float(ds["member_coverage_auc"].squeeze()) == float(ds["coverage_auc"].squeeze())


def test_separate_runs_of_parts_of_a_grid_merge(undisturbed, tmp_path):
    parts = {
        "a": {"budgets": [128]},
        "b": {"budgets": [256], "methods": ["npe"]},
        "c": {"budgets": [256], "methods": ["bnre"]},
    }
    for name, change in parts.items():
        run_grid(load_grid(TINY | change), tmp_path / name, threads=1, device="cpu")
    out = merge([tmp_path / name for name in parts], tmp_path / "all")
    assert_same_cells(undisturbed, tmp_path / "all")
    assert load_grid(out.read_grid()["grid"]) == load_grid(TINY)
    merged, whole = (read_results(write_results(Folder(p))) for p in (tmp_path / "all", undisturbed))
    clocks = [str(n) for n in whole.data_vars if str(n).endswith(("seconds", "began"))]
    xr.testing.assert_equal(merged.drop_vars(clocks), whole.drop_vars(clocks))
    merge([tmp_path / "a", tmp_path / "all"], tmp_path / "a")  # into one of them, and again
    assert_same_cells(undisturbed, tmp_path / "a")


def test_cells_that_share_a_training_are_what_each_alone_would_be(tmp_path):
    """Best and last weights, judged in two ways: the same cells as from one grid for each, and one training's cost."""
    fixed = TINY | {"budgets": [128], "runs": 1, "members": 1, "stack": None, "test": 60}
    fixed["training"] = {"epochs": 12, "batch_size": 16, "learning_rate": 0.5}  # too fast: the last is not the best
    labels = ["nre[keep=best]", "nre[keep=last]", "nre[keep=last,recipe=released]"]
    together = load_grid(fixed | {"methods": labels})
    (stack,) = stacks_of(together)
    assert run_grid(together, tmp_path / "together", threads=1).complete
    ds = collect(Folder(tmp_path / "together"))
    apart = []
    for i, label in enumerate(labels):
        alone = load_grid(fixed | {"methods": [label]})
        (single,) = stacks_of(alone)
        assert single.cells[0].identity == stack.cells[i].identity
        assert run_grid(alone, tmp_path / str(i), threads=1).complete
        apart.append(collect(Folder(tmp_path / str(i))))
        for name in ("balancing_error", "best_epoch", "steps", "train_loss"):  # of the weights alone
            np.testing.assert_allclose(ds[name].isel(method=i), apart[i][name].isel(method=0), rtol=1e-4, atol=1e-6)
    best, last, grid = (ds.isel(method=i, task=0, budget=0, run=0) for i in range(3))
    kept = [float(d["balancing_error"]) for d in (best, last, grid)]
    assert kept[1] == pytest.approx(kept[2], rel=1e-4) and abs(kept[0] - kept[1]) > 1e-3
    # The released recipe draws nothing: a fixed grid, and no ties are split.
    np.testing.assert_allclose(grid["coverage"], apart[2]["coverage"].squeeze(), atol=1 / 60)
    assert not np.array_equal(grid["coverage"], last["coverage"])
    # One network was trained, for 12 epochs of 7 whole batches; three were judged.
    assert (int(ds["ledger_members"].item()), float(ds["ledger_steps"].item()), int(ds["ledger_cells"].item())) == (
        1, 84.0, 3,
    )  # fmt: skip
    one = cost(stacks_of(load_grid(fixed | {"methods": labels[:1]}))[0])
    two = cost(stacks_of(load_grid(fixed | {"methods": labels[:2]}))[0])
    assert two.training == one.training and two.diagnosis == pytest.approx(2 * one.diagnosis)
    # A grid of 100 x 100 for each pair, and an interpolation, cost more evaluations than 16 points.
    three = cost(stack).diagnosis - two.diagnosis
    assert three == pytest.approx(one.diagnosis * 100**2 / (16 * 2))
    fine = cost(stacks_of(load_grid(fixed | {"methods": labels[:1], "samples": 1000}))[0])
    assert fine.diagnosis == pytest.approx(one.diagnosis * 2100 / (16 * 2))


def test_a_second_judgement_is_what_the_released_recipe_alone_gives(tmp_path):
    """`released_pairs` judges the first pairs as well; a grid of those pairs alone, with that recipe, says the same."""
    fixed = TINY | {"budgets": [128], "runs": 1, "members": 1, "stack": None, "methods": ["nre", "npe"]}
    twice, plain = load_grid(fixed | {"released_pairs": 50}), load_grid(fixed)
    alone = load_grid(fixed | {"methods": ["nre[recipe=released]"], "pairs": 50})
    found = {}
    for name, grid in (("twice", twice), ("plain", plain), ("alone", alone)):
        assert run_grid(grid, tmp_path / name, threads=1).complete
        found[name] = read_results(write_results(Folder(tmp_path / name))).squeeze()
    both, once = found["twice"], found["plain"]
    np.testing.assert_array_equal(both["coverage"], once["coverage"])
    assert "released_coverage" not in once and np.isfinite(both["released_coverage"]).all()
    nre = both.sel({"method": "nre"})  # the keyword `method` is xarray's own
    np.testing.assert_allclose(nre["released_coverage"], found["alone"]["coverage"], atol=1e-4)
    np.testing.assert_allclose(nre["released_coverage_auc"], found["alone"]["coverage_auc"], atol=1e-6)
    assert not np.allclose(nre["released_coverage"], nre["coverage"], atol=0.01)
    assert cost(stacks_of(twice)[0]).diagnosis > cost(stacks_of(plain)[0]).diagnosis


def test_a_second_judgement_that_cannot_be_is_refused_before_training(tmp_path):
    (tmp_path / "deep.py").write_text(DEEP)
    grid = load_grid(
        TINY | {"tasks": [f"{tmp_path}/deep.py:Deep"], "methods": ["nre"], "budgets": [128], "released_pairs": 50},
        import_tasks=True,
    )
    state = run_grid(grid, tmp_path / "out", threads=1)
    assert not state.complete
    failed = "".join(p.read_text() for p in (tmp_path / "out" / "failed").glob("*.txt"))
    assert "set released_pairs = 0" in failed and "has 3" in failed


def test_cells_that_were_judged_otherwise_do_not_stand_for_this_grids(tmp_path):
    small = TINY | {"budgets": [128], "runs": 1, "stack": None}
    assert run_grid(load_grid(small), tmp_path, threads=1).complete
    finer = load_grid(small | {"samples": {"classifier": 32, "flow": 16}})
    ds = collect(Folder(tmp_path), finer)
    assert ds.attrs["cells_done"] == 1 and ds.attrs["cells_wanted"] == 2
    assert np.isfinite(ds["coverage_auc"].sel({"method": "npe"})).all()
    assert "bnre" not in ds["method"].values or np.isnan(ds["coverage_auc"].sel({"method": "bnre"})).all()


def refuse(*_: object) -> None:
    raise OSError("not permitted")


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_stacks_are_linked_to_where_the_folder_is_soon_removed(links, undisturbed, tmp_path, monkeypatch):
    if not links:
        monkeypatch.setattr(Path, "symlink_to", refuse)
    merged = merge([undisturbed], tmp_path / "all", link=True)
    files = [merged.stack_file(identity) for identity in merged.stacks()]
    assert len(files) == 8 and all(file.is_symlink() == links for file in files)
    assert_same_cells(undisturbed, merged.path)


def test_different_experiments_do_not_merge(undisturbed, tmp_path):
    Folder(tmp_path / "other").write_grid(load_grid(TINY | {"pairs": 70}).config())
    with pytest.raises(GridError, match="pairs is 70 in the one and 60"):
        merge([undisturbed, tmp_path / "other"], tmp_path / "all")
    with pytest.raises(FileNotFoundError, match="not an experiment"):
        merge([undisturbed, tmp_path / "nothing"], tmp_path / "all")


@pytest.mark.parametrize("task", ["weinberg", "lotka_volterra[steps=40]", "spatial_sir"])
@pytest.mark.slow
def test_other_tasks_go_through_the_pipeline(task, tmp_path):
    change = {
        "tasks": [task],
        "methods": ["nre", "bnpe_init"],
        "budgets": [64],
        "members": 1,
        "runs": 1,
        "training": {"epochs": 1, "batch_size": 32},
    }
    grid = load_grid(TINY | change)
    state = run_grid(grid, tmp_path, threads=1, device="cpu")
    assert state.complete, state.failures
    ds = collect(Folder(tmp_path))
    assert np.isfinite(ds["coverage"]).all()
    exact = eq.task(grid.tasks[0].name, **grid.task_options(grid.tasks[0])).has_exact_posterior
    assert np.isfinite(ds["information_kept"]).all() == exact
    # Compact simulations are kept; real-valued ones are made again from their seed.
    kept = (
        sorted(p.name.split("-")[0] for p in (tmp_path / "simulations").glob("*"))
        if (tmp_path / "simulations").exists()
        else []
    )
    assert bool(kept) == (grid.tasks[0].name != "weinberg")


def test_thinned_histories_keep_the_ends():
    for epochs in (1, 2, 99, 100, 101, 500):
        kept = thinned(epochs)
        assert kept[0] == 0 and kept[-1] == epochs - 1 and len(kept) <= 100 and (np.diff(kept) > 0).all()


def test_dearer_stacks_cost_more():
    def seconds(**change):
        return sum(cost(s).seconds for s in stacks_of(load_grid(TINY | change)))

    base = seconds()
    assert all(
        seconds(**c) > base for c in ({"runs": 3}, {"budgets": [128, 1024]}, {"hidden": [64, 64]}, {"pairs": 1000})
    )
    paper = stacks_of(load_grid("paper", {"tasks": ["slcp"]}))
    assert sum(cost(s, "cuda").seconds for s in paper) < sum(cost(s, "cpu").seconds for s in paper) / 50
    assert len({c.identity for c in cells_of(load_grid("paper"))}) == 2000
