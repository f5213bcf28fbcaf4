"""The numbers of a stack that follow its NetCDF: the same as in it, and no way around the checks."""

from __future__ import annotations

import json
import shutil
import struct
import zlib

import numpy as np
import pytest
import xarray as xr

from equipoise.experiments import Folder, collect
from equipoise.experiments.folder import _read_netcdf
from equipoise.experiments.packed import MARK, pack, unpack
from equipoise.support import hdf5
from equipoise.support.errors import DamagedFile
from equipoise.support.files import DIGEST, append_digest

TAIL = len(hdf5.MARK) + DIGEST


def without_packed(contents: bytes) -> bytes:
    """What an earlier version wrote, without its digest."""
    (length,) = struct.unpack("<Q", contents[-TAIL - len(MARK) - 8 : -TAIL - len(MARK)])
    return contents[: -TAIL - len(MARK) - 8 - length] + hdf5.MARK


def test_both_parts_of_a_stack_say_the_same(undisturbed):
    folder = Folder(undisturbed)
    for identity in folder.stacks():
        header, arrays = folder.read_stack(identity)
        other_header, others = _read_netcdf(folder.stack_file(identity))
        assert header == {k: getattr(v, "item", lambda v=v: v)() for k, v in other_header.items()}
        assert arrays.keys() <= others.keys()  # HDF5 has dimensions without a coordinate too
        for name, values in arrays.items():
            np.testing.assert_array_equal(values, others[name], err_msg=name)
            assert values.dtype == others[name].dtype, name


def test_stacks_of_an_earlier_version_give_the_same_results(undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "out")
    folder = Folder(tmp_path / "out")
    for identity in folder.stacks()[::2]:
        file = folder.stack_file(identity)
        file.write_bytes(without_packed(file.read_bytes()))
        append_digest(file)
        assert unpack(file.read_bytes()[:-TAIL]) is None
    wanted, found = collect(Folder(undisturbed)), collect(folder)
    assert found.drop_attrs().identical(wanted.drop_attrs())


def packed(about: dict, body: bytes = b"") -> bytes:
    found = zlib.compress(json.dumps(about).encode() + b"\n" + body)
    return found + struct.pack("<Q", len(found)) + MARK


ABOUT = {"attributes": {"format": 2}, "texts": {}, "arrays": {}}
HOSTILE = {
    "a length beyond the file": struct.pack("<Q", 2**40) + MARK,
    "no compressed data": b"x" * 100 + struct.pack("<Q", 100) + MARK,
    "values that are not there": packed(ABOUT | {"arrays": {"a": ["<f8", [1 << 40]]}}),
    "a negative size": packed(ABOUT | {"arrays": {"a": ["<f8", [-1]]}}),
    "objects": packed(ABOUT | {"arrays": {"a": ["|O", [1]]}}, bytes(8)),
    "no JSON": packed({})[:-1] + b"x" + MARK,
    "no arrays": packed({"attributes": {}}),
    "a shape that is none": packed(ABOUT | {"texts": {"a": [[3], ["x"]]}}),
    "a billion zeros": packed(ABOUT | {"arrays": {"a": ["<f8", [1 << 27]]}}, bytes(1 << 20)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_somebody_else_packed_is_refused_by_name(kind, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "out")
    folder = Folder(tmp_path / "out")
    identity = folder.stacks()[0]
    file = folder.stack_file(identity)
    file.write_bytes(without_packed(file.read_bytes())[: -len(hdf5.MARK)] + HOSTILE[kind] + hdf5.MARK)
    append_digest(file)
    if not file.read_bytes()[:-TAIL].endswith(MARK):
        pytest.fail("this is no packed part at all")
    with pytest.raises(DamagedFile, match=identity):
        folder.read_stack(identity)


def test_numbers_of_every_kind_come_back_as_they_were():
    values = {
        "float": ("x", np.array([0.1, np.nan, np.inf])),
        "single": ("x", np.array([0.1, -0.0, 3e38], np.float32)),
        "whole": ("x", np.arange(3)),
        "scalar": ((), 2.5),
        "text": ("x", np.array(["", "é", "a\nb"], dtype=object)),
        "none": ("y", np.empty(0)),
    }
    ds = xr.Dataset(values, attrs={"a": 1, "b": np.nan, "c": np.float64(0.1), "d": "é"})
    found = unpack(b"anything" + pack(ds))
    assert found is not None
    header, arrays = found
    assert header["a"] == 1 and np.isnan(header["b"]) and header["c"] == 0.1 and header["d"] == "é"
    for name in values:
        np.testing.assert_array_equal(arrays[name], ds[name].values)
        assert arrays[name].dtype == ds[name].dtype
