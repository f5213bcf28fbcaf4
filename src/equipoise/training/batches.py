"""The batches of an epoch: shuffled, gathered on the device or read from disk, for all members of a stack.

Shuffles need no state: each row i gets the key splitmix64(member's key, epoch, i), and the permutation sorts the keys.
It is the same on every device, for any number of members, and after a restart, because nothing but the member's seed
and the epoch number enters.

A CUDA graph reads from fixed places: the order and the cursor are buffers, and a batch that is streamed is put into
one of its own before the step, while the device still computes the one before.
"""

from __future__ import annotations

__all__ = ["Batches", "permutations"]

from collections import deque
from collections.abc import Iterator

import torch
from torch import Tensor

from .data import Data
from .state import MemberState

#: splitmix64's constants, as the int64 that torch holds.
_GOLDEN, _MIX_1, _MIX_2 = (v - (1 << 64) for v in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """A logical shift: torch's shifts the sign in."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix64(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def permutations(keys: Tensor, epoch: int, n: int) -> Tensor:
    """A permutation of 0, …, n - 1 for each key, with shape `(M, n)`.

    Example:
        >>> p = permutations(torch.tensor([1, 2]), epoch=0, n=5)
        >>> p.sort(-1).values.tolist()
        [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    """
    stream = _splitmix64(_splitmix64(keys) ^ epoch)
    rows = torch.arange(n, device=keys.device)
    return _splitmix64(stream.unsqueeze(1) + rows * _GOLDEN).argsort(dim=1, stable=True)


class Batches:
    """The batches of the members that are in a stack now.

    Arguments:
        data: the data sets.
        rows: the rows that train and those that validate, with shapes `(F, N)` and `(F, V)`; `state.fold` says which
            of the F tables is a member's.
        state: the members.
        size: pairs in a batch.
    """

    def __init__(self, data: Data, rows: tuple[Tensor, Tensor], state: MemberState, size: int) -> None:
        self.data, self.state, self.size = data, state, size
        self._train, self.validation_rows = (table.to(data.device) for table in rows)
        self.order = torch.zeros(len(state.weights), self._train.shape[1], dtype=torch.int64, device=data.device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=data.device)
        # Where all members validate on the same pairs, these are read and embedded once, not once per member.
        same = [bool((t == t[0]).all()) for t in (state.fold, state.data_set, state.code_set)]
        self._one_x, self._one_code = (slice(1 if same[0] and same[k] else None) for k in (1, 2))
        # Where x is streamed the host knows what to read next, and reads while the device computes.
        self._data_set = state.data_set.cpu()
        self._fold, self._validation_reads = state.fold.cpu(), rows[1].cpu()
        self._reads: Iterator[Tensor] = iter(())
        self._arrived = torch.empty(0)
        self._inboxes: dict[int, Tensor] = {}
        self._sent: deque[torch.cuda.Event] = deque()

    def shuffle(self, epoch: int) -> None:
        """Begin an epoch."""
        order = permutations(self.state.shuffle_key, epoch, self.order.shape[1])
        self.order.copy_(self._train[self.state.fold.unsqueeze(1), order])
        self.cursor.zero_()
        if self.data.stream:
            self._reads = iter(self.order.cpu().split(self.size, 1))

    def receive(self, captured: bool) -> None:
        """Read the next batch of what is streamed, and send it to where a captured step looks for it."""
        if not self.data.stream:
            return
        self._arrived = self.data.x_batch(self._data_set, next(self._reads))
        if captured:
            pairs = self._arrived.shape[1]
            if pairs not in self._inboxes:
                self._inboxes[pairs] = torch.empty_like(self._arrived)
            self._arrived = self._inboxes[pairs].copy_(self._arrived)
            # A replay returns at once. The host waits here for the batch before last, or it would fill its memory.
            sent = torch.cuda.Event()
            sent.record()
            self._sent.append(sent)
            if len(self._sent) > 2:
                self._sent.popleft().synchronize()

    def take(self, size: int) -> tuple[Tensor, Tensor]:
        """The next `size` pairs of each member: codes `(M, size, E)` and observations `(M, size, *x_shape)`."""
        rows = self.order.index_select(1, self.cursor + torch.arange(size, device=self.order.device))
        self.cursor += size
        x = self._arrived if self.data.stream else self.data.x_batch(self.state.data_set, rows)
        return self.data.code_batch(self.state.code_set, rows), x

    def validation_batch(self, low: int, size: int, rolled: Tensor) -> tuple[Tensor, Tensor]:
        """Codes `(M or 1, R, size, E)` and x `(M or 1, size, *x_shape)` of the validation pairs from `low` on.

        `rolled`, `(R, V)`, says which pair's θ stands in each place. All pieces have one size: the last wraps around.
        """
        state, n = self.state, rolled.shape[1]
        places = torch.arange(low, low + size, device=rolled.device) % n
        theta = self.validation_rows[state.fold[self._one_code, None, None], rolled[:, places]]
        code = self.data.code_batch(state.code_set[self._one_code], theta.flatten(1)).unflatten(1, theta.shape[1:])
        if self.data.stream:  # the host reads, and need not ask the device what
            which, fold, table = self._data_set, self._fold, self._validation_reads
            places = torch.arange(low, low + size) % n
        else:
            which, fold, table = state.data_set, state.fold, self.validation_rows
        return code, self.data.x_batch(which[self._one_x], table[fold[self._one_x, None], places])
