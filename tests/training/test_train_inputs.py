"""What training takes: tables, masks, values that are too large, simulations on disk; and what it says of θ and N."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from torch import Tensor

import equipoise as eq
from equipoise.networks import Flat
from equipoise.simulations import simulations
from equipoise.training import PAPER, Member, Settings, data, fit_many
from equipoise.training.inputs import split_rows
from equipoise.training.scaling import x_scaling

PRIOR = eq.BoxUniform(-torch.ones(2), torch.ones(2))
SHUFFLED = dataclasses.replace(PAPER, split="shuffled")


def toy(n: int = 120) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, theta + 0.3 * torch.randn(n, 2, generator=g)


def quick(theta: object, x: object, **options: object) -> eq.Posterior:
    defaults: dict = {"prior": PRIOR, "members": 2, "epochs": 2, "batch_size": 32, "hidden": (8,), "progress": False}
    return eq.fit(theta, x, **(defaults | options))


def same(p: eq.Posterior, q: eq.Posterior) -> bool:
    return p.history.validation_loss.equals(q.history.validation_loss)


# --- other containers -------------------------------------------------------------------------------------------------


def test_tables_and_labelled_arrays_train_as_tensors_do() -> None:
    theta, x = toy()
    p = quick(theta, x)
    frames = pd.DataFrame(theta.numpy(), columns=["a", "b"]), pd.DataFrame(x.numpy())
    arrays = tuple(xr.DataArray(v.numpy(), dims=("row", "column")) for v in (theta, x))
    for given in (frames, arrays):
        q = quick(*given)
        assert same(p, q)
        assert torch.equal(q.log_prob(*given), p.log_prob(theta, x))
    one = frames[1].iloc[3]  # a series
    assert torch.equal(p.sample((5,), x=one, seed=1), p.sample((5,), x=x[3], seed=1))
    assert torch.equal(p.sample((5,), x=arrays[1][3], seed=1), p.sample((5,), x=x[3], seed=1))


@pytest.mark.parametrize("whole", [True, False])
def test_masked_values_do_not_train(whole: bool) -> None:
    theta, x = toy()
    values = (10 * x).round().int().numpy() if whole else x.numpy()
    masked = np.ma.array(values, mask=np.zeros((120, 2), bool))
    quick(theta, masked)  # without a mask: an array
    masked[7, 1] = masked[9] = np.ma.masked
    with pytest.raises(ValueError, match=r"2 of 120 rows of x have NaN or infinite values, the first is row 7"):
        quick(theta, masked)
    with pytest.raises(ValueError, match=r"1 of 120 rows of theta have NaN"):
        quick(np.ma.array(theta.numpy(), mask=np.arange(240).reshape(120, 2) == 3), x)
    p = quick(theta, x)
    with pytest.raises(ValueError, match="x has NaN"):
        p.sample((3,), x=np.ma.array(x[0].numpy(), mask=[True, False]))


@pytest.mark.parametrize("x", [{"a": 1}, object(), 3.0], ids=["dictionary", "object", "number"])
def test_what_is_no_array_is_refused(x: object) -> None:
    with pytest.raises(TypeError, match=r"x should be an array or a tensor.*pairs\.x"):
        quick(toy()[0], x)


# --- values beyond single precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["tensor", "array", "memory-mapped", "HDF5"])
def test_values_beyond_single_precision_are_named_as_such(where: str, tmp_path: Path) -> None:
    theta, x = toy()
    x = x.double()
    x[5:] *= 1e45
    if where == "memory-mapped":
        np.save(tmp_path / "x.npy", x.numpy())
        given = np.load(tmp_path / "x.npy", mmap_mode="r")
    elif where == "HDF5":
        given = h5py.File(tmp_path / "x.h5", "w").create_dataset("x", data=x.numpy())
    else:
        given = x if where == "tensor" else x.numpy()
    with pytest.raises(ValueError, match=r"rows of x .*too large for single precision.*rescale x") as caught:
        quick(theta, given)  # without a warning about offsets, which would be an error
    assert "NaN" not in str(caught.value)
    with pytest.raises(ValueError, match="too large for single precision"):
        quick(*toy()).sample((2,), x=x[6])


def test_a_file_with_nan_is_refused_where_it_is_looked_at(tmp_path: Path) -> None:
    theta, x = toy()
    x[30, 0] = torch.nan
    np.save(tmp_path / "x.npy", x.numpy())
    with pytest.raises(ValueError, match=r"1 of 108 rows of x that were looked at have NaN .* row 30"):
        quick(theta, np.load(tmp_path / "x.npy", mmap_mode="r"), seed=1)


# --- simulations on disk ----------------------------------------------------------------------------------------------


def made(tmp_path: Path, n: int = 300) -> eq.Simulations:
    def simulator(theta: Tensor) -> Tensor:
        return theta + 0.3 * torch.randn(len(theta), 2)

    return eq.simulate(PRIOR, simulator, n, seed=0, store=tmp_path / "pairs", block_size=64, progress=False)


def test_simulations_and_stores_train_as_their_x_does(tmp_path: Path) -> None:
    stored = made(tmp_path, 320)
    p = quick(stored.theta, stored.x)
    assert same(p, quick(stored.theta, stored))
    assert same(p, quick(stored.theta, eq.Store(tmp_path / "pairs")))
    with pytest.raises(ValueError, match="theta has 100 rows and x has 320"):
        quick(stored.theta[:100], eq.Store(tmp_path / "pairs"))


def test_what_is_larger_than_memory_is_read_by_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = made(tmp_path, 320)
    p = quick(expected.theta, expected.x)
    monkeypatch.setattr(simulations, "IN_MEMORY", 0)
    monkeypatch.setattr(data, "WHOLE", 0)
    monkeypatch.setattr(simulations, "CACHE_BYTES", 4 * 2 * 100)  # a block and a half
    most = []
    take = simulations.Column.take

    def counted(self: simulations.Column, rows: np.ndarray, *more: object) -> np.ndarray:
        most.append(len(rows))
        return take(self, rows, *more)

    monkeypatch.setattr(simulations.Column, "take", counted)
    stored = eq.Store(tmp_path / "pairs").read(320)
    q = quick(stored.theta, stored, standardize=False)
    assert stored._x is None and max(most) <= 320  # not even the statistics of x need it all where it is large
    assert sum(m <= 128 for m in most) >= 2 * (320 * 9 // 10 // 32)  # the batches of two members a step and epoch
    assert same(q, quick(expected.theta, expected.x, standardize=False)) and not same(q, p)
    rows = stored.lazy_x
    assert rows.shape == (320, 2) and rows.dtype == np.float32 and len(rows) == 320
    assert np.array_equal(rows[5], expected.x[5]) and np.array_equal(rows[300:310], expected.x[300:310])


# --- training and validation ------------------------------------------------------------------------------------------


def test_the_seed_shuffles_the_split_where_the_protocol_does() -> None:
    def split(seed: int, settings: Settings = SHUFFLED) -> tuple[list[int], list[int]]:
        train, validation = split_rows(1000, 0.1, settings, 2, seed)
        return train.tolist(), validation.tolist()

    judges = []
    for seed in range(20):
        train, validation = split(seed)
        assert (train, validation) == split(seed)
        assert (len(train), len(validation)) == (900, 100) and sorted(train + validation) == list(range(1000))
        judges.append(set(validation))
    # Two sets of 100 of 1,000 share 10 rows on average, with a deviation of 2.8; 30 of them is seven deviations.
    assert max(len(a & b) for i, a in enumerate(judges) for b in judges[:i]) < 30
    assert len(set.union(*judges)) > 800  # 1 - 0.9²⁰ of all is 878
    prefix = (list(range(900)), list(range(900, 1000)))
    assert PAPER.split == "prefix" and split(0, PAPER) == split(1, PAPER) == prefix


def test_a_training_splits_by_its_own_seed() -> None:
    """The training pairs are those that standardise x."""
    theta, x = toy()
    means = []
    for seed in (0, 1):
        train, _ = split_rows(120, 0.1, SHUFFLED, 2, seed)
        posterior = quick(theta, x, seed=seed, epochs=1)
        means.append(posterior.stack["x_loc"][0])
        torch.testing.assert_close(means[-1], x[train].mean(0))
    assert abs(means[0] - means[1]).min() > 1e-4  # rounding is a thousandth of that


# --- what is told -----------------------------------------------------------------------------------------------------


def test_theta_that_the_prior_did_not_draw_is_told() -> None:
    torch.manual_seed(0)
    theta = 0.1 * torch.randn(600, 2)
    with pytest.warns(UserWarning, match=r"theta was not drawn from this prior") as told:
        quick(theta, theta, epochs=1)
    assert len(told) == 1 and told[0].filename == __file__
    settings = dataclasses.replace(PAPER, epochs=1, batch_size=64)
    member = Member(eq.METHODS["nre"], 0)
    fit_many([member], [(theta, theta)], prior=PRIOR, settings=settings, hidden=(8,), progress=False)  # grids know


@pytest.mark.parametrize(
    ("n", "fraction", "told"), [(20, 0.1, True), (99, 0.1, True), (100, 0.1, False), (40, 0.25, False)]
)
def test_few_pairs_for_validation_are_told(n: int, fraction: float, told: bool) -> None:
    theta, x = toy(n)
    options = {"epochs": 1, "batch_size": 8, "validation_fraction": fraction, "method": "nre"}
    if told:
        with pytest.warns(UserWarning, match=rf"{n} simulations leave {n // 10} pairs for validation") as caught:
            quick(theta, x, **options)
        assert len(caught) == 1 and caught[0].filename == __file__
    else:
        quick(theta, x, **options)  # a warning would be an error


# --- scales -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "place", "name"), [((3,), (1,), "x[:, 1]"), ((1, 8, 8), (0, 2, 3), "x")])
@pytest.mark.parametrize("filled", [-9999.0, 1e30])
def test_a_fill_value_that_sets_the_scale_is_told(
    shape: tuple[int, ...], place: tuple[int, ...], name: str, filled: float
) -> None:
    theta, x = torch.rand(200, 1), torch.randn(200, *shape)
    some = ([7, 80, 150], *place)  # one of them may be for validation
    x[some] = filled
    options = {"prior": eq.BoxUniform([0.0], [1.0]), "method": "npe", "members": 1, "epochs": 1, "hidden": (8,)}
    with pytest.warns(UserWarning, match=re.escape(f"few values set the scale of {name}: one is {filled:g}")) as told:
        eq.fit(theta, x, progress=False, **options)
    assert told[0].filename == __file__
    x[some] = 0.0
    eq.fit(theta, x, progress=False, **options)  # warnings are errors


@pytest.mark.parametrize("kind", ["log-normal", "counts", "sparse", "constant"])
def test_skewed_sparse_and_constant_data_are_no_cause_for_alarm(kind: str) -> None:
    torch.manual_seed(0)
    draws = torch.randn(4000, 2)
    x = {
        "log-normal": (2 * draws).exp(),
        "counts": torch.poisson(draws.exp()),
        "sparse": torch.where(draws > 2.5, 1e6, 0.0),
        "constant": torch.ones(4000, 2),
    }[kind]
    x_scaling(Flat((2,)), x, torch.arange(4000), True, 1.0)


def test_mistakes_in_numbers_of_the_network_and_the_optimiser_are_named() -> None:
    theta, x = PRIOR.sample((100,)), torch.randn(100, 3)
    with pytest.raises(TypeError, match=r"hidden is the width of each layer, such as \(64, 64, 64\)"):
        eq.fit(theta, x, prior=PRIOR, hidden=64)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="learning_rate is positive, got -1"):
        eq.fit(theta, x, prior=PRIOR, learning_rate=-1)
    with pytest.raises(ValueError, match="2 lower ends and 1 upper"):
        eq.BoxUniform([0.0, 0.0], [1.0])
    assert eq.BoxUniform([0.0, 0.0], 1.0).dim == 2
