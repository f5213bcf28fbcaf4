"""What the command line shows: live progress, plans, tables of states and of verdicts."""

from __future__ import annotations

__all__ = ["Watch", "plan_table", "say", "status_table", "verdict_table"]

import itertools
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import xarray as xr
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from equipoise.experiments import Folder, Stack, State
from equipoise.experiments.costs import ONCE, cost
from equipoise.experiments.folder import Heartbeat
from equipoise.support.words import duration, listed

#: Seconds between two looks at the folder.
LOOK = 0.5
#: The longest name of a task or a method; longer labels have options.
NAME = len("lotka_volterra")
#: What the verdict table shows; the first four always.
COLUMNS = ("task", "method", "budget", "verdict", "coverage AUC", "log p", "info.", "balance")
COLOURS = {"overconfident": "red", "certified conservative": "green", "inconclusive": "yellow"}
STATES = {"done": "green", "running": "cyan", "failed": "red", "missing": "dim"}


def say(console: Console, text: str, word: str = "", colour: str = "") -> None:
    """Print a text as it is, after a word in a colour: brackets are no markup, and paths are not broken into lines."""
    console.print(Text.assemble((word, colour), " " * bool(word), text), soft_wrap=True)


class Watch:
    """Shows how a run goes, from what stacks write to the folder: bars on a terminal, one line per stack elsewhere."""

    def __init__(self, folder: Folder, stacks: Sequence[Stack], console: Console, device: str, quiet: bool) -> None:
        self.folder, self.console, self.quiet = folder, console, quiet
        self.stacks = {s.identity: s for s in stacks}
        self.costs = {s.identity: cost(s, device).seconds for s in stacks}
        self.once = ONCE[device]
        self.ended: dict[str, str] = {}
        self.late: list[Stack] = []
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._bars: dict[str, Any] = {}
        description, note = (TextColumn(f"{{task.{n}}}", markup=False) for n in ("description", "fields[note]"))
        columns = (description, BarColumn(bar_width=20), note, TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)

    def __enter__(self) -> Watch:
        if not self.quiet and self.console.is_terminal and self.stacks:
            self._progress.start()
            self._total = self._progress.add_task("", total=1.0, note="")
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            self._progress.stop()
        if self.late and not self.quiet:
            first = min(self.late, key=lambda s: self.costs[s.identity])
            say(
                self.console,
                f"stacks left because they would not end in time: {len(self.late)}. The cheapest is {first.label}, "
                f"at most {duration(self.costs[first.identity])} (--pace 0 begins it all the same)",
            )

    def tell(self, stack: Stack, outcome: str) -> None:
        """A stack has ended, or was left for another time."""
        if outcome == "late":
            self.late.append(stack)
            return
        self.ended[stack.identity] = outcome
        if self.quiet or (self.console.is_terminal and outcome == "done"):
            return
        left = f", {self._left(self._share({}))}" if len(self.ended) < len(self.stacks) else ""
        text = f"{stack.label} ({len(self.ended)} of {len(self.stacks)} stacks{left})"
        say(self.console, text, outcome, "red" if outcome == "failed" else "")

    def _loop(self) -> None:
        while not self._stop.wait(LOOK):
            self._draw(self.folder.running())

    def _draw(self, running: dict[str, Heartbeat]) -> None:
        ours = {i: live for i, live in running.items() if i in self.stacks and i not in self.ended}
        for identity in self._bars.keys() - ours.keys():
            self._progress.remove_task(self._bars.pop(identity))
        for identity, live in ours.items():
            stack = self.stacks[identity]
            if identity not in self._bars:
                self._bars[identity] = self._progress.add_task("", total=1.0, note="")
            text = f"  {stack.cells[0].task} {stack.budget} {stack.network}: {live.stage}"
            bar = self._bars[identity]
            self._progress.update(bar, description=text, completed=live.done / live.total, note=live.note)
        every, share = self.stacks.values(), self._share(ours)
        ended = [s for s in every if s.identity in self.ended]
        cells = f"{sum(len(s.cells) for s in ended)} of {sum(len(s.cells) for s in every)} cells"
        note = f"{sum(s.size for s in ended)} of {sum(s.size for s in every)} members · {self._left(share)}"
        self._progress.update(self._total, description=cells, completed=share, note=note)

    def _share(self, running: dict[str, Heartbeat]) -> float:
        """How much of the work is done, by its estimated cost; what is done once goes with the beginning."""
        done = sum(self.costs[i] for i in self.ended) + sum(self.costs[i] * _progress(v) for i, v in running.items())
        return (done + self.once * (done > 0)) / max(self._most, 1e-9)

    @property
    def _most(self) -> float:
        """The most that all of it can cost, in seconds of the machine that costs are for."""
        return self.once + sum(self.costs.values())

    def _left(self, share: float) -> str:
        """The time left in words: a bound as long as members that are still to come may stop early.

        It is none, and not called one, on a machine that turns out to be slower than the one that costs are for.
        """
        elapsed = time.monotonic() - self.started
        if elapsed <= self._most and (share < 0.02 or elapsed < 5):
            return f"at most about {duration(min(self._most - elapsed, self._most * (1 - share)))} left"
        if share == 0:
            return f"longer than the {duration(self._most)} expected"
        early = any(s.settings.early_stop for i, s in self.stacks.items() if i not in self.ended)
        bound = early and elapsed <= share * self._most
        return f"{'at most about' if bound else 'about'} {duration(elapsed * (1 - share) / share)} left"


def _progress(live: Heartbeat) -> float:
    """How far a stack is: training is taken to be four fifths of it, in as many parts as its label says."""
    part = live.done / max(live.total, 1)
    if live.stage.startswith("training"):
        match = re.search(r"stack (\d+) of (\d+)", live.stage)
        number, parts = (int(match[1]), int(match[2])) if match else (1, 1)
        return 0.8 * (number - 1 + part) / parts
    return 0.8 + 0.2 * part if live.stage == "diagnosing" else 0.0


def plan_table(stacks: Sequence[Stack], device: str) -> Table:
    """What would be computed, and what it would cost."""
    table = Table(title="stacks to compute, cheap ones first", title_justify="left")
    for name in ("stack", "cells", "members", "epochs at most", "time at most", "disk"):
        table.add_column(name, justify="left" if name == "stack" else "right", overflow="fold")

    def add(name: str, some: Sequence[Stack], epochs: str) -> None:
        counts = (str(sum(len(s.cells) for s in some)), str(sum(s.size for s in some)), epochs)
        costs = [cost(s, device) for s in some]
        table.add_row(name, *counts, duration(sum(c.seconds for c in costs)), decimal(int(sum(c.size for c in costs))))

    for stack in stacks:
        add(escape(stack.label), [stack], str(stack.settings.epochs))
    table.add_section()
    add("all of it", stacks, "")
    return table


def status_table(state: State) -> Table:
    """How many cells of each task and method are in which state; budgets in the same state go together."""
    counts: dict[tuple[str, str], dict[int, Counter[str]]] = {}
    for cell, word in state.cells:
        counts.setdefault((cell.task, cell.method), {}).setdefault(cell.budget, Counter())[word] += 1
    table = Table(title="cells", title_justify="left")
    for name in ("task", "method", "budgets"):
        table.add_column(name, overflow="fold")
    for labels, row in counts.items():
        alike: dict[str, list[str]] = {}
        for budget in sorted(row):
            alike.setdefault(_counted(row[budget], STATES), []).append(str(budget))
        table.add_row(*map(escape, labels), "; ".join(f"{', '.join(b)}: {c}" for c, b in alike.items()))
    return table


def _counted(counter: Counter[str], colours: Mapping[str, str]) -> str:
    """Words in their colours, with how many there are of each unless there is only one."""
    alone = counter.total() == 1
    return ", ".join(f"[{colours[w]}]{w if alone else f'{n} {w}'}[/]" for w, n in counter.most_common())


def verdict_table(ds: xr.Dataset, width: int) -> Table:
    """The verdict on every run's posterior: how many runs have which, and the medians over runs.

    The columns are the coverage AUC with its standard error, the nominal log posterior, the information kept, and the
    balancing error. Those that do not fit into the width of the terminal are left out from the right, and named below.
    """
    numbers = ["coverage_auc", "coverage_auc_se", "nominal_log_prob", "information_kept", "balancing_error"]
    medians = ds[numbers].median("run")
    rows = []
    for task, method, budget in itertools.product(*(ds[axis].values for axis in ("task", "method", "budget"))):
        place = {"task": task, "method": method, "budget": budget}
        if words := [w for w in ds["verdict_holm"].sel(place).values.tolist() if w]:
            area, error, log_prob, kept, balance = (float(medians[n].sel(place)) for n in numbers)
            share = "–" if math.isnan(kept) else f"{kept:.2f}"
            texts = [f"{area:+.3f} ± {error:.3f}", f"{log_prob:+.2f}", share, f"{balance:.3f}"]
            rows.append([escape(task), escape(method), str(budget), _counted(Counter(words), COLOURS), *texts])
    # A verdict breaks between its words, never inside one, and labels with options break anywhere.
    longest = [min(NAME, max(len(str(label)) for label in ds[axis].values)) for axis in ("task", "method")]
    least = [longest[0] + 1, longest[1], None, len("overconfident")]  # rich takes one from the first column
    needed = [w or max(len(r[i]) for r in [COLUMNS, *rows]) for i, w in zip_longest(range(len(COLUMNS)), least)]
    shown = len(COLUMNS)
    while shown > len(least) and sum(needed[:shown]) + 2 * shown >= width:
        shown -= 1
    if sum(needed[:shown]) + 2 * shown >= width:
        least[:2] = 1, 1
    table = Table(title_justify="left", caption_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.title = f"verdicts on {int(ds['pairs'])} coverage pairs (Holm over all cells)"
    for name, minimum in zip_longest(COLUMNS[:shown], least):
        if minimum is None:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", min_width=minimum)
    for row, following in zip_longest(rows, rows[1:]):
        table.add_row(*row[:shown], end_section=following is None or following[0] != row[0])
    if shown < len(COLUMNS):
        table.caption = f"no room for {listed(COLUMNS[shown:])}; `equipoise status DIR --csv` has all numbers"
    return table
