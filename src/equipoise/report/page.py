"""One page that explains itself: report.html, with everything it needs inside."""

from __future__ import annotations

__all__ = ["write_report"]

import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from . import figures, panels
from .results import CELL, MISSING, PARTLY, Labels, Range, Setting, open_results, settings_of, signed
from .style import PRINT, VERDICTS, budget_looks, method_looks, theme
from .svg import inline_svg
from .words import headline

#: Coverage travels to the page as integers: a share of 1,000 or 10,000 pairs is exact in these units, and 65,535 means missing.
SCALE, NONE = 60_000, 65_535
#: More points than this are thinned, so that the page stays small enough to mail.
MOST_POINTS = 400_000
#: What the losses of one panel may take, in points, when there are very many panels.
MOST_HISTORY_POINTS = 16_000


def write_report(results: xr.Dataset | str | Path, out_html: str | Path) -> Path:
    """Writes the report.

    Arguments:
        results: a directory with results.nc, that file, or the dataset.
        out_html: the file to write; its directory is made if it is not there.

    Returns:
        The path of the page.
    """
    ds = open_results(results)
    out = Path(out_html)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(_render(ds), encoding="utf-8")
    return out


def _render(ds: xr.Dataset) -> str:
    labels = Labels(str(ds.attrs.get("protocol", "")))
    tasks, methods = _words(ds["task"]), _words(ds["method"])
    budgets = [int(b) for b in ds["budget"].values]
    settings = settings_of(ds)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )  # fmt: skip
    environment.filters.update(
        signed=signed,
        range=_range,
        p_value=_p_value,
        moment=_moment,
        unbroken=_unbroken,
        count=_count,
        seconds=_seconds,
        symbol=lambda s: VERDICTS[s][0],
        css=lambda s: VERDICTS[s][1],
    )
    colours = theme(methods, budgets)
    with mpl.rc_context(PRINT):
        drawn = _drawings(ds, labels, settings, {light: name for name, light, _ in colours})
    return environment.get_template("report.html.j2").render(
        title=_title(tasks, labels),
        ds=ds,
        labels=labels,
        tasks=tasks,
        methods=methods,
        budgets=budgets,
        runs=[int(r) for r in ds["run"].values],
        members=int(ds.sizes.get("member", 1)),
        pairs=_pairs(ds),
        method_looks=method_looks(methods),
        budget_looks=budget_looks(budgets),
        headline=headline(ds),
        settings=settings,
        short_verdict=panels.short_verdict,
        PARTLY=PARTLY,
        MISSING=MISSING,
        states=[s for s in VERDICTS if s == PARTLY or s in {x.state for x in settings}],
        spelled=_spelled,
        mixtures=_mixtures(ds),
        drawn=drawn,
        data=Markup(json.dumps(_curves(ds, labels), separators=(",", ":")).replace("<", "\\u003c")),
        css=Markup(environment.get_template("report.css").render(colours=colours)),
        js=Markup((Path(__file__).parent / "templates" / "report.js").read_text(encoding="utf-8")),
        config=_config(ds),
        versions=_versions(ds),
        alpha=float(ds.attrs.get("alpha", 0.05)),
        delta=float(ds.attrs.get("delta", 0.02)),
        information=bool(any(s.information.known for s in settings)),
    )


def _curves(ds: xr.Dataset, labels: Labels) -> dict[str, Any]:
    """What the script draws: the curves and bands of every run, thinned only where the page would grow too large."""
    levels = np.asarray(ds["level"].values, float)
    cells = math.prod(ds.sizes[d] for d in CELL)
    stride = max(1, math.ceil(cells * len(levels) / MOST_POINTS))
    keep = np.unique(np.append(np.arange(0, len(levels), stride), len(levels) - 1))
    methods, budgets = _words(ds["method"]), [int(b) for b in ds["budget"].values]
    looks, shades = method_looks(methods), budget_looks(budgets)
    data: dict[str, Any] = {
        "levels": [round(float(v), 6) for v in levels[keep]],
        "scale": SCALE,
        "runs": [int(r) for r in ds["run"].values],
        "confidence": f"{1 - float(ds.attrs.get('alpha', 0.05)):.0%}",
        "tasks": [{"id": t, "label": labels.task(t)} for t in _words(ds["task"])],
        "methods": [
            {"id": m, "label": labels.method(m), "colour": f"var(--{looks[m].variable})", "dash": looks[m].svg_dash}
            for m in methods
        ],
        "budgets": [
            {"id": b, "label": labels.budget(b), "colour": f"var(--{shades[b].variable})", "dash": "none"}
            for b in budgets
        ],
    }
    data["coverage"] = _packed(_whole(ds["coverage"].values[..., keep]))
    if "coverage_lower" in ds and "coverage_upper" in ds:
        data |= _bands(*(_whole(ds[n].values[..., keep]) for n in ("coverage", "coverage_lower", "coverage_upper")))
    if "calibration_lower" in ds:
        ends = {"low": "calibration_lower", "high": "calibration_upper"}
        data["calibration"] = {end: [round(float(v), 4) for v in ds[name].values[keep]] for end, name in ends.items()}
    return data


def _whole(values: Any) -> Any:
    """Shares as integers, in units of 1 / SCALE."""
    return np.where(np.isfinite(values), np.rint(np.clip(np.nan_to_num(values), 0, 1) * SCALE), NONE).astype("<u2")


def _packed(values: Any) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _bands(middle: Any, low: Any, high: Any) -> dict[str, Any]:
    """The ends of the bands. Where they follow from the coverage alone, as they do for one number of pairs, a table of it
    is a fortieth of the size of all curves."""
    at, first, place = np.unique(middle, return_index=True, return_inverse=True)
    of_low, of_high = low.ravel()[first], high.ravel()[first]
    place = place.reshape(middle.shape)
    if (of_low[place] == low).all() and (of_high[place] == high).all():
        return {"band": {"at": _packed(at), "lower": _packed(of_low), "upper": _packed(of_high)}}
    return {"lower": _packed(low), "upper": _packed(high)}


def _drawings(
    ds: xr.Dataset, labels: Labels, settings: Sequence[Setting], colours: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """The static figures, one SVG a panel so that the page can arrange them; by section."""
    looks = method_looks(_words(ds["method"]))
    tasks = _words(ds["task"])
    colours = {**colours, "#12588d": "density"}

    def one(
        section: str, name: str, title: str, alt: str, size: tuple[float, float], draw: Callable[[Any], Any]
    ) -> dict[str, Any]:
        figure = Figure(figsize=size)
        draw(figure.subplots())
        return {"title": title, "svg": Markup(inline_svg(figure, f"{section}-{name}", alt, colours))}

    drawn: dict[str, list[dict[str, Any]]] = {
        k: [] for k in ("plane", "nominal", "balance", "members", "training", "gallery")
    }
    small = (3.3, 2.5)
    for task in tasks:
        name, mine = labels.task(task), [s for s in settings if s.task == task]
        if any(s.nominal.known for s in mine):
            known = any(s.information.known for s in mine)
            height = "information kept" if known else "nominal log posterior"

            def plane(ax: Any, mine: Any = mine, known: bool = known, height: str = height) -> None:
                panels.plane_panel(ax, mine, looks, known)
                ax.set(xlabel="Coverage AUC", ylabel=height.capitalize())

            drawn["plane"].append(one("plane", task, name, f"{name}: coverage AUC against {height}, a point for each method and budget. The numbers are in the table of all verdicts.", small, plane))  # fmt: skip
            drawn["nominal"].append(one("nominal", task, name, f"{name}: nominal log posterior against the simulation budget. The numbers are in the table of all verdicts.", small, _budget_plot(ds, task, "nominal_log_prob", "Nominal log posterior")))  # fmt: skip
        if any(s.balancing_error.known for s in mine):
            drawn["balance"].append(one("balance", task, name, f"{name}: balancing error against the simulation budget. The numbers are in the table of all verdicts.", small, _budget_plot(ds, task, "balancing_error", "Balancing error")))  # fmt: skip
        if _mixtures(ds):

            def several(ax: Any, task: str = task) -> None:
                panels.members_panel(ax, ds, task, looks)
                ax.set(xlabel="Coverage AUC", ylabel="Nominal log posterior")

            drawn["members"].append(one("members", task, name, f"{name}: arrows from single networks to their mixture in the plane of coverage AUC and nominal log posterior. The numbers are in the table below.", small, several))  # fmt: skip
    drawn["training"] = _histories(ds, labels, one)
    for task in figures.gallery_tasks(ds):
        figure = figures.gallery(ds, task)
        alt = f"{labels.task(task)}: density of the posterior of one observation for each method and budget, with the true parameter as a star"
        drawn["gallery"].append(
            {"title": labels.task(task), "svg": Markup(inline_svg(figure, f"gallery-{task}", alt, colours))}
        )
    return drawn


def _budget_plot(ds: xr.Dataset, task: str, name: str, label: str) -> Callable[[Any], None]:
    def draw(ax: Any) -> None:
        figures.budget_panel(ax, ds, task, name)
        ax.set(xlabel="Simulation budget", ylabel=label)

    return draw


def _histories(ds: xr.Dataset, labels: Labels, one: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Losses, one group a task."""
    if "validation_loss" not in ds:
        return []
    panels_there = ds.sizes["task"] * ds.sizes["method"]
    points = int(np.clip(MOST_HISTORY_POINTS // (panels_there * ds.sizes["budget"] * 2), 15, 100))
    groups = []
    for task in _words(ds["task"]):
        group = []
        for method in _words(ds["method"]):
            cell = ds["validation_loss"].sel({"task": task, "method": method}).values
            if not np.isfinite(cell).any():
                continue

            def draw(ax: Any, task: str = task, method: str = method) -> None:
                panels.history_panel(ax, ds, task, method, points)
                ax.locator_params(nbins=4)
                ax.set(xlabel="Epoch", ylabel="Loss")

            name = labels.method(method)
            alt = f"{name} on {labels.task(task)}: training and validation loss against the epoch, a colour for each budget"
            group.append(one("training", f"{task}-{method}", name, alt, (2.2, 1.6), draw))
        if group:
            groups.append({"title": labels.task(task), "panels": group})
    return groups


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
                "mixture_overconfident": s.before_holm,
                "networks": len(words),
            }
        )
    return rows


def _spelled(s: Setting) -> str:
    """The verdicts of a setting in words."""
    if s.state == MISSING:
        return "not computed"
    counts = [
        ("overconfident", s.overconfident),
        ("certified conservative", s.certified),
        ("inconclusive", s.inconclusive),
    ]
    some = [(word, n) for word, n in counts if n]
    if len(some) == 1:
        return some[0][0]
    return ", ".join(f"{n} {word}" for word, n in some)


def _title(tasks: Sequence[str], labels: Labels) -> str:
    return f"Coverage report: {', '.join(map(labels.task, tasks))}"


def _pairs(ds: xr.Dataset) -> int | None:
    found = ds["pairs"].values if "pairs" in ds else ds.attrs.get("pairs")
    return None if found is None else int(found)


def _config(ds: xr.Dataset) -> str:
    text = str(ds.attrs.get("config", ""))
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _versions(ds: xr.Dataset) -> list[tuple[str, str]]:
    names = {
        "equipoise": "Equipoise",
        "equipoise_version": "Equipoise",
        "torch": "PyTorch",
        "torch_version": "PyTorch",
        "numerics": "Version of the numerics",
        "numerics_version": "Version of the numerics",
        "protocol": "Protocol",
        "hardware": "Hardware",
        "created": "Created",
    }
    found = [(label, _moment(str(ds.attrs[name]))) for name, label in names.items() if str(ds.attrs.get(name, ""))]
    if "wall_seconds" in ds.attrs:
        found.append(("Time of the whole run", _seconds(float(ds.attrs["wall_seconds"]))))
    if "train_seconds" in ds:
        spent = float(np.nansum(np.asarray(ds["train_seconds"].values, float)))
        found.append(("Training, all cells together", _seconds(spent)))
    return found


def _range(values: Range, digits: int = 3, plus: bool = True, error: float = np.nan) -> Markup:
    """Median, with its standard error if given, and below it in brackets the range where runs differ.

    Example:
        >>> print(_range(Range(-0.1, -0.12, -0.09)), _range(Range(0.5, 0.5, 0.5), 2, False))
        −0.100<small>[−0.120, −0.090]</small> 0.50
    """

    def show(v: float) -> str:
        return signed(v, digits) if plus else signed(v, digits).removeprefix("+")

    if not values.known:
        return Markup("–")
    middle = show(values.median) + (f" ± {error:.{digits}f}" if np.isfinite(error) else "")
    if values.low == values.high:
        return Markup(middle)
    return Markup(f"{middle}<small>[{show(values.low)}, {show(values.high)}]</small>")


def _p_value(values: Range) -> Markup:
    """
    Example:
        >>> print(_p_value(Range(0.2, 0.0004, 0.5)), _p_value(Range(0.2, 0.2, 0.2)))
        0.200<small>[< 0.001, 0.500]</small> 0.200
    """

    def show(p: float) -> str:
        return "< 0.001" if p < 0.001 else f"{p:.3f}"

    if not values.known:
        return Markup("–")
    if show(values.low) == show(values.high):
        return Markup(show(values.median))
    return Markup(show(values.median) + f"<small>[{show(values.low)}, {show(values.high)}]</small>")


def _count(value: float) -> str:
    """A number of pairs, to two digits."""
    if math.isinf(value):
        return "no number"
    if not value:
        return "0"
    rounded = round(value, 1 - math.floor(math.log10(abs(value))))
    return f"{rounded:,.0f}"


def _seconds(value: float) -> str:
    """
    Example:
        >>> _seconds(3.21), _seconds(183.4), _seconds(7500)
        ('3.2 s', '3 min 3 s', '2 h 5 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _unbroken(text: str) -> Markup:
    """Text in which names with a hyphen stay on one line.

    Example:
        >>> print(_unbroken("NRE-C is < 1"))
        <span class="name">NRE-C</span> is &lt; 1
    """
    return Markup(re.sub(r"\w+-\w+", r'<span class="name">\g<0></span>', str(escape(text))))


def _moment(text: str) -> str:
    """
    Example:
        >>> _moment("2025-01-31T12:00:00+00:00"), _moment("yesterday")
        ('31 January 2025, 12:00 UTC', 'yesterday')
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def _words(values: xr.DataArray) -> list[str]:
    return [str(v) for v in values.values]
