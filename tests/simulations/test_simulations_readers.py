"""`read_simulations`: every format, and everything that can be wrong with one."""

from __future__ import annotations

import io
import zipfile

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import equipoise as eq
from equipoise.simulations import InvalidSimulationsWarning, Simulations, readers

RNG = np.random.default_rng(0)
THETA = RNG.normal(size=(50, 2))
X = RNG.normal(size=(50, 6))
IMAGES = RNG.normal(size=(50, 3, 4))


def as_npz(folder, theta=THETA, x=X):
    np.savez(folder / "pairs.npz", theta=theta, x=x)
    return (folder / "pairs.npz",)


def as_npy(folder, theta=THETA, x=X):
    np.save(folder / "theta.npy", theta)
    np.save(folder / "x.npy", x)
    return folder / "theta.npy", folder / "x.npy"


def as_npy_directory(folder, theta=THETA, x=X):
    as_npy(folder, theta, x)
    return (folder,)


def as_hdf5(folder, theta=THETA, x=X, name="pairs.h5", **layout):
    with h5py.File(folder / name, "w") as file:
        file["theta"] = theta
        file.create_dataset("x", data=x, **layout)
    return (folder / name,)


def as_compressed_hdf5(folder, theta=THETA, x=X):
    return as_hdf5(folder, theta, x, compression="gzip", chunks=(10, *x.shape[1:]))


def as_float32_hdf5(folder, theta=THETA, x=X):
    return as_hdf5(folder, np.float32(theta), np.float32(x))


def as_hdf5_directory(folder, theta=THETA, x=X):
    for k, rows in enumerate((slice(0, 20), slice(20, 23), slice(23, None))):
        as_hdf5(folder, theta[rows], x[rows], name=f"part-{k}.h5")
    return (folder,)


def as_lampe(folder, theta=THETA, x=X):
    from lampe.data import H5Dataset

    H5Dataset.store([(theta, x)], folder / "lampe.h5", size=len(theta), overwrite=True)
    return (folder / "lampe.h5",)


def as_saved(folder, theta=THETA, x=X):
    Simulations(theta, x).save(folder / "deep" / "saved.h5")
    return (folder / "deep" / "saved.h5",)


def frame(theta, x) -> pd.DataFrame:
    columns = {f"theta_{j}": theta[:, j] for j in range(theta.shape[1])}
    return pd.DataFrame({**columns, **{f"x_{j}": x[:, j] for j in range(x.shape[1])}, "comment": "text"})


def as_csv(folder, theta=THETA, x=X):
    frame(theta, x).to_csv(folder / "pairs.csv", index=False)
    return (folder / "pairs.csv",)


def as_parquet(folder, theta=THETA, x=X):
    frame(theta, x).to_parquet(folder / "pairs.parquet")
    return (folder / "pairs.parquet",)


ARRAYS = [
    as_npz, as_npy, as_npy_directory, as_lampe, as_saved,
    as_hdf5, as_compressed_hdf5, as_float32_hdf5, as_hdf5_directory,
]  # fmt: skip
TABLES = [as_csv, as_parquet]


@pytest.mark.parametrize("write", ARRAYS + TABLES, ids=lambda f: f.__name__)
def test_every_format(write, tmp_path) -> None:
    pairs = eq.read_simulations(*write(tmp_path))
    assert torch.equal(pairs.theta, torch.tensor(THETA).float()) and torch.equal(pairs.x, torch.tensor(X).float())
    assert pairs.n_invalid == 0
    theta, x = eq.read_simulations(*write(tmp_path), n=20)[torch.tensor([3, 19])]
    assert torch.equal(x, torch.tensor(X[[3, 19]]).float()) and torch.equal(theta, torch.tensor(THETA[[3, 19]]).float())
    assert len(eq.read_simulations(*write(tmp_path), n=20)) == 20
    with pytest.raises(ValueError, match="51 were asked for"):
        eq.read_simulations(*write(tmp_path), n=51)


@pytest.mark.parametrize("write", ARRAYS, ids=lambda f: f.__name__)
def test_any_shape_and_small_pieces(write, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(readers, "PIECE_BYTES", 1000)  # ten rows of x at a time, so that files come in pieces
    pairs = eq.read_simulations(*write(tmp_path, x=IMAGES))
    assert pairs.x.shape == (50, 3, 4) and torch.equal(pairs.x, torch.tensor(IMAGES).float())
    assert len(pairs._column.segments) >= 3 or write is as_float32_hdf5 or write in (as_lampe, as_saved)
    flat = eq.read_simulations(*write(tmp_path, x=IMAGES), x_shape=(12,))
    assert torch.equal(flat.x, pairs.x.flatten(1))
    with pytest.raises(ValueError, match="cannot be reshaped"):
        eq.read_simulations(*write(tmp_path, x=IMAGES), x_shape=(5,))


@pytest.mark.parametrize("write", ARRAYS + TABLES, ids=lambda f: f.__name__)
def test_invalid_rows(write, tmp_path) -> None:
    theta, x = THETA.copy(), X.copy()
    theta[7, 0], x[9, 2], x[31, 0] = np.nan, np.inf, 1e300
    if write in (as_lampe, as_float32_hdf5, as_saved):  # these are float32 when they are written
        x[x > 1e38] = np.inf
    files = write(tmp_path, theta, x)
    with pytest.warns(InvalidSimulationsWarning, match="3 of 50"):
        pairs = eq.read_simulations(*files)
    keep = np.setdiff1d(np.arange(50), [7, 9, 31])
    assert torch.equal(pairs.x, torch.tensor(X[keep]).float()) and pairs.n_invalid == 3
    assert len(eq.read_simulations(*files, on_invalid="keep")) == 50
    with pytest.raises(ValueError, match="first is row 7"):
        eq.read_simulations(*files, on_invalid="raise")


@pytest.mark.parametrize("write", [as_npz, as_npy, as_hdf5], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("theta", "x", "message"),
    [
        (THETA[:40], X, "40 rows and x has 50"),
        (THETA[:0], X[:0], "no rows"),
        (THETA[None], X[None], "should be \\(rows, parameters\\)"),
        (THETA.astype("S8"), X, "should be numbers"),
        (THETA, X.astype(complex), "should be numbers"),
        (THETA[0, 0], X[0, 0], "single number"),
    ],
)
def test_wrong_arrays(write, theta, x, message, tmp_path) -> None:
    files = write(tmp_path, theta, x)
    with pytest.raises(ValueError, match=message):
        eq.read_simulations(*files)


def test_one_dimensional_arrays_are_columns(tmp_path) -> None:
    pairs = eq.read_simulations(*as_npz(tmp_path, THETA[:, 0], X[:, 0]))
    assert pairs.theta.shape == (50, 1) and pairs.x.shape == (50, 1)


def test_keys(tmp_path) -> None:
    file = tmp_path / "other.npz"
    np.savez(file, params=THETA, observations=X, weights=np.ones(50))
    with pytest.warns(UserWarning, match=r"reading '(params|observations)'"):
        assert len(eq.read_simulations(file)) == 50
    pairs = eq.read_simulations(file, theta_key="params", x_key="observations")
    assert torch.equal(pairs.x, torch.tensor(X).float())
    with pytest.raises(ValueError, match=r"'y'.*'params'.*'observations'.*'weights'"):
        eq.read_simulations(file, theta_key="params", x_key="y")
    np.savez(file, a=THETA, b=X)
    with pytest.raises(ValueError, match=r"'theta'.*'a'.*'b'.*theta_key="):
        eq.read_simulations(file)
    np.savez(file, theta=THETA, obs=X, data=X)
    with pytest.raises(ValueError, match="x_key="):
        eq.read_simulations(file)
    with h5py.File(tmp_path / "group.h5", "w") as h5:
        h5["train/theta"], h5["train/x"] = THETA, X
    with pytest.raises(ValueError, match=r"'train/theta'.*'train/x'"):
        eq.read_simulations(tmp_path / "group.h5")
    assert len(eq.read_simulations(tmp_path / "group.h5", theta_key="train/theta", x_key="train/x")) == 50


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "theta.npy", "store"])
def test_keys_of_what_has_none_are_refused(name, tmp_path) -> None:
    file = tmp_path / name
    if name == "store":
        file.mkdir()
        (file / "manifest.json").write_text("{}")
    else:
        file.write_text("")
    for key in ("theta_key", "x_key"):
        with pytest.raises(ValueError, match=r"are for .npz and HDF5 files; .* has no keys"):
            eq.read_simulations(file, **{key: "a"})


def test_columns(tmp_path) -> None:
    table = pd.DataFrame({"mass": THETA[:, 0], "spin": THETA[:, 1], "a": X[:, 0], "b": X[:, 1], "who": "me"})
    file = tmp_path / "t.csv"
    table.to_csv(file, index=False)
    pairs = eq.read_simulations(file, theta_columns=["spin", "mass"], x_columns=["b", "a"])
    assert torch.equal(pairs.theta, torch.tensor(THETA[:, ::-1].copy()).float())
    assert torch.equal(pairs.x, torch.tensor(X[:, 1::-1].copy()).float())
    for given, message in [
        ({}, r"theta.*'mass', 'spin', 'a'.*theta_columns"),
        ({"theta_columns": ["mass"]}, "x_columns"),
        ({"theta_columns": ["charge"], "x_columns": ["a"]}, r"'charge'.*'mass'"),
        ({"theta_columns": ["mass"], "x_columns": ["mass"]}, "both parameters and data"),
        ({"theta_columns": ["mass"], "x_columns": ["who"]}, "'who' .* is not numbers"),
    ]:
        with pytest.raises(ValueError, match=message):
            eq.read_simulations(file, **given)


def test_without_pandas(tmp_path, monkeypatch) -> None:
    files = as_csv(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=r"equipoise\[tables\]"):
        eq.read_simulations(*files)


@pytest.mark.parametrize("name", ["empty.npz", "empty.h5", "empty.csv", "empty.parquet", "empty.npy"])
@pytest.mark.parametrize("content", [b"", b"not what the name says \xff\xfe"])
def test_broken_files(name, content, tmp_path) -> None:
    (tmp_path / name).write_bytes(content)
    more = {"x_path": tmp_path / name} if name.endswith("npy") else {}
    with pytest.raises(ValueError, match="empty"):
        eq.read_simulations(tmp_path / name, **more)


def test_python_objects_are_not_unpickled(tmp_path) -> None:
    theta = np.empty(2, object)
    theta[:] = [[1], [2, 3]]
    np.savez(tmp_path / "o.npz", theta=theta, x=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="Python objects"):
        eq.read_simulations(tmp_path / "o.npz")


def test_arrays_that_claim_more_than_there_is(tmp_path) -> None:
    """The header of an array says 8 TB, the file has 100 bytes; nothing is allocated."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 1)})
    with zipfile.ZipFile(tmp_path / "big.npz", "w") as file:
        for name in ("theta", "x"):
            file.writestr(f"{name}.npy", buffer.getvalue())
    with pytest.raises(ValueError, match=r"'theta' in .*big\.npz"):
        eq.read_simulations(tmp_path / "big.npz")
    for name in ("theta", "x"):
        (tmp_path / f"{name}.npy").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match=r"theta\.npy"):
        eq.read_simulations(tmp_path / "theta.npy", tmp_path / "x.npy")


def test_paths(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or directory"):
        eq.read_simulations(tmp_path / "missing.h5")
    with pytest.raises(ValueError, match=r"neither manifest\.json"):
        eq.read_simulations(tmp_path)
    (tmp_path / "pairs.mat").write_text("")
    with pytest.raises(ValueError, match="cannot tell"):
        eq.read_simulations(tmp_path / "pairs.mat")
    theta, x = as_npy(tmp_path)
    with pytest.raises(ValueError, match="give the file of x"):
        eq.read_simulations(theta)
    with pytest.raises(FileNotFoundError, match=r"gone\.npy"):
        eq.read_simulations(theta, tmp_path / "gone.npy")
    with pytest.raises(ValueError, match="x_path is for pairs"):
        eq.read_simulations(*as_npz(tmp_path), x)


def test_files_that_do_not_match(tmp_path) -> None:
    as_hdf5(tmp_path, name="a.h5")
    as_hdf5(tmp_path, x=X[:, :3], name="b.h5")
    with pytest.raises(ValueError, match=r"b\.h5 has theta and x of shapes"):
        eq.read_simulations(tmp_path)


def test_names_of_parameters_come_with_files(tmp_path) -> None:
    pairs = Simulations(pd.DataFrame(THETA, columns=["beta", "gamma"]), X)
    assert pairs.names == ("beta", "gamma") == pairs.split(10, 5)[1].names
    pairs.save(tmp_path / "pairs.h5")
    assert eq.read_simulations(tmp_path / "pairs.h5").names == ("beta", "gamma")
    table = pd.DataFrame(np.hstack([THETA, X]), columns=["beta", "gamma", *(f"x_{i}" for i in range(6))])
    table.to_csv(tmp_path / "pairs.csv", index=False)
    assert eq.read_simulations(tmp_path / "pairs.csv", theta_columns=["gamma", "beta"]).names == ("gamma", "beta")
    table.rename(columns={"beta": "theta_0", "gamma": "theta_1"}).to_csv(tmp_path / "numbered.csv", index=False)
    assert eq.read_simulations(tmp_path / "numbered.csv").names is None
    assert eq.read_simulations(*as_npz(tmp_path)).names is None


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".h5"])
def test_one_array_is_read_or_refused_by_name(suffix, tmp_path) -> None:
    file = tmp_path / f"observed{suffix}"
    if suffix == ".h5":
        with h5py.File(file, "w") as made:
            made["x"], made["y"] = X[0], X[1]
    elif suffix == ".npz":
        np.savez(file, x=X[0], y=X[1])
    else:
        np.save(file, X[0])
    np.testing.assert_array_equal(readers.read_array(file, None), X[0])
    if suffix != ".npy":
        np.testing.assert_array_equal(readers.read_array(file, "y"), X[1])
        with pytest.raises(ValueError, match=f"observed{suffix}.*'z'"):
            readers.read_array(file, "z")
    whole = file.read_bytes()
    for cut in (0, 1, 8, 60, len(whole) // 2):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=f"observed{suffix}"):
            readers.read_array(file, None)


def test_one_array_lies_in_its_own_file(tmp_path) -> None:
    (tmp_path / "secret").write_bytes(bytes(100))
    with h5py.File(tmp_path / "observed.h5", "w") as made:
        made.create_dataset("x", (10,), "u1", external=[(str(tmp_path / "secret"), 0, 10)])
    with pytest.raises(ValueError, match="another file"):
        readers.read_array(tmp_path / "observed.h5", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("theta,x\n1,2\n1,2,3\n", "line 3 of .* has 3 values, and its head names 2 columns"),
        ("theta,x\n1,2,3\n4,5,6\n", "line 2 of .* has 3 values"),
        ("theta,x_0,x_1\n1,2,3\n1,2\n", "line 3 of .* has 2 values"),
        ("theta,x\n1,2,\n3,4,\n", "line 2 of .* has 3 values"),
        ("theta,x,x\n1,2,3\n", "several columns called 'x'"),
        ("theta,theta,x\n1,2,3\n", "several columns called 'theta'"),
        ("theta,x\n", "has no rows"),
        (",".join(f"x_{i}" for i in range(10**6)) + "\n", "1,000,000 columns, and 20,000 are the most"),
    ],
    ids=["longer", "all longer", "shorter", "trailing comma", "twice", "theta twice", "no rows", "a million columns"],
)
def test_tables_whose_columns_are_not_what_they_seem(text, message, tmp_path) -> None:
    (tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        eq.read_simulations(tmp_path / "pairs.csv")


def test_tables_with_quotes_blank_lines_and_marks(tmp_path) -> None:
    (tmp_path / "pairs.csv").write_bytes(b'\xef\xbb\xbftheta,x,note\r\n1,2,"a\r\nb"\r\n\r\n3,4,c\r\n')
    pairs = eq.read_simulations(tmp_path / "pairs.csv")
    assert pairs.theta.tolist() == [[1.0], [3.0]] and pairs.x.tolist() == [[2.0], [4.0]]


@pytest.mark.parametrize(
    "wrong",
    [{"n": v} for v in (0, -1, 1.5, True, "2", 10**30)]
    + [{"x_shape": v} for v in ("2", 2, (1.0,), (-1,), (10**30,))]
    + [{"theta_columns": v} for v in (3, [], [3], ["nothing"])]
    + [{"on_invalid": v} for v in (3, None, "keeps")],
    ids=str,
)
def test_options_are_refused_by_name(wrong, tmp_path) -> None:
    (tmp_path / "pairs.csv").write_text("theta,x\n1,2\n3,4\n")
    (name,) = wrong
    word = {"n": r"\bn is|were asked for", "x_shape": "x_shape|reshaped", "theta_columns": "column"}.get(name, name)
    with pytest.raises((ValueError, TypeError), match=word):
        eq.read_simulations(tmp_path / "pairs.csv", **wrong)
