"""Kills and failing disks at random moments of everything that writes: what was kept stays, and the rest is the same.

An operation runs in a forked child. It is killed after some time, killed between two calls to the file system, denied
a call (no space, input/output error), or cut off at some size of a file. After each of these, what is on disk is
whole: nothing that was there before is gone, and nothing half-written reads as whole. Then the operation is begun
again, until it ends, and has to give what it gives undisturbed, to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from safetensors import safe_open

import equipoise as eq
from equipoise.experiments import Folder, load_grid, merge, read_results, run_grid, runner, write_results
from equipoise.experiments.pipeline import compute_stack
from equipoise.posteriors.files import holds_model
from equipoise.report import write_report
from equipoise.simulations import store as stores
from equipoise.support.files import is_intact
from equipoise.support.hdf5 import read_netcdf, write_netcdf
from equipoise.training import checkpoint

#: Calls to the file system that are counted, besides `os.fsync`, which Python does not announce.
CALLS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod")
GRID: dict[str, Any] = {
    "tasks": ["slcp"], "methods": ["npe", "nre"], "budgets": [128], "runs": 2, "pairs": 50, "test": 50, "samples": 4,
    "hidden": [4], "transforms": 1, "stack": 1, "training": {"epochs": 3, "batch_size": 64},
}  # fmt: skip


class Operation(NamedTuple):
    """What `act` does in a folder; `prepare` comes before, `kept` says what is safely there, `final` what came out."""

    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    kept: Callable[[Path], Any]
    final: Callable[[Path], Any]


class Outcome(NamedTuple):
    """What was done to an operation, how it ended, and what was wrong after it ("" for nothing)."""

    operation: str
    moment: str
    struck: bool
    wrong: str


def digest(*arrays: Any) -> str:
    found = hashlib.blake2b(digest_size=8)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


# --- the operations ---------------------------------------------------------------------------------------------------


def _pairs() -> tuple[torch.Tensor, torch.Tensor, Any]:
    generator = torch.Generator().manual_seed(0)
    theta = 2 * torch.rand(200, 2, generator=generator) - 1
    return theta, theta + 0.3 * torch.randn(200, 2, generator=generator), eq.BoxUniform([-1.0, -1.0], [1.0, 1.0])


def _train(path: Path | None, seed: int = 0, epochs: int = 12) -> Any:
    theta, x, prior = _pairs()
    method = eq.METHODS["bnre"].but(hidden=(8,))
    settings = eq.Settings(compile=False)
    return eq.fit(
        theta, x, prior=prior, method=method, members=2, epochs=epochs, batch_size=64, settings=settings, seed=seed,
        checkpoint=path, progress=False, device="cpu",
    )  # fmt: skip


def _weights(posterior: Any) -> str:
    return digest(*(w.numpy() for _, w in sorted(posterior.stack.items())))


def fit_act(folder: Path) -> None:
    (folder / "out").write_text(_weights(_train(folder / "state")))


def fit_kept(folder: Path) -> int:
    file = folder / "state" / "stack-0.safetensors"
    if not file.exists():
        return 0
    with safe_open(file, "pt") as opened:
        identity = opened.metadata()["identity"]
    found = checkpoint.Checkpoint(file, identity).load()
    assert found is not None
    return int(found["epochs_done"])


def save_prepare(folder: Path) -> None:
    _train(None, seed=1, epochs=1).save(folder / "model")


def save_act(folder: Path) -> None:
    _train(None, seed=2, epochs=1).save(folder / "model", overwrite=True)


def model(folder: Path) -> list[str]:
    """The weights that are there, if any; a model that is there can be loaded."""
    if not holds_model(folder / "model"):
        assert not (folder / "model" / "model.json").exists(), "half a model"
        return []
    return [_weights(eq.load(folder / "model"))]


def save_final(folder: Path) -> Any:
    files = sorted(p.name for p in (folder / "model").iterdir())
    assert len(files) == 2, f"left behind: {files}"
    return model(folder)


def _batches(theta: torch.Tensor, seed: int) -> torch.Tensor:
    time.sleep(0.002)
    return theta + torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed))


def _rows(theta: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(theta)


def simulate_act(folder: Path, simulator: Any = _batches) -> None:
    prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
    batched = simulator is _batches
    options = {"batched": batched, "array": "torch" if batched else "numpy", "progress": False}
    eq.simulate(prior, simulator, 320, store=folder / "store", block_size=32, **options)


def simulate_kept(folder: Path) -> dict[str, str]:
    """The blocks that are there, each of which is whole."""
    if not (folder / "store" / "manifest.json").exists():
        return {}
    store = stores.Store(folder / "store")
    found = {n: store.block(n) for n in store.numbers()}
    for n in store.numbers("partial"):
        store.block(n, suffix="partial")
    return {f"block {n}": digest(b.theta, b.x) for n, b in found.items()}


def simulate_final(folder: Path) -> Any:
    left = [p.name for p in (folder / "store").iterdir() if p.suffix not in (".h5", ".json") or p.name[0] == "."]
    assert not left, f"left behind: {left}"
    return simulate_kept(folder)


def quick_stack(stack: Any, folder: Folder, *how: Any) -> None:
    """Stands for the computation of a stack, which takes a second or two."""
    time.sleep(0.01)
    sys.path.append(str(Path(__file__).parents[1] / "tools"))  # as a script it knows its own directory alone
    from blank_stacks import blank

    folder.write_stack(stack.identity, blank(stack))


class Way:
    """How stacks are computed, and a grid that was computed once, for the operations that read it."""

    compute: Callable[..., None] = staticmethod(compute_stack)
    finished: Path


def grid_act(folder: Path) -> None:
    state = run_grid(load_grid(GRID), folder / "out", threads=1, device="cpu", compute=Way.compute)
    if not state.complete:  # as the command line has it
        raise OSError(next(iter(state.failures.values()), "not complete"))


def stacks(path: Path) -> dict[str, str]:
    """The finished stacks, with all of their numbers but times; none of their files is damaged."""
    folder, found = Folder(path), {}
    for file in (path / "stacks").glob("[!.]*.nc"):
        assert is_intact(file), f"{file} is damaged"
    for identity in folder.stacks():
        _, variables = folder.read_stack(identity)
        found[identity] = digest(*(str(v.tolist()) for n, v in sorted(variables.items()) if "seconds" not in n))
    return found


def grid_final(folder: Path) -> Any:
    left = [p for sub in ("running", "checkpoints", "failed") for p in (folder / "out" / sub).glob("*")]
    left = [p for p in left if p.suffix == ".txt" or p.is_dir()]
    assert not left, f"left behind: {left}"
    return stacks(folder / "out")


def merge_prepare(folder: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(Way.finished, folder / name)
    for name, identities in (("a", slice(None, 2)), ("b", slice(2, None))):
        for identity in Folder(Way.finished).stacks()[identities]:
            Folder(folder / name).stack_file(identity).unlink()


def merge_act(folder: Path) -> None:
    merge([folder / "a", folder / "b"], folder / "out")


def merge_kept(folder: Path) -> dict[str, str]:
    return {f"{n} {k}": v for n in ("a", "b", "out") for k, v in stacks(folder / n).items()}


def results_prepare(folder: Path) -> None:
    """Results of an earlier time, with one stack fewer."""
    shutil.copytree(Way.finished, folder / "out")
    gone = Folder(folder / "out").stack_file(Folder(folder / "out").stacks()[0])
    gone.rename(folder / "later")
    write_results(Folder(folder / "out"))
    (folder / "later").rename(gone)


def results_act(folder: Path) -> None:
    write_results(Folder(folder / "out"))


def results_kept(folder: Path) -> int:
    ds = read_results(folder / "out")
    assert int((ds["cell"] != "").sum()) == ds.attrs["cells_done"]
    return int(ds.attrs["cells_done"])


def report_act(folder: Path) -> None:
    write_report(folder / "out" / "results.nc", folder / "report.html", progress=False)


def report_kept(folder: Path) -> int:
    page = folder / "report.html"
    assert not page.exists() or page.read_text(encoding="utf-8").rstrip().endswith("</html>"), "half a page"
    return int(page.exists())


def netcdf_prepare(folder: Path) -> None:
    write_netcdf(xr.Dataset({"a": ("x", np.zeros(5000))}), folder / "a.nc")


def netcdf_act(folder: Path) -> None:
    write_netcdf(xr.Dataset({"a": ("x", np.ones(5000)), "b": ("y", np.arange(9000.0))}), folder / "a.nc")


def netcdf_kept(folder: Path) -> int:
    """0 for the old file and 1 for the new one."""
    values = np.unique(read_netcdf(folder / "a.nc")["a"])
    assert len(values) == 1
    return int(values[0])


def nothing(folder: Path) -> None:
    """Nothing is there before."""


OPERATIONS: dict[str, Operation] = {
    "fit with a checkpoint": Operation(nothing, fit_act, fit_kept, lambda folder: (folder / "out").read_text()),
    "save a first model": Operation(nothing, save_act, model, save_final),
    "save over a model": Operation(save_prepare, save_act, lambda folder: len(model(folder)), save_final),
    "simulate in batches": Operation(nothing, simulate_act, simulate_kept, simulate_final),
    "simulate row by row": Operation(nothing, lambda f: simulate_act(f, _rows), simulate_kept, simulate_final),
    "run a grid": Operation(nothing, grid_act, lambda folder: stacks(folder / "out"), grid_final),
    "merge": Operation(merge_prepare, merge_act, merge_kept, merge_kept),
    "write NetCDF": Operation(netcdf_prepare, netcdf_act, netcdf_kept, netcdf_kept),
    "write results": Operation(results_prepare, results_act, results_kept, results_kept),
    "write a report": Operation(results_prepare, report_act, report_kept, report_kept),
}
#: Those that need the variables of real stacks.
NEED_STACKS = ("write results", "write a report")


# --- striking ---------------------------------------------------------------------------------------------------------


def _forked(work: Callable[[], None], log: Path, kill_after: float | None = None) -> int:
    """Do some work in a child; its exit status, which is negative if it was killed and 3 after an OSError."""
    child = os.fork()
    if not child:
        status = 4
        try:
            with open(log, "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                warnings.simplefilter("ignore")
                try:
                    work()
                    status = 0
                except OSError:
                    status = 3
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
        finally:
            os._exit(status)
    until = time.monotonic() + (kill_after if kill_after is not None else 600)
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            until = float("inf")
        time.sleep(0.0005)
    return os.waitstatus_to_exitcode(found[1])


def _watch(folder: Path, at: int, strike: Callable[[], None], count: list[int]) -> None:
    """Call `strike` at a call to the file system inside a folder, by its number; for the life of this process."""
    inside, fsync = str(folder), os.fsync

    def called() -> None:
        count[0] += 1
        if count[0] == at:
            strike()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CALLS or not str(arguments[0]).startswith(inside):
            return
        if event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            called()

    def flush(handle: int) -> None:
        called()
        fsync(handle)

    sys.addaudithook(hook)
    os.fsync = flush  # type: ignore[assignment]


def _fail(number: int, mark: Path) -> Callable[[], None]:
    def strike() -> None:
        mark.touch()
        raise OSError(number, os.strerror(number))

    return strike


def _undisturbed(operation: Operation, folder: Path) -> tuple[Any, float, int]:
    """What an operation gives, how long it takes, and how often it calls the file system."""
    operation.prepare(folder)
    counted = folder.parent / "count"

    def work() -> None:
        count = [0]
        _watch(folder, -1, lambda: None, count)
        operation.act(folder)
        counted.write_text(str(count[0]))

    began = time.monotonic()
    status = _forked(work, folder.parent / "log")
    assert status == 0, (folder.parent / "log").read_text()
    return operation.final(folder), time.monotonic() - began, int(counted.read_text())


def _no_less(before: Any, after: Any) -> bool:
    """Whether everything that was kept before is still there."""
    if isinstance(before, dict):
        return before.items() <= after.items()
    return len(before) <= len(after) if isinstance(before, list) else before <= after


def strike(name: str, times: int, seed: int = 0) -> Iterator[Outcome]:
    """Disturb an operation so many times, at random moments, and say what was wrong after each."""
    operation, rng = OPERATIONS[name], random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "first").mkdir()
        wanted, seconds, calls = _undisturbed(operation, root / "first")
        sizes = [p.stat().st_size for p in (root / "first").rglob("*") if p.is_file()]
        done = 0
        while done < times:
            folder = root / "disturbed"
            folder.mkdir()
            operation.prepare(folder)
            before = operation.kept(folder)
            for _ in range(4):  # so often until it may end
                kind = ("time", "call", "fault", "size")[done % 4]
                moment, status, struck = _disturb(operation, kind, folder, rng, seconds, calls, sizes)
                wrong = (
                    ""
                    if status in (0, 3, -signal.SIGKILL)
                    else f"status {status}: {(root / 'log').read_text()[-3000:]}"
                )
                try:
                    after = operation.kept(folder)
                    if not _no_less(before, after):
                        wrong = wrong or f"lost: {before} became {after}"
                    before = after
                except Exception as error:
                    wrong = wrong or "".join(traceback.format_exception(error))
                yield Outcome(name, moment, struck, wrong)
                done += 1
                if done == times or status == 0 or wrong:
                    break
            status = _forked(lambda folder=folder: operation.act(folder), root / "log")
            wrong = "" if status == 0 else f"cannot go on: status {status}: {(root / 'log').read_text()[-3000:]}"
            try:
                wrong = wrong or ("" if operation.final(folder) == wanted else "another result")
            except Exception as error:
                wrong = "".join(traceback.format_exception(error))
            if wrong:
                yield Outcome(name, "to the end", True, wrong)
            shutil.rmtree(folder)


def _disturb(
    operation: Operation, kind: str, folder: Path, rng: random.Random, seconds: float, calls: int, sizes: list[int]
) -> tuple[str, int, bool]:
    """One attempt that is disturbed: how, its status, and whether it came to that."""
    log, mark = folder.parent / "log", folder.parent / "struck"
    mark.unlink(missing_ok=True)
    if kind == "time":
        after = rng.uniform(0, seconds)
        status = _forked(lambda: operation.act(folder), log, after)
        return f"killed after {after:.3f} s", status, status != 0
    at = rng.randint(1, max(calls, 1))
    limit = int(rng.choice(sizes) * rng.random())
    number = rng.choice((errno.ENOSPC, errno.EIO))
    how = {
        "call": f"killed at call {at} of {calls}",
        "fault": f"{errno.errorcode[number]} at call {at} of {calls}",
        "size": f"files end at {limit} bytes",
    }[kind]

    def work() -> None:
        if kind == "size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        else:
            kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
            _watch(folder, at, kill if kind == "call" else _fail(number, mark), [0])
        operation.act(folder)

    status = _forked(work, log)
    return how, status, status != 0 or mark.exists()


@contextlib.contextmanager
def prepared(quick: bool) -> Iterator[None]:
    """Everything is saved as often as possible, and a finished grid is at hand."""
    torch.set_num_threads(1)
    if quick:
        Way.compute = staticmethod(quick_stack)
    checkpoint.Checkpoint.__init__.__defaults__ = (0.0,)
    runner.CHECKPOINT_ABOVE, stores.SAVE_SECONDS = -1.0, 0.0
    with tempfile.TemporaryDirectory() as place:
        Way.finished = Path(place) / "out"
        modules = Path(place) / "modules"

        def first() -> None:
            grid_act(Path(place))
            netcdf_prepare(Path(place))
            _train(None, epochs=1)
            modules.write_text(" ".join(sys.modules))

        status = _forked(first, Path(place) / "log")
        assert status == 0, (Path(place) / "log").read_text()
        for name in modules.read_text().split():  # once, and not in every child
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        yield


def main(times: int, quick: bool = False, only: str = "") -> dict[str, int]:
    """Strike every operation so many times, print a line for each, and count."""
    counts = {"kills": 0, "faults": 0, "wrong": 0}
    with prepared(quick):
        for name in OPERATIONS:
            if only not in name or (quick and name in NEED_STACKS):
                continue
            began, found = time.monotonic(), list(strike(name, times))
            wrong = [o for o in found if o.wrong]
            struck = [o for o in found if o.struck]
            kills = sum(o.moment.startswith("killed") for o in struck)
            faults, took = len(struck) - kills, time.monotonic() - began
            print(f"{name}: {kills} kills, {faults} faults, {len(wrong)} wrong, {took:.0f} s", flush=True)
            for outcome in wrong[:3]:
                print(f"  {outcome.moment}\n{outcome.wrong}", flush=True)
            for key, more in zip(counts, (kills, faults, len(wrong)), strict=True):
                counts[key] += more
    return counts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("times", type=int)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--only", default="")
    given = options.parse_args()
    total = main(given.times, given.quick, given.only)
    print(" ".join(f"{key} {value}" for key, value in total.items()))
    sys.exit(min(total["wrong"], 1))
