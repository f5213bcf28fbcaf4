"""Cells and stacks: what is computed, and what is computed together.

A cell is one task, budget, method and run. Its identity is a hash of everything that determines its result; the same
cell has the same identity in every grid that contains it, on every machine. Where the numbers change although no
setting did (a corrected loss, another stream of random numbers), `NUMERICS` is raised, and nothing computed before
counts any longer.

Cells that share a task, a budget and a network form a stack, which is trained, judged and written as one unit. The
grid alone decides what is in a stack, so that resuming never changes what a member is stacked with: rounding depends
on it, and training amplifies rounding. A part of a grid, some of its tasks or budgets, has the same stacks; fewer
methods or runs make other ones.

Seeds are keyed by what they are for. A run of a task has one set of simulations, of which a smaller budget reads a
prefix, and one seed a member, whatever the method and budget: methods are compared on the same simulations, first
weights and shuffles.
"""

from __future__ import annotations

__all__ = ["NUMERICS", "Cell", "Stack", "cells_of", "stacks_of"]

import dataclasses
import hashlib
import json
from collections.abc import Collection
from functools import cached_property
from typing import Any

from equipoise.methods import Method
from equipoise.randomness import integer
from equipoise.training import Settings

from .entries import Entry, method_of
from .grids import Grid
from .protocols import Protocol, Sizes

#: The version of the numerics. Raise it when the same settings give other numbers.
NUMERICS = 2


@dataclasses.dataclass(frozen=True)
class Cell:
    """One task, budget, method and run.

    Arguments:
        task: the label of the task.
        budget: the number of simulations.
        method: the label of the method.
        run: the number of the run.
        row: the method's row.
        objective: `Objective`'s other options.
        init: how a flow's weights start.
        gallery: whether its density is kept for one observation.
        identity: the hash.
    """

    task: str
    budget: int
    method: str
    run: int
    row: Method
    objective: tuple[tuple[str, Any], ...]
    init: str | None
    gallery: bool
    identity: str


@dataclasses.dataclass(frozen=True)
class Stack:
    """Cells that are computed together, with all that this needs.

    Arguments:
        cells: the cells.
        task: the name and options of their task.
        network: "flow" or "classifier".
        sizes: of the networks.
        rules: how to judge.
        settings: how to train.
        members: networks a cell.
        seed: of everything random.
    """

    cells: tuple[Cell, ...]
    task: Entry
    network: str
    sizes: Sizes
    rules: Protocol
    settings: Settings
    members: int
    seed: int

    @cached_property
    def identity(self) -> str:
        """A hash of the cells."""
        return _hash([c.identity for c in self.cells])

    @property
    def budget(self) -> int:
        return self.cells[0].budget

    @property
    def runs(self) -> list[int]:
        """The runs whose simulations are read."""
        return sorted({c.run for c in self.cells})

    @property
    def size(self) -> int:
        """How many members are trained."""
        return len(self.cells) * self.members

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        training = int(round(self.budget * 0.9, 9))
        whole, left = divmod(training, self.settings.batch_size)
        return max(1, whole + (self.settings.partial_batch and left > 0))

    @property
    def label(self) -> str:
        """A few words for people.

        Example:
            >>> from equipoise.experiments import load_grid
            >>> grid = load_grid({"tasks": ["slcp"], "methods": ["npe", "bnpe"], "budgets": [1024], "runs": 2})
            >>> stacks_of(grid)[0].label
            'slcp 1024 flow: npe, bnpe · runs 0–1'
        """
        methods = ", ".join(dict.fromkeys(c.method for c in self.cells))
        runs = f"run {self.runs[0]}" if len(self.runs) == 1 else f"runs {self.runs[0]}–{self.runs[-1]}"
        members = f" · {self.members} members" if self.members > 1 else ""
        return f"{self.cells[0].task} {self.budget} {self.network}: {methods} · {runs}{members}"

    def without(self, done: Collection[str]) -> Stack | None:
        """The stack of the cells that are not in `done`; None if there are none."""
        left = tuple(c for c in self.cells if c.identity not in done)
        return None if not left else self if len(left) == len(self.cells) else dataclasses.replace(self, cells=left)

    def stream(self, *path: str | int) -> int:
        """The seed of something that belongs to this task."""
        return integer(self.seed, "experiment", self.task.name, *path)


def cells_of(grid: Grid) -> list[Cell]:
    """All cells of a grid, in the order of its stacks."""
    return [cell for stack in stacks_of(grid) for cell in stack.cells]


def stacks_of(grid: Grid) -> list[Stack]:
    """The stacks of a grid: task by task, budget by budget, network by network."""
    stacks: list[Stack] = []
    for task in grid.tasks:
        made, sizes = grid.task(task), grid.sizes(task.name)
        full = Entry(task.name, tuple(sorted(made.options.items())))
        groups: dict[tuple[str, str, str], list[Entry]] = {}
        for entry in grid.methods:
            meant = method_of(entry)
            kind = meant.row.network, meant.keep or grid.settings().keep, meant.recipe or grid.rules.recipe
            groups.setdefault(kind, []).append(entry)
        two = made.prior.dim == 2
        for budget in grid.budgets:
            for (network, keep, recipe), entries in groups.items():
                settings = grid.settings(keep)
                rules = dataclasses.replace(grid.rules, recipe=recipe)
                common = _common(grid, full, sizes, network, settings, rules)
                cells = [
                    _cell(common, task.label, budget, entry, run, grid.gallery and two and run == 0)
                    for run in range(grid.runs)
                    for entry in entries
                ]
                most = len(cells) if grid.stack is None else max(1, grid.stack // grid.members)
                for low in range(0, len(cells), most):
                    stacks.append(
                        Stack(
                            cells=tuple(cells[low : low + most]),
                            task=full,
                            network=network,
                            sizes=sizes,
                            rules=rules,
                            settings=settings,
                            members=grid.members,
                            seed=grid.seed,
                        )
                    )
    return stacks


def _common(grid: Grid, task: Entry, sizes: Sizes, network: str, settings: Settings, rules: Protocol) -> dict[str, Any]:
    """What the results of all cells of a task and network depend on."""
    shape = (
        {"hidden": sizes.classifier}
        if network == "classifier"
        else {"hidden": sizes.flow, "transforms": sizes.transforms}
    )
    return {
        "numerics": NUMERICS,
        "task": [task.name, dict(task.options)],
        "network": [network, shape, sizes.layers, sizes.channels, sizes.x_scale],
        "settings": dataclasses.asdict(settings),
        "judge": [rules.recipe, rules.pairs, rules.test, rules.samples],
        "members": grid.members,
        "seed": grid.seed,
    }


def _cell(common: dict[str, Any], task: str, budget: int, entry: Entry, run: int, gallery: bool) -> Cell:
    row, objective, init, *_ = method_of(entry)
    own = {
        "objective": dataclasses.asdict(row.objective(**dict(objective))),
        "start": [row.start, init],
        "budget": budget,
        "run": run,
        "gallery": gallery,
    }
    return Cell(task, budget, entry.label, run, row, objective, init, gallery, _hash(common | own))


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=10).hexdigest()
