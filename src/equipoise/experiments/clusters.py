"""Clusters: what `--cluster` names, looked at before anything begins, and its Dask client.

One worker computes one stack at a time: on this machine one worker per GPU or a share of the cores, in a batch
system one per job.
"""

from __future__ import annotations

__all__ = ["check_cluster", "connect"]

import inspect
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from equipoise.support.checks import whole_number
from equipoise.support.devices import cores
from equipoise.support.errors import warn
from equipoise.support.words import did_you_mean

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


def check_cluster(cluster: str | None) -> None:
    """Raise where `--cluster` cannot be used, as far as can be told without starting anything."""
    if cluster is None:
        return
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise RuntimeError("--cluster needs Dask: pip install 'equipoise[cluster]'") from error
    if _is_file(cluster):
        _read_batch_system(Path(cluster))
    elif cluster != "local" and "://" not in cluster:
        raise ValueError(
            f"--cluster {cluster!r}: give `local`, the address of a Dask scheduler (tcp://host:8786), or a YAML file "
            "for a batch system"
        )


def _is_file(cluster: str) -> bool:
    return Path(cluster).suffix in (".yaml", ".yml")


@contextmanager
def connect(cluster: str | None, device: str | None, threads: int, stacks: int) -> Iterator[Any]:
    """A Dask client for `--cluster`, or None for this process; it has at most as many workers as there are stacks."""
    if cluster is None:
        yield None
        return
    from distributed import Client

    if cluster == "local":
        made = _local(device, threads, stacks)
    elif _is_file(cluster):
        made = _batch_system(Path(cluster), threads, stacks)
    else:
        made = nullcontext(cluster)
    with made as target, Client(target, set_as_default=False, timeout="60s") as client:
        yield client


def _local(device: str | None, threads: int, stacks: int) -> Any:
    """One worker per GPU, or one for every `threads` cores; each with one thread, hence one stack at a time."""
    from distributed import Nanny, Scheduler, SpecCluster

    security = _temporary_security()
    network: dict[str, Any] = {"host": "127.0.0.1", "dashboard": False}
    network |= {"protocol": "tls://", "security": security} if security else {"protocol": "tcp://"}
    gpus = _gpus() if device != "cpu" else []
    workers = {}
    for i in range(min(len(gpus) or max(1, cores() // threads), stacks)):
        env = {"OMP_WAIT_POLICY": "PASSIVE"} | ({"CUDA_VISIBLE_DEVICES": gpus[i]} if gpus else {})
        options = {"nthreads": 1, "memory_limit": 0, "silence_logs": logging.ERROR, "env": env}
        options |= {"resources": {"GPU": 1}} if gpus else {}
        workers[i] = {"cls": Nanny, "options": network | options}
    scheduler = {"cls": Scheduler, "options": network | {"port": 0}}
    quiet = logging.CRITICAL
    return SpecCluster(workers=workers, scheduler=scheduler, security=security, silence_logs=quiet, name="equipoise")


def _temporary_security() -> Any:
    """Certificates for this run alone: without them every user of this machine could send code to the workers."""
    from distributed import Security

    try:
        return Security.temporary()
    except ImportError:
        warn(
            "the cryptography package is not installed: connections of --cluster local are not encrypted, and other "
            "users of this machine could connect to it (pip install cryptography)"
        )
        return None


def _gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def _read_batch_system(file: Path) -> tuple[Any, dict[str, Any], int]:
    """The class of dask-jobqueue that a YAML file names, its options, and the number of jobs.

    The file has one key, the batch system, and under it what dask-jobqueue's class takes, plus `jobs`, how many jobs
    to keep:

        slurm:
          jobs: 8
          queue: gpu
          memory: 16GB
          walltime: "04:00:00"
          security: true
          shared_temp_directory: /shared/me
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
        raise ValueError(f"{file}: {did_you_mean(str(system), SYSTEMS, 'batch system')}")
    try:
        with _own_interrupt():
            import dask_jobqueue
    except ImportError as error:
        raise RuntimeError(
            "--cluster with a batch system needs dask-jobqueue: pip install 'equipoise[cluster]'"
        ) from error
    kind = getattr(dask_jobqueue, SYSTEMS[system])
    if not isinstance(given, dict | None):
        raise ValueError(f"{file}: the options of {system} should be `name: value`, one per line")
    options = dict(given or {})
    jobs = whole_number(f"{file}: jobs", options.pop("jobs", 1), least=1)
    known = _parameters(kind)
    for key in options:
        if key not in known:
            raise ValueError(f"{file}: {did_you_mean(key, sorted({*known, 'jobs'}), f'option of {system}')}")
    return kind, options, jobs


def _batch_system(file: Path, threads: int, stacks: int) -> Any:
    """A cluster of batch jobs, one stack at a time each."""
    import dask

    kind, options, jobs = _read_batch_system(file)
    known = _parameters(kind)
    # One thread for Dask, which then gives a worker one stack at a time; the stack's own threads are the job's cores.
    defaults: dict[str, Any] = {"cores": 1, "processes": 1, "memory": "4GB"}
    if "job_cpu" in known:
        defaults["job_cpu"] = threads
    # The batch system watches over memory. Dask's own watch would pause a worker for good, for memory that torch holds.
    if "job_script_prologue" in known:
        watches = [f"DASK_DISTRIBUTED__WORKER__MEMORY__{w}" for w in ("PAUSE", "TERMINATE", "SPILL", "TARGET")]
        own = options.get("job_script_prologue") or []
        options["job_script_prologue"] = [*(f"export {watch}=False" for watch in watches), *own]
    asked = options.get("security") or str(options.get("protocol", "")).startswith("tls")
    if not (asked or dask.config.get("distributed.comm.require-encryption", None)):
        warn(
            f"the scheduler of {file} accepts connections from anyone on the network, who could then run code as you: "
            "add `security: true` (and shared_temp_directory, a folder that all nodes see) to the file"
        )
    # The dashboard is for this machine alone, unless the file says otherwise.
    options["scheduler_options"] = {"dashboard_address": "127.0.0.1:0"} | (options.get("scheduler_options") or {})
    cluster = kind(**defaults | options)
    count = min(jobs, stacks)
    cluster.adapt(minimum_jobs=count, maximum_jobs=count)  # jobs that end at their time limit are replaced
    return cluster


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Give Ctrl-C back to whoever had it: dask-jobqueue takes it when imported, and would exit as if all were done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _parameters(kind: Any) -> set[str]:
    """The keyword arguments that a class of dask-jobqueue takes."""
    names: set[str] = set()
    for cls in (*kind.__mro__, *kind.job_cls.__mro__):
        if "__init__" in vars(cls) and cls.__module__.startswith(("dask_jobqueue", "distributed")):
            names |= {p.name for p in inspect.signature(cls.__init__).parameters.values() if p.kind != p.VAR_KEYWORD}
    return names - {"self"}
