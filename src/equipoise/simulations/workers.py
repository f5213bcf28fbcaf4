"""Simulating in this process, or in several.

loky starts fresh Python interpreters. They neither inherit threads that do not exist in them, as forked ones do, nor
import the user's script again, so that no `if __name__ == "__main__"` is needed. The simulator travels by value with
cloudpickle: lambdas, closures, functions of a notebook or script.
"""

from __future__ import annotations

__all__ = ["Inline", "Workers"]

import functools
import os
import pickle
import re
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, wait

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor  # type: ignore[import-untyped]

from equipoise.support.devices import cores

from .simulators import Adapter, Failure, Outcome

_Unit = tuple[int, np.ndarray, np.ndarray]  # block, rows, theta
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_payload = b""  # in a worker: the pickled adapter and seed


class Inline:
    """Simulates units of work (block, rows, theta) in this process, one at a time."""

    #: How many units may be under way at once.
    size = 1

    def __init__(self, adapter: Adapter, seed: int) -> None:
        self.adapter, self.seed = adapter, seed
        self._units: list[_Unit] = []

    def submit(self, unit: _Unit) -> None:
        """Hand in a unit of work."""
        self._units.append(unit)

    def outcome(self) -> Outcome:
        """The outcome of one of the units that were handed in."""
        return self.adapter.run(self.seed, *self._units.pop())

    def close(self) -> None:
        """End the processes at once, also in the middle of a simulation."""


class Workers:
    """Simulates in `size` processes."""

    def __init__(self, adapter: Adapter, seed: int, size: int) -> None:
        try:
            payload = cloudpickle.dumps((adapter, seed))
        except Exception as error:
            raise TypeError(
                f"the simulator cannot be sent to worker processes ({type(error).__name__}: {error}). Define it at the "
                "top level of a module, or use workers=1."
            ) from error
        self.size = size
        self._units: dict[Future[Outcome], _Unit] = {}
        self._pool = ProcessPoolExecutor(
            size,
            # Workers share the cores; the simulators' own threads must not multiply with them.
            env=dict.fromkeys(_THREADS, str(max(1, cores() // size))),
            initializer=_start,
            initargs=(payload, os.getpid()),
        )

    def submit(self, unit: _Unit) -> None:
        self._units[self._pool.submit(_run, *unit)] = unit

    def outcome(self) -> Outcome:
        done = wait(self._units, return_when=FIRST_COMPLETED).done
        future = next(f for f in self._units if f in done)
        block, rows, theta = self._units.pop(future)
        try:
            return future.result()
        except BrokenProcessPool as error:
            at_work = [(block, rows, theta), *self._units.values()]
            where = ", ".join(f"rows {r[0]} to {r[-1]} of block {b}" for b, r, _ in at_work)
            codes = re.search(r"{.*}", str(error))  # as SIGKILL(-9)
            reason = (
                f"a worker process ended in the middle of its work {codes[0] if codes else ''}: it crashed, exited, or "
                f"was killed, as systems do when memory runs out. It was at work on one of {where}"
            )
            failure = Failure(int(rows[0]), theta[0], reason, "")
            return Outcome(block, rows[:0], theta[:0], np.empty((0, 0), np.float32), failure, 0.0)

    def close(self) -> None:
        self._pool.shutdown(wait=True, kill_workers=True)


def _start(payload: bytes, parent: int) -> None:
    """Prepare a worker process."""
    global _payload
    _payload = payload
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    os.dup2(2, 1)  # what a simulator prints goes to standard error
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent was killed: whatever is being simulated is for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@functools.cache
def _adapter() -> tuple[Adapter, int]:
    try:
        return pickle.loads(_payload)
    except Exception as error:
        raise RuntimeError(
            f"the simulator could not be rebuilt in a worker process ({type(error).__name__}: {error}). Define it in a "
            "module that can be imported, or use workers=1."
        ) from error


def _run(block: int, rows: np.ndarray, theta: np.ndarray) -> Outcome:
    adapter, seed = _adapter()
    return adapter.run(seed, block, rows, theta)
