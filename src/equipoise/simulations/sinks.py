"""Where finished simulations go: to memory, or to a store.

A sink says which blocks are missing, opens one at a time for work (telling which of its rows are still to do), takes
rows in any order, and keeps what is finished when the work is interrupted.
"""

from __future__ import annotations

__all__ = ["MemorySink", "Sink", "StoreSink"]

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from equipoise.support.errors import warn
from equipoise.support.files import Lock, remove_leftovers

from .blocks import CorruptBlockError, invalid_rows
from .simulations import Simulations, without_invalid
from .store import Manifest, Store

#: Seconds between two times that the finished rows of incomplete blocks are saved.
SAVE_SECONDS = 60.0


class MemorySink:
    """Rows 0 to n - 1 in two arrays. Rows of a batch beyond n are cut off.

    Arguments:
        n: how many rows.
        manifest: what they are.
        draw: gives the parameters of a block, with shape `(block_size, D)`.
    """

    def __init__(self, n: int, manifest: Manifest, draw: Callable[[int], np.ndarray]) -> None:
        self.n, self.size, self.draw, self.manifest = n, manifest.block_size, draw, manifest
        self.theta = np.empty((n, manifest.dim), np.float32)
        self.x: np.ndarray | None = None
        self.done = np.zeros(n, bool)

    def pending(self) -> list[int]:
        """The blocks that are not complete."""
        return list(range(-(-self.n // self.size)))

    def open(self, block: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The parameters of a block and the rows still to do; None if another process is at work on it."""
        theta, start = self.draw(block), block * self.size
        inside = min(self.size, self.n - start)
        self.theta[start : start + inside] = theta[:inside]
        return theta, np.arange(self.size if self.manifest.streams == "block" else inside)

    def put(self, block: int, rows: np.ndarray, x: np.ndarray) -> None:
        """Take finished rows, float32 with shape `(len(rows), *x_shape)`."""
        if self.x is None:
            self.x = np.empty((self.n, *x.shape[1:]), np.float32)
        rows = rows + block * self.size
        inside = rows < self.n
        self.x[rows[inside]], self.done[rows[inside]] = x[inside], True

    def finished(self) -> Simulations | None:
        """What there is when the work ends early."""
        if self.x is None:
            return None
        return Simulations(self.theta[self.done], self.x[self.done], storage=self.manifest.storage)

    def result(self, on_invalid: str) -> Simulations:
        """Everything, when the work is done."""
        assert self.x is not None
        theta, x = torch.from_numpy(self.theta), torch.from_numpy(self.x)
        return without_invalid(
            theta, x, invalid_rows(self.x), on_invalid, storage=self.manifest.storage, what="simulations"
        )

    def save(self) -> None:
        """Save what is finished of incomplete blocks: a no-op in memory."""

    def close(self) -> None:
        """Let other processes have what is not done: a no-op in memory."""


@dataclass(eq=False)
class _Open:
    """A block at work, and the lock that keeps other processes from it."""

    theta: np.ndarray
    x: np.ndarray | None
    done: np.ndarray
    lock: Lock


class StoreSink:
    """The blocks of a store. The directory is made when the first simulation, and with it the shape of x, is there.

    Arguments:
        n: how many rows the store should have.
        manifest: what the store is; the shape of x is not known yet.
        draw: gives the parameters of a block, with shape `(block_size, D)`.
        path: the directory.
        verify: whether the digests of blocks that are there are checked.
        same_simulator: accept a simulator whose code has changed.
    """

    def __init__(
        self,
        n: int,
        manifest: Manifest,
        draw: Callable[[int], np.ndarray],
        path: Path,
        verify: bool,
        same_simulator: bool,
    ) -> None:
        self.n, self.path, self.draw, self.verify, self.same_simulator = n, path, draw, verify, same_simulator
        self.manifest, self.size = manifest, manifest.block_size
        self.at_work: dict[int, _Open] = {}
        self.store: Store | None = None
        self._saved = time.monotonic()
        self._connect()

    def pending(self) -> list[int]:
        return [b for b in range(-(-self.n // self.size)) if not self._complete(b)]

    def open(self, block: int) -> tuple[np.ndarray, np.ndarray] | None:
        name, nothing = self.path / f"block-{block:06d}", np.empty(0, np.int64)
        lock = Lock(name.with_suffix(".claim"))
        if not lock.acquire():
            return None
        for suffix in (".h5", ".partial"):  # of writers that were killed
            remove_leftovers(name.with_suffix(suffix))
        theta = self.draw(block)
        if self._complete(block, loud=False):  # another process was faster
            lock.release()
            return theta, nothing
        work = self.at_work[block] = _Open(theta, None, np.zeros(self._needed(block), bool), lock)
        if self.store is not None and self.manifest.streams == "row":
            # Rows that were simulated before: a block cut short at a smaller n, or one that was interrupted.
            for earlier in (self.store.earlier(block, suffix) for suffix in ("h5", "partial")):
                if earlier is not None and earlier.x is not None:
                    inside = earlier.rows < len(work.done)
                    self._fill(work, earlier.rows[inside], earlier.x[inside].astype(np.float32))
        if work.done.all():
            self._finish(block)
            return theta, nothing
        return theta, np.flatnonzero(~work.done)

    def put(self, block: int, rows: np.ndarray, x: np.ndarray) -> None:
        if self.store is None or self.manifest.x_shape != x.shape[1:]:
            self.manifest = replace(self.manifest, x_shape=tuple(x.shape[1:]))
            self.store = Store.create(self.path, self.manifest, self.same_simulator)
        work = self.at_work[block]
        self._fill(work, rows, x)
        if work.done.all():
            self._finish(block)
        elif time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def finished(self) -> Simulations | None:
        return self.store.read(on_invalid="keep") if self.store is not None and len(self.store) else None

    def result(self, on_invalid: str) -> Simulations:
        assert self.store is not None
        there = set(self.store.numbers())
        for block in self.store.leftovers():  # of processes that were killed between two steps
            with Lock(self.store.block_path(block, "claim")) as mine:
                if mine and block in there:
                    self.store.drop_partial(block)
        return self.store.read(self.n, on_invalid=on_invalid)

    def save(self) -> None:
        self._saved = time.monotonic()
        for block, work in self.at_work.items():
            if self.store is not None and work.x is not None and work.done.any():
                rows = np.flatnonzero(work.done)
                self.store.write(block, work.theta[rows], work.x[rows], rows)

    def close(self) -> None:
        for work in self.at_work.values():
            work.lock.release()
        self.at_work.clear()

    def _needed(self, block: int) -> int:
        """How many rows a block must have: all, except in the last block of a simulator that takes one θ at a time."""
        return self.size if self.manifest.streams == "block" else min(self.size, self.n - block * self.size)

    def _fill(self, work: _Open, rows: np.ndarray, x: np.ndarray) -> None:
        if work.x is None:
            work.x = np.empty((len(work.done), *x.shape[1:]), np.float32)
        work.x[rows], work.done[rows] = x, True

    def _finish(self, block: int) -> None:
        work = self.at_work.pop(block)
        assert self.store is not None and work.x is not None
        if not self._complete(block, loud=False):  # where there are no locks, a longer block may have come in between
            self.store.write(block, work.theta[: len(work.x)], work.x)
        work.lock.release()

    def _complete(self, block: int, loud: bool = True) -> bool:
        self._connect()
        if self.store is None:
            return False
        try:
            return len(self.store.block(block, x=self.verify).theta) >= self._needed(block)
        except FileNotFoundError:
            return False
        except CorruptBlockError as error:
            if loud:
                warn(f"{error.path}: {error.reason}; it is simulated again")
            return False

    def _connect(self) -> None:
        """Open the store if it is there by now, and refuse it if it is not the one that is wanted."""
        if self.store is not None or not (self.path / "manifest.json").exists():
            return
        # The shape of x is not known yet; it is checked with the first simulation.
        self.manifest = replace(self.manifest, x_shape=Manifest.read(self.path).x_shape)
        self.store = Store.create(self.path, self.manifest, self.same_simulator)
        for number in self.store.numbers()[:1]:
            try:
                theta = self.store.block(number, x=False).theta
            except CorruptBlockError:
                return
            # A prior is what it draws, whatever it is called.
            if not np.allclose(theta, self.draw(number)[: len(theta)], rtol=1e-4, atol=1e-6):
                raise ValueError(
                    f"{self.path} holds other simulations than these: its parameters are not draws of this "
                    "prior with this seed. Use another directory, or the prior that made it."
                )


Sink = MemorySink | StoreSink
