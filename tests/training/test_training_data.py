"""Data and batches: held once, streamed from disk, shuffled."""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor
from training_tools import PRIOR, SMALL, pairs, quick, same_weights, train

import equipoise as eq
from equipoise.methods import resolve
from equipoise.simulations import simulations as columns
from equipoise.training import Member, data
from equipoise.training.batches import permutations
from equipoise.training.data import Data


def test_shuffles_are_uniform_permutations_that_differ_by_member_and_epoch() -> None:
    keys = torch.tensor([12345, 67890])
    first = permutations(keys, 0, 50)
    assert torch.equal(first.sort(1).values, torch.arange(50).expand(2, 50))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, permutations(keys, 1, 50))
    assert torch.equal(permutations(keys[1:], 0, 50)[0], first[1])
    # Every row is equally likely in every place: χ² over 20 places × 20 rows; 361 degrees of freedom, rejects at
    # about 1e-6.
    many = torch.cat([permutations(torch.arange(2000), epoch, 20) for epoch in range(5)])
    counts = torch.stack([torch.bincount(many[:, place], minlength=20) for place in range(20)]).double()
    statistic = ((counts - 500) ** 2 / 500).sum().item()
    assert 240 < statistic < 510


def test_streamed_batches_give_the_same_weights(tmp_path: Path) -> None:
    """x memory-mapped on disk and read batch by batch, against x in memory."""
    theta, x = pairs()
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=tuple(x.shape))
    file[:] = x.numpy()
    file.flush()
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    (a,), (b,) = train([Member(resolve("bnre"))], [(theta, x)]), train([Member(resolve("bnre"))], [(theta, on_disk)])
    for weight, value in a.stack.items():
        torch.testing.assert_close(b.stack[weight], value)


class OnDisk:
    """An array that is read by rows, as HDF5's: sorted ones without repetition. It counts what is asked of it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape
        self.most, self.alive = 0, []

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        assert isinstance(index, slice) or (np.diff(index) > 0).all()
        found = Held(self.values[index])
        self.most = max(self.most, len(found))
        self.alive.append(weakref.ref(found))
        return found


class Held(np.ndarray):
    """What was read, which can be asked whether it is still in memory."""

    def __new__(cls, values: np.ndarray) -> Held:
        held = super().__new__(cls, values.shape, values.dtype)  # it owns its memory, so all that shares it holds it
        held[...] = values
        return held


@pytest.mark.parametrize("split", ["shuffled", "prefix"])
def test_what_is_not_in_memory_is_read_a_batch_at_a_time(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs never ask for more rows than two batches of 32 among 400 pairs need, which is a stretch of twice as many
    at most; nothing that was read stays in memory; and the result is the same."""
    monkeypatch.setattr(data, "READ_WHOLE_BELOW", 0)
    theta, x = pairs(400)
    settings = dataclasses.replace(SMALL, epochs=3, split=split)
    for values in (x.numpy(), x.numpy().astype(np.float16)):
        on_disk, held = OnDisk(values), []

        def at_the_end(epoch: int, _: object, on_disk: OnDisk = on_disk, held: list[int] = held) -> None:
            held.append(sum(found() is not None for found in on_disk.alive))
            if epoch == 0:  # a look at the data before training may be longer
                on_disk.most = 0

        members = [Member(resolve("bnre"), seed) for seed in (1, 2)]
        streamed = train(members, [(theta, on_disk)], settings=settings, on_epoch=at_the_end)
        in_memory = train(members, [(theta, torch.from_numpy(values))], settings=settings)
        for a, b in zip(streamed, in_memory, strict=True):
            for weight, value in a.stack.items():
                assert torch.equal(value, b.stack[weight])
        assert 32 <= on_disk.most <= 128
        assert held == [0, 0, 0]


def test_hdf5_trains_as_memory_does(tmp_path: Path) -> None:
    theta, x = pairs()
    options: dict = {"method": "nre", "hidden": (8,), "members": 2, "batch_size": 16, "device": "cpu"}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = x.numpy()
        a = quick(theta, file["x"], checkpoint=tmp_path, **options)
    b = quick(theta, x, checkpoint=tmp_path / "other", **options)
    for weight, value in a.stack.items():
        assert torch.equal(value, b.stack[weight])


def test_memory_mapped_data_stay_on_disk(tmp_path: Path) -> None:
    """256 MB of x, split at random, raise the memory that is not the file's by less than a quarter of that."""
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc, which this system does not have")

    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    n, width = 4096, 16384
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(n, width))
    file[:] = 1  # on disk, and not only a hole in it
    file[:, 0] = np.arange(n)
    del file
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0)).sort().values[::2]
    rows = torch.cat([rows, torch.tensor([n - 1, 0])])
    before = anonymous()
    data = Data([torch.zeros(n, 1)], [x], torch.device("cpu"))
    batch = data.x_batch(torch.zeros(1, dtype=torch.int64), rows[[len(rows) - 1, 5, 5, len(rows) - 2]].unsqueeze(0))
    assert data.stream and anonymous() - before < x.nbytes / 4
    assert batch[0, :, 0].tolist() == [0, rows[5], rows[5], n - 1]


def test_data_sets_are_put_in_place_one_after_the_other() -> None:
    """While one is read, no other is in memory a second time."""
    values = np.arange(3 * 50 * 4, dtype=np.float32).reshape(3, 50, 4)
    alive: list[weakref.ref[Held]] = []
    most = []

    class Watched(OnDisk):
        def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
            most.append(sum(len(found) for ref in alive if (found := ref()) is not None))
            found = super().__getitem__(index)
            alive.append(self.alive[-1])
            return found

    codes, sets = [torch.zeros(50, 1)], [Watched(v) for v in values]
    data = Data(codes, sets, torch.device("cpu"), stream=False)
    assert data.x is not None and np.array_equal(data.x.numpy(), values)
    assert max(most) <= len(sets)  # a row of each, to see what they hold
    mixed = Data(codes, [torch.ones(50, 4, dtype=torch.uint8), values[0]], torch.device("cpu"), False)
    assert mixed.x is not None and mixed.x.dtype == torch.float32


def test_data_is_held_once_however_many_members_read_it() -> None:
    x = torch.randint(0, 2, (100, 3, 5, 5), dtype=torch.uint8)
    data = Data([torch.randn(100, 2)], [x], torch.device("cpu"))
    assert data.x is not None and data.x.dtype == torch.uint8
    assert data.x.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    which = torch.zeros(40, dtype=torch.int64)
    assert data.x_batch(which, torch.randint(100, (40, 8))).shape == (40, 8, 3, 5, 5)


def made(tmp_path: Path, n: int = 300) -> eq.Simulations:
    def simulator(theta: Tensor) -> Tensor:
        return theta + 0.3 * torch.randn(len(theta), 2)

    return eq.simulate(PRIOR, simulator, n, seed=0, store=tmp_path / "pairs", block_size=64, progress=False)


def test_simulations_and_stores_train_as_their_x_does(tmp_path: Path) -> None:
    stored = made(tmp_path, 320)
    p = quick(stored.theta, stored.x, members=2)
    assert same_weights(p, quick(stored.theta, stored, members=2))
    assert same_weights(p, quick(stored.theta, eq.Store(tmp_path / "pairs"), members=2))
    with pytest.raises(ValueError, match="theta has 100 rows and x has 320"):
        quick(stored.theta[:100], eq.Store(tmp_path / "pairs"))


def test_what_is_larger_than_memory_is_read_by_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = made(tmp_path, 320)
    p = quick(expected.theta, expected.x, members=2)
    monkeypatch.setattr("equipoise.simulations.simulations.IN_MEMORY", 0)
    monkeypatch.setattr(data, "READ_WHOLE_BELOW", 0)
    monkeypatch.setattr(columns, "CACHE_BYTES", 4 * 2 * 100)  # a block and a half
    most = []
    take = columns.Column.take

    def counted(self: columns.Column, rows: np.ndarray, *more: object) -> np.ndarray:
        most.append(len(rows))
        return take(self, rows, *more)

    monkeypatch.setattr(columns.Column, "take", counted)
    stored = eq.Store(tmp_path / "pairs").read(320)
    q = quick(stored.theta, stored, members=2, standardize=False)
    assert stored._x is None and max(most) <= 320  # not even the statistics of x need it all where it is large
    assert sum(m <= 128 for m in most) >= 2 * (320 * 9 // 10 // 32)  # the batches of two members a step and epoch
    assert same_weights(q, quick(expected.theta, expected.x, members=2, standardize=False)) and not same_weights(q, p)
    rows = stored.lazy_x
    assert rows.shape == (320, 2) and rows.dtype == np.float32 and len(rows) == 320
    assert np.array_equal(rows[5], expected.x[5]) and np.array_equal(rows[300:310], expected.x[300:310])
