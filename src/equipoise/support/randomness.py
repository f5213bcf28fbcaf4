"""Explicit randomness: every stream is keyed by what it is for.

A stream is named by a seed and a path of words and numbers, `("simulate", "block", 17)`, hashed into a
`numpy.random.SeedSequence`. Two different paths give independent streams, and neither loop indices nor offsets can
collide (seed 0 of run 1 is not seed 1 of run 0). Global generators are left as they were: what can draw from nothing
else (layers, distributions, a user's objects) is called inside `isolated`, which seeds torch's and NumPy's (SciPy draws
from NumPy's). A generator that a user's object keeps for itself is its own to seed.
"""

from __future__ import annotations

__all__ = ["generator", "integer", "isolated", "sequence", "undisturbed"]

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

from .checks import seed_number

_LOCK = threading.RLock()


def sequence(seed: int, *path: str | int) -> np.random.SeedSequence:
    """The seed sequence of the stream `path` under `seed`.

    Example:
        >>> a, b = (np.random.default_rng(sequence(0, "simulate", i)).integers(1000, size=3) for i in (0, 1))
        >>> bool((a == b).all())
        False
    """
    seed = seed_number("seed", seed)
    text = "\x1f".join(f"{type(p).__name__[0]}{p}" for p in path)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.SeedSequence([seed, *np.frombuffer(digest, dtype=np.uint32).tolist()])


def integer(seed: int, *path: str | int) -> int:
    """A 63-bit integer from the stream, for libraries that take a plain seed.

    Example:
        >>> integer(0, "weights") == integer(0, "weights") != integer(0, "shuffle")
        True
    """
    return int(sequence(seed, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, *path: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator on `device` seeded from the stream."""
    import torch  # here and below, since identities and verdicts need numbers alone

    return torch.Generator(device=device).manual_seed(integer(seed, *path))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Give the global generators back as they were: Python's, NumPy's, and torch's of the CPU and every GPU in use.

    One thread at a time, since there is one set of them.
    """
    import torch

    with _LOCK:
        python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 (what others draw from)
        try:
            with torch.random.fork_rng(devices=_gpus()):
                yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed torch's and NumPy's global generators for the time of a block, and give them back as they were.

    `torch.manual_seed` reseeds every GPU too, or sees to it that they are once they are first used, and forking the
    CPU's generator alone does not undo that.

    Example:
        >>> import torch
        >>> before = torch.get_rng_state()
        >>> with isolated(1):
        ...     a = torch.rand(2), np.random.random(2)
        >>> bool((torch.get_rng_state() == before).all())
        True
    """
    import torch

    with undisturbed():
        torch.default_generator.manual_seed(seed)
        if _gpus():
            torch.cuda.manual_seed_all(seed)
        np.random.seed([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF])  # noqa: NPY002
        yield


def _gpus() -> list[int]:
    import torch

    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
