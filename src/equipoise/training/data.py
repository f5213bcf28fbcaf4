"""Data sets on the device, held once however many members read them.

Members of a stack read one of S data sets of equal size N. x keeps its own, possibly small, dtype, with shape `(S,
N, *x_shape)`. What the network needs of θ is encoded once, with shape `(C, N, E)`: one code a data set, or more
where members that share a stack start differently. A batch is a gather with indices of shape `(M, B)`.

x that is not in memory at all (memory-mapped, or in a file that gives rows by index) is read once, if a GPU has room
for it. Where it does not fit on the device, or a CPU trains, it stays where it is, and each batch is read and sent when
it is needed. The host never holds more of it: the rows that train and those that judge are kept as their numbers, not
as copies.
"""

from __future__ import annotations

__all__ = ["Data", "Rows", "take"]

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.arrays import plain

#: The share of a device's free memory that x may take before it is streamed.
SHARE = 0.6

#: How many numbers of an array that is not in memory are read at a time.
BLOCK = 1 << 24


def take(x: Any, rows: Tensor) -> Tensor:
    """Some rows of an array as a tensor in its own dtype; a view of a tensor where they are contiguous."""
    if isinstance(x, Tensor):
        lo, hi = int(rows[0]), int(rows[-1]) + 1
        if hi - lo == len(rows) and bool((rows[1:] > rows[:-1]).all()):
            return x[lo:hi]
        return x[rows.to(x.device)]
    # Read in order and once each: files are then read forwards, and HDF5 takes no other index.
    wanted, place = np.unique(rows.cpu().numpy(), return_inverse=True)
    lo, hi = int(wanted[0]), int(wanted[-1]) + 1
    if not isinstance(x, np.ndarray) and hi - lo <= 2 * len(wanted):
        # Most rows of a stretch: one read of it all, since HDF5 is slow with long lists of rows.
        found = np.asarray(plain(x[lo:hi]))[wanted - lo]
    else:
        found = np.asarray(plain(x[wanted]))
    tensor = torch.from_numpy(np.require(found, requirements=["C", "W"]))
    in_order = len(place) == len(wanted) and bool((np.diff(place) > 0).all())
    return tensor if in_order else tensor[torch.from_numpy(place)]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some rows of an array, known by their numbers and read when they are wanted.

    Arguments:
        x: a tensor, a NumPy array (memory-mapped too), or anything with `shape` and rows by index (of HDF5, say).
        rows: which; None for all.
    """

    x: Any
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x) if self.rows is None else len(self.rows)

    @property
    def numel(self) -> int:
        """How many numbers these are."""
        return len(self) * math.prod(self.x.shape[1:])

    def whole(self) -> Tensor:
        """All of them; a view of a tensor where they are contiguous."""
        return take(self.x, torch.arange(len(self)) if self.rows is None else self.rows)

    @property
    def dtype(self) -> torch.dtype:
        """What a row is made of, found out by reading one."""
        return self.x.dtype if isinstance(self.x, Tensor) else self.read(torch.zeros(1, dtype=torch.int64)).dtype

    def copy_to(self, place: Tensor) -> None:
        """Put them all into a tensor with shape `(B, *x_shape)`, some at a time where they are not in memory."""
        if isinstance(self.x, Tensor):
            place.copy_(self.whole())
            return
        for some in torch.arange(len(self)).split(max(1, BLOCK * len(self) // max(1, self.numel))):
            place[some[0] : some[-1] + 1] = self.read(some).to(place.device)

    def read(self, index: Tensor) -> Tensor:
        """Those of an index on the CPU with shape `(B,)`; with shape `(B, *x_shape)`."""
        return take(self.x, index if self.rows is None else self.rows[index])


class Data:
    """S data sets of N pairs each.

    Arguments:
        codes: what the networks need of θ, C tensors with shape `(N, E)`.
        xs: S arrays of observations with shape `(*, *x_shape)`: tensors, NumPy arrays (memory-mapped ones too), or
            anything with `shape` and rows by index.
        device: where batches are wanted.
        stream: True or False to force, None to decide by the memory that is free.
        rows: which N rows of each array these are; None for all.
    """

    def __init__(
        self,
        codes: Sequence[Tensor],
        xs: Sequence[Any],
        device: torch.device,
        stream: bool | None = None,
        rows: Tensor | None = None,
    ) -> None:
        self.device = device
        self.n = len(codes[0])
        self.xs = [Rows(x, rows) for x in xs]
        if {len(c) for c in codes} | {len(x) for x in self.xs} != {self.n}:
            raise ValueError(f"the data sets of a stack have equal sizes, got {[len(x) for x in self.xs]}")
        self.codes = torch.stack([c.to(device) for c in codes])
        self.x_shape = tuple(self.xs[0].x.shape[1:])
        self.dtype = functools.reduce(torch.promote_types, [x.dtype for x in self.xs])
        self.stream = self._must_stream() if stream is None else stream
        self.x: Tensor | None = None if self.stream else self._held()

    def _must_stream(self) -> bool:
        held = [r.x.device for r in self.xs if isinstance(r.x, Tensor)]
        if self.device.type != "cuda":
            return len(held) < len(self.xs)  # what a CPU trains on is read where it lies
        if all(device == self.codes.device for device in held) and len(held) == len(self.xs):  # "cuda" is not "cuda:0"
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        # What PyTorch holds from earlier trainings and does not use is free as well.
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return sum(r.numel * r.dtype.itemsize for r in self.xs) > SHARE * free

    def _held(self) -> Tensor:
        """All data sets on the device, with shape `(S, N, *x_shape)`; each is put in its place before the next is
        read, so that there are never two copies of all of them."""
        if len(self.xs) == 1 and isinstance(self.xs[0].x, Tensor):
            return self.xs[0].whole().to(self.device).unsqueeze(0)
        held = torch.empty((len(self.xs), self.n, *self.x_shape), dtype=self.dtype, device=self.device)
        for place, x in zip(held, self.xs, strict=True):
            x.copy_to(place)
        return held

    def code_batch(self, which: Tensor, index: Tensor) -> Tensor:
        """Codes `(M, B, E)` of the rows `index`, `(M, B)`, of each member's code set `which`, `(M,)`."""
        return self.codes[which.unsqueeze(1), index]

    def x_batch(self, which: Tensor, index: Tensor) -> Tensor:
        """Observations `(M, B, *x_shape)` of the rows `index`, `(M, B)`, of each member's data set `which`."""
        if self.x is not None:
            return self.x[which.unsqueeze(1), index]
        rows, there = index.cpu(), self.device.type == "cuda"
        x = torch.empty((*index.shape, *self.x_shape), dtype=self.dtype, pin_memory=there)
        for m, s in enumerate(which.tolist()):
            x[m] = self.xs[s].read(rows[m])
        return x.to(self.device, non_blocking=True)
