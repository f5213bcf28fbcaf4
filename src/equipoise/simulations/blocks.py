"""One block of pairs is one HDF5 file.

A block holds the keys `theta` and `x`, each with the rows first, as lampe's `H5Dataset` and most of the field expect
them. Values are float32 and exact; how `x` lies in the file depends on what the simulator produces:

- `"float32"`: contiguous and uncompressed, so that it can be mapped into memory;
- `"bits"` (values 0 and 1): unsigned bytes, which HDF5's scale-offset filter packs to one bit each, then gzip;
- `"integers"` (counts): the smallest of uint8, int16, int32 that holds the block, byte-shuffled, then gzip.

The filters belong to every HDF5 library, so any reader sees plain arrays of the right shape. A row with NaN or
infinite values cannot be an integer: a block that has one is kept as compressed float32 instead, never altered.

A block is written whole or not at all. It carries two digests, of θ and of x. Both cover the block's `owner`, which
names its store and its number, so that a block that was copied or renamed is noticed.
"""

from __future__ import annotations

__all__ = [
    "STORAGES", "Block", "CorruptBlockError", "compact", "invalid_rows", "load_x", "read_block", "write_block",
]  # fmt: skip

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.support.hdf5 import dataset, open_hdf5, write_hdf5

#: How the values of x may be kept on disk.
STORAGES = ("float32", "bits", "integers")
#: The block format. A reader refuses what is newer.
FORMAT = 2
#: About how many bytes of x make a compressed chunk.
CHUNK_BYTES = 1 << 18


class CorruptBlockError(RuntimeError):
    """A block that is truncated, damaged, or not one of this store's; `path` names it and `reason` says how."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} cannot be used: {reason}. Call simulate(…, store={str(path.parent)!r}) with the arguments "
            "that made the store: blocks that are missing or damaged are simulated again, with the same result."
        )


@dataclass(frozen=True, eq=False)
class Block:
    """The arrays of a block file. `x` is in the dtype of the file; None where it was not asked for."""

    theta: np.ndarray
    x: np.ndarray | None
    x_shape: tuple[int, ...]
    #: Which rows of the block are here. All from the first on, except in a block that was interrupted.
    rows: np.ndarray
    #: Positions in this file whose x has NaN or infinite values.
    invalid: np.ndarray


def compact(x: np.ndarray, storage: str) -> np.ndarray:
    """float32 values in the smallest dtype that `storage` allows and that holds them exactly.

    Example:
        >>> compact(np.array([[0.0, 300.0]], dtype=np.float32), "integers").dtype
        dtype('int16')
    """
    if storage == "float32" or not x.size:
        return x
    values = x[finite] if not (finite := np.isfinite(x)).all() else x
    wrong = values[(values != 0) & (values != 1)] if storage == "bits" else values[values != np.rint(values)]
    if wrong.size:
        what = "zeros and ones" if storage == "bits" else "whole numbers"
        raise ValueError(
            f"storage={storage!r} is for {what}, but the simulator returned {wrong[0]}. Use storage='float32', "
            "which keeps any value."
        )
    if values.size < x.size:
        return x
    low, high = float(x.min()), float(x.max())  # int32's largest number rounds up in float32
    for dtype in (np.uint8, np.int16, np.int32):
        if low >= np.iinfo(dtype).min and high <= np.iinfo(dtype).max:
            return x.astype(dtype)
    return x


def invalid_rows(x: np.ndarray) -> np.ndarray:
    """The rows of x, with shape `(n, *x_shape)`, that have NaN or infinite values."""
    return np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))


def write_block(path: Path, theta: np.ndarray, x: np.ndarray, rows: np.ndarray, *, storage: str, owner: str) -> None:
    """Write θ and x (float32) of the given rows of a block; `storage` is one of `STORAGES`."""
    values, invalid = compact(x, storage), invalid_rows(x)
    with write_hdf5(path) as file:
        file.attrs["equipoise_format"] = FORMAT
        file.attrs["digest_theta"] = _digest(f"theta {owner}", theta, rows, invalid)
        file.attrs["digest_x"] = _digest(f"x {owner}", values)
        file.create_dataset("theta", data=theta)
        file.create_dataset("x", data=values, **_layout(values, storage))
        file.create_dataset("row", data=rows)
        file.create_dataset("invalid", data=invalid)


def read_block(path: Path, owner: str, *, x: bool = True) -> Block:
    """Read a block and check its digests, or raise `CorruptBlockError`. Without `x` only θ is read and checked."""
    try:
        with open_hdf5(path) as file:
            version = int(file.attrs["equipoise_format"])
            if version <= FORMAT:
                theta, rows, invalid = (dataset(file, key)[:] for key in ("theta", "row", "invalid"))
                data = dataset(file, "x")
                shape, values = (len(data), *data.shape[1:]), data[:] if x else None
                right = str(file.attrs["digest_theta"]) == _digest(f"theta {owner}", theta, rows, invalid)
                right &= values is None or str(file.attrs["digest_x"]) == _digest(f"x {owner}", values)
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes h5py raise all sorts
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CorruptBlockError(path, f"it is truncated or no block ({reason})") from error
    if version > FORMAT:
        raise ValueError(f"{path} has format {version}, written by a newer Equipoise; this one reads {FORMAT}")
    if not right or len(theta) != shape[0]:
        raise CorruptBlockError(path, "its content does not match its checksum, or it is a block of another store")
    return Block(theta, values, tuple(map(int, shape[1:])), rows, invalid)


def load_x(path: Path, key: str = "x", start: int = 0, stop: int | None = None) -> np.ndarray:
    """Rows of one dataset: a memory map where the file is contiguous float32, an array otherwise."""
    stat = os.stat(path)
    place = _contiguous(path, key, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
    if place is not None:
        return np.memmap(path, dtype="<f4", mode="r", offset=place[0], shape=place[1])[start:stop]
    with open_hdf5(path) as file:
        return np.asarray(dataset(file, key)[start:stop])


@functools.lru_cache(maxsize=1 << 16)
def _contiguous(path: Path, key: str, stamp: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """Where contiguous float32 begin in a file, and their shape; None for anything else.

    Remembered because opening HDF5 takes several times as long as mapping a file. The stamp tells a file from one that
    has taken its place.
    """
    with open_hdf5(path) as file:
        data = dataset(file, key)
        offset = data.id.get_offset()
        if offset is None or data.dtype != np.dtype("<f4") or not data.size:
            return None
        return int(offset), tuple(data.shape)


def _layout(values: np.ndarray, storage: str) -> dict[str, Any]:
    """Contiguous for plain floats; chunked and compressed for what compresses."""
    if storage == "float32" or not values.size:
        return {}
    row_bytes = values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
    rows = int(np.clip(CHUNK_BYTES // max(row_bytes, 1), 1, len(values)))
    layout: dict[str, Any] = {"chunks": (rows, *values.shape[1:]), "compression": "gzip", "compression_opts": 1}
    return layout | ({"scaleoffset": 0} if storage == "bits" and values.dtype == np.uint8 else {"shuffle": True})


def _digest(owner: str, *arrays: np.ndarray) -> str:
    digest = hashlib.blake2b(owner.encode(), digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
