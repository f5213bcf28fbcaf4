"""Draw parameters from the prior and simulate.

Row i of the result is a function of the prior, the simulator, the seed, the block size and i alone. Rows come in
blocks of a fixed size; block b draws its θ from the stream ("simulations", "theta", b) and its noise from
("simulations", "x", b), or from ("simulations", "x", b, row) if the simulator takes one θ at a time. Hence a smaller
n is a prefix of a larger one, and the number of workers changes nothing. A simulator that takes batches is always
given whole blocks, also where n ends inside one, because what it does with its stream may depend on the size of the
batch.
"""

from __future__ import annotations

__all__ = ["SimulationError", "simulate"]

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.priors import Prior, as_prior
from equipoise.support import randomness
from equipoise.support.checks import (
    file_path,
    one_of,
    parameter_names,
    seed_number,
    true_or_false,
    whole_number,
)  # fmt: skip
from equipoise.support.devices import cores
from equipoise.support.progress import Progress

from .blocks import STORAGES, invalid_rows
from .identity import simulator_name, source_parts
from .probing import PROBES, adapt
from .simulations import Simulations, check_on_invalid, how_invalid
from .simulators import Failure, Unit, Workers, seed_globals
from .store import Manifest, Sink

#: Rows per block unless the caller says otherwise.
BLOCK_SIZE = 1024
#: The most simulations, rows of a block and processes: what asks for more is a slip.
MOST, MOST_ROWS, MOST_WORKERS = 1_000_000_000, 10_000_000, 4096
#: Simulators that take one θ at a time are given as many rows at once as take about this long, in seconds.
UNIT_SECONDS = 0.5


class SimulationError(RuntimeError):
    """A simulation failed.

    Attributes:
        row: its number.
        theta: its parameters, with shape `(D,)`.
        simulations: what had been finished by then, or None if nothing was.
    """

    def __init__(self, message: str, row: int, theta: torch.Tensor, simulations: Simulations | None) -> None:
        super().__init__(message)
        self.row, self.theta, self.simulations = row, theta, simulations


def simulate(
    prior: Any,
    simulator: Callable[..., Any],
    n: int,
    seed: int = 0,
    *,
    workers: int = 1,
    batched: bool | None = None,
    array: str | None = None,
    on_invalid: str = "drop",
    storage: str | None = None,
    store: str | Path | None = None,
    block_size: int | None = None,
    name: str | None = None,
    version: str | None = None,
    same_simulator: bool = False,
    verify: bool = True,
    progress: bool | None = None,
    names: Sequence[str] | None = None,
) -> Simulations:
    """Draw n parameters from the prior and simulate each of them.

    Arguments:
        prior: a distribution over vectors, a list or dictionary of distributions, one per parameter, or anything with
            `sample` and `log_prob`.
        simulator: `simulator(theta)` or `simulator(theta, seed=...)`. `seed` is a 63-bit integer for
            `numpy.random.default_rng` or `torch.Generator`; the global generators are set as well, for simulators
            that use those.
        n: how many pairs. Fewer are a prefix of more.
        seed: of everything random.
        workers: processes; -1 for one per core. With 1 the simulator runs in this process.
        batched: True if the simulator takes many θ at once, with shape `(n, D)`, and gives independent rows; False if
            it takes one, with shape `(D,)`. None tries it on a few draws: say it if the simulator is slow or unusual.
        array: `"torch"` (float32 tensors) or `"numpy"` (float64 arrays) for what it is given. None to find out.
        on_invalid: what to do with rows that have NaN or infinite values. `"drop"` leaves them out, with a warning
            that says how many; `"raise"` stops; `"keep"` keeps them.
        storage: how a store keeps x: `"float32"`; `"bits"` if x has only the values 0 and 1; `"integers"` if it has
            only whole numbers. By default what the simulator's object says of itself (`task.storage`), else
            `"float32"`.
        store: a directory to keep simulations in. What is there already is not simulated again. The result then reads
            x from disk.
        block_size: rows per stream and file. It is part of what fixes the result. 1024, or that of the store.
        name: what the store calls the simulator, to refuse another one. By default the function's own name.
        version: the version of the simulator, which the store then compares instead of its source.
        same_simulator: True to accept a simulator whose source or version has changed since the store was begun, and
            remember the new one. Without, it is refused: rows of two simulators must not mix.
        verify: whether the checksums of blocks that are there already are checked. A damaged one is named and
            simulated again.
        progress: False for no progress bar.
        names: of the parameters; the prior's unless given, or those that the store knows.

    Raises:
        SimulationError: if the simulator raises, naming the row and its θ, or at the first invalid row with
            `on_invalid="raise"`. What was finished is in the store, or else in the error's `simulations`.

    Example:
        >>> import equipoise as eq
        >>> prior = eq.BoxUniform([0.0, 1.0], [10.0, 2.0])
        >>> def simulator(theta, seed):  # one θ at a time, in NumPy
        ...     return np.random.default_rng(seed).normal(theta[0], theta[1], size=20)
        >>> pairs = eq.simulate(prior, simulator, 100, seed=0)
        >>> pairs.theta.shape, pairs.x.shape
        (torch.Size([100, 2]), torch.Size([100, 20]))
    """
    check_on_invalid(on_invalid)
    n, seed = whole_number("n", n, 1, MOST), seed_number("seed", seed)
    all_cores = isinstance(workers, int) and workers == -1
    workers = cores() if all_cores else whole_number("workers", workers, 1, MOST_WORKERS)
    flags = {"same_simulator": same_simulator, "verify": verify}
    flags |= {name: v for name, v in (("progress", progress), ("batched", batched)) if v is not None}
    for flag, value in flags.items():
        true_or_false(flag, value)
    if array is not None:
        one_of("array", array, ("torch", "numpy"))
    if storage is not None:
        one_of("storage", storage, STORAGES)
    storage = storage or str(getattr(getattr(simulator, "__self__", None), "storage", "float32"))
    if storage not in STORAGES:
        raise ValueError(f"storage should be one of {', '.join(STORAGES)}, got {storage!r}")
    path = None if store is None else file_path("store", store)
    block_size = _block_size(block_size, path)
    with randomness.undisturbed():  # recognising a prior may draw from it
        prior = as_prior(prior)
    names = prior.names if names is None else parameter_names(names, prior.dim)
    draw = partial(_draw, prior, seed, block_size)
    source = None if path is None or version is not None else source_parts(simulator)  # as it is before it is called
    try:
        adapter = adapt(simulator, _draw(prior, seed, PROBES, 0), seed, batched, array)
    except Failure as failure:
        what = "The simulator failed on a draw from the prior"
        raise _error(failure, 0, None, what, names) from failure.__cause__
    manifest = Manifest(
        prior=_describe(prior),
        simulator=name or simulator_name(simulator),
        seed=int(seed),
        block_size=block_size,
        streams="block" if adapter.batched else "row",
        dim=prior.dim,
        x_shape=(),
        storage=storage,
        source=source,
        version=None if version is None else str(version),
    )
    sink = Sink(n, manifest, draw, path, verify, same_simulator)
    pool: Workers | None = None
    try:
        pending = sink.pending()
        size = min(workers, len(pending) if adapter.batched else len(pending) * block_size)
        pool = Workers(adapter, int(seed), max(size, 1))
        with Progress("simulating", n, progress, done=n - min(n, len(pending) * block_size)) as bar:
            bar.advance(0)
            _work(_units(sink, pending, pool), pool, sink, bar, on_invalid, names)
    except BaseException:
        sink.save()
        raise
    finally:
        if pool is not None:
            pool.close()
        sink.close()
    if sink.store is not None and names is not None:
        sink.store.names = names
    pairs = sink.result(on_invalid)
    pairs.names = pairs.names if names is None else names
    return pairs


def _work(
    units: Iterator[Unit | None],
    pool: Workers,
    sink: Sink,
    bar: Progress,
    on_invalid: str,
    names: Sequence[str] | None,
) -> None:
    """Keep the pool busy until every block is complete or something fails."""
    running, invalid, more = 0, 0, True
    failed: tuple[int, Failure] | None = None
    shape: tuple[int, ...] | None = None
    while more or running:
        if more and running < pool.capacity:
            try:
                unit = next(units)
            except StopIteration:
                more = False
                continue
            if unit is not None:
                pool.submit(unit)
                running += 1
                continue
            if not running:
                time.sleep(0.1)  # what is left is being simulated by other processes
                continue
        outcome = pool.outcome()
        running -= 1
        x, failure = outcome.x, outcome.failure
        if len(x) and shape is None:
            shape = x.shape[1:]
        if len(x) and x.shape[1:] != shape:
            reason = f"the simulator returned shape {x.shape[1:]} here and {shape} before"
            failure = Failure(int(outcome.rows[0]), outcome.theta[0], reason)
        elif len(x):
            sink.put(outcome.block, outcome.rows, x)
            bad = invalid_rows(x)
            invalid += len(bad)
            bar.advance(len(x), f"{invalid} invalid" if invalid else "")
            if len(bad) and on_invalid == "raise" and failure is None:
                reason = f"x has {how_invalid(x[bad[:1]])}, and on_invalid='raise'"
                failure = Failure(int(outcome.rows[bad[0]]), outcome.theta[bad[0]], reason)
        if failure is not None and failed is None:
            failed, more = (outcome.block, failure), False
    if failed is not None:
        row = failed[0] * sink.size + failed[1].row
        raise _error(failed[1], row, sink, f"Simulation {row} failed", names)


def _units(sink: Sink, pending: list[int], pool: Workers) -> Iterator[Unit | None]:
    """Cut blocks into units of work: whole blocks for simulators that take batches, else some rows at a time.

    Blocks that other processes have claimed come last. None is given where all that are left are claimed.
    """
    todo, claimed = deque(pending), 0
    while todo:
        block = todo.popleft()
        if (opened := sink.open(block)) is None:
            todo.append(block)
            claimed = (claimed + 1) % len(todo)
            if not claimed:
                yield None
            continue
        (theta, rows), claimed = opened, 0
        while len(rows):
            count = len(rows)
            if not pool.adapter.batched:
                fair = count if todo else -(-count // pool.size)  # the rows of the last block are shared out
                count = min(fair, 1 + int(UNIT_SECONDS / max(pool.seconds_per_row, 1e-9)))
            yield block, rows[:count], theta[rows[:count]]
            rows = rows[count:]


def _draw(prior: Prior, seed: int, size: int, block: int) -> np.ndarray:
    """The parameters of a block, float32 with shape `(size, D)`."""
    with randomness.undisturbed():
        seed_globals(seed, "simulations", "theta", block)
        theta = prior.sample(torch.Size([size])).detach().cpu().to(torch.float32).numpy()
    if not np.isfinite(theta).all():
        raise ValueError(f"the prior drew parameters that are NaN or infinite in float32: {prior}")
    return theta


def _error(failure: Failure, row: int, sink: Sink | None, what: str, names: Sequence[str] | None) -> SimulationError:
    finished, theta = None if sink is None else sink.finished(), torch.as_tensor(failure.theta)
    where = f"theta = {theta.tolist()}"
    if names is not None:
        where = ", ".join(f"{name} = {value:.6g}" for name, value in zip(names, theta.tolist(), strict=True))
    message = f"{what} at {where}: {failure.reason}"
    if sink is not None and sink.path is not None:
        message += (
            f"\nWhat was finished is kept in {sink.path}: the same call goes on from there, with same_simulator=True "
            "(in the shell, --same-simulator) if you fix the simulator."
        )
    elif finished is not None:
        message += f"\nThe {len(finished)} simulations finished by then are in the error's `simulations`."
    if sink is not None:
        message += "\nA simulator that cannot simulate some parameters may return NaN for them."
    error = SimulationError(message, row, theta, finished)
    if failure.trace:
        error.add_note(f"The simulator's own traceback:\n{failure.trace}")
    return error


def _block_size(block_size: int | None, path: Path | None) -> int:
    if block_size is not None:
        return whole_number("block_size", block_size, 1, MOST_ROWS)
    if path is not None and (path / "manifest.json").exists():
        return Manifest.read(path).block_size
    return BLOCK_SIZE


def _describe(prior: Prior) -> dict[str, Any]:
    try:
        return prior.spec()
    except (NotImplementedError, ValueError):  # known by what it draws alone
        return {"kind": "opaque", "dim": prior.dim, "repr": repr(prior)}
