"""Pairs (θ, x), in memory or on disk, behind one class.

`Simulations` behaves the same whether `x` is a tensor or lies in files: `pairs[index]` gives tensors,
`pairs.batches()` visits everything in random order. What lies in files is read through a `Column`, segment by segment;
it keeps the segments it read last.

**Random order beyond memory.** Rows that are read one by one from all over a disk are slow. `batches` therefore
shuffles the blocks, takes as many of them as fit a window, and shuffles the rows of the window together; the last
incomplete batch of a window is completed from the next one. Each row comes exactly once per epoch. If everything fits
the window, this is a uniform permutation; otherwise a batch mixes the rows of the blocks in one window, and the
blocks of a window change with the seed.
"""

from __future__ import annotations

__all__ = ["Column", "Segment", "Simulations", "check_on_invalid", "how_invalid", "without_invalid"]

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from equipoise.support import randomness
from equipoise.support.arrays import TOO_LARGE, plain
from equipoise.support.checks import column_names, parameter_names
from equipoise.support.errors import InvalidSimulationsWarning, warn
from equipoise.support.files import write_whole

from .blocks import STORAGES, compact

#: x that takes no more bytes than this is read as a whole when somebody wants to train on it.
IN_MEMORY = 1 << 30
#: Bytes of decoded blocks that a column keeps, and of one window of `batches`.
CACHE_BYTES = 1 << 28
#: A memory map holds a file open, and systems allow about a thousand open files.
CACHE_FILES = 256


class Segment(NamedTuple):
    """Rows that are loaded together: one block, one file, or a piece of a long file."""

    rows: int
    load: Callable[[], np.ndarray]


class Column:
    """Rows of one quantity, with the given shape, in consecutive segments, each loaded when it is needed."""

    def __init__(self, segments: Sequence[Segment], shape: Sequence[int]) -> None:
        self.segments, self.shape = list(segments), tuple(int(k) for k in shape)
        self.starts = np.concatenate([[0], np.cumsum([s.rows for s in self.segments])]).astype(np.int64)
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getstate__(self) -> dict[str, Any]:  # workers of a data loader open the files themselves
        return {**self.__dict__, "_cache": OrderedDict()}

    def groups(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """(number of a segment, where its rows stand among the given ones), for each segment that occurs, ascending."""
        labels = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(labels, kind="stable")
        values, starts = np.unique(labels[order], return_index=True)
        yield from zip(values.tolist(), np.split(order, starts[1:]) if len(rows) else [], strict=True)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The given rows, in the given order, float32 with shape `(len(rows), *shape)`."""
        out = np.empty((len(rows), *self.shape), np.float32)
        for number, places in self.groups(rows):
            out[places] = self._segment(number)[rows[places] - self.starts[number]]
        return out

    def pieces(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The given rows, which must be sorted, segment by segment and in the dtype they are kept in."""
        for number, places in self.groups(rows):
            yield self._segment(number)[rows[places] - self.starts[number]]

    def _segment(self, number: int) -> np.ndarray:
        if number in self._cache:
            self._cache.move_to_end(number)
            return self._cache[number]
        array = self._cache[number] = self.segments[number].load()
        while len(self._cache) > 1 and (len(self._cache) > CACHE_FILES or self._cached_bytes() > CACHE_BYTES):
            self._cache.popitem(last=False)
        return array

    def _cached_bytes(self) -> int:
        return sum(0 if isinstance(a, np.memmap) else a.nbytes for a in self._cache.values())


@dataclass(frozen=True, eq=False)
class RowsOf:
    """Rows of a column as an array, float32, that reads them when they are asked for."""

    column: Column
    rows: np.ndarray
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.column.shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        """The row of an integer, or those of a slice or an array."""
        rows = self.rows[index]
        return self.column.take(np.atleast_1d(rows)).reshape(*np.shape(rows), *self.column.shape)


def without_invalid(
    theta: np.ndarray,
    x: np.ndarray | Column,
    invalid: np.ndarray,
    on_invalid: str,
    storage: str = "float32",
    what: str = "simulations",
) -> Simulations:
    """The pairs (θ, x), with what `on_invalid` says done to the rows listed in `invalid`."""
    count, total, rows = len(invalid), len(theta), np.arange(len(theta))
    if count and on_invalid != "keep":
        some = invalid[:1024]  # are looked at for what is wrong with them
        trouble = how_invalid(x.take(some) if isinstance(x, Column) else x[some])
        first = int(invalid[0])
        if on_invalid == "raise":
            raise ValueError(
                f"{count} of {total} {what} have {trouble}; the first is row {first} at theta = "
                f"{theta[first].tolist()}. Fix them, or pass on_invalid='drop' to leave them out."
            )
        if count == total:
            raise ValueError(f"all {total} {what} have {trouble}; nothing is left to learn from")
        warn(
            f"{count} of {total} {what} ({count / total:.2%}) have {trouble} and were left out. "
            "What is learnt from the rest is conditional on a simulation being valid; `.invalid_theta` shows "
            "where they fail.",
            InvalidSimulationsWarning,
        )
        rows = np.setdiff1d(rows, invalid, assume_unique=True)
    kept = theta if len(rows) == total else theta[rows]
    if isinstance(x, Column):
        pairs = Simulations._of(torch.from_numpy(kept), x, rows, storage)
    else:
        pairs = Simulations(kept, x if len(rows) == total else x[rows], storage=storage)
    pairs.invalid_theta = torch.from_numpy(theta[invalid])
    return pairs


def how_invalid(x: np.ndarray) -> str:
    """What is wrong with rows of float32 that were found to be invalid.

    Example:
        >>> how_invalid(np.float32([[np.nan, np.inf]]))
        'NaN or infinite values'
    """
    if np.isnan(x).any() or not np.isinf(x).any():  # or it is θ that is invalid
        return "NaN or infinite values"
    return f"infinite values, or values {TOO_LARGE}"


def check_on_invalid(on_invalid: str) -> None:
    if on_invalid not in ("drop", "raise", "keep"):
        raise ValueError(f"on_invalid should be 'drop', 'raise' or 'keep', got {on_invalid!r}")


class Simulations:
    """Pairs of parameters and simulations.

    `pairs.theta` has shape `(n, D)` and `pairs.x` shape `(n, *x_shape)`, both float32. `theta, x = pairs` unpacks them.
    Where x lies on disk, `.x` reads all of it; for a set larger than memory use `pairs[index]` or `pairs.batches()`.

    Arguments:
        theta: parameters, with shape `(n, D)`.
        x: simulations, with shape `(n, *x_shape)`.
        storage: `"bits"` if x has only the values 0 and 1, `"integers"` if it has only whole numbers: see `compact`.
        names: of the parameters; the columns where θ is a table, unless given.

    Example:
        >>> pairs = Simulations(torch.zeros(10, 2), torch.ones(10, 5))
        >>> theta, x = pairs[torch.tensor([3, 1])]
        >>> theta.shape, x.shape
        (torch.Size([2, 2]), torch.Size([2, 5]))
    """

    #: Parameters, with shape `(n, D)`.
    theta: Tensor
    #: What x is made of: `"float32"`, `"bits"` or `"integers"`.
    storage: str
    #: The parameters whose simulation had NaN or infinite values, with shape `(n_invalid, D)`.
    invalid_theta: Tensor
    #: The names of the parameters; None where they have none.
    names: tuple[str, ...] | None = None
    _x: Tensor | None

    def __init__(self, theta: Any, x: Any, *, storage: str = "float32", names: Sequence[str] | None = None) -> None:
        names = column_names(theta) if names is None else names
        theta, x = (torch.as_tensor(plain(v)).detach().to("cpu", torch.float32) for v in (theta, x))
        if theta.ndim != 2 or x.ndim < 2:
            raise ValueError(
                f"theta should have shape (n, D) and x shape (n, *x_shape), got {tuple(theta.shape)} and "
                f"{tuple(x.shape)}"
            )
        if len(theta) != len(x):
            raise ValueError(f"theta has {len(theta)} rows and x has {len(x)}; they must come in pairs")
        if storage not in STORAGES:
            raise ValueError(f"storage should be one of {', '.join(STORAGES)}, got {storage!r}")
        self.theta, self._x, self.storage, self.invalid_theta = theta, x, storage, theta[:0]
        self._column, self._rows = Column([Segment(len(x), x.numpy)], x.shape[1:]), np.arange(len(x))
        self.names = None if names is None else parameter_names(names, theta.shape[1])

    @classmethod
    def _of(cls, theta: Tensor, x: Column, rows: np.ndarray, storage: str) -> Simulations:
        """Rows of a column, read when they are asked for."""
        self = cls.__new__(cls)
        self.theta, self._column, self._rows, self.storage = theta, x, rows, storage
        self.invalid_theta, self._x = theta[:0], None
        return self

    def __len__(self) -> int:
        return len(self.theta)

    def __iter__(self) -> Iterator[Tensor]:
        yield self.theta
        yield self.x

    def __repr__(self) -> str:
        invalid = f", {self.n_invalid} invalid" if self.n_invalid else ""
        return f"Simulations({len(self)} pairs, theta {tuple(self.theta.shape[1:])}, x {self.x_shape}{invalid})"

    @property
    def x(self) -> Tensor:
        """All simulations, with shape `(n, *x_shape)`; read once if they lie on disk."""
        if self._x is None:
            self._x = torch.from_numpy(self._column.take(self._rows))
        return self._x

    @property
    def lazy_x(self) -> Tensor | RowsOf:
        """x to train on: all of it where it is in memory or takes up to 1 GiB, else an array that reads rows by index.

        `eq.fit(pairs.theta, pairs, …)` asks for this.
        """
        small = 4 * len(self) * int(np.prod(self.x_shape, dtype=np.int64)) <= IN_MEMORY
        return self.x if self._x is not None or small else RowsOf(self._column, self._rows)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of one simulation."""
        return self._column.shape

    @property
    def n_invalid(self) -> int:
        """How many simulations have NaN or infinite values. They are left out unless `on_invalid="keep"`."""
        return len(self.invalid_theta)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        """(θ, x) of one row (an integer), or of several (a slice, a list, an integer or boolean tensor)."""
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(f"row {index} of {len(self)}")
            theta, x = self[[int(index)]]
            return theta[0], x[0]
        places = np.arange(len(self))[index.cpu().numpy() if isinstance(index, Tensor) else index]
        theta = self.theta[torch.from_numpy(places)]
        if self._x is not None:
            return theta, self._x[torch.from_numpy(places)]
        return theta, torch.from_numpy(self._column.take(self._rows[places]))

    def compact(self) -> Tensor:
        """All x in the smallest dtype that holds them: uint8 for bits, uint8, int16 or int32 for counts, else float32.

        A set of images that is kept on a GPU in bytes takes a quarter of the room; `.float()` on a batch gives back
        `x`.
        """
        if self.storage == "float32":
            return self.x
        pieces = [p if p.dtype.kind in "iu" else compact(p, self.storage) for p in self._column.pieces(self._rows)]
        return torch.from_numpy(np.concatenate([np.empty((0, *self.x_shape), np.uint8), *pieces]))

    def split(self, *sizes: int) -> tuple[Simulations, ...]:
        """Consecutive parts of the given sizes. Rows are independent draws already, so none are shuffled.

        Example:
            >>> train, test = Simulations(torch.zeros(10, 2), torch.ones(10, 5)).split(8, 2)
            >>> len(train), len(test)
            (8, 2)
        """
        if any(size < 0 for size in sizes) or sum(sizes) > len(self):
            raise ValueError(f"cannot take parts of sizes {sizes} from {len(self)} pairs")
        parts = []
        for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True):
            which = slice(end - size, end)
            parts.append(Simulations._of(self.theta[which], self._column, self._rows[which], self.storage))
            parts[-1]._x, parts[-1].names = None if self._x is None else self._x[which], self.names
        return tuple(parts)

    def batches(
        self, batch_size: int = 256, *, seed: int | None = 0, window: int | None = None, drop_last: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (θ, x) that together visit every pair once.

        Arguments:
            batch_size: pairs per batch.
            seed: of the order; give another one each epoch. None reads in the order of the rows.
            window: how many pairs are shuffled together, at least; by default as many as fit 256 MB.
            drop_last: whether a last batch that is smaller is left out.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size should be at least 1, got {batch_size}")
        theta, x = self[:0]  # what is left of the last window, kept as rows so that its blocks are not read again
        for places in self._windows(seed, window):
            start = 0
            while start < len(places):
                stop = start + batch_size - len(theta)
                more = self[places[start:stop]]
                theta, x = more if not len(theta) else (torch.cat([theta, more[0]]), torch.cat([x, more[1]]))
                start = stop
                if len(theta) == batch_size:
                    yield theta, x
                    theta, x = theta[:0], x[:0]
        if len(theta) and not drop_last:
            yield theta, x

    def _windows(self, seed: int | None, window: int | None) -> Iterator[np.ndarray]:
        """Places in this set, one array per window, in the order in which they are to be visited."""
        if seed is None:
            yield np.arange(len(self))
            return
        rng = np.random.default_rng(randomness.sequence(seed, "simulations", "order"))
        if self._x is not None:
            yield rng.permutation(len(self))
            return
        row_bytes = 4 * int(np.prod(self.x_shape, dtype=np.int64))
        window = max(1, CACHE_BYTES // row_bytes) if window is None else window
        segments = [places for _, places in self._column.groups(self._rows)]
        gathered: list[np.ndarray] = []
        for number in rng.permutation(len(segments)):
            gathered.append(segments[number])
            if sum(map(len, gathered)) >= window:
                yield rng.permutation(np.concatenate(gathered))
                gathered = []
        if gathered:
            yield rng.permutation(np.concatenate(gathered))

    def save(self, path: str | Path) -> None:
        """Write one HDF5 file with the keys `theta` and `x`, which `read_simulations`, h5py and lampe read."""
        with write_whole(path) as temporary, h5py.File(temporary, "w", locking=False) as file:
            theta = file.create_dataset("theta", data=self.theta.numpy())
            if self.names is not None:
                theta.attrs["names"] = list(self.names)
            data = file.create_dataset("x", (len(self), *self.x_shape), np.float32)
            start = 0
            for piece in self._column.pieces(self._rows):
                data[start : start + len(piece)] = piece
                start += len(piece)
