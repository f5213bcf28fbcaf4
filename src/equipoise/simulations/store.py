"""A directory of simulations that cannot be left half written.

    pairs/
      manifest.json       what this store is: prior, seed, block size, shape of x, simulator (see `identity`)
      block-000000.h5     rows 0 to block_size - 1
      block-000001.h5     …
      names.json          the names of the parameters, where they have some

Every block is a function of the manifest and its number: its θ and its noise come from streams keyed by the seed and
the number. Three properties follow, and none needs a server or a log.

- *Killed at any moment*, a store holds whole blocks only (a block is renamed into place, see `blocks`), and the next
  run simulates what is missing.
- *Extended in place*: a larger n adds blocks; what n rows held before, they hold after.
- *Several processes at once*: two that make the same block make the same bytes, and the second rename changes
  nothing. Locks (`block-….claim`) only keep them from doing work twice; where a file system has none, they do.

A simulator that takes one θ at a time has one stream per row. Its blocks may then be cut short at n, to be completed
later, and the finished rows of a block are saved every minute and on failure in `block-….partial`.
"""

from __future__ import annotations

__all__ = ["Manifest", "Sink", "Store"]

import functools
import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from equipoise.support.checks import parameter_names
from equipoise.support.errors import warn
from equipoise.support.files import Lock, remove_leftovers, write_text
from equipoise.support.words import listed

from .blocks import STORAGES, Block, CorruptBlockError, invalid_rows, load_x, read_block, write_block
from .identity import source_changes
from .simulations import Column, RowsOf, Segment, Simulations, without_invalid

#: The store format. A reader refuses what is newer.
FORMAT = 1
#: Seconds between two times that the finished rows of incomplete blocks are saved.
SAVE_SECONDS = 60.0
_FILE = re.compile(r"block-(\d{6,})\.(h5|partial|claim)")


@dataclass(frozen=True)
class Manifest:
    """Everything that fixes the content of a store."""

    prior: dict[str, Any]
    simulator: str
    seed: int
    block_size: int
    #: `"block"` for simulators that take batches, `"row"` for those that take one θ at a time.
    streams: str
    dim: int
    x_shape: tuple[int, ...]
    storage: str
    #: Digests of the simulator's source, by part; None where its name, or its version, is all there is.
    source: dict[str, str] | None = None
    #: The version of the simulator that the user gave, which then stands for the source.
    version: str | None = None

    @property
    def identity(self) -> str:
        """A digest that each block carries, so that a block of another store is noticed.

        The simulator's source and version are not in it: `same_simulator=True` replaces them and keeps the blocks.
        """
        return hashlib.blake2b(replace(self, source=None, version=None).json().encode(), digest_size=16).hexdigest()

    def json(self) -> str:
        """The manifest as it is written."""
        fields = {k: v for k, v in asdict(self).items() if k not in ("source", "version") or v is not None}
        return json.dumps({"equipoise_store": FORMAT, **fields}, indent=1, sort_keys=True)

    @staticmethod
    def read(path: Path) -> Manifest:
        """The manifest of the store at `path`."""
        file = path / "manifest.json"
        if not file.exists():
            what = "there is no manifest.json in it" if path.is_dir() else "there is no such directory"
            raise FileNotFoundError(f"{path} is not a store of simulations: {what}")
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            version = fields.pop("equipoise_store")
            if version > FORMAT:
                raise ValueError(f"{path} is a store of format {version}, written by a newer Equipoise than this one")
            found = Manifest(**{**fields, "x_shape": tuple(fields["x_shape"])})
            found.check()
            return found
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{file} is damaged ({error}); restore it, or move the directory away") from error

    def check(self) -> None:
        """Raise TypeError unless every field can be what it is called."""
        whole = (self.seed, self.block_size, self.dim, *self.x_shape)
        right = all(type(number) is int for number in whole) and min(self.block_size, self.dim, 1) == 1
        right &= isinstance(self.prior, dict) and isinstance(self.simulator, str)
        if not (right and self.storage in STORAGES and self.streams in ("block", "row")):
            raise TypeError("a field is not what it should be")

    def differences(self, wanted: Manifest) -> list[str]:
        """What `wanted` has otherwise, one line per field, without the simulator's source and version."""
        mine, theirs = (asdict(replace(manifest, source=None, version=None)) for manifest in (self, wanted))
        for fields in (mine, theirs):  # some priors are known by their repr alone; `Sink` compares their draws
            if fields["prior"].get("kind") == "opaque":
                fields["prior"] = {"kind": "opaque", "dim": fields["prior"].get("dim")}
        return [f"  {k}: the store has {mine[k]!r}, this call {theirs[k]!r}" for k in mine if mine[k] != theirs[k]]

    def code_changed(self, wanted: Manifest) -> str:
        """How the simulator of `wanted` differs from this one's, by version or else by source; "" if it does not."""
        if self.version != wanted.version:
            return f"the store has version={self.version!r}, this call version={wanted.version!r}"
        changed = source_changes(self.source, wanted.source) if self.version is None else []
        return f"what differs: {listed(changed)}" if changed else ""


class Store:
    """A directory of simulations, as `simulate(…, store=path)` makes and extends it.

    Arguments:
        path: the directory.

    Example:
        >>> import tempfile, torch, equipoise as eq
        >>> prior = eq.BoxUniform([-1.0], [1.0])
        >>> folder = tempfile.mkdtemp()
        >>> pairs = eq.simulate(prior, lambda theta: theta + torch.randn_like(theta), 1000, store=folder)
        >>> len(Store(folder).read(500))
        500
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)
        self._checked: set[int] = set()

    @classmethod
    def create(cls, path: str | Path, manifest: Manifest, same_simulator: bool = False) -> Store:
        """The store of this manifest: a new one, or the one that is there if it is the same.

        With `same_simulator` a simulator whose code has changed is accepted, and the store remembers the new code.
        """
        path = Path(path)
        if not (path / "manifest.json").exists():
            if any(path.glob("block-*.h5")):
                raise ValueError(f"{path} has blocks but no manifest.json; restore it, or use another directory")
            write_text(path / "manifest.json", manifest.json() + "\n")
        store = cls(path)
        if differing := "\n".join(store.manifest.differences(manifest)):
            raise ValueError(
                f"{path} holds other simulations than these:\n{differing}\nUse another directory, or the same "
                "settings. If it is the same simulator under a new name, pass name= with the store's."
            )
        if change := store.manifest.code_changed(manifest):
            if not same_simulator:
                raise ValueError(
                    f"the simulator {manifest.simulator!r} has changed since {path} was begun ({change}), and rows of "
                    "two simulators must not mix. Use another directory for the new one. If the change does not matter "
                    "(it computes the same, or failed where it was fixed), pass same_simulator=True once (in "
                    "the shell, --same-simulator); with a version= of your own, the source is not looked at."
                )
            store.manifest = replace(store.manifest, source=manifest.source, version=manifest.version)
            write_text(path / "manifest.json", store.manifest.json() + "\n")
        return store

    def __len__(self) -> int:
        """How many rows there are without a gap, from the first."""
        return self._extent()[0]

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {len(self)} rows, x {self.manifest.x_shape})"

    def block_path(self, number: int, suffix: str = "h5") -> Path:
        """The file of a block; with the suffix "partial", of a block that was interrupted; with "claim", its lock."""
        return self.path / f"block-{number:06d}.{suffix}"

    def numbers(self, *suffixes: str) -> list[int]:
        """The numbers of the blocks that have files with these suffixes; by default those that are there."""
        names = [match for path in self.path.iterdir() if (match := _FILE.fullmatch(path.name))]
        return sorted({int(match[1]) for match in names if match[2] in (suffixes or ("h5",))})

    def block(self, number: int, *, x: bool = True, suffix: str = "h5") -> Block:
        """A block's arrays (or θ alone), checked against its digests. Raises `CorruptBlockError`."""
        path = self.block_path(number, suffix)
        block = read_block(path, f"{self.manifest.identity} {number}", x=x)
        if block.theta.shape[1:] != (self.manifest.dim,) or block.x_shape != self.manifest.x_shape:
            raise CorruptBlockError(path, f"its shapes are {block.theta.shape} and {block.x_shape}, not the manifest's")
        return block

    def earlier(self, number: int, suffix: str) -> Block | None:
        """What there is of a block, whole or interrupted; None if nothing is, or if it is damaged."""
        try:
            return self.block(number, suffix=suffix)
        except (FileNotFoundError, CorruptBlockError):
            return None

    def write(self, number: int, theta: np.ndarray, x: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Write the first `len(x)` rows of a block; or, as an incomplete block, those that `rows` names."""
        path, owner = self.block_path(number, "h5" if rows is None else "partial"), f"{self.manifest.identity} {number}"
        which = np.arange(len(x)) if rows is None else rows
        write_block(path, theta, x, which, storage=self.manifest.storage, owner=owner)
        if rows is None:
            self.drop_partial(number)

    def drop_partial(self, number: int) -> None:
        """Remove the rows of an interrupted block, unless the block itself is missing or shorter."""
        path = self.block_path(number, "partial")
        if path.exists() and (whole := self.earlier(number, "h5")) is not None:
            partial = self.earlier(number, "partial")
            if partial is None or partial.rows.max(initial=-1) < len(whole.theta):
                path.unlink(missing_ok=True)

    def check(self) -> list[str]:
        """Read everything and say what is wrong: one line per block that is damaged or missing."""
        numbers, problems = self.numbers(), []
        for number in range(numbers[-1] + 1 if numbers else 0):
            try:
                self.block(number)
            except FileNotFoundError:
                problems.append(f"{self.block_path(number)} is missing")
            except CorruptBlockError as error:
                problems.append(f"{error.path}: {error.reason}")
        return problems

    def read(self, n: int | None = None, *, on_invalid: str = "drop") -> Simulations:
        """The first n rows (or all), x being read from disk when it is asked for.

        Arguments:
            n: how many rows of the store to see.
            on_invalid: what to do with rows that have NaN or infinite values: `"drop"`, `"raise"` or `"keep"`.
        """
        extent, blocks = self._extent(n)
        n = extent if n is None else n
        if n > extent:
            raise ValueError(
                f"{self.path} has {extent} rows without a gap, {n} were asked for; simulate(…, {n}, store=…) adds them"
            )
        size, segments, invalid = self.manifest.block_size, [], [np.empty(0, np.int64)]
        for k, block in enumerate(blocks):
            rows = min(len(block.theta), n - k * size)
            segments.append(Segment(rows, functools.partial(self._load, k, rows)))
            invalid.append(block.invalid[block.invalid < rows] + k * size)
        theta = np.concatenate([np.empty((0, self.manifest.dim), np.float32), *(b.theta for b in blocks)])[:n]
        x = Column(segments, self.manifest.x_shape)
        pairs = without_invalid(theta, x, np.concatenate(invalid), on_invalid, self.manifest.storage)
        pairs.names = self.names
        return pairs

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the parameters, in `names.json`; None where they have none."""
        file = self.path / "names.json"
        if not file.exists():
            return None
        try:
            return parameter_names(json.loads(file.read_text(encoding="utf-8")), self.manifest.dim)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is damaged ({error}); restore it, or remove it") from error

    @names.setter
    def names(self, names: Sequence[str]) -> None:
        write_text(self.path / "names.json", json.dumps(parameter_names(names, self.manifest.dim)))

    @property
    def lazy_x(self) -> Tensor | RowsOf:
        """x of all valid rows, to train on: see `Simulations.lazy_x`."""
        return self.read().lazy_x

    def _extent(self, n: int | None = None) -> tuple[int, list[Block]]:
        """The number of rows without a gap, and the blocks that hold the first n of them (without x)."""
        rows = 0
        blocks: list[Block] = []
        for number in self.numbers():
            if number != len(blocks) or rows < number * self.manifest.block_size or (n is not None and rows >= n):
                break
            blocks.append(self.block(number, x=False))
            rows += len(blocks[-1].theta)
        return rows, blocks

    def _load(self, number: int, rows: int) -> np.ndarray:
        """The first rows of a block's x; the digest is checked the first time."""
        if number not in self._checked:
            values = self.block(number).x
            assert values is not None
            self._checked.add(number)
            if values.dtype != np.float32:
                return values[:rows]
        return load_x(self.block_path(number), stop=rows)


@dataclass(eq=False)
class _Work:
    """A block at work: its parameters, which rows are done, and the lock that keeps other processes from it."""

    theta: np.ndarray
    done: np.ndarray
    lock: Lock | None
    x: np.ndarray | None = None

    def fill(self, rows: np.ndarray, x: np.ndarray) -> None:
        """Take rows, except those beyond the end of the block."""
        if self.x is None:
            self.x = np.empty((len(self.done), *x.shape[1:]), np.float32)
        inside = rows < len(self.done)
        self.x[rows[inside]], self.done[rows[inside]] = x[inside], True


@dataclass(eq=False)
class Sink:
    """Takes finished simulations, in any order, and keeps them in memory or in a store.

    A store's directory is made when the first simulation, and with it the shape of x, is there.

    Arguments:
        n: how many rows there should be.
        manifest: what they are; the shape of x is not known yet.
        draw: gives the parameters of a block, with shape `(block_size, D)`.
        path: the directory of the store; None for memory.
        verify: whether the digests of blocks that are there are checked.
        same_simulator: accept a simulator whose code has changed.
    """

    n: int
    manifest: Manifest
    draw: Callable[[int], np.ndarray]
    path: Path | None
    verify: bool
    same_simulator: bool

    def __post_init__(self) -> None:
        self.size = self.manifest.block_size
        self.store: Store | None = None
        self._work: dict[int, _Work] = {}  # the blocks at work; in memory, all blocks
        self._x: np.ndarray | None = None  # in memory, all of x
        self._saved = time.monotonic()
        self._connect()

    def pending(self) -> list[int]:
        """The blocks that are not complete."""
        return [b for b in range(-(-self.n // self.size)) if not self._complete(b)]

    def open(self, block: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The parameters of a block and the rows still to do; None if another process is at work on it."""
        lock = None
        if self.path is not None:
            lock = Lock(self.path / f"block-{block:06d}.claim")
            if not lock.acquire():
                return None
            for suffix in (".h5", ".partial"):  # of writers that were killed
                remove_leftovers(lock.path.with_suffix(suffix))
        work = self._work[block] = _Work(self.draw(block), np.zeros(self._needed(block), bool), lock)
        if self._complete(block, loud=False):  # another process was faster
            work.done[:] = True
        elif self.store is not None and self.manifest.streams == "row":
            # Rows that were simulated before: a block cut short at a smaller n, or one that was interrupted.
            for earlier in (self.store.earlier(block, suffix) for suffix in ("h5", "partial")):
                if earlier is not None and earlier.x is not None:
                    work.fill(earlier.rows, earlier.x.astype(np.float32))
        if work.done.all():
            self._finish(block)
            return work.theta, np.empty(0, np.int64)
        whole = self.manifest.streams == "block"
        return work.theta, np.arange(self.size) if whole else np.flatnonzero(~work.done)

    def put(self, block: int, rows: np.ndarray, x: np.ndarray) -> None:
        """Take finished rows, float32 with shape `(len(rows), *x_shape)`."""
        work, shape = self._work[block], x.shape[1:]
        if self.path is None:
            self._x = self._room(shape) if self._x is None else self._x
            work.x = self._x[block * self.size :][: len(work.done)]
        elif self.store is None or self.manifest.x_shape != shape:
            self.manifest = replace(self.manifest, x_shape=shape)
            self.store = Store.create(self.path, self.manifest, self.same_simulator)
        work.fill(rows, x)
        if work.done.all():
            self._finish(block)
        elif time.monotonic() - self._saved > SAVE_SECONDS:
            self.save()

    def _room(self, shape: tuple[int, ...]) -> np.ndarray:
        """Memory for all of x."""
        try:
            return np.empty((self.n, *shape), np.float32)
        except MemoryError as error:
            size = 4 * self.n * math.prod(shape) / 1e9
            raise ValueError(
                f"n = {self.n:,} simulations of shape {shape} take {size:,.0f} GB, more than there is memory; give "
                "store=, a directory that keeps them, or simulate fewer"
            ) from error

    def finished(self) -> Simulations | None:
        """What there is when the work ends early; None if nothing is."""
        if self.store is not None:
            return self.store.read(on_invalid="keep") if len(self.store) else None
        return None if self._x is None else Simulations(*self._in_memory(), storage=self.manifest.storage)

    def result(self, on_invalid: str) -> Simulations:
        """Everything, when the work is done."""
        if self.store is None:
            theta, x = self._in_memory()
            return without_invalid(theta, x, invalid_rows(x), on_invalid, self.manifest.storage)
        for block in self.store.numbers("claim", "partial"):  # of processes that were killed between two steps
            with Lock(self.store.block_path(block, "claim")) as mine:
                if mine:
                    self.store.drop_partial(block)
        return self.store.read(self.n, on_invalid=on_invalid)

    def save(self) -> None:
        """Save the finished rows of incomplete blocks; a no-op in memory."""
        self._saved = time.monotonic()
        for block, work in self._work.items():
            if self.store is not None and work.x is not None and work.done.any():
                rows = np.flatnonzero(work.done)
                self.store.write(block, work.theta[rows], work.x[rows], rows)

    def close(self) -> None:
        """Let other processes have what is not done."""
        for work in self._work.values():
            if work.lock is not None:
                work.lock.release()

    def _in_memory(self) -> tuple[np.ndarray, np.ndarray]:
        assert self._x is not None
        blocks = [self._work[number] for number in sorted(self._work)]
        done = np.concatenate([work.done for work in blocks])
        theta = np.concatenate([work.theta[: len(work.done)] for work in blocks])
        x = self._x[: len(done)]
        return (theta, x) if done.all() else (theta[done], x[done])

    def _needed(self, block: int) -> int:
        """How many rows a block must have: all in a store if batches make it, else those below n."""
        whole = self.manifest.streams == "block" and self.path is not None
        return self.size if whole else min(self.size, self.n - block * self.size)

    def _finish(self, block: int) -> None:
        """Write a complete block, and let go of it."""
        if self.store is None:
            return
        work = self._work.pop(block)
        if not self._complete(block, loud=False):  # where there are no locks, a longer block may have come in between
            assert work.x is not None and work.lock is not None
            self.store.write(block, work.theta[: len(work.x)], work.x)
        if work.lock is not None:
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
        if self.store is not None or self.path is None or not (self.path / "manifest.json").exists():
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
