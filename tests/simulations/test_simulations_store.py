"""The store: killed, shared, damaged, extended, refused, packed, and read in pieces."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from stored_examples import PRIOR, blocks, noisy, one_at_a_time, same

import equipoise as eq
from equipoise.simulations import Store, store

# --- the same pairs, from disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("simulator", [noisy, one_at_a_time], ids=lambda f: f.__name__)
def test_stored_and_in_memory_are_the_same(simulator, tmp_path) -> None:
    here = eq.simulate(PRIOR, simulator, 100, seed=1, block_size=32)
    there = eq.simulate(PRIOR, simulator, 100, seed=1, block_size=32, store=tmp_path / "s")
    assert same(here, there)
    assert same(here, eq.read_simulations(tmp_path / "s", n=100))
    assert not list((tmp_path / "s").glob("*.claim")) and not list((tmp_path / "s").glob(".*"))


@pytest.mark.parametrize("simulator", [noisy, one_at_a_time], ids=lambda f: f.__name__)
def test_extended_in_place(simulator, tmp_path) -> None:
    calls: list[int] = []

    def counted(theta, seed):
        calls.append(len(theta))
        return simulator(theta, seed)

    options = {
        "seed": 1,
        "batched": simulator is noisy,
        "array": "torch" if simulator is noisy else "numpy",
        "name": "s",
    }
    first = eq.simulate(PRIOR, counted, 70, block_size=32, store=tmp_path, **options)
    before, done = blocks(tmp_path), len(calls)
    more = eq.simulate(PRIOR, counted, 150, store=tmp_path, **options)  # the block size is the store's
    whole = eq.simulate(PRIOR, simulator, 150, block_size=32, **options)
    assert same(more, whole) and torch.equal(first.x, whole.x[:70])
    # Batches: 3 blocks were there and 2 are new. One at a time: 80 rows are new.
    assert len(calls) - done == (2 if simulator is noisy else 80)
    kept = list(before)[:2]
    assert {k: before[k] for k in kept} == {k: blocks(tmp_path)[k] for k in kept}
    calls.clear()
    assert same(
        eq.simulate(PRIOR, counted, 100, store=tmp_path, **options), eq.Simulations(whole.theta[:100], whole.x[:100])
    )
    assert not calls, "a smaller n simulates nothing"


# --- kill -9 -------------------------------------------------------------------------------------------------------

KILLER = """
import os, random, shutil, signal, sys, time, warnings
import numpy as np, torch
import equipoise as eq
from equipoise.simulations import Store, store

torch.set_num_threads(1)  # nothing has threads yet, so that this process may fork
store.SAVE_SECONDS = 0.02  # incomplete blocks are set down often, so that this is interrupted too
folder, batched = sys.argv[1], sys.argv[2] == "True"
prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])

def simulator(theta, seed):
    time.sleep(0.002)
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(theta), 500)) if batched else rng.normal(size=500)

def run(store):
    options = dict(batched=batched, array="numpy", block_size=16, workers=1, progress=False)
    return eq.simulate(prior, simulator, 1600, seed=3, store=store, **options)

random.seed(7)
kills, grew = 0, 0
while kills < 15 or (grew == 0 and kills < 100):  # on a machine with much else to do a child needs longer
    child = os.fork()
    if child == 0:
        run(folder)
        os._exit(0)
    time.sleep(random.uniform(0.02, 0.3 + 0.02 * max(0, kills - 15)))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.path.exists(os.path.join(folder, "manifest.json")):
        bad = [p for p in Store(folder).check() if "missing" not in p]
        assert not bad, bad
        grew = max(grew, len(Store(folder)))
    if os.WIFEXITED(status):  # it was done before it could be killed: start again
        assert os.WEXITSTATUS(status) == 0
        shutil.rmtree(folder)
    else:
        kills += 1
assert grew > 0
pairs, fresh = run(folder), run(None)
assert torch.equal(pairs.theta, fresh.theta) and torch.equal(pairs.x, fresh.x)
assert not Store(folder).check()
left = [name for name in os.listdir(folder) if not (name == "manifest.json" or name.endswith(".h5"))]
assert all("manifest" in name for name in left), left
print("rows at most before the last kill", grew)
"""


@pytest.mark.slow
@pytest.mark.parametrize("batched", [True, False])
def test_killed_at_random_moments(batched: bool, tmp_path) -> None:
    """A child is killed within 0.3 s of its start, fifteen times over, or until there is a block; a run from nothing
    takes about 1 s (batches) or 4 s (one at a time), a good part of it writing files. After each kill every block is
    whole, and a last run gives the same pairs as one that was left alone."""
    script = tmp_path / "killer.py"
    script.write_text(KILLER)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "s"), str(batched)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


TOGETHER = """
import sys, time
import numpy as np
import equipoise as eq

def simulator(theta, seed):
    time.sleep(0.05)
    with open(sys.argv[2], "a") as log:
        log.write("x")
    return np.random.default_rng(seed).normal(size=(len(theta), 4))

prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
print("ready", flush=True)
sys.stdin.readline()
pairs = eq.simulate(prior, simulator, 640, seed=1, store=sys.argv[1], block_size=16, batched=True, array="numpy")
assert len(pairs) == 640
"""


def test_two_processes_share_the_work(tmp_path) -> None:
    script, folder = tmp_path / "together.py", tmp_path / "s"
    script.write_text(TOGETHER)
    logs = [tmp_path / f"log{k}" for k in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), str(log)], stdin=-1, stdout=-1, stderr=-1, text=True
        )
        for log in logs
    ]
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    calls = [len(log.read_text()) for log in logs]
    assert sum(calls) == 40, f"{calls} blocks were simulated where 40 were needed"
    assert min(calls) >= 5, f"one process did nearly everything: {calls}"

    def simulator(theta, seed):
        return np.random.default_rng(seed).normal(size=(len(theta), 4))

    assert same(Store(folder).read(), eq.simulate(PRIOR, simulator, 640, seed=1, block_size=16))


def test_without_locks_work_is_repeated_but_right(tmp_path, monkeypatch) -> None:
    def unsupported(*_):
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    pairs = eq.simulate(PRIOR, noisy, 100, store=tmp_path, block_size=32)
    assert same(pairs, eq.simulate(PRIOR, noisy, 100, block_size=32))


def test_missing_blocks(tmp_path) -> None:
    eq.simulate(PRIOR, noisy, 96, store=tmp_path, block_size=32)
    (tmp_path / "block-000001.h5").unlink()
    store = Store(tmp_path)
    assert len(store) == 32 and "block-000001.h5 is missing" in store.check()[0]
    with pytest.raises(ValueError, match="32 rows without a gap, 96 were asked for"):
        store.read(96)
    assert len(eq.simulate(PRIOR, noisy, 96, store=tmp_path)) == 96 == len(Store(tmp_path))


def test_damaged_or_newer_manifest(tmp_path) -> None:
    eq.simulate(PRIOR, noisy, 32, store=tmp_path, block_size=32)
    manifest = tmp_path / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[:50])
    with pytest.raises(ValueError, match=r"manifest.json is damaged"):
        Store(tmp_path)
    for wrong in ({"block_size": [32]}, {"dim": None}, {"x_shape": ["a"]}, {"streams": "rows"}, {"prior": 3}):
        manifest.write_text(json.dumps({**json.loads(text), **wrong}))
        with pytest.raises(ValueError, match=r"manifest.json is damaged"):
            Store(tmp_path)
    manifest.write_text(json.dumps({**json.loads(text), "equipoise_store": 99}))
    with pytest.raises(ValueError, match="newer Equipoise"):
        Store(tmp_path)
    manifest.unlink()
    with pytest.raises(ValueError, match="blocks but no manifest"):
        eq.simulate(PRIOR, noisy, 32, store=tmp_path)
    with pytest.raises(FileNotFoundError, match="not a store"):
        Store(tmp_path)


# --- refusing to mix -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 2}, "seed: the store has 1, this call 2"),
        ({"block_size": 16}, "block_size: the store has 32, this call 16"),
        ({"prior": eq.BoxUniform([0.0, 0.0], [1.0, 2.0])}, "prior"),
        ({"prior": eq.BoxUniform([0.0], [1.0])}, "dim"),
        ({"storage": "integers"}, "storage"),
        ({"simulator": one_at_a_time}, "streams"),
        ({"name": "another"}, "pass name="),
        ({"simulator": lambda t, seed: noisy(t, seed)[:, :2], "name": "noisy", "same_simulator": True}, "x_shape"),
    ],
)
def test_another_configuration_is_refused(change, message, tmp_path) -> None:
    arguments = {"prior": PRIOR, "simulator": noisy, "n": 64, "seed": 1, "store": tmp_path}
    eq.simulate(**arguments, block_size=32)
    before = blocks(tmp_path)
    with pytest.raises(ValueError, match=message):
        eq.simulate(**{**arguments, "n": 96, **change})
    assert blocks(tmp_path) == before


def test_priors_without_a_description_are_known_by_their_draws(tmp_path) -> None:
    class Triangle:
        def __init__(self, width: float) -> None:
            self.width = width

        def sample(self, shape=()):
            return self.width * torch.rand(*shape, 2, 2).sum(-1)

        def log_prob(self, theta):
            return torch.zeros(theta.shape[:-1])

    eq.simulate(Triangle(1.0), noisy, 64, store=tmp_path, block_size=32)
    eq.simulate(Triangle(1.0), noisy, 96, store=tmp_path)
    with pytest.raises(ValueError, match="not draws of this prior"):
        eq.simulate(Triangle(1.1), noisy, 128, store=tmp_path)


# --- interrupted blocks --------------------------------------------------------------------------------------------


def test_slow_simulations_are_set_down_in_between(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(store, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr("equipoise.simulations.simulating.UNIT_SECONDS", 0.0)
    seen = []

    def simulator(theta, seed):
        seen.append(len(list(tmp_path.glob("*.partial"))))
        return one_at_a_time(theta, seed)

    pairs = eq.simulate(PRIOR, simulator, 20, store=tmp_path, batched=False, array="numpy")
    assert seen == [0, *[1] * 19] and not list(tmp_path.glob("*.partial"))
    assert same(pairs, eq.simulate(PRIOR, one_at_a_time, 20))
