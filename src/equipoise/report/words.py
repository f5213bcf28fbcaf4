"""What the verdicts say, in sentences.

The unit of a statement is a setting: a method at a task and a budget. It is called overconfident only when every one of
its runs is; where runs disagree, the sentence says how many. Nothing is concluded from an inconclusive verdict.
"""

from __future__ import annotations

__all__ = ["Finding", "Headline", "counted", "headline", "listed"]

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xarray as xr

from .results import CERTIFIED, INCONCLUSIVE, MISSING, OVERCONFIDENT, PARTLY, Labels, Setting, settings_of

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


class Finding(NamedTuple):
    """What holds for some settings."""

    state: str
    settings: int  # how many
    where: list[str]


@dataclass
class Headline:
    """The lead in one or two sentences, the findings by kind, and how far to trust them."""

    lead: str
    findings: list[Finding] = field(default_factory=list)
    certainty: list[str] = field(default_factory=list)


def counted(n: int, one: str, many: str | None = None) -> str:
    """The number with its noun.

    Example:
        >>> counted(1, "run"), counted(2, "run"), counted(12, "network"), counted(0, "run")
        ('one run', 'two runs', '12 networks', 'no runs')
    """
    number = NUMBERS[n] if n < len(NUMBERS) else f"{n:,}"
    return f"{number} {one if n == 1 else many or one + 's'}"


def listed(words: Iterable[str]) -> str:
    """
    Example:
        >>> listed(["NPE"]), listed(["NPE", "NRE"]), listed(["NPE", "NRE", "BNRE"])
        ('NPE', 'NPE and NRE', 'NPE, NRE and BNRE')
    """
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def headline(ds: xr.Dataset) -> Headline:
    """The findings of a grid."""
    labels = Labels(str(ds.attrs.get("protocol", "")))
    settings = settings_of(ds)
    judged = [s for s in settings if s.state != MISSING]
    by_state = {
        state: [s for s in judged if s.state == state] for state in (OVERCONFIDENT, PARTLY, CERTIFIED, INCONCLUSIVE)
    }
    findings = []
    for state, some in by_state.items():
        if some:
            where = _partly(some, judged, labels) if state == PARTLY else _statements(some, judged, labels)
            findings.append(Finding(state, len(some), where))
    return Headline(_lead(by_state, judged, labels), findings, _certainty(ds, settings, judged))


def _lead(by_state: dict[str, list[Setting]], judged: Sequence[Setting], labels: Labels) -> str:
    n = len(judged)
    if not n:
        return "Nothing has been judged yet."
    over, partly, certified = (by_state[s] for s in (OVERCONFIDENT, PARTLY, CERTIFIED))
    methods = list(dict.fromkeys(s.method for s in judged))
    accused = {s.method for s in over}
    lead = []
    if over:
        groups = _by_place(over, judged)
        if len(groups) <= 2:
            lead = [
                f"{_subject(m, labels)} overconfident{_where(cells, full, judged, labels)}."
                for m, cells, full in groups
            ]
        else:
            names = [m for m in methods if m in accused]
            everywhere = "at one budget or more" if len({s.task for s in judged}) == 1 else "on one task or more"
            lead = [f"{_subject(names, labels)} overconfident {everywhere}."]
    elif partly:
        verb = "is" if len(partly) == 1 else "are"
        lead = [f"No setting is overconfident in all of its runs; {_settings(len(partly), n)} {verb} in some of them."]
    elif n == 1:
        lead = ["The posterior was not found to be overconfident."]
    else:
        lead = ["No posterior was found to be overconfident."]
    if over:
        torn = [m for m in methods if m not in accused and m in {s.method for s in partly}]
        if torn:
            lead.append(f"{_subject(torn, labels)} overconfident in some runs only.")
    spared = [m for m in methods if m not in accused and m not in {s.method for s in partly}]
    safe = [m for m in spared if all(s.state == CERTIFIED for s in judged if s.method == m)]
    if safe:
        extent = " in every setting" if len({(s.task, s.budget) for s in judged}) > 1 else ""
        lead.append(f"{_subject(safe, labels)} certified conservative{extent}.")
    elif not over and not partly:
        if certified:
            lead.append(f"Certified conservative: {_settings(len(certified), n)}; the rest is inconclusive.")
        else:
            lead.append(
                "That is no certificate: there were too few pairs, or the curves lie too close to the line, to tell."
            )
    return " ".join(lead)


def _settings(k: int, n: int) -> str:
    return f"{k:,} of {n:,} settings" if n > 1 else "the one setting"


def _subject(methods: Sequence[str], labels: Labels) -> str:
    return f"{listed(labels.method(m) for m in methods)} {'is' if len(methods) == 1 else 'are'}"


Cells = frozenset[tuple[str, int]]


def _by_place(some: Iterable[Setting], judged: Sequence[Setting]) -> list[tuple[list[str], Cells, Cells]]:
    """Methods that share their places, with these places and all the places where they were judged."""
    places: dict[str, set[tuple[str, int]]] = {}
    for s in some:
        places.setdefault(s.method, set()).add((s.task, s.budget))
    groups: dict[tuple[Cells, Cells], list[str]] = {}
    for method, cells in places.items():
        full = frozenset((s.task, s.budget) for s in judged if s.method == method)
        groups.setdefault((frozenset(cells), full), []).append(method)
    return [(methods, cells, full) for (cells, full), methods in groups.items()]


def _statements(some: Iterable[Setting], judged: Sequence[Setting], labels: Labels) -> list[str]:
    return [
        f"{listed(labels.method(m) for m in methods)}{_where(cells, full, judged, labels)}"
        for methods, cells, full in _by_place(some, judged)
    ]


def _partly(some: Iterable[Setting], judged: Sequence[Setting], labels: Labels) -> list[str]:
    """One line a method and task: in how many runs at which budget."""
    lines: dict[tuple[str, str], list[Setting]] = {}
    for s in some:
        lines.setdefault((s.method, s.task), []).append(s)
    one_budget = len({s.budget for s in judged}) == 1
    return [
        f"{labels.method(method)} on {labels.task(task)}: "
        + listed(
            f"{s.overconfident} of {s.runs} runs" + ("" if one_budget else f" at {labels.budget(s.budget)}")
            for s in mine
        )
        for (method, task), mine in lines.items()
    ]


def _where(cells: Cells, full: Cells, judged: Sequence[Setting], labels: Labels) -> str:
    """ " on SLCP and Weinberg up to 8,192 simulations", as short as it can be said without losing anything."""
    tasks = list(dict.fromkeys(s.task for s in judged))
    budgets = sorted({s.budget for s in judged})
    phrases: dict[str, list[str]] = {}
    for task in tasks:
        mine = sorted(b for t, b in cells if t == task)
        if mine:
            all_mine = sorted(b for t, b in full if t == task)
            phrases.setdefault(_budgets(mine, all_mine, budgets, labels), []).append(task)
    parts = []
    for phrase, on in phrases.items():
        if len(tasks) > 2 and len(on) == len(tasks):
            place = f" on all {NUMBERS[len(tasks)] if len(tasks) < len(NUMBERS) else len(tasks)} tasks"
        else:
            place = f" on {listed(labels.task(t) for t in on)}"
        parts.append(place + phrase)
    return ";".join(parts)


def _budgets(mine: list[int], full: list[int], budgets: list[int], labels: Labels) -> str:
    if len(budgets) == 1:
        return ""
    if mine == full and len(full) > 1:
        return " at both budgets" if len(full) == 2 else " at every budget"
    if len(mine) > 2 and mine == full[: len(mine)]:
        return f" up to {labels.budget(mine[-1])} simulations"
    if len(mine) > 2 and mine == full[-len(mine) :]:
        return f" from {labels.budget(mine[0])} simulations on"
    rest = [b for b in full if b not in mine]
    if rest and len(rest) <= len(mine) // 3:
        return f" at every budget but {listed(map(labels.budget, rest))}"
    return f" at {listed(map(labels.budget, mine))} simulations"


def _certainty(ds: xr.Dataset, settings: Sequence[Setting], judged: Sequence[Setting]) -> list[str]:
    alpha, delta = float(ds.attrs.get("alpha", 0.05)), float(ds.attrs.get("delta", 0.02))
    runs, most = sum(s.runs for s in judged), max((s.runs for s in judged), default=0)
    said = []
    if "verdict_holm" in ds and runs > 1:
        said.append(
            f"The verdicts hold together: over all {runs:,} trained posteriors, the chance that even one is called "
            f"overconfident although its coverage is nowhere below its level is at most {alpha:.0%} (Holm)."
        )
    else:
        said.append(
            "A posterior whose coverage is nowhere below its level is called overconfident with a chance of at most "
            f"{alpha:.0%}"
            + (", each on its own: these verdicts are not corrected for their number." if runs > 1 else ".")
        )
    said.append(
        f"Certified conservative means that coverage is shown to be at least its level minus {delta:g}, at every "
        "level. Inconclusive means that neither was shown; it is not a mild form of either."
    )
    if most == 1:
        said.append(
            "There is one run of each setting, so nothing here says how another training would have turned out."
        )
    else:
        spread = np.array([s.auc.high - s.auc.low for s in judged if s.runs > 1])
        split = sum(max(s.overconfident, s.certified, s.inconclusive) < s.runs for s in judged)
        agree = f"in {_settings(split, len(judged))} the verdicts disagree" if split else "their verdicts agree"
        said.append(
            "Runs of one setting differ in simulations and weights: their coverage AUC spreads over "
            f"{np.median(spread):.3f} in the median setting and {spread.max():.3f} at most, and {agree}."
        )
    lost = sum(s.planned - s.runs for s in settings)
    if lost:
        verb = "is" if lost == 1 else "are"
        said.append(
            f"{counted(lost, 'run').capitalize()} of {runs + lost:,} {verb} not here: not computed yet, or failed."
        )
    broken = sum(s.diverged for s in judged)
    if broken:
        said.append(f"{counted(broken, 'network').capitalize()} diverged in training.")
    return said
