"""Entries of a grid: a task or a method, with options of its own.

In TOML an entry is a name, or a table `{name = "bnpe", strength = [1, 10]}` whose lists are axes; on the command line,
and in results, it is `bnpe` or `bnpe[strength=10]`.
"""

from __future__ import annotations

__all__ = [
    "Entry",
    "GridError",
    "Meaning",
    "check_method",
    "check_task",
    "entries_of",
    "method_of",
    "nearest",
    "parse_entry",
    "select",
]

import dataclasses
import difflib
import inspect
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from equipoise.diagnostics.pair_statistics import RECIPES
from equipoise.methods import METHODS, Method, resolve
from equipoise.networks import INITS
from equipoise.tasks import TASKS
from equipoise.tasks import task as make_task

#: Options of a method that change its row, and those that `Objective` takes.
ROW_OPTIONS = {"balance": "balance", "strength": "strength", "start": "start"}
OBJECTIVE_OPTIONS = ("unbiased", "normalized", "normalizer", "contrastive", "gamma")
METHOD_OPTIONS = (*ROW_OPTIONS, *OBJECTIVE_OPTIONS, "init", "keep", "recipe")


class GridError(ValueError):
    """A grid that cannot be run, with what is wrong and what would be right."""


def nearest(word: str, words: Iterable[str], what: str) -> str:
    """A sentence that says what there is instead of `word`.

    Example:
        >>> nearest("bugdets", ["budgets", "runs"], "key")
        "there is no key 'bugdets'; did you mean 'budgets'? There are budgets, runs."
    """
    known = list(words)
    close = difflib.get_close_matches(str(word).lower().replace("-", "_"), known, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"there is no {what} {word!r}{hint} There are {', '.join(known)}."


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
        if not self.options:
            return self.name
        return f"{self.name}[{','.join(f'{k}={_text(v)}' for k, v in self.options)}]"


class Meaning(NamedTuple):
    """What an entry of a method means; None where the grid decides.

    Arguments:
        row: the method's row.
        objective: `Objective`'s other options.
        init: how a flow's weights start.
        keep: which weights are kept, "best" or "last".
        recipe: how coverage is computed, see `diagnose`.
    """

    row: Method
    objective: tuple[tuple[str, Any], ...]
    init: str | None
    keep: str | None
    recipe: str | None


@lru_cache(maxsize=4096)
def method_of(entry: Entry) -> Meaning:
    """What an entry means."""
    options = dict(entry.options)
    row = resolve(entry.name, **{argument: options.get(key) for key, argument in ROW_OPTIONS.items()})
    objective = tuple((k, options[k]) for k in OBJECTIVE_OPTIONS if k in options)
    row.objective(**dict(objective))
    return Meaning(row, objective, *(options.get(key) for key in ("init", "keep", "recipe")))


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
        choices = [v if isinstance(v, list | tuple) else [v] for v in table.values()]
        for chosen in itertools.product(*choices):
            options = dict(zip(table, chosen, strict=True))
            try:
                check(name, options)
            except (ValueError, TypeError) as error:
                raise GridError(f"{axis}: {error}") from error
            entries.append(Entry(name, tuple(options.items())))
    labels = [e.label for e in entries]
    for label in labels:
        if labels.count(label) > 1:
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
        raise ValueError(nearest(name, TASKS, "task"))
    known = list(inspect.signature(TASKS[name]).parameters)
    for key in options:
        if key not in known:
            raise ValueError(f"{name} has no options" if not known else nearest(key, known, f"option of {name}"))
    make_task(name, **options)


def check_method(name: str, options: dict[str, Any]) -> None:
    """Refuse a method that does not exist, or options that do not go together."""
    if name not in METHODS:
        raise ValueError(nearest(name, METHODS, "method"))
    for key in options:
        if key not in METHOD_OPTIONS:
            raise ValueError(nearest(key, METHOD_OPTIONS, "option of a method"))
    row, *_ = method_of(Entry(name, tuple(options.items())))
    init, keep = options.get("init"), options.get("keep")
    if init is not None and (init not in INITS or row.network != "flow"):
        raise ValueError(f"init is one of {', '.join(INITS)}, for flows; got {init!r} for {name}")
    if keep not in (None, "best", "last"):
        raise ValueError(f"keep is best or last, got {keep!r}")
    if options.get("recipe", RECIPES[0]) not in RECIPES:
        raise ValueError(nearest(options["recipe"], RECIPES, "recipe"))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
