"""Data sets on the device, held once however many members read them.

Members of a stack read one of S data sets of equal size N. x keeps its own, possibly small, dtype, with shape
`(S, N, *x_shape)`. What the network needs of θ is encoded once, with shape `(C, N, E)`: one code a data set, or more
where members that share a stack start differently. A batch is a gather with row numbers of shape `(M, B)`; which rows
train a member and which validate it are tables of row numbers (`batches`), not copies.

x that is not in memory at all (memory-mapped, or in a file that gives rows by index) is read once, if a GPU has room
for it. Where it does not fit on the device it stays where it is, and each batch is read and sent when it is needed. A
CPU reads memory-mapped files so too, which costs no more than memory does; of HDF5, which may have to unpack a whole
file for a few rows, only what is large.
"""

from __future__ import annotations

__all__ = ["Data", "take"]

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.support.arrays import plain

#: x that takes more than this share of a GPU's free memory is streamed.
STREAM_ABOVE = 0.6
#: Up to this many bytes of a file that is not memory-mapped are read as a whole by a CPU.
READ_WHOLE_BELOW = 1 << 30
#: How many numbers of an array that is not in memory are read at a time.
BLOCK_NUMBERS = 1 << 24


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


def same_kind(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of the dtype that the first one had; whole numbers with a mask become floats, and are refused."""
    if rows.is_floating_point() and not dtype.is_floating_point:
        raise ValueError("x holds whole numbers of which some are masked; fill them in, or leave those pairs out")
    return rows


class Data:
    """S data sets of N pairs each.

    Arguments:
        codes: what the networks need of θ, C tensors with shape `(N, E)`.
        xs: S arrays of observations with shape `(N, *x_shape)`: tensors, NumPy arrays (memory-mapped ones too), or
            anything with `shape` and rows by index.
        device: where batches are wanted.
        stream: True or False to force, None to decide by the memory that is free.
    """

    def __init__(
        self, codes: Sequence[Tensor], xs: Sequence[Any], device: torch.device, stream: bool | None = None
    ) -> None:
        self.device, self.xs, self.n = device, xs, len(codes[0])
        self.codes = torch.stack([c.to(device) for c in codes])
        self.x_shape = tuple(xs[0].shape[1:])
        first = torch.zeros(1, dtype=torch.int64)
        self.dtype = functools.reduce(torch.promote_types, [take(x, first).dtype for x in xs])
        if self.dtype == torch.float64:  # which networks do not compute with, unless that is the default
            self.dtype = torch.get_default_dtype()
        self.stream = self._must_stream() if stream is None else stream
        try:
            self.x: Tensor | None = None if self.stream else self._held()
        except torch.OutOfMemoryError:  # somebody else on the same GPU was faster
            if stream is not None or all(isinstance(x, Tensor) for x in xs):
                raise
            self.stream, self.x = True, None

    def _must_stream(self) -> bool:
        on_disk = [x for x in self.xs if not isinstance(x, Tensor)]
        size = sum(math.prod(x.shape) for x in self.xs) * self.dtype.itemsize
        if self.device.type != "cuda":
            return any(isinstance(x, np.ndarray) for x in on_disk) or (bool(on_disk) and size > READ_WHOLE_BELOW)
        if not on_disk and all(x.device == self.codes.device for x in self.xs):  # "cuda" is not "cuda:0"
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        # What PyTorch holds from earlier trainings and does not use is free as well.
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return size > STREAM_ABOVE * free

    def _held(self) -> Tensor:
        """All data sets on the device, with shape `(S, N, *x_shape)`; each is put in its place before the next is
        read, in blocks where it is not in memory, so that there are never two copies of all of them."""
        if len(self.xs) == 1 and isinstance(self.xs[0], Tensor):
            return self.xs[0].to(self.device).unsqueeze(0)
        held = torch.empty((len(self.xs), self.n, *self.x_shape), dtype=self.dtype, device=self.device)
        block = max(1, BLOCK_NUMBERS // max(1, math.prod(self.x_shape)))
        for place, x in zip(held, self.xs, strict=True):
            if isinstance(x, Tensor):
                place.copy_(x)
                continue
            for some in torch.arange(self.n).split(block):
                found = same_kind(take(x, some), self.dtype)
                bad = some[~found.flatten(1).isfinite().all(1)]
                if len(bad):  # what lies in memory has been checked before
                    raise ValueError(f"x has NaN or infinite values, in row {int(bad[0])} for one; leave it out")
                place[some[0] : some[-1] + 1] = found.to(self.device)
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
        members = which.tolist()
        for s in sorted(set(members)):
            mine = [m for m, w in enumerate(members) if w == s]
            # A file is asked once for the rows of all members: it may have to unpack much of itself each time.
            together = not isinstance(self.xs[s], np.ndarray | Tensor)
            for some in [mine] if together else [[m] for m in mine]:
                found = same_kind(take(self.xs[s], rows[some].flatten()), self.dtype)
                x[some] = found.to(self.dtype).unflatten(0, (len(some), -1))
        return x.to(self.device, non_blocking=True)
