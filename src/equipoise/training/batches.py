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


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that torch holds."""
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


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
        train: the training sets.
        validation: the validation sets.
        state: the members.
        size: pairs in a batch.
    """

    def __init__(self, train: Data, validation: Data, state: MemberState, size: int) -> None:
        self.train, self.validation, self.state, self.size = train, validation, state, size
        self.order = torch.zeros(len(state.weights), train.n, dtype=torch.int64, device=train.device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=train.device)
        # Where all members validate on the same pairs, these are read and embedded once, not once per member.
        same_x, same_code = (bool((t == t[0]).all()) for t in (state.data_set, state.code_set))
        self.validation_data_set = state.data_set[:1] if same_x else state.data_set
        self.validation_code_set = state.code_set[:1] if same_code else state.code_set
        # Where x is streamed the host knows what to read next, and reads while the device computes.
        self._data_set = state.data_set.cpu()
        self._reads: Iterator[Tensor] = iter(())
        self._arrived = torch.empty(0)
        self._inboxes: dict[int, Tensor] = {}
        self._sent: deque[torch.cuda.Event] = deque()

    def shuffle(self, epoch: int) -> None:
        """Begin an epoch."""
        self.order.copy_(permutations(self.state.shuffle_key, epoch, self.train.n))
        self.cursor.zero_()
        if self.train.stream:
            self._reads = iter(self.order.cpu().split(self.size, 1))

    def receive(self, captured: bool) -> None:
        """Read the next batch of what is streamed, and send it to where a captured step looks for it."""
        if not self.train.stream:
            return
        self._arrived = self.train.x_batch(self._data_set, next(self._reads))
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
        index = self.order.index_select(1, self.cursor + torch.arange(size, device=self.order.device))
        self.cursor += size
        x = self._arrived if self.train.stream else self.train.x_batch(self.state.data_set, index)
        return self.train.code_batch(self.state.code_set, index), x

    def validation_batch(self, low: int) -> tuple[Tensor, Tensor]:
        """The rows of the validation set from `low` on, with shape `(size,)`, and their x, `(M or 1, size, *x_shape)`.

        Every piece has the training batch's shape, so that nothing new has to be compiled: the last wraps around.
        """
        n = self.validation.n
        rows = torch.arange(low, low + self.size, device=self.order.device) % n
        if self.validation.stream:  # the host reads, and need not ask the device what
            which, wanted = self._data_set[: len(self.validation_data_set)], torch.arange(low, low + self.size) % n
        else:
            which, wanted = self.validation_data_set, rows
        return rows, self.validation.x_batch(which, wanted.expand(len(which), -1))
