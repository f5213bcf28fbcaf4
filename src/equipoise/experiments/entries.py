"""Entries of a grid: a task or a method, with options of its own.

In TOML an entry is a name, or a table `{name = "bnpe", strength = [1, 10]}` whose lists are axes; on the command line,
and in results, it is `bnpe` or `bnpe[strength=10]`.
"""

from __future__ import annotations

__all__ = [
    "Entry",
    "GridError",
    "ResolvedEntry",
    "check_method",
    "check_task",
    "entries_of",
    "method_facts",
    "parse_entry",
    "resolve_entry",
    "select",
    "task_label",
]

import dataclasses
import inspect
import itertools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from equipoise.diagnostics.recipes import RECIPES
from equipoise.methods import METHODS, MIXTURES, Method, resolve_all
from equipoise.support.checks import finite_number, one_of, true_or_false, whole_number
from equipoise.support.words import did_you_mean, shown
from equipoise.training.settings import FOLDS, MOST_MEMBERS, SMALL, Settings

from .protocols import FIGURE_LABELS, PAPER_TASKS

#: Options of a method that `resolve` checks together, and those that are fields of `Method`.
RESOLVED_OPTIONS = ("balance", "strength", "start")
FIELD_OPTIONS = ("unbiased", "normalized", "normalizer", "contrastive", "gamma", "share_rolls", "init")
#: Training settings that a method may have of its own; methods that differ in them train in separate stacks.
TRAINING_OPTIONS = ("batch_size", "tf32", "epochs")
#: How many networks make its posterior, and how they are cross-fitted and tempered (`eq.fit`).
MIXTURE_OPTIONS = ("members", "folds", "calibrate")
METHOD_OPTIONS = (*RESOLVED_OPTIONS, *FIELD_OPTIONS, *TRAINING_OPTIONS, *MIXTURE_OPTIONS, "keep", "recipe")
#: Options of a mixture of methods, whose rows are its own.
MIXED_OPTIONS = (*TRAINING_OPTIONS, "members", "calibrate", "keep", "recipe")
#: The most entries that an axis may have, its options multiplied out.
MOST_ENTRIES = 10_000


class GridError(ValueError):
    """A grid that cannot be run, with what is wrong and what would be right."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A task or a method with options of its own."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """How results call it.

        Example:
            >>> Entry("bnpe", (("strength", 10.0), ("unbiased", True))).label
            'bnpe[strength=10,unbiased=true]'
        """
        options = ",".join(f"{k}={_text(v)}" for k, v in self.options)
        return f"{self.name}[{options}]" if options else self.name


class ResolvedEntry(NamedTuple):
    """What an entry of a method means.

    Arguments:
        rows: the methods of its networks: one, or those of a mixture such as "calibrated".
        keep: the weights that are kept, "best" or "last"; None where the grid decides.
        recipe: of coverage, see `diagnose`; None where the grid decides.
        training: settings that replace the grid's.
        members: networks per run; None where the grid decides.
        folds: of cross-fitting; None for one common split.
        calibrate: whether the folds choose a temperature.
        as_fit: whether it is trained as `eq.fit` does, whatever the protocol.
    """

    rows: tuple[Method, ...]
    keep: str | None
    recipe: str | None
    training: tuple[tuple[str, Any], ...]
    members: int | None = None
    folds: int | None = None
    calibrate: bool = False
    as_fit: bool = False

    @property
    def row(self) -> Method:
        """The method, or the first of a mixture's."""
        return self.rows[0]


@lru_cache(maxsize=4096)
def resolve_entry(entry: Entry) -> ResolvedEntry:
    """What an entry of a method means by itself; `Grid.resolved` adds what the protocol decides."""
    options = dict(entry.options)
    rows = resolve_all(entry.name, *(options.get(key) for key in RESOLVED_OPTIONS))
    fields = {key: options[key] for key in FIELD_OPTIONS if key in options}
    rows = tuple(dataclasses.replace(row, **fields) for row in rows)
    training = tuple((key, options[key]) for key in TRAINING_OPTIONS if key in options)
    mixed, members, folds = entry.name in MIXTURES, options.get("members"), options.get("folds")
    if mixed:
        members = FOLDS * len(rows) if members is None else members
        folds = FOLDS if members >= FOLDS else None
    calibrate = options.get("calibrate", mixed and folds is not None)
    return ResolvedEntry(rows, options.get("keep"), options.get("recipe"), training, members, folds, calibrate, mixed)


def parse_entry(text: str) -> dict[str, Any] | str:
    """An entry as the command line has it: `bnpe`, or `bnpe[balance=kl,strength=10]`.

    Example:
        >>> parse_entry("bnpe[balance=kl,strength=10]")
        {'name': 'bnpe', 'balance': 'kl', 'strength': 10}
    """
    match = re.fullmatch(r"\s*([^\[\]\s]+)\s*(?:\[(.*)\])?\s*", text)
    if match is None:
        raise GridError(
            f"cannot read {shown(text)}; write a name, or a name with options like bnpe[balance=kl,strength=10]"
        )
    name, inside = match.groups()
    if not inside:
        return name
    options: dict[str, Any] = {"name": name}
    for part in inside.split(","):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            raise GridError(f"cannot read {part!r} in {text!r}; options look like strength=10")
        try:
            options[key] = tomllib.loads(f"v = {value}")["v"]
        except ValueError:
            options[key] = value
        except RecursionError as error:
            raise GridError(f"{shown(text)} is nested too deeply") from error
    return options


def entries_of(values: Any, axis: str, check: Callable[[str, dict[str, Any]], None]) -> tuple[Entry, ...]:
    """The entries of an axis; lists among the options are multiplied out."""
    if not isinstance(values, list | tuple) or not values:
        raise GridError(f"{axis} is a list of names, got {shown(values)}")
    entries: list[Entry] = []
    for value in values:
        if isinstance(value, str):
            value = parse_entry(value)
        table = {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise GridError(f'{axis}: an entry is a name or a table {{name = "…", …}}, got {shown(value)}')
        for key, choice in table.items():
            if isinstance(choice, list | tuple) and not choice:
                raise GridError(f"{axis}: {key} of {name} is an empty list: give at least one value")
        choices = [v if isinstance(v, list | tuple) else [v] for v in table.values()]
        if len(entries) + math.prod(map(len, choices)) > MOST_ENTRIES:
            raise GridError(f"{axis}: more than {MOST_ENTRIES:,} entries; split the grid")
        for chosen in itertools.product(*choices):
            options = dict(zip(table, chosen, strict=True))
            try:
                for key, option in options.items():
                    if isinstance(option, float):
                        finite_number(f"{key} of {name}", option)
                check(name, options)
            except (ValueError, TypeError) as error:
                raise GridError(f"{axis}: {error}") from error
            entries.append(Entry(name, tuple(options.items())))
    ((label, times),) = Counter(e.label for e in entries).most_common(1)
    if times > 1:
        raise GridError(f"{axis}: {label} is listed twice")
    return tuple(entries)


def select(entries: Any, wanted: Sequence[str], axis: str) -> list[Any]:
    """The entries of a grid's axis that a command line names, by label or by name; others are added as they are.

    Example:
        >>> select(["slcp", {"name": "lotka_volterra", "steps": 1001}], ["lotka_volterra", "weinberg"], "tasks")
        ['lotka_volterra[steps=1001]', 'weinberg']
    """
    check = check_task if axis == "tasks" else check_method
    known = entries_of(entries, axis, check) if entries else ()
    found: list[Any] = []
    for text in wanted:
        exact = [e for e in known if e.label == text]
        found += [e.label for e in exact or [e for e in known if e.name == text]] or [text]
    return list(dict.fromkeys(found))


def check_task(name: str, options: dict[str, Any]) -> None:
    """Refuse a task that does not exist, or does not take these options.

    A name with a colon is a user's task. It is data here: this is called with what files say, and imports nothing.
    """
    if ":" in name or (name in PAPER_TASKS and not options):
        return
    from equipoise.tasks import TASKS  # here: it needs torch, which plans of the paper's tasks do without
    from equipoise.tasks import task as make_task

    if name not in TASKS:
        raise ValueError(did_you_mean(name, TASKS, "task"))
    known = list(inspect.signature(TASKS[name]).parameters)
    for key in options:
        if key not in known:
            raise ValueError(f"{name} has no options" if not known else did_you_mean(key, known, f"option of {name}"))
    make_task(name, **options)


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse a method that does not exist, or options that do not go together."""
    if name not in METHODS and name not in MIXTURES:
        raise ValueError(did_you_mean(name, [*METHODS, *MIXTURES], "method"))
    known = MIXED_OPTIONS if name in MIXTURES else METHOD_OPTIONS
    for key in options:
        if key not in known:
            raise ValueError(did_you_mean(key, known, f"option of {name if name in MIXTURES else 'a method'}"))
    for key, least in (("members", 1), ("folds", 2)):
        if key in options:
            whole_number(key, options[key], least, MOST_MEMBERS)
    true_or_false("calibrate", options.get("calibrate", False))
    found = resolve_entry(Entry(name, tuple(options.items())))
    keep, recipe = found.keep, found.recipe
    dataclasses.replace(SMALL if found.as_fit else Settings(), **dict(found.training))  # refuses impossible ones
    if found.calibrate and found.folds is None:
        need = f"members={FOLDS} or more" if found.as_fit else f"folds={FOLDS}"
        raise ValueError(f"{name}: calibrate=true needs out-of-fold pairs; give {need}")
    if found.folds is not None and (found.members or found.folds) < found.folds:
        raise ValueError(f"{name}: folds={found.folds} needs at least as many members, got members={found.members}")
    if keep is not None:
        one_of("keep", keep, ("best", "last"))
    if recipe is not None and recipe not in RECIPES:
        raise ValueError(did_you_mean(recipe, RECIPES, "recipe"))


def method_facts(label: str) -> dict[str, Any]:
    """What travels with results of a method: what figures call it, and its row.

    Example:
        >>> method_facts("brnpe")["label"]
        'BRNPE'
        >>> method_facts("bnpe[strength=10,unbiased=true]")
        {'label': 'BNPE (strength 10, unbiased)', 'network': 'flow', 'loss': 'npe', 'balance': 'chi2', 'strength': 10.0,
         'start': 'random'}
    """
    (entry,) = entries_of([label], "methods", check_method)
    row = resolve_entry(entry).row
    name = FIGURE_LABELS.get(entry.name, row.paper.partition(",")[0] or row.name)
    names = ("network", "loss", "balance", "strength", "start")
    return {"label": _with_options(name, entry.label)} | {n: getattr(row, n) for n in names}


def task_label(label: str, given: str = "") -> str:
    """What figures call a task. One of a user's own is called by its `label`, or else by its name.

    Example:
        >>> task_label("mine.py:Task[noise=2]"), task_label("mine.py:Task[noise=2]", "A normal")
        ('mine.py:Task (noise 2)', 'A normal (noise 2)')
    """
    name = label.partition("[")[0]
    return _with_options(PAPER_TASKS[name].label if name in PAPER_TASKS else given or name, label)


def _with_options(name: str, label: str) -> str:
    """A name, with the options of a label in words."""
    options = label.partition("[")[2].removesuffix("]")
    words = options.replace("=true", "").replace("=", " ").replace("_", " ").replace(",", ", ")
    return f"{name} ({words})" if words else name


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
