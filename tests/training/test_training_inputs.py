"""Pairs: containers, values that are refused, the split, warnings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from training_tools import CALLER, SMALL, pairs, quick, same_weights, toy, train

from equipoise.losses import pairs_needed, rolls_needed
from equipoise.methods import METHODS, resolve
from equipoise.posteriors import load
from equipoise.priors import BoxUniform
from equipoise.simulations import Simulations
from equipoise.training import PAPER, Member, Settings
from equipoise.training.inputs import named_prior, split_rows

SHUFFLED = dataclasses.replace(PAPER, split="shuffled")


def test_tables_and_labelled_arrays_train_as_tensors_do() -> None:
    theta, x = toy()
    p = quick(theta, x)
    frames = pd.DataFrame(theta.numpy(), columns=["a", "b"]), pd.DataFrame(x.numpy())
    arrays = tuple(xr.DataArray(v.numpy(), dims=("row", "column")) for v in (theta, x))
    for given in (frames, arrays):
        q = quick(*given)
        assert same_weights(p, q)
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
    with pytest.raises(ValueError, match=r"1 of 108 rows of x that were checked have NaN .* row 30"):
        quick(theta, np.load(tmp_path / "x.npy", mmap_mode="r"), seed=1)


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


def test_theta_that_the_prior_did_not_draw_is_told() -> None:
    torch.manual_seed(0)
    theta = 0.1 * torch.randn(600, 2)
    with pytest.warns(UserWarning, match=r"theta was not drawn from this prior") as told:
        quick(theta, theta, epochs=1)
    assert len(told) == 1 and told[0].filename == CALLER
    settings = dataclasses.replace(PAPER, epochs=1, batch_size=64)
    train([Member(METHODS["nre"], 0)], [(theta, theta)], settings=settings)  # grids know


@pytest.mark.parametrize(
    ("n", "fraction", "told"), [(20, 0.1, True), (99, 0.1, True), (100, 0.1, False), (40, 0.25, False)]
)
def test_few_pairs_for_validation_are_told(n: int, fraction: float, told: bool) -> None:
    theta, x = toy(n)
    options = {"epochs": 1, "batch_size": 8, "validation_fraction": fraction, "method": "nre"}
    if told:
        with pytest.warns(UserWarning, match=rf"{n} simulations leave {n // 10} pairs for validation") as caught:
            quick(theta, x, **options)
        assert len(caught) == 1 and caught[0].filename == CALLER
    else:
        quick(theta, x, **options)  # a warning would be an error


def test_what_single_precision_cannot_resolve_is_told() -> None:
    g = torch.Generator().manual_seed(0)
    theta = 2 * torch.rand(100, 2, generator=g) - 1
    julian = 2459000.3 + theta.double() + 0.01 * torch.randn(100, 2, generator=g)
    for x in (julian, julian.float(), (1e9 * julian).long()):
        with pytest.warns(UserWarning, match="single precision rounds element . of x by up to .* Subtract an offset"):
            quick(theta, x, "nre", epochs=1)
    for x in (julian - 2459000.3, 2459000 + (10 * theta).round(), (2459000 + 10 * theta).long()):
        quick(theta, x, "nre", epochs=1)


@pytest.mark.parametrize(("n", "enough"), [(110, False), (120, True)])
def test_too_few_pairs_for_an_unbiased_balance_are_told_before_training(n: int, enough: bool) -> None:
    """The contrastive balance with K = 5 leaves out terms up to 5 apart: 12 pairs at least, for validation as well."""
    theta, x = pairs(n)
    member = Member(resolve("bnre_c", balance="multiclass").but(unbiased=True))
    settings = dataclasses.replace(SMALL, epochs=1)
    if enough:
        (trained,) = train([member], [(theta, x)], settings=settings)
        assert np.isfinite(trained.history.validation_loss.values).all()
        return
    with pytest.raises(ValueError, match=r"leave 99 .* 11 for validation; this method needs at least 12 of each"):
        train([member], [(theta, x)], settings=settings)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", list(METHODS))
def test_the_fewest_pairs_of_an_objective(name: str, unbiased: bool) -> None:
    row = resolve(name)
    objective = row.but(unbiased=unbiased and row.balance in ("chi2", "multiclass")).objective
    least = pairs_needed(objective)
    bandwidth = objective.contrastive if objective.balance == "multiclass" else 1
    rule = 2 + 2 * bandwidth if objective.unbiased and objective.balanced else 2
    assert least == max(rule, rolls_needed(objective))


def test_names_of_parameters_come_from_where_they_are_known() -> None:
    prior, theta, x = BoxUniform([0.0, 0.0], [1.0, 1.0]), torch.rand(5, 2), torch.rand(5, 3)
    table, simulations = pd.DataFrame(theta.numpy(), columns=["a", "b"]), Simulations(theta, x, names=["c", "d"])
    assert named_prior(prior, None, theta, x).names is None
    assert named_prior(prior, None, table, x).names == ("a", "b")
    assert named_prior(prior, None, theta, pd.DataFrame(x.numpy()[:, :2], columns=["u", "v"])).names is None
    assert named_prior(prior, None, simulations, None).names == ("c", "d")
    assert named_prior(prior, None, theta, simulations).names == ("c", "d")
    assert named_prior(prior.named(["e", "f"]), None, theta, x).names == ("e", "f")
    assert named_prior(prior, ["g", "h"], simulations, None).names == ("g", "h")
    with pytest.raises(ValueError, match="the same order"):
        named_prior(prior.named(["b", "a"]), None, table, x)


def test_names_travel_from_the_table_to_the_file(tmp_path: Path) -> None:
    theta, x = toy()
    p = quick(pd.DataFrame(theta.numpy(), columns=["beta", "gamma"]), x)
    assert p.names == ("beta", "gamma") == p.members[0].names == p.tempered(0.5).names
    p.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.names == p.names and list(again.to_pandas(x[0], 3)) == ["beta", "gamma"]
    with pytest.raises(ValueError, match=r"gamma = 50"):
        quick(pd.DataFrame([[0.0, 50.0]] * 60, columns=["beta", "gamma"]), x[:60])
