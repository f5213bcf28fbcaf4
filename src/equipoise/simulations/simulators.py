"""A user's simulator, whatever it looks like, as a function from a block of θ to a block of x.

A simulator is any callable `simulator(theta)` or `simulator(theta, seed=...)`. It may take one θ, with shape `(D,)`,
or a batch, with shape `(n, D)`; torch tensors (float32) or NumPy arrays (float64); and return a tensor, an array, a
list or a number, of any fixed shape.

**Streams.** Every unit of work has its own stream, keyed by the seed, the block, and (for simulators that take one θ
at a time) the row. From it come the integer given as `seed` and the states of the global generators of `random`,
NumPy and torch, which are set before each call, and given back to the caller as they were. So nothing depends on
which process simulates what, or in which order.

**Processes.** loky starts fresh Python interpreters. They neither inherit threads that do not exist in them, as forked
ones do, nor import the user's script again, so that no `if __name__ == "__main__"` is needed. The simulator travels by
value with cloudpickle: lambdas, closures, functions of a notebook or script.
"""

from __future__ import annotations

__all__ = ["Adapter", "Failure", "Outcome", "Unit", "Workers", "one_line", "seed_globals"]

import functools
import math
import os
import pickle
import random
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import torch
from loky.process_executor import BrokenProcessPool, ProcessPoolExecutor  # type: ignore[import-untyped]
from torch import Tensor

from equipoise.support import randomness
from equipoise.support.arrays import plain
from equipoise.support.devices import cores

#: A unit of work: the number of a block, some of its rows, and their θ with shape `(len(rows), D)`.
Unit = tuple[int, np.ndarray, np.ndarray]
_NOTHING = np.empty((0, 0), np.float32)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_payload = b""  # in a worker: the pickled adapter and seed


def seed_globals(seed: int, *path: str | int) -> int:
    """Set the global generators from a stream, and return the stream's integer."""
    words = randomness.sequence(seed, *path).generate_state(8)
    number = int(words[:2].view(np.uint64)[0]) >> 1  # as randomness.integer has it, without hashing the path again
    random.seed(number)
    # Simulators written for NumPy's global generator must be reproducible too, hence the legacy call.
    np.random.seed(words)  # noqa: NPY002
    torch.default_generator.manual_seed(number)
    if _has_cuda():
        torch.cuda.manual_seed_all(number)
    return number


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


class Failure(RuntimeError):
    """A simulation that raised: at which row of its block, at which θ, and why. It travels between processes."""

    def __init__(self, row: int, theta: np.ndarray, reason: str, trace: str = "") -> None:
        super().__init__(row, theta, reason, trace)
        self.row, self.theta, self.reason, self.trace = row, theta, reason, trace


@dataclass(frozen=True, eq=False)
class Outcome:
    """The rows of a block that were simulated, and the failure that ended the work early, if any."""

    block: int
    rows: np.ndarray
    theta: np.ndarray
    x: np.ndarray
    failure: Failure | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """A simulator, and how it is to be called."""

    simulator: Callable[..., Any]
    array: str
    batched: bool
    takes_seed: bool

    def run(self, seed: int, block: int, rows: np.ndarray, theta: np.ndarray) -> Outcome:
        """Simulate the given rows of a block; `theta`, with shape `(len(rows), D)`, are their parameters."""
        started = time.monotonic()
        with randomness.undisturbed():
            x, failure = (self._run_batch if self.batched else self._run_rows)(seed, block, rows, theta)
        return Outcome(block, rows[: len(x)], theta[: len(x)], x, failure, time.monotonic() - started)

    def _run_batch(
        self, seed: int, block: int, rows: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, Failure | None]:
        try:
            return self.call(theta, seed, "x", block), None
        except Exception as error:
            low, high = 0, len(theta)
            while high - low > 1:  # find the row whose θ makes the batch fail, by halving
                middle = (low + high) // 2
                low, high = (low, middle) if self._fails(theta[low:middle], seed, block) else (middle, high)
            if self._fails(theta[low:high], seed, block):
                return _NOTHING, _failure(low, theta[low], error)
            return _NOTHING, _failure(0, theta[0], error, " (in a batch; no single theta of it fails alone)")

    def _fails(self, theta: np.ndarray, seed: int, block: int) -> bool:
        try:
            self.call(theta, seed, "x", block)
        except Exception:
            return True
        return False

    def _run_rows(
        self, seed: int, block: int, rows: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, Failure | None]:
        done: list[np.ndarray] = []
        failure = None
        for row, parameters in zip(rows.tolist(), theta, strict=True):
            try:
                x = self.call(parameters, seed, "x", block, row)
                if done and x.shape != done[0].shape:
                    raise ValueError(
                        f"the simulator returned shape {x.shape} here and {done[0].shape} before; the shape of "
                        "x must be the same for every theta (pad, crop or summarise)"
                    )
                done.append(x)
            except Exception as error:
                failure = _failure(row, parameters, error)
                break
        return np.stack(done) if done else _NOTHING, failure

    def call(self, theta: np.ndarray, seed: int, *path: str | int) -> np.ndarray:
        """Simulate once: a batch `(n, D)` to float32 `(n, *x_shape)`, or one θ `(D,)` to float32 `(*x_shape)`."""
        return self.checked(self.raw(theta, seed, *path), theta)

    def raw(self, theta: np.ndarray, seed: int, *path: str | int) -> Any:
        """What the simulator itself returns."""
        number = seed_globals(seed, "simulations", *path)
        # A copy each time: a simulator that works in place must not change what is stored.
        given = torch.from_numpy(theta.copy()) if self.array == "torch" else theta.astype(np.float64)
        return self.simulator(given, seed=number) if self.takes_seed else self.simulator(given)

    def checked(self, output: Any, theta: np.ndarray) -> np.ndarray:
        """What the simulator returned for `theta`, as float32 and with at least one dimension for x."""
        x = _as_array(output)
        if not self.batched:
            return x.reshape(1) if x.ndim == 0 else x
        if x.ndim == 0 or len(x) != len(theta):
            raise ValueError(
                f"the simulator was given {len(theta)} parameters at once and returned shape {x.shape}; it "
                f"should return ({len(theta)}, …). If it takes one theta at a time, pass batched=False (in the "
                "shell, --one-by-one)."
            )
        return x.reshape(-1, 1) if x.ndim == 1 else x


def _as_array(output: Any) -> np.ndarray:
    """What a simulator returned, as a float32 array; values beyond float32 become infinite, masked ones NaN."""
    if output is None:
        raise TypeError("the simulator returned None; does it miss a return statement?")
    if isinstance(output, Tensor):
        output = output.detach().cpu()
        output = (output if output.is_complex() else output.to(torch.float32)).numpy()
    try:
        array = np.asarray(plain(output))
    except ValueError as error:
        raise TypeError(f"the simulator returned a {type(output).__name__} that is not one array: {error}") from error
    if array.dtype.kind == "c":
        raise TypeError("the simulator returned complex numbers; return their real and imaginary parts as two channels")
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"the simulator returned a {type(output).__name__} of dtype {array.dtype}; it should return "
            "numbers, as a tensor, an array, a list or a scalar"
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _failure(row: int, theta: np.ndarray, error: BaseException, where: str = "") -> Failure:
    return Failure(row, theta, one_line(error) + where, "".join(traceback.format_exception(error)))


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


class Workers:
    """Simulates units of work in `size` processes; with one, in this process and as soon as they are handed in."""

    def __init__(self, adapter: Adapter, seed: int, size: int) -> None:
        self.adapter, self.seed, self.size = adapter, seed, size
        #: How many units may be under way: one more than there are processes, so that none has to wait.
        self.capacity = 1 if size == 1 else size + 1
        #: How long a row took in the last outcome.
        self.seconds_per_row = math.inf
        self._units: dict[Future[Outcome], Unit] = {}
        self._pool = None if size == 1 else _started(adapter, seed, size)

    def submit(self, unit: Unit) -> None:
        """Hand in a unit of work."""
        if self._pool is None:
            future: Future[Outcome] = Future()
            future.set_result(self.adapter.run(self.seed, *unit))
        else:
            future = self._pool.submit(_run, *unit)
        self._units[future] = unit

    def outcome(self) -> Outcome:
        """The outcome of one of the units that were handed in."""
        future = wait(self._units, return_when=FIRST_COMPLETED).done.pop()
        block, rows, theta = self._units.pop(future)
        try:
            outcome = future.result()
        except BrokenProcessPool as error:
            at_work = [(block, rows, theta), *self._units.values()]
            where = ", ".join(f"rows {r[0]} to {r[-1]} of block {b}" for b, r, _ in at_work)
            codes = re.search(r"{.*}", str(error))  # as SIGKILL(-9)
            reason = (
                f"a worker process ended in the middle of its work {codes[0] if codes else ''}: it crashed, exited, or "
                f"was killed, as systems do when memory runs out. It was at work on one of {where}"
            )
            return Outcome(block, rows[:0], theta[:0], _NOTHING, Failure(int(rows[0]), theta[0], reason), 0.0)
        if len(outcome.x):
            self.seconds_per_row = outcome.seconds / len(outcome.x)
        return outcome

    def close(self) -> None:
        """End the processes at once, also in the middle of a simulation."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)


def _started(adapter: Adapter, seed: int, size: int) -> ProcessPoolExecutor:
    try:
        payload = cloudpickle.dumps((adapter, seed))
    except Exception as error:
        raise TypeError(
            f"the simulator cannot be sent to worker processes ({one_line(error)}). Define it at the top level of a "
            "module, or use workers=1."
        ) from error
    # Workers share the cores; the simulators' own threads must not multiply with them.
    threads = dict.fromkeys(_THREADS, str(max(1, cores() // size)))
    return ProcessPoolExecutor(size, env=threads, initializer=_start, initargs=(payload, os.getpid()))


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
def _unpickled() -> tuple[Adapter, int]:
    return pickle.loads(_payload)


def _run(block: int, rows: np.ndarray, theta: np.ndarray) -> Outcome:
    adapter, seed = _unpickled()
    return adapter.run(seed, block, rows, theta)
