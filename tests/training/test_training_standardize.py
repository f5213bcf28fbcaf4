"""Standardisation: units do not matter, and values that would spoil it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from training_tools import CALLER, quick

import equipoise as eq
from equipoise.networks import Flat
from equipoise.training.standardize import x_scaling


@pytest.mark.parametrize(("shape", "place", "name"), [((3,), (1,), "x[:, 1]"), ((1, 17, 17), (0, 2, 3), "x")])
@pytest.mark.parametrize("filled", [-9999.0, 1e30])
def test_a_fill_value_that_sets_the_scale_is_told(
    shape: tuple[int, ...], place: tuple[int, ...], name: str, filled: float
) -> None:
    theta, x = torch.rand(200, 1), torch.randn(200, *shape)
    some = ([7, 80, 150], *place)  # one of them may be for validation
    x[some] = filled
    options: dict = {"prior": eq.BoxUniform([0.0], [1.0]), "method": "npe", "epochs": 1, "batch_size": None}
    with pytest.warns(UserWarning, match=re.escape(f"few values set the scale of {name}: one is {filled:g}")) as told:
        quick(theta, x, **options)
    assert told[0].filename == CALLER
    x[some] = 0.0
    quick(theta, x, **options)  # warnings are errors


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


def test_real_outliers_of_ranked_columns_are_no_cause_for_alarm_but_repeated_ones_are() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.tan(torch.pi * (torch.rand(4000, 2, generator=g) - 0.5))
    x[7, 1] = 1e9
    body, rows = Flat((2,), (0, 1)), torch.arange(4000)
    x_scaling(body, x, rows, True, 1.0)  # a warning would be an error
    with pytest.warns(UserWarning, match="few values set the scale of"):
        x_scaling(Flat((2,)), x, rows, True, 1.0)
    x[[8, 9], 0] = -99999.0
    with pytest.warns(UserWarning, match=re.escape("few values set the scale of x[:, 0]: one is -99999")):
        x_scaling(body, x, rows, True, 1.0)


def test_standardising_makes_a_far_prior_trainable() -> None:
    """θ on [100, 200]: with scaling the posterior learns, and densities are in the units of θ."""
    g = torch.Generator().manual_seed(0)
    prior = eq.BoxUniform([100.0], [200.0])
    theta = 100 + 100 * torch.rand(2000, 1, generator=g)
    x = theta + 5 * torch.randn(2000, 1, generator=g)
    p = quick(theta, x, prior=prior, method="npe", epochs=30, batch_size=64)
    draws = p.sample((2000,), x=torch.tensor([150.0]), seed=0)
    assert abs(draws.mean() - 150) < 3 and 3 < draws.std() < 9
    grid = torch.linspace(100, 200, 2001)[:, None]
    mass = torch.trapezoid(p.log_prob(grid, torch.tensor([150.0])).exp(), grid[:, 0])
    assert mass == pytest.approx(1.0, abs=0.02)


def test_units_do_not_matter() -> None:
    """Fluxes of 1e-30 and masses of 1e30: what is learnt is the same, whatever x and θ are measured in."""
    g = torch.Generator().manual_seed(0)
    unit = 2 * torch.rand(300, 2, generator=g, dtype=torch.float64) - 1
    x = unit + 0.2 * torch.randn(300, 2, generator=g, dtype=torch.float64)
    losses = []
    for size in (1.0, 1e-30, 1e30):
        prior = eq.BoxUniform(-size * torch.ones(2), size * torch.ones(2))
        theta = (size * unit).float().clamp(-size, size)
        p = quick(theta, (size * x).float(), "nre", prior=prior, epochs=30, compile=False)
        losses.append(float(p.history.best_loss[0]))
    assert losses[0] < 0.6  # log 2 is what knows nothing
    np.testing.assert_allclose(losses, losses[0], rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_offset_beyond_single_precision_is_warned_of(dtype: torch.dtype) -> None:
    """x + 10⁸ has no digits left for what varies: this is said, and draws are those of the prior."""
    g = torch.Generator().manual_seed(0)
    theta = 2 * torch.rand(300, 2, generator=g) - 1
    x = (theta + 0.2 * torch.randn(300, 2, generator=g)).to(dtype) + 1e8
    with pytest.warns(UserWarning, match="x"):
        p = quick(theta, x, "nre", prior=eq.BoxUniform(-torch.ones(2), torch.ones(2)), epochs=2, compile=False)
    draws = p.sample((500,), x=x[0].float(), seed=0)
    assert bool(draws.isfinite().all()) and float(draws.std()) == pytest.approx(1 / 3**0.5, rel=0.2)
