"""Grids: what is refused before anything runs, and what axes expand to."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path

import pytest
from experiments_tiny import TINY, write_toml
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.cli.run import choose_grid
from equipoise.experiments import Folder, GridError, cells_of, load_grid, stacks_of
from equipoise.experiments.entries import parse_entry, resolve_entry
from equipoise.experiments.grids import PACKAGED, TaskFacts, stored_grid
from equipoise.experiments.protocols import PAPER_TASKS, PROTOCOLS
from equipoise.methods import METHODS
from equipoise.support.errors import DamagedFile
from equipoise.tasks import TASKS
from equipoise.training import PAPER, RELEASED

GRIDS = Path(__file__).parents[2] / "grids"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bugdets": [128]}, ["'bugdets'", "did you mean 'budgets'"]),
        ({"tasks": ["slpc"]}, ["'slpc'", "did you mean 'slcp'"]),
        ({"methods": ["NRE-C"]}, ["'NRE-C'", "did you mean 'nre_c'"]),
        ({"protocol": "papr"}, ["'papr'", "did you mean 'paper'"]),
        ({"training": {"epoch": 3}}, ["'epoch'", "did you mean 'epochs'"]),
        ({"training": {"keep": "first"}}, ["keep", "best, last"]),
        ({"tasks": [{"name": "lotka_volterra", "step": 10}]}, ["'step'", "did you mean 'steps'"]),
        ({"tasks": [{"name": "slcp", "steps": 10}]}, ["slcp has no options"]),
        ({"tasks": [{"name": "lotka_volterra", "steps": -1}]}, ["steps", "positive"]),
        ({"methods": [{"name": "bnpe", "strenght": 10}]}, ["'strenght'", "did you mean 'strength'"]),
        ({"methods": [{"name": "npe", "strength": 10}]}, ["nothing to weigh", "npe"]),
        ({"methods": [{"name": "nre", "start": "prior"}]}, ["start", "flows"]),
        ({"methods": [{"name": "nre", "init": "identity"}]}, ["init", "flows"]),
        ({"methods": [{"name": "bnpe", "balance": "multiclass"}]}, ["multiclass", "contrastive"]),
        ({"methods": [{"name": "bnpe", "balance": "kl", "unbiased": True}]}, ["kl", "unbiased"]),
        ({"methods": [{"name": "bnpe", "keep": "all"}]}, ["keep", "best, last"]),
        ({"methods": [{"name": "bnpe", "recipe": "relesed"}]}, ["'relesed'", "did you mean 'released'"]),
        ({"recipe": "equipose"}, ["'equipose'", "did you mean 'equipoise'"]),
        ({"methods": ["npe", "npe[recipe=equipoise]"]}, ["npe[recipe=equipoise] and npe are the same"]),
        ({"methods": ["npe", "npe"]}, ["npe is listed twice"]),
        ({"methods": ["bnpe", {"name": "bnpe", "strength": 100}]}, ["bnpe[strength=100]", "are the same"]),
        ({"methods": [3]}, ["an entry is a name or a table"]),
        ({"methods": []}, ["methods is a list"]),
        ({"budgets": [128, 128]}, ["128 is listed twice"]),
        ({"budgets": [10]}, ["10 simulations leave 1 for validation", "smallest budget is 20"]),
        ({"budgets": [50], "methods": ["nre_c"]}, ["nre_c needs at least 6", "smallest budget is 60"]),
        (
            {"budgets": [256], "methods": ["nre", "bnre[unbiased=true,normalized=true]"]},
            ["bnre[unbiased=true,normalized=true] needs at least 34", "smallest budget is 340"],
        ),
        ({"budgets": 128}, ["budgets is a list"]),
        ({"budgets": [1e3]}, ["whole number"]),
        ({"runs": 0}, ["runs", "at least 1"]),
        ({"runs": True}, ["runs", "whole number"]),
        ({"members": 3}, ["stack = 2", "3 members"]),
        ({"pairs": 10}, ["pairs", "at least 50"]),
        ({"hidden": []}, ["hidden is a list"]),
        ({"gallery": "yes"}, ["gallery"]),
        ({"training": {"batch_size": 4}, "methods": ["bnre_c"]}, ["batch_size = 4", "bnre_c"]),
    ],
)
def test_bad_grids_are_refused_with_the_remedy(change, words):
    with pytest.raises(GridError) as caught:
        load_grid(TINY | change)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("axis", ["tasks", "methods", "budgets"])
def test_a_grid_needs_its_axes(axis):
    with pytest.raises(GridError, match=f"lacks '{axis}'"):
        load_grid({k: v for k, v in TINY.items() if k != axis})


def test_files_that_are_not_grids(tmp_path):
    with pytest.raises(GridError, match=r"did you mean 'paper'"):
        load_grid(tmp_path / "papre.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("tasks = [")
    with pytest.raises(GridError, match="is not TOML"):
        load_grid(bad)


def test_axes_expand_and_labels_are_read_back():
    grid = load_grid(TINY | {"methods": ["npe", {"name": "bnpe", "balance": ["chi2", "kl"], "strength": [0, 1.5]}]})
    labels = [m.label for m in grid.methods]
    assert labels == ["npe", *(f"bnpe[balance={b},strength={s}]" for b in ("chi2", "kl") for s in ("0", "1.5"))]
    assert load_grid(TINY | {"methods": labels}).methods == grid.methods
    assert resolve_entry(grid.methods[3]).row == dataclasses.replace(METHODS["bnpe"], balance="kl", strength=0.0)


def test_entries_on_the_command_line():
    assert parse_entry(" npe ") == "npe"
    assert parse_entry("lotka_volterra[steps=1001, clock=jump]") == {
        "name": "lotka_volterra",
        "steps": 1001,
        "clock": "jump",
    }
    for text in ("bnpe[strength]", "bnpe[strength=1", "", "a b"):
        with pytest.raises(GridError, match="cannot read"):
            parse_entry(text)


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_grids_are_those_of_the_repository(name):
    assert load_grid(name) == load_grid(GRIDS / f"{name}.toml")
    assert load_grid(load_grid(name).config()) == load_grid(name)


def test_the_papers_grids():
    paper, released = load_grid("paper"), load_grid("released")
    assert len(cells_of(paper)) == 2000 and len(cells_of(released)) == 1600
    assert [m.name for m in paper.methods] == list(METHODS)
    assert {t.name for t in paper.tasks} == set(TASKS)
    assert [m.label for m in released.methods if m.name.startswith(("bnpe", "npe"))] == ["npe"]
    assert paper.settings() == PAPER and released.settings() == RELEASED
    rules = {g.name: g.rules("flow") for g in (paper, released)}
    assert {(r.pairs, r.test, r.samples) for r in rules.values()} == {(10_000, 100_000, 128)}
    assert paper.rules("classifier").samples == 512  # interpolated
    # Both are judged with our ranks; the protocol's own way is one cell of artefact.toml.
    assert {r.recipe for r in rules.values()} == {"equipoise"} and PROTOCOLS["released"].recipe == "released"
    assert load_grid(TINY | {"pairs": None}).rules("flow").pairs == 1000
    shapes = {
        g.protocol: {t.name: eq.task(t.name, **g.task_options(t)).x_shape for t in g.tasks} for g in (paper, released)
    }
    assert shapes["paper"]["lotka_volterra"] == (2001, 2) and shapes["released"]["lotka_volterra"] == (1001, 2)
    assert paper.sizes("lotka_volterra").x_scale == 100 and released.sizes("two_moons").flow == (256,) * 6
    # One stack for each task, budget and network: everything that can be trained together is.
    assert len(stacks_of(paper)) == 5 * 8 * 2


def test_the_grid_of_parts_has_every_combination_once():
    """Weights kept × loss × balance × λ, with λ = 0 as one method whatever the balance."""
    grid = load_grid("ablation")
    found = {}
    for entry in grid.methods:
        row, keep = resolve_entry(entry).row, resolve_entry(entry).keep
        found.setdefault((row.network, row.loss, keep), []).append((row.balance, row.unbiased, row.strength))
    strengths = [1, 10, 100, 1000]
    flows = [("none", False, 0)] + [(b, u, s) for b, u in (("chi2", 0), ("chi2", 1), ("kl", 0)) for s in strengths]
    expected = {("flow", loss, keep): flows for loss in ("npe", "nre") for keep in ("best", "last")}
    for keep in ("best", "last"):
        expected["classifier", "nre", keep] = [("none", False, 0)] + [("chi2", False, s) for s in strengths]
        expected["classifier", "nre_c", keep] = [("none", False, 0)] + [
            (b, False, s) for b in ("chi2", "multiclass") for s in strengths
        ]
    assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in expected.items()}
    # Best and last weights are of one training.
    assert not grid.settings().early_stop
    for stack in stacks_of(grid):
        pairs = {}
        for cell in stack.cells:
            pairs.setdefault(cell.training, []).append(cell.keep)
        assert set(map(tuple, pairs.values())) == {("best", "last")} and stack.size == len(stack.cells) / 2


def test_the_grid_of_starts_has_every_scheme():
    schemes = {}
    for entry in load_grid("start").methods:
        row = resolve_entry(entry).row
        schemes.setdefault((row.loss, row.balance), set()).add((row.start, row.init))
    starts = {("random", None)} | {(s, i) for s in ("prior", "prior_base") for i in ("scaled", "identity")}
    assert schemes == {
        ("npe", "none"): {("random", None)},
        ("npe", "chi2"): starts,
        ("nre", "none"): {("random", None)},
        ("nre", "chi2"): starts,
    }


def test_the_grid_of_the_artefact_judges_the_same_networks_twice():
    for stack in stacks_of(load_grid("artefact")):
        assert stack.settings == RELEASED and stack.rules.samples == 1000
        pairs = {}
        for cell in stack.cells:
            pairs.setdefault(cell.training, []).append(cell)
        assert stack.size == len(pairs) == 5 * (2 if stack.network == "classifier" else 1)
        for ours, theirs in pairs.values():
            assert (ours.recipe, theirs.recipe) == ("equipoise", "released") and ours.identity != theirs.identity


def test_samples_may_differ_by_network():
    grid = load_grid(TINY | {"samples": {"classifier": 512, "flow": 64}, "methods": ["npe", "nre"]})
    assert {s.network: s.rules.samples for s in stacks_of(grid)} == {"flow": 64, "classifier": 512}
    assert load_grid(grid.config()) == grid
    # What only classifiers are told changes nothing for flows.
    other = load_grid(grid.config() | {"samples": {"classifier": 600, "flow": 64}})
    same = {c.identity for c in cells_of(grid)} & {c.identity for c in cells_of(other)}
    assert same == {c.identity for c in cells_of(grid) if c.method == "npe"}
    partly = load_grid(TINY | {"samples": {"flow": 64}, "methods": ["nre"]})
    assert stacks_of(partly)[0].rules.samples == PROTOCOLS["default"].samples
    with pytest.raises(GridError, match="samples: there is no kind of network 'flows'; did you mean 'flow'"):
        load_grid(TINY | {"samples": {"flows": 3}})
    with pytest.raises(GridError, match="samples of a flow is a whole number, at least 1 and at most 1,000,000, got 0"):
        load_grid(TINY | {"samples": {"flow": 0}})


@pytest.mark.parametrize("name", ["paper", "released", "ablation", "start"])
def test_some_tasks_and_budgets_of_a_grid_have_the_same_stacks(name):
    """What a series of short jobs computes part by part is what one long job would compute."""
    whole = {s.identity for s in stacks_of(load_grid(name))}
    task = load_grid(name).tasks[1].name
    part = stacks_of(choose_grid(name, None, None, {"tasks": [task], "budgets": [8192, 1024]}))
    assert part and {s.identity for s in part} < whole
    # Fewer methods or runs keep the cells, but not the company they are trained in.
    fewer = stacks_of(choose_grid(name, None, None, {"tasks": [task], "runs": 2}))
    cells = {c.identity for c in cells_of(load_grid(name))}
    assert {c.identity for s in fewer for c in s.cells} < cells and not {s.identity for s in fewer} & whole


def test_the_command_line_selects_entries_with_their_options(tmp_path):
    entries = {
        "tasks": ["slcp", {"name": "lotka_volterra", "steps": 50}],
        "methods": ["npe", "bnpe[strength=1]", "bnre"],
    }
    file = write_toml(tmp_path / "mine.toml", TINY | {"methods": entries["methods"]})
    file.write_text(file.read_text().replace('["slcp"]', '["slcp", {name = "lotka_volterra", steps = 50}]'))
    grid = choose_grid(str(file), None, None, {"tasks": ["lotka_volterra"], "methods": ["bnpe", "bnre"]})
    assert [t.label for t in grid.tasks] == ["lotka_volterra[steps=50]"]
    assert [m.label for m in grid.methods] == ["bnpe[strength=1]", "bnre"]
    assert {c.identity for c in cells_of(grid)} < {c.identity for c in cells_of(load_grid(file))}
    # What the grid does not have is added, and what does not exist is refused.
    assert choose_grid(str(file), None, None, {"tasks": ["weinberg"]}).tasks[0].name == "weinberg"
    with pytest.raises(GridError, match="did you mean 'slcp'"):
        choose_grid(str(file), None, None, {"tasks": ["slpc"]})


def test_a_protocol_never_changes_what_a_method_means():
    rows = {}
    for protocol in ("paper", "released"):
        grid = load_grid(protocol, {"methods": list(METHODS), "tasks": ["slcp"], "budgets": [1024], "runs": 1})
        rows[protocol] = {c.method: dataclasses.replace(c.row, hidden=None) for c in cells_of(grid)}
    # Only how NRE-C draws its sets is the protocol's, unless a grid or a method says.
    apart = {name: row.but(share_rolls=row.loss != "nre_c") for name, row in METHODS.items()}
    assert rows["paper"] == METHODS and rows["released"] == apart
    for change, method in (({"share_rolls": True}, "nre_c"), ({}, "nre_c[share_rolls=true]")):
        grid = load_grid("released", {"methods": [method], "tasks": ["slcp"], "budgets": [1024], "runs": 1} | change)
        assert all(cell.row.share_rolls for cell in cells_of(grid))


def test_methods_may_train_with_batches_and_products_of_their_own():
    methods = [{"name": "bnre", "batch_size": [16, 32], "tf32": [True, False]}, "npe"]
    grid = load_grid(TINY | {"methods": methods, "stack": None})
    assert load_grid(grid.config()) == grid
    stacks = stacks_of(grid)
    assert len(stacks) == 2 * (4 + 1)  # budgets × (settings of classifiers, flows)
    for stack in stacks:
        of_methods = {dict(entry.options).get("batch_size", 32) for entry in grid.methods if entry.label in stack.label}
        assert of_methods == {stack.settings.batch_size} and stack.settings.epochs == 3
    assert len({stack.identity for stack in stacks}) == len(stacks)
    with pytest.raises(GridError, match=r"bnre\[batch_size=32\] and bnre are the same"):
        load_grid(TINY | {"methods": ["bnre", "bnre[batch_size=32]"]})
    with pytest.raises(GridError, match="batch_size"):
        load_grid(TINY | {"methods": ["bnre[batch_size=1]"]})
    with pytest.raises(GridError, match="batch_size = 2 is below"):
        load_grid(TINY | {"methods": ["bnre_c[batch_size=2]"]})


@pytest.mark.parametrize(
    ("name", "cells", "stacks"),
    [
        ("rolls", 3 * 4 * 4 * 10, 12),
        ("bnre_slcp", 4 * 6 * 5, 12),
        ("escape", 2 * 2 * 20, 2),
        ("estimate", 3 * 2 * 2 * 7 * 5, 3 * 2 * 2),
    ],
)
def test_the_grids_of_open_questions(name, cells, stacks):
    grid = load_grid(name)
    assert grid.streams == name  # seeds of their own
    assert (len(cells_of(grid)), len(stacks_of(grid))) == (cells, stacks)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"released_pairs": 61}, "released_pairs = 61, but there are 60 coverage pairs"),
        ({"released_pairs": 50, "recipe": "released"}, "nothing to add"),
        ({"share_rolls": "no"}, "share_rolls"),
        ({"streams": 3}, "streams is a name"),
    ],
)
def test_bad_ways_of_judging_and_drawing_are_refused(change, words):
    with pytest.raises(GridError, match=words):
        load_grid(TINY | change)


def test_command_line_changes_replace_keys(tmp_path):
    file = write_toml(tmp_path / "mine.toml", TINY)
    assert tomllib.loads(file.read_text()) == TINY
    grid = load_grid(file, {"tasks": ["weinberg"], "runs": None, "pairs": 70})
    assert [t.name for t in grid.tasks] == ["weinberg"] and grid.runs == 2 and grid.rules("flow").pairs == 70


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"runs": 10**12}, "runs is a whole number, at least 1 and at most 1,000,000"),
        ({"methods": [{"name": "bnre_c", "strength": [*range(1, 200)], "gamma": [*range(1, 200)]}]}, "entries"),
        ({"training": {"epochs": 1.5}}, "epochs"),
        ({"training": {"epochs": True}}, "epochs"),
        ({"training": {"early_stop": "no"}}, "early_stop"),
        ({"training": {"early_stop": 0}}, "early_stop"),
        ({"training": {"learning_rate": float("nan")}}, "learning_rate"),
        ({"training": {"learning_rate": "fast"}}, "learning_rate"),
        ({"training": {"clip": float("inf")}}, "clip"),
        ({"methods": [{"name": "bnpe", "strength": []}]}, "strength"),
        ({"methods": [{"name": "bnpe", "strength": float("nan")}]}, "strength"),
        ({"methods": [{"name": "bnpe", "strength": "ten"}]}, "strength"),
        ({"methods": [{"name": "bnpe", "unbiased": "no"}]}, "unbiased"),
        ({"methods": [{"name": "nre_c", "contrastive": 2.5}]}, "contrastive"),
        ({"tasks": [{"name": "lotka_volterra", "steps": []}]}, "steps"),
        ({"tasks": [{"name": "lotka_volterra", "steps": float("nan")}]}, "steps"),
        ({"runs": float("nan")}, "runs"),
        ({"budgets": [128.0]}, "budgets"),
    ],
    ids=str,
)
def test_values_of_the_wrong_kind_are_refused(change, word):
    with pytest.raises(GridError, match=word):
        load_grid(TINY | change)


def test_what_plans_know_of_the_papers_tasks_is_what_the_tasks_say():
    for name, known in PAPER_TASKS.items():
        assert TaskFacts.of(name, {}) == TaskFacts(known.options, known.x_dims, known.planar)
        assert TASKS[name].label == known.label


def test_a_task_of_other_options_is_asked_itself():
    grid = load_grid({"protocol": "released", "tasks": ["lotka_volterra"], "methods": ["npe"], "budgets": [1024]})
    assert dict(grid.facts(grid.tasks[0]).options)["steps"] == 1001


NAMES = ["../x", "/tmp/x", "a/b", "a\\b", "", " ", ".", "..", ".hidden", "a\0b", "a\nb", "x" * 101, "é" * 51, 3, ["x"]]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:12])
def test_names_that_lead_out_of_a_directory_are_refused(name, tmp_path):
    with pytest.raises(GridError, match="name"):
        load_grid(TINY | {"name": name})
    file = tmp_path / "grid.json"
    file.write_text(json.dumps({"format": 3, "grid": load_grid(TINY).config() | {"name": name}}))
    with pytest.raises(GridError, match=r"grid\.json: .*name"):
        stored_grid(Folder(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["grid.json"]


HUGE = 10**30
COUNTS = {
    "budgets": [HUGE],
    "runs": 10**12,
    "members": 10**9,
    "pairs": HUGE,
    "test": HUGE,
    "samples": HUGE,
    "seed": HUGE,
    "hidden": [HUGE],
    "transforms": HUGE,
    "stack": HUGE,
    "released_pairs": HUGE,
}


@pytest.mark.parametrize(
    "change",
    [
        *({key: value} for key, value in COUNTS.items()),
        {"pairs": 16**5000},  # more digits than Python writes
        {"hidden": [8] * 101},
        {"samples": {"flow": HUGE}},
        {"streams": "x" * 200},
        {"training": {"epochs": HUGE}},
        {"training": {"batch_size": HUGE}},
        {"training": {"learning_rate": HUGE**20}},
        {"methods": [{"name": "npe", "members": HUGE}]},
        {"methods": [{"name": "npe", "epochs": HUGE}]},
        {"runs": 1_000_000},
    ],
    ids=lambda change: next(iter(change)),
)
def test_counts_beyond_all_bounds_are_refused_without_a_plan(change):
    (key,) = change
    word = {"training": "epochs|batch_size|learning_rate", "methods": "members|epochs"}.get(key, f"{key}|cells")
    with pytest.raises(GridError, match=word) as refused:
        load_grid(TINY | change)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a = " * 10_000,
        "runs = " + "9" * 5000,
        'tasks = ["slcp[x=' + "[" * 100_000 + ']"]',
        "",
        "tasks = 3",
    ],
    ids=["lists", "tables", "digits", "an entry", "empty", "a number"],
)
def test_texts_that_are_no_grids_are_refused(text, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(GridError):
        load_grid(tmp_path / "mine.toml")
    result = CliRunner().invoke(app, ["run", "--grid", str(tmp_path / "mine.toml"), "--dry-run", "--epochs", "3"])
    assert result.exit_code == 2 and result.output.startswith("equipoise: ") and len(result.output) < 1000


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": 3, "grid": ' + '{"a":' * 100_000])
def test_a_stored_grid_that_is_nested_deeply_is_damaged(text, tmp_path):
    (tmp_path / "grid.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"grid\.json"):
        stored_grid(Folder(tmp_path))
