"""NetCDF files with digests, and HDF5 files that reach outside or claim more than they hold."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import xarray as xr

from equipoise.support.errors import DamagedFile
from equipoise.support.hdf5 import read_netcdf, write_netcdf


@pytest.fixture(scope="module")
def written() -> xr.Dataset:
    rng = np.random.default_rng(0)
    names = np.array(["overconfident", "inconclusive", ""], dtype=object)
    data = {"auc": ("cell", rng.normal(size=3)), "verdict": ("cell", names), "curve": (("cell", "level"), np.eye(3))}
    return xr.Dataset(data, {"level": [0.0, 0.5, 1.0]}, {"notes": "none", "wall_seconds": 3.5})


def test_every_flipped_bit_is_noticed_or_harmless(written, tmp_path):
    file = tmp_path / "a.nc"
    write_netcdf(written, file, {"curve": {"zlib": True}})
    whole = file.read_bytes()
    xr.testing.assert_identical(read_netcdf(file), xr.load_dataset(file, engine="h5netcdf"))
    places = np.random.default_rng(1).choice(8 * len(whole), 150, replace=False)
    refused = 0
    for place in [*places, *range(8 * len(whole) - 8 * 40, 8 * len(whole), 7)]:  # mark and digest are at the end
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        file.write_bytes(changed)
        try:
            xr.testing.assert_identical(read_netcdf(file), written)
        except DamagedFile as error:
            refused += "a.nc" in str(error)
    assert refused >= 150
    for length in (0, 10, len(whole) // 2, len(whole) - 5):
        file.write_bytes(whole[:length])
        if length < len(whole) - 32:
            with pytest.raises(DamagedFile, match=r"a\.nc"):
                read_netcdf(file)
        else:  # the digest alone is cut
            xr.testing.assert_identical(read_netcdf(file), written)


def test_a_file_without_a_digest_is_read(written, tmp_path):
    written.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    xr.testing.assert_identical(read_netcdf(tmp_path / "a.nc"), written)
    with pytest.raises(FileNotFoundError):
        read_netcdf(tmp_path / "b.nc")


@pytest.mark.parametrize("kind", ["external", "link", "soft", "virtual", "claims"])
def test_what_lies_elsewhere_or_nowhere_is_refused(kind, tmp_path):
    secret, file = tmp_path / "secret.h5", tmp_path / "a.nc"
    with h5py.File(secret, "w") as other:
        other["a"] = np.arange(1000.0)
    with h5py.File(file, "w") as made:
        made["here"] = np.zeros(3)
        if kind == "external":
            made.create_dataset("a", (10,), "u1", external=[(str(secret), 0, 10)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((1000,), "f8")
            layout[:] = h5py.VirtualSource(secret, "a", shape=(1000,))
            made.create_virtual_dataset("a", layout)
        elif kind == "claims":
            made.create_dataset("a", (4_000_000_000,), "f8")
        else:
            made["a"] = h5py.ExternalLink(str(secret), "a") if kind == "link" else h5py.SoftLink("/here")
    with pytest.raises(DamagedFile, match="'a'"):
        read_netcdf(file)
