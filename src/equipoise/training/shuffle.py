"""Shuffles that need no state: a permutation for each member and epoch from a hash.

Each row i gets the key splitmix64(member's key, epoch, i), and the permutation sorts the keys. It is the same on
every device, for any number of members, and after a restart, because nothing but the member's seed and the epoch
number enters.
"""

from __future__ import annotations

__all__ = ["permutations"]

import torch
from torch import Tensor


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
