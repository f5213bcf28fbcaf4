"""Arrays as users bring them: masks, tables, labels."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import equipoise as eq
from equipoise.support.arrays import plain
from equipoise.training import data

MASK = np.array([[False, True], [False, False]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
def test_what_is_masked_is_nan(dtype: type) -> None:
    array = np.array([[1, 9], [0, 1]], dtype)
    found = plain(np.ma.array(array, mask=MASK))
    assert type(found) is np.ndarray and np.array_equal(np.isnan(found), MASK)
    assert np.array_equal(found[~MASK], array[~MASK].astype(float))
    assert found.dtype == (dtype if dtype in (np.float32, np.float64) else np.float64)
    unmasked = plain(np.ma.array(array))
    assert type(unmasked) is np.ndarray and unmasked.dtype == dtype  # whole numbers stay what they are


def test_masked_rows_in_a_list() -> None:
    found = plain([np.ma.array([1, 2], mask=[False, True]), np.array([3, 4])])
    assert np.array_equal(found, [[1, np.nan], [3, 4]], equal_nan=True)
    assert np.array_equal(plain([1.0, np.ma.masked]), [1, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}),
        pd.DataFrame({"a": [1, 2], "b": [3.0, 4.0]}),
        pd.DataFrame({"a": pd.array([1, 2], dtype="Int64"), "b": [3.0, 4.0]}),
        xr.DataArray([[1.0, 3.0], [2.0, 4.0]], dims=("row", "column")),
    ],
)
def test_tables_and_labelled_arrays_are_arrays(table: object) -> None:
    found = plain(table)
    assert type(found) is np.ndarray and np.array_equal(found, [[1, 3], [2, 4]])
    torch.as_tensor(found)  # a warning (of a read-only array) would be an error


def test_what_is_missing_in_a_table_is_nan() -> None:
    found = plain(pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [3.0, 4.0]}))
    assert np.array_equal(found, [[1, 3], [np.nan, 4]], equal_nan=True)
    assert np.array_equal(plain(pd.Series([1, None], dtype="Int64")), [1, np.nan], equal_nan=True)


def test_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a DataFrame should hold numbers alone.*choose its columns"):
        plain(pd.DataFrame({"a": [1.0], "b": ["text"]}))
    with pytest.raises(TypeError, match="should hold real numbers"):
        plain(np.ma.array([1j, 2], mask=[True, False]))


def test_everything_else_is_left_alone() -> None:
    for value in (torch.ones(2), np.ones(2), [1, 2], (1.0,), 3, None, {"a": 1}):
        assert plain(value) is value


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.uint64, np.longdouble, ">f4", ">f8", ">i2", ">u2"])
def test_numbers_that_torch_does_not_compute_with(kind, tmp_path) -> None:
    values = np.array([[0, 1], [2, 300]], dtype=kind)
    tensor = torch.as_tensor(plain(values))
    assert tensor.tolist() == [[0, 1], [2, 300]] and tensor.amin() == 0 and tensor.float().sum() == 303
    native = np.ones(3, np.float32)
    assert plain(native) is native
    np.save(tmp_path / "x.npy", values)
    assert torch.equal(torch.as_tensor(plain(np.load(tmp_path / "x.npy", mmap_mode="c"))), tensor)


class Masked:
    """An array on disk whose rows come with a mask, as those of netCDF4 do."""

    def __init__(self, values: np.ndarray, hidden: float = -1) -> None:
        self.values, self.shape, self.dtype, self.hidden = values, values.shape, values.dtype, hidden

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows) -> np.ma.MaskedArray:
        return np.ma.array(self.values[rows], mask=self.values[rows] == self.hidden)


@pytest.mark.parametrize("kind", ["<f4", ">f4", ">f8", "<u2", ">i2"])
def test_arrays_on_disk_train_and_are_judged_like_those_in_memory(kind: str, tmp_path: Path) -> None:
    prior = eq.BoxUniform([0.0], [1.0])
    rng = np.random.default_rng(0)
    theta, new = rng.random((200, 1)), rng.random((100, 1))
    x, judged = (rng.poisson(20 * t, (len(t), 2)).astype(kind) for t in (theta, new))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name, values in (("x", x), ("judged", judged)):
            np.save(tmp_path / f"{name}.npy", values)
            file[name] = values
    few = {"method": eq.METHODS["npe"].but(hidden=(8,)), "members": 1, "epochs": 2, "progress": False, "device": "cpu"}
    usual = eq.fit(theta, x.astype(np.float32), prior=prior, **few)
    ranks = eq.diagnose(usual, new, judged.astype(np.float32), samples=20, progress=False)["rank"]
    mapped, others = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "judged"))
    with h5py.File(tmp_path / "x.h5") as file:
        for source in (mapped, file["x"], Masked(x)):
            posterior = eq.fit(theta, source, prior=prior, **few)
            for name, weight in usual.stack.items():
                torch.testing.assert_close(posterior.stack[name], weight)
        for source in (others, file["judged"]):
            found = eq.diagnose(usual, new, source, samples=20, progress=False)["rank"]
            np.testing.assert_array_equal(found, ranks)
        gathered = eq.diagnose(usual, new, Masked(judged), samples=20, progress=False)["rank"]
        np.testing.assert_array_equal(gathered, ranks)
    draws = [usual.sample((5,), x=row, seed=0) for row in (mapped[3], x[3].astype(np.float32))]
    assert torch.equal(*draws)


@pytest.mark.parametrize("kind", ["f4", "i2"])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_masked_on_disk_is_refused(kind: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "READ_WHOLE_BELOW", 1 << 30 if whole else 0)
    rng = np.random.default_rng(0)
    theta = rng.random((200, 1))
    x = rng.poisson(20 * theta, (200, 2)).astype(kind)
    x[100, 1] = 77
    few = {"method": eq.METHODS["npe"].but(hidden=(8,)), "members": 1, "epochs": 2, "progress": False, "device": "cpu"}
    prior = eq.BoxUniform([0.0], [1.0])
    for standardize in (True, False) if kind == "i2" or whole else ():
        with pytest.raises(ValueError, match=r"NaN.*row 100|masked"):
            eq.fit(theta, Masked(x, 77), prior=prior, standardize=standardize, **few)
    posterior = eq.fit(theta, np.where(x == 77, 0, x), prior=prior, **few)
    with pytest.raises(ValueError, match="NaN"):
        eq.diagnose(posterior, theta, Masked(x, 77), samples=20, progress=False)


def test_a_large_read_only_array_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.ones((4, 4), np.float32)
    values.flags.writeable = False
    assert plain(values) is not values
    monkeypatch.setattr("equipoise.support.arrays.SMALL", 0)
    assert plain(values) is values


def test_files_are_read_once_by_a_cpu_and_maps_are_not(tmp_path: Path) -> None:
    x = np.ones((20, 3), np.float32)
    np.save(tmp_path / "x.npy", x)
    theta, cpu = torch.zeros(20, 1), torch.device("cpu")
    assert data.Data([theta], [np.load(tmp_path / "x.npy", mmap_mode="r")], cpu).stream
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.arange(60.0).reshape(20, 3)
        made = data.Data([theta], [file["x"]], cpu)
        assert not made.stream and made.dtype == torch.float32
        large = data.Data([theta], [file["x"]], cpu, stream=True)
        which, index = torch.tensor([0, 0]), torch.tensor([[3, 3, 1], [19, 0, 3]])
        assert torch.equal(large.x_batch(which, index), made.x_batch(which, index))


def test_arrays_of_all_kinds_are_judged() -> None:
    prior = eq.BoxUniform([0.0], [1.0])
    rng = np.random.default_rng(0)
    theta = rng.random((400, 1))
    counts = rng.poisson(20 * theta).astype(">u2")
    few = {"method": eq.METHODS["npe"].but(hidden=(8,)), "members": 1, "epochs": 1, "progress": False}
    posterior = eq.fit(theta[200:], counts[200:], prior=prior, **few)
    theta, counts = theta[:200], counts[:200]
    usual = eq.diagnose(posterior, theta, counts.astype(np.float32), samples=20, progress=False)
    found = eq.diagnose(posterior, pd.DataFrame(theta), counts, samples=20, progress=False)
    np.testing.assert_array_equal(found["rank"], usual["rank"])
    masked = np.ma.array(counts.astype(float), mask=np.arange(200)[:, None] == 7)
    with pytest.raises(ValueError, match="NaN"):
        eq.diagnose(posterior, theta, masked, samples=20, progress=False)
