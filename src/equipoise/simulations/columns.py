"""Rows of one quantity that lie in several places and are loaded when they are needed."""

from __future__ import annotations

__all__ = ["Column", "RowsOf", "Segment", "column", "groups"]

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

#: Bytes of decoded blocks that a column keeps, and of one window of `batches`.
CACHE_BYTES = 1 << 28
#: A memory map holds a file open, and systems allow about a thousand open files.
CACHE_FILES = 256


def column(x: Any) -> Column:
    """A column over an array or tensor that is already there."""
    array = x.numpy() if isinstance(x, Tensor) else x
    return Column([Segment(len(array), functools.partial(np.asanyarray, array))], array.shape[1:])


def groups(labels: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(label, the places where it stands) for each label that occurs, in ascending order."""
    if not len(labels):
        return
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    yield from zip(values.tolist(), np.split(order, starts[1:]), strict=True)


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows that are loaded together: one block, one file, or a piece of a long file."""

    rows: int
    load: Callable[[], np.ndarray]


class Column:
    """Rows of one quantity in consecutive segments, each loaded when it is needed.

    Arguments:
        segments: the pieces, in order.
        shape: the shape of one row.
    """

    def __init__(self, segments: Sequence[Segment], shape: Sequence[int]) -> None:
        self.segments, self.shape = list(segments), tuple(int(k) for k in shape)
        self.starts = np.concatenate([[0], np.cumsum([s.rows for s in self.segments])]).astype(np.int64)
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getstate__(self) -> dict[str, Any]:  # workers of a data loader open the files themselves
        return {**self.__dict__, "_cache": OrderedDict()}

    def segment_of(self, rows: np.ndarray) -> np.ndarray:
        """The number of the segment that holds each row."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def take(self, rows: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        """The given rows, in the given order, with shape `(len(rows), *shape)`."""
        out = np.empty((len(rows), *self.shape), dtype)
        for number, places in groups(self.segment_of(rows)):
            out[places] = self._segment(number)[rows[places] - self.starts[number]]
        return out

    def pieces(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The given rows, which must be sorted, segment by segment and in the dtype they are kept in."""
        for number, places in groups(self.segment_of(rows)):
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
    """Rows of a column as an array that reads them when they are asked for.

    Arguments:
        column: where they lie.
        rows: which.
    """

    column: Column
    rows: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.column.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        """The row of an integer, or those of a slice or an array, float32."""
        rows = self.rows[index]
        return self.column.take(np.atleast_1d(rows)).reshape(*np.shape(rows), *self.column.shape)
