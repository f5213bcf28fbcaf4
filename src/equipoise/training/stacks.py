"""The stacks of a fit, one after the other or, where each needs one thread of a CPU, at once.

Two architectures cannot share a matrix product. Their small stacks would each leave all cores but one idle, so they
train in threads: what they compute is in compiled code, which other threads need not wait for. A member is the same to
the last bit either way, since a small stack always computes with one thread.
"""

from __future__ import annotations

__all__ = ["Job", "train_all"]

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import NamedTuple

import torch

from .loop import StackInputs, Trained, needs_one_thread
from .settings import Settings


class Job(NamedTuple):
    """The training of one stack: `run` takes what is left of `train_stack`'s arguments."""

    inputs: StackInputs
    run: Callable[..., Trained]


def train_all(make: Callable[[int], Job], number: int, settings: Settings, progress: bool | None) -> list[Trained]:
    """Train all stacks.

    Arguments:
        make: the job of stack number k. On a GPU, and for large networks, it is called when it is its turn, so that
            two stacks are never in memory.
        number: of stacks.
        settings: of the training.
        progress: False for silence.
    """
    if number == 1:
        return [make(0).run(progress=progress)]
    first, threads = make(0), torch.get_num_threads()
    reports = first.run.keywords["on_epoch"] is not None  # type: ignore[attr-defined]  # in the thread of the caller
    if threads > 1 and not reports and needs_one_thread(first.inputs, settings):
        jobs = [first, *(make(k) for k in range(1, number))]
        if all(needs_one_thread(job.inputs, settings) for job in jobs):
            return _at_once(jobs, min(threads, number), progress)
        del jobs
    found = []
    for k in range(number):
        job = first if k == 0 else make(k)
        found.append(job.run(progress=progress, label=f"training stack {k + 1} of {number}"))
        del job
    return found


def _at_once(jobs: list[Job], threads: int, progress: bool | None) -> list[Trained]:
    """All jobs in threads. The first shows its progress; an error or an interrupt stops the others after an epoch."""
    stop, before = threading.Event(), torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads) as pool:
            waiting = [
                pool.submit(
                    job.run,
                    progress=progress if k == 0 else False,
                    label=f"training {len(jobs)} stacks at once",
                    stop=stop,
                )
                for k, job in enumerate(jobs)
            ]
            try:
                done, _ = wait(waiting, return_when=FIRST_EXCEPTION)
                for one in done:
                    one.result()
            except BaseException:
                stop.set()
                raise
        return [one.result() for one in waiting]
    finally:
        torch.set_num_threads(before)  # what threads that are new to torch begin with
