"""Files are data: no command that reads an experiment runs code that the experiment names."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments import Folder, GridError, load_grid, read_results, run_grid, state_of, write_results
from equipoise.experiments.cells import stack_identity

#: The task of an attacker: as a module that the working directory holds, and as a program by way of `os.system`.
NAMES = ("evil:Task", "evil.py:Task", 'os:system[command="touch ran"]')


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a module whose import leaves a trace."""
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nclass Task: ...\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / "ran").exists(), "code named by a data file was run"


def _entry(name):
    return {"name": "os:system", "command": "touch ran"} if name.startswith("os:") else name


def _command(*arguments) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.fixture
def stored(undisturbed, place):
    """A finished experiment that the test may spoil."""
    shutil.copytree(undisturbed, place / "out")
    return Folder(place / "out")


@pytest.mark.parametrize(("name", "with_facts"), [*((n, False) for n in NAMES), (NAMES[0], True), (NAMES[2], True)])
def test_a_stored_grid_is_data(name, with_facts, stored) -> None:
    about = json.loads((stored.path / "grid.json").read_text())
    label = _entry(name) if isinstance(_entry(name), str) else "os:system[command=touch ran]"
    about["grid"]["tasks"] = ["slcp", _entry(name)]
    if with_facts:
        about["grid"]["user_tasks"] = {label: {"options": {"command": "touch ran"}, "x_dims": 1, "planar": True}}
    (stored.path / "grid.json").write_text(json.dumps(about))
    for arguments in (["status"], ["status", "--csv"], ["status", "--json"], ["report"], ["figures"]):
        _command(arguments[0], stored.path, *arguments[1:])
    _command("merge", stored.path, "--out", "merged")
    _command("merge", stored.path, "--out", "merged.nc")
    if not with_facts:
        with pytest.raises(GridError, match="was not imported"):
            state_of(load_grid(about["grid"]), stored)


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_stack_is_data(name, stored) -> None:
    for identity in stored.stacks():
        ds = xr.load_dataset(stored.stack_file(identity), engine="h5netcdf").assign_attrs(task=name)
        cells = [f"{i}{cell[1:]}" for i, cell in enumerate(ds["cell"].values)]
        stored.stack_file(identity).unlink()
        stored.write_stack(stack_identity(cells), ds.assign_coords(cell=cells))
    for command in ("status", "report", "figures"):
        _command(command, stored.path)
    _command("merge", stored.path, "--out", "merged")


@pytest.mark.parametrize("name", NAMES[::2])
def test_results_are_data(name, undisturbed, place) -> None:
    ds = read_results(write_results(Folder(undisturbed), file=place / "clean.nc"))
    ds = ds.assign_coords(task=np.array([name] * ds.sizes["task"], dtype=object))
    ds.attrs["config"] = ds.attrs["config"].replace('"slcp"', json.dumps(_entry(name)))
    ds.to_netcdf(place / "evil.nc", engine="h5netcdf")
    for command in ("report", "figures"):
        _command(command, place / "evil.nc")
    assert isinstance(read_results(place / "evil.nc"), xr.Dataset)


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_imports_nothing(name, place) -> None:
    entry = _entry(name)
    task = json.dumps(entry) if isinstance(entry, str) else '{name = "os:system", command = "touch ran"}'
    (place / "grid.toml").write_text(f'tasks = [{task}]\nmethods = ["npe"]\nbudgets = [128]\n')
    out = _command("run", "--grid", "grid.toml", "--dry-run")
    assert "imports no task" in out and "128" in out
    _command("run", "--task", name, "--method", "npe", "--budget", 128, "--dry-run")
    load_grid(place / "grid.toml")


def test_a_foreign_folder_is_data_to_a_run_of_another_grid(stored) -> None:
    about = stored.read_grid()
    changed = about["grid"] | {"tasks": ["evil:Task"]}
    (stored.path / "grid.json").write_text(json.dumps(about | {"grid": changed}))
    run_grid(load_grid(about["grid"]), stored.path, threads=1, device="cpu")
    assert write_results(stored).is_file()


def test_a_grid_file_cannot_vouch_for_a_task(place) -> None:
    (place / "grid.toml").write_text(
        'tasks = ["evil:Task"]\nmethods = ["npe"]\nbudgets = [128]\n'
        '[user_tasks."evil:Task"]\nx_dims = 1\nplanar = true\n[user_tasks."evil:Task".options]\ncode = "0"\n'
    )
    assert "imports no task" in _command("run", "--grid", "grid.toml", "--dry-run")


def test_run_imports_what_its_own_command_names(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import equipoise as eq\nopen('ran', 'w').close()\n"
        "class Task:\n    prior = eq.BoxUniform([0.0], [1.0])\n    def simulate(self, theta): return theta\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = "run --task mine.py:Task --method npe --budget 128 --runs 1 --epochs 1 --pairs 50 --out out --no-report"
    output = _command(*arguments.split())
    assert "importing mine.py:Task" in output and (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    assert "done" in _command("status", "out") and not (tmp_path / "ran").exists()
    assert "nothing is missing" in _command(*arguments.split(), "--dry-run") and not (tmp_path / "ran").exists()
