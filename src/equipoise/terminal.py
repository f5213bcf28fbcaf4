"""What the command line shows: live progress, plans, tables of states and of verdicts."""

from __future__ import annotations

__all__ = ["Watch", "plan_table", "say", "size", "status_table", "verdict_table"]

import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import xarray as xr
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from equipoise.experiments import Folder, Stack, State
from equipoise.experiments.costs import Cost, cost
from equipoise.experiments.folder import Live
from equipoise.progress import duration

#: Seconds between two looks at the folder.
LOOK = 0.5
#: The longest name of a task or a method; longer labels have options.
NAME = len("lotka_volterra")
COLOURS = {"overconfident": "red", "certified conservative": "green", "inconclusive": "yellow"}
STATES = {"done": "green", "running": "cyan", "failed": "red", "missing": "dim"}


def size(count: float) -> str:
    """A number of bytes for people.

    Example:
        >>> size(1500), size(2.5e6)
        ('1.5 kB', '2.5 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def say(console: Console, text: str, word: str = "", colour: str = "") -> None:
    """Print a text as it is: brackets in a label are no markup, and a path is not broken into lines.

    Arguments:
        console: where.
        text: the text.
        word: what goes before it, in `colour`.
        colour: one of rich's.
    """
    console.print(Text.assemble((word, colour), " " * bool(word), text), soft_wrap=True)


class Watch:
    """Shows how a run goes while it goes, from what stacks write to the folder; the same for all engines.

    Arguments:
        folder: the folder.
        stacks: what is to be computed.
        console: where to draw; a bar on a terminal, a line a stack elsewhere.
        device: for the estimate of the time.
        quiet: show nothing.
    """

    def __init__(self, folder: Folder, stacks: Sequence[Stack], console: Console, device: str, quiet: bool) -> None:
        self.folder, self.console, self.quiet = folder, console, quiet
        self.stacks = {s.identity: s for s in stacks}
        self.costs = {s.identity: cost(s, device).seconds for s in stacks}
        self.ended: dict[str, str] = {}
        self.late: list[Stack] = []
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._bars: dict[str, Any] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),  # labels have brackets
            BarColumn(bar_width=20),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )

    def __enter__(self) -> Watch:
        if not self.quiet and self.console.is_terminal and self.stacks:
            self._progress.start()
            self._total = self._progress.add_task("", total=1.0, note="")
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
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

    def _draw(self, running: dict[str, Live]) -> None:
        ours = {i: live for i, live in running.items() if i in self.stacks and i not in self.ended}
        for identity in list(self._bars):
            if identity not in ours:
                self._progress.remove_task(self._bars.pop(identity))
        for identity, live in ours.items():
            stack = self.stacks[identity]
            if identity not in self._bars:
                self._bars[identity] = self._progress.add_task("", total=1.0, note="")
            text = f"  {stack.cells[0].task} {stack.budget} {stack.network}: {live.stage}"
            self._progress.update(
                self._bars[identity], description=text, completed=live.done / live.total, note=live.note
            )
        done = [self.stacks[i] for i in self.ended]
        cells, members = sum(len(s.cells) for s in done), sum(s.size for s in done)
        share = self._share(ours)
        note = f"{members} of {sum(s.size for s in self.stacks.values())} members · {self._left(share)}"
        total = sum(len(s.cells) for s in self.stacks.values())
        self._progress.update(self._total, description=f"{cells} of {total} cells", completed=share, note=note)

    def _share(self, running: dict[str, Live]) -> float:
        """How much of the work is done, by its estimated cost."""
        done = sum(self.costs[i] for i in self.ended) + sum(self.costs[i] * _progress(v) for i, v in running.items())
        return done / max(sum(self.costs.values()), 1e-9)

    def _left(self, share: float) -> str:
        """The time left in words: a bound as long as members that are still to come may stop early."""
        elapsed = time.monotonic() - self.started
        if share < 0.02 or elapsed < 5:
            return f"at most about {duration(sum(self.costs.values()))}"
        bound = any(s.settings.early_stop for i, s in self.stacks.items() if i not in self.ended)
        return f"{'at most about' if bound else 'about'} {duration(elapsed * (1 - share) / share)} left"


def _progress(live: Live) -> float:
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
        table.add_column(name, justify="left" if name == "stack" else "right")
    costs = [cost(s, device) for s in stacks]
    for stack, one in zip(stacks, costs, strict=True):
        counts = (str(len(stack.cells)), str(stack.size), str(stack.settings.epochs))
        table.add_row(escape(stack.label), *counts, duration(one.seconds), size(one.size))
    whole = Cost.total(costs)
    counts = (str(sum(len(s.cells) for s in stacks)), str(sum(s.size for s in stacks)), "")
    table.add_section()
    table.add_row("all of it", *counts, duration(whole.seconds), size(whole.size))
    return table


def status_table(state: State) -> Table:
    """How many cells of each task, method and budget are in which state."""
    table = Table(title="cells", title_justify="left")
    budgets = sorted({cell.budget for cell, _ in state.cells})
    table.add_column("task", overflow="fold")
    table.add_column("method", overflow="fold")
    for budget in budgets:
        table.add_column(str(budget), justify="right")
    counts: dict[tuple[str, str], dict[int, Counter[str]]] = {}
    for cell, word in state.cells:
        counts.setdefault((cell.task, cell.method), {}).setdefault(cell.budget, Counter())[word] += 1
    for (task, method), row in counts.items():
        table.add_row(escape(task), escape(method), *(_counts(row.get(b, Counter())) for b in budgets))
    return table


def _counts(counter: Counter[str]) -> str:
    alone = counter.total() == 1
    return ", ".join(f"[{STATES[w]}]{w if alone else f'{n} {w}'}[/]" for w, n in counter.items())


def verdict_table(ds: xr.Dataset) -> Table:
    """The verdict on every run's posterior: how many runs have which, and the medians over runs.

    The columns are the coverage AUC with its standard error, the nominal log posterior, the information kept, and the
    balancing error.
    """
    table = Table(
        title=f"verdicts on {int(ds['pairs'])} coverage pairs (Holm over all cells)",
        title_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    for name in ("task", "method", "budget", "verdict", "coverage AUC", "log p", "info.", "balance"):
        # On a narrow terminal a verdict breaks between its words, never inside one, and labels with options break
        # anywhere; what still does not fit is cut off at the right, where the numbers are.
        width = len("overconfident") if name == "verdict" else None
        if name in ("task", "method"):
            longest = max(len(str(label)) for label in ds[name].values)
            width = min(NAME, longest) + (name == "task")  # rich takes one from the first column
        if width is None:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", min_width=width)
    for t in ds["task"].values:
        for m in ds["method"].values:
            for b in ds["budget"].values:
                cell = ds.sel({"task": t, "method": m, "budget": b})  # `method=` means something else to sel
                words = [w for w in cell["verdict_holm"].values.ravel().tolist() if w]
                if words:
                    table.add_row(escape(str(t)), escape(str(m)), str(b), _verdicts(words), *_numbers(cell))
        table.add_section()
    return table


def _verdicts(words: list[str]) -> str:
    counter = Counter(words)
    if len(words) == 1:
        return f"[{COLOURS[words[0]]}]{words[0]}[/]"
    return ", ".join(f"[{COLOURS[w]}]{n} {w}[/]" for w, n in counter.most_common())


def _numbers(cell: xr.Dataset) -> list[str]:
    auc, error = (float(np.nanmedian(cell[n].values)) for n in ("coverage_auc", "coverage_auc_se"))
    log_prob = float(np.nanmedian(cell["nominal_log_prob"].values))
    kept = cell["information_kept"].values
    balance = float(np.nanmedian(cell["balancing_error"].values))
    text = f"{float(np.nanmedian(kept)):.2f}" if np.isfinite(kept).any() else "–"
    return [f"{auc:+.3f} ± {error:.3f}", f"{log_prob:+.2f}", text, f"{balance:.3f}"]
