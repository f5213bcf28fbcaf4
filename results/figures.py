"""Draw every figure from the results beside this file; no GPU, no torch.

    python results/figures.py            docs/figures/reproduction-*.png, diagnostics.png, frontier.png, … and
                                         all figures and reports in runs/results

What has not been computed is not drawn, and said.
"""

from __future__ import annotations

__all__ = ["FIGURES", "draw", "main"]

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

import conservative_figures
import idea_figures
import speed
from ablations import STARTS, STRENGTHS, part_of, places_of, started
from agreement import figure_name
from equipoise import plots
from equipoise.plots.labels import METHODS, labels_of
from equipoise.plots.panels import coverage_panel, say_missing
from equipoise.plots.style import GREY, HUES, INK, PAPER, PRINT, RULE, VERDICTS, budget_looks, method_looks
from equipoise.report import write_figures, write_report
from estimates import Network, groups_of, near_prior, networks, ratio_label
from reading import GALLERIES, HERE, LABELS, TASKS, Missing, Results, figure_auc, opened, pictured, published

DOCS = HERE.parent / "docs" / "figures"
EVERYTHING = HERE.parent / "runs" / "results"
WIDTH = 6.9
#: Results with the paper's methods, of which all of the package's figures and its report are made.
GRIDS = ("paper", "released")
#: The budgets whose coverage curves are drawn: more hide each other.
COVERAGE_BUDGETS = {"paper": (1024, 8192, 32768, 131072), "released": (1024, 8192, 32768, 131072)}
#: What planes show of tasks whose settings lie close together: information kept, coverage AUC.
ZOOMED = {"weinberg": ((0.2, 1.06), (-0.2, 0.2)), "two_moons": ((0.5, 1.03), (-0.22, 0.15))}
#: Methods that share a panel.
FAMILIES = (
    ("NRE, BNRE", ("nre", "bnre")),
    ("NRE-C, BNRE-C", ("nre_c", "bnre_c")),
    ("NPE, RNPE", ("npe", "rnpe")),
    ("BRNPE, BRNPE Init", ("brnpe", "brnpe_init")),
)


def headline(folder: Path) -> Figure:
    """The whole idea on SLCP: coverage of two methods and of their balanced versions, and what each costs and gains."""
    results, task = opened("paper", folder), "slcp"
    pairs = (("nre", "bnre"), ("npe", "brnpe"))
    looks, budgets = method_looks({m: METHODS[m] for pair in pairs for m in pair}), results.budgets
    figure = _figure(WIDTH, 3.6)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.12))
    grid = left.subplots(2, 2, sharex=True, sharey=True)
    for row, pair in zip(grid, pairs, strict=True):
        for ax, method in zip(row, pair, strict=True):
            coverage_panel(results.ds.sel(budget=budgets), task, method=method, ax=ax)
            ax.set_box_aspect(1)
            ax.set_title(figure_name(method), color=looks[method].colour, fontweight="bold")
    left.supxlabel("Credibility level")
    left.supylabel("Expected coverage")
    handles = [Line2D([], [], color=k.colour, label=f"{b:,}") for b, k in budget_looks(budgets).items()]
    left.legend(
        handles=handles, loc="outside upper center", ncols=4, handlelength=1, columnspacing=0.8, fontsize=6.5,
        title="Simulations", title_fontsize=7,
    )  # fmt: skip
    ax = right.subplots()
    for pair in pairs:
        for method in pair:
            look, found = looks[method], list(results.each([task], [method], budgets))
            xs, ys = ([s.median(name) for s in found] for name in ("information_kept", "coverage_auc"))
            ax.plot(xs, ys, color=look.colour, linestyle=look.line, linewidth=1, zorder=2)
            for s, x, y in zip(found, xs, ys, strict=True):
                size = 10 + 7 * budgets.index(s.budget)
                ax.plot([x, x], s.ends("coverage_auc"), color=look.colour, linewidth=0.6, alpha=0.6)
                ax.scatter(
                    x, y, s=size, marker=look.marker, facecolor=look.colour, edgecolor=PAPER, linewidth=0.5, zorder=3
                )
    _zero(ax)
    low, high = ax.get_ylim()
    ax.axhspan(low, 0, color=VERDICTS["overconfident"].ink, alpha=0.06, linewidth=0, zorder=0)
    ax.set(ylim=(low, high), xlim=(-0.09, 1.09), xlabel="Information kept", ylabel="Coverage AUC")
    for x, words in ((0, "prior"), (1, "exact")):
        ax.plot(x, 0, marker="+", markersize=8, markeredgewidth=1.2, color=INK, zorder=4)
        ax.annotate(words, (x, 0), xytext=(0, -11), textcoords="offset points", ha="center", color=GREY, fontsize=7)
    ax.annotate(
        "overconfident on average",
        (0.98, 0.03),
        xycoords="axes fraction",
        ha="right",
        color=VERDICTS["overconfident"].ink,
    )
    handles = [
        Line2D([], [], color=k.colour, linestyle=k.line, linewidth=1, marker=k.marker, label=figure_name(m))
        for m, k in looks.items()
    ]
    about = f"marks grow from {budgets[0]:,} to {budgets[-1]:,}"
    ax.legend(handles=handles, loc="upper right", handlelength=2.8, title=about, title_fontsize=7)
    return figure


def auc(folder: Path) -> Figure:
    """Coverage AUC against the budget: our median and range, the published numbers, and ours with the best weights."""
    ours, numbers = opened("released", folder), published()
    try:
        best: Results | None = opened("paper", folder)
    except Missing:
        best = None
    levels = ours.ds["level"].values
    labels = labels_of(ours.ds)
    looks = method_looks({m: METHODS[m] for _, methods in FAMILIES for m in methods})
    figure, grid = _panels(len(ours.tasks), len(FAMILIES), 1.55, sharey="row")
    for row, task in zip(grid, ours.tasks, strict=True):
        for ax, (title, methods) in zip(row, FAMILIES, strict=True):
            for method in methods:
                look = looks[method]
                found = list(ours.each([task], [method], ours.budgets))
                at = [s.budget for s in found]
                if found:
                    ends = np.array([s.ends("coverage_auc") for s in found])
                    ax.fill_between(at, ends[:, 0], ends[:, 1], color=look.colour, alpha=0.15, linewidth=0)
                    middle = [figure_auc(s, levels) for s in found]
                    ax.plot(at, middle, color=look.colour, linestyle=look.line, linewidth=1.2)
                if best is not None:
                    text = list(best.each([task], [method], best.budgets))
                    middle = [figure_auc(s, levels) for s in text]
                    fine = ":" if look.line == "-" else (0, (1, 3))
                    ax.plot([s.budget for s in text], middle, color=look.colour, linestyle=fine, linewidth=0.9)
                theirs = {b: v for (t, m, b), v in numbers.items() if (t, m) == (task, method)}
                ax.plot(
                    list(theirs), list(theirs.values()), linestyle="none", marker=look.marker, markersize=5,
                    markerfacecolor=PAPER, markeredgecolor=look.colour, markeredgewidth=1.1, zorder=4,
                )  # fmt: skip
            _zero(ax)
            _budgets(ax, sorted({*ours.budgets, 1024, 131072}))
            if task == ours.tasks[0]:
                ax.set_title(title)
        row[0].set_ylabel(TASKS.get(task, task))
    for row in grid:  # after every panel of a row has its lines
        ends = row[0].get_ylim()
        for ax in row:
            ax.axhspan(min(ends[0], 0), 0, color=VERDICTS["overconfident"].ink, alpha=0.05, linewidth=0)
        row[0].set_ylim(ends)
    handles = [
        Line2D(
            [], [], color=look.colour, linestyle=look.line, label=labels.method(method), marker=look.marker,
            markersize=5, markerfacecolor=PAPER, markeredgecolor=look.colour, markeredgewidth=1.1,
        )
        for method, look in looks.items()
    ]  # fmt: skip
    handles += [
        Line2D([], [], color=INK, linestyle=fine, linewidth=0.9, label=f"text's protocol, {words}")
        for fine, words in (((0, (1, 3)), "no balance or Init"), (":", "balanced"))
    ]
    figure.supylabel("Coverage AUC (below 0: overconfident on average)")
    figure.supxlabel("Simulation budget")
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, handlelength=3, columnspacing=1.2,
        title="line: ours, released protocol · open mark: published", title_fontsize=7.5,
    )  # fmt: skip
    return figure


def coverage(name: str, folder: Path) -> Figure:
    """Coverage minus level, one panel per method and task on one page, one curve per budget of four."""
    results = opened(name, folder)
    tasks, methods = results.tasks, results.methods
    budgets = [b for b in COVERAGE_BUDGETS[name] if b in results.budgets]
    ds, labels = results.ds.sel(budget=budgets), labels_of(results.ds)
    columns = -(-len(methods) // 2) if len(methods) > 5 else len(methods)
    blocks = [methods[i : i + columns] for i in range(0, len(methods), columns)]
    figure = _figure(WIDTH, len(blocks) * (len(tasks) * 0.74 + 0.35) + 0.8)
    for part, block in zip(np.atleast_1d(figure.subfigures(len(blocks), 1)), blocks, strict=True):
        grid = part.subplots(len(tasks), columns, sharex=True, sharey="row", squeeze=False)
        for row, task in zip(grid, tasks, strict=True):
            for i, ax in enumerate(row):
                if i >= len(block):
                    ax.set_visible(False)
                    continue
                coverage_panel(ds, task, method=block[i], ax=ax, difference=True)
                ax.locator_params(axis="y", nbins=4)
                if task == tasks[0]:
                    ax.set_title(labels.method(block[i]).replace(" (", "\n("))
            row[0].set_ylabel(TASKS.get(task, task), fontsize=7)
        part.supylabel("Coverage − level")
    part.supxlabel("Credibility level")
    handles = [Line2D([], [], color=k.colour, label=f"{b:,}") for b, k in budget_looks(budgets).items()]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=len(budgets), handlelength=1.2, columnspacing=1,
        title="Simulation budget", title_fontsize=7.5,
    )  # fmt: skip
    return figure


def ablation(folder: Path) -> Figure:
    """Conservativeness against information, along λ: a path for each loss and balance term."""
    results = opened("ablation", folder)
    places = places_of(results)
    families = {
        "likelihood": [("npe", "chi2"), ("npe", "unbiased"), ("npe", "kl")],
        "ratio": [("rnpe", "chi2"), ("rnpe", "unbiased"), ("rnpe", "kl")],
        "classifiers": [("nre", "chi2"), ("nre_c", "chi2"), ("nre_c", "multiclass")],
    }
    hues = {"npe": HUES[2], "rnpe": HUES[3], "nre": HUES[0], "nre_c": HUES[1]}
    looks = {"chi2": ("-", "o"), "unbiased": ("--", "s"), "kl": (":", "^"), "multiclass": ("--", "D")}
    rows = [(name, keep) for name in families for keep in ("best", "last")]
    figure, grid = _panels(len(rows), len(places), 1.35, sharex="col", sharey="col")
    for row, (name, keep) in zip(grid, rows, strict=True):
        for ax, (task, budget) in zip(row, places, strict=True):
            for loss, term in families[name]:
                found = [part_of(results, task, budget, loss, term, s, keep) for s in STRENGTHS]
                there = [(s, x) for s, x in zip(STRENGTHS, found, strict=True) if x is not None]
                if not there:
                    continue
                xs = [x.median("information_kept") for _, x in there]
                ys = [x.median("coverage_auc") for _, x in there]
                colour, (line, marker) = hues[loss], looks[term]
                ax.plot(xs, ys, color=colour, linestyle=line, linewidth=0.8, alpha=0.8)
                for x, y, (_, s) in zip(xs, ys, there, strict=True):
                    ax.plot(s.ends("information_kept"), [y, y], color=colour, linewidth=0.6, alpha=0.7)
                    ax.plot([x, x], s.ends("coverage_auc"), color=colour, linewidth=0.6, alpha=0.7)
                sizes = [9 + 9 * STRENGTHS.index(s) for s, _ in there]
                ax.scatter(xs, ys, s=sizes, marker=marker, facecolor=colour, edgecolor=PAPER, linewidth=0.4, zorder=3)
            (_zero if ax.lines else say_missing)(ax)
            ax.locator_params(nbins=4)
            if (name, keep) == rows[0]:
                ax.set_title(f"{TASKS[task]}, {budget:,}")
        row[0].set_ylabel(f"{name},\n{keep} weights" if name == "classifiers" else f"flow, {name},\n{keep} weights")
    names = {"npe": "flow, likelihood", "rnpe": "flow, ratio", "nre": "NRE", "nre_c": "NRE-C"}
    terms = {"chi2": "χ²", "unbiased": "χ² unbiased", "kl": "KL", "multiclass": "multiclass χ²"}
    handles = [
        Line2D([], [], color=hues[a], linestyle=line, marker=mark, markersize=3.5, label=f"{names[a]}, {terms[b]}")
        for a, b in itertools.chain(*families.values())
        for line, mark in [looks[b]]
    ]
    figure.supxlabel("Information kept (prior 0, exact posterior 1)")
    figure.supylabel("Coverage AUC")
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, handlelength=2.6,
        title="marks grow with λ = 0, 1, 10, 100, 1000", title_fontsize=7,
    )  # fmt: skip
    return figure


def start(folder: Path) -> Figure:
    """Balancing error against the budget for every start."""
    results = started(folder)
    colours = [INK, HUES[0], HUES[1], HUES[2], HUES[3]]
    figure, grid = _panels(2, len(results.tasks), 2.1, sharey="row")
    for row, (loss, words) in zip(grid, (("npe", "likelihood loss"), ("rnpe", "ratio loss")), strict=True):
        for ax, task in zip(row, results.tasks, strict=True):
            lines = [(loss, GREY, (0, (4, 1.6)), "s")]
            for i, (place, init) in enumerate(STARTS):
                label = f"b{loss}" + (f"[start={place},init={init}]" if init else "")
                lines.append((label, colours[i], "-", "o" if place != "prior_base" else "D"))
            for place, (method, colour, _, marker) in enumerate(lines):
                for s in results.each([task], [method], results.budgets):
                    at = s.budget * 2 ** (0.13 * (place - (len(lines) - 1) / 2))  # beside each other, not on top
                    ax.plot([at, at], s.ends("balancing_error"), color=colour, linewidth=0.9)
                    middle = s.median("balancing_error")
                    ax.plot(at, middle, color=colour, marker=marker, markersize=4.2, markeredgecolor=PAPER, mew=0.4)
            floor = 2 * float(np.nanmedian(results.ds["balance_signed_se"].sel(task=task).values))
            ax.axhspan(1e-4, floor, color=GREY, alpha=0.14, linewidth=0, zorder=0)
            ax.set_ylim(2e-4, 0.3)
            for left in results.budgets[1:]:
                ax.axvline(left / 2**0.5, color=RULE, linewidth=0.5, zorder=0)
            ax.set_yscale("log")
            _budgets(ax, results.budgets)
            if loss == "npe":
                ax.set_title(TASKS[task])
        row[0].set_ylabel(f"Balancing error, {words}")
    handles = [Line2D([], [], color=GREY, linestyle="none", marker="s", markersize=4.2, label="not balanced")]
    for colour, ((place, _), words) in zip(colours, STARTS.items(), strict=True):
        label = "balanced, random start" if place == "random" else f"balanced, {words}"
        marker = "D" if place == "prior_base" else "o"
        handles.append(Line2D([], [], color=colour, linestyle="none", marker=marker, markersize=4.2, label=label))
    figure.supxlabel("Simulation budget")
    figure.legend(
        handles=handles, loc="outside upper center", ncols=2, handlelength=1,
        title="bars: range of the runs · grey band: up to twice the standard error", title_fontsize=7,
    )  # fmt: skip
    return figure


def drawn(draw: Callable[..., Any], name: str, folder: Path) -> Figure:
    """A figure of the package's own, of a grid."""
    figure = _figure()
    draw(opened(name, folder).ds, figure=figure)
    return figure


def planes(name: str, folder: Path) -> Figure:
    """The package's planes, zoomed where settings lie close together."""
    figure, results = _figure(), opened(name, folder)
    axes = plots.planes(results.ds, figure=figure)
    tasks = [str(t) for t in results.ds["task"].values]
    for i, ax in enumerate(axes):
        task = tasks[i % len(tasks)]
        if task in ZOOMED:
            (left, right), (low, high) = ZOOMED[task]
            least, most = ax.get_ylim()  # what is shaded as overconfident ends there
            ax.set(xlim=(left, right), ylim=(max(low, least), min(high, most)))
            if i < len(tasks):
                ax.set_title(f"{TASKS[task]}, zoomed")
            for text in ax.texts:
                text.set_visible(text.get_text() != "prior" or left <= 0)
    return figure


def gallery(name: str, task: str, folder: Path) -> Figure:
    figure = _figure()
    plots.posterior_gallery(pictured(name, task, folder), task, figure=figure)
    return figure


def diagnostics(folder: Path) -> Figure:
    """What a diagnosis shows: coverage of single networks and of their mixture, and coverage minus level."""
    run = opened("mixture", folder).ds.sel({"task": "slcp", "budget": 1024, "run": 0})
    figure = _figure(WIDTH, 2.7)
    axes, level = figure.subplots(1, 3), run["level"].values
    axes[2].plot([0, 1], [0, 0], color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
    for ax, method, colour in zip(axes, ("npe", "bnpe_init"), (HUES[2], HUES[0]), strict=False):
        one = run.sel({"method": method})  # the keyword `method` is xarray's own
        ax.plot([0, 1], [0, 1], color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
        ax.plot(level, one["member_coverage"].transpose("level", "member"), color=GREY, linewidth=0.6, alpha=0.7)
        ends = [one[f"coverage_{end}"].values for end in ("lower", "upper")]
        ax.fill_between(level, *ends, color=colour, alpha=0.18, linewidth=0)
        verdict = str(one["verdict"].values)
        ax.plot(level, one["coverage"], color=colour)
        ax.set(
            title=f"SLCP, 1,024: {LABELS[method]}\nmixture: {verdict}",
            xlim=(0, 1),
            ylim=(0, 1),
            ylabel="Expected coverage",
        )
        axes[2].fill_between(level, *(end - level for end in ends), color=colour, alpha=0.18, linewidth=0)
        axes[2].plot(level, one["coverage"] - level, color=colour)
        axes[2].plot(level, one["member_coverage"].isel(member=0) - level, color=colour, linewidth=0.9, linestyle=":")
    axes[2].set(title="Coverage − level\nof both", xlim=(0, 1), ylabel="Coverage − level")
    for ax in axes:
        ax.set_xlabel("Credibility level")
    handles = [
        Line2D([], [], color=HUES[2], label="NPE, mixture"),
        Line2D([], [], color=HUES[0], label="BNPE Init, mixture"),
        Line2D([], [], color=GREY, linewidth=0.6, label="single networks"),
        Line2D([], [], color=INK, linestyle=":", linewidth=0.9, label="first network (right)"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, handlelength=1.8)
    return figure


def estimate(folder: Path) -> Figure:
    """Coverage AUC against λ/n for both estimates of balance, and what tempering by 1/(1 + λ/4κn) gives."""
    found = networks(folder)
    groups, batches = groups_of(found), sorted({n.batch for n in found})
    looks, known = budget_looks(batches), sorted({n.ratio for n in found if n.strength})
    columns = min(4, len(groups))
    figure, axes = _panels(-(-len(groups) // columns), columns, 2.0)
    for ax, (group, name) in zip(axes.flat, groups.items(), strict=False):
        here = [n for n in found if n.group == group]
        ratios = np.geomspace(0.004, 10, 60)
        free = [n for n in here if not n.strength]
        derived = [[n.tempered(near_prior(n.method, r)) for r in ratios] for n in free]
        ax.plot(ratios, np.mean(derived, 0), color=INK, zorder=2)
        _zero(ax)
        for ratio in {n.ratio for n in here if n.strength}:
            _marks(
                ax, [n for n in here if n.strength and n.ratio == ratio], {n: look.colour for n, look in looks.items()}
            )
        ax.set_xscale("log")
        ax.set_xlim(ratios[0], ratios[-1])
        # One axis for all panels; every second ratio has room for its number.
        ax.xaxis.set_major_locator(FixedLocator(known))
        ax.xaxis.set_major_formatter(
            FixedFormatter([ratio_label(r) if k % 2 == 0 else "" for k, r in enumerate(known)])
        )
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set(title=name, xlabel="λ/n")
    panels = list(zip(axes.flat, groups, strict=False))
    for task in dict.fromkeys(task for task, _ in groups):  # panels of a task have the same axes
        alike = [ax for ax, (of, _) in panels if of == task]
        low, high = (end(ax.get_ylim()[i] for ax in alike) for i, end in enumerate((min, max)))
        for ax in alike:
            ax.axhspan(min(low, -0.01), 0, color=VERDICTS["overconfident"].ink, alpha=0.06, linewidth=0, zorder=0)
            ax.set_ylim(low, high)
    for row in axes:
        row[0].set_ylabel("Coverage AUC")
    ring = {"color": GREY, "marker": "o", "linestyle": "none"}
    handles = [
        *(Line2D([], [], color=looks[n].colour, marker="o", linestyle="none", label=f"n = {n:,}") for n in batches),
        Line2D([], [], **ring, label="plain estimate"),
        Line2D([], [], **ring, markerfacecolor=PAPER, label="unbiased estimate"),
        Line2D([], [], color=INK, linewidth=1.1, label="without balance, tempered as derived"),
    ]
    title = "n: batch size · marks of one λ/n stand side by side · shaded: overconfident on average"
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=1.6, title=title, title_fontsize=7)
    for ax in list(axes.flat)[len(groups) :]:
        ax.set_axis_off()
    return figure


def _marks(ax: Any, networks: Sequence[Network], colours: dict[int, str]) -> None:
    """The means over runs and their range, of one λ/n: side by side around it, by batch size and estimate."""
    cells: dict[tuple[int, str], list[float]] = {}
    for one in sorted(networks, key=lambda n: (n.batch, n.estimate)):
        cells.setdefault((one.batch, one.estimate), []).append(one.auc)
    for k, ((n, estimate), values) in enumerate(cells.items()):
        x = networks[0].ratio * 1.14 ** (k - (len(cells) - 1) / 2)
        ax.plot([x, x], [min(values), max(values)], color=colours[n], linewidth=1, zorder=3)
        ax.plot(
            x, float(np.mean(values)), linestyle="none", marker="o", markersize=4.5, color=colours[n],
            markerfacecolor=colours[n] if estimate == "plain" else PAPER, markeredgewidth=1.1, zorder=4,
        )  # fmt: skip


def _figure(*size: float) -> Figure:
    return Figure(figsize=size or None, layout="constrained")  # type: ignore[arg-type]


def _panels(rows: int, columns: int, height: float, width: float = WIDTH, **share: Any) -> tuple[Figure, Any]:
    figure = _figure(width, rows * height + 1.1)
    return figure, figure.subplots(rows, columns, squeeze=False, **share)


def _zero(ax: Any) -> None:
    ax.axhline(0, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))


def _budgets(ax: Any, budgets: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    shown = list(budgets) if len(budgets) <= 4 else [b for b in budgets if int(np.log2(b)) % 2 == 0 or b == budgets[-1]]
    shown = [b for b in shown if b == budgets[-1] or 2 * b < budgets[-1] or len(budgets) <= 4]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_major_formatter(FixedFormatter([rf"$2^{{{int(np.log2(b))}}}$" for b in shown]))
    ax.xaxis.set_minor_locator(NullLocator())


#: Figures of docs/reproduction.md, by the end of their file's name.
FIGURES: dict[str, Callable[[Path], Figure]] = {
    "headline": headline,
    "auc": auc,
    "coverage-paper": lambda folder: coverage("paper", folder),
    "coverage-released": lambda folder: coverage("released", folder),
    **{
        f"{words}-{name}": partial(drawn, draw, name)
        for name in GRIDS
        for words, draw in (
            ("log", plots.nominal_log_prob),
            ("balance", plots.balancing_error),
        )
    },
    **{f"plane-{name}": partial(planes, name) for name in GRIDS},
    "ablation": ablation,
    "start": start,
    "estimate": estimate,
    **{f"gallery-{task}": partial(gallery, "paper", task) for task in GALLERIES},
    **{f"gallery-released-{task}": partial(gallery, "released", task) for task in GALLERIES},
}


#: Figures of other pages, by the name of their file.
OTHERS: dict[str, Callable[[Path], Figure]] = {
    "diagnostics": diagnostics,
    "frontier": conservative_figures.frontier,
    "tempering": lambda _: conservative_figures.tempering(),
    "overconfidence": lambda _: idea_figures.overconfidence(),
    "balance": lambda _: idea_figures.balance(),
}


def draw(folder: Path, out: Path, names: Sequence[str] = tuple(FIGURES)) -> list[Path]:
    """The figures of the reproduction and of other pages, as PNG with 200 dots an inch."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(PRINT):
        for name in names:
            file = name if name in OTHERS else f"reproduction-{name}"
            try:
                figure = (FIGURES | OTHERS)[name](folder)
            except Missing as why:
                print(f"{file}: not drawn, {why}")
                continue
            written.append(out / f"{file}.png")
            figure.savefig(written[-1], dpi=200, metadata={"Software": None})
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE, help="where the results are")
    parser.add_argument("--out", type=Path, default=DOCS, help="where the figures of the document go")
    parser.add_argument("--everything", type=Path, default=EVERYTHING, help="where all figures and reports go")
    options = parser.parse_args(arguments)
    beside = speed.draw(speed.read(options.results / "peers.csv"), options.out / "peers.png")
    written = draw(options.results, options.out, [*FIGURES, *OTHERS])
    for file in [*written, *([beside] if beside else [])]:
        print(file)
    for name in GRIDS:
        file = options.results / f"{name}.nc"
        if file.exists():
            write_figures(file, options.everything / name / "figures")
            write_report(file, options.everything / name / "report.html")
            print(options.everything / name / "report.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
