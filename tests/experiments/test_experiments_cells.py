"""Cells: an identity for all that determines a result, and nothing else; stacks that the grid alone fixes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys

import pytest
from experiments_tiny import TINY, environment

from equipoise.experiments import cells, cells_of, load_grid, protocols, stacks_of
from equipoise.experiments.folder import EARLIER
from equipoise.support.randomness import integer


def identities(**change):
    return {(c.task, c.method, c.budget, c.run): c.identity for c in cells_of(load_grid(TINY | change))}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"name": "x"},
        {"streams": ""},
        {"released_pairs": 50},
        {"members": 1},
        {"pairs": 61},
        {"test": 61},
        {"samples": 17},
        {"hidden": [8, 9]},
        {"protocol": "released"},
        {"training": {"epochs": 4, "batch_size": 32}},
        {"training": {"epochs": 3, "batch_size": 32, "learning_rate": 0.002}},
    ],
)
def test_whatever_changes_a_result_changes_every_identity(change):
    before, after = identities(), identities(**change)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def test_a_new_version_of_the_numerics_changes_every_identity(monkeypatch):
    before = identities()
    monkeypatch.setattr(cells, "NUMERICS", cells.NUMERICS + 1)
    assert not set(before.values()) & set(identities().values())


@pytest.mark.parametrize(
    "change",
    [
        {"runs": 3},
        {"budgets": [128, 256, 512]},
        {"methods": ["bnre", "npe", "nre"]},
        {"tasks": ["weinberg", "slcp"]},
        {"stack": 64},
        {"name": "x", "streams": "tiny"},
    ],
)
def test_a_larger_grid_keeps_the_identities_of_its_cells(change):
    before, after = identities(), identities(**change)
    assert before.items() <= after.items()
    assert len(set(after.values())) == len(after)


def test_method_options_are_part_of_the_identity_by_what_they_mean():
    def one(method):
        return cells_of(load_grid(TINY | {"methods": [method], "budgets": [128], "runs": 1}))[0].identity

    plain = one("bnpe")
    assert one({"name": "bnpe", "strength": 100}) == plain == one({"name": "npe", "balance": "chi2"})
    others = [
        {"strength": 10},
        {"balance": "kl"},
        {"unbiased": True},
        {"start": "prior"},
        {"init": "identity"},
        {"keep": "last"},
    ]
    assert len({plain, *(one({"name": "bnpe", **o}) for o in others)}) == len(others) + 1


def test_only_the_sizes_that_a_network_has_matter():
    before, after = identities(), identities(transforms=2)
    same = {k[1] for k in before if before[k] == after[k]}
    assert same == {"bnre"}


@pytest.mark.parametrize("change", [{"layers": 9}, {"channels": 17}, {"x_scale": 100.0}], ids=str)
def test_what_the_protocol_does_with_observations_is_part_of_every_identity(change, monkeypatch):
    before, rows = identities(tasks=["spatial_sir"]), protocols.SIZES["default"]
    monkeypatch.setitem(rows, "spatial_sir", dataclasses.replace(rows["spatial_sir"], **change))
    after = identities(tasks=["spatial_sir"])
    assert before.keys() == after.keys() and not set(before.values()) & set(after.values())


def test_identities_do_not_depend_on_the_process():
    code = (
        "import json, sys; from equipoise.experiments import *;"
        "print(json.dumps([c.identity for c in cells_of(load_grid(json.loads(sys.argv[1])))]))"
    )
    env = environment() | {"PYTHONHASHSEED": "77"}
    text = subprocess.run(
        [sys.executable, "-c", code, json.dumps(TINY)], env=env, capture_output=True, text=True, check=True
    )
    assert json.loads(text.stdout) == [c.identity for c in cells_of(load_grid(TINY))]


def test_stacks_share_a_task_a_budget_and_a_network_and_hold_every_cell_once():
    grid = load_grid(
        TINY
        | {
            "methods": ["npe", "nre", "bnre", "bnpe_init", "npe[keep=last]"],
            "stack": None,
            "tasks": ["slcp", "weinberg"],
        }
    )
    stacks = stacks_of(grid)
    assert len(stacks) == 2 * 2 * 2  # tasks × budgets × (flows, classifiers)
    for stack in stacks:
        assert len({(c.task, c.budget, c.row.network) for c in stack.cells}) == 1
        assert all(c.keep == ("last" if c.method.endswith("[keep=last]") else "best") for c in stack.cells)
        # npe and npe[keep=last] are one training, and stand side by side.
        assert stack.size == len({c.training for c in stack.cells}) * stack.members == 2 * 2 * stack.members
    every = [c.identity for s in stacks for c in s.cells]
    assert len(every) == len(set(every)) == 2 * 2 * 5 * 2


@pytest.mark.parametrize("most", [2, 4, 7, 100])
def test_a_stack_has_at_most_as_many_members_as_the_grid_says(most):
    stacks = stacks_of(load_grid(TINY | {"methods": ["nre", "bnre", "nre_c"], "stack": most}))
    assert max(s.size for s in stacks) <= most
    assert sum(s.size for s in stacks) == 3 * 2 * 2 * 2


def test_seeds_belong_to_the_run_and_the_member_alone():
    stacks = stacks_of(load_grid(TINY | {"tasks": ["slcp", "weinberg"]}))
    slcp, weinberg = ([s for s in stacks if s.task.name == n] for n in ("slcp", "weinberg"))
    assert len({s.stream("run", 0) for s in slcp}) == 1  # whatever the budget: a smaller one is a prefix
    assert slcp[0].stream("run", 0) != slcp[0].stream("run", 1) != slcp[0].stream("test")
    assert slcp[0].stream("run", 0) != weinberg[0].stream("run", 0)


def test_runs_of_two_grids_share_nothing():
    one, other, same = (
        stacks_of(load_grid(TINY | change))[0] for change in ({}, {"name": "other"}, {"name": "x", "streams": "tiny"})
    )
    for path in (("run", 0), ("run", 0, "member", 0), ("coverage",), ("test",)):
        assert one.stream(*path) == same.stream(*path) != other.stream(*path)
    # Results that were stored before were keyed by task and run.
    earlier = stacks_of(load_grid(TINY | {"streams": ""}))[0]
    assert earlier.stream("run", 0) == integer(0, "experiment", "slcp", "run", 0)


def test_what_is_done_is_taken_out_of_a_stack():
    stack = stacks_of(load_grid(TINY | {"stack": None}))[0]
    first, *rest = stack.cells
    left = stack.without({first.identity, "something else"})
    assert left is not None and left.cells == tuple(rest) and left.identity != stack.identity
    assert stack.without([]) is stack
    assert stack.without([c.identity for c in stack.cells]) is None


#: Of packaged grids: how many cells, the first and the last identity, and digests of all cells' and all stacks'. Stored
#: results are known by them: they change only with `NUMERICS`.
STORED = {
    "demo": (10, "4a590358579587c2515d", "7f9353f4be780e9f60d9", "88dfe1de19907869", "a987e4612b9c2872"),
    "paper": (2000, "f9dbd8e8db9e92fe9180", "814a96419d028a6ea15c", "e5e179aa9cfb2c20", "b62ceb7f43961551"),
    "released": (1600, "0bd9d186cac74ad72632", "de984c87f28bd1dba3b5", "aedccf43c93fef76", "a4b3a1f64512402b"),
    "ablation": (960, "ffd06392df9cf074e424", "cbc5b23e2902c32e9bb8", "548b634b1d52f178", "aef9ffaae023ddc7"),
    "start": (480, "f2b7514e5ac9f424f57f", "5ef9cba9137c4e54be5c", "65bb9be4a283eff0", "2a8e0991ac578999"),
    "artefact": (60, "89d25614daf745a472bd", "a1ae7b7f4445010e6e9a", "763d51a6ee650440", "ffeb7207fa71cad2"),
    "leakage": (40, "ff881b48d57e3cbd125e", "3fcd162534ec5230b28a", "9820715cb06a27a7", "9be677dd6aa08087"),
    "mixture": (180, "b71f52e344b8e55b26ed", "e7cdf7f3f523f97b8be1", "858e74422c8f591d", "955d9f54d3771129"),
    "strength": (40, "dad0198989311c2f55dd", "f9409b56a59bfa823dbc", "dec10c6b6a0f0777", "694f71bcb672ea1e"),
}


@pytest.mark.parametrize("name", STORED)
def test_identities_of_stored_grids_stay(name):
    """As the grids were when their results were stored: see `folder.EARLIER`, and without a second judgement."""
    stacks = stacks_of(load_grid(name, {**EARLIER, "released_pairs": 0}))
    every = [c.identity for s in stacks for c in s.cells]
    digests = (
        hashlib.blake2b("".join(identities).encode(), digest_size=8).hexdigest()
        for identities in (every, [s.identity for s in stacks])
    )
    assert (len(every), every[0], every[-1], *digests) == STORED[name]
