"""What a progress line says of the time left, on a clock of our own."""

from __future__ import annotations

import io
import sys

import pytest

from equipoise.support import progress
from equipoise.support.progress import Progress


@pytest.fixture
def clock(monkeypatch, still):
    """A clock that stands still unless it is moved; every advance prints its line."""
    monkeypatch.setattr(progress, "time", still)
    monkeypatch.setattr(progress, "INTERVAL", -1.0)
    return still


def test_the_first_count_is_not_part_of_the_rate(clock, capsys):
    with Progress("training", 500) as bar:
        bar.advance(0)
        clock.now += 47  # compiling
        bar.advance(1, "well")
        assert capsys.readouterr().err == "training: 0/500\ntraining: 1/500 well\n"
        for _ in range(9):
            clock.now += 0.5
            bar.advance(1, "well")
    assert capsys.readouterr().err.splitlines()[-1] == "training: 10/500 well about 4:05 min left"


def test_what_was_done_before_is_not_part_of_the_rate(clock, capsys):
    with Progress("training", 500, done=400, at_most=True) as bar:
        for _ in range(3):
            clock.now += 2
            bar.advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "training: 401/500",
        "training: 402/500 at most 3:16 min left",
        "training: 403/500 at most 3:14 min left",
    ]


def test_nothing_is_left_after_the_last_count_and_at_the_total(clock, capsys):
    for total, last in ((500, True), (2, False)):
        with Progress("training", total) as bar:
            bar.advance(1)
            clock.now += 3
            bar.advance(1, "0 of 5 members training", last)
        assert capsys.readouterr().err.splitlines()[-1] == f"training: 2/{total} 0 of 5 members training"


def test_one_step_has_no_line(clock, capsys):
    with Progress("sampling", 1) as bar:
        clock.now += 60
        bar.advance(1)
    assert capsys.readouterr().err == ""


def test_a_caller_may_know_better_what_is_left(clock, capsys):
    with Progress("training", 500) as bar:
        for expected in ((float("nan"), float("nan")), (10.2, 25.4), (30.0, 90.0), (65.0, 130.0), (3.0, 3.0)):
            clock.now += 6
            bar.advance(1, "well", expected=expected)
    assert [line.partition("well")[2].strip() for line in capsys.readouterr().err.splitlines()] == [
        "",
        "· 12 s so far, about 10 to 25 s left",
        "· 18 s so far, about 30 s to 1:30 min left",
        "· 24 s so far, about 1:05 to 2:10 min left",
        "· 30 s so far, about 3 s left",
    ]


def test_a_bar_on_a_terminal_says_the_same(clock, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress("training", 500, at_most=True) as bar:
        for _ in range(10):
            clock.now += 60
            bar.advance(1, "well")
    assert "at most 8:10 h left" in screen.getvalue() and "well" in screen.getvalue()
