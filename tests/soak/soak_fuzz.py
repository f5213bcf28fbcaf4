"""Mutated files and texts for everything that reads: only errors that name the file, in bounded time and memory.

Each target has inputs that are right and a loader. An input is altered (bits, bytes, pieces, numbers, fields of JSON)
and loaded, in a child process with bounds on its memory and on the processor's time for one input. What may come out
is a result, or an error of the documented classes that names the file. Where a digest guards a file, it is put right
in half of the inputs: this is what somebody else's file can look like, and it reaches the code behind the digest.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import math
import mmap
import os
import random
import resource
import shutil
import signal
import struct
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
from equipoise.cli.user_data import read_observations
from equipoise.experiments import Folder, GridError, collect, load_grid, pipeline, read_results, run_grid, state_of
from equipoise.experiments.cells import stacks_of
from equipoise.posteriors import files as models
from equipoise.priors.text import parse_prior
from equipoise.simulations import CorruptBlockError, Store, read_simulations
from equipoise.support.files import append_digest
from equipoise.support.hdf5 import MARK, write_netcdf
from equipoise.training.checkpoint import Checkpoint

#: Bounds for one input: seconds of the processor's time, and bytes beyond what the process has already.
SECONDS, BYTES = 10, 2 << 30
#: Inputs that a child tries.
BATCH = 250
#: Errors with a meaning of their own, which no loader of ours raises as they are.
RAW = (UnicodeError, json.JSONDecodeError, np.linalg.LinAlgError)
NUMBERS = (0, 1, -1, 2**31, 2**32, 2**63, 2**64 - 1, 255, 65535, 10**12)
WORDS = ["nan", "inf", "-inf", "1e999", "-1", "0", "99999999999999999999", "null", "true", "[]", "{}", '""', "\x00",
         "é", "(", ")", "^", ",", "=", '"', "'", "\n", "#", "[", "]", "{", "}", ".", "1.5", "nan, nan"]  # fmt: skip
VALUES: list[Any] = [None, True, False, 0, -1, 1, 10**12, 1.5, float("nan"), float("inf"), -1e308, "", "x", "../x", "é",
                     [], [0], [[]], {}, {"a": 1}, [1e300] * 3, "a" * 1000, ["x", 1, None], 2**70]  # fmt: skip


class Target(NamedTuple):
    """`make` writes what is right into a folder; `load` alters it and loads it, with the errors it may raise."""

    make: Callable[[Path], None]
    load: Callable[[Path, random.Random], Any]
    allowed: tuple[type[BaseException], ...] = (ValueError, FileNotFoundError)
    #: What an error's message has to contain: a part of the file's name.
    named: str = ""
    #: Whether the HDF5 library reads bytes that no digest guards. It can hang or crash, and we cannot mend that.
    library: bool = False
    #: How many of the inputs it gets, relative to others: those that load fast get more.
    share: float = 1


# --- altering ---------------------------------------------------------------------------------------------------------


def altered_bytes(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size = len(found)
        at = rng.randrange(size + 1)
        length = min(rng.choice((1, 2, 4, 8, 64, 512)), size - at)
        match rng.randrange(8):
            case 0 if size:
                found[min(at, size - 1)] ^= 1 << rng.randrange(8)
            case 1:
                found[at : at + length] = rng.randbytes(length)
            case 2:
                del found[at : at + length]
            case 3:
                found[at:at] = rng.randbytes(length)
            case 4:
                found[at:at] = found[at : at + length]
            case 5:
                del found[at:]
            case 6:
                packed = struct.pack("<Q", rng.choice(NUMBERS) % 2**64)[: rng.choice((1, 2, 4, 8))]
                found[at : at + len(packed)] = packed
            case _:
                found[at : at + length] = bytes(length)
    return bytes(found)


def altered_text(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 0, 1, 3, 10, 40)))
        match rng.randrange(5):
            case 0:
                text = text[:at] + rng.choice(WORDS) + text[end:]
            case 1:
                text = text[:at] + text[end:]
            case 2:
                text = text[:at] + text[at:end] * rng.choice((2, 50)) + text[end:]
            case 3:
                text = text[:at] + chr(rng.randrange(1, 0xD7FF)) + text[end:]
            case _:
                words = text.split(" ")
                words[rng.randrange(len(words))] = rng.choice(WORDS)
                text = " ".join(words)
    return text


def altered_json(value: Any, rng: random.Random) -> Any:
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(VALUES)
        holder, key = rng.choice(places)
        if rng.random() < 0.3:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def some_text(rng: random.Random, value: Any) -> str:
    """JSON that was altered as data, or as text."""
    if rng.random() < 0.3:
        return altered_text(json.dumps(value), rng)
    return json.dumps(altered_json(value, rng))


def write(path: Path, contents: bytes | str) -> None:
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode("utf-8", "surrogatepass"))


# --- targets ----------------------------------------------------------------------------------------------------------


def make_model(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(200, 2, generator=generator)
    prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
    method = eq.METHODS["bnpe_init"].but(hidden=(4,), transforms=1)
    posterior = eq.fit(
        theta, theta.clone(), prior=prior, method=method, members=1, epochs=1, settings=eq.Settings(compile=False),
        progress=False, checkpoint=folder / "state", device="cpu",
    )  # fmt: skip
    posterior.save(folder / "right")


def load_description(folder: Path, rng: random.Random) -> Any:
    _again(folder)
    file = folder / "model" / "model.json"
    description = altered_json(json.loads(file.read_text()), rng)
    if isinstance(description, dict) and rng.random() < 0.7:
        description.pop("digest", None)
        description["digest"] = models._digest(description)
    write(file, json.dumps(description) if rng.random() < 0.8 else altered_text(json.dumps(description), rng))
    return eq.load(folder / "model")


def load_weights(folder: Path, rng: random.Random) -> Any:
    _again(folder)
    (file,) = (folder / "model").glob("weights-*")
    contents = altered_bytes(file.read_bytes(), rng)
    if rng.random() < 0.7:
        name = hashlib.blake2b(contents, digest_size=16).hexdigest()
        file.unlink()
        file = file.with_name(f"weights-{name}.safetensors")
        description = json.loads((folder / "model" / "model.json").read_text())
        description |= {"weights": file.name, "weights_bytes": len(contents), "weights_blake2b": name}
        description.pop("digest")
        write(folder / "model" / "model.json", json.dumps(description | {"digest": models._digest(description)}))
    write(file, contents)
    return eq.load(folder / "model")


def _again(folder: Path) -> None:
    shutil.rmtree(folder / "model", ignore_errors=True)
    shutil.copytree(folder / "right", folder / "model")


def load_checkpoint(folder: Path, rng: random.Random) -> None:
    right, file = folder / "state" / "stack-0.safetensors", folder / "stack-0.safetensors"
    with safe_open(right, "pt") as opened:
        identity = opened.metadata()["identity"]
    write(file, altered_bytes(right.read_bytes(), rng))
    found, wanted = Checkpoint(file, identity).load(), Checkpoint(right, identity).load()
    assert found is not None and wanted is not None and found.keys() == wanted.keys(), "other weights"
    # NaN stands for epochs that were not trained.
    assert all(np.array_equal(found[n].numpy(), wanted[n].numpy(), equal_nan=True) for n in wanted), "other weights"


def make_store(folder: Path) -> None:
    def simulator(theta: torch.Tensor, seed: int) -> torch.Tensor:
        return theta + torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed))

    prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
    eq.simulate(
        prior, simulator, 40, store=folder / "right", block_size=20, batched=True, array="torch", progress=False
    )


def load_block(folder: Path, rng: random.Random) -> None:
    _again(folder)
    file = folder / "model" / "block-000001.h5"
    write(file, altered_bytes(file.read_bytes(), rng))
    found, wanted = read_simulations(folder / "model"), read_simulations(folder / "right")
    assert torch.equal(found.x, wanted.x) and torch.equal(found.theta, wanted.theta), "other simulations"


def load_manifest(folder: Path, rng: random.Random) -> Any:
    _again(folder)
    file = folder / "model" / "manifest.json"
    write(file, some_text(rng, json.loads(file.read_text())))
    return Store(folder / "model").read().x


EXPERIMENT: dict[str, Any] = {
    "tasks": ["slcp"], "methods": ["nre"], "budgets": [128], "pairs": 50, "test": 50, "samples": 4,
    "hidden": [4], "training": {"epochs": 1, "batch_size": 64},
}  # fmt: skip


def make_experiment(folder: Path) -> None:
    run_grid(load_grid(EXPERIMENT), folder / "right", threads=1, device="cpu")


def load_stack(folder: Path, rng: random.Random) -> Any:
    _again(folder)
    (file,) = (folder / "model" / "stacks").iterdir()
    contents = file.read_bytes()
    if rng.random() < 0.1:
        write(file, altered_bytes(contents, rng))
    else:
        write(file, altered_bytes(contents[:-16], rng))
        append_digest(file)
    return collect(Folder(folder / "model"))


def load_stored_grid(folder: Path, rng: random.Random) -> Any:
    _again(folder)
    file = folder / "model" / "grid.json"
    write(file, some_text(rng, json.loads(file.read_text())))
    stored = Folder(folder / "model")
    return state_of(load_grid(stored.read_grid()["grid"]), stored)


def load_heartbeat(folder: Path, rng: random.Random) -> Any:
    _again(folder)
    beat = {"identity": "a", "host": "b", "pid": 1, "stage": "c", "done": 1, "total": 2, "note": ""}
    (folder / "model" / "running").mkdir(exist_ok=True)
    write(folder / "model" / "running" / "a.json", some_text(rng, beat))
    return Folder(folder / "model").running()


def make_results(folder: Path) -> None:
    values = np.random.default_rng(0).random((2, 2, 5))
    verdicts = np.array([["overconfident", ""], ["inconclusive", "certified conservative"]], dtype=object)
    data = {"coverage": (("task", "method", "level"), values), "verdict": (("task", "method"), verdicts)}
    ds = xr.Dataset(data, {"task": ["a", "b"], "level": np.linspace(0, 1, 5)}, {"notes": "none"})
    write_netcdf(ds, folder / "right.nc", {"coverage": {"zlib": True}})


def load_results(folder: Path, rng: random.Random) -> Any:
    contents, file = (folder / "right.nc").read_bytes(), folder / "results.nc"
    if rng.random() < 0.2:  # with its digest as it was: what is read is what was written
        write(file, altered_bytes(contents, rng))
        if file.read_bytes()[-16 - len(MARK) : -16] == MARK:
            assert read_results(file).identical(read_results(folder / "right.nc")), "other results"
    else:
        body = altered_bytes(contents[: -16 - len(MARK)], rng)
        write(file, body + (MARK if rng.random() < 0.5 else b""))
        if rng.random() < 0.5:
            append_digest(file)
    return read_results(file)


GRID = """
protocol = "paper"
tasks    = ["slcp", {name = "lotka_volterra", steps = 1001}]
methods  = ["npe", {name = "bnpe", balance = ["chi2", "kl"], strength = [1, 10, 100]}]
budgets  = [1024, 2048]
runs     = 5
members  = 1
samples  = {classifier = 512, flow = 128}
hidden   = [64, 64]
seed     = 0

[training]
epochs = 200
learning_rate = 0.001
early_stop = true
"""


def load_toml(folder: Path, rng: random.Random) -> Any:
    write(folder / "grid.toml", altered_text(GRID, rng))
    return load_grid(folder / "grid.toml")


PRIORS = ("uniform(-3, 3)^2", "loguniform(1e-3, 10), normal(0, 1)", "gamma(2, 3)**2, beta(1, 2), studentt(3, 0, 1)")


def load_prior_text(folder: Path, rng: random.Random) -> Any:
    text = altered_text(rng.choice(PRIORS), rng)
    return None if text.strip().endswith(".json") else parse_prior(text)


def load_prior_file(folder: Path, rng: random.Random) -> Any:
    one = {"name": "Normal", "arguments": {"loc": 0.0, "scale": 1.0}}
    other = {"name": "scipy.stats.gamma", "arguments": {"a": 2.0, "scale": 1.0}}
    spec = rng.choice([
        {"kind": "box", "low": [0.0, -1.0], "high": [2.0, 1.0], "dtype": "float32"},
        {"kind": "gaussian", "loc": [0.0, 0.0], "covariance": [[1.0, 0.5], [0.5, 1.0]]},
        {"kind": "independent", "marginals": [one, other]},
    ])  # fmt: skip
    write(folder / "prior.json", some_text(rng, spec))
    return parse_prior(str(folder / "prior.json"))


def make_pairs(folder: Path) -> None:
    import h5py

    rng = np.random.default_rng(0)
    theta, x = rng.random((20, 2)), rng.random((20, 3)).astype("f4")
    np.savez(folder / "a.npz", theta=theta, x=x)
    np.savez_compressed(folder / "b.npz", theta=theta, x=x)
    np.save(folder / "theta.npy", theta)
    np.save(folder / "x.npy", x)
    with h5py.File(folder / "a.h5", "w") as file:
        file["theta"], file["x"] = theta, x
        file.create_dataset("z", data=x, compression="gzip", shuffle=True)
    table = [f"{t[0]},{t[1]},{v[0]},{v[1]},{v[2]}" for t, v in zip(theta, x, strict=True)]
    (folder / "a.csv").write_text("\n".join(["theta_0,theta_1,x_0,x_1,x_2", *table]))
    with contextlib.suppress(ImportError):
        import pandas

        pandas.read_csv(folder / "a.csv").to_parquet(folder / "a.parquet")


def load_pairs(folder: Path, rng: random.Random) -> Any:
    right = rng.choice(sorted(p for p in folder.iterdir() if not p.name.startswith("altered")))
    file = folder / f"altered{right.suffix}"
    contents = right.read_bytes()
    text = right.suffix == ".csv" and rng.random() < 0.7
    write(file, altered_text(contents.decode(), rng) if text else altered_bytes(contents, rng))
    if right.suffix == ".npy":
        other = folder / ("x.npy" if right.name == "theta.npy" else "theta.npy")
        pair = (file, other) if right.name == "theta.npy" else (other, file)
        return read_simulations(*pair).x
    keys = {"x_key": "z"} if right.suffix == ".h5" and rng.random() < 0.5 else {}
    return read_simulations(file, **keys).x


def make_observations(folder: Path) -> None:
    import h5py

    x = np.arange(3.0)
    np.savez(folder / "a.npz", x=x)
    np.save(folder / "a.npy", x)
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = x
    (folder / "a.csv").write_text("x_0,x_1,x_2\n0.5,1.5,2.5\n")
    (folder / "a.txt").write_text("0.5 1.5 2.5\n")


def load_observation(folder: Path, rng: random.Random) -> Any:
    right = rng.choice(sorted(p for p in folder.iterdir() if not p.name.startswith("altered")))
    file = folder / f"altered{right.suffix}"
    contents = right.read_bytes()
    text = right.suffix in (".csv", ".txt") and rng.random() < 0.7
    write(file, altered_text(contents.decode(), rng) if text else altered_bytes(contents, rng))
    return read_observations(file, None, (3,))


# --- flipped bits: the same numbers, or none --------------------------------------------------------------------------


def flipped(right: Path, file: Path, rng: random.Random) -> None:
    """Copy a file with one bit flipped, or in every tenth case cut short."""
    contents = bytearray(right.read_bytes())
    if rng.random() < 0.1:
        del contents[rng.randrange(len(contents)) :]
    else:
        contents[rng.randrange(len(contents))] ^= 1 << rng.randrange(8)
    write(file, bytes(contents))


def _flip(folder: Path, pattern: str, rng: random.Random) -> None:
    """Put everything right again, and flip a bit of one file."""
    _again(folder)
    right = rng.choice(sorted((folder / "right").glob(pattern)))
    flipped(right, folder / "model" / right.relative_to(folder / "right"), rng)


def _answers(path: Path) -> np.ndarray:
    posterior = eq.load(path)
    theta = torch.linspace(0.1, 0.9, 8).reshape(4, 2)
    return posterior.log_prob(theta, theta.flip(1)).double().numpy()


def flip_model(folder: Path, rng: random.Random) -> None:
    _flip(folder, "model.json" if rng.random() < 0.5 else "weights-*", rng)
    found = _answers(folder / "model")
    assert np.array_equal(found, _answers(folder / "right")), "another posterior"


def flip_checkpoint(folder: Path, rng: random.Random) -> None:
    right, file = folder / "state" / "stack-0.safetensors", folder / "stack-0.safetensors"
    with safe_open(right, "pt") as opened:
        identity = opened.metadata()["identity"]
    flipped(right, file, rng)
    found, wanted = Checkpoint(file, identity).load(), Checkpoint(right, identity).load()
    assert found is not None and wanted is not None and found.keys() == wanted.keys(), "other weights"
    assert all(np.array_equal(found[n].numpy(), wanted[n].numpy(), equal_nan=True) for n in wanted), "other weights"


def flip_theta(folder: Path, rng: random.Random) -> None:
    """θ of a store, whose x is not read."""
    _flip(folder, "block-*.h5", rng)
    wanted = [Store(folder / "right").block(n, x=False).theta for n in (0, 1)]
    found = [Store(folder / "model").block(n, x=False).theta for n in (0, 1)]
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True)), "other parameters"


def copy_block(folder: Path, rng: random.Random) -> None:
    """A block that stands in the place of another."""
    _again(folder)
    names = ["block-000000.h5", "block-000001.h5"]
    rng.shuffle(names)
    shutil.copyfile(folder / "right" / names[0], folder / "model" / names[1])
    _ = Store(folder / "model").read().theta
    raise AssertionError("a copied block was read")


def flip_stack(folder: Path, rng: random.Random) -> None:
    _flip(folder, "stacks/*.nc", rng)
    if Folder(folder / "model").stacks():
        (identity,) = Folder(folder / "model").stacks()
        found, wanted = (Folder(folder / name).read_stack(identity) for name in ("model", "right"))
        assert json.dumps(found[0]) == json.dumps(wanted[0]), "other attributes"
        assert all(str(found[1][n].tolist()) == str(v.tolist()) for n, v in wanted[1].items()), "other numbers"
    else:
        raise ValueError("missing, to be computed again")


def flip_exact(folder: Path, rng: random.Random) -> None:
    """Exact log posteriors, which are computed again where their file is not what was written."""
    stack, stored = stacks_of(load_grid(EXPERIMENT))[0], Folder(folder / "exact")
    torch.manual_seed(3)
    task = eq.task("slcp")
    theta = task.prior.sample((4,))
    x = task.simulate(theta, seed=4)
    right = folder / "right.npy"
    if not right.exists():
        pipeline._exact(task, stack, stored, theta, x)
        shutil.copyfile(next(stored.path.rglob("*.npy")), right)
    (file,) = stored.path.rglob("*.npy")
    flipped(right, file, rng)
    found = pipeline._exact(task, stack, stored, theta, x)
    assert found is not None and np.array_equal(found, np.load(right)), "other exact posteriors"


def flip_results(folder: Path, rng: random.Random) -> None:
    flipped(folder / "right.nc", folder / "results.nc", rng)
    found = read_results(folder / "results.nc")
    assert found.identical(read_results(folder / "right.nc")), "other results"


def nothing(folder: Path) -> None:
    """The inputs are in this file."""


TARGETS: dict[str, Target] = {
    "model.json": Target(make_model, load_description, named="model"),
    "weights": Target(make_model, load_weights, named="model"),
    "checkpoint": Target(make_model, load_checkpoint, named="stack-0", share=3),
    "block of a store": Target(
        make_store, load_block, (ValueError, FileNotFoundError, CorruptBlockError), "model", library=True
    ),
    "manifest": Target(make_store, load_manifest, (ValueError, FileNotFoundError, CorruptBlockError), "model"),
    "stack": Target(make_experiment, load_stack, named="model", library=True, share=0.5),
    "grid.json": Target(make_experiment, load_stored_grid),
    "heartbeat": Target(make_experiment, load_heartbeat, ()),
    "results": Target(make_results, load_results, named="results.nc", library=True),
    "TOML grid": Target(nothing, load_toml, (GridError,), share=3),
    "prior as text": Target(nothing, load_prior_text, share=3),
    "prior.json": Target(nothing, load_prior_file, named="prior.json", share=3),
    "pairs": Target(make_pairs, load_pairs, named="altered", library=True, share=3),
    "flipped: model": Target(make_model, flip_model, named="model", share=0.5),
    "flipped: checkpoint": Target(make_model, flip_checkpoint, named="stack-0", share=0.5),
    "flipped: θ of a store": Target(
        make_store, flip_theta, (ValueError, FileNotFoundError, CorruptBlockError), "model", library=True, share=0.5
    ),
    "flipped: a copied block": Target(make_store, copy_block, (CorruptBlockError,), "model", share=0.02),
    "flipped: stack": Target(make_experiment, flip_stack, named="", share=0.5),
    "flipped: exact": Target(nothing, flip_exact, share=0.1),
    "flipped: results": Target(make_results, flip_results, named="results.nc", share=0.5),
    "observation": Target(make_observations, load_observation, named="altered", library=True, share=3),
}


# --- trying -----------------------------------------------------------------------------------------------------------


class _Late(BaseException):
    """An input took longer than it may."""


def _late(*_: Any) -> None:
    raise _Late


def _try(name: str, folder: Path, seed: int) -> tuple[str, str]:
    """What became of one input ("loaded" or "refused"), or what was wrong."""
    target, rng = TARGETS[name], random.Random(f"{name} {seed}")
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        target.load(folder, rng)
    except target.allowed as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if isinstance(error, RAW) or target.named not in str(error):
            return "wrong", "".join(traceback.format_exception(error)[-12:])
        return "refused", ""
    except BaseException as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        return "wrong", "".join(traceback.format_exception(error)[-12:])
    signal.setitimer(signal.ITIMER_PROF, 0)
    return "loaded", ""


def _child(name: str, folder: Path, seeds: range, shared: mmap.mmap, report: Path) -> None:
    """Try some inputs; the number of the present one is in shared memory, in case that the process is ended by it."""
    signal.signal(signal.SIGPROF, _late)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    with open(report, "a") as out, open(os.devnull, "w") as void:
        os.dup2(void.fileno(), 1)
        os.dup2(void.fileno(), 2)
        for seed in seeds:
            shared[:8] = struct.pack("<q", seed)
            kind, why = _try(name, folder, seed)
            out.write(json.dumps([seed, kind, why]) + "\n")
            out.flush()


def fuzz(name: str, inputs: int, first: int = 0) -> dict[str, Any]:
    """Try so many inputs of a target: how many were loaded and refused, and what was wrong."""
    found: dict[str, Any] = {"loaded": 0, "refused": 0, "library": 0, "wrong": []}
    with tempfile.TemporaryDirectory() as place:
        right = Path(place) / "made"
        right.mkdir()
        TARGETS[name].make(right)
        shared, at, end = mmap.mmap(-1, 8), first, first + inputs
        while at < end:
            seeds, report = range(at, min(at + BATCH, end)), Path(place) / "report"
            report.unlink(missing_ok=True)
            child = os.fork()
            if not child:
                try:
                    _child(name, right, seeds, shared, report)
                finally:
                    os._exit(0)
            present, since = -1, time.monotonic()
            while (done := os.waitpid(child, os.WNOHANG))[0] == 0:
                (now,) = struct.unpack("<q", shared[:8])
                if now != present:
                    present, since = now, time.monotonic()
                elif time.monotonic() - since > 4 * SECONDS:  # inside a library, where no signal of Python's arrives
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.002)
            rows = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
            for seed, kind, why in rows:
                if kind == "wrong":
                    found["wrong"].append((seed, why))
                else:
                    found[kind] += 1
            at += len(rows)
            if at < seeds.stop:  # the process was ended by this input
                if TARGETS[name].library:
                    found["library"] += 1
                else:
                    found["wrong"].append((at, f"ended with status {os.waitstatus_to_exitcode(done[1])}"))
                at += 1
    return found


def main(inputs: int, only: str = "", show: int = 3) -> dict[str, int]:
    """Try so many inputs of all targets together, print a line for each, and count."""
    torch.set_num_threads(1)
    counts = {"inputs": 0, "library": 0, "flipped": 0, "silent": 0, "wrong": 0}
    for name, target in TARGETS.items():
        if only and not any(part in name for part in only.split(",")):
            continue
        number = math.ceil(inputs * target.share / sum(t.share for t in TARGETS.values()))
        began, found = time.monotonic(), fuzz(name, number)
        wrong = found["wrong"]
        took = time.monotonic() - began
        said = f"{found['loaded']} loaded, {found['refused']} refused, {found['library']} hung or crashed in HDF5"
        print(f"{name}: {said}, {len(wrong)} wrong, {took:.0f} s", flush=True)
        kinds: dict[str, list[int]] = {}
        for seed, why in wrong:
            kinds.setdefault(why[-300:], []).append(seed)
        for seeds in list(kinds.values())[:show]:
            print(f"  {len(seeds)} times, first input {seeds[0]}:\n{dict(wrong)[seeds[0]]}", flush=True)
        counts["inputs"] += number
        counts["library"] += found["library"]
        counts["wrong"] += len(wrong)
        if name.startswith("flipped"):
            counts["flipped"] += number
            counts["silent"] += sum("AssertionError" in why for _, why in wrong)
    return counts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("inputs", type=int)
    options.add_argument("--only", default="")
    options.add_argument("--show", type=int, default=3)
    given = options.parse_args()
    total = main(given.inputs, given.only, given.show)
    print(" ".join(f"{key} {value}" for key, value in total.items()))
    sys.exit(min(total["wrong"], 1))
