"""The command line: through typer's runner where a process is not needed, in a process where it is."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import Forked
from typer.testing import CliRunner

import equipoise as eq
from equipoise import cli
from equipoise.cli.app import complete_methods, complete_tasks
from equipoise.cli.user_data import read_embedding
from equipoise.experiments import load_grid, run_grid
from equipoise.priors import BoxUniform, IndependentPrior
from equipoise.priors.text import DISTRIBUTIONS, FORMS, parse_prior

GRID = """
tasks = ["slcp"]
methods = ["npe", "bnre"]
budgets = [128]
pairs = 60
test = 60
samples = 16
hidden = [8, 8]
[training]
epochs = 2
batch_size = 32
"""


def equipoise(*arguments, code=0):
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small experiment with its figures and report."""
    path = tmp_path_factory.mktemp("cli")
    (path / "small.toml").write_text(GRID)
    result = equipoise(
        "run", "--grid", path / "small.toml", "--out", path / "out", "--threads", 1, "--device", "cpu", "--json"
    )
    return path, json.loads(result.stdout)


def test_run_ends_in_results_figures_and_report(finished):
    path, summary = finished
    assert summary["complete"] and summary["done"] == 2 and summary["failed"] == summary["missing"] == 0
    assert Path(summary["results"]) == path / "out" / "results.nc"
    assert (path / "out" / "report.html").stat().st_size > 10_000
    assert any((path / "out" / "figures").glob("*.png")) and any((path / "out" / "figures").glob("*.pdf"))


def test_running_again_says_that_all_is_there(finished):
    path, _ = finished
    result = equipoise("run", "--grid", path / "small.toml", "--out", path / "out", "--no-report")
    assert "all 2 cells are there" in result.output and "verdicts on 60 coverage pairs" in result.output
    for word in ("npe", "bnre", "slcp", "128"):
        assert word in result.output


def test_quiet_says_nothing(finished):
    path, _ = finished
    assert equipoise("run", "--grid", path / "small.toml", "--out", path / "out", "--no-report", "--quiet").output == ""


def test_status_as_table_json_and_csv(finished):
    path, _ = finished
    assert "done" in equipoise("status", path / "out").output
    state = json.loads(equipoise("status", path / "out", "--json").stdout)
    assert state["complete"] and [c["method"] for c in state["cells"]] == ["npe", "bnre"]
    rows = list(csv.DictReader(io.StringIO(equipoise("status", path / "out", "--csv").stdout)))
    assert {r["method"] for r in rows} == {"npe", "bnre"}
    assert {r["cell"] for r in rows} == {c["cell"] for c in state["cells"]}
    assert all(-0.5 <= float(r["coverage_auc"]) <= 0.5 for r in rows)


def test_status_of_an_unfinished_experiment_is_1(finished, tmp_path):
    path, _ = finished
    options = ("--grid", path / "small.toml", "--out", tmp_path / "o", "--threads", 1, "--device", "cpu", "--no-report")
    equipoise("run", *options, "--method", "npe", "--quiet")
    result = equipoise("run", *options, "--stop-after", 0, code=1)
    assert "would not end in time: 1." in result.output and "--pace 0" in result.output
    result = equipoise("status", tmp_path / "o", code=1)
    assert "missing" in result.output and "done" in result.output
    equipoise("status", tmp_path / "nothing", code=2)


def test_report_and_figures_are_made_again(finished, tmp_path):
    path, _ = finished
    equipoise("report", path / "out", "--out", tmp_path / "again.html")
    equipoise("figures", path / "out" / "results.nc", "--out", tmp_path / "drawn")
    assert (tmp_path / "again.html").exists() and list((tmp_path / "drawn").glob("*.png"))


def test_a_report_elsewhere_only_reads_the_experiment(finished, tmp_path):
    path, _ = finished
    out = shutil.copytree(path / "out", tmp_path / "out", ignore=shutil.ignore_patterns("results.nc", "*.html"))
    for file in (out, *out.rglob("*")):
        file.chmod(0o555 if file.is_dir() else 0o444)
    before = sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*"))
    equipoise("report", out, "--out", tmp_path / "again.html")
    equipoise("figures", out, "--out", tmp_path / "drawn")
    assert (tmp_path / "again.html").exists() and list((tmp_path / "drawn").glob("*.png"))
    assert sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*")) == before


def test_shell_completion_knows_every_task_and_method():
    assert sorted(complete_tasks("")) == sorted(eq.TASKS)
    assert sorted(complete_methods("")) == sorted([*eq.METHODS, "calibrated"])
    assert complete_methods("bnre") == ["bnre", "bnre_c"]


def test_merge_to_a_results_file(finished, tmp_path):
    path, _ = finished
    result = equipoise("merge", path / "out", "--out", tmp_path / "all.nc")
    assert "2 of 2 cells" in result.output and (tmp_path / "all.nc").exists()


def test_dry_run_computes_nothing(tmp_path):
    result = equipoise("run", "--dry-run", "--out", tmp_path / "out", "--task", "weinberg", "--runs", 2, "--json")
    plan = json.loads(result.stdout)
    assert not (tmp_path / "out").exists()
    assert plan["config"]["tasks"] == ["weinberg"] and sum(len(s["cells"]) for s in plan["stacks"]) == 20
    assert all(s["seconds_at_most"] > 0 and s["bytes"] > 0 for s in plan["stacks"])
    text = equipoise("run", "--dry-run", "--out", tmp_path / "out").output
    assert "time at most" in text and "all of it" in text and "upper bounds" in text


def test_protocols_are_grids_of_their_own(tmp_path):
    plan = json.loads(equipoise("run", "--dry-run", "--protocol", "released", "--task", "slcp", "--json").stdout)
    assert plan["config"]["protocol"] == "released" and sum(len(s["cells"]) for s in plan["stacks"]) == 8 * 8 * 5
    plan = json.loads(
        equipoise("run", "--dry-run", "-m", "bnpe[balance=kl]", "--epochs", 3, "--members", 2, "--json").stdout
    )
    assert plan["config"]["training"] == {"epochs": 3} and plan["config"]["members"] == 2
    assert {c["method"] for s in plan["stacks"] for c in s["cells"]} == {"bnpe[balance=kl]"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--task", "slpc"], "did you mean 'slcp'"),
        (["run", "--method", "bnpi"], "did you mean 'bnpe'"),
        (["run", "--method", "bnpe[strenght=1]"], "did you mean 'strength'"),
        (["run", "--protocol", "papr"], "did you mean 'paper'"),
        (["run", "--grid", "nowhere.toml"], "there is no file nowhere.toml"),
        (["run", "--pairs", "3"], "pairs is a whole number, at least 50"),
        (["run", "--device", "tpu"], "--device is cpu or cuda"),
        (["run", "--threads", "0"], "--threads"),
        (["report", "nowhere"], "nowhere"),
        (["fit", "nowhere.npz", "--prior", "uniform(0,1)", "--out", "m"], "nowhere.npz"),
        (["fit", "nowhere.npz", "--prior", "unifrm(0,1)", "--out", "m"], "did you mean 'uniform'"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = equipoise(*arguments, code=2)
    assert words in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("lokal", "give `local`, the address"),
        ("missing.yaml", "there is no file missing.yaml"),
        ("list.yaml", "should have one key"),
        ("slrum.yaml", "did you mean 'slurm'"),
        ("option.yaml", "did you mean 'walltime'"),
        ("broken.yaml", "is not YAML"),
        ("options.yaml", "the options of slurm should be"),
        ("jobs.yaml", "jobs is a whole number, at least 1, got 'many'"),
    ],
)
@pytest.mark.parametrize("how", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_clusters_that_cannot_be(cluster, words, how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("- slurm")
    Path("slrum.yaml").write_text("slrum: {jobs: 2}")
    Path("option.yaml").write_text("slurm: {wall_time: '1:00'}")
    Path("broken.yaml").write_text("slurm: {")
    Path("options.yaml").write_text("slurm: [jobs, 2]")
    Path("jobs.yaml").write_text("slurm: {jobs: many}")
    told = equipoise("run", "--cluster", cluster, "--out", tmp_path / "o", *how, code=2).output
    assert words in told and "cells" not in told and not (tmp_path / "o").exists()


def test_a_grid_is_not_begun_on_a_cluster_that_cannot_be(tmp_path):
    (tmp_path / "small.toml").write_text(GRID)
    with pytest.raises(ValueError, match="there is no file"):
        run_grid(load_grid(tmp_path / "small.toml"), tmp_path / "o", cluster=str(tmp_path / "missing.yaml"))
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("device", "words"),
    [("cuda", "--device cuda was asked for, but torch sees no GPU here"), ("gpu", "--device"), ("", "--device")],
)
@pytest.mark.parametrize(
    "command",
    [
        ["fit", "nowhere.npz", "--prior", "nothing", "--out", "m"],
        ["diagnose", "nowhere", "nowhere.npz", "--out", "d.nc"],
        ["run", "--task", "two_moons", "--budget", "64", "--method", "npe"],
        ["run", "--task", "two_moons", "--budget", "64", "--method", "npe", "--cluster", "local"],
    ],
    ids=["fit", "diagnose", "run", "run on local workers"],
)
def test_a_device_that_is_not_there_is_told_before_anything_is_done(command, device, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = equipoise(*command, "--device", device, code=2).output
    assert len(told.splitlines()) == 1 and words in told and "nowhere" not in told
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_elsewhere_can_be_planned_for(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = ("--task", "two_moons", "--method", "npe", "--budget", 1024, "--out", tmp_path / "o", "--dry-run")
    assert "one H200" in equipoise("run", *options, "--device", "cuda").output


IN_PROC = pytest.param("/proc/foo/m", marks=pytest.mark.skipif(not Path("/proc").is_dir(), reason="has no /proc"))


@pytest.mark.parametrize("out", ["file", "file/m", IN_PROC])
@pytest.mark.parametrize(
    "command",
    [
        ["fit", "nowhere.npz", "--prior", "nothing"],
        ["run", "--task", "two_moons", "--budget", "64", "--method", "npe"],
        ["diagnose", "nowhere", "nowhere.npz"],
    ],
    ids=lambda c: c[0],
)
def test_out_is_looked_at_before_anything_else(command, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    if (command[0], out) == ("diagnose", "file"):
        Path("file").unlink()
        Path("file").mkdir()
    result = equipoise(*command, "--out", out, code=2)
    assert len(result.output.splitlines()) == 1 and f"--out {out}" in result.output and "Errno" not in result.output
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_dry_run_refuses_a_file_too(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "is a file" in equipoise("run", "--dry-run", "--out", tmp_path / "file", code=2).output


def test_looking_at_out_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in ("m", "deep/er/m", tmp_path / "far" / "m"):
        assert "nowhere.npz" in equipoise("fit", "nowhere.npz", "--prior", "uniform(0,1)", "--out", out, code=2).output
        assert "nowhere" in equipoise("diagnose", "nowhere", "nowhere.npz", "--out", out, code=2).output
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_replaced_only_by_force(tmp_path):
    prior = eq.BoxUniform([0.0], [1.0])
    theta = prior.sample((200,))
    eq.fit(theta, theta, prior=prior, members=1, epochs=1, progress=False).save(tmp_path / "m")
    before = {f.name: f.read_bytes() for f in (tmp_path / "m").iterdir()}
    arguments = ("fit", tmp_path / "nowhere.npz", "--prior", "uniform(0,1)", "--out", tmp_path / "m")
    told = equipoise(*arguments, code=2).output
    assert str(tmp_path / "m") in told and "--force" in told and "nowhere.npz" not in told
    assert "nowhere.npz" in equipoise(*arguments, "--force", code=2).output
    assert {f.name: f.read_bytes() for f in (tmp_path / "m").iterdir()} == before
    (tmp_path / "m" / "model.json").unlink()  # what a killed save leaves is no model
    assert "nowhere.npz" in equipoise(*arguments, code=2).output


@pytest.mark.filterwarnings("ignore")  # 80 pairs certify nothing
def test_calibrate_saves_a_tempered_model(tmp_path):
    theta = torch.rand(120, 1)
    np.savez(tmp_path / "fresh.npz", theta=theta[40:], x=theta[40:] + 0.1 * torch.randn(80, 1))
    model = tmp_path / "model"
    method = eq.METHODS["npe"].but(hidden=(8,))
    eq.fit(theta[:40], theta[:40] + 0.1 * torch.randn(40, 1), prior=eq.BoxUniform([0.0], [1.0]), method=method,
           members=2, epochs=2, progress=False, settings=eq.Settings(compile=False)).save(model)  # fmt: skip
    told = equipoise("calibrate", model, tmp_path / "fresh.npz", "--seed", 3).output
    found = eq.load(tmp_path / "model-calibrated")
    assert found.calibration is not None and found.calibration.t == found.temperature
    assert found.calibration.message in told.replace("\n", " ")
    assert "--force" in equipoise("calibrate", model, tmp_path / "fresh.npz", code=2).output
    again = tmp_path / "again"
    equipoise("calibrate", model, tmp_path / "fresh.npz", "--out", again, "--seed", 3, "--quiet")
    assert eq.load(again).calibration == found.calibration


def test_fit_and_diagnose_data_of_your_own(tmp_path, monkeypatch):
    task = eq.task("slcp")
    for name, n, seed in (("train", 256, 0), ("fresh", 80, 1)):
        pairs = eq.simulate(task.prior, task.simulate, n, seed=seed)
        np.savez(tmp_path / f"{name}.npz", theta=pairs.theta.numpy(), x=pairs.x.numpy())
    model = tmp_path / "model"
    options = (
        "--prior",
        "uniform(-3, 3)^2",
        "--method",
        "npe",
        "--members",
        2,
        "--epochs",
        2,
        "--seed",
        5,
        "--out",
        model,
    )
    assert "equipoise diagnose" in equipoise("fit", tmp_path / "train.npz", *options).output
    posterior = eq.load(model)
    assert posterior.n_members == 2 and posterior.record["method"]["name"] == "npe"
    assert posterior.record["settings"]["batch_size"] == 32  # of 230 pairs a batch of 256 would make an epoch one step
    fresh = np.load(tmp_path / "fresh.npz")
    mine = eq.diagnose(posterior, torch.from_numpy(fresh["theta"]), torch.from_numpy(fresh["x"]), samples=50)
    arguments = ("diagnose", model, tmp_path / "fresh.npz", "--samples", 50, "--out", tmp_path / "d.nc")
    found = json.loads(equipoise(*arguments, "--json", "--quiet").stdout)
    assert found["coverage_auc"] == pytest.approx(float(mine.coverage_auc.sel(member="mixture")))
    assert found["certificate_p_value"] == pytest.approx(float(mine.certificate_p_value.sel(member="mixture")))
    assert found["pairs_to_settle"] == float(mine.pairs_to_settle.sel(member="mixture")) == 0
    assert found["verdict"] == str(mine.verdict.sel(member="mixture").values) == "overconfident"
    assert "mixture" in equipoise(*arguments).output and (tmp_path / "d.nc").exists()
    equipoise(*arguments, "--strict", "--quiet", code=1)
    assert "--force" in equipoise("fit", tmp_path / "train.npz", *options, code=2).output
    equipoise("fit", tmp_path / "train.npz", *options, "--members", 1, "--force", "--quiet")
    assert eq.load(model).n_members == 1

    def full(*_, **__):
        raise OSError("the disk is full")

    never = mine.assign(pairs_to_settle=mine.pairs_to_settle + np.inf, leakage=mine.leakage * np.nan)
    with monkeypatch.context() as patch:
        patch.setattr("equipoise.diagnostics.diagnose", lambda *_, **__: never)
        text = equipoise(*arguments, "--json", "--quiet").stdout
    row = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert row["pairs_to_settle"] is None and row["leakage"] is None
    monkeypatch.setattr("xarray.Dataset.to_netcdf", full)
    shown = equipoise(*arguments, code=1).output
    assert shown.index("overconfident") < shown.index("the disk is full")


class Opaque:
    """A prior that no file can hold."""

    def sample(self, shape):
        return torch.rand(*shape, 2)

    def log_prob(self, theta):
        return torch.where(((theta > 0) & (theta < 1)).all(-1), 0.0, -torch.inf)


def test_a_table_with_names_of_its_own_is_fitted_judged_drawn_and_sampled(tmp_path):
    rng = np.random.default_rng(0)
    theta = rng.random((128, 2))
    flux = theta.repeat(2, 1) + 0.1 * rng.normal(size=(128, 4))
    names = ["age", "mass", "id", *(f"flux_{i}" for i in range(4))]
    table = np.column_stack([theta[:, ::-1], np.arange(128), flux])
    np.savetxt(tmp_path / "pairs.csv", table, delimiter=",", header=",".join(names), comments="")
    keys = ("--theta-key", "mass, age", "--x-key", "flux_*")
    small = ("--prior", "uniform(0,1)^2", "--epochs", 2, "--members", 1, "--method", "npe", "--quiet")
    told = equipoise("fit", tmp_path / "pairs.csv", *small, "--out", tmp_path / "m", code=2).output
    assert "--theta-key" in told and "'mass'" in told
    equipoise("fit", tmp_path / "pairs.csv", *small, *keys, "--out", tmp_path / "m")
    same = eq.fit(theta, flux, prior=BoxUniform([0, 0], [1, 1]), method="npe", epochs=2, members=1, progress=False)
    saved = eq.load(tmp_path / "m")
    x = flux[0].astype(np.float32)
    torch.testing.assert_close(saved.log_prob(theta[:5], x), same.log_prob(theta[:5], x))

    judge = ("diagnose", tmp_path / "m", tmp_path / "pairs.csv", *keys, "--samples", 20, "--pairs", 50, "--quiet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these are the pairs it was trained with
        equipoise(*judge, "--figure", tmp_path / "new" / "curve.png")
        assert (tmp_path / "new" / "curve.png").read_bytes().startswith(b"\x89PNG")
        assert "--figure is a .png" in equipoise(*judge, "--figure", tmp_path / "curve.txt", code=2).output

    expected = saved.sample((7,), x, seed=3).numpy()
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x_o=x, other=x)
    numbers = [f"{v:.9g}" for v in x]
    (tmp_path / "x.txt").write_text("# four fluxes\n" + " ".join(numbers))
    (tmp_path / "x.csv").write_text(",".join(numbers))
    (tmp_path / "named.csv").write_text(",".join(names[3:]) + "\n" + ",".join(numbers))
    (tmp_path / "row.csv").write_text(",".join(names) + "\n0,0,3," + ",".join(numbers))
    for file in ("x.npy", "x.npz", "x.txt", "x.csv", "named.csv", "row.csv"):
        key = ("--x-key", "flux_*") if file == "row.csv" else ()
        drawn = equipoise("sample", tmp_path / "m", tmp_path / file, *key, "-n", 7, "--seed", 3).stdout
        assert drawn.splitlines()[0] == "mass,age"  # the names of the columns
        np.testing.assert_allclose(np.loadtxt(io.StringIO(drawn), delimiter=",", skiprows=1), expected, rtol=1e-6)
    for file in ("d.csv", "d.npy"):
        told = equipoise(
            "sample", tmp_path / "m", tmp_path / "x.npy", "-n", 7, "--seed", 3, "-o", tmp_path / file
        ).output
        assert "age: " in told and "7 draws are in" in told
    np.testing.assert_array_equal(np.load(tmp_path / "d.npy"), expected)
    np.save(tmp_path / "odd.npy", flux[:2, :3])
    for wrong, words in (
        ((tmp_path / "odd.npy",), "the model reads x of shape (4,), one or several along the first axis"),
        ((tmp_path / "nowhere.npy",), "there is no file"),
        ((tmp_path / "pairs.csv",), "is called x or x_…"),
        ((tmp_path / "row.csv", "--x-key", "flx_*"), "has no column 'flx_*'"),
        ((tmp_path / "x.npz", "--x-key", "y"), "has no key 'y'"),
        ((tmp_path / "x.npy", "-o", tmp_path / "d.txt"), "--out is a .csv or .npy file"),
        ((tmp_path / "x.npy", "-n", 0), "--number"),
    ):
        assert words in equipoise("sample", tmp_path / "m", *wrong, code=2).output

    own = eq.fit(theta, flux, prior=Opaque(), method="npe", epochs=1, members=1, progress=False)
    own.save(tmp_path / "own")
    assert "in the shell, --prior SPEC" in equipoise("sample", tmp_path / "own", tmp_path / "x.npy", code=2).output
    equipoise("sample", tmp_path / "own", tmp_path / "x.npy", "--prior", "uniform(0,1)^2")


def test_warnings_are_told_in_a_line_and_keys_can_be_named(tmp_path):
    rng = np.random.default_rng(0)
    theta = rng.random((101, 1), np.float32)
    x = theta + rng.normal(size=theta.shape).astype(np.float32)
    x[3] = np.nan
    np.savez(tmp_path / "pairs.npz", thetas=theta, x=x, y=x)
    data, prior = tmp_path / "pairs.npz", ("--prior", "uniform(0,1)")
    options = (*prior, "--epochs", 1, "--members", 1, "--method", "npe", "--quiet")
    shown = warnings.showwarning

    def told(*arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # the tests' own filter makes errors of them
            return equipoise(*arguments).stderr.splitlines()

    first, second = told("fit", data, *options, "--out", tmp_path / "a")
    assert first.startswith(f"equipoise: warning: reading 'thetas' of {data}") and "--theta-key thetas" in first
    assert second.startswith("equipoise: warning: ") and "1 of 101" in second
    keys = ("--theta-key", "thetas", "--x-key", "y")
    assert told("fit", data, *options, "--out", tmp_path / "b", *keys) == [second]
    judged = told("diagnose", tmp_path / "b", data, *keys, "--samples", 20, "--quiet")
    assert second in judged and all(line.startswith("equipoise: warning: ") for line in judged)
    assert "no key 'z'" in equipoise("fit", data, *prior, "--out", tmp_path / "c", "--theta-key", "z", code=2).output
    assert warnings.showwarning is shown


def test_tasks_and_methods_are_listed():
    names = [t["name"] for t in json.loads(equipoise("tasks", "--json").stdout)]
    assert names == list(eq.TASKS)
    names = [m["name"] for m in json.loads(equipoise("methods", "--json").stdout)]
    assert names == list(eq.METHODS)
    assert "two_moons" in equipoise("tasks").output and "bnpe_init" in equipoise("methods").output


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "status",
        "merge",
        "report",
        "figures",
        "simulate",
        "fit",
        "diagnose",
        "calibrate",
        "sample",
        "tasks",
        "methods",
    ],
)
def test_every_command_has_help_with_an_example(command):
    text = equipoise(command, "--help").output
    assert "Example" in text and f"equipoise {command}" in text.replace("\n", " ")


def test_the_module_runs_and_completes():
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "_EQUIPOISE_COMPLETE": "complete_bash",
        "COMP_WORDS": "equipoise run --method bnpe_",
        "COMP_CWORD": "3",
    }
    words = subprocess.run(
        [sys.executable, "-c", "from equipoise.cli import app; app(prog_name='equipoise')"],
        env=env,
        capture_output=True,
        text=True,
    )
    assert words.stdout.split() == ["bnpe_init"], words.stderr
    plain = {k: v for k, v in env.items() if not k.startswith(("_EQ", "COMP"))}
    shown = subprocess.run(
        [sys.executable, "-m", "equipoise", "--help"], env=plain, capture_output=True, text=True, check=True
    )
    assert "equipoise run" in shown.stdout


def test_help_needs_no_torch():
    code = (
        "import sys; from equipoise.cli import app; app(['run', '--help'], standalone_mode=False); "
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "False" and "--method" in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "{out}"],
        ["status", "{out}", "--csv"],
        ["merge", "{out}", "--out", "{new}"],
        ["report", "{out}", "--out", "{new}/report.html"],
        ["figures", "{out}", "--out", "{new}"],
    ],
    ids=lambda arguments: " ".join(a for a in arguments if a[0] != "{" and a != "--out"),
)
def test_what_only_reads_needs_no_torch(finished, tmp_path, arguments):
    """It takes seconds, and most of the memory of these commands (`benchmarks/load.py`)."""
    places = {"out": finished[0] / "out", "new": tmp_path / "new"}
    code = (
        "import sys; from equipoise.cli import app; "
        f"code = app({[a.format(**places) for a in arguments]!r}, standalone_mode=False); "
        "print(code or 0, sorted({'torch', 'numba'} & sys.modules.keys()))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "0 []"
    assert arguments[0] == "status" or any(places["new"].iterdir())


# --- what a training keeps ------------------------------------------------------------------------------------------

#: The command, with a checkpoint after the first epoch, that tells where it goes on.
EAGER = """
import sys
from equipoise.training.checkpoint import Checkpoint
Checkpoint.due = lambda self: not self.path.exists()
load = Checkpoint.load
def tell(self):
    found = load(self)
    print("begins at epoch", 0 if found is None else int(found["epochs_done"]), file=sys.stderr, flush=True)
    return found
Checkpoint.load = tell
from equipoise.cli import app
app(prog_name="equipoise")
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Two hundred pairs of one parameter and ten numbers."""
    rng = np.random.default_rng(0)
    theta = rng.random((200, 1), np.float32)
    file = tmp_path_factory.mktemp("few") / "pairs.npz"
    np.savez(file, theta=theta, x=theta + rng.normal(size=(200, 10)).astype(np.float32))
    return file


@pytest.mark.slow
def test_a_fit_that_is_stopped_goes_on(few, tmp_path):
    options = ("--prior", "uniform(0,1)", "--method", "npe", "--members", 2, "--batch-size", 32, "--epochs", 20)

    def command(out):
        return "fit", few, *options, "--out", tmp_path / out

    def ended(process, code=0):
        _, told = process.communicate(timeout=300)
        assert process.returncode == code, told
        return told

    kept = tmp_path / "stopped" / "checkpoint"
    first = Forked(EAGER, *command("stopped"))
    until = time.monotonic() + 240
    while not any(kept.glob("*.safetensors")) and time.monotonic() < until and first.poll() is None:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    told = ended(first, 130)
    assert re.search(rf"stopped; {re.escape(str(kept))} keeps the training as it was \d s ago", told), told
    assert "the same command goes on from there" in told
    assert not (tmp_path / "stopped" / "model.json").exists()

    # Another training does not take it over.
    told = equipoise(*command("stopped"), "--seed", 1, code=2).output
    assert "an unfinished training of other data or options" in told and "--force" in told

    told = ended(Forked(EAGER, *command("stopped")))
    assert int(told.split("begins at epoch ")[1].split()[0]) > 0 and f"{kept} keeps an unfinished training" in told
    assert not kept.exists()
    assert "begins at epoch 0" in ended(Forked(EAGER, *command("whole")))
    one, other = (eq.load(tmp_path / out).stack for out in ("stopped", "whole"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def test_force_begins_a_training_anew_that_was_left_by_another(few, tmp_path):
    kept = tmp_path / "m" / "checkpoint"
    kept.mkdir(parents=True)
    (kept / "stack-0.safetensors").write_bytes(b"of another version")
    arguments = ("fit", few, "--prior", "uniform(0,1)", "--method", "npe", "--members", 1, "--epochs", 1)
    told = equipoise(*arguments, "--out", tmp_path / "m", code=2).output
    assert "--force to begin anew" in told and "begin anew" in told and kept.exists()
    equipoise(*arguments, "--out", tmp_path / "m", "--force", "--quiet")
    assert not kept.exists() and eq.load(tmp_path / "m").n_members == 1


@pytest.mark.parametrize(
    ("command", "place", "words"),
    [
        (["fit", "{few}", "--prior", "uniform(0,1)", "--out", "m"], "training.fit", "nothing was kept"),
        (["diagnose", "m", "{few}"], "posteriors.load", "nothing was kept"),
        (["run", "--task", "slcp", "--out", "o"], "cli.run.compute", "what is finished is kept"),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else None,
)
def test_what_is_said_of_what_is_kept_is_true(command, place, words, few, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"equipoise.{place}", interrupted)
    told = equipoise(*(c.format(few=few) for c in command), code=130).output
    assert words in told and ("goes on" in told) == ("run" in command) != ("begins anew" in told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_a_destructor_is_not_lost(number, tmp_path, monkeypatch):
    class Object:
        def __del__(self):
            signal.raise_signal(number)  # Python drops what a destructor raises

    def interrupted(*_, **__):
        Object()
        for _ in range(400):
            time.sleep(0.05)
        raise AssertionError("nobody stopped")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.cli.run.compute", interrupted)
    told = equipoise("run", "--grid", "demo", code=130).output
    assert "goes on from there" in told


# --- shapes and embeddings of your own ------------------------------------------------------------------------------

NETS = """
from torch import nn
from beside import WIDTH

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(10, WIDTH), nn.ReLU())

    def forward(self, x):
        assert x.shape[1:] == (5, 2)
        return self.layers(x)

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()

def made():
    return Encoder()

ready = Encoder()
number = 3

def failing():
    raise OSError("no weights")

def nothing():
    return "a string"
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(NETS)
    (tmp_path / "beside.py").write_text("WIDTH = 3")
    (tmp_path / "broken.py").write_text("import nowhere_at_all")
    monkeypatch.chdir(tmp_path)
    yield "my_nets.py"
    for name in ("my_nets", "beside"):
        sys.modules.pop(name, None)


def test_tables_of_series_and_an_embedding_of_your_own(few, tmp_path, nets):
    pairs = np.load(few)
    table = np.hstack([pairs["theta"], pairs["x"]])
    head = ",".join(["theta", *(f"x_{i}" for i in range(10))])
    for name, rows in (("pairs", slice(100)), ("fresh", slice(100, None))):
        np.savetxt(f"{name}.csv", table[rows], delimiter=",", header=head, comments="")
    options = ("--prior", "uniform(0,1)", "--method", "npe", "--members", 2, "--epochs", 2, "--batch-size", 90)
    shape, own = ("--x-shape", "5,2"), ("--embedding", f"{nets}:Encoder")
    equipoise("fit", "pairs.csv", *options, *shape, *own, "--out", "m", "--quiet")
    equipoise("fit", "pairs.csv", *options, *shape, "--embedding", "convolution", "--out", "c", "--quiet")
    assert any(name.startswith("conv.") for name in eq.load("c").stack)
    posterior = eq.load("m", embedding=read_embedding(f"{nets}:ready"))
    assert posterior.x_shape == (5, 2) and posterior.record["settings"]["batch_size"] == 90
    # A table is read in the model's shape, with or without being told so.
    arguments = ("diagnose", "m", "fresh.csv", "--samples", 20, "--json", "--quiet", *own)
    found = json.loads(equipoise(*arguments).stdout)
    assert found == json.loads(equipoise(*arguments, *shape).stdout) and found["gain"] is not None
    told = equipoise("diagnose", "m", "fresh.csv", code=2).output
    assert "--embedding FILE.py:NAME" in told
    assert "cannot be reshaped to (4, 2)" in equipoise(*arguments, "--x-shape", "4,2", code=2).output
    for text in ("5,two", "", "5,-2", "0"):
        told = equipoise("fit", "pairs.csv", *options, "--x-shape", text, "--out", "n", code=2).output
        assert "--x-shape is the shape of one x" in told


def test_a_store_has_a_shape_of_its_own(tmp_path):
    eq.simulate(eq.BoxUniform([0.0], [1.0]), lambda theta: theta.expand(-1, 10), 64, store=tmp_path / "store")
    arguments = ("fit", tmp_path / "store", "--prior", "uniform(0,1)", "--out", tmp_path / "m", "--x-shape", "5,2")
    assert "knows the shape of its x" in equipoise(*arguments, code=2).output
    np.savez(tmp_path / "pairs.npz", theta=np.zeros((4, 1)), x=np.zeros((4, 10)))
    with pytest.raises(ValueError, match="x_shape is a whole number"):  # the product is right
        eq.read_simulations(tmp_path / "pairs.npz", x_shape=(-5, -2))


@pytest.mark.parametrize("name", ["Encoder", "made", "ready"])
@pytest.mark.parametrize("where", ["my_nets.py", "my_nets", "{folder}/my_nets.py"])
def test_embeddings_are_found(name, where, tmp_path, nets):
    before = list(sys.path)
    found = read_embedding(f"{where.format(folder=tmp_path)}:{name}", seed=3)
    assert type(found).__name__ == "Encoder" and sys.path == before
    if name == "Encoder":
        again = read_embedding(f"{where.format(folder=tmp_path)}:{name}", seed=3)
        assert torch.equal(found.layers[1].weight, again.layers[1].weight)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("my_nets.py", "is FILE.py:NAME or MODULE:NAME"),
        (":Encoder", "is FILE.py:NAME or MODULE:NAME"),
        ("my_nets.py:", "is FILE.py:NAME or MODULE:NAME"),
        ("nets.py:Encoder", "there is no file nets.py"),
        ("not_there:Encoder", "not_there cannot be imported"),
        ("broken.py:Encoder", "No module named 'nowhere_at_all'"),
        ("my_nets.py:Encodr", "has no Encodr; there are Encoder"),
        ("my_nets.py:Wide", "it is called without arguments"),
        ("my_nets.py:failing", "no weights"),
        ("my_nets.py:nothing", "gives str, not an nn.Module"),
        ("my_nets.py:number", "gives int, not an nn.Module"),
    ],
)
def test_embeddings_that_cannot_be(text, words, few, nets):
    told = equipoise("fit", few, "--prior", "uniform(0,1)", "--out", "m", "--embedding", text, code=2).output
    assert words in told and len(told.splitlines()) == 1 and not Path("m").exists()


# --- priors as text --------------------------------------------------------------------------------------------------


def test_priors_as_text(tmp_path):
    box = parse_prior(" uniform( -3, 3 )^2 , Uniform(0,5)")
    assert isinstance(box, BoxUniform) and box.low.tolist() == [-3, -3, 0] and box.high.tolist() == [3, 3, 5]
    mixed = parse_prior("normal(0,1)**2,lognormal(1,0.5)")
    assert isinstance(mixed, IndependentPrior) and mixed.dim == 3
    theta = torch.tensor([[0.3, -1.0, 2.0]])
    want = torch.distributions.Normal(0.0, 1.0).log_prob(theta[:, :2]).sum(-1)
    want = want + torch.distributions.LogNormal(1.0, 0.5).log_prob(theta[:, 2])
    torch.testing.assert_close(mixed.log_prob(theta), want)
    (tmp_path / "prior.json").write_text(json.dumps(mixed.spec()))
    again = parse_prior(str(tmp_path / "prior.json"))
    torch.testing.assert_close(again.log_prob(theta), want)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_named_distribution_can_start_a_flow(name):
    numbers = {"halfnormal": "(2)", "exponential": "(2)", "studentt": "(3, 0.5, 2)"}.get(name, "(0.5, 2)")
    prior = parse_prior(f"{name}{numbers}, normal(0,1)")
    theta = prior.sample((100,))
    torch.testing.assert_close(prior.from_normal(prior.to_normal(theta)), theta, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read the prior"),
        ("uniform", "cannot read the prior"),
        ("uniform(0,1) normal(0,1)", "separated by commas"),
        ("uniform(0,1),", "cannot read the prior"),
        ("uniform(1,0)", "low has to be less than high"),
        ("loguniform(0,1)", "0 < low < high"),
        ("studentt(3)", "takes 3 number.*degrees of freedom"),
        ("uniform(1e44,1e45)", "single precision"),
        ("uniform(2459000,2459000.1)", "single precision"),
        ("loguniform(1e-60,1)", "single precision"),
        ("normal(0,1e40)", "1e.40 does not fit single precision"),
        ("normal(0,1e-60)", "1e-60 does not fit single precision"),
        ("uniform(0)", "takes 2 number"),
        ("normal(0,one)", "should be numbers"),
        ("normal(0,-1)", "is no distribution"),
        ("uniform(0,1)^0", "no parameters"),
        ("nowhere.json", "no file nowhere.json"),
    ],
)
def test_priors_that_cannot_be(text, words):
    with pytest.raises(ValueError, match=words):
        parse_prior(text)


MARGINAL = '{"kind": "independent", "marginals": [%s]}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "it is no JSON"),
        ('[["uniform", 0, 1]]', "it holds a list instead of an object"),
        ("3", "it holds a number"),
        ('{"uniform": [0, 1]}', 'it has no "kind"'),
        ('{"kind": "uniform"}', 'its "kind" is "uniform"'),
        ('{"kind": "box"}', 'it has no "low"'),
        ('{"kind": "box", "low": [0], "high": ["a"]}', '"high" should be numbers'),
        ('{"kind": "box", "low": [1], "high": [0]}', "low < high"),
        ('{"kind": "box", "low": [1], "high": [2], "dtype": "int8"}', '"dtype" is float32 or float64'),
        ('{"kind": "gaussian", "loc": [0], "covariance": [[-1]]}', "positive definite"),
        ('{"kind": "independent", "marginals": {"name": "Normal"}}', '"marginals" should be a list'),
        (MARGINAL % '"Normal"', "a marginal is described like"),
        (MARGINAL % '{"name": "Normal", "arguments": [0, 1]}', "a marginal is described like"),
        (MARGINAL % '{"name": "Normal"}', 'it has no "arguments"'),
        (MARGINAL % '{"name": "normal", "arguments": {}}', "unknown marginal 'normal'"),
        (MARGINAL % '{"name": "Normal", "arguments": {"mean": 0, "scale": 1}}', "Normal takes loc, scale"),
        (MARGINAL % '{"name": "Normal", "arguments": {"loc": "a", "scale": 1}}', '"loc" should be numbers'),
        (MARGINAL % '{"name": "Normal", "arguments": {"loc": 0, "scale": -1}}', "Expected parameter scale"),
        (MARGINAL % '{"name": "scipy.stats.betta", "arguments": {}}', "no continuous distribution scipy.stats.betta"),
        (MARGINAL % '{"name": "scipy.stats.beta", "arguments": {"a": 1}}', "takes a, b"),
        (MARGINAL % '{"name": "os.system", "arguments": {"command": 1}}', "unknown marginal"),
    ],
)
def test_a_json_file_that_is_no_prior(text, words, tmp_path):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)) as told:
        parse_prior(str(tmp_path / "p.json"))
    # It says what the file has to look like, and what it says is true.
    shown = str(told.value)
    assert "p.json does not describe a prior: " in shown and "docs/priors.md" in shown and "\n" not in shown
    for form in FORMS:
        assert form in shown
        (tmp_path / "p.json").write_text(form)
        assert parse_prior(str(tmp_path / "p.json")).dim == 2


def test_a_json_file_of_a_prior_that_only_code_can_rebuild(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps(eq.as_prior(Opaque()).spec()))
    with pytest.raises(ValueError, match="only its code can rebuild"):
        parse_prior(str(tmp_path / "p.json"))


def test_a_prior_of_ones_own_in_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        """
import torch

class Ordered:
    def sample(self, shape=()):
        return torch.rand(*shape, 2).sort(-1, descending=True).values

    def log_prob(self, theta):
        a, b = theta[..., 0], theta[..., 1]
        return torch.where((b >= 0) & (a >= b) & (a <= 1), 0.693, -torch.inf)

ordered = Ordered()
number = 3

def broken():
    raise RuntimeError("no prior today")
"""
    )
    rng = np.random.default_rng(0)
    for name in ("pairs", "fresh", "square", "new"):
        theta = rng.random((128, 2))
        theta = np.sort(theta)[:, ::-1] if name in ("pairs", "fresh") else theta
        np.savez(f"{name}.npz", theta=theta, x=theta + 0.1 * rng.normal(size=theta.shape))
    small = ("--epochs", 1, "--members", 1, "--quiet", "--prior")
    fit = ("fit", "pairs.npz", *small)
    asked = equipoise(*fit, "mine.py:Ordered", "--out", "m", "--method", "bnpe_init", code=2)
    assert "--method bnpe" in asked.output
    for name, words in (("number", "sample and log_prob; got int"), ("broken", "no prior today"), ("nobody", "has no")):
        assert words in equipoise(*fit, f"mine.py:{name}", "--out", "m", code=2).output
    equipoise(*fit, "mine.py:Ordered", "--out", "m", "--method", "npe")
    assert "in the shell, --prior SPEC" in equipoise("diagnose", "m", "fresh.npz", code=2).output
    judged = equipoise("diagnose", "m", "fresh.npz", "--samples", 20, "--json", "--prior", "mine.py:ordered").stdout
    assert json.loads(judged)["leakage"] > 0  # what lies beyond the triangle
    # A model that stores its prior is not judged under another one.
    equipoise("fit", "square.npz", *small, "uniform(0,1)^2", "--out", "stored", "--method", "npe")
    judge = ("diagnose", "stored", "new.npz", "--samples", 20, "--quiet", "--prior")
    equipoise(*judge, "uniform(0, 1), uniform(0, 1)")
    assert "stores its prior, BoxUniform" in equipoise(*judge, "uniform(0, 2)^2", code=2).output


NUMBERS = ["-1", "0", "nan", "inf", "1e400", "1" + "0" * 30, "", "x"]
WHOLE = [v for v in NUMBERS if v not in ("-1", "0")]
#: What numeric options refuse, by command: all of these, but 0 where it is a number like others.
OPTIONS = {
    "run": {"budget": NUMBERS, "runs": NUMBERS, "members": NUMBERS, "epochs": NUMBERS, "pairs": NUMBERS}
    | {
        "seed": [*WHOLE, "-1"],
        "threads": NUMBERS,
        "stack": NUMBERS,
        "stop-after": ["-1", "nan", "inf", "1e400", "", "x"],
    }
    | {"pace": ["-1", "nan", "inf", "1e400", "", "x"]},
    "simulate": {"number": NUMBERS, "seed": [*WHOLE, "-1"], "workers": ["0", "-2", *WHOLE]},
    "fit": {"members": NUMBERS, "folds": NUMBERS, "epochs": NUMBERS, "batch-size": NUMBERS, "seed": [*WHOLE, "-1"]},
    "diagnose": {"pairs": NUMBERS, "samples": NUMBERS, "seed": [*WHOLE, "-1"]},
    "calibrate": {"pairs": NUMBERS, "alpha": NUMBERS, "delta": [*WHOLE, "-1"], "seed": [*WHOLE, "-1"]},
    "sample": {"number": NUMBERS, "seed": [*WHOLE, "-1"]},
}
#: Files that cannot be read or written.
FILES = ["directory", "nothing-there", "empty", "junk.npz", "junk.h5", "deep.json", "nul\0", "a" * 300, "/proc/x/y"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A model, pairs, and files that are none; and the commands with arguments that are right."""
    path = tmp_path_factory.mktemp("prepared")
    theta = BoxUniform([0.0, 0.0], [1.0, 1.0]).sample((60,))
    np.savez(path / "pairs.npz", theta=theta, x=theta + 0.1)
    np.save(path / "x.npy", np.zeros(2))
    eq.fit(
        theta, theta, prior=BoxUniform([0.0, 0.0], [1.0, 1.0]), method="nre", members=1, epochs=1, progress=False,
        validation_fraction=0.2, settings=eq.Settings(compile=False),
    ).save(path / "model")  # fmt: skip
    (path / "directory").mkdir()
    (path / "empty").touch()
    for name in ("junk.npz", "junk.h5"):
        (path / name).write_bytes(b"junk")
    (path / "deep.json").write_text("[" * 100_000)
    (path / "mine.py").write_text("def simulator(theta): return theta\n")
    (path / "small.toml").write_text(GRID)
    commands = {
        "run": ["--grid", "small.toml", "--out", "new", "--dry-run"],
        "simulate": ["mine.py:simulator", "--prior", "uniform(0,1)^2", "-n", "5", "--out", "new.h5"],
        "fit": ["pairs.npz", "--prior", "uniform(0,1)^2", "--out", "new"],
        "diagnose": ["model", "pairs.npz"],
        "calibrate": ["model", "pairs.npz", "--out", "new"],
        "sample": ["model", "x.npy"],
    }
    return path, commands


def refused(arguments, word):
    """One clear message that has the word, and neither a traceback nor a file."""
    before = sorted(Path().rglob("*"))
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code in (1, 2) and isinstance(result.exception, SystemExit), (arguments, result.exception)
    assert re.search(word, result.output) and "Traceback" not in result.output, (arguments, result.output)
    assert len(result.output) < 2000 and sorted(Path().rglob("*")) == before, (arguments, result.output)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", OPTIONS)
def test_numbers_that_are_none_are_refused_by_the_name_of_their_option(command, prepared, monkeypatch):
    path, commands = prepared
    monkeypatch.chdir(path)
    for option, values in OPTIONS[command].items():
        for value in values:
            refused([command, *commands[command], f"--{option}", value], option.replace("-", "[-_]"))


@pytest.mark.filterwarnings("ignore")
def test_files_that_are_none_are_refused_by_name(prepared, monkeypatch):
    path, commands = prepared
    monkeypatch.chdir(path)
    for file in FILES:
        name = "nul" if "\0" in file else re.escape(file[:100])
        for command in ("status", "report", "figures"):
            refused([command, file], name)
        refused(["merge", file, "--out", "new"], name)
        refused(["fit", file, *commands["fit"][1:]], name)
        for command in ("diagnose", "calibrate", "sample"):
            refused([command, file, *commands[command][1:]], name)
            refused([command, "model", file, *commands[command][2:]], name)
        refused(["run", "--grid", file, "--dry-run"], name)


@pytest.mark.filterwarnings("ignore")
def test_outputs_that_cannot_be_written_are_refused_by_the_name_of_their_option(prepared, monkeypatch):
    path, commands = prepared
    monkeypatch.chdir(path)
    for file in ("empty", "/proc/x/y", "a" * 300, "nul\0"):
        refused(
            ["run", "--grid", "small.toml", "--out", file, *([] if file.startswith("/") else ["--dry-run"])], "--out"
        )
        for command in ("simulate", "fit", "calibrate"):
            refused([command, *commands[command], "--out", file], "--out")
        refused(
            ["sample", *commands["sample"], "--out", file if file == "directory" else f"{file}.csv"], "--out"
        ) if file != "empty" else None
    for command, option in (("diagnose", "--out"), ("diagnose", "--figure"), ("sample", "--out")):
        refused([command, *commands[command], option, "directory"], option)
