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
from typing import Protocol

import numpy as np
import torch

from equipoise.support.errors import warn

from .blocks import CorruptBlockError
from .claims import Claims
from .pairs import Simulations, without_invalid
from .store import Manifest, Store

#: Seconds between two times that the rows of incomplete blocks are set down.
PATIENCE = 60.0

_Draw = Callable[[int], np.ndarray]  # the parameters of a block, with shape (block_size, D)


class Sink(Protocol):
    """What `simulate` needs of the place where simulations go."""

    def pending(self) -> list[int]:
        """The blocks that are not complete."""
        ...

    def open(self, block: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The parameters of a block and the rows still to do; None if another process is at work on it."""
        ...

    def put(self, block: int, rows: np.ndarray, x: np.ndarray) -> None:
        """Take finished rows, float32 with shape `(len(rows), *x_shape)`."""
        ...

    def keep(self) -> None:
        """Set down what is finished of incomplete blocks."""
        ...

    def finished(self) -> Simulations | None:
        """What there is when the work ends early."""
        ...

    def result(self, on_invalid: str) -> Simulations:
        """Everything, when the work is done."""
        ...

    def close(self) -> None:
        """Let other processes have what is not done."""
        ...


class MemorySink:
    """Rows 0 to n - 1 in two arrays. Rows of a batch beyond n are cut off."""

    def __init__(self, n: int, manifest: Manifest, draw: _Draw) -> None:
        self.n, self.size, self.draw, self.storage = n, manifest.block_size, draw, manifest.storage
        self.whole = manifest.streams == "block"
        self.theta = np.empty((n, manifest.dim), np.float32)
        self.x: np.ndarray | None = None
        self.done = np.zeros(n, bool)

    def pending(self) -> list[int]:
        return list(range(-(-self.n // self.size)))

    def open(self, block: int) -> tuple[np.ndarray, np.ndarray] | None:
        theta, start = self.draw(block), block * self.size
        stop = min(start + self.size, self.n)
        self.theta[start:stop] = theta[: stop - start]
        return theta, np.arange(self.size if self.whole else stop - start)

    def put(self, block: int, rows: np.ndarray, x: np.ndarray) -> None:
        if self.x is None:
            self.x = np.empty((self.n, *x.shape[1:]), np.float32)
        rows = rows + block * self.size
        inside = rows < self.n
        self.x[rows[inside]] = x[inside]
        self.done[rows[inside]] = True

    def keep(self) -> None:
        """Memory needs no keeping."""

    def finished(self) -> Simulations | None:
        if self.x is None:
            return None
        return Simulations(self.theta[self.done], self.x[self.done], storage=self.storage)

    def result(self, on_invalid: str) -> Simulations:
        assert self.x is not None
        invalid = np.flatnonzero(~np.isfinite(self.x.reshape(self.n, -1)).all(1))
        theta, x = torch.from_numpy(self.theta), torch.from_numpy(self.x)
        return without_invalid(theta, x, invalid, on_invalid, storage=self.storage, what="simulations")

    def close(self) -> None:
        """Memory is nobody else's."""


@dataclass(eq=False)
class _Open:
    """A block at work."""

    theta: np.ndarray
    x: np.ndarray | None
    done: np.ndarray


class StoreSink:
    """The blocks of a store. The directory is made when the first simulation, and with it the shape of x, is there."""

    def __init__(
        self, n: int, path: Path, manifest: Manifest, draw: _Draw, verify: bool, same_simulator: bool = False
    ) -> None:
        self.n, self.path, self.draw, self.verify, self.same_simulator = n, path, draw, verify, same_simulator
        self.manifest, self.size = manifest, manifest.block_size
        self.claims = Claims(path)
        self.at_work: dict[int, _Open] = {}
        self.store: Store | None = None
        self._kept = time.monotonic()
        self._connect()

    def needed(self, block: int) -> int:
        """How many rows a block must have: all, except in the last block of a simulator that takes one θ at a time."""
        rest = self.n - block * self.size
        return self.size if self.manifest.streams == "block" else min(self.size, rest)

    def pending(self) -> list[int]:
        return [b for b in range(-(-self.n // self.size)) if not self._complete(b)]

    def open(self, block: int) -> tuple[np.ndarray, np.ndarray] | None:
        if not self.claims.take(block):
            return None
        needed, theta = self.needed(block), self.draw(block)
        work = _Open(theta, None, np.zeros(needed, bool))
        if self._complete(block, loud=False):  # another process was faster
            self.claims.drop(block)
            return theta, np.empty(0, np.int64)
        for rows, x in self._earlier(block):
            work.x = np.empty((needed, *x.shape[1:]), np.float32) if work.x is None else work.x
            inside = rows < needed
            work.x[rows[inside]], work.done[rows[inside]] = x[inside], True
        self.at_work[block] = work
        if work.done.all():
            self._finish(block)
            return theta, np.empty(0, np.int64)
        return theta, np.flatnonzero(~work.done)

    def put(self, block: int, rows: np.ndarray, x: np.ndarray) -> None:
        if self.store is None or self.manifest.x_shape != x.shape[1:]:
            self.manifest = replace(self.manifest, x_shape=tuple(x.shape[1:]))
            self.store = Store.create(self.path, self.manifest, self.same_simulator)
        work = self.at_work[block]
        if work.x is None:
            work.x = np.empty((len(work.done), *x.shape[1:]), np.float32)
        work.x[rows], work.done[rows] = x, True
        if work.done.all():
            self._finish(block)
        elif time.monotonic() - self._kept > PATIENCE:
            self.keep()

    def keep(self) -> None:
        self._kept = time.monotonic()
        for block, work in self.at_work.items():
            if self.store is not None and work.x is not None and work.done.any():
                rows = np.flatnonzero(work.done)
                self.store.write_partial(block, work.theta[rows], work.x[rows], rows)

    def finished(self) -> Simulations | None:
        return self.store.read(on_invalid="keep") if self.store is not None and len(self.store) else None

    def result(self, on_invalid: str) -> Simulations:
        assert self.store is not None
        there = set(self.store.numbers())
        for block in self.store.leftovers():  # of processes that were killed between two steps
            if block in there and self.claims.take(block):
                self.store.drop_partial(block)
                self.claims.drop(block)
        return self.store.read(self.n, on_invalid=on_invalid)

    def close(self) -> None:
        self.at_work.clear()
        self.claims.drop_all()

    def _connect(self) -> None:
        """Open the store if it is there by now, and refuse it if it is not the one that is wanted."""
        if self.store is None and (self.path / "manifest.json").exists():
            # The shape of x is not known yet; it is checked with the first simulation.
            self.manifest = replace(self.manifest, x_shape=Store(self.path).manifest.x_shape)
            self.store = Store.create(self.path, self.manifest, self.same_simulator)
            self._refuse_another_prior(self.store)

    def _finish(self, block: int) -> None:
        work = self.at_work.pop(block)
        assert self.store is not None and work.x is not None
        if not self._complete(block, loud=False):  # where there are no locks, a longer block may have come in between
            self.store.write(block, work.theta[: len(work.x)], work.x)
        self.claims.drop(block)

    def _complete(self, block: int, loud: bool = True) -> bool:
        self._connect()
        if self.store is None:
            return False
        try:
            return len(self.store.block(block, x=self.verify).theta) >= self.needed(block)
        except FileNotFoundError:
            return False
        except CorruptBlockError as error:
            if loud:
                warn(f"{error.path}: {error.reason}; it is simulated again")
            return False

    def _earlier(self, block: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows that were simulated before: a block cut short at a smaller n, or one that was interrupted."""
        if self.store is None or self.manifest.streams == "block":
            return []
        try:
            short = self.store.block(block)
        except (FileNotFoundError, CorruptBlockError):
            short = None
        found = [b for b in (short, self.store.read_partial(block)) if b is not None]
        return [(b.rows, b.x.astype(np.float32)) for b in found if b.x is not None]

    def _refuse_another_prior(self, store: Store) -> None:
        """Compare stored parameters with a fresh draw: a prior is what it draws, whatever it is called."""
        for number in store.numbers()[:1]:
            try:
                theta = store.block(number, x=False).theta
            except CorruptBlockError:
                return
            if not np.allclose(theta, self.draw(number)[: len(theta)], rtol=1e-4, atol=1e-6):
                raise ValueError(
                    f"{self.path} holds other simulations than these: its parameters are not draws of this "
                    "prior with this seed. Use another directory, or the prior that made it."
                )
