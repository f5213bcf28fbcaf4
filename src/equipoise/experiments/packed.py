"""The numbers of a stack in one piece, for fast reading.

A stack's file is NetCDF, for everybody. HDF5 takes five milliseconds to open a file of forty variables and to read
them: a minute for ten thousand stacks. So the same numbers follow once more after the NetCDF, where its readers do not
look: a line of JSON with attributes, texts and shapes, then the arrays, compressed; then their length and a mark. The
digest at the end of the file is over both.
"""

from __future__ import annotations

__all__ = ["pack", "unpack"]

import json
import math
import struct
import zlib
from typing import Any

import numpy as np
import xarray as xr

from equipoise.support.hdf5 import GZIP_RATIO

#: Stands at the end, after the length of what is packed.
MARK = b"equipoise packed"
#: The kinds of arrays there may be: floats and integers; texts are in the JSON.
DTYPES = ("<f4", "<f8", "<i4", "<i8")


def pack(ds: xr.Dataset) -> bytes:
    """A dataset's attributes and variables as bytes.

    Example:
        >>> ds = xr.Dataset({"a": ("x", [1.0, 2.0]), "b": ((), "text")}, attrs={"n": 3})
        >>> header, arrays = unpack(b"NetCDF" + pack(ds))
        >>> header, arrays["a"].tolist(), arrays["b"].item()
        ({'n': 3}, [1.0, 2.0], 'text')
    """
    about: dict[str, Any] = {"attributes": {k: getattr(v, "tolist", lambda v=v: v)() for k, v in ds.attrs.items()}}
    about["texts"], about["arrays"], pieces = {}, {}, []
    for name, variable in ds.variables.items():
        values = variable.values
        if values.dtype.kind in "OU":
            about["texts"][name] = [list(values.shape), [str(v) for v in values.ravel()]]
        else:
            values = values.astype(values.dtype.newbyteorder("<"), order="C", copy=False)
            about["arrays"][name] = [values.dtype.str, list(values.shape)]
            pieces.append(values.tobytes())
    packed = zlib.compress(b"\n".join([json.dumps(about).encode(), b"".join(pieces)]), 1)
    return packed + struct.pack("<Q", len(packed)) + MARK


def unpack(contents: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Attributes and variables from bytes that end with `pack`'s; None if they do not. ValueError if they are damaged.

    The arrays share their memory, and cannot be written to.
    """
    if not contents.endswith(MARK):
        return None
    end = len(contents) - len(MARK) - 8
    (length,) = struct.unpack("<Q", contents[end : end + 8])
    if length > end:
        raise ValueError("what is packed does not fit into the file")
    most = GZIP_RATIO * length + 1024
    opened = zlib.decompressobj().decompress(contents[end - length : end], most)
    line, _, body = opened.partition(b"\n")
    about, at, arrays = json.loads(line), 0, {}
    for name, (dtype, shape) in about["arrays"].items():
        if dtype not in DTYPES or min(shape, default=0) < 0:
            raise ValueError(f"{name} has dtype {dtype!r} and shape {shape}")
        count = math.prod(shape)
        arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape)
        at += count * arrays[name].itemsize
    for name, (shape, texts) in about["texts"].items():
        arrays[name] = np.array([*map(str, texts), None], dtype=object)[:-1].reshape(shape)
    return dict(about["attributes"]), arrays
