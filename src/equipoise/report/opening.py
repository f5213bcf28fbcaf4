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
    _check(ds)
    if not np.isfinite(ds["coverage"].values).any():
        raise ValueError("no cell of these results is finished: run the grid first")
    ds = ds.transpose(*CELL, "level", ...)
    return ds.assign({name: _text(ds[name]) for name in ds.data_vars if ds[name].dtype.kind in "OUS"})


#: What is drawn and told of a cell, by its dimensions besides those of the cell; all but texts are numbers.
SHOWN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("level",): ("coverage", "coverage_lower", "coverage_upper"),
    (): (
        "coverage_auc", "coverage_auc_se", "verdict", "verdict_holm", "verdict_p_value", "certificate_p_value",
        "pairs_to_settle", "nominal_log_prob", "nominal_log_prob_se", "information_kept", "balancing_error",
        "balance_signed", "balance_signed_se", "leakage", "entropy", "epochs", "train_seconds", "diverged_members",
    ),
    ("member",): ("member_coverage_auc", "member_nominal_log_prob", "member_balancing_error", "member_verdict"),
    ("member", "level"): ("member_coverage",),
    ("epoch",): ("train_loss", "validation_loss", "balance"),
}  # fmt: skip


def _check(ds: xr.Dataset) -> None:
    """Raise ValueError where a variable that is shown is not what it is called, or the labels of an axis are none."""
    if "coverage_auc" not in ds:
        raise ValueError("these results have no coverage_auc: they are not what `equipoise run` writes")
    for dims, names in SHOWN.items():
        for name in (n for n in names if n in ds):
            kinds = "OUS" if name.endswith(("verdict", "verdict_holm")) else "fiub"
            if set(ds[name].dims) != {*CELL, *dims} or ds[name].dtype.kind not in kinds:
                raise ValueError(
                    f"{name} of these results has the dimensions {ds[name].dims} and dtype {ds[name].dtype}: they are "
                    "not what `equipoise run` writes"
                )
    for name, kinds in (("task", "OUS"), ("method", "OUS"), ("budget", "iu"), ("run", "iu"), ("level", "f")):
        if name in ds.coords and (ds[name].dtype.kind not in kinds or not ds.indexes[name].is_unique):
            raise ValueError(f"the labels of {name} in these results are of another kind, or not all different")


def _text(values: xr.DataArray) -> xr.DataArray:
    plain = [v.decode() if isinstance(v, bytes) else v if isinstance(v, str) else "" for v in values.values.ravel()]
    return values.copy(data=np.array(plain, dtype=object).reshape(values.shape))
