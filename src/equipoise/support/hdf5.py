"""HDF5 files that others may have made or damaged: what is read lies in the file itself, and fits into it.

`write_netcdf` adds a digest to a NetCDF file, which other readers ignore, and `read_netcdf` checks it. A file without
one was written by something else, and is read as it is.

Files are made in memory and then written: on a full disk the HDF5 library ends the process with a segmentation fault.
"""

from __future__ import annotations

__all__ = ["GZIP_RATIO", "check_dataset", "dataset", "open_hdf5", "read_netcdf", "write_hdf5", "write_netcdf"]

import functools
import io
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from .errors import DamagedFile
from .files import DIGEST, append_digest, is_intact, write_whole

if TYPE_CHECKING:
    import xarray as xr

#: A file may hold this many times its own size: gzip alone packs up to 1032 bytes into one, others more.
GZIP_RATIO, OTHER_RATIO = 1100, 1 << 16
#: Stands before the digest of a NetCDF file, and says that there is one.
MARK = b"\nequipoise digest"

#: Opens an HDF5 file for reading, also on file systems that have no locks.
open_hdf5 = functools.partial(h5py.File, mode="r", locking="best-effort")


def dataset(file: h5py.File, key: str) -> h5py.Dataset:
    """A dataset that lies in this very file, and whose size the file can hold.

    Links to other files and data kept elsewhere are refused: a file that was handed on must not read others. So is a
    shape that would take memory for values which are not there.
    """
    place = file
    for name in filter(None, key.split("/")):
        if not isinstance(place.get(name, getlink=True), h5py.HardLink):
            raise OSError(f"{key!r} is not there, or is a link to somewhere else")
        place = place[name]
    if not isinstance(place, h5py.Dataset):
        raise OSError(f"{key!r} is no dataset")
    check_dataset(place.id, key, os.path.getsize(file.filename))
    return place


def check_dataset(place: h5py.h5d.DatasetID, key: str, size: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and dtype of a dataset; OSError unless its values are in its file, and fit into a file of this size."""
    shape, dtype, offset = place.shape, place.dtype, place.get_offset()
    if offset is not None and offset + math.prod(shape) * dtype.itemsize <= size:  # in this file, in one piece
        return shape, dtype
    plist = place.get_create_plist()
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL or plist.get_external_count():
        raise OSError(f"{key!r} keeps its values in another file")
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())] if layout == h5py.h5d.CHUNKED else []
    known = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
    ratio = 1 if not filters else GZIP_RATIO if set(filters) <= known else OTHER_RATIO
    numbers = place.get_space().get_simple_extent_npoints()
    if numbers * place.get_type().get_size() > ratio * size:
        raise OSError(f"{key!r} has the shape {shape}, more than a file of this size can hold")
    return shape, dtype


@contextmanager
def write_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """An HDF5 file to fill, which is written whole when the block ends."""
    made = io.BytesIO()
    with h5py.File(made, "w") as file:
        yield file
    with write_whole(path) as temporary:
        temporary.write_bytes(made.getbuffer())


def write_netcdf(
    ds: xr.Dataset,
    path: str | Path,
    encoding: Mapping[Any, Any] | None = None,
    *,
    replace: bool = True,
    after: bytes = b"",
) -> None:
    """Write a dataset as NetCDF, whole or not at all, with a digest; `replace` as in `write_whole`.

    `after` is written between the dataset and the digest, where readers of NetCDF do not look. How a variable was
    stored in the file it came from says nothing of how it is stored here: texts joined since may be longer.
    """
    made, dask = io.BytesIO(), sys.modules.get("dask")
    # In a worker of Dask, xarray would ask the scheduler for a lock by the name of the file, and this has none.
    with nullcontext() if dask is None else dask.config.set(scheduler="synchronous"):
        ds.drop_encoding().to_netcdf(made, engine="h5netcdf", encoding=encoding)
    with write_whole(path, replace=replace) as temporary:
        with open(temporary, "wb") as file:
            file.write(made.getbuffer())
            file.write(after)
            file.write(MARK)
        append_digest(temporary)


def read_netcdf(path: str | Path) -> xr.Dataset:
    """A NetCDF file in memory; `DamagedFile` if it is none, was altered since `write_netcdf`, or reaches outside.

    Example:
        >>> import tempfile, xarray as xr
        >>> file = Path(tempfile.mkdtemp()) / "a.nc"
        >>> write_netcdf(xr.Dataset({"a": ("x", [1.0, 2.0])}), file)
        >>> float(read_netcdf(file)["a"].sum())
        3.0
    """
    import xarray as xr  # here, since simulations do not need it

    path = Path(path)
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - DIGEST - len(MARK)))
            marked = file.read(len(MARK)) == MARK
        if marked and not is_intact(path):
            raise DamagedFile("its content does not match its checksum")
        with open_hdf5(path) as file:
            for name in file:
                dataset(file, name)
        with xr.open_dataset(path, engine="h5netcdf") as ds:
            return ds.load()
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes its readers raise all sorts
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedFile(f"{path} is damaged, or no NetCDF file ({why})") from error
