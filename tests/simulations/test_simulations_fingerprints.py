"""What a store knows of its simulator: what changes a fingerprint, what does not, and what a store does about it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.simulations import Store
from equipoise.simulations.fingerprints import changes, fingerprint

PRIOR = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])

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
    kind = "a" if "a" in {"a", "b", "c"} else "d"
    rows = [helper(v) * scale for v in t]
    return SIGMA * sum(rows)
"""


def defined(source: str) -> dict:
    """The names of a notebook whose cells are `source`."""
    names: dict = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("SIGMA = 0.3", "SIGMA = 0.4", ["SIGMA"]),
        ("np.linspace(0, 1, 5)", "np.linspace(0, 1, 6)", ["GRID"]),
        ("t + GRID", "t - GRID", ["helper"]),
        ("scale=2.0", "scale=3.0", ["code"]),
        ("* scale for", "/ scale for", ["code"]),  # in a nested code object, or inlined, by the version of Python
        ('"c"}', '"e"}', ["code"]),  # in a frozenset
        ("SIGMA * sum", "sum", ["code"]),
        ('else "d"', 'else "e"', ["code"]),
        ("def model", "\n\n# a comment\ndef model", []),
        ("    kind =", '    """What it does."""\n    kind =', []),
        ("LOG = []", "LOG = [1, 2]", []),  # not referred to
    ],
)
def test_what_changes_a_fingerprint(old: str, new: str, parts: list[str]) -> None:
    assert old in BASE
    before, after = (fingerprint(defined(source)["model"]) for source in (BASE, BASE.replace(old, new, 1)))
    assert before is not None and set(before["parts"]) >= {"code", "SIGMA", "helper", "GRID"}
    assert changes(before, after) == parts


def test_a_docstring_alone_is_no_change() -> None:
    before, after = (f"def model(t):\n    '''{text}'''\n    return t" for text in ("One.", "Two."))
    assert fingerprint(defined(before)["model"]) == fingerprint(defined(after)["model"])


def test_running_a_simulator_does_not_change_it() -> None:
    log: list[int] = []
    count = 0

    class Counter:
        def __init__(self, scale: float) -> None:
            self.scale, self.calls, self.seen = scale, 0, []

        def _note(self, t: float) -> None:
            self.calls += 1
            self.seen.append(t)

        def set_scale(self, scale: float) -> None:
            self.scale = scale

        def __call__(self, t: float) -> float:
            self._note(t)
            return self.scale * t

    def closure(t: float) -> float:
        nonlocal count
        count += 1
        log.append(1)
        return sum(t + k for k in range(3))

    for simulator in (closure, Counter(2.0), Counter(2.0).__call__):
        before = fingerprint(simulator)
        for _ in range(200):  # enough for Python to specialise the bytecode
            simulator(1.0)
        assert before is not None and changes(before, fingerprint(simulator)) == []
    counter = Counter(2.0)
    before = fingerprint(counter)
    counter.set_scale(3.0)
    assert changes(before, fingerprint(counter)) == ["scale"]


def test_values_that_count() -> None:
    def model(t, parameter=None):
        return t, parameter

    values = [
        *(1, 1.0, True, "1", None, (1, 2), [1, 2], {1: 2}, {1, 2}),
        np.array([1.0, 2.0]),
        np.array([1.0, 2.0], np.float32),
        np.array([[1.0, 2.0]]),
        np.ma.array([1.0, 2.0], mask=[False, True]),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        torch.tensor([1, 2]),
        np.sin,
        torch.sin,
        lambda t: t,
        lambda t: t + 1,
        functools.partial(model, 1),
        torch.nn.Linear(1, 1),
        torch.nn.Linear(1, 1),
    ]
    found = [fingerprint(functools.partial(model, parameter=value)) for value in values]
    assert len({json.dumps(f) for f in found}) == len(values)
    again = [fingerprint(functools.partial(model, parameter=value)) for value in values]
    assert again == found

    def made(value: object):
        return lambda t: (t, value)

    assert changes(fingerprint(made(1.0)), fingerprint(made(2.0))) == ["value"]
    assert changes(fingerprint(made(np.random.default_rng(0))), fingerprint(made(np.random.default_rng(1)))) == []


def test_objects_that_contain_themselves() -> None:
    class Node:
        def __init__(self, value: float) -> None:
            self.value, self.itself = value, self

        def __call__(self, t: float) -> float:
            return self.itself.value * t

    def loop(t: float) -> float:
        return loop(t - 1) if t > 0 else t

    assert fingerprint(loop) == fingerprint(loop) is not None
    assert changes(fingerprint(Node(1.0)), fingerprint(Node(1.0))) == []
    assert changes(fingerprint(Node(1.0)), fingerprint(Node(2.0))) == ["value"]


def test_what_is_known_by_its_name_alone() -> None:
    class Hostile:
        def __getattribute__(self, name: str):
            raise RuntimeError(name)

        def __call__(self, t):
            return t

    task = eq.task("slcp")
    for simulator in (np.sin, torch.sin, len, task.simulate, functools.partial(task.simulate, seed=1), Hostile()):
        assert fingerprint(simulator) is None


SCRIPT = """
import functools, json, sys
sys.path.insert(0, {folder!r})
import numpy as np, torch, models
from equipoise.simulations.fingerprints import fingerprint

WORDS, TABLE = {{"a", "b", "c", "d"}}, {{"k": {{1, 2, 3}}, "l": (np.arange(3), torch.ones(2))}}

class Simulator:
    kinds = frozenset(["x", "y", "z"])
    def __init__(self):
        self.names = {{"p", "q", "r"}}
    def simulate(self, t, flag=object()):
        return models.helper(t) if t in {{"u", "v", "w"}} else (WORDS, TABLE)

print(json.dumps(fingerprint(functools.partial(Simulator().simulate, scale=np.float32(2)))))
"""


def test_every_process_finds_the_same(tmp_path) -> None:
    (tmp_path / "models.py").write_text("RATE = 2.0\ndef helper(t):\n    return RATE * t\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(tmp_path)))

    def run(seed: int) -> dict:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
        return json.loads(done.stdout)

    first = run(1)
    assert {"code", "WORDS", "TABLE", "models.helper", "models.RATE", "names"} == set(first["parts"])
    assert run(2) == first
    (tmp_path / "models.py").write_text("RATE = 3.0\ndef helper(t):\n    return RATE * t\n")
    assert changes(first, run(3)) == ["models.RATE"]


# --- what a store does about it ------------------------------------------------------------------------------------


def notebook(body: str):
    """A function `model`, as a notebook's cell defines it again and again."""
    return defined(textwrap.dedent(f"def model(t):\n    return {body}\n"))["model"]


def test_a_store_refuses_a_simulator_that_was_written_anew(tmp_path) -> None:
    first = eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32)
    assert torch.equal(eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path).x, first.x)
    for n in (32, 64, 96):  # also where nothing would be simulated
        with pytest.raises(ValueError, match=r"simulator 'model' has changed since .* \(what differs: code\)"):
            eq.simulate(PRIOR, notebook("t * 3"), n, store=tmp_path)
    assert len(Store(tmp_path)) == 64
    with pytest.raises(ValueError, match="has changed"):  # a name does not vouch for the code
        eq.simulate(PRIOR, notebook("t * 3"), 64, store=tmp_path, name="model")


def test_a_class_of_a_notebook_is_the_users_own() -> None:
    """Whatever file `__main__` is: here pytest's, which is installed."""
    sources = [f"class Model:\n    def __call__(self, t):\n        return t * {k}\nmodel = Model()" for k in (2, 3)]
    before, after = (fingerprint(defined(source)["model"]) for source in sources)
    assert before is not None and changes(before, after) == ["code"]


def test_two_lambdas_are_two_simulators(tmp_path) -> None:
    eq.simulate(PRIOR, lambda t: t + 1, 64, store=tmp_path, name="f")
    with pytest.raises(ValueError, match="what differs: code"):
        eq.simulate(PRIOR, lambda t: t + 2, 64, store=tmp_path, name="f")


def test_a_change_that_does_not_matter_is_said_once(tmp_path) -> None:
    first = eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32)
    more = eq.simulate(PRIOR, notebook("t + t"), 96, store=tmp_path, same_simulator=True)
    assert torch.equal(more.x[:64], first.x) and torch.equal(more.x, 2 * more.theta)
    assert len(eq.simulate(PRIOR, notebook("t + t"), 128, store=tmp_path)) == 128
    assert Store(tmp_path).check() == []
    with pytest.raises(ValueError, match="has changed"):
        eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path)
    with pytest.raises(ValueError, match="seed"):  # anything else is refused as ever
        eq.simulate(PRIOR, notebook("t * 2"), 64, seed=1, store=tmp_path, same_simulator=True)


@pytest.mark.parametrize("python", [None, "cpython 3.10"])
def test_stores_that_cannot_be_compared_go_on(python: str | None, tmp_path) -> None:
    """Stores without a fingerprint, as they were written at first, and those of another version of Python."""
    eq.simulate(PRIOR, notebook("t * 2"), 64, store=tmp_path, block_size=32)
    file = tmp_path / "manifest.json"
    fields = json.loads(file.read_text())
    if python is None:
        del fields["code"]
    else:
        fields["code"]["python"] = python
    file.write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")
    written = file.read_text()
    pairs = eq.simulate(PRIOR, notebook("t + t"), 96, store=tmp_path)
    assert torch.equal(pairs.x, 2 * pairs.theta) and Store(tmp_path).check() == []
    assert file.read_text() == written


def test_built_in_tasks_are_known_by_name(tmp_path) -> None:
    task = eq.task("slcp")
    eq.simulate(task.prior, task.simulate, 32, store=tmp_path, block_size=32)
    assert Store(tmp_path).manifest.code is None
