"""What a store knows of its simulator: what changes its source, what does not, and what a store does about it."""

from __future__ import annotations

import functools
import itertools
import json
import linecache
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.simulations import Store
from equipoise.simulations.identity import source_changes, source_parts

PRIOR = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
CELLS = itertools.count()

BASE = """
import functools
import numpy as np
import torch

SIGMA = 0.3
GRID = np.linspace(0, 1, 5)
LOG = []

def helper(t):
    return t + GRID.mean()

def model(t, scale=2.0):
    rows = [helper(v) * scale for v in t]
    return SIGMA * sum(rows)
"""


def defined(source: str) -> dict:
    """The names of a notebook's cell, whose source IPython keeps in the same way."""
    names: dict = {"__name__": "__main__"}
    file = f"<ipython-input-{next(CELLS)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return names


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("SIGMA = 0.3", "SIGMA = 0.4", ["SIGMA"]),
        ("np.linspace(0, 1, 5)", "np.linspace(0, 1, 6)", ["GRID"]),
        ("t + GRID", "t - GRID", ["helper"]),
        ("scale=2.0", "scale=3.0", ["code"]),
        ("* scale for", "/ scale for", ["code"]),
        ("SIGMA * sum", "sum", ["code"]),
        ("def model", "\n\n# a comment\ndef model", []),
        ("    rows =", '    """What it does."""\n    rows  =', []),
        ("LOG = []", "LOG = [1, 2]", []),  # not referred to
    ],
)
def test_what_changes_the_source(old: str, new: str, parts: list[str]) -> None:
    assert old in BASE
    before, after = (source_parts(defined(source)["model"]) for source in (BASE, BASE.replace(old, new, 1)))
    assert before is not None and set(before) == {"code", "SIGMA", "helper", "GRID"}
    assert source_changes(before, after) == parts


def test_running_a_simulator_does_not_change_it() -> None:
    log: list[int] = []
    count = 0

    class Counter:
        def __init__(self, scale: float) -> None:
            self.scale, self.calls, self.seen = scale, 0, []

        def _note(self, t: float) -> None:
            self.calls += 1
            self.seen.append(t)

        def __call__(self, t: float) -> float:
            self._note(t)
            return self.scale * t

    def closure(t: float) -> float:
        nonlocal count
        count += 1
        log.append(1)
        return sum(t + k for k in range(3))

    for simulator in (closure, Counter(2.0), Counter(2.0).__call__):
        before = source_parts(simulator)
        simulator(1.0)
        assert before is not None and source_changes(before, source_parts(simulator)) == []
    assert source_changes(source_parts(Counter(2.0)), source_parts(Counter(3.0))) == ["scale"]


def test_values_that_count() -> None:
    def model(t, parameter=None):
        return t, parameter

    values = [
        *(1, 1.0, True, "1", None, (1, 2), [1, 2], {1: 2}, {1, 2}),
        np.array([1.0, 2.0]),
        np.array([[1.0, 2.0]]),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
        lambda t: t,
        lambda t: t + 1,
        torch.nn.Linear(1, 1),
        torch.nn.Linear(1, 1),
    ]
    found = [source_parts(functools.partial(model, parameter=value)) for value in values]
    assert len({json.dumps(f) for f in found}) == len(values)
    assert [source_parts(functools.partial(model, parameter=value)) for value in values] == found

    def made(value: object):
        return lambda t: (t, value)

    assert source_changes(source_parts(made(1.0)), source_parts(made(2.0))) == ["value"]
    assert not source_changes(
        source_parts(made(np.random.default_rng(0))), source_parts(made(np.random.default_rng(1)))
    )


def test_things_that_contain_themselves() -> None:
    class Node:
        def __init__(self, value: float) -> None:
            self.value, self.itself = value, self

        def __call__(self, t: float) -> float:
            return self.itself.value * t

    def loop(t: float) -> float:
        return loop(t - 1) if t > 0 else t

    assert source_parts(loop) == source_parts(loop) is not None
    assert source_changes(source_parts(Node(1.0)), source_parts(Node(2.0))) == ["value"]


def test_what_is_known_by_its_name_alone() -> None:
    class Hostile:
        def __getattribute__(self, name: str):
            raise RuntimeError(name)

        def __call__(self, t):
            return t

    typed = {"__name__": "__main__"}
    exec("def model(t): return t", typed)
    task = eq.task("slcp")
    for simulator in (np.sin, torch.sin, len, task.simulate, Hostile(), typed["model"]):
        assert source_parts(simulator) is None


SCRIPT = """
import functools, json, sys
import numpy as np, torch
import models
from equipoise.simulations.identity import source_parts

WORDS, TABLE = {"a", "b", "c", "d"}, {"k": {1, 2, 3}, "l": (np.arange(3), torch.ones(2))}

class Simulator:
    kinds = frozenset(["x", "y", "z"])
    def __init__(self):
        self.names = {"p", "q", "r"}
    def simulate(self, t, flag=object()):
        return models.helper(t) if t in sys.argv or t in {"u", "v", "w"} else (WORDS, TABLE)

print(json.dumps(source_parts(functools.partial(Simulator().simulate, scale=np.float32(2)))))
"""


def test_every_process_finds_the_same(tmp_path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(seed: int, rate: float) -> dict:
        (tmp_path / "models.py").write_text(f"RATE = {rate}\ndef helper(t):\n    return RATE * t\n")
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, tmp_path / "script.py"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return json.loads(done.stdout)

    first = run(1, 2.0)
    assert {"code", "WORDS", "TABLE", "models.helper", "RATE", "names", "scale"} <= set(first)
    assert run(2, 2.0) == first
    assert source_changes(first, run(3, 3.0)) == ["RATE"]


# --- what a store does about it ------------------------------------------------------------------------------------


def notebook(body: str):
    """A function `model`, as a notebook's cell defines it again and again."""
    return defined(f"def model(t):\n    return {body}\n")["model"]


def test_a_store_refuses_a_simulator_that_was_written_anew(tmp_path) -> None:
    first = eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32)
    assert torch.equal(eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path).x, first.x)
    for n in (32, 64, 96):  # also where nothing would be simulated
        with pytest.raises(ValueError, match=r"'model' .*code.*same_simulator"):
            eq.simulate(PRIOR, notebook("t * 3"), n, store=tmp_path)
    assert len(Store(tmp_path)) == 64
    with pytest.raises(ValueError, match="same_simulator"):  # a name does not vouch for the code
        eq.simulate(PRIOR, notebook("t * 3"), 64, store=tmp_path, name="model")


def test_a_script_that_asks_for_more_goes_on(tmp_path) -> None:
    """The line that calls `simulate`, with its lambda, may change in all but the lambda."""
    for n in (64, 96):
        call = f"eq.simulate(PRIOR, lambda t: t + 1, {n}, store={str(tmp_path)!r}, block_size=32)"
        assert len(defined(f"import equipoise as eq\nfrom {__name__} import PRIOR\npairs = {call}")["pairs"]) == n


def test_a_class_of_a_notebook_is_the_users_own() -> None:
    sources = [f"class Model:\n    def __call__(self, t):\n        return t * {k}\nmodel = Model()" for k in (2, 3)]
    before, after = (source_parts(defined(source)["model"]) for source in sources)
    assert source_changes(before, after) == ["Model.__call__"]


def test_a_change_that_does_not_matter_is_said_once(tmp_path) -> None:
    first = eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32)
    more = eq.simulate(PRIOR, notebook("t + t"), 96, store=tmp_path, same_simulator=True)
    assert torch.equal(more.x[:64], first.x) and torch.equal(more.x, 2 * more.theta)
    assert len(eq.simulate(PRIOR, notebook("t + t"), 128, store=tmp_path)) == 128
    assert Store(tmp_path).check() == []
    with pytest.raises(ValueError, match="same_simulator"):
        eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path)
    with pytest.raises(ValueError, match="seed"):  # anything else is refused as ever
        eq.simulate(PRIOR, notebook("t * 2"), 64, seed=1, store=tmp_path, same_simulator=True)


def test_a_version_stands_for_the_source(tmp_path) -> None:
    eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32, version="1")
    assert Store(tmp_path).manifest.source is None
    pairs = eq.simulate(PRIOR, notebook("t + t"), 96, store=tmp_path, version="1")
    assert torch.equal(pairs.x, 2 * pairs.theta)
    for version in ("2", None):
        with pytest.raises(ValueError, match="version='1'"):
            eq.simulate(PRIOR, notebook("t * 2"), 96, store=tmp_path, version=version)
    eq.simulate(PRIOR, notebook("t + t"), 96, store=tmp_path, version="2", same_simulator=True)
    assert len(eq.simulate(PRIOR, notebook("t * 2"), 128, store=tmp_path, version="2")) == 128


def test_a_store_without_a_source_goes_on(tmp_path) -> None:
    eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32)
    file = tmp_path / "manifest.json"
    fields = json.loads(file.read_text())
    del fields["source"]
    file.write_text(json.dumps(fields))
    pairs = eq.simulate(PRIOR, notebook("t + t"), 96, store=tmp_path)
    assert torch.equal(pairs.x, 2 * pairs.theta) and Store(tmp_path).check() == []
