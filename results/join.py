"""Adds cells to a results file: those of further runs of its grid, whose folders need not be kept.

    python results/join.py results/rolls.nc runs/more/results.nc …

Cells, pictures and values of tasks that the first file has stay as they are. Verdicts with Holm's correction are
computed again over all cells. Everything but the axes of the grids has to agree.
"""

from __future__ import annotations

__all__ = ["joined", "main"]

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from equipoise.diagnostics import judge_cells
from equipoise.experiments.cells import cells_of
from equipoise.experiments.grids import load_grid
from equipoise.experiments.results import AXES, joined_grid, read_results, save_results


def joined(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    """All cells of the first results, and those of the second that the first lack."""
    each = [first.attrs, second.attrs]
    if differ := [k for k, values in _identities(each).items() if len(set(values)) > 1]:
        raise ValueError(f"the results are of different grids: {', '.join(differ)} differ")
    config = joined_grid([json.loads(a["config"]) for a in each], ["the first results", "the second"])
    axes = {axis: list(dict.fromkeys([*first[axis].values.tolist(), *second[axis].values.tolist()])) for axis in AXES}
    axes["budget"].sort()
    ones = [_on(ds, axes) for ds in (first, second)]
    there = [ds["cell"] != "" for ds in ones]
    found: dict[Any, xr.DataArray] = {}
    for name in dict.fromkeys([*first.variables, *second.variables]):
        values = [ds[name] for ds in ones if name in ds.variables]
        if name in axes or "ledger" in values[0].dims:
            continue
        if len(values) == 1:
            found[name] = values[0]
        elif set(AXES) <= set(values[0].dims):
            found[name] = values[0].where(there[0] | ~there[1], values[1])
        else:
            found[name] = values[0].where(_known(values[0]), values[1])
    labels = [n for n in found if n in first.coords or n in second.coords]
    ds = xr.Dataset(found).set_coords(labels)
    ds = ds.merge(_ledgers(first, second, np.unique(ds["stack"].values.astype(str))), combine_attrs="override")
    holm = judge_cells(ds["verdict_p_value"].values, ds["certificate_p_value"].values)
    ds["verdict_holm"] = (AXES, np.where(ds["cell"].values == "", "", holm.astype(object)), first["verdict_holm"].attrs)
    return ds.assign_attrs(
        first.attrs
        | {
            "config": json.dumps(config),
            "created": max(a["created"] for a in each),
            "wall_seconds": float(ds["ledger_seconds"].sum()),
            "cells_done": int((ds["cell"] != "").sum()),
            "cells_wanted": len(list(cells_of(load_grid(config)))),
            **{key: ", ".join(_distinct(each, key, ", ")) for key in ("torch", "hardware", "equipoise")},
            **{key: "\n".join(_distinct(each, key, "\n")) for key in ("notes", "command")},
        }
    )


def _identities(each: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """What has to agree besides configurations. Older results do not name the tolerance, of which there was one."""
    return {
        "name": [json.loads(attrs["config"])["name"] for attrs in each],
        "numerics": [int(attrs["numerics"]) for attrs in each],
        "tolerance": [attrs.get("tolerance", "constant") for attrs in each],
    }


def _distinct(each: Sequence[dict[str, Any]], key: str, between: str) -> list[str]:
    """The parts of an attribute of several results, each once."""
    return list(dict.fromkeys(part for attrs in each for part in str(attrs[key]).split(between) if part))


def _on(ds: xr.Dataset, axes: dict[str, list[Any]]) -> xr.Dataset:
    """The results on larger axes, with NaN and empty texts where there is nothing; labels are variables."""
    ds = ds.reset_coords()
    # Texts of a fixed length would be cut to the longest that was there.
    ds = ds.assign({n: v.astype(object) for n, v in ds.variables.items() if v.dtype.kind in "UT"})
    empty = {n: "" if v.dtype.kind in "OUT" else np.nan for n, v in ds.variables.items() if n not in ds.dims}
    return ds.reindex(axes, fill_value=empty)


def _known(values: xr.DataArray) -> xr.DataArray:
    return values != "" if values.dtype.kind in "OUT" else values.notnull()


def _ledgers(first: xr.Dataset, second: xr.Dataset, used: np.ndarray) -> xr.Dataset:
    """The ledgers, one below the other; of the second, stacks that gave cells which the first lack."""
    names = [n for n in first.data_vars if first[n].dims == ("ledger",)]
    ours, theirs = (ds["ledger"].values.astype(str) for ds in (first, second))
    new = ~np.isin(theirs, ours) & np.isin(theirs, used)
    return xr.concat([first[names], second[names].isel(ledger=np.flatnonzero(new))], "ledger")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the results file, which is written again")
    parser.add_argument("more", type=Path, nargs="+", help="results, or folders of an experiment")
    options = parser.parse_args(arguments)
    ds = read_results(options.file)
    before = int(ds.attrs["cells_done"])
    for path in options.more:
        ds = joined(ds, read_results(path))
    save_results(ds, options.file)
    print(f"{options.file}: {ds.attrs['cells_done']} cells, {ds.attrs['cells_done'] - before} of them new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
