"""Cells and stacks: what is computed, and what is computed together.

A cell is one task, budget, method and run. Its identity is a hash of everything that determines its result; the same
cell has the same identity in every grid of the same `streams`, on every machine. Where the numbers change although no
setting did (a corrected loss, another stream of random numbers), `NUMERICS` is raised, and nothing computed before
counts any longer.

Cells that share a task, a budget, a network and the settings of the training form a stack, which is trained, judged
and written as one unit. Cells that differ in the weights they keep or in how they are judged share their training. The
grid alone decides what is in a stack, so that resuming never changes what a member is stacked with: rounding depends
on it, which training amplifies, and so do the draws of those that are judged together. A part of a grid, some of its
tasks or budgets, has the same stacks; fewer methods or runs make other ones.

Seeds are keyed by the grid's `streams` (its name, unless it says otherwise) and by what they are for. A run of a task
has one set of simulations, of which a smaller budget reads a prefix, and one seed per member, whatever the method and
budget: methods of a grid are compared on the same simulations, first weights and shuffles. Runs of two grids are
independent. Results stored before there were `streams` were keyed by task and run alone: their grids share simulations
and first weights.
"""

from __future__ import annotations

__all__ = ["NUMERICS", "Cell", "Stack", "cells_of", "stack_identity", "stacks_of"]

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

from equipoise.methods import Method
from equipoise.support.randomness import integer
from equipoise.training.settings import Settings, batch_for

from .entries import Entry
from .grids import Grid
from .protocols import Protocol, Sizes

#: The version of the numerics. Raise it when the same settings give other numbers.
NUMERICS = 2

#: Fields of `Settings` and of `Objective` that are always part of identities.
SETTINGS = frozenset({
    "epochs", "batch_size", "learning_rate", "factor", "patience", "min_learning_rate", "threshold", "threshold_mode",
    "keep", "early_stop", "weight_decay", "clip", "partial_batch", "validation", "split", "tf32",
})  # fmt: skip
OBJECTIVE = frozenset({"loss", "balance", "strength", "unbiased", "normalized", "normalizer", "contrastive", "gamma"})
#: A stack of more methods than this is called by their names and how many variants each has.
SPELT_OUT = 6
#: The methods of a posterior's networks, and a run.
Training = tuple[tuple[Method, ...], int]


@dataclasses.dataclass(frozen=True)
class Cell:
    """One task, budget, method and run.

    Arguments:
        task: the label of the task.
        budget: the number of simulations.
        method: the label of the method.
        run: the number of the run.
        rows: the method, with the sizes that the protocol chooses for the task; or the methods of a mixture.
        keep: which weights make its posterior, "best" or "last".
        recipe: how coverage is computed, see `diagnose`.
        gallery: whether its density is kept for one observation.
        identity: the hash.
    """

    task: str
    budget: int
    method: str
    run: int
    rows: tuple[Method, ...]
    keep: str
    recipe: str
    gallery: bool
    identity: str

    @property
    def row(self) -> Method:
        """The method, or the first of a mixture's."""
        return self.rows[0]

    @property
    def training(self) -> Training:
        """What decides its networks' weights, within a stack."""
        return self.rows, self.run


@dataclasses.dataclass(frozen=True)
class Stack:
    """Cells that are computed together, with all that this needs.

    Arguments:
        cells: the cells.
        task: the name and options of their task.
        network: "flow" or "classifier".
        sizes: of the networks.
        rules: how to judge; the recipe is a cell's.
        settings: how to train; which weights are kept is a cell's.
        members: networks per cell.
        seed: of everything random.
        streams: what seeds are keyed by besides, see `Grid`.
        own: training settings that its methods have of their own.
        folds: of cross-fitting; None for one common split.
        calibrate: whether the folds choose the temperature of each cell's posterior.
        embedded: whether observations are read by convolutions.
    """

    cells: tuple[Cell, ...]
    task: Entry
    network: str
    sizes: Sizes
    rules: Protocol
    settings: Settings
    members: int
    seed: int
    streams: str = ""
    own: tuple[tuple[str, Any], ...] = ()
    folds: int | None = None
    calibrate: bool = False
    embedded: bool = False

    @cached_property
    def identity(self) -> str:
        """A hash of the cells."""
        return stack_identity([c.identity for c in self.cells])

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
        return len({c.training for c in self.cells}) * self.members

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        share = 0.1 if self.folds is None else 1 / self.folds
        training = int(round(self.budget * 0.9, 9)) if self.folds is None else self.budget - self.budget // self.folds
        whole, left = divmod(training, self.settings.batch_size or batch_for(self.budget, share))
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
        labels = dict.fromkeys(c.method for c in self.cells)
        names = Counter(label.partition("[")[0] for label in labels)
        variants = [name if n == 1 else f"{name} × {n}" for name, n in names.items()]
        spelt_out = len(labels) <= SPELT_OUT
        methods = ", ".join(labels if spelt_out else variants)
        if not spelt_out and self.own:
            methods += " · " + ", ".join(f"{key} {value}" for key, value in self.own)
        runs = f"run {self.runs[0]}" if len(self.runs) == 1 else f"runs {self.runs[0]}–{self.runs[-1]}"
        members = f" · {self.members} members" if self.members > 1 else ""
        return f"{self.cells[0].task} {self.budget} {self.network}: {methods} · {runs}{members}"

    def without(self, done: Collection[str]) -> Stack | None:
        """The stack of the cells that are not in `done`; None if there are none."""
        left = tuple(c for c in self.cells if c.identity not in done)
        return None if not left else self if len(left) == len(self.cells) else dataclasses.replace(self, cells=left)

    def stream(self, *path: str | int) -> int:
        """The seed of something that belongs to this task."""
        key = ("grid", self.streams) if self.streams else ("experiment",)
        return integer(self.seed, *key, self.task.name, *path)


def stack_identity(cells: Sequence[str]) -> str:
    """The identity of the stack that has these cells, by theirs."""
    return _hash(list(cells))


def cells_of(grid: Grid) -> list[Cell]:
    """All cells of a grid, in the order of its stacks."""
    return [cell for stack in stacks_of(grid) for cell in stack.cells]


def stacks_of(grid: Grid) -> list[Stack]:
    """The stacks of a grid: task by task, budget by budget, network by network."""
    stacks: list[Stack] = []
    groups_of: dict[Any, list[Entry]] = {}
    for entry in grid.methods:
        found = grid.resolved(entry)
        shared = found.training, found.members, found.folds, found.calibrate, found.as_fit
        groups_of.setdefault((found.row.network, *shared), []).append(entry)
    for task, budget, (group, entries) in itertools.product(grid.tasks, grid.budgets, groups_of.items()):
        network, own, members, folds, calibrate, _ = group
        facts, sizes, rules = grid.facts(task), grid.sizes_of(task.name, entries[0]), grid.rules(network)
        full = Entry(task.name, facts.options)
        trainings: dict[Training, list[Cell]] = {}
        common = {entry: _common(grid, full, sizes, rules, budget, entry) for entry in entries}
        for run in range(grid.runs):
            picture = grid.gallery and facts.planar and run == 0
            for entry, (rows, keep, recipe, payload) in common.items():
                identity = _hash(payload | {"run": run, "gallery": picture})
                cell = Cell(task.label, budget, entry.label, run, rows, keep, recipe, picture, identity)
                trainings.setdefault(cell.training, []).append(cell)
        groups = list(trainings.values())
        most = len(groups) if grid.stack is None else grid.stack // members
        for low in range(0, len(groups), most):
            cells = tuple(cell for group in groups[low : low + most] for cell in group)
            settings, key = grid.settings_of(entries[0], budget), (grid.seed, str(grid.streams))
            mixed = own, folds, calibrate, sizes.layers > 0 or (sizes.as_fit and facts.x_dims > 1)
            stacks.append(Stack(cells, full, network, sizes, rules, settings, members, *key, *mixed))
    return stacks


def _common(
    grid: Grid, task: Entry, sizes: Sizes, rules: Protocol, budget: int, entry: Entry
) -> tuple[tuple[Method, ...], str, str, dict[str, Any]]:
    """What all runs of a method share: its rows, the weights it keeps, its recipe, and what identities are made of.

    The payload holds everything that a result depends on besides the run. Identities of stored grids depend on its
    form: a setting that is added to `Settings` or `Objective` enters it only where it is not at its default, and so
    does what a posterior of one network, or of networks with one common split, does not have.
    """
    found = grid.resolved(entry)
    keep = found.keep or grid.settings_of(entry, budget).keep
    recipe = found.recipe or rules.recipe
    flow = {"hidden": sizes.flow, "transforms": sizes.transforms}
    shape: dict[str, Any] = {"hidden": sizes.classifier} if found.row.network == "classifier" else flow
    rows = tuple(dataclasses.replace(row, **shape) for row in found.rows)
    row = rows[0]
    payload = {
        "numerics": NUMERICS,
        "task": [task.name, dict(task.options)],
        "network": [row.network, shape, sizes.layers, sizes.channels, sizes.x_scale],
        "settings": _fields(grid.settings_of(entry, budget, keep), SETTINGS),
        "judge": [
            recipe,
            rules.pairs,
            rules.test,
            rules.samples,
            *([rules.released_pairs] * (rules.released_pairs > 0)),
        ],
        "members": found.members,
        "seed": [grid.seed, grid.streams] if grid.streams else grid.seed,
        "objective": _fields(row.objective, OBJECTIVE),
        "start": [row.start, row.init],
        "budget": budget,
    }
    if found.folds is not None:
        payload["folds"] = [found.folds, found.calibrate]
    if found.as_fit:
        payload["mixture"] = [[row.start, row.init, row.univariate, row.bins] for row in rows]
    if sizes.as_fit:
        payload["embedding"] = "fit"
    if rules.tolerance != "constant":
        payload["tolerance"] = rules.tolerance
    return rows, keep, recipe, payload


def _fields(values: Any, always: Collection[str]) -> dict[str, Any]:
    """The fields of a dataclass: those that are always part of identities, and others that are not at their default."""
    return {
        field.name: getattr(values, field.name)
        for field in dataclasses.fields(values)
        if field.name in always or getattr(values, field.name) != field.default
    }


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=10).hexdigest()
