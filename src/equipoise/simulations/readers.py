"""Pairs that were simulated elsewhere: NumPy, HDF5, CSV and Parquet files.

What can be read piece by piece stays on disk until it is asked for: HDF5 files (lampe's among them) and `.npy` files.
The others are read whole.
"""

from __future__ import annotations

__all__ = ["is_table", "read_observed", "read_simulations"]

import csv
import fnmatch
import functools
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from equipoise.support.checks import file_path, whole_number
from equipoise.support.errors import warn
from equipoise.support.hdf5 import GZIP_RATIO, dataset, open_hdf5
from equipoise.support.words import listed, shown

from .blocks import CorruptBlockError, invalid_rows, load_x
from .simulations import Column, Segment, Simulations, check_on_invalid, without_invalid
from .store import Store

#: Names under which the two arrays are found in the wild, the usual one first.
THETA_NAMES = ("theta", "thetas", "parameters", "params")
X_NAMES = ("x", "xs", "observations", "data", "obs", "simulations", "outputs")
#: About how many bytes of a file are read at once.
PIECE_BYTES = 1 << 25
#: The most columns of a table: pandas takes seconds for these.
MOST_COLUMNS = 20_000
#: Columns that are numbered and give no names.
_NUMBERED = re.compile(r"theta(_\d+)?")


class _Pairs(NamedTuple):
    """θ and x of a file, and the names of the parameters, where it knows them."""

    theta: np.ndarray
    x: Column
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _Asked:
    """Where in a file to find θ and x, as in `read_simulations`."""

    x_path: str | Path | None = None
    theta_key: str | None = None
    x_key: str | None = None
    theta_columns: Sequence[str] | None = None
    x_columns: Sequence[str] | None = None


def read_simulations(
    path: str | Path,
    x_path: str | Path | None = None,
    *,
    theta_key: str | None = None,
    x_key: str | None = None,
    theta_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    x_shape: Sequence[int] | None = None,
    n: int | None = None,
    on_invalid: str = "drop",
) -> Simulations:
    """Read pairs (θ, x) from disk.

    - a directory: a store made by `simulate`; or HDF5 files, taken in the order of their names; or `theta.npy` and
      `x.npy`;
    - `.h5`, `.hdf5`: the keys `theta` and `x`, as lampe writes them; an attribute `names` of θ names the parameters;
    - `.npz`: the keys `theta` and `x`;
    - `.npy`: two files, `read_simulations("theta.npy", "x.npy")`;
    - `.csv`, `.parquet`: named columns (needs pandas). By default those named theta, theta_0, theta_1, … and x, x_0, ….
      Columns with other names name the parameters.

    Arguments:
        path: the file or directory.
        x_path: the file of x where θ and x lie in two `.npy` files.
        theta_key: the key of θ in an `.npz` or HDF5 file.
        x_key: the key of x.
        theta_columns: the columns of a table that are parameters, in this order; `"flux_*"` stands for all that fit.
        x_columns: the columns of a table that are data.
        x_shape: the shape of one x, to which each row is reshaped.
        n: how many rows to read; all by default.
        on_invalid: what to do with rows that have NaN or infinite values in θ or x: `"drop"`, `"raise"` or `"keep"`.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "pairs.npz"
        >>> np.savez(file, theta=np.zeros((10, 2)), x=np.ones((10, 5)))
        >>> read_simulations(file)
        Simulations(10 pairs, theta (2,), x (5,))
    """
    check_on_invalid(on_invalid)
    if n is not None:
        n = whole_number("n", n, 1)
    if x_shape is not None:
        if not isinstance(x_shape, Sequence) or isinstance(x_shape, str):
            raise TypeError(f"x_shape is the shape of one x, a tuple of whole numbers, got {shown(x_shape)}")
        x_shape = tuple(whole_number("x_shape", size) for size in x_shape)
    path, asked = file_path("path", path), _Asked(x_path, theta_key, x_key, theta_columns, x_columns)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or directory {path}")
    suffix, is_store = path.suffix.lower(), (path / "manifest.json").exists()
    read = _directory if path.is_dir() else FORMATS.get(suffix)
    if read is None:
        raise ValueError(f"cannot tell what {path} is from its name; known are directories, {', '.join(FORMATS)}")
    if (theta_key, x_key) != (None, None) and (is_store or read in (_npy, _table)):
        raise ValueError(f"theta_key and x_key are for .npz and HDF5 files; {path} has no keys")
    if is_store and x_shape is not None:
        raise ValueError(f"x_shape is for files; the store {path} knows the shape of its x")
    if is_store:
        return Store(path).read(n, on_invalid=on_invalid)
    if x_path is not None and read is not _npy:
        raise ValueError(f"x_path is for pairs of .npy files; {path} holds both theta and x")
    theta, x, names = read(path, asked)
    theta = _numbers(theta, "theta", path)
    theta = theta[:, None] if theta.ndim == 1 else theta
    if theta.ndim != 2:
        raise ValueError(f"theta in {path} has shape {theta.shape}; it should be (rows, parameters)")
    if len(theta) != len(x):
        raise ValueError(f"theta in {path} has {len(theta)} rows and x has {len(x)}; they must come in pairs")
    if not len(theta):
        raise ValueError(f"{path} has no rows")
    if n is not None and n > len(theta):
        raise ValueError(f"{path} has {len(theta)} rows, {n} were asked for")
    theta, x = theta[:n], _reshaped(x, path, x_shape)
    invalid = [invalid_rows(theta)]
    start = 0
    for piece in x.pieces(np.arange(len(theta))):
        invalid.append(start + invalid_rows(piece))
        start += len(piece)
    pairs = without_invalid(theta, x, np.unique(np.concatenate(invalid)), on_invalid, what=f"rows of {path}")
    pairs.names = names
    return pairs


@contextmanager
def _damage_named(path: Path, what: str) -> Iterator[None]:
    """Errors of the libraries that read a file, as a ValueError that names it; damaged files make them raise all sorts.

    Arguments:
        path: the file.
        what: what it should be, with its article.
    """
    try:
        yield
    except (FileNotFoundError, MemoryError, ImportError, CorruptBlockError):
        raise
    except Exception as error:
        if str(path) in str(error) and type(error) is ValueError:  # it is named already
            raise
        why = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ValueError(f"{path} cannot be read as {what}, or is damaged ({why})") from error


def is_table(path: str | Path) -> bool:
    """Whether a file is a table, whose x is a row of numbers whatever its shape was."""
    return FORMATS.get(Path(path).suffix.lower()) is _table


def _reshaped(x: Column, path: Path, x_shape: Sequence[int] | None) -> Column:
    """Each row of x in the shape that was asked for, as float32; scalars become vectors of one."""
    shape = tuple(x_shape) if x_shape is not None else x.shape or (1,)
    if math.prod(x.shape) != math.prod(shape) or min(shape, default=1) < 0:
        raise ValueError(f"each x in {path} has shape {x.shape}, and cannot be reshaped to {shape}")
    return Column([Segment(s.rows, functools.partial(_load, s, shape, path)) for s in x.segments], shape)


def _load(segment: Segment, shape: tuple[int, ...], path: Path) -> np.ndarray:
    with _damage_named(path, "pairs"):
        return _numbers(segment.load(), "x", path).reshape(segment.rows, *shape)


def _numbers(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """float32, as a view where it is already; values beyond float32 become infinite and count as invalid."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} in {path} has dtype {array.dtype}; it should be numbers")
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def _directory(path: Path, asked: _Asked) -> _Pairs:
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in (".h5", ".hdf5") and not p.name.startswith("."))
    if files:
        return _hdf5_files(files, asked)
    if (path / "theta.npy").exists() and (path / "x.npy").exists():
        return _npy(path / "theta.npy", _Asked(x_path=path / "x.npy"))
    there = listed(sorted(p.name for p in path.iterdir()), most=8) or "nothing"
    raise ValueError(f"{path} has neither manifest.json, nor HDF5 files, nor theta.npy and x.npy; there is {there}")


def _hdf5_files(paths: list[Path], asked: _Asked) -> _Pairs:
    files = [_hdf5(path, asked) for path in paths]
    (first_theta, first_x, names), first = files[0], paths[0]
    for path, (theta, x, _) in zip(paths, files, strict=True):
        if len(theta) != len(x):
            raise ValueError(f"theta in {path} has {len(theta)} rows and x has {len(x)}; they must come in pairs")
        if x.shape != first_x.shape or theta.shape[1:] != first_theta.shape[1:]:
            raise ValueError(
                f"{path} has theta and x of shapes {theta.shape[1:]} and {x.shape} per row, but {first} has "
                f"{first_theta.shape[1:]} and {first_x.shape}"
            )
    segments = [segment for file in files for segment in file.x.segments]
    return _Pairs(np.concatenate([file.theta for file in files]), Column(segments, first_x.shape), names)


def _hdf5(path: Path, asked: _Asked) -> _Pairs:
    keys: list[str] = []
    with _damage_named(path, "an HDF5 file"), open_hdf5(path) as file:
        file.visititems(lambda key, item: keys.append(key) if isinstance(item, h5py.Dataset) else None)
        theta_key, x_key = _keys(path, keys, asked)
        theta, data = np.atleast_1d(dataset(file, theta_key)[()]), dataset(file, x_key)
        x = _column(data, path, lambda start, stop: functools.partial(load_x, path, x_key, start, stop))
        names = tuple(map(str, np.atleast_1d(file[theta_key].attrs.get("names", ()))))
        distinct = theta.ndim == 2 and len(set(filter(str.strip, names))) == len(names) == theta.shape[1]
        return _Pairs(theta, x, names if distinct else None)


def _npz(path: Path, asked: _Asked) -> _Pairs:
    with _damage_named(path, "an .npz file"), zipfile.ZipFile(path) as file:
        names = [name.removesuffix(".npy") for name in file.namelist()]
        theta, x = (_member(file, name, path) for name in _keys(path, names, asked))
    return _Pairs(theta, _array_column(x, path))


def _member(file: zipfile.ZipFile, key: str, path: Path) -> np.ndarray:
    """One array of an .npz file, unless its header claims more numbers than there are."""
    info, npy = file.getinfo(f"{key}.npy"), np.lib.format
    with file.open(info) as member:
        header = npy.read_array_header_1_0 if npy.read_magic(member) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(member)
    if dtype.hasobject:
        raise ValueError(f"{key!r} in {path} holds Python objects, not an array of numbers")
    if math.prod(shape) * dtype.itemsize > info.file_size or info.file_size > GZIP_RATIO * max(info.compress_size, 1):
        raise ValueError(f"{key!r} in {path} has the shape {shape}, more than the file can hold")
    with file.open(info) as member:
        return npy.read_array(member, allow_pickle=False)


def _npy(path: Path, asked: _Asked) -> _Pairs:
    if asked.x_path is None:
        raise ValueError(
            f"{path} holds one array; give the file of x too: read_simulations('theta.npy', 'x.npy'), "
            "in the shell --x x.npy"
        )
    arrays = []
    for file in (path, Path(asked.x_path)):
        with _damage_named(file, "an array of numbers"):
            arrays.append(np.load(file, mmap_mode="r", allow_pickle=False))
    return _Pairs(np.array(arrays[0]), _array_column(arrays[1], Path(asked.x_path)))


def _array_column(array: np.ndarray, path: Path) -> Column:
    return _column(array, path, lambda start, stop: functools.partial(np.asanyarray, array[start:stop]))


def _column(data: Any, path: Path, load: Callable[[int, int], Callable[[], np.ndarray]]) -> Column:
    """The rows of an array or dataset, in pieces; `load(start, stop)` gives what loads one of them."""
    if data.ndim == 0:
        raise ValueError(f"x in {path} is a single number; it should have one row per simulation")
    step = max(1, PIECE_BYTES * len(data) // max(1, data.nbytes))
    ends = [(start, min(start + step, len(data))) for start in range(0, len(data), step)]
    return Column([Segment(stop - start, load(start, stop)) for start, stop in ends], data.shape[1:])


def _table(path: Path, asked: _Asked) -> _Pairs:
    frame = _frame(path)
    theta_columns = _columns(path, frame, asked.theta_columns, "theta")
    x_columns = _columns(path, frame, asked.x_columns, "x")
    if both := set(theta_columns) & set(x_columns):
        raise ValueError(f"{', '.join(sorted(both))} of {path} cannot be both parameters and data")
    theta, x = (_numeric(path, frame, columns) for columns in (theta_columns, x_columns))
    numbered = all(_NUMBERED.fullmatch(name) for name in theta_columns) or len(set(theta_columns)) < len(theta_columns)
    return _Pairs(theta, _array_column(x, path), None if numbered else tuple(theta_columns))


#: How a file is read, by its suffix.
FORMATS: dict[str, Callable[[Path, _Asked], _Pairs]] = {
    **dict.fromkeys((".h5", ".hdf5", ".hdf", ".he5"), _hdf5),
    ".npz": _npz,
    ".npy": _npy,
    **dict.fromkeys((".csv", ".parquet", ".pq"), _table),
}


def read_array(path: Path, key: str | None) -> np.ndarray:
    """The array under a key of an `.npz` or HDF5 file, or that of an `.npy` file; by default `x`, or the only one."""
    suffix = path.suffix.lower()
    with _damage_named(path, "an array of numbers"):
        if suffix == ".npy":
            return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
        with zipfile.ZipFile(path) if suffix == ".npz" else open_hdf5(path) as file:
            keys = [n.removesuffix(".npy") for n in (file.namelist() if isinstance(file, zipfile.ZipFile) else file)]
            chosen = key or next((k for k in ("x", "x_o", "x_obs") if k in keys), keys[0] if len(keys) == 1 else None)
            if chosen not in keys:
                raise ValueError(f"{path} has no key {chosen or 'x'!r}; choose one of {', '.join(keys)} with --x-key")
            zipped = isinstance(file, zipfile.ZipFile)
            return _member(file, chosen, path) if zipped else np.asarray(dataset(file, chosen)[()])


def read_observed(path: Path, x_columns: Sequence[str] | None, width: int) -> np.ndarray:
    """Rows of x in a table, which may have no other columns; with shape `(N, width)` if that is how many there are."""
    frame = _frame(path)
    if x_columns is None and len(frame.columns) == width:
        x_columns = list(frame.columns)
    return _numeric(path, frame, _columns(path, frame, x_columns, "x"))


def _frame(path: Path) -> Any:
    """A table, its columns named by strings."""
    try:
        with _damage_named(path, "a table"):
            frame = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
    except ImportError as error:
        raise ImportError(f"reading {path.name} needs pandas: pip install 'equipoise[tables]'") from error
    if not len(frame):
        raise ValueError(f"{path} has no rows")
    frame.columns = [str(c) for c in frame.columns]
    return frame


def _read_csv(path: Path) -> Any:
    """A CSV file; ValueError where its rows are not as long as its head, which pandas reads as something else."""
    import pandas

    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        head = next((row for row in rows if row), None)
        if head is None:
            raise ValueError(f"{path} is empty")
        _check_columns(path, head)
        for row in rows:
            if row and len(row) != len(head):
                raise ValueError(
                    f"line {rows.line_num} of {path} has {len(row)} values, and its head names {len(head)} columns"
                )
    return pandas.read_csv(path, index_col=False)


def _read_parquet(path: Path) -> Any:
    import pandas
    from pyarrow import parquet

    _check_columns(path, parquet.read_schema(path).names)
    return pandas.read_parquet(path)


def _check_columns(path: Path, names: Sequence[str]) -> None:
    """Refuse more columns than pandas reads in seconds, and names that stand for several."""
    if len(names) > MOST_COLUMNS:
        raise ValueError(f"{path} has {len(names):,} columns, and {MOST_COLUMNS:,} are the most; use .npz or HDF5")
    if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
        raise ValueError(f"{path} has several columns called {_quoted(twice)}; give each a name of its own")


def _numeric(path: Path, frame: Any, columns: Sequence[str]) -> np.ndarray:
    for name in columns:
        if frame[name].dtype.kind not in "fiub":
            example = next(iter(frame[name].dropna()), None)
            raise ValueError(f"column {name!r} of {path} is not numbers (it has {example!r})")
    return np.asarray(frame[list(columns)].to_numpy(np.float64))


def _columns(path: Path, frame: Any, wanted: Sequence[str] | None, what: str) -> list[str]:
    names = list(frame.columns)
    if wanted is None:
        found = [c for c in names if c == what or c.startswith(f"{what}_")]
        if not found:
            raise ValueError(
                f"no column of {path} is called {what} or {what}_…; there are {_quoted(names)}. Say which with "
                f"{what}_columns=[…], in the shell --{what}-key 'a,b', or name them {what}_0, {what}_1, … in the file."
            )
        return found
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(wanted, Iterable) or not all(isinstance(w, str) for w in wanted):
        raise TypeError(f"{what}_columns is a list of names of columns, got {shown(wanted)}")
    known = frozenset(names)
    wanted = [n for w in wanted for n in ([w] if w in known else fnmatch.filter(names, w) or [w])]
    missing = [c for c in wanted if c not in known]
    if missing or not wanted:
        raise ValueError(f"{path} has no column {_quoted(missing)}; there are {_quoted(names)}")
    return wanted


def _keys(path: Path, keys: list[str], asked: _Asked) -> tuple[str, str]:
    """The names of θ and x in a file. Unusual names are accepted if there is one candidate; a warning says which."""
    return _key(path, keys, asked.theta_key, "theta", THETA_NAMES), _key(path, keys, asked.x_key, "x", X_NAMES)


def _key(path: Path, keys: list[str], asked: str | None, what: str, names: Sequence[str]) -> str:
    if asked is not None and asked not in keys:
        raise ValueError(f"{path} has no key {asked!r}; there are {_quoted(keys)}")
    if asked is not None or what in keys:
        return asked or what
    candidates = [k for k in keys if k.lower() in names]
    if len(candidates) != 1:
        raise ValueError(
            f"{path} has no key {what!r}; there are {_quoted(keys)}. Say which it is with {what}_key='…', in the "
            f"shell --{what}-key."
        )
    (found,) = candidates
    option = f"{what}_key={found!r} to say so, in the shell --{what}-key {found}"
    warn(f"reading {found!r} of {path} as {what}; pass {option}")
    return found


def _quoted(names: Iterable[str]) -> str:
    return listed(map(repr, names), most=12)
