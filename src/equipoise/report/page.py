"""One page that explains itself: report.html, with everything it needs inside."""

from __future__ import annotations

__all__ = ["write_report"]

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from equipoise.plots.labels import labels_of
from equipoise.plots.panels import coverage_over_runs
from equipoise.plots.settings import (
    CERTIFIED,
    INCONCLUSIVE,
    MISSING,
    OVERCONFIDENT,
    PARTLY,
    Range,
    Setting,
    settings_of,
    short_verdict,
    signed,
)
from equipoise.plots.style import VERDICTS, budget_looks, method_looks
from equipoise.support.files import write_text
from equipoise.support.words import FEW_PAIRS, STAYS, duration, roughly

from .opening import open_results
from .page_figures import MOST_POINTS, draw_all
from .sentences import headline

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
    ds, out = open_results(results), Path(out_html)
    write_text(out, _render(ds, progress))
    return out


def _render(ds: xr.Dataset, progress: bool | None) -> str:
    labels, settings = labels_of(ds), settings_of(ds)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for show in (signed, range_text, p_value, moment, roughly, unbroken, spelled, alone, short_verdict):
        environment.filters[show.__name__] = show
    environment.filters |= {name: lambda state, n=name: getattr(VERDICTS[state], n) for name in ("symbol", "css")}
    coverage_at = _coverage_at(ds, settings)
    return environment.get_template("report.html.j2").render(
        ds=ds,
        labels=labels,
        runs=ds.sizes["run"],
        members=int(ds.sizes.get("member", 1)),
        networks=_networks(ds),
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
        coverage_at=coverage_at,
        PARTLY=PARTLY,
        MISSING=MISSING,
        information=any(s.information.known for s in settings),
        mixtures=_mixtures(ds, settings),
        drawn=draw_all(ds, {(s.task, s.method, s.budget): _tooltip(s, at) for s, at in coverage_at.items()}, progress),
        config=_config(ds),
        versions=_versions(ds),
        notes=[line for line in str(ds.attrs.get("notes", "")).splitlines() if line.strip()],
        alpha=float(ds.attrs.get("alpha", 0.05)),
        delta=float(ds.attrs.get("delta", 0.02)),
    )


def _networks(ds: xr.Dataset) -> str:
    """How many networks a run is a mixture of: one number, or the least and the most where methods differ."""
    most = int(ds.sizes.get("member", 1))
    if "member_verdict" not in ds:
        return str(most)
    there = (ds["member_verdict"].values != "").any((0, 2, 3)).sum(-1)  # of each method
    least = int(there[there > 0].min(initial=most))
    return str(most) if least == most else f"{least} to {most}"


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


def _tooltip(s: Setting, coverage: list[Range]) -> str:
    """What pointing at a curve tells: its verdict, and its coverage at some levels."""
    pairs = zip(LEVELS, coverage, strict=True)
    return f"{short_verdict(s)}, coverage\n" + "\n".join(f"{c.median:.3f} at {level:g}" for level, c in pairs)


def _mixtures(ds: xr.Dataset, settings: list[Setting]) -> list[dict[str, Any]]:
    """Single networks beside their mixture, one row per setting; none where a run is one network."""
    if ds.sizes.get("member", 1) < 2 or "member_coverage_auc" not in ds:
        return []
    ds, rows = ds[[n for n in ds.data_vars if str(n).startswith("member_")]], []
    for s in settings:
        at = ds.sel({"task": s.task, "method": s.method, "budget": s.budget})
        auc, nominal = (
            Range.of(at[name].values) if name in at else Range()
            for name in ("member_coverage_auc", "member_nominal_log_prob")
        )
        words = [w for w in at["member_verdict"].values.ravel() if w] if "member_verdict" in at else []
        if s.state != MISSING and auc.known:
            over = words.count("overconfident")
            rows.append({"setting": s, "auc": auc, "nominal": nominal, "overconfident": over, "networks": len(words)})
    return rows


def _config(ds: xr.Dataset) -> str:
    """The configuration, one line per key."""
    text = str(ds.attrs.get("config", ""))
    try:
        config = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return text
    lines = (f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in config.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _versions(ds: xr.Dataset) -> list[tuple[str, str]]:
    names: dict[str, tuple[str, Callable[[Any], str]]] = {
        "equipoise": ("Equipoise", str),
        "torch": ("PyTorch", str),
        "numerics": ("Version of the numerics", str),
        "protocol": ("Protocol", str),
        "hardware": ("Hardware", str),
        "created": ("Created", moment),
        "wall_seconds": ("Time of the whole run", duration),
    }
    found = [(label, show(ds.attrs[n])) for n, (label, show) in names.items() if ds.attrs.get(n, "") != ""]
    # Cells that share a training each carry all of it: where there is a ledger, that is what adds up.
    name = "ledger_train_seconds" if "ledger_train_seconds" in ds else "train_seconds"
    if name in ds:
        found.append(("Training, all of it together", duration(float(np.nansum(ds[name].values)))))
    return found


def range_text(
    values: Range, digits: int = 3, plus: bool = True, error: float = np.nan, show: Callable[[float], str] | None = None
) -> Markup:
    """Median, with its standard error if given, and below it in brackets the range where runs differ.

    Example:
        >>> print(range_text(Range(-0.1, -0.12, -0.09)), range_text(Range(0.5, 0.5, 0.5), 2, False))
        −0.100<small>[−0.120, −0.090]</small> 0.50
    """
    show = show or (lambda v: signed(v, digits) if plus else signed(v, digits).removeprefix("+"))
    if not values.known:
        return Markup("–")
    low, middle, high = (show(v) for v in (values.low, values.median, values.high))
    middle += f" ± {error:.{digits}f}" if np.isfinite(error) else ""
    return Markup(middle if low == high else f"{middle}<small>[{low}, {high}]</small>")


def p_value(values: Range) -> Markup:
    """
    Example:
        >>> print(p_value(Range(0.2, 0.0004, 0.5)), p_value(Range(0.2, 0.2, 0.2)))
        0.200<small>[&lt; 0.001, 0.500]</small> 0.200
    """
    return range_text(values, show=lambda p: "&lt; 0.001" if p < 0.001 else f"{p:.3f}")


def unbroken(text: str) -> Markup:
    """Text in which names with a hyphen stay on one line.

    Example:
        >>> print(unbroken("NRE-C is < 1"))
        <span class="name">NRE-C</span> is &lt; 1
    """
    return Markup(re.sub(r"\w+-\w+", r'<span class="name">\g<0></span>', str(escape(text))))


def moment(text: str) -> str:
    """
    Example:
        >>> moment("2025-01-31T12:00:00+00:00"), moment("yesterday")
        ('31 January 2025, 12:00 UTC', 'yesterday')
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def spelled(s: Setting) -> str:
    """The verdicts of a setting in words."""
    counts = {OVERCONFIDENT: s.overconfident, CERTIFIED: s.certified, INCONCLUSIVE: s.inconclusive}
    some = {word: n for word, n in counts.items() if n}
    if len(some) < 2:
        return next(iter(some), "not computed")
    return ", ".join(f"{n} {word.removesuffix(' conservative')}" for word, n in some.items())


def alone(s: Setting) -> str:
    """What Holm's correction took back: verdicts that hold for a run alone, but not for all runs together."""
    lost = {"overconfident": s.overconfident_alone - s.overconfident, "certified": s.certified_alone - s.certified}
    some = [f"{n} more {word}" for word, n in lost.items() if n > 0]
    return ", ".join(some) + " before Holm" if some else ""
