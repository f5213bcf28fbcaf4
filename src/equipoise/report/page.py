"""One page that explains itself: report.html, with everything it needs inside."""

from __future__ import annotations

__all__ = ["write_report"]

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from equipoise.plots.labels import labels_of
from equipoise.plots.panels import coverage_over_runs
from equipoise.plots.settings import MISSING, PARTLY, Range, Setting, settings_of, short_verdict, signed
from equipoise.plots.style import VERDICTS, budget_looks, method_looks
from equipoise.support.files import write_text
from equipoise.support.words import FEW_PAIRS, STAYS, duration, roughly

from .formats import alone, moment, p_value, range_text, spelled, unbroken
from .opening import open_results
from .page_figures import MOST_POINTS, draw_all
from .sentences import headline

TEMPLATES = Path(__file__).parent / "templates"
#: The levels of the table of coverage.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def write_report(results: xr.Dataset | str | Path, out_html: str | Path, progress: bool | None = None) -> Path:
    """Writes the report.

    Arguments:
        results: a directory with results.nc, that file, or the dataset.
        out_html: the file to write; its directory is made if it is not there.
        progress: False for no progress bar.

    Returns:
        The path of the page.
    """
    ds = open_results(results)
    out = Path(out_html)
    write_text(out, _render(ds, progress), durable=False)
    return out


def _render(ds: xr.Dataset, progress: bool | None) -> str:
    labels, settings = labels_of(ds), settings_of(ds)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        signed=signed,
        range=range_text,
        p_value=p_value,
        moment=moment,
        roughly=roughly,
        unbroken=unbroken,
        spelled=spelled,
        alone=alone,
        short=short_verdict,
        symbol=lambda state: VERDICTS[state].symbol,
        css=lambda state: VERDICTS[state].css,
    )
    return environment.get_template("report.html.j2").render(
        title=f"Coverage report: {', '.join(labels.tasks.values())}",
        ds=ds,
        labels=labels,
        tasks=list(labels.tasks),
        methods=list(labels.methods),
        budgets=labels.budgets,
        method_items=[(name, row.label) for name, row in labels.methods.items()],
        budget_items=[(b, labels.budget(b)) for b in labels.budgets],
        runs=ds.sizes["run"],
        members=int(ds.sizes.get("member", 1)),
        pairs=int(ds["pairs"]) if "pairs" in ds else None,
        few_pairs=FEW_PAIRS,
        stays=STAYS,
        method_looks=method_looks(labels.methods),
        budget_looks=budget_looks(labels.budgets),
        headline=headline(ds),
        settings=settings,
        setting_at={(s.task, s.method, s.budget): s for s in settings},
        levels=LEVELS,
        most_points=MOST_POINTS,
        coverage_at=_coverage_at(ds, settings),
        PARTLY=PARTLY,
        MISSING=MISSING,
        information=any(s.information.known for s in settings),
        mixtures=_mixtures(ds, settings),
        drawn=draw_all(ds, progress),
        config=_config(ds),
        versions=_versions(ds),
        notes=[line for line in str(ds.attrs.get("notes", "")).splitlines() if line.strip()],
        alpha=float(ds.attrs.get("alpha", 0.05)),
        delta=float(ds.attrs.get("delta", 0.02)),
    )


def _coverage_at(ds: xr.Dataset, settings: list[Setting]) -> dict[Setting, list[Range]]:
    """The coverage at each of `LEVELS`: median and range over runs, or the band of a single run."""
    at = [int(np.abs(ds["level"].values - level).argmin()) for level in LEVELS]
    names = [n for n in ("coverage", "coverage_lower", "coverage_upper") if n in ds]
    curves = {n: ds[n].isel(level=at).values.reshape(len(settings), ds.sizes["run"], -1) for n in names}
    found = {}
    for i, s in enumerate(settings):
        low, middle, high = coverage_over_runs({n: values[i] for n, values in curves.items()})
        found[s] = [Range(*map(float, ends)) for ends in zip(middle, low, high, strict=True)]
    return found


def _mixtures(ds: xr.Dataset, settings: list[Setting]) -> list[dict[str, Any]]:
    """Single networks beside their mixture, one row per setting; none where a run is one network."""
    if ds.sizes.get("member", 1) < 2 or "member_coverage_auc" not in ds:
        return []
    ds, rows = ds[[n for n in ds.data_vars if str(n).startswith("member_")]], []
    for s in settings:
        at = ds.sel({"task": s.task, "method": s.method, "budget": s.budget})
        single = {
            name: Range.of(at[f"member_{name}"].values)
            for name in ("coverage_auc", "nominal_log_prob")
            if f"member_{name}" in at
        }
        if s.state == MISSING or not single["coverage_auc"].known:
            continue
        words = [str(w) for w in at["member_verdict"].values.ravel() if w] if "member_verdict" in at else []
        rows.append(
            {
                "setting": s,
                "auc": single["coverage_auc"],
                "nominal": single.get("nominal_log_prob", Range()),
                "overconfident": words.count("overconfident"),
                "mixture_overconfident": s.overconfident_alone,
                "networks": len(words),
            }
        )
    return rows


def _config(ds: xr.Dataset) -> str:
    """The configuration, one line per key."""
    text = str(ds.attrs.get("config", ""))
    try:
        config = json.loads(text)
    except ValueError:
        return text
    if not isinstance(config, dict):
        return text
    lines = (f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in config.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _versions(ds: xr.Dataset) -> list[tuple[str, str]]:
    names = {
        "equipoise": "Equipoise",
        "torch": "PyTorch",
        "numerics": "Version of the numerics",
        "protocol": "Protocol",
        "hardware": "Hardware",
        "created": "Created",
    }
    found = [(label, str(ds.attrs[name])) for name, label in names.items() if str(ds.attrs.get(name, ""))]
    found = [(label, moment(value) if label == "Created" else value) for label, value in found]
    if "wall_seconds" in ds.attrs:
        found.append(("Time of the whole run", duration(float(ds.attrs["wall_seconds"]))))
    # Cells that share a training each carry all of it: where there is a ledger, that is what adds up.
    name = "ledger_train_seconds" if "ledger_train_seconds" in ds else "train_seconds"
    if name in ds:
        spent = float(np.nansum(np.asarray(ds[name].values, float)))
        found.append(("Training, all of it together", duration(spent)))
    return found
