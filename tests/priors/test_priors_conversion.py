"""Priors from the objects that users bring: torch, sbi, SciPy, or anything with `sample` and `log_prob`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from priors_examples import Scripted, mixture

import equipoise as eq
from equipoise.priors import OpaquePrior, Prior, prior_from_spec
from equipoise.priors.text import parse_prior
from equipoise.support.randomness import isolated


def test_anything_with_sample_and_log_prob_is_a_prior() -> None:
    prior = eq.as_prior(Scripted())
    assert isinstance(prior, OpaquePrior) and prior.dim == 2 and not prior.has_normal_map
    assert prior.sample((5,)).shape == (5, 2)
    inside = torch.tensor([[0.5, 0.2], [0.2, 0.5], [math.nan, 0.1]])
    assert prior.contains(inside).tolist() == [True, False, False]
    for method in ("to_normal", "from_normal", "to_uniform", "from_uniform"):
        with pytest.raises(ValueError, match="N\\(0, I\\)"):
            getattr(prior, method)(inside)
    with pytest.raises(ValueError, match="prior="):
        prior_from_spec(prior.spec())


def test_opaque_torch_priors_return_minus_infinity_where_torch_raises() -> None:
    beta = td.Independent(td.Beta(torch.tensor([[2.0, 3.0]]), torch.tensor([[2.0, 1.0]])), 1)
    beta = td.MixtureSameFamily(td.Categorical(torch.ones(1)), beta)  # over vectors: it has no cdf of a parameter
    prior = eq.as_prior(beta)
    assert isinstance(prior, OpaquePrior)
    theta = torch.tensor([[0.5, 0.5], [0.5, 1.5], [math.nan, 0.5]])
    expected = beta.log_prob(theta[0])
    torch.testing.assert_close(prior.log_prob(theta), torch.stack([expected, *[torch.tensor(-math.inf)] * 2]))


class Drawn:
    """A prior that draws from torch's global generator."""

    def sample(self, shape: tuple[int, ...] = ()) -> torch.Tensor:
        return torch.rand(*shape, 2)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.where(((theta >= 0) & (theta <= 1)).all(-1), 0.0, -math.inf)


def test_looking_at_a_prior_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    eq.as_prior(Drawn())
    eq.as_prior(eq.IndependentPrior([td.Cauchy(0.0, 1.0), td.Gamma(1.0, 1.0), scipy.stats.beta(2, 5)]))
    assert torch.equal(torch.rand(3), expected)


class Numpys:
    """A prior that draws from NumPy's global generator, as SciPy's distributions do."""

    def sample(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        return scipy.stats.norm.rvs(size=(*shape, 2))

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(scipy.stats.norm.logpdf(theta.numpy()).sum(-1))


def test_numpys_generator_is_seeded_and_given_back() -> None:
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.random(3)  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    prior = eq.as_prior(Numpys())
    draws = []
    for seed in (1, 1, 2, 1 + (1 << 40)):
        with isolated(seed):
            draws.append(prior.sample((5,)))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[3])
    with pytest.raises(RuntimeError, match="inside"), isolated(1):
        raise RuntimeError("inside")
    np.testing.assert_array_equal(np.random.random(3), expected)  # noqa: NPY002


def test_sbi_priors_are_recognised() -> None:
    utils = pytest.importorskip("sbi.utils", reason="sbi is not installed")
    box = eq.as_prior(utils.BoxUniform(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0])))
    assert isinstance(box, eq.BoxUniform) and box.high.tolist() == [1.0, 2.0]
    parts = [td.Gamma(torch.ones(1), torch.ones(1)), td.Uniform(torch.zeros(1), torch.ones(1))]
    several = eq.as_prior(utils.MultipleIndependent(parts))
    assert isinstance(several, eq.IndependentPrior) and several.dim == 2
    mixed = eq.as_prior(utils.MultipleIndependent([parts[0], td.MultivariateNormal(torch.zeros(2), torch.eye(2))]))
    assert isinstance(mixed, OpaquePrior) and mixed.dim == 3


def transformed(low: float, high: float, transform: td.Transform) -> td.Distribution:
    """A transformed uniform with shape (1,), as sbi has its marginals."""
    return td.TransformedDistribution(td.Uniform(torch.tensor([low]), torch.tensor([high])), transform)


def test_sbis_product_with_a_transformed_marginal_from_fit_to_diagnose() -> None:
    utils = pytest.importorskip("sbi.utils", reason="sbi is not installed")
    product = utils.MultipleIndependent(
        [transformed(-2.0, 1.0, td.ExpTransform()), td.Normal(torch.zeros(1), torch.ones(1))]
    )
    prior = eq.as_prior(product)
    assert isinstance(prior, eq.IndependentPrior) and prior.has_normal_map
    theta = product.sample((250,))
    torch.testing.assert_close(prior.log_prob(theta), product.log_prob(theta))
    x = theta + 0.1 * torch.randn(250, 2)
    for method in ("npe", "nre"):
        posterior = eq.fit(theta[50:], x[50:], prior=product, method=method, members=2, epochs=1, device="cpu")
        assert prior.contains(posterior.sample((50,), x=x[0])).all()
        assert posterior.log_prob(theta[:5], x[:5]).isfinite().all()
        assert "coverage" in eq.diagnose(posterior, theta[:50], x[:50])


def test_opaque_priors_of_sbi_take_any_leading_shape() -> None:
    utils = pytest.importorskip("sbi.utils", reason="sbi is not installed")
    product = utils.MultipleIndependent(
        [td.Gamma(torch.ones(1), torch.ones(1)), td.MultivariateNormal(torch.zeros(2), torch.eye(2))]
    )
    prior, theta = eq.as_prior(product), product.sample((12,))
    assert isinstance(prior, OpaquePrior)
    expected = product.log_prob(theta)
    torch.testing.assert_close(prior.log_prob(theta.view(3, 4, 3)), expected.view(3, 4))
    torch.testing.assert_close(prior.log_prob(theta.view(2, 1, 6, 3)), expected.view(2, 1, 6))
    torch.testing.assert_close(prior.log_prob(theta[0]), expected[0])


def test_torch_priors_are_recognised() -> None:
    batch = td.LogNormal(torch.tensor([0.0, 1.0]), torch.tensor(0.5))
    prior = eq.as_prior(td.Independent(batch, 1))
    assert isinstance(prior, eq.IndependentPrior)
    theta = batch.sample((7,))
    torch.testing.assert_close(prior.log_prob(theta), batch.log_prob(theta).sum(-1))
    assert isinstance(eq.as_prior(td.Uniform(torch.zeros(3), torch.ones(3))), eq.BoxUniform)
    assert isinstance(eq.as_prior(td.MultivariateNormal(torch.zeros(2), torch.eye(2))), eq.GaussianPrior)
    assert eq.as_prior(prior) is prior


class Counting:
    """A prior whose `sample` takes a number instead of a shape."""

    def sample(self, n: int = 1) -> torch.Tensor:
        return torch.rand(n, 2)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(theta))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: eq.as_prior(3), TypeError, "got int"),
        (lambda: eq.as_prior(td.Normal(0.0, 1.0)), ValueError, "scalars"),
        (lambda: eq.as_prior(td.RelaxedBernoulli(torch.ones(()), torch.full((3,), 0.5))), ValueError, "Independent"),
        (lambda: eq.BoxUniform([0.0], [0.0]), ValueError, "low < high"),
        (lambda: eq.BoxUniform([0.0], [math.inf]), ValueError, "finite"),
        (lambda: eq.BoxUniform([[0.0]], [[1.0]]), ValueError, "vector"),
        (lambda: eq.IndependentPrior([]), ValueError, "at least one"),
        (lambda: eq.IndependentPrior(td.Normal(0.0, 1.0)), TypeError, "a list"),
        (lambda: eq.IndependentPrior([td.Normal(0.0, 1.0), 3.0]), TypeError, "marginal 1 is 3.0.*scipy.stats"),
        (lambda: eq.IndependentPrior([scipy.stats.poisson(2)]), TypeError, "frozen continuous"),
        (lambda: eq.IndependentPrior([scipy.stats.beta]), TypeError, r"such as scipy.stats.beta\(2, 5\)"),
        (lambda: eq.IndependentPrior([scipy.stats.multivariate_normal([0, 0])]), TypeError, "one dimension"),
        (lambda: eq.IndependentPrior([scipy.stats.beta([1, 2], 3)]), ValueError, "one scalar distribution"),
        (lambda: eq.IndependentPrior([scipy.stats.beta(-1, 3)]), ValueError, "SciPy refuses"),
        (lambda: eq.IndependentPrior([scipy.stats.vonmises(1)]), ValueError, "torch.distributions.VonMises"),
        (lambda: eq.as_prior(scipy.stats.beta(2, 5)), TypeError, r"a list of one, \[prior\]"),
        (lambda: eq.as_prior([td.Normal(0.0, 1.0), 3]), TypeError, "marginal 1 is 3"),
        (lambda: eq.as_prior(scipy.stats.multivariate_normal([0, 0])), TypeError, r"is eq.GaussianPrior\(mean, cov\)"),
        (lambda: eq.as_prior(scipy.stats.multivariate_t([0, 0])), TypeError, "rvs and logpdf"),
        (lambda: eq.as_prior("uniform(0, 1)"), TypeError, "text is for the shell"),
        (lambda: eq.as_prior(Counting()), TypeError, "takes a shape.*shape\\[0\\]"),
        (lambda: eq.as_prior(td.Independent(td.Poisson(torch.ones(2)), 1)), ValueError, "whole numbers"),
        (
            lambda: eq.IndependentPrior([td.RelaxedBernoulli(torch.ones(()), torch.tensor(0.5))]),
            ValueError,
            "start='random'",
        ),
        (lambda: eq.IndependentPrior([td.Poisson(1.0)]), ValueError, "whole numbers"),
        (lambda: eq.IndependentPrior([td.Normal(torch.zeros(2), 1.0)]), ValueError, "one-dimensional"),
        (lambda: eq.GaussianPrior([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), ValueError, "positive definite"),
        (lambda: eq.GaussianPrior([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), ValueError, "symmetric"),
        (lambda: prior_from_spec({"kind": "spline"}), ValueError, "unknown kind"),
        (lambda: prior_from_spec(eq.IndependentPrior([mixture()]).spec()), ValueError, "prior=…"),
        (lambda: Prior(2), TypeError, "abstract"),
    ],
)
def test_bad_input_says_what_is_wrong(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    "prior",
    [
        td.Dirichlet(torch.ones(3)),
        td.LogisticNormal(torch.zeros(2), torch.ones(2)),
        td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Dirichlet(torch.ones(2, 3))),
    ],
)
def test_simplices_are_refused_with_a_way_out(prior: td.Distribution) -> None:
    with pytest.raises(ValueError, match="simplex"):
        eq.as_prior(prior)


def test_a_simplex_in_sbis_product_is_refused() -> None:
    utils = pytest.importorskip("sbi.utils", reason="sbi is not installed")
    parts = [td.Uniform(torch.zeros(1), torch.ones(1)), td.Dirichlet(torch.ones(3))]
    with pytest.raises(ValueError, match="simplex"):
        eq.as_prior(utils.MultipleIndependent(parts))


class Dates:
    """Julian dates of one day, in double precision."""

    def __init__(self, start: float, width: float) -> None:
        self.start, self.width = start, width

    def sample(self, shape: tuple[int, ...] = ()) -> torch.Tensor:
        return self.start + self.width * torch.rand(*shape, 1, dtype=torch.float64)

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        return torch.zeros(theta.shape[:-1])


DOUBLE = torch.float64


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: eq.BoxUniform([1e44], [1e45]), "single precision.*Rescale"),
        (lambda: eq.BoxUniform(torch.tensor([1e44]), torch.tensor([1e45])), "ends at 3.4e38"),
        (lambda: eq.BoxUniform([0.0], [1e-60]), "single precision.*Rescale"),
        (lambda: eq.BoxUniform([0.0, 2459000.0], [1.0, 2459000.1]), "2459000.1.*offset"),
        (lambda: eq.LogUniform(1e-60, 1.0), "single precision.*Rescale"),
        (
            lambda: eq.as_prior(
                eq.BoxUniform(torch.tensor([2459000.0], dtype=DOUBLE), torch.tensor([2459000.1], dtype=DOUBLE))
            ),
            "parameter 0 of .* 0.25.*offset",
        ),
        (lambda: eq.as_prior(eq.IndependentPrior([td.Normal(2459000.0, 0.01)])), "varies too little"),
        (lambda: eq.as_prior(eq.GaussianPrior([0.0, 1e8], [[1.0, 0.0], [0.0, 1.0]])), "parameter 1"),
        (lambda: eq.as_prior(td.MultivariateNormal(torch.full((1,), 1e8), torch.eye(1))), "varies too little"),
        (lambda: eq.as_prior(td.Uniform(torch.zeros(1), torch.tensor([1e44]))), "3.4e38"),
        (lambda: eq.as_prior(eq.IndependentPrior([scipy.stats.norm(0, 1e45)])), "too large for single"),
        (lambda: eq.as_prior(Dates(2459000.0, 0.01)), "vary too little for single precision"),
        (lambda: eq.as_prior(Dates(1e44, 1e43)), "too large for single precision"),
        (lambda: prior_from_spec({"kind": "box", "low": [1e44], "high": [1e45]}), "low"),
        (lambda: prior_from_spec({"kind": "box", "low": [2459000.0], "high": [2459000.1]}), "offset"),
    ],
)
def test_what_single_precision_cannot_hold(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_what_single_precision_hardly_holds_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="0.25.*offset"):
        eq.as_prior(eq.BoxUniform([2459000.0], [2459010.0]))
    eq.as_prior(eq.BoxUniform([2459000.0], [2460000.0]))  # warnings are errors here
    eq.as_prior(eq.BoxUniform([1e-60], [1.0]))  # whose end is 0
    double = eq.BoxUniform(torch.tensor([2459000.0], dtype=DOUBLE), torch.tensor([2459000.1], dtype=DOUBLE))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert eq.as_prior(double) is double
    finally:
        torch.set_default_dtype(before)


UNUSABLE = {
    "normal, wide": "normal(1, 3.4e38)",
    "lognormal, wide": "lognormal(1, 1e10)",
    "lognormal, far": "lognormal(-inf, 1)",
    "halfnormal": "halfnormal(1e38)",
    "exponential": "exponential(1e-38)",
    "exponential, infinite": "exponential(inf)",
    "gamma, infinite": "gamma(1, inf)",
    "beta, infinite": "beta(1, 1e400)",
    "beta, narrow": "beta(1, 1e38)",
    "cauchy": "cauchy(1, 1e38)",
    "laplace": "laplace(1, 3.4e38)",
    "studentt, infinite": "studentt(inf, 1, 1)",
    "studentt, wide": "studentt(1, 1, 1e38)",
    "normal, infinite": "normal(0, inf)",
    "normal, NaN": "normal(nan, 1)",
    "normal, tiny": "normal(0, 1e-320)",
    "unchecked, negative": lambda: [td.Normal(0.0, -1.0, validate_args=False)],
    "unchecked, zero": lambda: [td.Normal(0.0, 0.0, validate_args=False)],
    "unchecked, NaN": lambda: [td.Normal(math.nan, 1.0, validate_args=False)],
    "unchecked, infinite": lambda: [td.Normal(0.0, math.inf)],
    "unchecked, tiny": lambda: [td.Normal(0.0, 1e-320, validate_args=False)],
    "denormal": lambda: [td.Exponential(1e38)],
    "Gaussian, infinite": lambda: eq.GaussianPrior([math.inf, 0.0], torch.eye(2)),
    "Gaussian, NaN": lambda: eq.GaussianPrior([0.0, 0.0], torch.full((2, 2), math.nan)),
    "Gaussian, no matrix": lambda: eq.GaussianPrior([0.0], None),
    "Gaussian, empty": lambda: eq.GaussianPrior([], torch.zeros(0, 0)),
    "box, empty": lambda: eq.BoxUniform([], []),
    "no list": lambda: eq.IndependentPrior(None),
    "a number": lambda: eq.IndependentPrior(3),
}


@pytest.mark.parametrize("given", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_priors_without_finite_draws_and_densities_are_refused(given: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"normal|Normal|prior|finite|distribution|Prior|covariance"):
        eq.as_prior(parse_prior(given) if isinstance(given, str) else given())


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20, 1e30])
def test_priors_of_any_scale_that_fits_have_right_densities(scale: float) -> None:
    for kind in (td.Normal, td.Laplace, td.Cauchy, td.Gumbel):
        prior = eq.as_prior([kind(scale, scale / 10)])
        theta = prior.from_uniform(torch.linspace(0.05, 0.95, 19)[:, None])
        exact = kind(torch.tensor(scale).double(), torch.tensor(scale / 10).double()).log_prob(theta[:, 0].double())
        torch.testing.assert_close(prior.log_prob(theta).double(), exact, atol=1e-3, rtol=0)
