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
        from equipoise.tasks import TASKS, task

        rows: list[dict[str, Any]] = []
        for name, kind in TASKS.items():
            made = task(name)
            about = {"name": name, "parameters": made.prior.dim, "prior": repr(made.prior)}
            options = [str(p) for p in inspect.signature(kind).parameters.values()]
            exact = {"x_shape": list(made.x_shape), "exact posterior": made.has_exact_posterior}
            rows.append(about | exact | {"options": options})
        if as_json:
            print(json.dumps(rows))
            return
        for row in rows:
            row["exact posterior"] = "yes" if row["exact posterior"] else "no"
            row["options"] = ", ".join(option.split(":")[0] for option in row["options"])
        _print(rows[0], (row.values() for row in rows))


@app.command(epilog="Example:  equipoise methods --json")
def methods(as_json: AsJson = False) -> None:
    """List the paper's methods: rows of a table, each a network, a loss, a balance term and a start.

    `equipoise fit` and `equipoise run` also have 'calibrated', what `fit` does unless told otherwise: small spline
    flows, cross-fitted, mixed and tempered.
    """
    with errors():
        from equipoise.methods import METHODS

        rows = [dataclasses.asdict(m) for m in METHODS.values()]
        if as_json:
            print(json.dumps(rows))
            return
        columns = {n: n for n in ("name", "network", "loss", "balance")}
        columns |= {"strength": "λ", "start": "start", "paper": "in the paper"}
        shown = ([f"{v:g}" if isinstance(v, float) else v for v in map(row.get, columns)] for row in rows)
        _print(columns.values(), shown)
        print()


def _print(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    table = Table(box=SIMPLE_HEAD, collapse_padding=True)
    for number, name in enumerate(columns):  # names stay whole; the rest breaks where it has to
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(escape(str(v)) for v in row))
    Console().print(table)
