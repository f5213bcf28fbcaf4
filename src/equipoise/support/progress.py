"""A progress bar for anything that takes longer than two seconds.

`rich` draws it where it is installed and standard error is a terminal; elsewhere a line is printed every half
minute, so that a log file of a long job shows that it is alive and how long it will take. Whoever runs many such pieces
of work and shows them together listens instead (`listening`), and nothing is drawn. Of bars inside one another the
outermost is shown.
"""

from __future__ import annotations

__all__ = ["Progress", "listening"]

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from .words import duration

#: Nothing is shown for work that ends sooner than this, in seconds.
SHOWN_AFTER = 2.0
#: Seconds between two lines where there is no terminal to draw a bar on.
INTERVAL = 30.0

#: Called with the label, the count, the total and the note.
Listener = Callable[[str, int, int, str], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
#: Whether a bar is open already; one inside another is not shown.
_OPEN: ContextVar[bool] = ContextVar("open", default=False)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside this block bars made by this thread are not drawn: `listener` is told of every advance.

    Example:
        >>> with listening(print), Progress("counting", total=2) as bar:
        ...     bar.advance(1, "fine so far")
        counting 1 2 fine so far
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


class Progress:
    """Counts towards `total`; shows the count, a note of the caller's, and the time left.

    What comes before the first count (compiling, starting workers) is no part of the rate, nor is the first count
    itself: the time left is not known before the second.

    Arguments:
        label: what is being done ("simulating", "training").
        total: how many steps there are.
        show: False for silence; None for the default (shown).
        done: how many of them were done before.
        at_most: whether it may end before the total is reached; the time left is then called a bound. Where the caller
            knows better it says so with each advance.

    Example:
        >>> with Progress("counting", total=3) as bar:
        ...     for _ in range(3):
        ...         bar.advance(1, "fine so far")
    """

    def __init__(
        self, label: str, total: int, show: bool | None = None, *, done: int = 0, at_most: bool = False
    ) -> None:
        self.label, self.total, self.show = label, max(total, 1), show is not False and not _OPEN.get()
        self.done, self.note, self.at_most = done, "", at_most
        self.started = self._last_line = time.monotonic()
        self._first: tuple[float, int] | None = None  # when the first count came, and what it was
        self._bar: Any = None
        self._task: Any = None
        self._listener = None if _OPEN.get() else _LISTENER.get()

    def __enter__(self) -> Progress:
        self._token = _OPEN.set(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _OPEN.reset(self._token)
        if self._bar is not None:
            self._bar.stop()

    def advance(
        self, steps: int = 1, note: str = "", last: bool = False, expected: tuple[float, float] | None = None
    ) -> None:
        """Count `steps` more.

        Arguments:
            steps: how many.
            note: a word on how it goes.
            last: whether no more will come, whatever the total.
            expected: the seconds that are left at the least and probably at the most, NaN where nobody knows; None for
                what the count and the total say.
        """
        self.done, self.note = self.done + steps, note
        if self._listener is not None:
            self._listener(self.label, self.done, self.total, note)
            return
        if not self.show:
            return
        now = time.monotonic()
        left = "" if last else self._left(now) if expected is None else self._between(now, *expected)
        if self._first is None and steps:
            self._first = now, self.done
        if self._bar is None and now - self.started > SHOWN_AFTER and self.done < self.total and sys.stderr.isatty():
            self._bar = self._rich_bar()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=self.note, left=left)
        elif not sys.stderr.isatty() and now - self._last_line > INTERVAL and self.total > 1:  # "1/1" says nothing
            self._last_line = now
            words = (f"{self.label}: {self.done}/{self.total}", self.note, left)
            print(" ".join(filter(None, words)), file=sys.stderr, flush=True)

    def _left(self, now: float) -> str:
        """The time left in words; none where there is none, or the rate is not known."""
        if self._first is None or self.done >= self.total:
            return ""
        began, before = self._first
        if self.done == before:
            return ""
        seconds = (now - began) / (self.done - before) * (self.total - self.done)
        return f"{'at most' if self.at_most else 'about'} {duration(seconds)} left"

    def _between(self, now: float, least: float, most: float) -> str:
        """The time so far, and the time left as a range; neither where it is not known."""
        if math.isnan(least + most):
            return ""
        low, high = duration(least), duration(most)
        if low.partition(" ")[2] == high.partition(" ")[2]:
            low = low.partition(" ")[0]
        return f"· {duration(now - self.started)} so far, about {f'{low} to ' if least < most else ''}{high} left"

    def _rich_bar(self) -> Any:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            self.show = False
            print(f"{self.label}… (pip install 'equipoise[progress]' for a progress bar)", file=sys.stderr)
            return None
        bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            transient=True,
        )
        bar.start()
        self._task = bar.add_task(self.label, total=self.total, completed=self.done, note=self.note, left="")
        return bar
