"""Arrays as users bring them, as NumPy and torch read them."""

from __future__ import annotations

__all__ = ["TOO_LARGE", "as_tensor", "plain"]

from typing import Any

import numpy as np
import torch
from torch import Tensor

#: What to do about numbers that single precision cannot hold.
TOO_LARGE = (
    "too large for single precision, which ends at 3.4e38: rescale x where it is computed (take its logarithm, or "
    "divide it by a constant), for training and for observations alike"
)


#: By kind and bytes: what numbers become that torch does not compute with.
WIDER: dict[tuple[str, int], type] = {
    ("u", 2): np.int32,
    ("u", 4): np.int64,
    ("u", 8): np.float64,
    ("f", np.dtype(np.longdouble).itemsize): np.float64,
}
#: What arrays on a GPU, torch's tensors and tables are known by.
KNOWN = ("__cuda_array_interface__", "detach", "to_numpy")
#: Bytes that may be copied for comfort.
SMALL = 1 << 26


def plain(value: Any) -> Any:
    """What a user gave, without what NumPy and torch would misread; anything else is returned as it is.

    - Masked entries become NaN, and whole numbers with a mask floating-point numbers: under the mask lies a value that
      is none, and `torch.as_tensor` would read it.
    - Numbers that torch does not compute with (unsigned ones of more than 8 bits, long doubles, those of the other byte
      order, which FITS files hold) become those of the next kind that it does.
    - Tables and labelled arrays (anything with `to_numpy()`: pandas, xarray, polars) become arrays; what is missing
      in them becomes NaN. Arrays of other libraries (h5py, JAX) are read; torch would do it number by number.

    Example:
        >>> plain(np.ma.array([1, 2, 3], mask=[False, True, False]))
        array([ 1., nan,  3.])
    """
    known = isinstance(value, np.ndarray | np.generic | list | tuple | type) or any(hasattr(value, n) for n in KNOWN)
    if not known and hasattr(value, "__array__"):
        value = np.asanyarray(value)
    elif not known and all(hasattr(value, name) for name in ("shape", "__len__", "__getitem__")):
        value = np.asanyarray(value[:])
    if isinstance(value, np.ma.MaskedArray) and not np.ma.is_masked(value):
        value = np.asarray(value.data)
    if isinstance(value, np.ma.MaskedArray):
        if value.dtype.kind not in "biuf":
            raise TypeError(f"a masked array should hold real numbers, this one is of dtype {value.dtype}")
        value = np.ma.filled(value if value.dtype.kind == "f" else value.astype(np.float64), np.nan)
    if isinstance(value, list | tuple) and any(isinstance(v, np.ma.MaskedArray) for v in value):
        return np.stack([np.asarray(plain(v)) for v in value])
    if isinstance(value, np.ndarray):
        kind = WIDER.get((value.dtype.kind, value.dtype.itemsize), value.dtype.newbyteorder("="))
        value = value.astype(kind, copy=False)
        # torch complains of what is read-only, once; what is large is not copied for that.
        return np.require(value, requirements=["W"]) if value.nbytes < SMALL else value
    if isinstance(value, type) or not hasattr(value, "to_numpy"):
        return value
    array = np.asarray(value.to_numpy())
    if array.dtype.kind == "O":  # columns of several kinds, or a marker of what is missing among numbers
        try:
            array = np.asarray(value.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"a {type(value).__name__} should hold numbers alone, and this one does not ({error}); choose its "
                "columns of numbers"
            ) from error
    return np.require(array, requirements=["W"])  # a view of a table is read-only


def as_tensor(value: Any, name: str) -> Tensor:
    """What a user gave as a tensor, or a TypeError that names the argument.

    A tensor keeps its device, dtype and graph.

    Example:
        >>> as_tensor([[1.0, 2.0]], "theta").shape
        torch.Size([1, 2])
        >>> as_tensor("mass", "theta")
        Traceback (most recent call last):
            ...
        TypeError: theta should be a tensor or an array of numbers, got str (...)
        >>> as_tensor(torch.ones(3, dtype=torch.complex64), "theta")
        Traceback (most recent call last):
            ...
        TypeError: theta should be an array of real numbers, and is complex: give real and imaginary parts apart
    """
    try:
        found = torch.as_tensor(plain(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} should be a tensor or an array of numbers, got {type(value).__name__} ({error})"
        ) from error
    if wrong := _unusable(found, name):
        raise TypeError(f"{name} should be an array of real numbers, and is {wrong}")
    return found


def _unusable(values: Tensor, name: str) -> str:
    """Why nothing can be computed with a tensor, and what to do about it; "" where something can."""
    if values.is_complex():
        return "complex: give real and imaginary parts apart"
    if values.layout != torch.strided:
        return f"sparse ({values.layout}): give {name}.to_dense()"
    return "on the device 'meta', which holds shapes and no numbers" if values.device.type == "meta" else ""
