"""One page that explains itself: report.html, with everything it needs inside."""

from __future__ import annotations

__all__ = ["write_report"]

import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from equipoise.support.words import FEW_PAIRS, STAYS, roughly

from .curves import curves
from .drawings import draw_all
from .formats import alone, moment, p_value, range_text, seconds, spelled, unbroken
from .layout import axes_of
from .panels import short_verdict
from .results import MISSING, PARTLY, Range, open_results, settings_of, signed
from .style import VERDICTS, budget_looks, method_looks, theme
from .words import headline

TEMPLATES = Path(__file__).parent / "templates"


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
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_render(ds, progress), encoding="utf-8")
    return out


def _render(ds: xr.Dataset, progress: bool | None) -> str:
    labels, tasks, methods, budgets = axes_of(ds)
    settings, colours = settings_of(ds), theme(methods, budgets)
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
        symbol=lambda state: VERDICTS[state][0],
        css=lambda state: VERDICTS[state][1],
    )
    return environment.get_template("report.html.j2").render(
        title=f"Coverage report: {', '.join(map(labels.task, tasks))}",
        ds=ds,
        labels=labels,
        tasks=tasks,
        methods=methods,
        budgets=budgets,
        runs=[int(r) for r in ds["run"].values],
        members=int(ds.sizes.get("member", 1)),
        pairs=int(ds["pairs"]) if "pairs" in ds else None,
        few_pairs=FEW_PAIRS,
        stays=STAYS,
        method_looks=method_looks(methods),
        budget_looks=budget_looks(budgets),
        headline=headline(ds),
        settings=settings,
        PARTLY=PARTLY,
        MISSING=MISSING,
        information=any(s.information.known for s in settings),
        mixtures=_mixtures(ds),
        drawn=draw_all(ds, {light: name for name, light, _ in colours}, progress),
        data=Markup(json.dumps(curves(ds), separators=(",", ":")).replace("<", "\\u003c")),
        css=Markup(environment.get_template("report.css").render(colours=colours)),
        js=Markup((TEMPLATES / "report.js").read_text(encoding="utf-8")),
        config=_config(ds),
        versions=_versions(ds),
        notes=[line for line in str(ds.attrs.get("notes", "")).splitlines() if line.strip()],
        alpha=float(ds.attrs.get("alpha", 0.05)),
        delta=float(ds.attrs.get("delta", 0.02)),
    )


def _mixtures(ds: xr.Dataset) -> list[dict[str, Any]]:
    """Single networks beside their mixture, one row a setting; none where a run is one network."""
    if ds.sizes.get("member", 1) < 2 or "member_coverage_auc" not in ds:
        return []
    rows = []
    for s in settings_of(ds):
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
    """The configuration, a line for each of its keys."""
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
        found.append(("Time of the whole run", seconds(float(ds.attrs["wall_seconds"]))))
    # Cells that share a training each carry all of it: where there is a ledger, that is what adds up.
    name = "ledger_train_seconds" if "ledger_train_seconds" in ds else "train_seconds"
    if name in ds:
        spent = float(np.nansum(np.asarray(ds[name].values, float)))
        found.append(("Training, all of it together", seconds(spent)))
    return found
