"""Claims on the blocks of a store, so that processes that fill it together do not do the same work twice.

A claim is an advisory lock (`flock`) on a file next to the block. The kernel releases it when its owner ends, however
that comes about, so that a claim is never stale. Where a file system has no locks every claim succeeds: work is then
repeated, with the same result, because a block is a function of the manifest and its number.
"""

from __future__ import annotations

__all__ = ["Claims"]

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock: blocks are then claimed by nobody, and at worst made twice
    fcntl = None  # type: ignore[assignment]


class Claims:
    """Which blocks this process is working on, as other processes of this or another machine see it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: dict[int, int] = {}

    def take(self, number: int) -> bool:
        """Claim a block; False if somebody else has it."""
        if fcntl is None:
            return True
        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._file(number), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:  # a file system without locks: work may be done twice, with the same result
            os.close(handle)
            return True
        self._held[number] = handle
        # Whoever wrote under this claim before and was killed left a temporary file.
        for leftover in self.path.glob(f".block-{number:06d}.*.tmp"):
            leftover.unlink(missing_ok=True)
        return True

    def drop(self, number: int) -> None:
        """Give a block back."""
        handle = self._held.pop(number, None)
        if handle is not None:
            self._file(number).unlink(missing_ok=True)
            os.close(handle)

    def drop_all(self) -> None:
        """Give everything back."""
        for number in list(self._held):
            self.drop(number)

    def _file(self, number: int) -> Path:
        return self.path / f"block-{number:06d}.claim"
