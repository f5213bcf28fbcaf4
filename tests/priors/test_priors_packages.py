"""Priors of sbi, torch and SciPy, as users bring them, from simulations to the diagnosis of tiny networks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import scipy.stats
import torch
import torch.distributions as td
from priors_examples import Scripted
from torch import Tensor

import equipoise as eq
from equipoise.priors import OpaquePrior

with warnings.catch_warnings():  # of sbi's own imports
    warnings.simplefilter("ignore")
    from sbi.utils import BoxUniform, MultipleIndependent, process_prior
    from sbi.utils.restriction_estimator import RestrictedPrior
    from sbi.utils.user_input_checks_utils import CustomPriorWrapper, OneDimPriorWrapper, PytorchReturnTypeWrapper

ONE = torch.ones(1)
TWO = torch.full((2,), 2.0)
EYE = torch.eye(2)


def exponential() -> td.Distribution:
    """A transformed uniform with shape (1,)."""
    return td.TransformedDistribution(td.Uniform(-2 * ONE, ONE), td.ExpTransform())


def mixed() -> td.Distribution:
    parts = td.Independent(td.Normal(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.ones(2, 2)), 1)
    return td.MixtureSameFamily(td.Categorical(torch.ones(2)), parts)


#: What a user gives, and what it becomes.
PRIORS: dict[str, tuple[Callable[[], Any], type]] = {
    "sbi box": (lambda: BoxUniform(torch.zeros(2), torch.ones(2)), eq.BoxUniform),
    "sbi product": (lambda: MultipleIndependent([exponential(), td.Normal(0 * ONE, ONE)]), eq.IndependentPrior),
    "sbi product with a Gaussian": (
        lambda: MultipleIndependent([exponential(), td.MultivariateNormal(torch.zeros(2), EYE)]),
        OpaquePrior,
    ),
    "sbi return type": (
        lambda: PytorchReturnTypeWrapper(td.MultivariateNormal(torch.zeros(2).double(), EYE.double())),
        eq.GaussianPrior,
    ),
    "sbi one parameter": (lambda: OneDimPriorWrapper(td.Exponential(ONE)), eq.IndependentPrior),
    "sbi one transformed": (lambda: OneDimPriorWrapper(exponential()), eq.IndependentPrior),
    "sbi custom": (
        lambda: CustomPriorWrapper(
            Scripted(), event_shape=torch.Size([2]), lower_bound=torch.zeros(2), upper_bound=torch.ones(2)
        ),
        OpaquePrior,
    ),
    "sbi processed list": (lambda: process_prior([exponential(), td.Gamma(ONE, ONE)])[0], eq.IndependentPrior),
    "sbi processed Gaussian": (
        lambda: process_prior(td.MultivariateNormal(torch.zeros(2), EYE))[0],
        eq.GaussianPrior,
    ),
    "sbi restricted": (
        lambda: RestrictedPrior(BoxUniform(torch.zeros(2), torch.ones(2)), lambda theta: theta[:, 0] < theta[:, 1]),
        OpaquePrior,
    ),
    "list": (lambda: [td.Normal(0.0, 1.0), exponential()], eq.IndependentPrior),
    "list of uniforms": (lambda: [td.Uniform(0.0, 1.0), td.Uniform(0 * ONE, ONE)], eq.BoxUniform),
    "tuple of SciPy's": (lambda: (scipy.stats.norm(0, 1), scipy.stats.beta(2, 5)), eq.IndependentPrior),
    "dictionary": (lambda: {"beta": eq.LogUniform(1.0, 9.0), "gamma": scipy.stats.expon()}, eq.IndependentPrior),
    "torch mixture": (mixed, OpaquePrior),
    "torch low rank": (
        lambda: td.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2)),
        eq.GaussianPrior,
    ),
    "torch transformed Gaussian": (
        lambda: td.TransformedDistribution(td.MultivariateNormal(torch.zeros(2), EYE), td.SigmoidTransform()),
        OpaquePrior,
    ),
    "torch in double precision": (
        lambda: td.TransformedDistribution(
            td.MultivariateNormal(torch.zeros(2).double(), EYE.double()), td.SigmoidTransform()
        ),
        OpaquePrior,
    ),
}
#: Torch's continuous distributions, in pairs.
FAMILIES = [
    td.Beta(TWO, TWO), td.Cauchy(TWO, TWO), td.Chi2(TWO), td.ContinuousBernoulli(TWO / 5), td.Exponential(TWO),
    td.FisherSnedecor(TWO, 5 * TWO), td.Gamma(TWO, TWO), td.Gumbel(TWO, TWO), td.HalfCauchy(TWO), td.HalfNormal(TWO),
    td.InverseGamma(TWO, TWO), td.Kumaraswamy(TWO, TWO), td.Laplace(TWO, TWO), td.LogNormal(TWO, TWO / 4),
    td.Normal(TWO, TWO), td.Pareto(TWO, 2 * TWO), td.StudentT(3 * TWO, TWO, TWO), td.VonMises(TWO, TWO),
    td.Weibull(TWO, TWO),
]  # fmt: skip


def simulator(theta: Tensor) -> Tensor:
    return theta[:, :1] / (1 + theta[:, :1].abs()) + 0.1 * torch.randn(len(theta), 1)


def used(given: Any, methods: tuple[str, ...] = ("npe", "nre")) -> None:
    """Simulate, train for an epoch, draw, evaluate and judge."""
    prior = eq.as_prior(given)
    pairs, fresh = eq.simulate(given, simulator, 180, progress=False).split(120, 60)
    assert pairs.names == prior.names
    for method in methods:
        small = eq.METHODS[method].but(hidden=(8,))
        q = eq.fit(pairs, prior=given, method=small, members=1, epochs=1, device="cpu", progress=False)
        draws = q.sample((20,), pairs.x[0], seed=1)
        assert draws.shape == (20, prior.dim) and bool(prior.contains(draws).all()), method
        assert q.log_prob(pairs.theta[:3, None], pairs.x[:4]).shape == (3, 4), method
        ds = eq.diagnose(q, fresh.theta, fresh.x, prior=given, samples=8, progress=False)
        assert bool(ds["gain"].notnull().all()), method


@pytest.mark.parametrize("name", PRIORS)
def test_a_prior_from_simulations_to_the_diagnosis(name: str) -> None:
    make, kind = PRIORS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sbi's own, on making it
        given = make()
    assert type(eq.as_prior(given)) is kind
    used(given)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_torchs_distributions_are_products(family: td.Distribution) -> None:
    given = td.Independent(family, 1)
    prior = eq.as_prior(given)
    assert isinstance(prior, eq.IndependentPrior) and prior.has_normal_map
    theta = given.sample((50,))
    torch.testing.assert_close(prior.log_prob(theta), given.log_prob(theta))
    used(given, ("npe",))


def test_a_wrapped_prior_is_the_one_inside() -> None:
    theta = torch.rand(9, 1) + 0.2
    inside = td.Exponential(ONE)
    torch.testing.assert_close(eq.as_prior(OneDimPriorWrapper(inside)).log_prob(theta), inside.log_prob(theta)[:, 0])


def test_a_log_normal_has_no_parameters_outside_its_support() -> None:
    prior = eq.IndependentPrior([td.LogNormal(2.0, 2.0)])
    assert prior.contains(prior.from_normal(torch.tensor([[-60.0], [60.0]]))).all()
