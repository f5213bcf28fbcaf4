"""Damaged files: named, counted as missing, computed again."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import xarray as xr
from blank_stacks import blank
from experiments_tiny import TINY, assert_same_cells
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.experiments import (
    Folder,
    cells_of,
    collect,
    load_grid,
    merge,
    missing_stacks,
    read_results,
    run_grid,
    stacks_of,
    state_of,
)
from equipoise.experiments.packed import pack
from equipoise.support.errors import DamagedFile
from equipoise.support.files import append_digest
from equipoise.support.hdf5 import MARK


def flipped(contents: bytes, place: float) -> bytes:
    at = int(place * (len(contents) - 1))
    return contents[:at] + bytes([contents[at] ^ 1]) + contents[at + 1 :]


DAMAGE = {
    "empty": lambda contents: b"",
    "short": lambda contents: contents[:10],
    "cut": lambda contents: contents[: len(contents) // 2],
    "longer": lambda contents: contents + b"\0",
    "foreign": lambda contents: b"PK\x03\x04" + bytes(500),
    **{f"a bit at {p}": lambda contents, p=p: flipped(contents, p) for p in (0.0, 0.03, 0.3, 0.7, 1.0)},
}


@pytest.fixture
def stored(undisturbed, tmp_path) -> Folder:
    """A finished experiment that the test may spoil."""
    shutil.copytree(undisturbed, tmp_path / "out")
    return Folder(tmp_path / "out")


def spoil(file: Path, kind: str) -> None:
    file.write_bytes(DAMAGE[kind](file.read_bytes()))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_stack_counts_as_missing(kind, stored):
    identity = stored.stacks()[3]
    spoil(stored.stack_file(identity), kind)
    assert identity not in stored.stacks() and not stored.has(identity)
    with pytest.warns(UserWarning, match=f"{identity}.nc"):
        state = state_of(load_grid(TINY), stored)
    assert (state.count("done"), state.count("missing")) == (7, 1)
    with pytest.warns(UserWarning, match=f"{identity}.nc"):
        ds = collect(stored)
    assert ds.attrs["cells_done"] == 7 and int(np.isnan(ds["coverage_auc"]).sum()) == 1
    with pytest.warns(UserWarning, match=f"{identity}.nc"):
        out = merge([stored.path], stored.path.parent / "merged")
    assert len(out.stacks()) == 7


def test_a_damaged_stack_is_computed_again(stored, undisturbed):
    identity = stored.stacks()[0]
    spoil(stored.stack_file(identity), "cut")
    with pytest.warns(UserWarning, match=f"{identity}.nc"):
        state = run_grid(load_grid(TINY), stored.path, threads=1, device="cpu")
    assert state.complete
    assert_same_cells(undisturbed, stored.path)


def test_commands_name_a_damaged_stack_and_go_on(stored, tmp_path):
    identity = stored.stacks()[0]
    spoil(stored.stack_file(identity), "cut")
    for arguments in (["status", "{out}"], ["report", "{out}"], ["merge", "{out}", "--out", "{out}-merged.nc"]):
        with warnings.catch_warnings():
            warnings.simplefilter("always")  # here warnings are errors
            result = CliRunner().invoke(app, [a.format(out=stored.path) for a in arguments])
        assert result.exit_code == (1 if arguments[0] == "status" else 0), result.output
        assert f"{identity}.nc" in result.output


def test_damaged_exact_log_posteriors_are_computed_again(stored, undisturbed):
    for folder in ("stacks", "results.nc"):
        path = stored.path / folder
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (file,) = (stored.path / "exact").iterdir()
    whole = file.read_bytes()
    spoil(file, "a bit at 0.7")
    assert run_grid(load_grid(TINY), stored.path, threads=1, device="cpu").complete
    assert file.read_bytes() == whole and file.name in collect(stored).attrs["notes"]
    assert_same_cells(undisturbed, stored.path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"format": 1}', '{"format": 1, "grid": 3}'])
def test_a_damaged_grid_is_named(text, stored):
    (stored.path / "grid.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"grid\.json"):
        stored.read_grid()
    for command in ("status", "report", "figures"):
        result = CliRunner().invoke(app, [command, str(stored.path)])
        assert result.exit_code == 2 and "grid.json" in result.output


def test_damaged_results_are_named(stored):
    (stored.path / "results.nc").write_bytes(b"nothing")
    with pytest.raises(DamagedFile, match=r"results\.nc"):
        read_results(stored.path)


def test_a_flipped_bit_in_results_is_named(stored):
    spoil(stored.path / "results.nc", "a bit at 0.7")
    with pytest.raises(DamagedFile, match=r"results\.nc"):
        read_results(stored.path)


def test_a_stack_that_reads_another_file_is_refused(stored):
    """A digest says that a file is whole, not who made it."""
    (stored.path / "secret").write_bytes(bytes(range(100)))
    file = stored.stack_file(stored.stacks()[0])
    with h5py.File(file, "a") as made:
        shape = made["coverage_auc"].shape
        del made["coverage_auc"]
        made.create_dataset("coverage_auc", shape, "f8", external=[(str(stored.path / "secret"), 0, 80)])
    append_digest(file)
    with pytest.raises(DamagedFile, match="coverage_auc"):
        stored.read_stack(file.stem)
    assert file.stem not in stored.stacks()


def _one_level_less(header, arrays):
    arrays["level"] = arrays["level"][1:]
    for name in ("coverage", "coverage_lower", "coverage_upper"):
        arrays[name] = arrays[name][:, 1:]


def _of(name, value):
    """What gives a variable another value."""
    return lambda header, arrays: arrays.__setitem__(name, value(arrays[name]))


def _about(name, value):
    """What gives an attribute another value."""
    return lambda header, arrays: header.__setitem__(name, value)


#: What somebody else's stack may have, under a digest that is right.
FOREIGN = {
    "a missing variable": lambda header, arrays: arrays.pop("verdict_p_value"),
    "a missing variable, said to be of an earlier version": lambda header, arrays: (
        header.__setitem__("format", 2),
        arrays.pop("verdict_p_value"),
    ),
    "no cells": lambda header, arrays: arrays.pop("cell"),
    "no levels": lambda header, arrays: arrays.pop("level"),
    "no method": lambda header, arrays: arrays.pop("method"),
    "a missing attribute": lambda header, arrays: header.pop("hardware"),
    "members that are NaN": _about("members", float("nan")),
    "no members": _about("members", 0),
    "more members": _about("members", 10**9),
    "members that are a text": _about("members", "2"),
    "a budget that is a list": _about("budget", [128]),
    "a task that is a number": _about("task", 3),
    "notes that are no JSON": _about("notes", "["),
    "notes that are nested": _about("notes", "[" * 100_000),
    "notes that are numbers": _about("notes", "[1]"),
    "seconds that are NaN": _about("seconds", float("nan")),
    "a cost of nothing": _about("cost", 0),
    "a device that is a list": _about("device", ["cpu", ["cuda"]]),
    "another shape": _of("coverage_auc", lambda v: v[:, None]),
    "fewer numbers": _of("coverage", lambda v: v[:, :50]),
    "more cells": _of("cell", lambda v: np.array([*v, "0" * 20], dtype=object)),
    "other cells": _of("cell", lambda v: np.array(["0" * 20] * len(v), dtype=object)),
    "more numbers than cells": _of("coverage_auc", lambda v: np.repeat(v, 2)),
    "whole numbers": _of("coverage_auc", lambda v: v.astype(np.int64)),
    "texts": _of("coverage_auc", lambda v: np.array(["x"] * len(v), dtype=object)),
    "numbers for texts": _of("verdict", lambda v: np.zeros(len(v))),
    "another verdict": _of("verdict", lambda v: np.array(["<b>"] * len(v), dtype=object)),
    "a coverage of 2": _of("coverage", lambda v: v + 2),
    "a run that is half": _of("run", lambda v: v + 0.5),
    "a negative run": _of("run", lambda v: v - 5),
    "epochs downwards": _of("epoch", lambda v: v[::-1].copy()),
    "other levels": _of("level", lambda v: v**2),
    "one level less": _one_level_less,
    "a task's value for each cell": _of("expected_log_prob", lambda v: np.zeros(3)),
    "names that are no JSON": _of("task_parameters", lambda v: np.array("{", dtype=object)),
    "a picture of another size": _of("gallery_density", lambda v: v[:, :10]),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_stack_with_a_right_digest_that_is_none_is_computed_again(kind, stored):
    identity = next(
        i for i in stored.stacks() if kind != "a picture of another size" or "picture" in stored.read_stack(i)[1]
    )
    file = stored.stack_file(identity)
    header, arrays = (dict(part) for part in stored.read_stack(identity))
    FOREIGN[kind](header, arrays)
    file.write_bytes(b"no NetCDF" + repacked(header, arrays) + MARK)
    append_digest(file)
    with pytest.raises(DamagedFile, match=identity):
        stored.read_stack(identity)
    assert identity not in stored.stacks() and not stored.has(identity)
    with pytest.warns(UserWarning, match=identity):
        ds = collect(stored)
    assert ds.attrs["cells_done"] == 7
    assert [s.identity for s in missing_stacks(load_grid(TINY), stored)] == [identity]
    stored.write_stack(identity, blank(next(s for s in stacks_of(load_grid(TINY)) if s.identity == identity)))
    assert stored.has(identity)


def repacked(header, arrays) -> bytes:
    """A stack's numbers as `pack` has them, whether or not their sizes agree."""
    variables = {name: xr.Variable([f"{name} {i}" for i in range(v.ndim)], v) for name, v in arrays.items()}
    return pack(SimpleNamespace(attrs=header, variables=variables))


def test_commands_go_on_without_a_stack_that_is_none(stored):
    identity = stored.stacks()[0]
    header, arrays = (dict(part) for part in stored.read_stack(identity))
    arrays["coverage"] = arrays["coverage"][:, :50]
    stored.stack_file(identity).write_bytes(repacked(header, arrays) + MARK)
    append_digest(stored.stack_file(identity))
    for arguments in (["status", "{out}"], ["report", "{out}"], ["merge", "{out}", "--out", "{out}-merged.nc"]):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            result = CliRunner().invoke(app, [a.format(out=stored.path) for a in arguments])
        assert result.exit_code == (1 if arguments[0] == "status" else 0), result.output
        assert f"{identity}.nc" in result.output


def test_stacks_of_an_earlier_version_are_named(stored):
    stored.stack_file(stored.stacks()[0]).rename(stored.path / "stacks" / "0123.npz")
    with pytest.warns(UserWarning, match="npz"):
        assert state_of(load_grid(TINY), stored).count("missing") == 1


def test_a_grid_of_a_newer_version_is_refused(stored):
    about = json.loads((stored.path / "grid.json").read_text()) | {"format": 99}
    (stored.path / "grid.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="newer"):
        stored.read_grid()


def test_a_grid_of_an_earlier_version_keeps_its_seeds_and_sets(stored):
    """Stored before seeds were keyed by grid: its cells are still found under the identities they had."""
    about = json.loads((stored.path / "grid.json").read_text())
    earlier = {k: v for k, v in about["grid"].items() if k not in ("streams", "share_rolls")}
    (stored.path / "grid.json").write_text(json.dumps(about | {"format": 2, "grid": earlier}))
    grid = load_grid(stored.read_grid()["grid"])
    assert grid.streams == "" and grid.share_rolls is True
    assert [c.identity for c in cells_of(grid)] == [c.identity for c in cells_of(load_grid(TINY | {"streams": ""}))]


def test_a_stack_of_a_newer_version_is_refused(stored):
    file = stored.stack_file(stored.stacks()[0])
    with h5py.File(file, "a") as made:
        made.attrs["format"] = 99
    append_digest(file)
    with pytest.raises(ValueError, match=r"newer Equipoise \(format 99\)$"):
        collect(stored)


def test_what_a_killed_process_left_of_a_finished_stack_is_removed(stored):
    """A process that is killed after it wrote a stack, and before it tidied up, leaves the state of its training."""
    done, other = stored.stacks()[0], "0" * 20
    for identity in (done, other):
        stored.checkpoint(identity).mkdir(parents=True)
        (stored.checkpoint(identity) / "stack-0.safetensors").write_bytes(b"state")
        stored.write_failure(identity, "an earlier failure")
    stored.heartbeat(done, "training", force=True)
    run_grid(load_grid(TINY), stored.path)
    assert not stored.checkpoint(done).exists() and stored.failure(done) is None and not stored.running()
    assert stored.checkpoint(other).exists() and stored.failure(other) is not None  # of a stack that is not finished
