"""Draw every figure from the results beside this file; no GPU, no torch.

    python results/figures.py            docs/figures/reproduction-*.png, frontier.png, tempering.png, …, and
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
from equipoise import plots
from equipoise.plots.labels import METHODS, labels_of
from equipoise.plots.panels import coverage_panel, say_missing
from equipoise.plots.style import GREY, HUES, INK, PAPER, PRINT, VERDICTS, budget_looks, method_looks
from equipoise.report import write_figures, write_report
from reading import GALLERIES, HERE, LABELS, TASKS, Missing, Results, figure_auc, opened, pictured, published

DOCS = HERE.parent / "docs" / "figures"
EVERYTHING = HERE.parent / "runs" / "results"
WIDTH = 6.9
#: Results with the paper's methods, of which all of the package's figures and its report are made.
GRIDS = ("paper", "released")
#: Methods that share a panel.
FAMILIES = (
    ("NRE", ("nre", "bnre")),
    ("NRE-C", ("nre_c", "bnre_c")),
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
            ax.set_title(LABELS[method], color=looks[method].colour, fontweight="bold")
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
            ax.plot(xs, ys, color=look.colour, linestyle=look.line, linewidth=1, label=LABELS[method], zorder=2)
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
    ax.legend(loc="upper right", handlelength=2.4, title="marks grow with the budget", title_fontsize=7)
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
                    ax.plot([s.budget for s in text], middle, color=look.colour, linestyle=":", linewidth=0.9)
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
        Line2D([], [], color=look.colour, linestyle=look.line, label=labels.method(method))
        for method, look in looks.items()
    ]
    handles += [
        Line2D([], [], color=INK, linestyle="none", marker="o", markerfacecolor=PAPER, label="published"),
        Line2D([], [], color=INK, linestyle=":", linewidth=0.9, label="ours, best weights"),
    ]
    figure.supylabel("Coverage AUC (below 0: overconfident)")
    figure.supxlabel("Simulation budget")
    figure.legend(handles=handles, loc="outside upper center", ncols=5, handlelength=2.4, columnspacing=1.2)
    return figure


def coverage(name: str, folder: Path) -> Figure:
    """Expected coverage as in the paper: one square panel per method and task, one curve per budget."""
    results = opened(name, folder)
    ds, tasks, methods, budgets = results.ds, results.tasks, results.methods, results.budgets
    columns = -(-len(methods) // 2) if len(methods) > 5 else len(methods)
    blocks = [methods[i : i + columns] for i in range(0, len(methods), columns)]
    labels = labels_of(ds)
    side = (WIDTH - 0.5) / columns
    figure = _figure(WIDTH, len(blocks) * (len(tasks) * side + 0.25) + 0.9)
    for part, block in zip(np.atleast_1d(figure.subfigures(len(blocks), 1)), blocks, strict=True):
        grid = part.subplots(len(tasks), columns, sharex=True, sharey=True, squeeze=False)
        for row, task in zip(grid, tasks, strict=True):
            for i, ax in enumerate(row):
                if i >= len(block):
                    ax.set_visible(False)
                    continue
                coverage_panel(ds.sel(budget=budgets), task, method=block[i], ax=ax)
                ax.set_box_aspect(1)
                if task == tasks[0]:
                    ax.set_title(labels.method(block[i]))
            row[0].set_ylabel(TASKS.get(task, task))
        part.supylabel("Expected coverage")
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
    figure, grid = _panels(len(rows), len(places), 1.2, sharex="col", sharey="col")
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
                sizes = [4 + 5 * STRENGTHS.index(s) for s, _ in there]
                ax.scatter(xs, ys, s=sizes, marker=marker, facecolor=colour, edgecolor=PAPER, linewidth=0.3, zorder=3)
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
    figure, grid = _panels(2, len(results.tasks), 1.9, sharey="row", width=5.6)
    for row, (loss, words) in zip(grid, (("npe", "likelihood loss"), ("rnpe", "ratio loss")), strict=True):
        for ax, task in zip(row, results.tasks, strict=True):
            lines = [(loss, GREY, (0, (4, 1.6)), "s")]
            for i, (place, init) in enumerate(STARTS):
                label = f"b{loss}" + (f"[start={place},init={init}]" if init else "")
                lines.append((label, colours[i], "-", "o" if place != "prior_base" else "D"))
            for method, colour, line, marker in lines:
                found = list(results.each([task], [method], results.budgets))
                at, ends = (
                    [s.budget for s in found],
                    np.array([s.ends("balancing_error") for s in found]).reshape(-1, 2),
                )
                ax.fill_between(at, ends[:, 0], ends[:, 1], color=colour, alpha=0.12, linewidth=0)
                middle = [s.median("balancing_error") for s in found]
                ax.plot(at, middle, color=colour, linestyle=line, marker=marker, markersize=3.2, linewidth=1.1)
            ax.set_yscale("log")
            _budgets(ax, results.budgets)
            if loss == "npe":
                ax.set_title(TASKS[task])
        row[0].set_ylabel(f"Balancing error, {words}")
    handles = [Line2D([], [], color=GREY, linestyle=(0, (4, 1.6)), marker="s", markersize=3.2, label="not balanced")]
    for colour, ((place, _), words) in zip(colours, STARTS.items(), strict=True):
        label = "balanced, random start" if place == "random" else f"balanced, {words}"
        marker = "D" if place == "prior_base" else "o"
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=3.2, label=label))
    figure.supxlabel("Simulation budget")
    figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=2.4)
    return figure


def drawn(draw: Callable[..., Any], name: str, folder: Path) -> Figure:
    """A figure of the package's own, of a grid."""
    figure = _figure()
    draw(opened(name, folder).ds, figure=figure)
    return figure


def gallery(task: str, folder: Path) -> Figure:
    figure = _figure()
    plots.posterior_gallery(pictured(task, folder), task, figure=figure)
    return figure


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
            ("plane", plots.planes),
        )
    },
    "ablation": ablation,
    "start": start,
    **{f"gallery-{task}": partial(gallery, task) for task in GALLERIES},
}


#: Figures of docs/conservative.md and docs/ideas.md, by the name of their file.
CONSERVATIVE: dict[str, Callable[[Path], Figure]] = {
    "frontier": conservative_figures.frontier,
    "tempering": lambda _: conservative_figures.tempering(),
    "overconfidence": lambda _: idea_figures.overconfidence(),
    "balance": lambda _: idea_figures.balance(),
}


def draw(folder: Path, out: Path, names: Sequence[str] = tuple(FIGURES)) -> list[Path]:
    """The figures of the reproduction, of docs/conservative.md and of docs/ideas.md, as PNG with 200 dots an inch."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(PRINT):
        for name in names:
            file = name if name in CONSERVATIVE else f"reproduction-{name}"
            try:
                figure = (FIGURES | CONSERVATIVE)[name](folder)
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
    written = draw(options.results, options.out, [*FIGURES, *CONSERVATIVE])
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
