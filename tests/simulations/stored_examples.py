"""Simulators and comparisons that tests of simulations share."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

import equipoise as eq

PRIOR = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])


def noisy(theta: Tensor, seed: int) -> Tensor:
    """Batches, float32."""
    return theta[:, :1] + torch.randn(len(theta), 3, generator=torch.Generator().manual_seed(seed))


def one_at_a_time(theta: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(theta[0], 1.0, size=3)


class Field:
    """Random images of zeros and ones, as spatial epidemics give: a disc around a point, thinned."""

    storage = "bits"

    def __repr__(self) -> str:
        return "Field()"

    def simulate(self, theta: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        axis = torch.arange(50.0)
        r2 = (axis[:, None] - 25) ** 2 + (axis - 25) ** 2
        disc = r2 < (50 * theta[:, 0, None, None]) ** 2
        thinned = torch.rand(len(theta), 50, 50, generator=generator) < theta[:, 1, None, None]
        return torch.stack([~disc, disc & thinned, disc & ~thinned], 1).float()


def same(a, b) -> bool:
    return torch.equal(a.theta, b.theta) and torch.equal(a.x, b.x)


def blocks(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("block-*.h5"))}


def flip(file: Path, key: str) -> None:
    """Change one byte in the middle of the stored values of a dataset."""
    with h5py.File(file) as h5:
        data = h5[key]
        if data.chunks is None:
            at = data.id.get_offset() + data.id.get_storage_size() // 2
        else:
            chunk = data.id.get_chunk_info(0)
            at = chunk.byte_offset + chunk.size // 2
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)
