"""Block files: packed, damaged, copied, of earlier formats, and files that pretend."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from stored_examples import PRIOR, Field, flip, noisy, same

import equipoise as eq
from equipoise.simulations import CorruptBlockError, InvalidSimulationsWarning, Store
from equipoise.simulations.blocks import compact

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


def test_a_block_whose_data_are_one_number_is_damaged(tmp_path) -> None:
    """h5py raises a ValueError here; the block is simulated again all the same."""
    before = eq.simulate(PRIOR, noisy, 64, store=tmp_path, block_size=32).x
    with h5py.File(tmp_path / "block-000001.h5", "r+") as file:
        del file["theta"]
        file["theta"] = 1.0
    with pytest.raises(CorruptBlockError, match="block-000001"):
        Store(tmp_path).read(64)
    with pytest.warns(UserWarning, match="block-000001"):
        assert torch.equal(eq.simulate(PRIOR, noisy, 64, store=tmp_path).x, before)


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
