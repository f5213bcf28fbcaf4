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

from equipoise.diagnostics.pair_statistics import RECIPES
from equipoise.methods import METHODS, Method, resolve
from equipoise.support.checks import finite_number, one_of
from equipoise.support.words import did_you_mean
from equipoise.tasks import TASKS
from equipoise.tasks import task as make_task
from equipoise.training import Settings

from .protocols import FIGURE_LABELS

#: Options of a method that `resolve` checks together, and those that are fields of `Method`.
RESOLVED_OPTIONS = ("balance", "strength", "start")
FIELD_OPTIONS = ("unbiased", "normalized", "normalizer", "contrastive", "gamma", "share_rolls", "init")
#: Training settings that a method may have of its own; methods that differ in them train in separate stacks.
TRAINING_OPTIONS = ("batch_size", "tf32")
METHOD_OPTIONS = (*RESOLVED_OPTIONS, *FIELD_OPTIONS, *TRAINING_OPTIONS, "keep", "recipe")
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
        row: the method.
        keep: the weights that are kept, "best" or "last"; None where the grid decides.
        recipe: of coverage, see `diagnose`; None where the grid decides.
        training: settings that replace the grid's.
    """

    row: Method
    keep: str | None
    recipe: str | None
    training: tuple[tuple[str, Any], ...]


@lru_cache(maxsize=4096)
def resolve_entry(entry: Entry) -> ResolvedEntry:
    """What an entry of a method means by itself; `Grid.resolved` adds what the protocol decides."""
    options = dict(entry.options)
    row = resolve(entry.name, **{key: options.get(key) for key in RESOLVED_OPTIONS})
    row = dataclasses.replace(row, **{key: options[key] for key in FIELD_OPTIONS if key in options})
    training = tuple((key, options[key]) for key in TRAINING_OPTIONS if key in options)
    return ResolvedEntry(row, options.get("keep"), options.get("recipe"), training)


def parse_entry(text: str) -> dict[str, Any] | str:
    """An entry as the command line has it: `bnpe`, or `bnpe[balance=kl,strength=10]`.

    Example:
        >>> parse_entry("bnpe[balance=kl,strength=10]")
        {'name': 'bnpe', 'balance': 'kl', 'strength': 10}
    """
    match = re.fullmatch(r"\s*([^\[\]\s]+)\s*(?:\[(.*)\])?\s*", text)
    if match is None:
        raise GridError(f"cannot read {text!r}; write a name, or a name with options like bnpe[balance=kl,strength=10]")
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
        except tomllib.TOMLDecodeError:
            options[key] = value
    return options


def entries_of(values: Any, axis: str, check: Callable[[str, dict[str, Any]], None]) -> tuple[Entry, ...]:
    """The entries of an axis; lists among the options are multiplied out."""
    if not isinstance(values, list | tuple) or not values:
        raise GridError(f"{axis} is a list of names, got {values!r}")
    entries: list[Entry] = []
    for value in values:
        if isinstance(value, str):
            value = parse_entry(value)
        table = {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise GridError(f'{axis}: an entry is a name or a table {{name = "…", …}}, got {value!r}')
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
    if ":" in name:
        return
    if name not in TASKS:
        raise ValueError(did_you_mean(name, TASKS, "task"))
    known = list(inspect.signature(TASKS[name]).parameters)
    for key in options:
        if key not in known:
            raise ValueError(f"{name} has no options" if not known else did_you_mean(key, known, f"option of {name}"))
    make_task(name, **options)


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse a method that does not exist, or options that do not go together."""
    if name not in METHODS:
        raise ValueError(did_you_mean(name, METHODS, "method"))
    for key in options:
        if key not in METHOD_OPTIONS:
            raise ValueError(did_you_mean(key, METHOD_OPTIONS, "option of a method"))
    _, keep, recipe, training = resolve_entry(Entry(name, tuple(options.items())))
    Settings(**dict(training))  # refuses impossible ones
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
    row = resolve_entry(entry)[0]
    name = FIGURE_LABELS.get(entry.name, row.paper.partition(",")[0] or row.name)
    names = ("network", "loss", "balance", "strength", "start")
    return {"label": _with_options(name, entry.label)} | {n: getattr(row, n) for n in names}


def task_label(label: str) -> str:
    """What figures call a task; one of a user's own is called by its name.

    Example:
        >>> task_label("mine.py:Task[noise=2]")
        'mine.py:Task (noise 2)'
    """
    name = label.partition("[")[0]
    return _with_options(getattr(TASKS.get(name), "label", name), label)


def _with_options(name: str, label: str) -> str:
    """A name, with the options of a label in words."""
    options = label.partition("[")[2].removesuffix("]")
    words = options.replace("=true", "").replace("=", " ").replace("_", " ").replace(",", ", ")
    return f"{name} ({words})" if words else name


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
