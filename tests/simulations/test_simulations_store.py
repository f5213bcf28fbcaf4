"""The store: killed, shared, damaged, extended, refused, packed, and read in pieces."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.simulations import CorruptBlockError, InvalidSimulationsWarning, Store, columns, sinks
from equipoise.simulations.blocks import compact

PRIOR = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])


def noisy(theta: Tensor, seed: int) -> Tensor:
    """Batches, float32."""
    return theta[:, :1] + torch.randn(len(theta), 3, generator=torch.Generator().manual_seed(seed))


def one_at_a_time(theta: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(theta[0], 1.0, size=3)


class Field:
    """Random images of zeros and ones, as spatial epidemics give: a disc around a point, thinned."""

    storage = "bits"

    def __repr__(self) -> str:
        return "Field()"

    def simulate(self, theta: Tensor, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        axis = torch.arange(50.0)
        r2 = (axis[:, None] - 25) ** 2 + (axis - 25) ** 2
        disc = r2 < (50 * theta[:, 0, None, None]) ** 2
        thinned = torch.rand(len(theta), 50, 50, generator=generator) < theta[:, 1, None, None]
        return torch.stack([~disc, disc & thinned, disc & ~thinned], 1).float()


def same(a, b) -> bool:
    return torch.equal(a.theta, b.theta) and torch.equal(a.x, b.x)


def blocks(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("block-*.h5"))}


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


def test_lampe_and_h5py_read_the_blocks(tmp_path) -> None:
    from lampe.data import H5Dataset

    field = Field()
    for name, simulator, n in (("floats", noisy, 64), ("bits", field.simulate, 64)):
        pairs = eq.simulate(PRIOR, simulator, n, store=tmp_path / name, block_size=64)
        dataset = H5Dataset(tmp_path / name / "block-000000.h5", batch_size=16, shuffle=True)
        assert len(dataset) == n
        theta, x = dataset[:]
        assert torch.equal(theta, pairs.theta) and torch.equal(x.float(), pairs.x)
        assert sum(len(t) for t, _ in dataset) == n
        dataset.file.close()
        with h5py.File(tmp_path / name / "block-000000.h5") as file:
            assert file["x"].shape == pairs.x.shape and np.array_equal(file["x"][3], pairs.x[3])


# --- kill -9 -------------------------------------------------------------------------------------------------------

KILLER = """
import os, random, shutil, signal, sys, time, warnings
import numpy as np, torch
import equipoise as eq
from equipoise.simulations import Store, sinks

torch.set_num_threads(1)  # nothing has threads yet, so that this process may fork
sinks.SAVE_SECONDS = 0.02     # incomplete blocks are set down often, so that this is interrupted too
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


ORPHANS = """
import os, sys, time
import equipoise as eq

def simulator(theta):
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(600)

prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
eq.simulate(prior, simulator, 10, workers=2, batched=False, array="torch")
"""


def test_no_worker_survives_a_killed_parent(tmp_path) -> None:
    script, log = tmp_path / "orphans.py", tmp_path / "log"
    # The workers have their own sys.argv, so that the name of the file goes into the source.
    script.write_text(ORPHANS.replace("sys.argv[1]", repr(str(log))))
    parent = subprocess.Popen([sys.executable, str(script)])

    def wait_for(condition) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    wait_for(lambda: log.exists() and len(log.read_text().split()) == 2)
    workers = [int(pid) for pid in log.read_text().split()]
    assert all(alive(pid) for pid in workers)
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers))


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent to notice does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


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


# --- damage --------------------------------------------------------------------------------------------------------


def flip(file: Path, key: str) -> None:
    """Change one byte in the middle of the stored values of a dataset."""
    with h5py.File(file) as h5:
        data = h5[key]
        if data.chunks is None:
            at = data.id.get_offset() + data.id.get_storage_size() // 2
        else:
            chunk = data.id.get_chunk_info(0)
            at = chunk.byte_offset + chunk.size // 2
    content = bytearray(file.read_bytes())
    content[at] ^= 0x10
    file.write_bytes(content)


DAMAGES = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-100]),
    "cut in half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "not HDF5": lambda file: file.write_text("hello"),
    "a bit of x flipped": lambda file: flip(file, "x"),
    "a bit of theta flipped": lambda file: flip(file, "theta"),
}


@pytest.mark.parametrize("simulator", [noisy, Field().simulate], ids=["floats", "bits"])
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_damage_is_detected_named_and_mended(damage, simulator, tmp_path) -> None:
    good = eq.simulate(PRIOR, simulator, 96, store=tmp_path, block_size=32)
    before = (good.theta, good.x)
    victim = tmp_path / "block-000001.h5"
    DAMAGES[damage](victim)
    assert [p.split(":")[0] for p in Store(tmp_path).check()] == [str(victim)]
    with pytest.raises(CorruptBlockError, match="block-000001"):
        Store(tmp_path).read(96).x  # noqa: B018
    calls: list[int] = []

    def counted(theta, seed):
        calls.append(len(theta))
        return simulator(theta, seed)

    name = Store(tmp_path).manifest.simulator
    options = {"store": tmp_path, "batched": True, "array": "torch", "name": name, "storage": good.storage}
    options["same_simulator"] = True  # counting its calls does not matter
    with pytest.warns(UserWarning, match=r"block-000001.h5.*simulated again"):
        mended = eq.simulate(PRIOR, counted, 96, **options)
    assert calls == [32] and torch.equal(mended.theta, before[0]) and torch.equal(mended.x, before[1])
    assert Store(tmp_path).check() == []


def test_a_block_of_another_store_is_noticed(tmp_path) -> None:
    for seed in (1, 2):
        eq.simulate(PRIOR, noisy, 64, seed=seed, store=tmp_path / str(seed), block_size=32)
    (tmp_path / "1" / "block-000001.h5").write_bytes((tmp_path / "2" / "block-000001.h5").read_bytes())
    assert "another store" in Store(tmp_path / "1").check()[0]
    with pytest.warns(UserWarning, match="simulated again"):
        pairs = eq.simulate(PRIOR, noisy, 64, seed=1, store=tmp_path / "1")
    assert same(pairs, eq.simulate(PRIOR, noisy, 64, seed=1, block_size=32))


def test_a_copied_block_is_noticed(tmp_path) -> None:
    """Block 0 under the name of block 1: the same store, shapes and digests of its own."""
    good = eq.simulate(PRIOR, noisy, 64, store=tmp_path, block_size=32)
    before = good.theta, good.x
    shutil.copy(tmp_path / "block-000000.h5", tmp_path / "block-000001.h5")
    assert len(Store(tmp_path).check()) == 1
    with pytest.raises(CorruptBlockError, match="block-000001"):
        Store(tmp_path).read(64)  # θ is checked where x is not read
    with pytest.warns(UserWarning, match="block-000001"):
        again = eq.simulate(PRIOR, noisy, 64, store=tmp_path)
    assert torch.equal(again.theta, before[0]) and torch.equal(again.x, before[1])


def test_blocks_of_the_first_format_are_read_and_checked(tmp_path) -> None:
    """They have one digest, of all arrays, without the number."""
    pairs = eq.simulate(PRIOR, noisy, 64, store=tmp_path, block_size=32)
    theta, x = pairs.theta, pairs.x.clone()
    for file in tmp_path.glob("*.h5"):
        with h5py.File(file, "r+") as h5:
            digest = hashlib.blake2b(digest_size=16)
            for array in (h5[key][:] for key in ("theta", "x", "row", "invalid")):
                digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
            h5.attrs["equipoise_format"], h5.attrs["digest"] = 1, digest.hexdigest()
            del h5.attrs["digest_theta"], h5.attrs["digest_x"]
    assert Store(tmp_path).check() == []
    more = eq.simulate(PRIOR, noisy, 96, store=tmp_path)
    assert torch.equal(more.theta[:64], theta) and torch.equal(more.x[:64], x)
    flip(tmp_path / "block-000001.h5", "theta")
    assert len(Store(tmp_path).check()) == 1


def elsewhere(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["x"] = np.zeros((32, 3), np.float32)
    file["x"] = h5py.ExternalLink(str(folder / "other.hdf5"), "x")


def raw(file: h5py.File, folder: Path) -> None:
    (folder / "other.bin").write_bytes(bytes(32 * 3 * 4))
    file.create_dataset("x", (32, 3), np.float32, external=[(str(folder / "other.bin"), 0, 32 * 3 * 4)])


def virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((32, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "x", (32, 3))
    file.create_virtual_dataset("x", layout)


def huge(file: h5py.File, folder: Path) -> None:
    file.create_dataset("x", (32, 1 << 40), np.float32)


def huge_compressed(file: h5py.File, folder: Path) -> None:
    file.create_dataset("x", (32, 1 << 40), np.float32, chunks=(32, 1024), compression="gzip")


@pytest.mark.parametrize("fake", [elsewhere, raw, virtual, huge, huge_compressed], ids=lambda f: f.__name__)
def test_files_that_are_not_what_they_hold_are_refused(fake, tmp_path) -> None:
    """Values of other files must not be read in, nor memory be taken for values that are not there."""
    store = tmp_path / "store"
    eq.simulate(PRIOR, noisy, 64, store=store, block_size=32)
    with h5py.File(store / "block-000001.h5", "r+") as file:
        del file["x"]
        fake(file, tmp_path)
    assert len(Store(store).check()) == 1
    with pytest.raises(CorruptBlockError, match="block-000001"):
        Store(store).read(64)
    shutil.copy(store / "block-000001.h5", tmp_path)
    with pytest.raises(ValueError, match="block-000001"):
        eq.read_simulations(tmp_path / "block-000001.h5", theta_key="theta", x_key="x")


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
    monkeypatch.setattr(sinks, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr("equipoise.simulations.simulating.UNIT_SECONDS", 0.0)
    seen = []

    def simulator(theta, seed):
        seen.append(len(list(tmp_path.glob("*.partial"))))
        return one_at_a_time(theta, seed)

    pairs = eq.simulate(PRIOR, simulator, 20, store=tmp_path, batched=False, array="numpy")
    assert seen == [0, *[1] * 19] and not list(tmp_path.glob("*.partial"))
    assert same(pairs, eq.simulate(PRIOR, one_at_a_time, 20))


# --- packing -------------------------------------------------------------------------------------------------------


def test_bits_are_packed(tmp_path) -> None:
    field = Field()
    pairs = eq.simulate(PRIOR, field.simulate, 2048, store=tmp_path)
    size = sum(p.stat().st_size for p in tmp_path.iterdir())
    # 131,072 such snapshots stay under 130 MB: 991 bytes each, where float32 would take 30,000.
    assert size / 2048 * 131072 < 130e6
    small = pairs.compact()
    assert small.dtype == torch.uint8 and torch.equal(small.float(), pairs.x) and pairs.x.dtype == torch.float32
    with h5py.File(tmp_path / "block-000000.h5") as file:
        assert file["x"].dtype == np.uint8


def test_noise_bits_are_packed_to_one_bit(tmp_path) -> None:
    """Bits without any structure, which gzip cannot help: 7500 of them take 938 bytes."""
    pairs = eq.simulate(
        PRIOR, lambda theta: torch.rand(len(theta), 3, 50, 50).round(), 1024, store=tmp_path, storage="bits"
    )
    size = (tmp_path / "block-000000.h5").stat().st_size
    assert size / 1024 * 131072 < 130e6 and set(pairs.compact().unique().tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("scale", "dtype"), [(10, torch.uint8), (1000, torch.int16), (1e6, torch.int32), (1e12, torch.float32)]
)
def test_counts_are_integers(scale, dtype, tmp_path) -> None:
    def simulator(theta):
        return (torch.rand(len(theta), 200, 2) * scale).round()

    here = eq.simulate(PRIOR, simulator, 64, storage="integers")
    pairs = eq.simulate(PRIOR, simulator, 64, store=tmp_path, storage="integers")
    assert torch.equal(pairs.x, here.x)
    for p in (pairs, here):
        assert p.compact().dtype == dtype and torch.equal(p.compact().float(), p.x)


def test_integers_that_are_not() -> None:
    with pytest.raises(ValueError, match=r"whole numbers, but the simulator returned 0\.5"):
        compact(np.array([[1.0, 0.5]], np.float32), "integers")
    with pytest.raises(ValueError, match="zeros and ones"):
        compact(np.array([[1.0, 2.0]], np.float32), "bits")
    with pytest.raises(ValueError, match="zeros and ones"):
        eq.simulate(PRIOR, lambda theta: theta + 2, 5, storage="bits").compact()


@pytest.mark.parametrize(
    "values", [[0, 255], [-1, 5], [-32768, 32767], [-32769, 0], [2**31 - 128, 0], [2**31, 0], [-0.0, 0]]
)
def test_compact_is_exact(values) -> None:
    x = np.array([values], np.float32)
    assert np.array_equal(compact(x, "integers").astype(np.float32), x)


@pytest.mark.parametrize("storage", ["float32", "bits", "integers"])
def test_invalid_rows_survive_packing(storage, tmp_path) -> None:
    def simulator(theta):
        return torch.where(theta[:, :1] > 0.9, torch.nan, torch.rand(len(theta), 6).round())

    kept = eq.simulate(PRIOR, simulator, 200, store=tmp_path, storage=storage, on_invalid="keep", block_size=64)
    bad = kept.theta[:, 0] > 0.9
    assert kept.n_invalid == int(bad.sum()) > 0 and torch.equal(kept.x.isnan().all(1), bad)
    with pytest.warns(InvalidSimulationsWarning):
        dropped = Store(tmp_path).read(200)
    assert torch.equal(dropped.x, kept.x[~bad]) and torch.equal(dropped.theta, kept.theta[~bad])
    assert torch.equal(dropped.compact().float(), dropped.x)
    with pytest.raises(ValueError, match="NaN or infinite"):
        Store(tmp_path).read(200, on_invalid="raise")


# --- reading in pieces ---------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    return eq.simulate(PRIOR, noisy, 1000, store=tmp_path, block_size=64)


def test_indexing(stored, tmp_path) -> None:
    whole = eq.simulate(PRIOR, noisy, 1000, block_size=64)
    lazy = Store(tmp_path).read(1000)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(1000, (300,), generator=generator)
    for which in (index, index.tolist(), slice(5, 900, 7), whole.theta[:, 0] > 0.5, torch.tensor([], dtype=torch.long)):
        theta, x = lazy[which]
        assert torch.equal(theta, whole.theta[which]) and torch.equal(x, whole.x[which])
        assert torch.equal(whole[which][1], x)
    theta, x = lazy[-1]
    assert torch.equal(theta, whole.theta[-1]) and torch.equal(x, whole.x[-1])
    for wrong in (1000, -1001):
        with pytest.raises(IndexError):
            lazy[wrong]
    assert lazy._x is None, "nothing above reads everything"
    first, second = lazy.split(600, 400)
    assert torch.equal(second.x, whole.x[600:]) and len(first) == 600 and torch.equal(first[10][1], whole.x[10])
    with pytest.raises(ValueError, match="cannot take parts"):
        lazy.split(600, 401)
    theta, x = whole
    assert len(theta) == len(x) == 1000
    assert repr(lazy) == "Simulations(1000 pairs, theta (2,), x (3,))"


def test_floats_are_mapped_not_read(stored, tmp_path) -> None:
    lazy = Store(tmp_path).read(1000)
    lazy[torch.tensor([3])]
    assert isinstance(lazy._column._segment(0), np.memmap)
    again = pickle.loads(pickle.dumps(lazy))  # as a data loader with worker processes does
    assert torch.equal(again[torch.arange(9)][1], lazy[torch.arange(9)][1])


@pytest.mark.parametrize("window", [None, 1, 100, 200, 10_000])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_visit_everything_once(stored, tmp_path, window, drop_last) -> None:
    lazy = Store(tmp_path).read(1000).split(990)[0]
    batches = list(lazy.batches(64, seed=1, window=window, drop_last=drop_last))
    assert {len(t) for t, _ in batches[:-1]} == {64} and len(batches[-1][0]) == (64 if drop_last else 990 % 64)
    theta, x = (torch.cat(v) for v in zip(*batches, strict=True))
    table = {tuple(t.tolist()): row for row, t in enumerate(lazy.theta)}
    rows = [table[tuple(t.tolist())] for t in theta]
    assert len(set(rows)) == len(rows) == (960 if drop_last else 990)
    assert torch.equal(x, stored.x[rows]), "theta and x stay together"
    assert rows != sorted(rows)
    again = torch.cat([t for t, _ in lazy.batches(64, seed=1, window=window, drop_last=drop_last)])
    other = torch.cat([t for t, _ in lazy.batches(64, seed=2, window=window, drop_last=drop_last)])
    assert torch.equal(theta, again) and not torch.equal(theta, other)
    if window == 200 and not drop_last:  # four blocks of 64 are mixed: the first batch comes from more than one
        assert len({row // 64 for row in rows[:64]}) > 1
    assert torch.equal(torch.cat([t for t, _ in lazy.batches(64, seed=None)]), lazy.theta)
    with pytest.raises(ValueError, match="batch_size"):
        next(lazy.batches(0))


def test_little_is_held_in_memory(tmp_path, monkeypatch) -> None:
    """A set of 16 packed blocks (120 kB each decoded) under a cache of two of them."""
    field = Field()
    eq.simulate(PRIOR, field.simulate, 256, store=tmp_path, block_size=16)
    monkeypatch.setattr(columns, "CACHE_BYTES", 250_000)
    lazy = Store(tmp_path).read(256)
    for _ in lazy.batches(32):
        assert lazy._column._cached_bytes() <= 250_000
    assert torch.equal(lazy.x, eq.simulate(PRIOR, field.simulate, 256, block_size=16).x)


def test_torch_data_loader(stored, tmp_path) -> None:
    from torch.utils.data import DataLoader

    lazy = Store(tmp_path).read(1000)
    loader = DataLoader(lazy, batch_size=100)  # type: ignore[arg-type]
    assert torch.equal(torch.cat([x for _, x in loader]), stored.x)


def test_simulations_from_tensors() -> None:
    with pytest.raises(ValueError, match="pairs"):
        eq.Simulations(torch.zeros(3, 2), torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"theta should have shape"):
        eq.Simulations(torch.zeros(3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="storage"):
        eq.Simulations(torch.zeros(3, 2), torch.zeros(3, 2), storage="bytes")
    doubles = eq.Simulations(np.zeros((3, 2)), np.zeros((3, 2)))
    assert doubles.x.dtype == torch.float32


def test_docs_run() -> None:
    """The examples of docs/simulations.md, in order, in one directory."""
    text = (Path(__file__).parents[2] / "docs" / "simulations.md").read_text()
    chunks = [c.split("```")[0] for c in text.split("```python\n")[1:]]
    assert len(chunks) > 5
    code = textwrap.dedent("\n".join(chunks))
    done = subprocess.run([sys.executable, "-c", PROLOGUE + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


PROLOGUE = """
import os, tempfile
os.chdir(tempfile.mkdtemp())
"""
