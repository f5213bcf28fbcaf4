"""One block of pairs is one HDF5 file.

A block holds the keys `theta` and `x`, each with the rows first, as lampe's `H5Dataset` and most of the field expect
them. Values are float32 and exact; how `x` lies in the file depends on what the simulator produces:

- `"float32"`: contiguous and uncompressed, so that it can be mapped into memory;
- `"bits"` (values 0 and 1): unsigned bytes, which HDF5's scale-offset filter packs to one bit each, then gzip;
- `"integers"` (counts): the smallest of uint8, int16, int32 that holds the block, byte-shuffled, then gzip.

The filters belong to every HDF5 library, so any reader sees plain arrays of the right shape. A row with NaN or
infinite values cannot be an integer: a block that has one is kept as compressed float32 instead, never altered.

A file is written under a temporary name, flushed to the disk, and renamed. Renaming is atomic: whoever opens a block
sees all of it or none of it. A digest of the arrays is kept in the file, against what happens to disks afterwards.
"""

from __future__ import annotations

__all__ = [
    "STORAGES",
    "Block",
    "CorruptBlockError",
    "compact",
    "load_x",
    "open_hdf5",
    "read_block",
    "write_block",
    "write_whole",
]

import functools
import hashlib
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

#: How the values of x may be kept on disk.
STORAGES = ("float32", "bits", "integers")
#: The block format. A reader refuses what is newer.
FORMAT = 1
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
    """What a block file says of itself. `x` is in the dtype of the file; `None` when only the header was asked for."""

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
    finite = np.isfinite(x)
    whole = bool(finite.all())
    values = x if whole else x[finite]
    if storage == "bits":
        wrong = values[(values != 0) & (values != 1)]
    else:
        wrong = values[values != np.rint(values)]
    if wrong.size:
        what = "zeros and ones" if storage == "bits" else "whole numbers"
        raise ValueError(
            f"storage={storage!r} is for {what}, but the simulator returned {wrong[0]}. Use storage='float32', "
            "which keeps any value."
        )
    if not whole:
        return x
    low, high = x.min(), x.max()
    for dtype in (np.uint8, np.int16, np.int32):
        limits = np.iinfo(dtype)
        # int32's largest number rounds up in float32, hence the strict comparison in double precision.
        if float(low) >= limits.min and float(high) <= limits.max:
            return x.astype(dtype)
    return x


def write_whole(path: Path, write: Callable[[Path], None], *, replace: bool = True) -> None:
    """Have `write` fill a temporary file, force it to the disk, and rename it to `path`.

    Without `replace` a file that is already there stays, even if it appeared in the meantime.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write(temporary)
        _sync(temporary)
        if replace:
            os.replace(temporary, path)
        else:
            _rename_unless_there(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)


def write_block(
    path: Path, theta: np.ndarray, x: np.ndarray, *, storage: str, fingerprint: str, rows: np.ndarray | None = None
) -> None:
    """Write float32 `theta`, with shape `(n, D)`, and `x`, with shape `(n, *x_shape)`, as one block."""
    values = compact(x, storage)
    invalid = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(1))
    rows = np.arange(len(x)) if rows is None else rows

    def write(temporary: Path) -> None:
        # HDF5's own file locks fail on some network file systems, and a file nobody else can name needs none.
        with h5py.File(temporary, "w", locking=False) as file:
            file.attrs["equipoise_format"] = FORMAT
            file.attrs["fingerprint"] = fingerprint
            file.attrs["digest"] = _digest(theta, values, rows, invalid)
            file.create_dataset("theta", data=theta)
            file.create_dataset("x", data=values, **_layout(values, storage))
            file.create_dataset("row", data=rows)
            file.create_dataset("invalid", data=invalid)

    write_whole(path, write)


def open_hdf5(path: Path) -> h5py.File:
    """An HDF5 file, for reading. Blocks never change in place, so that no lock is needed where none can be had."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if "lock" not in str(error):
            raise
        return h5py.File(path, "r", locking=False)


def read_block(path: Path, *, fingerprint: str, x: bool = True, verify: bool = True) -> Block:
    """Read a block, or raise `CorruptBlockError`. Without `x` only header and θ are read, and no digest is checked."""
    try:
        with open_hdf5(path) as file:
            version = int(file.attrs["equipoise_format"])
            if version > FORMAT:
                raise ValueError(f"{path} has format {version}, written by a newer Equipoise; this one reads {FORMAT}")
            owner, digest = str(file.attrs["fingerprint"]), str(file.attrs["digest"])
            theta, rows, invalid = file["theta"][:], file["row"][:], file["invalid"][:]
            values = file["x"][:] if x else None
            x_shape = tuple(int(k) for k in file["x"].shape[1:])
            length = len(file["x"])
    except FileNotFoundError:
        raise
    except (OSError, KeyError, RuntimeError, TypeError) as error:
        raise CorruptBlockError(path, f"it is truncated or not HDF5 ({_first_line(error)})") from error
    if owner != fingerprint:
        raise CorruptBlockError(path, "it belongs to another store (its fingerprint is not the manifest's)")
    if not len(theta) == length == len(rows):
        raise CorruptBlockError(path, f"it has {len(theta)} rows of theta, {length} of x and {len(rows)} row numbers")
    if values is not None and verify and digest != _digest(theta, values, rows, invalid):
        raise CorruptBlockError(path, "its content does not match its checksum")
    return Block(theta, values, x_shape, rows, invalid)


def load_x(path: Path, key: str = "x", start: int = 0, stop: int | None = None) -> np.ndarray:
    """Rows of one dataset: a memory map where the file is contiguous float32, an array otherwise."""
    stat = os.stat(path)
    place = _contiguous(path, key, (stat.st_ino, stat.st_mtime_ns, stat.st_size))
    if place is not None:
        return np.memmap(path, dtype="<f4", mode="r", offset=place[0], shape=place[1])[start:stop]
    with open_hdf5(path) as file:
        return np.asarray(file[key][start:stop])


@functools.lru_cache(maxsize=1 << 16)
def _contiguous(path: Path, key: str, stamp: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """Where contiguous float32 begin in a file, and their shape; None for anything else.

    Rows in random order touch many files, again and again, and opening HDF5 takes several times as long as
    mapping a file does. The stamp tells a file from one that has taken its place.
    """
    with open_hdf5(path) as file:
        data = file[key]
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
    if storage == "bits" and values.dtype == np.uint8:
        return {**layout, "scaleoffset": 0}
    return {**layout, "shuffle": True}


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _rename_unless_there(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, this fails if the name is taken
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            os.replace(temporary, path)


def _sync(path: Path) -> None:
    """Force a file, or a directory's list of names, to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # a directory cannot be opened on Windows
        return
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot sync a directory; the rename is atomic all the same
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
