"""Fill the tables of docs/ that follow from the results beside this file.

    python results/tables.py             write them
    python results/tables.py --check     exit with 1 if they differ from the results

Each stands between `<!-- table: NAME -->` and `<!-- end -->`. A sentence says what has not been computed.
"""

from __future__ import annotations

__all__ = ["BLOCKS", "DOCS", "PAGES", "fill", "main", "up_to_docs"]

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ablations import ablation, artefact, changes, mixture, start, started, starts, strength
from agreement import against_published, agreement, largest_budget, outliers, systematic
from claims import CLAIMS, decide, exceptions
from conservative import frontier_table, local_table, methods_table, networks_table, rules_table, schedules_table
from equipoise.plots.settings import CERTIFIED, OVERCONFIDENT
from estimates import (
    bnre_on_slcp,
    by_ratio,
    effects,
    expected,
    few_simulations,
    informed,
    judged_twice,
    lost,
    networks,
    rolls,
    slopes,
    toy,
)
from formats import counted, ranged, table
from ledgers import cost, cost_of_stacks, state
from reading import GALLERIES, HERE, LABELS, TASKS, Missing, Setting, opened, optional, pictured
from speed import peers_table
from summary import answer, certificates, escaped, information, jumps, learnt, mixtures, weights

DOCS = HERE.parent / "docs"
PAGES = (
    *(DOCS / f"{n}.md" for n in ("reproduction", "conservative", "methods", "speed")),
    *(DOCS / "reproduction" / f"{n}.md" for n in ("tables", "ablations", "training", "galleries", "cost")),
)


# --- every setting ----------------------------------------------------------------------------------------------------


def by_budget(name: str, variable: str, digits: int, folder: Path) -> str:
    """A number of every setting: one table per task, methods × budgets."""
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
    found = {n: r for n in ("paper", "released") if (r := optional(n, folder)) is not None}
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
    """A figure of `figures.py`, if the results it shows were computed."""
    opened(needs, folder)
    return f"![{words}](figures/reproduction-{name}.png)"


def start_picture(folder: Path) -> str:
    """The figure of the starts."""
    started(folder)
    return picture("start", "start", "Balancing error against budget, by start", folder)


def estimate_picture(folder: Path) -> str:
    """The figure of both estimates of balance."""
    networks(folder)
    return "![Coverage AUC against λ/n, both estimates of balance](figures/reproduction-estimate.png)"


def pictures_of(grid: str, task: str, folder: Path) -> str:
    """The gallery of a task in a protocol."""
    pictured(grid, task, folder)
    name = f"gallery-{task}" if grid == "paper" else f"gallery-{grid}-{task}"
    return picture(name, grid, f"Posteriors of one {TASKS[task]} observation, methods × budgets", folder)


BLOCKS: dict[str, Callable[[Path], str]] = (
    {
        "answer": answer,
        "state": state,
        "agreement": agreement,
        "systematic": systematic,
        "outliers": outliers,
        "largest-budget": largest_budget,
        "weights": weights,
        "judged-twice": judged_twice,
        "bnre-slcp": partial(bnre_on_slcp, short=True),
        "bnre-slcp-all": bnre_on_slcp,
        "rolls": rolls,
        "estimate-toy": toy,
        "estimate-ratios": by_ratio,
        "estimate-lost": lost,
        "estimate-effects": effects,
        "estimate-expected": expected,
        "estimate-few": few_simulations,
        "estimate-slopes": slopes,
        "estimate-informed": informed,
        "certificates": certificates,
        "information": information,
        "learnt": learnt,
        "escaped": escaped,
        "jumps": jumps,
        "mixtures": mixtures,
        "changes": changes,
        "starts": starts,
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
        "frontier": frontier_table,
        "local": local_table,
        "methods": methods_table,
        "rules": rules_table,
        "networks": networks_table,
        "schedules": schedules_table,
        "peers": peers_table,
        "peers-wall": partial(peers_table, threads=2),
    }
    | {
        f"figure-{name}": partial(picture, name, needs, words)
        for name, needs, words in (
            ("headline", "paper", "Expected coverage on SLCP, and coverage AUC against information kept"),
            ("auc", "released", "Coverage AUC against budget: our median and range, and the published numbers"),
            ("coverage-paper", "paper", "Coverage minus level, methods × tasks, the text's protocol"),
            ("coverage-released", "released", "Coverage minus level, methods × tasks, the released protocol"),
            ("log-paper", "paper", "Nominal log posterior against budget, the text's protocol"),
            ("log-released", "released", "Nominal log posterior against budget, the released protocol"),
            ("balance-paper", "paper", "Balancing error against budget, the text's protocol"),
            ("balance-released", "released", "Balancing error against budget, the released protocol"),
            ("plane-paper", "paper", "Coverage AUC against information kept, the text's protocol"),
            ("plane-released", "released", "Coverage AUC against information kept, the released protocol"),
            ("ablation", "ablation", "Coverage AUC against information kept, along λ"),
        )
    }
    | {"figure-start": start_picture, "figure-estimate": estimate_picture}
    | {f"figure-gallery-{task}": partial(pictures_of, "paper", task) for task in GALLERIES}
    | {f"figure-gallery-released-{task}": partial(pictures_of, "released", task) for task in GALLERIES}
)


def fill(text: str, folder: Path = HERE, up: str = "") -> str:
    """The text of a page with every table written again; `up` leads from the page to docs/."""

    def made(match: re.Match[str]) -> str:
        name = match[1]
        if name not in BLOCKS:
            raise ValueError(f"there is no table {name!r}; there are {', '.join(BLOCKS)}")
        try:
            inside = BLOCKS[name](folder)
        except Missing as why:
            inside = f"*Not computed yet: {why}.*"
        return f"<!-- table: {name} -->\n\n{inside.replace('](figures/', f']({up}figures/')}\n\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", made, text, flags=re.DOTALL)


def up_to_docs(page: Path, docs: Path = DOCS) -> str:
    """The relative path from the folder of a page to docs/."""
    return "../" * (len(page.relative_to(docs).parts) - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if something would change")
    parser.add_argument("--results", type=Path, default=HERE, help="where the results are")
    parser.add_argument("--docs", type=Path, default=DOCS, help="the folder of the pages")
    options = parser.parse_args(arguments)
    stale = 0
    for page in (options.docs / page.relative_to(DOCS) for page in PAGES):
        before = page.read_text(encoding="utf-8")
        after = fill(before, options.results, up_to_docs(page, options.docs))
        if options.check:
            stale += before != after
            print(f"{page} {'is up to date' if before == after else 'differs from the results: run this again'}")
        else:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page}")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
