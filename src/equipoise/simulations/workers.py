"""Worker processes for simulators.

A worker is a fresh Python interpreter that is sent the simulator once, then units of work, over its standard input,
and answers over its standard output (what the simulator itself prints goes to standard error).

Neither of the usual ways would do. Forking copies a process whose torch, OpenMP or numba threads do not exist in the
copy, and the first parallel loop hangs. `multiprocessing`'s spawn imports the user's script again, so that a script
without an `if __name__ == "__main__"` guard starts itself over and over, and a notebook's functions are not found. A
fresh interpreter has neither trouble, and the simulator travels by value with cloudpickle: lambdas, closures,
functions of a notebook or script.

A worker ends when its input does, so that nothing is left running when the parent is killed.
"""

from __future__ import annotations

__all__ = ["Inline", "Pool", "Workers", "cores"]

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from typing import IO, Any, Protocol

import numpy as np

from .simulators import Adapter, Failure, Outcome

_Unit = tuple[int, np.ndarray, np.ndarray]  # block, rows, theta


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool(Protocol):
    """Something that simulates units (block, rows, theta) and gives outcomes in any order."""

    #: How many units may be under way at once.
    size: int

    def submit(self, unit: _Unit) -> None: ...

    def outcome(self) -> Outcome: ...

    def close(self) -> None: ...


class Inline:
    """Simulates in this process."""

    size = 1

    def __init__(self, adapter: Adapter, seed: int) -> None:
        self.adapter, self.seed = adapter, seed
        self._units: list[_Unit] = []

    def submit(self, unit: _Unit) -> None:
        self._units.append(unit)

    def outcome(self) -> Outcome:
        return self.adapter.run(self.seed, *self._units.pop())

    def close(self) -> None:
        self._units.clear()


class Workers:
    """Simulates in `size` processes. One thread for each hands it units and waits for its answers."""

    def __init__(self, adapter: Adapter, seed: int, size: int) -> None:
        payload = _pickle((adapter, seed))
        self.size = size
        self._units: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        self._processes = [_start(size) for _ in range(size)]
        self._threads = [threading.Thread(target=self._serve, args=(p, payload), daemon=True) for p in self._processes]
        for thread in self._threads:
            thread.start()

    def submit(self, unit: _Unit) -> None:
        self._units.put(unit)

    def outcome(self) -> Outcome:
        outcome = self._outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        for _ in self._threads:
            self._units.put(None)
        for process in self._processes:
            _close(process.stdin)  # which ends it, even in the middle of a simulation
        for process in self._processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread, process in zip(self._threads, self._processes, strict=True):
            thread.join(timeout=5)
            _close(process.stdout)

    def _serve(self, process: subprocess.Popen[bytes], payload: bytes) -> None:
        assert process.stdin is not None and process.stdout is not None
        unit: _Unit | None = None
        try:
            _send(process.stdin, payload)
            trouble = pickle.loads(_receive(process.stdout))
            if trouble is not None:
                self._outcomes.put(RuntimeError(trouble))
                return
            while (unit := self._units.get()) is not None:
                _send(process.stdin, pickle.dumps(unit, protocol=5))
                self._outcomes.put(pickle.loads(_receive(process.stdout)))
        except (OSError, EOFError, ValueError):
            code = process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            if unit is None:
                self._outcomes.put(RuntimeError(f"a worker process {how} before its first simulation"))
                return
            block, rows, theta = unit
            hint = "; it may have run out of memory" if code == -9 else ""
            reason = f"the worker process that simulated it {how}{hint}"
            failure = Failure(int(rows[0]), theta[0], reason, "")
            self._outcomes.put(Outcome(block, rows[:0], theta[:0], np.empty((0, 0), np.float32), failure, 0.0))


def serve() -> None:
    """The life of a worker process."""
    # The pipe to the parent moves out of the way of print(), which from now on writes to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_until_closed, args=(sys.stdin.buffer, inbox), daemon=True).start()
    try:
        adapter, seed = pickle.loads(inbox.get())
    except Exception as error:
        cloud = "" if _cloudpickle() else " Installing cloudpickle lets functions of a script or notebook travel."
        _send(
            answers,
            pickle.dumps(
                f"the simulator could not be rebuilt in a worker process ({type(error).__name__}: "
                f"{error}).{cloud} Define it in a module that can be imported, or use workers=1."
            ),
        )
        return
    _send(answers, pickle.dumps(None))
    while True:
        block, rows, theta = pickle.loads(inbox.get())
        _send(answers, pickle.dumps(adapter.run(seed, block, rows, theta), protocol=5))


def _start(size: int) -> subprocess.Popen[bytes]:
    # Workers share the cores; the simulators' own threads must not multiply with them.
    threads = str(max(1, cores() // size))
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    code = f"import sys; sys.path[:] = {sys.path!r}; from equipoise.simulations.workers import serve; serve()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **dict.fromkeys(names, threads)},
        # Ctrl-C is for the parent, which closes the workers in its own time.
        start_new_session=True,
    )


def _read_until_closed(stream: IO[bytes], inbox: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            inbox.put(_receive(stream))
    except (OSError, EOFError):
        os._exit(0)  # the parent is gone or done; whatever is being simulated is for nobody


def _send(stream: IO[bytes], payload: bytes) -> None:
    stream.write(struct.pack("<Q", len(payload)))
    stream.write(payload)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    (length,) = struct.unpack("<Q", _exactly(stream, 8))
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], length: int) -> bytes:
    payload = stream.read(length)
    if len(payload) < length:
        raise EOFError
    return payload


def _close(stream: IO[bytes] | None) -> None:
    try:
        if stream is not None:
            stream.close()
    except OSError:  # flushing to a process that is gone
        return


def _pickle(thing: Any) -> bytes:
    pickler = _cloudpickle() or pickle
    try:
        return pickler.dumps(thing)
    except Exception as error:
        hint = "" if pickler is not pickle else " Installing cloudpickle lets lambdas and closures travel."
        raise TypeError(
            f"the simulator cannot be sent to worker processes ({type(error).__name__}: {error}).{hint} Define "
            "it at the top level of a module, or use workers=1."
        ) from error


def _cloudpickle() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return None
    return cloudpickle
