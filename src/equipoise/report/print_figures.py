"""Every figure that results allow, as files sized for print."""

from __future__ import annotations

__all__ = ["FIGURES", "figures", "write_figures"]

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import xarray as xr
from matplotlib.figure import Figure

from equipoise import plots
from equipoise.plots.gallery import gallery_tasks
from equipoise.plots.grids import verdict_layout
from equipoise.plots.labels import labels_of
from equipoise.plots.panels import any_number
from equipoise.plots.style import PRINT
from equipoise.support.files import write_whole
from equipoise.support.progress import Progress

from .opening import open_results

#: By file name: what draws it, and the variable that it needs.
FIGURES: dict[str, tuple[Callable[..., Any], str]] = {
    "coverage": (plots.coverage_grid, "coverage"),
    "plane": (plots.planes, "nominal_log_prob"),
    "nominal_log_prob": (plots.nominal_log_prob, "nominal_log_prob"),
    "balancing_error": (plots.balancing_error, "balancing_error"),
    "members": (plots.members, "member_coverage_auc"),
    "training": (plots.training, "validation_loss"),
}


def write_figures(results: xr.Dataset | str | Path, out_dir: str | Path, progress: bool | None = None) -> list[Path]:
    """Draw every figure that the results allow.

    Arguments:
        results: a directory with results.nc, that file, or the dataset.
        out_dir: where to; made if it does not exist.
        progress: False for no progress bar.

    Returns:
        The files written: for each figure a PNG (300 dots per inch) and a PDF.
    """
    ds, out, written = open_results(results), Path(out_dir), []
    total = ds.sizes["task"] + len(FIGURES) + len(gallery_tasks(ds))
    with mpl.rc_context(PRINT), Progress("drawing figures", total, progress, at_most=True) as bar:
        for name, figure in figures(ds):
            for suffix, options in (("png", {"dpi": 300}), ("pdf", {"metadata": {"CreationDate": None}})):
                written.append(out / f"{name}.{suffix}")
                with write_whole(written[-1]) as temporary:
                    figure.savefig(temporary, **options)
            bar.advance(1, name)
    return written


def figures(ds: xr.Dataset) -> Iterator[tuple[str, Figure]]:
    """Name and figure, one after the other, of all that the results hold enough for."""

    def drawn(draw: Callable[..., Any], *args: Any) -> Figure:
        figure = Figure()
        draw(*args, figure=figure)
        return figure

    names = labels_of(ds)
    tasks = list(names.tasks)
    _, _, beside, below = verdict_layout(names)
    pages = [tasks[first : first + beside * below] for first in range(0, len(tasks), beside * below)]
    for i, page in enumerate(pages):
        name = "verdicts" if len(pages) == 1 else f"verdicts_{i + 1}"
        yield name, drawn(plots.verdict_table, ds.sel(task=page))
    for name, (draw, variable) in FIGURES.items():
        if any_number(ds, variable) and (name != "members" or ds.sizes.get("member", 1) > 1):
            yield name, drawn(draw, ds)
    for task in gallery_tasks(ds):
        # A name such as lotka_volterra[steps=1001] as part of a file name.
        yield "gallery_" + re.sub(r"\W+", "_", task).strip("_"), drawn(plots.posterior_gallery, ds, task)
