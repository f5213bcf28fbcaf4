"""One stack from nothing to its file: simulate, train, judge, draw, write.

`compute_stack` is the architecture: the stages exchange plain data, never call each other, and are called here, in
this order. Every engine runs this function.
"""

from __future__ import annotations

__all__ = ["compute_stack"]

import dataclasses
import hashlib
import json
import re
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from equipoise.diagnostics import diagnose
from equipoise.networks import Convolutional, Embedding
from equipoise.posteriors import Posterior
from equipoise.simulations import simulate
from equipoise.support.devices import fixed_threads
from equipoise.support.errors import warn
from equipoise.support.files import Lock, append_digest, is_intact, remove_leftovers, write_whole
from equipoise.support.progress import listening
from equipoise.tasks import Task
from equipoise.tasks import task as make_task
from equipoise.training import Member, fit_many
from equipoise.training.fitting import members_of, mixture_of, suited
from equipoise.training.inputs import Pairs as CheckedPairs
from equipoise.training.modules import SHORT, as_embedding

from .cells import NUMERICS, Cell, Stack
from .costs import cost, device_kind
from .folder import Folder
from .gallery import gallery
from .protocols import PROTOCOLS
from .records import SECOND, UNTEMPERED, record

Pairs = tuple[Tensor, Tensor]


def compute_stack(
    stack: Stack,
    folder: Folder,
    device: str | None = None,
    threads: int = 1,
    checkpoint: bool = True,
    compile: bool | None = None,
) -> None:
    """Compute a stack and put its file into the folder; the other arguments are those of `run_grid`."""
    began, started = time.time(), time.monotonic()
    # Progress goes to the folder, where anyone can see it; warnings are gathered, to become notes of the stack.
    report_progress = partial(folder.heartbeat, stack.identity)
    with fixed_threads(threads), listening(report_progress), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        task = make_task(stack.task.name, **dict(stack.task.options))
        _check_recipe(stack, task)
        data = [_simulate(task, stack, folder, stack.budget, "run", run) for run in stack.runs]
        state = folder.checkpoint(stack.identity) if checkpoint else None
        posteriors = _train(stack, task, data, device=device, checkpoint=state, compile=compile)
        trained = time.monotonic()
        mixtures = _mixtures(stack, data, posteriors)
        judged = _judge(stack, task, mixtures, folder)
        diagnosed = time.monotonic()
        pictures = gallery(stack, task, dict(zip(stack.cells, mixtures, strict=True)))
        # Dependencies' deprecation warnings say nothing about this stack.
        dated = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
        notes = list(dict.fromkeys(str(w.message) for w in warned if not issubclass(w.category, dated)))
        kept = record(stack, task, posteriors, mixtures, judged, notes).assign(pictures.variables)
        kind = device_kind(device)
        kept.attrs |= {"threads": threads, "device": kind, "cost": cost(stack, kind).seconds, "began": began}
        kept.attrs |= {"train_seconds": trained - started, "diagnose_seconds": diagnosed - trained}
        kept.attrs["seconds"] = time.monotonic() - started
        folder.write_stack(stack.identity, kept)


def _check_recipe(stack: Stack, task: Task) -> None:
    """Refuse before training what could not be judged after it."""
    if stack.rules.released_pairs and stack.network == "classifier" and task.prior.dim > 2:
        raise ValueError(
            f"released_pairs: the released recipe ranks classifiers on a grid of up to 2 parameters, and {task.name} "
            f"has {task.prior.dim}; set released_pairs = 0"
        )


def _simulate(task: Task, stack: Stack, folder: Folder, n: int, *path: str | int) -> Pairs:
    """The first n pairs of a stream of the task, x in the smallest dtype that holds it.

    Simulations follow from their seed. Real-valued ones of the paper's tasks cost less to make again than to read (5 µs
    against 10 to 20 a row); the two with compact x (90 and 330 µs), and those of a user's own task, are kept in the
    folder, and are made once for all stacks.
    """
    seed = stack.stream(*path)
    store = None
    if task.kept:
        name = _file_name(task, stack.task.options, size=4)
        key = [re.sub(r"\W+", "_", stack.streams)] if stack.streams else []
        store = folder.path / "simulations" / "-".join([name, *key, str(stack.seed), *map(str, path)])
    pairs = simulate(task.prior, task.simulator, n, seed=seed, store=store, verify=False)
    return pairs.theta, pairs.compact()


def _file_name(task: Task, *known: Any, size: int) -> str:
    """The name of a task, and a digest of what is known of it."""
    digest = hashlib.blake2b(json.dumps([*known, NUMERICS]).encode(), digest_size=size).hexdigest()
    return re.sub(r"\W+", "_", task.name) + "-" + digest


def _train(
    stack: Stack, task: Task, data: Sequence[Pairs], compile: bool | None, checkpoint: Path | None, device: str | None
) -> list[list[Posterior | None]]:
    """One posterior for each member of each cell; None for a member that was lost.

    All are trained in one call, unless runs have embeddings of their own.
    """
    sizes, runs = stack.sizes, stack.runs
    settings = dataclasses.replace(stack.settings, compile=compile)
    if sizes.as_fit and compile is None and device_kind(device) == "cuda":
        settings = dataclasses.replace(settings, compile=False)  # networks this small are trained before it pays back
    embeddings: list[Embedding | None] = [None] * len(runs)
    if sizes.layers:
        embeddings = [Convolutional(task.x_shape, sizes.layers, sizes.channels)] * len(runs)
    elif sizes.as_fit:
        embeddings = [as_embedding(None, task.x_shape, False, SHORT, x) for _, x in data]
    alike: dict[str, list[int]] = {}
    for run, embedding in zip(runs, embeddings, strict=True):
        key = "" if embedding is None else json.dumps(embedding.spec(), sort_keys=True)
        alike.setdefault(key, []).append(run)
    trained: dict[int, list[Posterior | None]] = {}
    for number, some in enumerate(alike.values()):
        cells = [i for i, cell in enumerate(stack.cells) if cell.run in some]
        wanted = [_members(stack, task, stack.cells[i], some.index(stack.cells[i].run)) for i in cells]
        found = fit_many(
            [member for members in wanted for member in members],
            [data[runs.index(run)] for run in some],
            prior=task.prior,
            settings=settings,
            folds=stack.folds,
            embedding=embeddings[runs.index(some[0])],
            x_scale=sizes.x_scale,
            standardize=sizes.standardize,
            device=device,
            split_seed=stack.stream("fit") if sizes.as_fit or stack.folds else 0,
            checkpoint=checkpoint if checkpoint is None or number == 0 else checkpoint / str(number),
        )
        trained |= {i: found[k * stack.members : (k + 1) * stack.members] for k, i in enumerate(cells)}
    return [trained[i] for i in range(len(stack.cells))]


def _members(stack: Stack, task: Task, cell: Cell, data: int) -> list[Member]:
    """The members of a cell, which read one of the data sets."""
    rows = suited(cell.rows, task.prior) if len(cell.rows) > 1 else cell.rows
    seeds = [stack.stream("run", cell.run, "member", m) for m in range(stack.members)]
    return members_of(rows, seeds, stack.folds, data, cell.keep)


def _mixtures(
    stack: Stack, data: Sequence[Pairs], posteriors: Sequence[Sequence[Posterior | None]]
) -> list[Posterior | None]:
    """The posterior of each cell: the mixture of its members that were not lost, calibrated where the stack is.

    With a temperature comes how long it took to choose, in `record`.
    """
    found: list[Posterior | None] = []
    for cell, members in zip(stack.cells, posteriors, strict=True):
        started, alive = time.monotonic(), [p for p in members if p is not None]
        whole = Posterior.joined(alive) if alive else None
        if stack.folds is not None and alive:
            pairs = CheckedPairs(*data[stack.runs.index(cell.run)])
            name, seed = cell.method.partition("[")[0], stack.stream("fit")
            whole = mixture_of(members, cell.rows, pairs, name, stack.settings, seed, calibrate=stack.calibrate)
            assert whole is not None
            whole.record["calibrate_seconds"] = time.monotonic() - started
        found.append(whole)
    return found


def _judge(stack: Stack, task: Task, posteriors: list[Posterior | None], folder: Folder) -> list[xr.Dataset | None]:
    """The diagnosis of each cell, with the seconds it took; None where all members were lost.

    Single networks are judged all at once, those of one shape and recipe in one pass; a mixture is judged by itself.
    """
    rules = stack.rules
    theta, x = _simulate(task, stack, folder, rules.pairs, "coverage")
    # Balance over the larger test set needs no ranks, but a mixture has no raw ratio: its balance is taken over the
    # coverage pairs.
    test = _simulate(task, stack, folder, rules.test, "test") if stack.members == 1 else None
    exact = _exact(task, stack, folder, theta, x)
    found: list[xr.Dataset | None] = [None] * len(stack.cells)
    for cells in _alike(stack, posteriors):
        started, methods = time.monotonic(), ", ".join(dict.fromkeys(stack.cells[i].method for i in cells))

        def report_progress(label: str, done: int, total: int, note: str, methods: str = methods) -> None:
            folder.heartbeat(stack.identity, "diagnosing", done, total, methods)

        whole = Posterior.joined([p for i in cells if (p := posteriors[i]) is not None])
        with listening(report_progress):
            ds = diagnose(
                whole,
                theta,
                x,
                exact_log_prob=exact,
                seed=stack.stream("diagnose"),
                samples=rules.samples,
                tolerance=rules.tolerance,
                recipe=stack.cells[cells[0]].recipe,
                test=test,
                mixture=stack.members > 1,
            )
            if stack.calibrate:
                ds = _with_temperature(ds, whole, stack, theta, x)
            if rules.released_pairs and stack.cells[cells[0]].recipe != "released":
                ds = ds.assign(_released(whole, stack, theta, x))
        seconds = (time.monotonic() - started) / len(cells)
        for row, i in enumerate(cells):
            # A single network is its own mixture.
            one = ds if stack.members > 1 else ds.isel(member=[row, row]).assign_coords(member=["0", "mixture"])
            found[i] = one.assign_attrs(seconds=seconds)
    return found


def _with_temperature(ds: xr.Dataset, posterior: Posterior, stack: Stack, theta: Tensor, x: Tensor) -> xr.Dataset:
    """The diagnosis of a calibrated mixture with its temperature, and what the same pairs say of it untempered."""
    known, raw = posterior.calibration, ds
    assert known is not None
    if posterior.temperature < 1:
        how: dict[str, Any] = {"samples": stack.rules.samples, "tolerance": stack.rules.tolerance}
        how["recipe"] = stack.cells[0].recipe
        raw = diagnose(posterior._with(1.0, None), theta, x, seed=stack.stream("diagnose"), **how)
    numbers = {
        "temperature": known.t,
        "calibration_p_over": known.p_over,
        "calibration_p_certificate": known.p_certificate,
        "calibration_certified": float(known.certified),
        "calibrate_seconds": posterior.record["calibrate_seconds"],
    }
    kept = {n: raw[n.removeprefix("untempered_")].copy() for n in UNTEMPERED}
    return ds.assign(kept).assign({n: xr.full_like(ds["coverage_auc"], v) for n, v in numbers.items()})


def _released(posterior: Posterior, stack: Stack, theta: Tensor, x: Tensor) -> dict[str, xr.DataArray]:
    """Coverage of the first pairs by the released recipe, under the names it is stored by."""
    n = stack.rules.released_pairs
    ds = diagnose(
        posterior,
        theta[:n],
        x[:n],
        seed=stack.stream("diagnose"),
        samples=PROTOCOLS["released"].samples,
        tolerance=stack.rules.tolerance,
        recipe="released",
        mixture=stack.members > 1,
    )
    return {name: ds[name.removeprefix("released_")] for name in SECOND}


def _alike(stack: Stack, posteriors: list[Posterior | None]) -> list[list[int]]:
    """The cells that are judged together: single networks of one shape with one recipe, or a mixture."""
    groups: dict[str, list[int]] = {}
    for i, (cell, posterior) in enumerate(zip(stack.cells, posteriors, strict=True)):
        if posterior is not None:
            key = str(i) if stack.members > 1 else json.dumps([cell.recipe, posterior.network.spec()], sort_keys=True)
            groups.setdefault(key, []).append(i)
    return list(groups.values())


def _exact(task: Task, stack: Stack, folder: Folder, theta: Tensor, x: Tensor) -> np.ndarray | None:
    """The exact log posterior of the coverage pairs, computed once for a task and kept in the folder."""
    if not task.has_exact_posterior:
        return None
    key = [stack.streams] if stack.streams else []
    name = _file_name(task, stack.task.name, stack.task.options, stack.seed, *key, len(theta), size=8)
    file = folder.path / "exact" / f"{name}.npy"
    if file.exists():
        if is_intact(file):
            return np.load(file, allow_pickle=False)
        warn(f"{file} was damaged, and is computed again")
    folder.heartbeat(stack.identity, "the exact posterior", 0, 1, f"of {len(theta)} pairs", force=True)
    values = torch.cat([task.log_posterior(t, y) for t, y in zip(theta.split(500), x.split(500), strict=True)])
    exact = values.double().numpy()
    with Lock(file.with_suffix(".lock")) as mine:
        if mine:  # otherwise another process writes the same numbers
            remove_leftovers(file)
            with write_whole(file) as temporary:
                np.save(temporary, exact)
                append_digest(temporary)
    return exact
