"""Checkpoints: one safetensors file, written whole and renamed, that names the training it belongs to.

A killed training loses at most what it did since the last checkpoint, and ends in the same weights as one that was
not killed: the state of the stack, the plateau rule and the history are stored, and shuffles follow from the epoch
number.
"""

from __future__ import annotations

__all__ = ["Checkpoint", "fingerprint"]

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from equipoise.support.errors import CheckpointMismatch, DamagedFile

#: Of the file. Raise it when what is in it changes, or what a training is known by.
FORMAT = 3


class Checkpoint:
    """The file of one stack.

    Arguments:
        path: the file.
        identity: the fingerprint of everything that decides the result.
        interval: seconds between two checkpoints.
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
        """Write the state under a temporary name, flush it to disk, and rename it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        contents = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        try:
            save_file(contents, temporary, metadata={"format": str(FORMAT), "identity": self.identity})
        except SafetensorError as error:  # which is how it reports a full disk
            raise OSError(str(error)) from error
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        self._last = time.monotonic()

    def load(self) -> dict[str, Tensor] | None:
        """The stored state, or None where there is none yet."""
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != str(FORMAT):
                    raise CheckpointMismatch(
                        f"the checkpoint {self.path} is of another version of Equipoise; delete the file to start anew"
                    )
                if metadata.get("identity") != self.identity:
                    raise CheckpointMismatch(
                        f"the checkpoint {self.path} belongs to another training (other data, prior, method, settings, "
                        "seed or first weights). Give another checkpoint path, or delete the file to start anew."
                    )
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise DamagedFile(
                f"the checkpoint {self.path} cannot be read ({error}); delete it to start anew"
            ) from error


def fingerprint(description: dict[str, Any], tensors: Iterable[Any]) -> str:
    """A hash of a JSON description and of data; of very large data, of evenly spaced rows."""
    digest = hashlib.blake2b(json.dumps(description, sort_keys=True, default=_plain).encode(), digest_size=16)
    for tensor in tensors:
        sample = tensor[:: max(1, len(tensor) // 4096)] if tensor.shape else tensor
        values = sample.detach().cpu().numpy() if isinstance(sample, Tensor) else np.asarray(sample)
        digest.update(f"{tuple(tensor.shape)}{values.dtype}".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, and what else JSON does not know as what it prints."""
    return value.item() if isinstance(value, np.generic) else str(value)
