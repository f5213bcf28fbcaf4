"""Reading `results.nc`, with errors that say what is missing."""

from __future__ import annotations

__all__ = ["open_results"]

from pathlib import Path

import numpy as np
import xarray as xr

from equipoise.plots.settings import CELL
from equipoise.support.hdf5 import read_netcdf


def open_results(results: xr.Dataset | str | Path) -> xr.Dataset:
    """The dataset itself, the file, or `results.nc` in a directory: loaded and checked, with "" for missing text.

    Example:
        >>> open_results(xr.Dataset())
        Traceback (most recent call last):
        ...
        ValueError: these are not results of a grid: the dimensions task, method, budget, run, level are missing. ...
    """
    if isinstance(results, xr.Dataset):
        ds = results.load()
    else:
        given = Path(results)
        path = given / "results.nc" if given.is_dir() else given
        if not path.exists():
            model = (given / "model.json").exists()
            what = "is a saved posterior, which `equipoise diagnose` judges" if model else "is no experiment"
            what = what if given.exists() else "does not exist"
            raise FileNotFoundError(f"{given} {what}; a report is of what `equipoise run` has written")
        ds = read_netcdf(path)
    gone = [d for d in (*CELL, "level") if d not in ds.dims]
    if gone:
        raise ValueError(
            f"these are not results of a grid: the dimensions {', '.join(gone)} are missing. "
            "Pass a directory that `equipoise run` has written, or its results.nc; for the curve of one posterior, "
            "`equipoise diagnose --figure` or eq.plots.coverage(ds)."
        )
    if "coverage" not in ds:
        raise ValueError("these results have no coverage: nothing was diagnosed")
    if not np.isfinite(ds["coverage"].values).any():
        raise ValueError("no cell of these results is finished: run the grid first")
    ds = ds.transpose(*CELL, "level", ...)
    return ds.assign({name: _text(ds[name]) for name in ds.data_vars if ds[name].dtype.kind in "OUS"})


def _text(values: xr.DataArray) -> xr.DataArray:
    plain = [v.decode() if isinstance(v, bytes) else v if isinstance(v, str) else "" for v in values.values.ravel()]
    return values.copy(data=np.array(plain, dtype=object).reshape(values.shape))
