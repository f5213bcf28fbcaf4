"""Where stacks are computed: in this process, on Dask workers of this machine or another, through a batch system.

`attempt` is the same function everywhere. It claims a stack, computes it, and leaves either its file or its traceback
in the folder; what travels between processes is a word. So a worker, the scheduler or the runner can be lost at any
time: whatever was finished is on disk, and whatever was not is computed again, to the same result.

One stack is computed at a time in a process, hence one per GPU.
"""

from __future__ import annotations

__all__ = ["BUSY", "DONE", "FAILED", "LATE", "Execution", "attempt", "execute"]

import dataclasses
import shutil
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from equipoise.support.errors import CheckpointMismatch, DamagedFile

from .cells import Stack
from .costs import cost, device_kind, pace
from .folder import Folder

DONE, FAILED, BUSY, LATE = "done", "failed", "busy", "late"
#: A training that is expected to take longer than this, in seconds, is checkpointed.
CHECKPOINT_ABOVE = 120.0
#: Seconds that a worker waits for a stack that somebody else is computing, before it asks for another.
RETRY_AFTER = 2.0
_ONE_AT_A_TIME = threading.Lock()

Compute = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Execution:
    """How stacks are computed; nothing here changes a result beyond rounding.

    Arguments:
        device: "cpu", "cuda", or None for a GPU where there is one.
        threads: of the CPU, for each stack.
        checkpoint: whether long trainings keep their state.
        checkpoint_above: what is long, in seconds.
        deadline: when all has to be over, in seconds since the epoch; None for never. A stack that is not expected to
            end by then is not begun.
        pace: what a stack is expected to take, as a share of its cost; None for what those in the folder took.
        compile: whether steps are compiled; None where it pays back for the stack alone.
    """

    device: str | None = None
    threads: int = 1
    checkpoint: bool = True
    checkpoint_above: float = CHECKPOINT_ABOVE
    deadline: float | None = None
    pace: float | None = None
    compile: bool | None = None

    def expected(self, stack: Stack, folder: Folder) -> float:
        """Seconds that a stack is expected to take."""
        device = device_kind(self.device)
        share = self.pace
        if share is None:
            share = pace(stack, (_attributes(str(folder.path), s) for s in folder.stacks()), device)
        return share * cost(stack, device).seconds

    def in_time(self, stack: Stack, folder: Folder) -> bool:
        """Whether a stack that begins now is expected to end before the deadline."""
        return self.deadline is None or time.time() + self.expected(stack, folder) <= self.deadline


@lru_cache(maxsize=1 << 16)
def _attributes(path: str, identity: str) -> dict[str, Any]:
    """The attributes of a finished stack, which never change."""
    return Folder(path).attributes(identity)


def attempt(stack: Stack, path: str, execution: Execution, compute: Compute) -> str:
    """Compute a stack if nobody else does and the time suffices; "done", "failed", "busy" or "late"."""
    folder, identity = Folder(path), stack.identity
    if not execution.in_time(stack, folder):
        return LATE
    with _ONE_AT_A_TIME, folder.claim(identity) as mine:
        if folder.has(identity):
            return DONE
        if not mine:
            time.sleep(RETRY_AFTER)
            return BUSY
        folder.heartbeat(identity, "starting", force=True)
        most = cost(stack, device_kind(execution.device)).seconds
        keep = execution.checkpoint and most > execution.checkpoint_above
        try:
            try:
                compute(stack, folder, execution.device, execution.threads, keep, execution.compile)
            except (CheckpointMismatch, DamagedFile):
                if not folder.checkpoint(identity).exists():
                    raise
                # The state of another version of the training, or a damaged one, is of no use.
                shutil.rmtree(folder.checkpoint(identity))
                compute(stack, folder, execution.device, execution.threads, keep, execution.compile)
        except Exception as error:
            about = f"{stack.label}\ncells {', '.join(c.identity for c in stack.cells)}\n\n"
            folder.write_failure(identity, about + "".join(traceback.format_exception(error)))
            return FAILED
        return DONE


def execute(
    stacks: Sequence[Stack], folder: Folder, execution: Execution, compute: Compute, client: Any = None
) -> Iterator[tuple[Stack, str]]:
    """Compute stacks, in this order where there is one worker, and tell of each as it ends.

    Arguments:
        stacks: what to compute.
        folder: where.
        execution: how.
        compute: what computes one.
        client: a Dask client, or None for this process.
    """
    return (
        _here(stacks, folder, execution, compute)
        if client is None
        else _on_dask(stacks, folder, execution, compute, client)
    )


def _here(
    stacks: Sequence[Stack], folder: Folder, execution: Execution, compute: Compute
) -> Iterator[tuple[Stack, str]]:
    waiting = deque(stacks)
    while waiting:
        stack = waiting.popleft()
        outcome = attempt(stack, str(folder.path), execution, compute)
        if outcome == BUSY:
            waiting.append(stack)
        else:
            yield stack, outcome


def _on_dask(
    stacks: Sequence[Stack], folder: Folder, execution: Execution, compute: Compute, client: Any
) -> Iterator[tuple[Stack, str]]:
    from distributed import as_completed

    path = str(folder.path.resolve())
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    resources = {"GPU": 1} if any(w["resources"].get("GPU") for w in workers) else None

    def submit(stack: Stack, rank: int) -> Any:
        # A key of its own each time: a cluster that outlives the runner must not hand back an old answer.
        key = f"equipoise-{stack.identity}-{uuid.uuid4().hex[:8]}"
        return client.submit(
            attempt, stack, path, execution, compute, key=key, pure=False, priority=-rank, resources=resources
        )

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
