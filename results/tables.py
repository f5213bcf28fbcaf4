"""Fill the tables of docs/reproduction.md from the results beside this file.

    python results/tables.py             write them
    python results/tables.py --check     exit with 1 if they are not what the results say

Each stands between `<!-- table: NAME -->` and `<!-- end -->`. What has not been computed yet is said in a sentence.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "fill", "main"]

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from claims import CLAIMS, PLAIN, decide, exceptions
from equipoise.plots.settings import CERTIFIED, OVERCONFIDENT
from ledgers import cost, cost_of_stacks, state
from parts import ablation, artefact, mixture, start, started, strength
from reading import GALLERIES, HERE, LABELS, TASKS, Missing, Setting, figure_auc, opened, pictured, published
from words import counted, ranged, signed, table

DOC = HERE.parent / "docs" / "reproduction.md"
#: How far off a number read off the published figure may be.
READING_ERROR = 0.02
#: A difference that is larger than this and still agrees does so because the runs scatter.
SCATTERED = 0.05


# --- against the published figure -------------------------------------------------------------------------------------


def against_published(task: str, folder: Path) -> str:
    """Every published number of a task beside ours."""
    ours = opened("released", folder)
    if task not in ours.tasks:
        raise Missing(f"`results/released.nc` has nothing of {TASKS[task]}")
    levels = ours.ds["level"].values
    try:
        best = opened("paper", folder)
    except Missing:
        best = None
    rows = []
    for (t, method, budget), theirs in published().items():
        if t != task:
            continue
        name = (
            LABELS[method]
            if not method.startswith("brnpe")
            else f"{LABELS[method]}, drawn as {LABELS[method.replace('brnpe', 'bnpe')]}"
        )
        other = best.settings.get((task, method, budget)) if best is not None else None
        last = [signed(figure_auc(other, levels)) if other is not None else "–"]
        s = ours.settings.get((task, method, budget))
        if s is None:
            rows.append([name, f"{budget:,}", signed(theirs), "–", "–", "–", "not computed", *last])
            continue
        low, high = s.ends("coverage_auc")
        middle = figure_auc(s, levels)
        agrees = "yes" if _agrees(s, middle, theirs) else "**no**"
        runs = f"{signed(low)} … {signed(high)}"
        rows.append([name, f"{budget:,}", signed(theirs), signed(middle), runs, signed(middle - theirs), agrees, *last])
    head = ["", "budget", "published", "ours, last weights", "our runs", "difference", "agrees", "ours, best weights"]
    return table(head, rows)


def _agrees(s: Setting, middle: float, theirs: float) -> bool:
    """Whether a published number is within its reading error and half the range of our runs."""
    low, high = s.ends("coverage_auc")
    return abs(middle - theirs) <= READING_ERROR + (high - low) / 2


def agreement(folder: Path) -> str:
    """How many of the published numbers are reproduced."""
    ours = opened("released", folder)
    levels = ours.ds["level"].values
    both = [(ours.settings[k], v) for k, v in published().items() if k in ours.settings]
    if not both:
        raise Missing("no published setting is in `results/released.nc`")
    middles = np.array([figure_auc(s, levels) for s, _ in both])
    theirs = np.array([v for _, v in both])
    agree = [_agrees(s, m, t) for (s, t), m in zip(both, middles, strict=True)]
    gap = np.abs(middles - theirs)
    clear = np.abs(theirs) > READING_ERROR
    close = gap <= READING_ERROR

    def named(chosen: Iterable[int]) -> str:
        return ", ".join(f"{LABELS[s.method]} on {TASKS[s.task]} at {s.budget:,}" for s in (both[i][0] for i in chosen))

    order = np.argsort(-gap)
    apart, loose = [i for i in order if not agree[i]], [i for i in order if agree[i] and gap[i] > SCATTERED]
    text = (
        f"{len(both)} of {len(published())} published numbers were computed here so far. {int(close.sum())} are "
        f"reproduced to {READING_ERROR}, and {sum(agree)} agree. The median difference is {np.median(gap):.3f}, the "
        f"largest {gap.max():.3f}; the sign is the same in "
        f"{int((np.sign(middles) == np.sign(theirs))[clear].sum())} of the {int(clear.sum())} that are further than "
        f"{READING_ERROR} from 0."
    )
    text += f" Those that do not agree: {named(apart)}." if apart else ""
    text += f" Those that agree only because our runs scatter: {named(loose)}." if loose else ""
    try:
        best = opened("paper", folder)
    except Missing:
        return text
    same = [k for k in published() if k in best.settings and k in ours.settings]
    plain = [k for k in same if k[1] in PLAIN and k[0] != "two_moons"]
    counts = [
        sum(_agrees(r.settings[k], figure_auc(r.settings[k], levels), published()[k]) for k in keys)
        for keys in (same, plain)
        for r in (ours, best)
    ]
    return (
        f"{text}\n\nWith the text's protocol, and so with best weights, {counts[1]} of {len(same)} would agree. What "
        f"tells the two apart are the unbalanced methods, Two Moons left out: {counts[2]} of {len(plain)} agree with "
        f"last weights and {counts[3]} with best ones."
    )


# --- every setting ----------------------------------------------------------------------------------------------------


def by_budget(name: str, variable: str, digits: int, folder: Path) -> str:
    """A number of every setting: a table a task, methods × budgets."""
    results = opened(name, folder)
    parts = []
    for task in results.tasks:
        rows = []
        for method in results.methods:
            cells = [results.settings.get((task, method, b)) for b in results.budgets]
            rows.append(
                [LABELS.get(method, method), *("–" if s is None else _marked(s, variable, digits) for s in cells)]
            )
        parts.append(f"**{TASKS.get(task, task)}**\n\n" + table(["", *(f"{b:,}" for b in results.budgets)], rows))
    error = max(float(s.numbers["coverage_auc_se"].max()) for s in results.settings.values())
    runs = max(len(s.verdicts) for s in results.settings.values())
    about = f"{int(results.ds['pairs']):,} pairs, up to {runs} runs"
    note = f"; the standard error of a run's AUC is at most {error:.4f}" if variable == "coverage_auc" else ""
    return "\n\n".join([*parts, f"*{about}{note}.*"])


def verdicts(name: str, folder: Path) -> str:
    """How many runs have which verdict, methods × tasks, over all budgets."""
    results = opened(name, folder)
    rows = []
    for method in results.methods:
        cells = []
        for task in results.tasks:
            found = [v for s in results.each([task], [method], results.budgets) for v in s.verdicts]
            cells.append(counted(found) if found else "–")
        rows.append([LABELS.get(method, method), *cells])
    return table(["", *(TASKS.get(t, t) for t in results.tasks)], rows)


def _marked(s: Setting, variable: str, digits: int) -> str:
    mark = ""
    if variable == "coverage_auc":
        mark = " ▼" if s.mostly(OVERCONFIDENT) else " ▲" if s.mostly(CERTIFIED) else ""
    first, rest = ranged(s, variable, digits).split("<br>")
    return f"{first}{mark}<br>{rest}"


# --- claims -----------------------------------------------------------------------------------------------------------


def claims(folder: Path) -> str:
    """Every claim, its rule, and what the results of both protocols say."""
    found = {}
    for name in ("paper", "released"):
        try:
            found[name] = opened(name, folder)
        except Missing:
            continue
    if not found:
        raise Missing("`results/paper.nc` and `results/released.nc` are not there")
    rows = []
    for claim in CLAIMS:
        row = [claim.words, claim.rule]
        for name in ("paper", "released"):
            if name not in found:
                row.append("not computed")
                continue
            verdict, cases = decide(claim, found[name])
            word, _, count = verdict.partition(":")
            but = exceptions(cases)
            row.append(f"**{word}**{':' if count else ''}{count}" + (f"<br><sub>not: {but}</sub>" if but else ""))
        rows.append(row)
    lines = [
        ["what the paper says", "a case is as claimed if", "text's protocol", "released protocol"],
        ["---"] * 4,
        *rows,
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def picture(name: str, needs: str, words: str, folder: Path) -> str:
    """A figure of `figures.py`, once the results that it shows are there."""
    opened(needs, folder)
    return f"![{words}](figures/reproduction-{name}.png)"


def start_picture(folder: Path) -> str:
    """The figure of the starts."""
    started(folder)
    return picture("start", "start", "Balancing error against budget, by start", folder)


def pictures_of(task: str, folder: Path) -> str:
    """The gallery of a task."""
    pictured(task, folder)
    return picture(
        f"gallery-{task}", "paper", f"Posteriors of one {TASKS[task]} observation, methods × budgets", folder
    )


BLOCKS: dict[str, Callable[[Path], str]] = (
    {
        "state": state,
        "agreement": agreement,
        **{f"published-{task}": partial(against_published, task) for task in TASKS},
        "claims": claims,
        "verdicts-paper": partial(verdicts, "paper"),
        "verdicts-released": partial(verdicts, "released"),
        "auc-paper": lambda folder: by_budget("paper", "coverage_auc", 3, folder),
        "log-paper": lambda folder: by_budget("paper", "nominal_log_prob", 2, folder),
        "auc-released": lambda folder: by_budget("released", "coverage_auc", 3, folder),
        "log-released": lambda folder: by_budget("released", "nominal_log_prob", 2, folder),
        "ablation": ablation,
        "start": start,
        "artefact": artefact,
        "leakage": partial(artefact, grid="leakage"),
        "strength": strength,
        "mixture": mixture,
        "cost": cost,
        "cost-stacks": cost_of_stacks,
    }
    | {
        f"figure-{name}": partial(picture, name, needs, words)
        for name, needs, words in (
            ("headline", "paper", "Expected coverage on SLCP, and coverage AUC against information kept"),
            ("auc", "released", "Coverage AUC against budget: our median and range, and the published numbers"),
            ("coverage-paper", "paper", "Expected coverage, methods × tasks, the text's protocol"),
            ("coverage-released", "released", "Expected coverage, methods × tasks, the released protocol"),
            ("log-paper", "paper", "Nominal log posterior against budget, the text's protocol"),
            ("log-released", "released", "Nominal log posterior against budget, the released protocol"),
            ("balance-paper", "paper", "Balancing error against budget, the text's protocol"),
            ("balance-released", "released", "Balancing error against budget, the released protocol"),
            ("plane-paper", "paper", "Coverage AUC against information kept, the text's protocol"),
            ("plane-released", "released", "Coverage AUC against information kept, the released protocol"),
            ("ablation", "ablation", "Coverage AUC against information kept, along λ"),
        )
    }
    | {"figure-start": start_picture}
    | {f"figure-gallery-{task}": partial(pictures_of, task) for task in GALLERIES}
)


def fill(text: str, folder: Path = HERE) -> str:
    """The document with every table made anew."""

    def made(match: re.Match[str]) -> str:
        name = match[1]
        if name not in BLOCKS:
            raise ValueError(f"there is no table {name!r}; there are {', '.join(BLOCKS)}")
        try:
            inside = BLOCKS[name](folder)
        except Missing as why:
            inside = f"*Not computed yet: {why}.*"
        return f"<!-- table: {name} -->\n\n{inside}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", made, text, flags=re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    parser.add_argument("--results", type=Path, default=HERE, help="where the results are")
    parser.add_argument("--doc", type=Path, default=DOC, help="the document")
    options = parser.parse_args(arguments)
    before = options.doc.read_text(encoding="utf-8")
    after = fill(before, options.results)
    if options.check:
        print(f"{options.doc} is {'up to date' if before == after else 'not what the results say: run this again'}")
        return int(before != after)
    options.doc.write_text(after, encoding="utf-8")
    print(f"wrote {options.doc}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
