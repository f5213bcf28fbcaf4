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
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from equipoise.diagnostics import diagnose
from equipoise.networks import Convolutional
from equipoise.posteriors import Posterior
from equipoise.simulations import simulate
from equipoise.support.devices import fixed_threads
from equipoise.support.errors import warn
from equipoise.support.files import Lock, append_digest, is_intact, remove_leftovers, write_whole
from equipoise.support.progress import listening
from equipoise.tasks import Task
from equipoise.tasks import task as make_task
from equipoise.training import Member, fit_many

from .cells import NUMERICS, Stack
from .costs import cost, device_kind
from .folder import Folder
from .gallery import gallery
from .protocols import PROTOCOLS
from .records import SECOND, record

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
        # The posterior of a cell is the mixture of its members that were not lost.
        alive = [[p for p in members if p is not None] for members in posteriors]
        mixtures = [Posterior.joined(members) if members else None for members in alive]
        judged = _judge(stack, task, mixtures, folder)
        diagnosed = time.monotonic()
        pictures = gallery(stack, task, dict(zip(stack.cells, mixtures, strict=True)))
        # Dependencies' deprecation warnings say nothing about this stack.
        dated = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
        notes = list(dict.fromkeys(str(w.message) for w in warned if not issubclass(w.category, dated)))
        kept = record(stack, task, posteriors, judged, notes).assign(pictures.variables)
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
    stack: Stack, task: Task, data: Sequence[Pairs], compile: bool | None, **how: Any
) -> list[list[Posterior | None]]:
    """One posterior for each member of each cell, all trained in one call; None for a member that was lost."""
    sizes, runs = stack.sizes, stack.runs
    members = [
        Member(cell.row, stack.stream("run", cell.run, "member", m), runs.index(cell.run), cell.keep)
        for cell in stack.cells
        for m in range(stack.members)
    ]
    trained = fit_many(
        members,
        data,
        prior=task.prior,
        settings=dataclasses.replace(stack.settings, compile=compile),
        embedding=Convolutional(task.x_shape, sizes.layers, sizes.channels) if sizes.layers else None,
        x_scale=sizes.x_scale,
        standardize=sizes.standardize,
        **how,
    )
    return [trained[i : i + stack.members] for i in range(0, len(trained), stack.members)]


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
                tolerance="constant",  # as in the stored results
                recipe=stack.cells[cells[0]].recipe,
                test=test,
                mixture=stack.members > 1,
            )
            if rules.released_pairs and stack.cells[cells[0]].recipe != "released":
                ds = ds.assign(_released(whole, stack, theta, x))
        seconds = (time.monotonic() - started) / len(cells)
        for row, i in enumerate(cells):
            # A single network is its own mixture.
            one = ds if stack.members > 1 else ds.isel(member=[row, row]).assign_coords(member=["0", "mixture"])
            found[i] = one.assign_attrs(seconds=seconds)
    return found


def _released(posterior: Posterior, stack: Stack, theta: Tensor, x: Tensor) -> dict[str, xr.DataArray]:
    """Coverage of the first pairs by the released recipe, under the names it is stored by."""
    n = stack.rules.released_pairs
    ds = diagnose(
        posterior,
        theta[:n],
        x[:n],
        seed=stack.stream("diagnose"),
        samples=PROTOCOLS["released"].samples,
        tolerance="constant",
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
