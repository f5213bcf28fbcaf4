"""Running a grid: find what is missing, compute it in this process or on Dask workers, and say where it stands.

Running a grid again computes what is missing and nothing else, whether it was interrupted, failed in places, or grew.
Cells that are there stay as they are; where a grid has grown, the new cells of a stack form a stack of their own.

`attempt` is the same function everywhere. It claims a stack, computes it, and leaves either its file or its traceback
in the folder; what travels between processes is a word. So a worker, the scheduler or the runner can be lost at any
time: whatever was finished is on disk, and whatever was not is computed again, to the same result. A process computes
one stack at a time, hence one per GPU.
"""

from __future__ import annotations

__all__ = ["Execution", "State", "attempt", "missing_stacks", "run_grid", "state_of"]

import contextlib
import dataclasses
import os
import shutil
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from equipoise.support.checks import finite_number, whole_number
from equipoise.support.devices import cores
from equipoise.support.errors import CheckpointMismatch, DamagedFile

from .cells import Cell, Stack, stacks_of
from .clusters import check_cluster, connect
from .costs import cost, device_kind, pace
from .folder import Folder, Heartbeat
from .grids import Grid

#: States of a cell; what an attempt at a stack comes to is one of the first two and the last two.
DONE, FAILED, RUNNING, MISSING, BUSY, LATE = "done", "failed", "running", "missing", "busy", "late"
#: More threads than this gain nothing on networks of this size.
MOST_THREADS = 4
#: No process may have more.
THREADS = 1024
#: A training that is expected to take longer than this, in seconds, is checkpointed.
CHECKPOINT_ABOVE = 120.0
#: Seconds that a worker waits for a stack that somebody else is computing, before it asks for another.
RETRY_AFTER = 2.0
_ONE_AT_A_TIME = threading.Lock()

Compute = Callable[..., None]
#: Called with each stack that ended, or was left because it would end too late, and how.
Tell = Callable[[Stack, str], None]


@dataclasses.dataclass(frozen=True)
class State:
    """Where a grid stands.

    Arguments:
        cells: every cell of the grid and its state.
        running: what is being computed.
        failures: the traceback of each stack that failed, by its label and the beginning of its identity.
    """

    cells: tuple[tuple[Cell, str], ...]
    running: tuple[Heartbeat, ...]
    failures: dict[str, str]

    def count(self, state: str) -> int:
        return sum(s == state for _, s in self.cells)

    @property
    def complete(self) -> bool:
        return all(s == DONE for _, s in self.cells)


@dataclasses.dataclass(frozen=True)
class Execution:
    """How stacks are computed, as in `run_grid`; nothing here changes a result beyond rounding.

    `deadline` is when all has to be over, in seconds since the epoch; None for never.
    """

    device: str | None = None
    threads: int = 1
    checkpoint: bool = True
    deadline: float | None = None
    pace: float | None = None
    compile: bool | None = None


def missing_stacks(grid: Grid, folder: Folder, device: str | None = "cpu") -> list[Stack]:
    """What is left to compute, those that are cheap on the device first."""
    stacks = stacks_of(grid)
    left = [s for s in stacks if not folder.has(s.identity)]
    if left:
        others = folder.cells(besides=[s.identity for s in stacks])
        left = [rest for s in left if (rest := s.without(others)) is not None]
    return sorted(left, key=lambda s: cost(s, device_kind(device)).seconds)


def state_of(grid: Grid, folder: Folder) -> State:
    """The state of every cell of a grid. Warns of files that count as missing."""
    folder.warn_of_unusable_files()
    running = folder.running()
    states: dict[str, str] = {}
    failures: dict[str, str] = {}
    for stack in missing_stacks(grid, folder):
        failure = folder.failure(stack.identity)
        state = RUNNING if stack.identity in running else FAILED if failure is not None else MISSING
        if failure is not None and state == FAILED:
            failures[f"{stack.label} ({stack.identity[:6]})"] = failure
        states |= {cell.identity: state for cell in stack.cells}
    cells = tuple((cell, states.get(cell.identity, DONE)) for stack in stacks_of(grid) for cell in stack.cells)
    return State(cells, tuple(running.values()), failures)


def run_grid(
    grid: Grid,
    path: str | Path,
    *,
    cluster: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    checkpoint: bool = True,
    stop_after: float | None = None,
    pace: float | None = None,
    compile: bool | None = None,
    compute: Compute | None = None,
    tell: Tell | None = None,
) -> State:
    """Compute what is missing of a grid in a folder.

    Arguments:
        grid: the grid.
        path: the folder.
        cluster: None for this process, "local", the address of a Dask scheduler, or a YAML file for a batch system.
        device: "cpu", "cuda", or None for a GPU where there is one.
        threads: of the CPU, for each stack; None for what the folder was begun with, or else for what suits the
            machine.
        checkpoint: whether long trainings keep their state.
        stop_after: begin no stack that is not expected to end within this many seconds.
        pace: what stacks are expected to take, as a share of their cost (see `costs`); None for what those that are
            finished took. With 0 a stack is begun whatever it takes, until the time is over.
        compile: whether steps are compiled; None where it pays back for a stack alone. What is compiled serves all
            later stacks of a process with the same networks.
        compute: what computes a stack; None for `pipeline.compute_stack`.
        tell: called with each stack that ended, and how.

    Returns:
        Where the grid stands.
    """
    check_cluster(cluster)
    folder = Folder(path)
    _check_numbers(threads, stop_after, pace)
    threads = threads or _default_threads(folder, cluster)
    folder.write_grid(grid.config(), threads=threads, command=_command(sys.argv[1:]))
    folder.warn_of_unusable_files()
    folder.remove_remains()
    left = missing_stacks(grid, folder, device)
    deadline = None if stop_after is None else time.time() + stop_after
    how = Execution(device, threads, checkpoint, deadline, pace, compile)
    if left:
        from .pipeline import compute_stack  # here, since those who only look at a folder need no torch

        compute = compute or compute_stack
        with connect(cluster, device, threads, len(left)) as client:
            for stack, outcome in _execute(left, folder, how, compute, client):
                if tell is not None:
                    tell(stack, outcome)
    return state_of(grid, folder)


def _check_numbers(threads: int | None, stop_after: float | None, pace: float | None) -> None:
    if threads is not None:
        whole_number("threads", threads, 1, THREADS)
    for name, value in (("stop_after", stop_after), ("pace", pace)):
        if value is not None:
            finite_number(name, value, least=0)


def _default_threads(folder: Folder, cluster: str | None) -> int:
    """What the folder was begun with, as results are equal to the last bit only for equal numbers of threads.

    Else all cores up to a few where one stack is computed at a time, and one where there are workers.
    """
    with contextlib.suppress(FileNotFoundError, DamagedFile):  # which is written again
        stored = folder.read_grid().get("threads")
        with contextlib.suppress(ValueError, TypeError):
            return whole_number("threads", stored, 1, THREADS)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    most = int(asked) if asked.isdigit() and int(asked) > 0 else MOST_THREADS
    return min(cores(), most, MOST_THREADS) if cluster is None else 1


def _command(arguments: Sequence[str]) -> str:
    """The command that this is, without the folders of this machine.

    Example:
        >>> _command(["run", "--grid", "paper", "--out", "/scratch/me/paper"])
        'equipoise run --grid paper --out paper'
    """
    return " ".join(["equipoise", *(Path(a).name if Path(a).is_absolute() else a for a in arguments)])


# --- computing stacks ------------------------------------------------------------------------------------------------


def attempt(stack: Stack, path: str, how: Execution, compute: Compute) -> str:
    """Compute a stack if nobody else does and the time suffices; "done", "failed", "busy" or "late"."""
    folder, identity = Folder(path), stack.identity
    if how.deadline is not None and time.time() + _expected_seconds(stack, folder, how) > how.deadline:
        return LATE
    with _ONE_AT_A_TIME, folder.claim(identity) as mine:
        if folder.has(identity):
            return DONE
        if not mine:
            time.sleep(RETRY_AFTER)
            return BUSY
        folder.heartbeat(identity, "starting", force=True)
        keep = how.checkpoint and cost(stack, device_kind(how.device)).seconds > CHECKPOINT_ABOVE
        run = partial(compute, stack, folder, how.device, how.threads, keep, how.compile)
        try:
            try:
                run()
            except (CheckpointMismatch, DamagedFile):
                if not folder.checkpoint(identity).exists():
                    raise
                # The state of another version of the training, or a damaged one, is of no use.
                shutil.rmtree(folder.checkpoint(identity))
                run()
        except Exception as error:
            about = f"{stack.label}\ncells {', '.join(c.identity for c in stack.cells)}\n\n"
            folder.write_failure(identity, about + "".join(traceback.format_exception(error)))
            return FAILED
        return DONE


def _expected_seconds(stack: Stack, folder: Folder, how: Execution) -> float:
    """What a stack is expected to take, going by those in the folder unless `how` has a pace."""
    device, share = device_kind(how.device), how.pace
    if share is None:
        share = pace(stack, (_attributes(str(folder.path), s) for s in folder.stacks()), device)
    return share * cost(stack, device).seconds


@lru_cache(maxsize=1 << 16)
def _attributes(path: str, identity: str) -> dict[str, Any]:
    """The attributes of a finished stack, which never change."""
    return Folder(path).attributes(identity)


def _execute(
    stacks: Sequence[Stack], folder: Folder, how: Execution, compute: Compute, client: Any
) -> Iterator[tuple[Stack, str]]:
    """Compute stacks on a Dask client or, if it is None, here and in this order; yield each as it ends."""
    if client is not None:
        yield from _on_dask(stacks, folder, how, compute, client)
        return
    waiting = deque(stacks)
    while waiting:
        stack = waiting.popleft()
        outcome = attempt(stack, str(folder.path), how, compute)
        if outcome == BUSY:
            waiting.append(stack)
        else:
            yield stack, outcome


def _on_dask(
    stacks: Sequence[Stack], folder: Folder, how: Execution, compute: Compute, client: Any
) -> Iterator[tuple[Stack, str]]:
    from distributed import as_completed

    path = str(folder.path.resolve())
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    options = {"pure": False, "resources": {"GPU": 1} if any(w["resources"].get("GPU") for w in workers) else None}

    def submit(stack: Stack, rank: int) -> Any:
        # A key of its own each time: a cluster that outlives the runner must not hand back an old answer.
        key = f"equipoise-{stack.identity}-{uuid.uuid4().hex[:8]}"
        return client.submit(attempt, stack, path, how, compute, key=key, priority=-rank, **options)

    futures = {submit(stack, rank): stack for rank, stack in enumerate(stacks)}
    completed = as_completed(list(futures), loop=client.loop)
    try:
        for future in completed:
            stack = futures.pop(future)
            outcome = _outcome(future, stack, folder)
            if outcome == BUSY:
                again = submit(stack, len(stacks))
                futures[again] = stack
                completed.add(again)
            else:
                yield stack, outcome
    finally:
        client.cancel(list(futures), force=True)


def _outcome(future: Any, stack: Stack, folder: Folder) -> str:
    """What became of a stack; workers that die of it again and again (out of memory, say) are its failure."""
    if future.status == "finished":
        return str(future.result())
    if folder.has(stack.identity):
        return DONE
    error = future.exception() if future.status == "error" else RuntimeError("the scheduler lost the stack")
    folder.write_failure(stack.identity, f"{stack.label}\n\n{type(error).__name__}: {error}\n")
    return FAILED
