"""Torch's distributions cut into marginals and moved."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from priors_examples import MARGINALS, Scripted, make, mixture

import equipoise as eq
from equipoise.priors.independent import scalar_marginals, to_device
from equipoise.priors.marginals import device_of


def test_marginals_with_shape_one_are_marginals() -> None:
    shaped_and_plain = [
        (td.Uniform(torch.zeros(1), torch.ones(1)), td.Uniform(0.0, 1.0)),
        (td.Independent(td.Gamma(torch.ones(1), 2 * torch.ones(1)), 1), td.Gamma(1.0, 2.0)),
        (td.MultivariateNormal(torch.ones(1), 4 * torch.eye(1)), td.Normal(1.0, 2.0)),
        (td.Normal(1.0, 2.0), td.Normal(1.0, 2.0)),
        (eq.BoxUniform([0.0], [3.0]), td.Uniform(0.0, 3.0)),
        (eq.GaussianPrior([0.0], [[4.0]]), td.Normal(0.0, 2.0)),
        (eq.IndependentPrior([td.Normal(0.0, 1.0)]), td.Normal(0.0, 1.0)),
        (eq.LogUniform([1.0], [2.0]), eq.LogUniform(1.0, 2.0)),
    ]
    prior, plain = (eq.IndependentPrior(part) for part in zip(*shaped_and_plain, strict=True))
    assert prior.dim == len(shaped_and_plain) and prior.spec() == plain.spec()


def test_moving_reaches_every_tensor() -> None:
    # The meta device holds no numbers, but shows where a tensor would be.
    for marginal in [*(make(name) for name in MARGINALS), mixture()]:
        moved = to_device(marginal, torch.device("meta"))
        assert device_of(moved).type == "meta" and device_of(marginal).type == "cpu"
    opaque = eq.as_prior(Scripted()).to("meta")
    assert opaque.device.type == "meta" and opaque.sample((3,)).device.type == "meta"


@pytest.mark.parametrize(
    ("transform", "reference"),
    [
        (td.ExpTransform(), scipy.stats.loguniform(math.exp(0.5), math.exp(2.0))),
        (td.AffineTransform(torch.tensor([1.0]), torch.tensor([-3.0])), scipy.stats.uniform(-5.0, 4.5)),
    ],
)
def test_a_transformed_batch_of_one_is_a_marginal(transform: td.Transform, reference) -> None:
    batch = td.TransformedDistribution(td.Uniform(torch.tensor([0.5]), torch.tensor([2.0])), transform)
    prior = eq.IndependentPrior([batch])
    low, high = reference.support()
    outside = torch.tensor([[low - 0.01], [high + 0.01], [math.nan]])
    assert not prior.contains(outside).any() and (prior.log_prob(outside) == -math.inf).all()
    theta = torch.linspace(low + 0.01, high - 0.01, 31)[:, None]
    np.testing.assert_allclose(prior.log_prob(theta), reference.logpdf(theta[:, 0]), rtol=1e-5)
    np.testing.assert_allclose(prior.to_uniform(theta)[:, 0], reference.cdf(theta[:, 0]), atol=1e-6)
    torch.testing.assert_close(prior.from_normal(prior.to_normal(theta)), theta)
    assert prior.contains(prior.from_uniform(torch.tensor([[0.0], [1.0]]))).all()
    assert prior.contains(prior.sample((1000,))).all()


def test_a_transformed_batch_is_cut_into_its_elements() -> None:
    base = td.Normal(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0]))
    affine = td.AffineTransform(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]))
    batch = td.TransformedDistribution(base, [affine, td.ExpTransform()])
    found = scalar_marginals(td.Independent(batch, 1))
    theta = batch.sample((7,))
    assert [m.batch_shape for m in found] == [()] * 3
    densities = torch.stack([m.log_prob(theta[:, j]) for j, m in enumerate(found)], -1)
    torch.testing.assert_close(densities, batch.log_prob(theta))


def test_parameters_have_names() -> None:
    marginals = {"beta": td.Uniform(0.0, 2.0), "gamma": td.Uniform(0.0, 1.0)}
    prior = eq.IndependentPrior(marginals)
    assert prior.names == ("beta", "gamma") and prior.spec() == eq.IndependentPrior(list(marginals.values())).spec()
    assert eq.as_prior(prior).names == prior.names and eq.IndependentPrior(list(marginals.values())).names is None
    box = eq.BoxUniform([0.0, 0.0], [2.0, 1.0])
    for known in (prior, box.named(["a", "b"]), eq.as_prior(Scripted()).named(["a", "b"])):
        assert known.names is not None and known.to("cpu").names == known.names
    assert box.names is None  # the other is a copy
    assert prior.outside(torch.tensor([1.0, 7.5])) == "gamma = 7.5" and box.outside(torch.tensor([-1.0, 0.5])) == (
        "theta[:, 0] = -1"
    )
    with pytest.raises(ValueError, match="one name for each of the 2"):
        box.named(["a"])
