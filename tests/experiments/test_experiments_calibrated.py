"""Calibrated mixtures in grids: cells are what `eq.fit` gives, and go through everything that other cells do."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings

import experiments_tiny
import numpy as np
import pytest
import torch
from experiments_tiny import assert_same_cells, start, write_toml

import equipoise as eq
from equipoise.cli.run import choose_grid
from equipoise.experiments import (
    Folder,
    GridError,
    cells_of,
    collect,
    load_grid,
    merge,
    pipeline,
    read_results,
    run_grid,
    stacks_of,
    write_results,
)
from equipoise.experiments.costs import cost
from equipoise.networks import Flat
from equipoise.report import write_report
from equipoise.training import PAPER, SMALL, batch_for, fit, fit_many
from equipoise.training.settings import SMALL_STEPS

SHORT = {
    "name": "short",
    "tasks": ["slcp"],
    "methods": ["calibrated[epochs=3]"],
    "budgets": [600],
    "runs": 2,
    "pairs": 120,
    "samples": 32,
    "tolerance": "level",
    "stack": 10,
    "gallery": False,
}


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("calibrated")
    state = run_grid(load_grid(SHORT), path, threads=1, device="cpu")
    assert state.complete, state.failures
    write_results(Folder(path))
    return path


def test_a_cell_is_what_fit_gives(computed, monkeypatch):
    """The same data and the same seeds, under whatever keys: the same weights, temperature and p-values."""
    run, stack = 1, stacks_of(load_grid(SHORT))[1]
    assert stack.runs == [run]
    task = eq.task("slcp")
    pairs = eq.simulate(task.prior, task.simulate, 600, seed=stack.stream("run", run))
    monkeypatch.setattr(
        sys.modules["equipoise.training.fitting"], "integer", lambda seed, *key: stack.stream("run", run, *key)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three epochs do not make it conservative
        posterior = fit(pairs, prior=task.prior, epochs=3, seed=stack.stream("fit"), device="cpu", progress=False)
    known = posterior.calibration
    ds = read_results(computed).isel(task=0, method=0, budget=0).sel(run=run)
    assert known is not None and 0 < known.t < 1
    assert float(ds["temperature"]) == known.t
    assert float(ds["calibration_p_over"]) == known.p_over
    assert float(ds["calibration_p_certificate"]) == known.p_certificate
    assert bool(ds["calibration_certified"]) == known.certified
    coverage = eq.simulate(task.prior, task.simulate, 120, seed=stack.stream("coverage"))
    for prefix, one in (("", posterior), ("untempered_", posterior._with(1.0, None))):
        judged = eq.diagnose(one, coverage.theta, coverage.x, samples=32, seed=stack.stream("diagnose"), progress=False)
        judged = judged.sel(member="mixture")
        for name in ("nominal_log_prob", "coverage_auc", "verdict_p_value", "certificate_p_value"):
            np.testing.assert_allclose(float(ds[prefix + name]), float(judged[name]), rtol=1e-6, err_msg=prefix + name)
        assert str(ds[f"{prefix}verdict"].values) == str(judged["verdict"].values)
        np.testing.assert_allclose(ds[f"{prefix}coverage"], judged["coverage"], atol=1e-4)
    torch.set_num_threads(before)


def test_members_are_kept_in_their_places(computed):
    ds = read_results(computed)
    assert ds.sizes["member"] == 10
    # Members of weight 0 are not judged.
    judged = np.isfinite(ds["member_coverage_auc"].values).sum(-1)
    assert set(judged.ravel().tolist()) <= {5, 10}
    assert ((ds["member_verdict"] != "").sum("member").values == judged).all()
    assert ds["temperature"].attrs["long_name"].startswith("the temperature that the out-of-fold pairs chose")


def test_one_stack_of_several_runs_is_the_same_up_to_rounding(computed, tmp_path):
    together = load_grid(SHORT | {"stack": None})
    assert [c.identity for c in cells_of(together)] == [c.identity for c in cells_of(load_grid(SHORT))]
    (stack,) = stacks_of(together)
    assert stack.size == 20
    assert run_grid(together, tmp_path, threads=1, device="cpu").complete
    a, b = read_results(computed), collect(Folder(tmp_path))
    np.testing.assert_allclose(a["temperature"], b["temperature"], atol=0.041)
    np.testing.assert_allclose(a["best_validation_loss"], b["best_validation_loss"], rtol=1e-3)


def test_what_is_killed_goes_on_to_the_same_result(computed, tmp_path):
    out, toml = tmp_path / "killed", write_toml(tmp_path / "short.toml", SHORT)
    process = start(toml, out, "--device", "cpu")
    while process.poll() is None and not (out.exists() and Folder(out).stacks()):
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert len(Folder(out).stacks()) < 2
    assert run_grid(load_grid(toml), out, threads=1, device="cpu").complete
    assert_same_cells_but_clock(out, computed)


def assert_same_cells_but_clock(a, b):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments_tiny, "CLOCKS", (*experiments_tiny.CLOCKS, "calibrate_seconds"))
        assert_same_cells(a, b)


def test_parts_merge_with_cells_that_are_not_calibrated(computed, tmp_path):
    plain = SHORT | {"methods": ["npe"], "training": {"epochs": 2}, "hidden": [8, 8], "runs": 1}
    assert run_grid(load_grid(plain), tmp_path / "plain", threads=1, device="cpu").complete
    with pytest.raises(GridError, match="hidden"):
        merge([computed, tmp_path / "plain"], tmp_path / "all")
    alike = SHORT | {"training": {"epochs": 2}, "hidden": [8, 8], "runs": 1}
    # Neither the sizes nor the training of other networks concern a mixture.
    assert {c.identity for c in cells_of(load_grid(alike))} <= {c.identity for c in cells_of(load_grid(SHORT))}
    folder = Folder(tmp_path / "alike")
    assert folder.write_grid(load_grid(alike).config(), threads=1) is None
    for identity in Folder(computed).stacks():
        folder.copy_stack(identity, Folder(computed))
    merged = collect(merge([folder.path, tmp_path / "plain"], tmp_path / "all"))
    assert merged["method"].values.tolist() == ["calibrated[epochs=3]", "npe"]
    t = merged["temperature"].sel(run=0).values.ravel()
    assert np.isfinite(t[0]) and np.isnan(t[1])
    assert (merged["verdict"].sel(run=0) != "").all()
    assert merged["untempered_verdict"].sel(run=0).values.ravel()[1] == ""


def test_the_report_says_the_temperature_in_words(computed, tmp_path):
    ds = read_results(computed)
    page = write_report(ds, tmp_path / "report.html", progress=False).read_text()
    t = ds["temperature"].values.ravel()
    assert '<h2 id="h-temperature">' in page
    assert f"Calibrated (epochs 3), SLCP, 600 simulations: tempered to t = {np.median(t):.2f}" in page
    over = int((ds["untempered_verdict"] == "overconfident").sum())
    assert f"untempered, {over} of 2 runs were found overconfident" in page


def test_a_mixture_is_trained_as_fit_does_whatever_the_protocol():
    for protocol in ("default", "paper", "fit"):
        grid = load_grid({"tasks": ["slcp"], "methods": ["calibrated", "npe"], "budgets": [1024], "protocol": protocol})
        mixture, plain = stacks_of(grid)
        batch = batch_for(1024, 0.2, SMALL_STEPS)
        assert mixture.settings == dataclasses.replace(SMALL, batch_size=batch)
        assert (mixture.members, mixture.folds, mixture.calibrate, mixture.steps) == (10, 5, True, 820 // batch)
        assert [row.hidden for row in mixture.cells[0].rows] == [(96,) * 3] * 2
        assert mixture.sizes.standardize and mixture.sizes.as_fit
        assert (plain.members, plain.folds, plain.calibrate) == (1, None, False)
        assert plain.sizes.as_fit == (protocol == "fit") and (protocol == "fit" or plain.settings == PAPER)
        assert cost(mixture, "cuda").diagnosis > cost(plain, "cuda").diagnosis


def test_other_methods_can_be_cross_fitted_and_tempered():
    options = {"methods": ["npe", "npe[folds=5]", "npe[folds=5,calibrate=true]", "npe[members=2]"], "members": 3}
    stacks = stacks_of(load_grid({"tasks": ["slcp"], "budgets": [1024], **options}))
    assert [(s.members, s.folds, s.calibrate) for s in stacks] == [
        (3, None, False),
        (5, 5, False),
        (5, 5, True),
        (2, None, False),
    ]
    assert len({c.identity for s in stacks for c in s.cells}) == 4


def test_runs_whose_observations_are_read_otherwise_train_apart(tmp_path, monkeypatch):
    """Which columns are heavy-tailed is decided by each run's simulations."""
    given = iter([(0, 2), (), (0, 2)])
    monkeypatch.setattr(pipeline, "as_embedding", lambda _, x_shape, *how: Flat(x_shape, next(given)))
    calls = []

    def note(members, data, **how):
        calls.append((how["embedding"].ranked, len(data), [m.data for m in members]))
        return fit_many(members, data, **how)

    monkeypatch.setattr(pipeline, "fit_many", note)
    grid = load_grid(
        SHORT | {"methods": ["calibrated[members=2,epochs=1]"], "budgets": [200], "runs": 3, "stack": None}
    )
    assert run_grid(grid, tmp_path, threads=1, device="cpu").complete
    assert calls == [((0, 2), 2, [0, 0, 1, 1]), ((), 1, [0, 0])]
    ds = collect(Folder(tmp_path))
    assert np.isfinite(ds["nominal_log_prob"].values).all() and "temperature" not in ds


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("calibrated[folds=3]", "no option of calibrated 'folds'"),
        ("calibrated[members=3,calibrate=true]", "members=5 or more"),
        ("npe[calibrate=true]", "give folds=5"),
        ("npe[folds=5,members=3]", "needs at least as many members"),
        ("npe[folds=1]", "folds"),
        ("calibratd", "did you mean 'calibrated'"),
    ],
)
def test_what_cannot_be_is_refused(method, message):
    with pytest.raises(GridError, match=message):
        load_grid({"tasks": ["slcp"], "methods": [method], "budgets": [1024]})


def test_options_of_the_command_line_that_a_mixture_would_ignore_are_refused():
    with pytest.raises(GridError, match=r"calibrated\[epochs=5\]"):
        choose_grid(None, None, 5, {"methods": ["calibrated"]})
    with pytest.raises(GridError, match=r"calibrated\[members=20\]"):
        choose_grid(None, None, None, {"methods": ["calibrated"], "members": 20})
    assert choose_grid(None, None, None, {"methods": ["calibrated", "npe"], "members": 2}).members == 2
