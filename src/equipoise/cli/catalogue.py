"""Commands that list what there is: `tasks` and `methods`."""

from __future__ import annotations

__all__ = ["methods", "tasks"]

import dataclasses
import inspect
import json
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .app import AsJson, app, errors


@app.command(epilog="Example:  equipoise tasks --json")
def tasks(as_json: AsJson = False) -> None:
    """List the tasks."""
    with errors():
        if as_json:
            print(json.dumps(task_rows()))
        else:
            Console().print(tasks_table())


@app.command(epilog="Example:  equipoise methods --json")
def methods(as_json: AsJson = False) -> None:
    """List the methods: rows of a table, each a network, a loss, a balance term and a start."""
    with errors():
        if as_json:
            print(json.dumps(method_rows()))
        else:
            Console().print(methods_table())


def task_rows() -> list[dict[str, Any]]:
    """One row per task: its parameters, prior, observations and options."""
    from equipoise.tasks import TASKS, task

    rows = []
    for name, kind in TASKS.items():
        made = task(name)
        rows.append(
            {
                "name": name,
                "parameters": made.prior.dim,
                "prior": repr(made.prior),
                "x_shape": list(made.x_shape),
                "exact posterior": made.has_exact_posterior,
                "options": [str(p) for p in inspect.signature(kind).parameters.values()],
            }
        )
    return rows


def tasks_table() -> Table:
    """The tasks."""
    rows = task_rows()
    shown = [
        row
        | {
            "exact posterior": "yes" if row["exact posterior"] else "no",
            "options": ", ".join(o.split(":")[0] for o in row["options"]),
        }
        for row in rows
    ]
    return _table(rows[0], (row.values() for row in shown))


def method_rows() -> list[dict[str, Any]]:
    """One row per method: the columns of the table of methods."""
    from equipoise.methods import METHODS

    return [dataclasses.asdict(m) for m in METHODS.values()]


def methods_table() -> Table:
    """The methods."""
    columns = {"name": "name", "network": "network", "loss": "loss", "balance": "balance", "strength": "λ"}
    columns |= {"start": "start", "paper": "in the paper"}
    rows = ([f"{v:g}" if isinstance(v, float) else v for v in map(row.get, columns)] for row in method_rows())
    return _table(columns.values(), rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for number, name in enumerate(columns):  # names stay whole; the rest breaks where it has to
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(escape(str(v)) for v in row))
    return table
