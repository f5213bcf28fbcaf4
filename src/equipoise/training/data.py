"""Data sets on the device, held once however many members read them.

Members of a stack read one of S data sets of equal size N. x keeps its own, possibly small, dtype, with shape `(S,
N, *x_shape)`. What the network needs of θ is encoded once, with shape `(C, N, E)`: one code a data set, or more
where members that share a stack start differently. A batch is a gather with indices of shape `(M, B)`.

Where x does not fit on the device it stays where it is (in memory, memory-mapped, or in a store on disk), and each
batch is read and sent when it is needed.
"""

from __future__ import annotations

__all__ = ["Data", "take"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: The share of a device's free memory that x may take before it is streamed.
SHARE = 0.6


def take(x: Any, rows: Tensor) -> Any:
    """Some rows of an array; a view where they are contiguous."""
    lo, hi = int(rows[0]), int(rows[-1]) + 1
    if hi - lo == len(rows) and bool((rows[1:] > rows[:-1]).all()):
        return x[lo:hi]
    return x[rows] if isinstance(x, Tensor) else x[rows.numpy()]


def _rows(x: Any, index: Any) -> Tensor:
    """Rows of an array as a tensor, in its own dtype."""
    if isinstance(x, Tensor):
        rows = x[index.to(x.device)] if isinstance(index, Tensor) else x[index]
    elif isinstance(x, np.ndarray):
        # Sorted reads keep a memory-mapped file sequential; the order of the batch is then restored.
        if isinstance(index, Tensor):
            order = index.numpy().argsort()
            sorted_rows = np.ascontiguousarray(x[index.numpy()[order]])
            rows = torch.empty(sorted_rows.shape, dtype=torch.from_numpy(sorted_rows).dtype)
            rows[torch.from_numpy(order)] = torch.from_numpy(sorted_rows)
        else:
            rows = torch.from_numpy(np.ascontiguousarray(x[index]))
    else:
        rows = torch.as_tensor(x[index])
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
        self.device = device
        self.n = len(codes[0])
        if any(len(a) != self.n for a in (*codes, *xs)):
            raise ValueError(f"the data sets of a stack have equal sizes, got {[len(x) for x in xs]}")
        self.codes = torch.stack([c.to(device) for c in codes])
        self.stream = self._must_stream(xs) if stream is None else stream
        self.xs: Sequence[Any] = xs
        self.x: Tensor | None = None
        if not self.stream:
            rows = [_rows(x, slice(None)) for x in xs]
            self.x = (rows[0].to(device).unsqueeze(0)) if len(rows) == 1 else torch.stack([r.to(device) for r in rows])

    def _must_stream(self, xs: Sequence[Any]) -> bool:
        if any(not isinstance(x, Tensor) for x in xs):
            return True
        if self.device.type != "cuda" or all(x.device == self.codes.device for x in xs):  # "cuda" is not "cuda:0"
            return False
        free, _ = torch.cuda.mem_get_info(self.device)
        # What PyTorch holds from earlier trainings and does not use is free as well.
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return sum(x.numel() * x.element_size() for x in xs) > SHARE * free

    def code_batch(self, which: Tensor, index: Tensor) -> Tensor:
        """Codes `(M, B, E)` of the rows `index`, `(M, B)`, of each member's code set `which`, `(M,)`."""
        return self.codes[which.unsqueeze(1), index]

    def x_batch(self, which: Tensor, index: Tensor) -> Tensor:
        """Observations `(M, B, *x_shape)` of the rows `index`, `(M, B)`, of each member's data set `which`."""
        if self.x is not None:
            return self.x[which.unsqueeze(1), index]
        rows = index.cpu()
        x = torch.stack([_rows(self.xs[s], rows[m]) for m, s in enumerate(which.tolist())])
        if self.device.type == "cuda":
            x = x.pin_memory()
        return x.to(self.device, non_blocking=True)
