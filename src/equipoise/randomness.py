"""Explicit randomness: every stream is keyed by what it is for.

A stream is named by a seed and a path of words and numbers, `("simulate", "block", 17)`, hashed into a
`numpy.random.SeedSequence`. Two different paths give independent streams, and neither loop indices nor offsets can
collide (seed 0 of run 1 is not seed 1 of run 0). Nothing here touches a global generator.
"""

from __future__ import annotations

__all__ = ["generator", "integer", "sequence"]

import hashlib

import numpy as np
import torch


def sequence(seed: int, *path: str | int) -> np.random.SeedSequence:
    """The seed sequence of the stream `path` under `seed`.

    Example:
        >>> a, b = (np.random.default_rng(sequence(0, "simulate", i)).integers(1000, size=3) for i in (0, 1))
        >>> bool((a == b).all())
        False
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"a seed is a non-negative integer, got {seed!r}")
    text = "\x1f".join(f"{type(p).__name__[0]}{p}" for p in path)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.SeedSequence([int(seed), *np.frombuffer(digest, dtype=np.uint32).tolist()])


def integer(seed: int, *path: str | int) -> int:
    """A 63-bit integer from the stream, for libraries that take a plain seed.

    Example:
        >>> integer(0, "weights") == integer(0, "weights") != integer(0, "shuffle")
        True
    """
    return int(sequence(seed, *path).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, *path: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator on `device` seeded from the stream."""
    return torch.Generator(device=device).manual_seed(integer(seed, *path))
