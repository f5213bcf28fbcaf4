"""What the verdicts say, in sentences.

The unit of a statement is a setting: a method at a task and a budget. It is called overconfident only when every one of
its runs is; where runs disagree, the sentence says how many. Nothing is concluded from an inconclusive verdict.
"""

from __future__ import annotations

__all__ = ["Finding", "Headline", "headline"]

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from equipoise.plots.labels import Labels, labels_of
from equipoise.plots.settings import CERTIFIED, INCONCLUSIVE, MISSING, OVERCONFIDENT, PARTLY, Setting, settings_of
from equipoise.support.words import counted, listed


class Finding(NamedTuple):
    """What holds for some settings."""

    state: str
    settings: int  # how many
    where: list[str]


class Headline(NamedTuple):
    """The lead in one or two sentences, the findings by kind, how far to trust them, and what was tempered."""

    lead: str
    findings: list[Finding]
    certainty: list[str]
    tempered: list[str]


def headline(ds: xr.Dataset) -> Headline:
    """The findings of a names."""
    settings, names = settings_of(ds), labels_of(ds)
    judged = [s for s in settings if s.state != MISSING]
    by_state = {
        state: [s for s in judged if s.state == state] for state in (OVERCONFIDENT, PARTLY, CERTIFIED, INCONCLUSIVE)
    }
    findings = [
        Finding(state, len(some), _partly(some, names) if state == PARTLY else _statements(some, names))
        for state, some in by_state.items()
        if some
    ]
    tempered = [_tempered(s, names) for s in judged if s.temperature.known]
    return Headline(_lead(by_state, judged, names), findings, _certainty(ds, settings, judged), tempered)


def _lead(by_state: dict[str, list[Setting]], judged: Sequence[Setting], names: Labels) -> str:
    if not judged:
        return "Nothing has been judged yet."
    over, partly = by_state[OVERCONFIDENT], by_state[PARTLY]
    methods = list(dict.fromkeys(s.method for s in judged))
    accused, torn = {s.method for s in over}, {s.method for s in partly}
    lead = []
    if over:
        groups = _by_place(over)
        if len(groups) <= 2:
            lead = [f"{_subject(m, names)} overconfident{_where(cells, names)}." for m, cells in groups]
        else:
            extent = "at one budget or more" if len(names.tasks) == 1 else "on one task or more"
            lead = [f"{_subject([m for m in methods if m in accused], names)} overconfident {extent}."]
        if torn - accused:
            some = [m for m in methods if m in torn - accused]
            lead.append(f"{_subject(some, names)} overconfident in some runs only.")
    elif partly:
        some_of = f"{_settings(len(partly), len(judged))} {'is' if len(partly) == 1 else 'are'}"
        lead = [f"No setting is overconfident in all of its runs; {some_of} in some of them."]
    else:
        lead = [f"{'The posterior was not' if len(judged) == 1 else 'No posterior was'} found to be overconfident."]
    certified = by_state[CERTIFIED]
    safe = [m for m in methods if all(s.state == CERTIFIED for s in judged if s.method == m)]
    groups = _by_place(certified)
    if safe:
        extent = f" wherever {'it was' if len(safe) == 1 else 'they were'} judged"
        extent = extent if len({(s.task, s.budget) for s in judged}) > 1 else ""
        lead.append(f"{_subject(safe, names)} certified conservative{extent}.")
    elif len(groups) == 1:
        lead.append(f"{_subject(groups[0][0], names)} certified conservative{_where(groups[0][1], names)}.")
    elif certified:
        lead.append(f"Certified conservative: {_settings(len(certified), len(judged))}.")
    elif not over and not partly:
        lead.append(
            "That is no certificate: there were too few pairs, or the curves lie too close to the line, to tell."
        )
    return " ".join(lead)


def _settings(k: int, n: int) -> str:
    return f"{k:,} of {n:,} settings" if n > 1 else "the one setting"


def _subject(methods: Sequence[str], names: Labels) -> str:
    if len(methods) == len(names.methods) > 4:
        return f"All {counted(len(methods), 'method')} are"
    return f"{listed(map(names.method, methods))} {'is' if len(methods) == 1 else 'are'}"


Cells = frozenset[tuple[str, int]]


def _by_place(some: Iterable[Setting]) -> list[tuple[list[str], Cells]]:
    """Methods that share their places, with these places (task, budget)."""
    places: dict[str, set[tuple[str, int]]] = {}
    for s in some:
        places.setdefault(s.method, set()).add((s.task, s.budget))
    groups: dict[Cells, list[str]] = {}
    for method, cells in places.items():
        groups.setdefault(frozenset(cells), []).append(method)
    return [(methods, cells) for cells, methods in groups.items()]


def _statements(some: Iterable[Setting], names: Labels) -> list[str]:
    return [listed(map(names.method, methods)) + _where(cells, names) for methods, cells in _by_place(some)]


def _partly(some: Iterable[Setting], names: Labels) -> list[str]:
    """One line a method and task: in how many runs at which budget."""
    lines: dict[tuple[str, str], list[str]] = {}
    for s in some:
        at = f" at {names.budget(s.budget)}" if len(names.budgets) > 1 else ""
        lines.setdefault((s.method, s.task), []).append(f"{s.overconfident} of {s.runs} runs{at}")
    return [
        f"{names.method(method)} on {names.task(task)}: {listed(counts)}" for (method, task), counts in lines.items()
    ]


def _where(cells: Cells, names: Labels) -> str:
    """ " on SLCP and Weinberg up to 8,192 simulations", as short as it can be said without losing anything."""
    phrases: dict[str, list[str]] = {}
    for task in names.tasks:
        mine = sorted(b for t, b in cells if t == task)
        if mine:
            phrases.setdefault(_budgets(mine, names), []).append(task)
    every = f" on all {counted(len(names.tasks), 'task')}"
    return ";".join(
        (every if len(on) == len(names.tasks) > 2 else f" on {listed(map(names.task, on))}") + phrase
        for phrase, on in phrases.items()
    )


def _budgets(mine: list[int], names: Labels) -> str:
    every, name = sorted(names.budgets), names.budget
    if len(every) == 1:
        return ""
    if mine == every:
        return " at both budgets" if len(every) == 2 else " at every budget"
    if len(mine) > 2 and mine == every[: len(mine)]:
        return f" up to {name(mine[-1])} simulations"
    if len(mine) > 2 and mine == every[-len(mine) :]:
        return f" from {name(mine[0])} simulations on"
    rest = [b for b in every if b not in mine]
    if len(rest) <= len(mine) // 3:
        return f" at every budget but {listed(map(name, rest))}"
    return f" at {listed(map(name, mine))} simulations"


def _certainty(ds: xr.Dataset, settings: Sequence[Setting], judged: Sequence[Setting]) -> list[str]:
    alpha, delta = float(ds.attrs.get("alpha", 0.05)), float(ds.attrs.get("delta", 0.02))
    runs, most = sum(s.runs for s in judged), max((s.runs for s in judged), default=0)
    said, by_level = [], ds.attrs.get("tolerance") == "level"
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
        f"Certified conservative means that coverage is shown to be at least its level minus {delta:g}"
        + (f" (above {1 - 2 * delta:g}, half of what the level lacks to 1)" if by_level else "")
        + ", at every level. Inconclusive means that neither was shown; it is not a mild form of either."
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


def _tempered(s: Setting, names: Labels) -> str:
    """The temperature of a setting in words, what it cost, and what it was good for."""
    t, lost, runs = s.temperature, s.nats_lost, s.runs
    where = f"{names.method(s.method)}, {names.task(s.task)}, {names.budget(s.budget)} simulations"
    if t.low == 1:
        return f"{where}: not tempered (t = 1)" + (f" in any of {runs} runs." if runs > 1 else ".")
    across = f" ({t.low:.2f} to {t.high:.2f} over {runs} runs)" if t.low < t.high else ""
    cost = f"which cost {lost.median:.2f} nats" if lost.median >= 0.005 else "at no cost"
    over = s.untempered_overconfident
    found = f"{over} of {runs} runs were found" if runs > 1 else "it was found" if over else "it was not found"
    return (
        f"{where}: tempered to t = {t.median:.2f}{across}, {cost} in nominal log posterior; untempered, {found} "
        "overconfident."
    )
