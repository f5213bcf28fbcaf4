"""Commands that list what there is: `tasks` and `methods`."""

from __future__ import annotations

__all__ = ["methods", "tasks"]

import json

from rich.console import Console

from .options import AsJson, app
from .shell import errors


@app.command(epilog="Example:  equipoise tasks --json")
def tasks(as_json: AsJson = False) -> None:
    """List the tasks."""
    with errors():
        from .catalogue import task_rows, tasks_table

        if as_json:
            print(json.dumps(task_rows()))
        else:
            Console().print(tasks_table())


@app.command(epilog="Example:  equipoise methods --json")
def methods(as_json: AsJson = False) -> None:
    """List the methods: rows of a table, each a network, a loss, a balance term and a start."""
    with errors():
        from .catalogue import method_rows, methods_table

        if as_json:
            print(json.dumps(method_rows()))
        else:
            Console().print(methods_table())
