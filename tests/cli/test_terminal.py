"""What the command line shows: the time left, on a clock of our own, and labels and paths with brackets in them."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import xarray as xr
from rich.console import Console
from typer.testing import CliRunner

from equipoise import cli
from equipoise.cli import terminal
from equipoise.cli.terminal import COLOURS, Watch, plan_table, say, status_table, verdict_table
from equipoise.experiments import Folder, load_grid, state_of
from equipoise.experiments.cells import stacks_of
from equipoise.methods import METHODS
from equipoise.tasks import TASKS

METHOD = "bnpe[balance=kl]"
GRID = {"name": "small", "tasks": ["slcp"], "methods": ["npe", METHOD], "budgets": [256], "stack": 1}
#: Labels that rich would take for colours.
WALK = {"tasks": ["lotka_volterra[steps=11]"], "methods": [METHOD]}


def stacks(**changes):
    return stacks_of(load_grid(GRID | changes))


@pytest.fixture
def clock(monkeypatch, still):
    """A clock that stands still unless it is moved."""
    monkeypatch.setattr(terminal, "time", still)
    return still


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=40)


def watch(console, path, chosen):
    made = Watch(Folder(path), chosen, console, "cpu", quiet=False)
    made.costs, made.once = dict.fromkeys(made.costs, 10.0), 0.0
    return made


# --- the time left ---------------------------------------------------------------------------------------------------


def told(console, path, clock, chosen, seconds=30):
    """What is said after each stack, so long after the one before."""
    with watch(console, path, chosen) as shown:
        for stack in chosen:
            clock.now += seconds
            shown.tell(stack, "done")
    return [line.rpartition("(")[2] for line in console.file.getvalue().splitlines()]


def test_the_time_left_is_a_bound_where_members_may_stop_early(console, tmp_path, clock):
    assert told(console, tmp_path, clock, stacks(runs=2), seconds=10) == [
        "1 of 4 stacks, at most about 30 s left)",
        "2 of 4 stacks, at most about 20 s left)",
        "3 of 4 stacks, at most about 10 s left)",
        "4 of 4 stacks)",
    ]


def test_it_is_no_bound_on_a_machine_that_is_slower_than_the_one_that_costs_are_for(console, tmp_path, clock):
    assert told(console, tmp_path, clock, stacks(runs=2), seconds=11) == [
        "1 of 4 stacks, about 33 s left)",
        "2 of 4 stacks, about 22 s left)",
        "3 of 4 stacks, about 11 s left)",
        "4 of 4 stacks)",
    ]


def test_what_is_done_once_is_promised_and_not_expected_again(console, tmp_path, clock):
    chosen = stacks(runs=2)
    with watch(console, tmp_path, chosen) as shown:
        shown.once = 20.0
        assert shown._left(0.0) == "at most about 1:00 min left"
        for seconds, stack in zip((30, 10, 10, 10), chosen, strict=True):
            clock.now += seconds
            shown.tell(stack, "done")
    lines = console.file.getvalue().splitlines()
    assert [line.rpartition(", ")[2] for line in lines[:3]] == [f"at most about {n} s left)" for n in (30, 20, 10)]


def test_a_promise_that_is_broken_before_anything_is_known_is_taken_back(console, tmp_path, clock):
    shown = watch(console, tmp_path, stacks())
    clock.now += 21
    assert shown._left(0.0) == "longer than the 20 s expected"
    assert shown._left(0.01) == "about 34:39 min left"


def test_the_time_left_is_an_estimate_where_they_may_not(console, tmp_path, clock):
    assert told(console, tmp_path, clock, stacks(training={"early_stop": False})) == [
        "1 of 2 stacks, about 30 s left)",
        "2 of 2 stacks)",
    ]


def test_it_is_an_estimate_once_the_stacks_that_may_stop_early_have_ended(console, tmp_path, clock):
    chosen = stacks(methods=["npe"]) + stacks(protocol="released", methods=["nre", "bnre"])
    assert [s.settings.early_stop for s in chosen] == [True, False, False]
    lines = told(console, tmp_path, clock, chosen)
    assert lines[:2] == ["1 of 3 stacks, about 1:00 min left)", "2 of 3 stacks, about 30 s left)"]


def test_before_anything_is_known_it_is_the_most_that_all_can_cost(console, tmp_path, clock):
    chosen = stacks(training={"early_stop": False})
    shown = watch(console, tmp_path, chosen)
    shown.costs[chosen[0].identity] = 0.1
    clock.now += 4
    shown.tell(chosen[0], "done")  # 1% of the work
    assert "at most about 6 s left)" in console.file.getvalue()


# --- brackets --------------------------------------------------------------------------------------------------------


def test_a_text_is_said_as_it_is(console):
    text = "/a/[red]/long/path/that/does/not/fit/into/forty/columns bnpe[balance=kl] [/] :smile: \\"
    say(console, text)
    say(console, text, "failed", "red")
    assert console.file.getvalue().splitlines() == [text, f"failed {text}"]


def test_a_stack_that_ended_and_one_that_was_left_keep_their_labels(console, tmp_path, clock):
    chosen = stacks(methods=[METHOD], runs=2)
    with watch(console, tmp_path, chosen) as shown:
        shown.tell(chosen[0], "failed")
        shown.tell(chosen[1], "late")
    first, second = console.file.getvalue().splitlines()
    assert first.startswith(f"failed {chosen[0].label} (1 of 2") and f"The cheapest is {chosen[1].label}," in second
    assert METHOD in first and METHOD in second


def test_bars_keep_their_labels(tmp_path):
    (stack,) = stacks(**WALK)
    folder, screen = Folder(tmp_path), Console(file=io.StringIO(), width=160, force_terminal=True)
    with folder.claim(stack.identity), Watch(folder, [stack], screen, "cpu", quiet=False) as shown:
        folder.heartbeat(stack.identity, "training", 1, 2, "loss [nan]", force=True)
        shown._draw(folder.running())
        shown._progress.refresh()
    assert "lotka_volterra[steps=11] 256 flow: training" in screen.file.getvalue()
    assert "loss [nan]" in screen.file.getvalue()


def test_status_keeps_labels_and_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    folder, grid = Folder(tmp_path / "[red]out"), load_grid(GRID | WALK | {"runs": 2})
    folder.write_grid(grid.config())
    failed, running = stacks_of(grid)
    folder.write_failure(failed.identity, "Traceback\nValueError: x has shape [batch]")
    with folder.claim(running.identity):
        folder.heartbeat(running.identity, "training", 1, 2, "loss [nan]", force=True)
        result = CliRunner().invoke(cli.app, ["status", str(folder.path)])
    table, rest = result.output.split("└")
    assert result.exit_code == 1 and METHOD in table and "lotka_volterra[steps=11]" in table
    assert "1 failed, 1 running" in table
    for words in (
        "training 1/2 loss [nan]",
        f"failed {failed.label} ({failed.identity[:6]})\n",
        "ValueError: x has shape [batch]\n",
    ):
        assert words in rest
    assert f"tracebacks are in {folder.path / 'failed'}; " in rest


def test_a_run_keeps_labels_and_paths(tmp_path, monkeypatch):
    def fails(grid, path, *, tell, **_):
        for stack in stacks_of(grid):
            Folder(path).write_failure(stack.identity, "Traceback\nValueError: x has shape [batch]")
            tell(stack, "failed")
        return state_of(grid, Folder(path))

    monkeypatch.setattr("equipoise.cli.run.run_grid", fails)
    out = tmp_path / "[red]out"
    arguments = ["run", "-t", "lotka_volterra[steps=11]", "-m", METHOD, "-b", "256", "--runs", "1", "--out", str(out)]
    result = CliRunner().invoke(cli.app, arguments)
    first, second, third, last = result.output.splitlines()
    label = f"lotka_volterra[steps=11] 256 flow: {METHOD} · run 0"
    assert result.exit_code == 1 and first.endswith(f"results go to {out}") and last.startswith("0 of 1 cells")
    assert second.startswith(f"failed {label}") and third.startswith(f"failed {label}")
    assert third.endswith(": ValueError: x has shape [batch]")


def test_the_plan_and_the_tables_of_what_there_is_keep_labels():
    runner = CliRunner(env={"COLUMNS": "200"})
    shown = runner.invoke(cli.app, ["run", "--dry-run", "-t", "lotka_volterra[steps=11]", "-m", METHOD, "-b", "256"])
    assert shown.output.count("lotka_volterra[steps=11]") == shown.output.count(METHOD) == 2
    assert "upper bounds: members that have converged stop" in shown.output
    steady = runner.invoke(cli.app, ["run", "--dry-run", "--protocol", "released", "-t", "slcp"])
    assert "times are for" in steady.output and "converged" not in steady.output
    assert "BoxUniform(low=[-3.0, -3.0], high=[3.0, 3.0])" in runner.invoke(cli.app, ["tasks"]).output
    assert "bnpe_init" in runner.invoke(cli.app, ["methods"]).output


def results(task, method, verdict):
    """Results of one cell."""
    axes, one = ("task", "method", "budget", "run"), np.full((1, 1, 1, 1), 0.25)
    names = ("coverage_auc", "coverage_auc_se", "nominal_log_prob", "information_kept", "balancing_error")
    variables = {**dict.fromkeys(names, (axes, one)), "verdict_holm": (axes, np.full(one.shape, verdict, object))}
    return xr.Dataset({**variables, "pairs": 60}, {"task": [task], "method": [method], "budget": [256], "run": [0]})


def test_the_verdict_table_keeps_labels():
    console = Console(file=io.StringIO(), width=120)
    console.print(verdict_table(results("lotka_volterra[steps=11]", METHOD, "inconclusive"), 120))
    row = next(line for line in console.file.getvalue().splitlines() if "256" in line)
    assert row.split()[:4] == ["lotka_volterra[steps=11]", METHOD, "256", "inconclusive"]


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("verdict", COLOURS)
@pytest.mark.parametrize("method", ["brnpe_init", "bnpe[balance=kl,strength=10]"])
@pytest.mark.parametrize("task", ["lotka_volterra", "lotka_volterra[clock=physical,steps=1001]"])
def test_a_narrow_verdict_table_breaks_labels_with_options_and_keeps_the_verdict(task, method, verdict, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(verdict_table(results(task, method, verdict), width))
    text, _, caption = console.file.getvalue().partition("no room for ")
    (*_, head), (_, *rows) = (part.splitlines() for part in text.split(" ─", 1))
    starts = [head.index(name) for name in ("task", "method", "budget", "verdict")]
    columns = [slice(*ends) for ends in pairwise([*starts, starts[-1] + len("overconfident")])]
    shown = ["".join(row[c].strip() for row in rows) for c in columns]
    assert shown == [task, method, "256", verdict.replace(" ", "")]
    whole = [word for word in (*verdict.split(), task, method) if "[" not in word]
    assert {row[c].strip() for row in rows for c in columns} >= set(whole)
    # What is not whole is not there, and said to be left out.
    left_out = " ".join(caption.split(";")[0].replace(" and ", ", ").split()).split(", ") if caption else []
    cells = {"coverage AUC": "+0.250 ± 0.250", "log p": "+0.25", "info.": "0.25", "balance": "0.250"}
    shown = [name for name in cells if name in head]
    assert shown + left_out == list(cells) and (width < 80 or "coverage AUC" in shown)
    first = next(row for row in rows if "256" in row)
    assert first[columns[-1].stop :].split() == " ".join(cells[name] for name in shown).split()


def test_at_80_columns_the_verdict_table_of_the_demonstration_says_what_it_leaves_out():
    ds = results("two_moons", "bnpe_init", "certified conservative")
    for width, fits in ((80, False), (110, True)):
        console = Console(file=io.StringIO(), width=width)
        console.print(verdict_table(ds, width))
        text = console.file.getvalue()
        assert ("balance" in text.split(" ─")[0]) == fits and ("no room for" in text) != fits
        assert "equipoise status DIR --csv" in text or fits


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_tables_of_states_and_plans_lose_nothing(width, tmp_path):
    grid = load_grid(GRID | {"tasks": ["lotka_volterra"], "budgets": [2**k for k in range(10, 18)], "runs": 2})
    for table in (status_table(state_of(grid, Folder(tmp_path))), plan_table(stacks_of(grid), "cpu")):
        console = Console(file=io.StringIO(), width=width)
        console.print(table)
        text = console.file.getvalue()
        assert "…" not in text and max(map(len, text.splitlines())) <= width
        for word in ("131072", "2 missing" if table.title == "cells" else "members"):
            assert word in " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("command", ["tasks", "methods"])
def test_the_tables_of_what_there_is_lose_nothing(command, width):
    shown = CliRunner(env={"COLUMNS": str(width)}).invoke(cli.app, [command]).output
    assert "…" not in shown
    names = list(TASKS if command == "tasks" else METHODS)
    assert [line.split()[0] for line in shown.splitlines() if line[2:3].strip()][-1] == names[-1]
    assert all(f" {name} " in shown for name in names)
