"""What `equipoise run` does (choose the grid, show the plan, compute, conclude), and `equipoise status`."""

from __future__ import annotations

__all__ = ["cell_row", "choose_grid", "compute", "conclude", "show_plan", "show_status", "state_row"]

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from equipoise.experiments import (
    Cell,
    Folder,
    Grid,
    GridError,
    State,
    cells_of,
    collect,
    load_grid,
    missing_stacks,
    read_results,
    run_grid,
    state_of,
    table,
    write_results,
)
from equipoise.experiments.costs import ONCE, cost, device_kind
from equipoise.experiments.entries import check_task, entries_of, select
from equipoise.experiments.grids import read_toml, stored_grid
from equipoise.experiments.protocols import PROTOCOLS
from equipoise.methods import MIXTURES
from equipoise.support.words import did_you_mean, duration

from .terminal import Watch, plan_table, say, status_table, verdict_table

#: What a plan takes for granted of a user's task that it does not import: a vector, and no picture.
UNKNOWN = {"x_dims": 1, "planar": False}
#: Which machine the estimates of costs are for.
MACHINES = {"cpu": "two cores", "cuda": "one H200"}


def choose_grid(
    grid: str | None,
    protocol: str | None,
    epochs: int | None,
    changes: dict[str, Any],
    *,
    import_tasks: bool = False,
    known: Mapping[str, Any] | None = None,
) -> Grid:
    """The grid that the options mean: a file, else that of the protocol, else the demonstration; then the changes.

    Arguments:
        grid: the name or file of `--grid`.
        protocol: of `--protocol`.
        epochs: of `--epochs`.
        changes: what other options replace.
        import_tasks: whether tasks called `FILE.py:NAME` are imported, which runs their files.
        known: where they are not, what is known of them from an earlier run, by label.
    """
    if protocol is not None and protocol not in PROTOCOLS:
        raise GridError(did_you_mean(protocol, ("paper", "released"), "protocol"))
    values, name = read_toml(grid or (protocol if protocol in ("paper", "released") else "demo"))
    if missing := [a for a in ("tasks", "methods", "budgets") if a not in values and not changes.get(a)]:
        raise GridError(f"{grid} lacks {missing[0]!r}; a grid needs tasks, methods and budgets")
    changes = changes | {"protocol": protocol}
    if epochs is not None:
        stored = values.get("training", {})
        changes["training"] = {**stored, "epochs": epochs} if isinstance(stored, dict) else stored
    values.setdefault("name", name)
    listed = changes.get("methods") or values.get("methods")
    tables = [{"name": m} if isinstance(m, str) else m for m in listed] if isinstance(listed, list) else []
    methods = [str(m.get("name", "")) for m in tables if isinstance(m, dict)]  # others are refused below
    for option, given in (("epochs", epochs), ("members", changes.get("members"))):
        if given is not None and methods and all(m.partition("[")[0] in MIXTURES for m in methods):
            example = f"-m '{methods[0].partition('[')[0]}[{option}={given}]'"
            raise GridError(f"--{option} is for the methods of the paper; of a mixture it is an option: {example}")
    if grid is not None:  # a part of the grid keeps its cells: options of its entries, and what is stacked with what
        for axis in ("tasks", "methods"):
            if changes.get(axis):
                changes[axis] = select(values.get(axis, []), changes[axis], axis)
    # What is known of a task comes from the task itself, or from an earlier run: never from a grid file.
    values.pop("user_tasks", None)
    if import_tasks:
        return load_grid(values, changes, import_tasks=True)
    tasks = entries_of(changes.get("tasks") or values.get("tasks"), "tasks", check_task)
    users = [entry for entry in tasks if ":" in entry.name]
    facts = {e.label: UNKNOWN | {"options": dict(e.options)} for e in users} | dict(known or {})
    return load_grid(values, changes | {"user_tasks": {e.label: facts[e.label] for e in users}})


def show_plan(grid: Grid, folder: Folder, device: str | None, as_json: bool) -> None:
    """Print what would be computed, and what it would cost."""
    stacks, kind = missing_stacks(grid, folder, device), device_kind(device)
    if as_json:
        rows = []
        for s in stacks:
            size = {"members": s.size, "seconds_at_most": cost(s, kind).seconds, "bytes": cost(s, kind).size}
            cells = [cell_row(c, "missing") for c in s.cells]
            rows.append({"stack": s.identity, "label": s.label, **size, "cells": cells})
        print(json.dumps({"directory": str(folder.path), "config": grid.config(), "stacks": rows}))
        return
    if users := [e.label for e in grid.tasks if ":" in e.name]:
        print(f"--dry-run imports no task: {', '.join(users)} is planned by what an earlier run stored of it")
    if not stacks:
        print(f"nothing is missing in {folder.path}")
    else:
        console = Console()
        console.print(status_table(state_of(grid, folder)), plan_table(stacks, kind))
        early = ", and upper bounds: members that have converged stop"
        say(console, f"times are for {MACHINES[kind]}{early if any(s.settings.early_stop for s in stacks) else ''}")


def compute(grid: Grid, folder: Folder, device: str | None, quiet: bool, **how: Any) -> State:
    """Compute what is missing, and show how it goes; the other arguments are those of `run_grid`."""
    console, stacks, kind = Console(stderr=True), missing_stacks(grid, folder, device), device_kind(device)
    if not quiet:
        total, left = len(cells_of(grid)), sum(len(s.cells) for s in stacks)
        most = duration(sum(cost(s, kind).seconds for s in stacks) + ONCE[kind])
        where = f"in {len(stacks)} stacks, at most about {most} on {MACHINES[kind]}"
        text = f"{left} of {total} cells to compute {where}" if left else f"all {total} cells are there"
        say(console, f"{grid.name}: {text}; results go to {folder.path}")
    with Watch(folder, stacks, console, kind, quiet) as watch:
        return run_grid(grid, folder.path, device=device, tell=watch.tell, **how)


def conclude(grid: Grid, folder: Folder, state: State, report: bool, quiet: bool, as_json: bool) -> None:
    """Write results, figures and report, and say what was found."""
    summary: dict[str, Any] = state_row(state) | {"directory": str(folder.path)}
    console = Console(quiet=quiet or as_json)
    if state.count("done"):
        summary["results"] = str(write_results(folder, grid))
        console.print(verdict_table(read_results(folder.path), console.width))
        if report:
            summary |= _write_report(folder.path, quiet or as_json)
    for label, text in state.failures.items():
        say(Console(stderr=True), f"{label}: {text.strip().splitlines()[-1]}", "failed", "red")
    if not state.complete:
        there = f"{state.count('done')} of {len(state.cells)} cells are there"
        say(console, f"{there}; run the same command again for the rest")
    if "report" in summary:
        say(console, f"open {summary['report']}")
    if as_json:
        print(json.dumps(summary))


def _write_report(path: Path, quiet: bool) -> dict[str, str]:
    try:
        from equipoise.report import write_figures, write_report
    except ImportError as error:
        print(f"no report: {error} (pip install 'equipoise[cli]')", file=sys.stderr)
        return {}
    progress = False if quiet else None
    write_figures(path, path / "figures", progress)
    write_report(path, path / "report.html", progress)
    return {"figures": str(path / "figures"), "report": str(path / "report.html")}


def show_status(folder: Folder, as_csv: bool, as_json: bool) -> State:
    """Print where an experiment stands."""
    grid = stored_grid(folder)
    state = state_of(grid, folder)
    if as_csv:
        rows = table(collect(folder, grid)) if folder.stacks() else []
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else ["task", "method", "budget", "run"])
        writer.writeheader()
        writer.writerows(rows)
    elif as_json:
        print(json.dumps(state_row(state) | {"cells": [cell_row(c, s) for c, s in state.cells]}))
    else:
        console = Console()
        console.print(status_table(state))
        for live in state.running:
            say(console, f"running on {live.host}: {live.stage} {live.done}/{live.total} {live.note}")
        for label, text in state.failures.items():
            say(console, f"{label}\n{text.strip().splitlines()[-1]}", "failed", "red")
        if state.failures:
            say(console, f"tracebacks are in {folder.path / 'failed'}; `equipoise run` tries again")
    return state


def state_row(state: State) -> dict[str, Any]:
    """How many cells are in which state."""
    return {"complete": state.complete} | {w: state.count(w) for w in ("done", "running", "failed", "missing")}


def cell_row(cell: Cell, state: str) -> dict[str, Any]:
    """A cell and its state."""
    names = ("task", "method", "budget", "run")
    return {n: getattr(cell, n) for n in names} | {"cell": cell.identity, "state": state}
