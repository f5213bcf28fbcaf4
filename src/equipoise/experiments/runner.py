"""Running a grid: find what is missing, compute it, gather the results.

Running a grid again computes what is missing and nothing else, whether it was interrupted, failed in places, or grew.
Cells that are there stay as they are; where a grid has grown, the new cells of a stack form a stack of their own.
"""

from __future__ import annotations

__all__ = ["DONE", "FAILED", "MISSING", "RUNNING", "State", "missing_stacks", "run_grid", "state_of"]

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from equipoise.support.devices import cores

from .cells import Cell, Stack, stacks_of
from .clusters import check_cluster, connect
from .costs import cost, device_kind
from .engine import Compute, Execution, execute
from .folder import Folder, Heartbeat
from .grids import Grid
from .pipeline import compute_stack

DONE, RUNNING, FAILED, MISSING = "done", "running", "failed", "missing"
#: More threads than this gain nothing on networks of this size.
MOST_THREADS = 4

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
    compute: Compute = compute_stack,
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
        compute: what computes a stack.
        tell: called with each stack that ended, and how.

    Returns:
        Where the grid stands.
    """
    check_cluster(cluster)
    folder = Folder(path)
    threads = threads or _begun_with(folder) or default_threads(cluster)
    folder.write_grid(grid.config(), threads=threads, command=_command(sys.argv[1:]))
    folder.warn_of_unusable_files()
    left = missing_stacks(grid, folder, device)
    deadline = None if stop_after is None else time.time() + stop_after
    execution = Execution(device, threads, checkpoint, deadline=deadline, pace=pace, compile=compile)
    if left:
        with connect(cluster, execution, len(left)) as client:
            for stack, outcome in execute(left, folder, execution, compute, client):
                if tell is not None:
                    tell(stack, outcome)
    return state_of(grid, folder)


def default_threads(cluster: str | None) -> int:
    """All cores up to a few where one stack is computed at a time, one where there are workers."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    available = min(cores(), int(asked)) if asked.isdigit() and int(asked) > 0 else cores()
    return min(available, MOST_THREADS) if cluster is None else 1


def _command(arguments: Sequence[str]) -> str:
    """The command that this is, without the folders of this machine.

    Example:
        >>> _command(["run", "--grid", "paper", "--out", "/scratch/me/paper"])
        'equipoise run --grid paper --out paper'
    """
    return " ".join(["equipoise", *(Path(a).name if Path(a).is_absolute() else a for a in arguments)])


def _begun_with(folder: Folder) -> int | None:
    """The threads that the folder was begun with: results are equal to the last bit only for equal numbers of them."""
    try:
        return int(folder.read_grid()["threads"])
    except (FileNotFoundError, KeyError):
        return None
