"""Stacks that train at once, each on a thread of its own.

Two architectures cannot share a stack. Where members train in compiled calls (`flow_epochs`), the stacks take turns on
the same threads, so that none waits for the last member of a stack. A member is the same to the last bit either way.
"""

from __future__ import annotations

__all__ = ["Job", "trained_at_once"]

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch

from equipoise.support.devices import workers

from .loop import StackInputs, Trained, train_stack, trains_by_hand
from .settings import Settings


class Job(NamedTuple):
    """What `train_stack` is given for one stack: inputs, and further arguments by name."""

    inputs: StackInputs
    options: dict[str, Any]


def trained_at_once(
    job: Callable[[int], Job], number: int, settings: Settings, progress: bool | None
) -> list[Trained] | None:
    """All stacks, trained in threads; None where they had better train one after the other.

    The first shows its progress. An error or an interrupt stops the others after an epoch.

    Arguments:
        job: from the number of a stack to what it is trained from.
        number: how many stacks there are.
        settings: of the training.
        progress: False for silence.
    """
    if torch.get_num_threads() == 1:
        return None
    jobs = []
    for k in range(number):
        jobs.append(job(k))
        if not trains_by_hand(jobs[-1].inputs, settings):
            return None
    stop, before = threading.Event(), torch.get_num_threads()
    workers(before)  # made once, before several ask for them
    try:
        with ThreadPoolExecutor(number) as pool:
            waiting = [
                pool.submit(
                    train_stack,
                    inputs,
                    settings,
                    progress=progress if k == 0 else False,
                    label=f"training {number} stacks at once",
                    stop=stop,
                    threads=before,
                    **options,
                )
                for k, (inputs, options) in enumerate(jobs)
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
