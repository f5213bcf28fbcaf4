"""`Simulations`: rows, parts and batches of what lies in memory or on disk."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from stored_examples import PRIOR, Field, noisy

import equipoise as eq
from equipoise.simulations import Store, simulations


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
    monkeypatch.setattr(simulations, "CACHE_BYTES", 250_000)
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
