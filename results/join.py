"""Adds cells to a results file: those of further runs of its grid, whose folders need not be kept.

    python results/join.py results/rolls.nc runs/more/results.nc …

Cells, pictures and stacks that the first file has stay as they are. Verdicts with Holm's correction are computed again
over all cells. Everything but the axes of the grids has to agree.
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
from equipoise.experiments.results import AXES, read_results, save_results

#: What of a grid's configuration may differ: its axes.
AXIS_KEYS = ("tasks", "methods", "budgets", "runs")


def joined(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    """All cells of the first results, and those of the second that the first lack."""
    configs = [json.loads(ds.attrs["config"]) for ds in (first, second)]
    if differ := [
        k for k in {**configs[0], **configs[1]} if k not in AXIS_KEYS and len({str(c.get(k)) for c in configs}) > 1
    ]:
        raise ValueError(f"the results are of different grids: {', '.join(sorted(differ))} differ")
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
    ds = ds.merge(_stacks(first, second), combine_attrs="override")
    holm = judge_cells(ds["verdict_p_value"].values, ds["certificate_p_value"].values)
    ds["verdict_holm"] = (AXES, np.where(ds["cell"].values == "", "", holm.astype(object)), first["verdict_holm"].attrs)
    config = configs[0] | {k: _union(k, configs) for k in AXIS_KEYS}
    each = [first.attrs, second.attrs]
    return ds.assign_attrs(
        first.attrs
        | {
            "config": json.dumps(config),
            "created": max(a["created"] for a in each),
            "wall_seconds": sum(float(a["wall_seconds"]) for a in each),
            "cells_done": int((ds["cell"] != "").sum()),
            "cells_wanted": len(list(cells_of(load_grid(config)))),
            **{k: ", ".join(dict.fromkeys(", ".join(a[k] for a in each).split(", "))) for k in ("torch", "hardware")},
            "notes": "\n".join(dict.fromkeys(a["notes"] for a in each if a["notes"])),
        }
    )


def _on(ds: xr.Dataset, axes: dict[str, list[Any]]) -> xr.Dataset:
    """The results on larger axes, with NaN and empty texts where there is nothing; labels are variables."""
    ds = ds.reset_coords()
    # Texts of a fixed length would be cut to the longest that was there.
    ds = ds.assign({n: v.astype(object) for n, v in ds.variables.items() if v.dtype.kind in "UT"})
    empty = {n: "" if v.dtype.kind in "OUT" else np.nan for n, v in ds.variables.items() if n not in ds.dims}
    return ds.reindex(axes, fill_value=empty)


def _known(values: xr.DataArray) -> xr.DataArray:
    return values != "" if values.dtype.kind in "OUT" else values.notnull()


def _stacks(first: xr.Dataset, second: xr.Dataset) -> xr.Dataset:
    """The ledgers, one below the other."""
    names = [n for n in first.data_vars if first[n].dims == ("ledger",)]
    new = ~np.isin(second["ledger"].values.astype(str), first["ledger"].values.astype(str))
    return xr.concat([first[names], second[names].isel(ledger=np.flatnonzero(new))], "ledger")


def _union(key: str, configs: Sequence[dict[str, Any]]) -> Any:
    """An axis of both grids."""
    if key == "runs":
        return max(c[key] for c in configs)
    values = [*configs[0][key], *(v for v in configs[1][key] if v not in configs[0][key])]
    return sorted(values) if key == "budgets" else values


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
