"""Checkpoints: one safetensors file, written whole and renamed, that names the training it belongs to.

A killed training loses at most what it did since the last checkpoint, and ends in the same weights as one that was
not killed: the state of all members is stored, and shuffles follow from the epoch number.
"""

from __future__ import annotations

__all__ = ["Checkpoint", "fingerprint"]

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from equipoise.support.arrays import plain
from equipoise.support.errors import CheckpointMismatch, DamagedFile
from equipoise.support.files import write_whole

from .data import BLOCK_NUMBERS

#: Of the file. Raise it when what is in it changes, or what a training is known by.
FORMAT = 5


class Checkpoint:
    """The file of one stack.

    `identity` is the fingerprint of everything that decides the result, `interval` the seconds between two checkpoints.
    """

    def __init__(self, path: Path, identity: str, interval: float = 30.0) -> None:
        self.path, self.identity, self.interval = Path(path), identity, interval
        self._last = time.monotonic()

    def prepare(self) -> None:
        """Raise, before hours are spent, where nothing could be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):
                return
        except OSError as error:
            raise ValueError(f"checkpoint={self.path.parent} cannot be written to ({error}); give another") from error

    def due(self) -> bool:
        """Whether it is time for another one."""
        return time.monotonic() - self._last >= self.interval

    def save(self, tensors: dict[str, Tensor]) -> None:
        """Write the state, whole or not at all."""
        contents = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        metadata = {"format": str(FORMAT), "identity": self.identity, "digest": _digest(contents)}
        with write_whole(self.path) as temporary:
            try:
                save_file(contents, temporary, metadata=metadata)
            except SafetensorError as error:  # which is how it reports a full disk
                raise OSError(str(error)) from error
        self._last = time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """The stored state, or None where there is none yet."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise DamagedFile(f"{self.path} cannot be read ({error}); delete it to start anew") from error
        if metadata.get("format") != str(FORMAT):
            raise CheckpointMismatch(f"{self.path} is of another version of Equipoise; delete it to start anew")
        if metadata.get("identity") != self.identity:
            raise CheckpointMismatch(
                f"{self.path} belongs to another training (other data, prior, method, settings, seed or first "
                "weights); give another checkpoint path, or delete it to start anew"
            )
        if metadata.get("digest") != _digest(tensors):
            raise DamagedFile(f"{self.path} has changed since it was written; delete it to start anew")
        return tensors


def _digest(tensors: dict[str, Tensor]) -> str:
    """A hash of tensors on the CPU, names and shapes included."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def fingerprint(description: dict[str, Any], arrays: Iterable[Any]) -> str:
    """A hash of a JSON description and of arrays, all of them; what is not in memory is read in blocks."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, default=_plain).encode())
    for array in arrays:
        digest.update(f"{tuple(array.shape)}".encode())
        for block in _blocks(array):
            digest.update(str(block.dtype).encode())
            digest.update(block.data)
    return digest.hexdigest()


def _blocks(array: Any) -> Iterator[np.ndarray]:
    """An array in pieces of some rows each, in memory."""
    rows = max(1, BLOCK_NUMBERS // max(1, math.prod(array.shape[1:])))
    for piece in (array[low : low + rows] for low in range(0, len(array), rows)) if array.shape else (array,):
        values = piece.detach().cpu().numpy() if isinstance(piece, Tensor) else np.asarray(plain(piece))
        yield np.ascontiguousarray(values)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, and what else JSON does not know as what it prints."""
    return value.item() if isinstance(value, np.generic) else str(value)
