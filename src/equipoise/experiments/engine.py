"""Where stacks are computed: in this process, on Dask workers of this machine or another, through a batch system.

`attempt` is the same function everywhere. It claims a stack, computes it, and leaves either its file or its traceback
in the folder; what travels between processes is a word. So a worker, the scheduler or the runner can be lost at any
time: whatever was finished is on disk, and whatever was not is computed again, to the same result.

One stack is computed at a time in a process, hence one a GPU.
"""

from __future__ import annotations

__all__ = ["BUSY", "DONE", "FAILED", "LATE", "Execution", "attempt", "connect", "execute"]

import dataclasses
import inspect
import logging
import os
import shutil
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from .cells import Stack
from .costs import cost, device_kind, pace
from .entries import nearest
from .folder import Folder

DONE, FAILED, BUSY, LATE = "done", "failed", "busy", "late"
#: A training that is expected to take longer than this, in seconds, is checkpointed.
CHECKPOINT_ABOVE = 120.0
#: Seconds that a worker waits for a stack that somebody else is computing, before it asks for another.
PATIENCE = 2.0
#: The batch systems of dask-jobqueue, by the key of the YAML file.
SYSTEMS = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "lsf": "LSFCluster",
    "sge": "SGECluster",
    "oar": "OARCluster",
    "moab": "MoabCluster",
    "htcondor": "HTCondorCluster",
}

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
            share = pace(stack, (_header(str(folder.path), s) for s in folder.stacks()), device)
        return share * cost(stack, device).seconds

    def in_time(self, stack: Stack, folder: Folder) -> bool:
        """Whether a stack that begins now is expected to end before the deadline."""
        return self.deadline is None or time.time() + self.expected(stack, folder) <= self.deadline


@lru_cache(maxsize=1 << 16)
def _header(path: str, identity: str) -> dict[str, Any]:
    """The header of a finished stack, which never changes."""
    return Folder(path).header(identity)


def attempt(stack: Stack, path: str, execution: Execution, compute: Compute) -> str:
    """Compute a stack if nobody else does and the time suffices; "done", "failed", "busy" or "late"."""
    folder, identity = Folder(path), stack.identity
    if not execution.in_time(stack, folder):
        return LATE
    with _ONE_AT_A_TIME, folder.claim(identity) as mine:
        if folder.has(identity):
            return DONE
        if not mine:
            time.sleep(PATIENCE)
            return BUSY
        folder.pulse(identity, "starting", force=True)
        most = cost(stack, device_kind(execution.device)).seconds
        keep = execution.checkpoint and most > execution.checkpoint_above
        try:
            try:
                compute(stack, folder, execution.device, execution.threads, keep, execution.compile)
            except ValueError as error:
                if "checkpoint" not in str(error) or not folder.checkpoint(identity).exists():
                    raise
                # The state of another version of the training is of no use.
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


# --- clusters ---------------------------------------------------------------------------------------------------------


@contextmanager
def connect(cluster: str | None, execution: Execution, stacks: int) -> Iterator[Any]:
    """A Dask client for `--cluster`, or None for this process.

    Arguments:
        cluster: None, "local", the address of a scheduler, or a YAML file.
        execution: how stacks are computed.
        stacks: how many there are; no more workers than that are started.
    """
    if cluster is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise RuntimeError("--cluster needs Dask: pip install 'equipoise[cluster]'") from error
    if cluster == "local":
        made = _local(execution, stacks)
    elif Path(cluster).suffix in (".yaml", ".yml"):
        made = _batch_system(Path(cluster), execution, stacks)
    elif "://" in cluster:
        made = None
    else:
        raise ValueError(
            f"--cluster {cluster!r}: give `local`, the address of a Dask scheduler (tcp://host:8786), or a YAML file "
            "for a batch system"
        )
    try:
        with Client(made if made is not None else cluster, set_as_default=False, timeout="60s") as client:
            yield client
    finally:
        if made is not None:
            made.close()


def _local(execution: Execution, stacks: int) -> Any:
    """One worker a GPU, or one for every `threads` cores; each with one thread, hence one stack at a time."""
    from distributed import Nanny, Scheduler, SpecCluster

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = _gpus() if execution.device != "cpu" else []
    count = min(len(gpus) or max(1, cores // execution.threads), max(1, stacks))
    workers = {}
    for i in range(count):
        env = {"OMP_WAIT_POLICY": "PASSIVE"} | ({"CUDA_VISIBLE_DEVICES": gpus[i]} if gpus else {})
        options: dict[str, Any] = {"nthreads": 1, "memory_limit": 0, "env": env, "silence_logs": logging.ERROR}
        options |= {"dashboard": False, "host": "127.0.0.1"}
        workers[i] = {"cls": Nanny, "options": options | ({"resources": {"GPU": 1}} if gpus else {})}
    scheduler = {"cls": Scheduler, "options": {"dashboard": False, "host": "127.0.0.1", "port": 0}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=logging.CRITICAL, name="equipoise")


def _gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return visible.split(",")
    return [str(i) for i in range(torch.cuda.device_count())]


def _batch_system(file: Path, execution: Execution, stacks: int) -> Any:
    """A cluster of batch jobs, one stack at a time each.

    The YAML file has one key, the batch system, and under it what dask-jobqueue's class takes, plus `jobs`, how many
    jobs to keep:

        slurm:
          jobs: 8
          queue: gpu
          memory: 16GB
          walltime: "04:00:00"
          job_extra_directives: ["--gres=gpu:1"]
    """
    import yaml  # type: ignore[import-untyped,unused-ignore]

    if not file.is_file():
        raise ValueError(f"--cluster: there is no file {file}")
    try:
        contents = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {error}") from error
    if not isinstance(contents, dict) or len(contents) != 1:
        raise ValueError(
            f"{file} should have one key, the batch system ({', '.join(SYSTEMS)}), and its options under it"
        )
    ((system, given),) = contents.items()
    if system not in SYSTEMS:
        raise ValueError(f"{file}: {nearest(str(system), SYSTEMS, 'batch system')}")
    try:
        import dask_jobqueue
    except ImportError as error:
        raise RuntimeError(
            "--cluster with a batch system needs dask-jobqueue: pip install 'equipoise[cluster]'"
        ) from error
    kind = getattr(dask_jobqueue, SYSTEMS[system])
    options = dict(given or {})
    jobs = options.pop("jobs", 1)
    known = _parameters(kind)
    for key in options:
        if key not in known:
            raise ValueError(f"{file}: {nearest(key, sorted({*known, 'jobs'}), f'option of {system}')}")
    # One thread for Dask, which then gives a worker one stack at a time; the stack's own threads are the job's cores.
    defaults: dict[str, Any] = {"cores": 1, "processes": 1, "memory": "4GB"}
    if "job_cpu" in known:
        defaults["job_cpu"] = execution.threads
    # The batch system watches over memory. Dask's own watch would pause a worker for good, for memory that torch holds.
    if "job_script_prologue" in known:
        unwatched = [
            f"export DASK_DISTRIBUTED__WORKER__MEMORY__{w}=False" for w in ("PAUSE", "TERMINATE", "SPILL", "TARGET")
        ]
        options["job_script_prologue"] = [*unwatched, *(options.get("job_script_prologue") or [])]
    cluster = kind(**defaults | options)
    count = min(int(jobs), max(1, stacks))
    cluster.adapt(minimum_jobs=count, maximum_jobs=count)  # jobs that end at their time limit are replaced
    return cluster


def _parameters(kind: Any) -> set[str]:
    """The keyword arguments that a class of dask-jobqueue takes."""
    names: set[str] = set()
    for cls in (*kind.__mro__, *kind.job_cls.__mro__):
        if "__init__" in vars(cls) and cls.__module__.startswith(("dask_jobqueue", "distributed")):
            names |= {p.name for p in inspect.signature(cls.__init__).parameters.values() if p.kind != p.VAR_KEYWORD}
    return names - {"self"}
