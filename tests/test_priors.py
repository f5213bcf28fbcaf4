"""Priors: support, densities and the map to N(0, I), against scipy, closed forms and finite differences."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.priors import OpaquePrior, Prior, marginals, parts, prior_from_spec
from equipoise.priors.text import DISTRIBUTIONS, parse_prior
from equipoise.support.randomness import isolated

# Each marginal in float64 beside scipy's version of the same distribution.
MARGINALS = {
    "normal": (td.Normal, (1.5, 2.0), scipy.stats.norm(1.5, 2.0)),
    "uniform": (td.Uniform, (-2.0, 5.0), scipy.stats.uniform(-2.0, 7.0)),
    "gamma": (td.Gamma, (2.0, 3.0), scipy.stats.gamma(2.0, scale=1 / 3.0)),  # no icdf in torch
    "steep_gamma": (td.Gamma, (0.3, 1.0), scipy.stats.gamma(0.3)),
    "log_normal": (td.LogNormal, (0.5, 0.7), scipy.stats.lognorm(0.7, scale=math.exp(0.5))),
    "exponential": (td.Exponential, (2.0,), scipy.stats.expon(scale=0.5)),
    "laplace": (td.Laplace, (-1.0, 0.5), scipy.stats.laplace(-1.0, 0.5)),
    "cauchy": (td.Cauchy, (0.0, 1.0), scipy.stats.cauchy()),
    "half_normal": (td.HalfNormal, (1.3,), scipy.stats.halfnorm(scale=1.3)),
    "inverse_gamma": (td.InverseGamma, (3.0, 2.0), scipy.stats.invgamma(3.0, scale=2.0)),  # no icdf in torch
    "chi2": (td.Chi2, (4.0,), scipy.stats.chi2(4.0)),
    "pareto": (td.Pareto, (1.0, 3.0), scipy.stats.pareto(3.0)),
    "gumbel": (td.Gumbel, (0.0, 1.0), scipy.stats.gumbel_r()),
    "log_uniform": (eq.LogUniform, (0.001, 10.0), scipy.stats.loguniform(0.001, 10.0)),
    "beta": (td.Beta, (2.0, 5.0), scipy.stats.beta(2.0, 5.0)),  # from here on no cdf in torch
    "steep_beta": (td.Beta, (0.5, 2.0), scipy.stats.beta(0.5, 2.0)),
    "student_t": (td.StudentT, (3.0, 1.0, 2.0), scipy.stats.t(3.0, 1.0, 2.0)),
    "fisher": (td.FisherSnedecor, (3.0, 6.0), scipy.stats.f(3.0, 6.0)),
}


def make(name: str, dtype: torch.dtype = torch.float64) -> td.Distribution:
    cls, arguments, _ = MARGINALS[name]
    return cls(*(torch.tensor(a, dtype=dtype) for a in arguments))


def mixture(dtype: torch.dtype = torch.float64) -> td.Distribution:
    """A bimodal marginal, whose quantile Newton alone would not find."""
    parts = td.Normal(torch.tensor([-20.0, 30.0], dtype=dtype), torch.tensor([1.0, 0.5], dtype=dtype))
    return td.MixtureSameFamily(td.Categorical(torch.tensor([0.3, 0.7], dtype=dtype)), parts)


def priors(dtype: torch.dtype = torch.float32) -> dict[str, Prior]:
    corner = torch.tensor([-3.0, 100.0], dtype=dtype)
    covariance = torch.tensor([[2.0, 0.6], [0.6, 0.5]], dtype=dtype)
    return {
        "box": eq.BoxUniform(corner, torch.tensor([3.0, 200.0], dtype=dtype)),
        "independent": eq.IndependentPrior([make(name, dtype) for name in MARGINALS]),
        "gaussian": eq.GaussianPrior(torch.tensor([1.0, -2.0], dtype=dtype), covariance),
    }


NAMES = list(priors())


# --- the map -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MARGINALS)
def test_map_of_a_marginal_is_scipys(name: str) -> None:
    marginal, reference = make(name), MARGINALS[name][2]
    z = np.linspace(-5, 5, 41)
    # Each tail of scipy from its own end.
    theta = np.where(z < 0, reference.ppf(scipy.stats.norm.cdf(z)), reference.isf(scipy.stats.norm.sf(z)))
    np.testing.assert_allclose(marginals.from_normal(marginal, torch.tensor(z)), theta, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(marginals.to_normal(marginal, torch.tensor(theta)), z, atol=2e-9)
    u = np.linspace(0.001, 0.999, 23)
    np.testing.assert_allclose(marginals.from_uniform(marginal, torch.tensor(u)), reference.ppf(u), rtol=1e-9)
    np.testing.assert_allclose(marginals.to_uniform(marginal, torch.tensor(reference.ppf(u))), u, rtol=1e-9)


def test_quantiles_of_a_bimodal_marginal() -> None:
    z = torch.linspace(-6, 6, 101, dtype=torch.float64)
    theta = marginals.from_normal(mixture(), z)
    assert (theta.diff() > 0).all()
    torch.testing.assert_close(marginals.to_normal(mixture(), theta), z, atol=5e-8, rtol=0)  # 1 - F has 7 digits at 6σ


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_in_float64(name: str) -> None:
    prior = priors(torch.float64)[name]
    z = torch.linspace(-4.5, 4.5, 61, dtype=torch.float64)[:, None].expand(-1, prior.dim)
    torch.testing.assert_close(prior.to_normal(prior.from_normal(z)), z, atol=1e-8, rtol=0)
    u = torch.linspace(0.01, 0.99, 61, dtype=torch.float64)[:, None].expand(-1, prior.dim)
    torch.testing.assert_close(prior.to_uniform(prior.from_uniform(u)), u, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_prior_becomes_standard_normal(name: str) -> None:
    prior = priors()[name]
    torch.manual_seed(0)
    z = prior.to_normal(prior.sample((20_000,)))
    assert z.dtype == torch.float32
    # 17 KS tests at 1e-5 each: a false alarm in 6,000 seeds, and this seed is fixed.
    for column in z.T:
        assert scipy.stats.kstest(column.numpy(), "norm").pvalue > 1e-5
    correlation = torch.corrcoef(z.T) - torch.eye(prior.dim)
    assert correlation.abs().max() < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_normal_stays_inside_however_far_out(name: str, dtype: torch.dtype) -> None:
    prior = priors(dtype)[name]
    z = torch.tensor([-40.0, -9.0, -6.0, 0.0, 6.0, 9.0, 40.0], dtype=dtype)[:, None].expand(-1, prior.dim)
    theta = prior.from_normal(z)
    assert theta.dtype == dtype
    assert theta.isfinite().all() and prior.contains(theta).all() and prior.log_prob(theta).isfinite().all()
    assert prior.to_normal(theta).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_uniform_map_is_finite_at_its_ends(name: str) -> None:
    prior = priors()[name]
    u = torch.tensor([0.0, 1.0])[:, None].expand(-1, prior.dim)
    theta = prior.from_uniform(u)
    assert theta.isfinite().all() and prior.contains(theta).all()


@pytest.mark.parametrize("name", ["box", "log_uniform", "gamma", "beta"])
def test_lower_tail_in_float32(name: str) -> None:
    # Each has its lower end at 0, where θ in float32 has digits enough for any z.
    z = torch.linspace(-5.15, -2.0, 30)
    if name == "box":
        prior, reference = eq.BoxUniform([0.0], [2.0]), scipy.stats.uniform(0, 2)
    elif name == "log_uniform":
        prior, reference = eq.IndependentPrior([eq.LogUniform(1e-30, 1.0)]), scipy.stats.loguniform(1e-30, 1.0)
    else:
        prior, reference = eq.IndependentPrior([make(name, torch.float32)]), MARGINALS[name][2]
    theta = prior.from_normal(z[:, None])
    np.testing.assert_allclose(theta[:, 0], reference.ppf(scipy.stats.norm.cdf(z.double())), rtol=1e-5)
    torch.testing.assert_close(prior.to_normal(theta)[:, 0], z, atol=1e-3 if name == "log_uniform" else 1e-5, rtol=0)


def test_box_edges_in_float32() -> None:
    prior = eq.BoxUniform([100.0], [200.0])
    edge = torch.tensor([[100.0], [200.0]])
    z = prior.to_normal(edge)
    torch.testing.assert_close(z, torch.tensor([[-5.2], [5.2]]), atol=1e-4, rtol=0)
    near = torch.nextafter(edge, torch.tensor(150.0))
    assert prior.to_normal(near).abs().le(5.2001).all() and prior.to_normal(near).abs().ge(5.0).all()
    assert torch.equal(prior.to_uniform(edge), torch.tensor([[0.0], [1.0]]))
    assert torch.equal(prior.from_uniform(torch.tensor([[0.0], [1.0]])), edge)


@given(st.floats(-1000, 1000), st.floats(1e-3, 1e4), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_box_map_is_antisymmetric_and_monotone(low: float, width: float, u: float) -> None:
    prior = eq.BoxUniform(torch.tensor([low], dtype=torch.float64), torch.tensor([low + width], dtype=torch.float64))
    theta = prior.from_uniform(torch.tensor([[u]], dtype=torch.float64))
    mirrored = prior.low + prior.high - theta
    rounding = 1e-12 * (abs(low) + width) / width / scipy.stats.norm.pdf(5.2)
    assert prior.contains(theta).all()
    assert abs(float(prior.to_normal(theta) + prior.to_normal(mirrored))) < 1e-6 + rounding
    assert float(prior.to_normal(theta + 1e-3 * width)) >= float(prior.to_normal(theta))


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_nan(name: str) -> None:
    prior = priors()[name]
    theta = torch.full((2, prior.dim), math.nan)
    assert prior.to_normal(theta).isnan().all()
    assert not prior.contains(theta).any()
    assert (prior.log_prob(theta) == -math.inf).all()


# --- gradients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_derivative_of_the_map_is_density_over_density(name: str) -> None:
    # log |det dz/dθ| = log p(θ) - log φ(z), the identity the whole construction rests on.
    prior = priors(torch.float64)[name]
    torch.manual_seed(1)
    theta = prior.sample((6,))
    for row in theta:
        jacobian = torch.autograd.functional.jacobian(prior.to_normal, row)
        phi = td.Normal(0.0, 1.0).log_prob(prior.to_normal(row)).sum()
        torch.testing.assert_close(torch.linalg.slogdet(jacobian)[1], prior.log_prob(row) - phi, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_against_finite_differences(name: str) -> None:
    prior = priors(torch.float64)[name]
    # Eight points: none at 0, where a Laplace has a kink.
    z = torch.linspace(-2.5, 2.5, 8, dtype=torch.float64)[:, None].repeat(1, prior.dim).requires_grad_()
    theta = prior.from_normal(z)
    (slope,) = torch.autograd.grad(theta.sum(), z)
    step = 1e-4
    with torch.no_grad():
        difference = (prior.from_normal(z + step) - prior.from_normal(z - step)) / (2 * step)
    if name == "gaussian":  # one z moves several θ: compare the sums over θ
        step_each = step * torch.eye(2, dtype=torch.float64)
        moved = [(prior.from_normal(z + e) - prior.from_normal(z - e)).sum(-1) / (2 * step) for e in step_each]
        difference = torch.stack(moved, -1).detach()
    torch.testing.assert_close(slope, difference, rtol=1e-6, atol=1e-9)
    theta = theta.detach().requires_grad_()
    (back,) = torch.autograd.grad(prior.to_normal(theta).sum(), theta)
    if name != "gaussian":
        torch.testing.assert_close(back * slope, torch.ones_like(slope), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_at_and_beyond_the_edges(name: str) -> None:
    prior = priors()[name]
    for z in (-30.0, -5.3, 5.3, 30.0):
        theta = prior.from_normal(torch.full((1, prior.dim), z)).requires_grad_()
        (gradient,) = torch.autograd.grad(prior.to_normal(theta).sum(), theta)
        assert gradient.isfinite().all()
        start = torch.full((1, prior.dim), z, requires_grad=True)
        (gradient,) = torch.autograd.grad(prior.from_normal(start).sum(), start)
        assert gradient.isfinite().all()


# --- densities and supports ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MARGINALS)
def test_density_of_a_marginal_is_scipys(name: str) -> None:
    marginal, reference = make(name), MARGINALS[name][2]
    theta = np.concatenate([reference.ppf(np.linspace(0.01, 0.99, 21)), [-30.0, -2.5]])
    mine = eq.IndependentPrior([marginal]).log_prob(torch.tensor(theta)[:, None]).numpy()
    np.testing.assert_allclose(mine, reference.logpdf(theta), rtol=1e-10, atol=1e-10)


def test_box_is_closed_and_minus_infinity_outside() -> None:
    prior = eq.BoxUniform([0.0, -1.0], [1.0, 3.0])
    inside = torch.tensor([[0.0, -1.0], [1.0, 3.0], [0.5, 0.0]])
    torch.testing.assert_close(prior.log_prob(inside), torch.full((3,), -math.log(4.0)))
    assert (prior.log_prob(torch.tensor([[1.0001, 0.0], [0.5, -1.1]])) == -math.inf).all()
    assert prior.support.check(inside).all()
    torch.testing.assert_close(prior.entropy(), torch.tensor(math.log(4.0)))
    torch.testing.assert_close(prior.mean, torch.tensor([0.5, 1.0]))
    torch.testing.assert_close(prior.variance, torch.tensor([1 / 12, 16 / 12]))


def test_corners_count_as_inside_in_either_dtype() -> None:
    # 0.1 and 0.7 are no binary numbers: their float32 versions lie on either side of the float64 ones.
    for dtype, other in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        prior = eq.BoxUniform(torch.tensor([-0.7, -0.1], dtype=dtype), torch.tensor([0.1, 0.7], dtype=dtype))
        for corner in (prior.low, prior.high):
            assert prior.contains(corner.to(other)) and prior.log_prob(corner.to(other)).dtype == other


def test_a_box_of_plain_numbers_is_closed_for_doubles() -> None:
    """0.1 and 0.9 in double precision lie just outside of what single precision makes of them; 1e-6 further is out."""
    prior = eq.BoxUniform([0.1], [0.9])
    tenths = torch.arange(1, 10, dtype=torch.float64)[:, None] / 10
    assert prior.contains(tenths).all() and prior.log_prob(tenths).isfinite().all()
    beyond = torch.tensor([[0.1 - 1e-6], [0.9 + 1e-6], [1e300], [math.nan]], dtype=torch.float64)
    assert not prior.contains(beyond).any()
    assert prior.to_uniform(tenths).aminmax() == (0.0, 1.0) and prior.to_normal(tenths).isfinite().all()


def test_uniform_marginals_are_closed_too() -> None:
    prior = eq.IndependentPrior([td.Uniform(0.0, 2.0), td.Exponential(1.0)])
    assert prior.contains(torch.tensor([2.0, 0.0])) and prior.log_prob(torch.tensor([2.0, 1.0])).isfinite()
    assert not prior.contains(torch.tensor([2.1, 1.0])) and not prior.contains(torch.tensor([1.0, -0.1]))
    assert not prior.contains(torch.tensor([1.0, math.inf]))


def test_gaussian_against_torch() -> None:
    prior = priors(torch.float64)["gaussian"]
    assert isinstance(prior, eq.GaussianPrior)
    reference = td.MultivariateNormal(prior.loc, prior.covariance)
    theta = reference.sample((50,))
    torch.testing.assert_close(prior.log_prob(theta), reference.log_prob(theta))
    torch.manual_seed(0)
    draws = prior.sample((200_000,))
    torch.testing.assert_close(draws.mean(0), prior.mean, atol=0.02, rtol=0)  # six standard errors
    torch.testing.assert_close(draws.T.cov(), prior.covariance, atol=0.04, rtol=0)
    torch.testing.assert_close(prior.variance, prior.covariance.diagonal())


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name: str) -> None:
    prior = priors()[name]
    assert prior.sample().shape == (prior.dim,)
    theta = prior.sample((3, 4))
    assert theta.shape == (3, 4, prior.dim)
    for f in (prior.log_prob, prior.contains):
        assert f(theta).shape == (3, 4) and f(theta[0, 0]).shape == ()
    for f in (prior.to_normal, prior.to_uniform):
        assert f(theta).shape == theta.shape
    with pytest.raises(ValueError, match="parameter"):
        prior.log_prob(torch.zeros(5, prior.dim + 1))


# --- what users bring ----------------------------------------------------------------------------------------------


class Scripted:
    """A prior with no more than `sample` and `log_prob`, in NumPy: uniform on the triangle 0 < b < a < 1."""

    def sample(self, shape: tuple[int, ...] = ()) -> np.ndarray:
        rng = np.random.default_rng(0)
        return np.sort(rng.random((*shape, 2)), axis=-1)[..., ::-1].copy()

    def log_prob(self, theta: torch.Tensor) -> torch.Tensor:
        a, b = theta[..., 0], theta[..., 1]
        return torch.where((b > 0) & (b < a) & (a < 1), math.log(2.0), -math.inf)


def test_anything_with_sample_and_log_prob_is_a_prior() -> None:
    prior = eq.as_prior(Scripted())
    assert isinstance(prior, OpaquePrior) and prior.dim == 2 and not prior.has_normal_map
    assert prior.sample((5,)).shape == (5, 2)
    inside = torch.tensor([[0.5, 0.2], [0.2, 0.5], [math.nan, 0.1]])
    assert prior.contains(inside).tolist() == [True, False, False]
    for method in ("to_normal", "from_normal", "to_uniform", "from_uniform"):
        with pytest.raises(ValueError, match="no map"):
            getattr(prior, method)(inside)
    with pytest.raises(ValueError, match="pass it again"):
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


def test_torch_priors_are_recognised() -> None:
    batch = td.LogNormal(torch.tensor([0.0, 1.0]), torch.tensor(0.5))
    prior = eq.as_prior(td.Independent(batch, 1))
    assert isinstance(prior, eq.IndependentPrior)
    theta = batch.sample((7,))
    torch.testing.assert_close(prior.log_prob(theta), batch.log_prob(theta).sum(-1))
    assert isinstance(eq.as_prior(td.Uniform(torch.zeros(3), torch.ones(3))), eq.BoxUniform)
    assert isinstance(eq.as_prior(td.MultivariateNormal(torch.zeros(2), torch.eye(2))), eq.GaussianPrior)
    assert eq.as_prior(prior) is prior


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: eq.as_prior(3), TypeError, "eq.BoxUniform.*sample and log_prob; got int$"),
        (lambda: eq.as_prior(td.Normal(0.0, 1.0)), ValueError, "over scalars"),
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
        (lambda: eq.as_prior(scipy.stats.beta(2, 5)), TypeError, "eq.IndependentPrior$"),
        (lambda: eq.as_prior([td.Normal(0.0, 1.0)]), TypeError, "got list; .* eq.IndependentPrior$"),
        (
            lambda: eq.IndependentPrior([td.RelaxedBernoulli(torch.ones(()), torch.tensor(0.5))]),
            ValueError,
            "object of your own.*start='random'",
        ),
        (lambda: eq.IndependentPrior([td.Poisson(1.0)]), ValueError, "no continuous cdf: it is over whole numbers"),
        (lambda: eq.IndependentPrior([td.Normal(torch.zeros(2), 1.0)]), ValueError, "one-dimensional"),
        (lambda: eq.GaussianPrior([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]), ValueError, "positive definite"),
        (lambda: eq.GaussianPrior([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]), ValueError, "symmetric"),
        (lambda: prior_from_spec({"kind": "spline"}), ValueError, "unknown kind"),
        (lambda: prior_from_spec(eq.IndependentPrior([mixture()]).spec()), ValueError, "without pickle.*prior=…"),
        (lambda: Prior(2), TypeError, "abstract"),
    ],
)
def test_bad_input_says_what_is_wrong(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


# --- distributions of SciPy, and others that torch has no CDF of --------------------------------------------------

FROZEN = {
    "beta": scipy.stats.beta(2, b=5),
    "truncated normal": scipy.stats.truncnorm(-1, 2, loc=3, scale=0.5),
    "skewed": scipy.stats.skewnorm(4),
    "rayleigh": scipy.stats.rayleigh(scale=2),
    "bounded above": scipy.stats.weibull_max(2.0),
    "searched": scipy.stats.vonmises_line(2.0),  # SciPy has no formula of its quantiles
}


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_distributions_of_scipy(name: str) -> None:
    reference = FROZEN[name]
    prior = eq.IndependentPrior([reference, td.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0)])
    z = np.linspace(-4.5, 4.5, 15)
    theta = np.where(z < 0, reference.ppf(scipy.stats.norm.cdf(z)), reference.isf(scipy.stats.norm.sf(z)))
    both = torch.tensor(np.stack([theta, np.zeros_like(z)], -1), requires_grad=True)
    np.testing.assert_allclose(
        prior.log_prob(both).detach(), reference.logpdf(theta) + scipy.stats.norm.logpdf(0), rtol=1e-10
    )
    score = prior.to_normal(both)
    np.testing.assert_allclose(score[:, 0].detach(), z, atol=1e-8)
    # dz/dθ = p(θ)/φ(z), and its inverse in the other direction.
    (slope,) = torch.autograd.grad(score.sum(), both)
    expected = np.exp(reference.logpdf(theta) - scipy.stats.norm.logpdf(z))
    np.testing.assert_allclose(slope[:, 0], expected, rtol=1e-7)
    start = torch.tensor(np.stack([z, z], -1), requires_grad=True)
    back = prior.from_normal(start)
    np.testing.assert_allclose(back[:, 0].detach(), theta, rtol=1e-8, atol=1e-10)
    (slope,) = torch.autograd.grad(back.sum(), start)
    np.testing.assert_allclose(slope[:, 0], 1 / expected, rtol=1e-6)
    torch.manual_seed(0)
    draws = prior.sample((5000,))
    assert draws.dtype == torch.float64 and prior.contains(draws).all()
    # False alarm of one in 1e5 seeds, and this one is fixed.
    assert scipy.stats.kstest(draws[:, 0].numpy(), reference.cdf).pvalue > 1e-5
    torch.testing.assert_close(prior.mean[0], torch.tensor(reference.mean(), dtype=torch.float64))
    torch.testing.assert_close(prior.variance[0], torch.tensor(reference.var(), dtype=torch.float64))
    again = prior_from_spec(json.loads(json.dumps(prior.spec())))
    assert repr(again) == repr(prior) and again.sample((2,)).dtype == torch.float64
    assert torch.equal(again.to_normal(draws[:9]), prior.to_normal(draws[:9]))


@pytest.mark.parametrize("name", ["beta", "rayleigh"])
def test_slope_of_a_density_of_scipy(name: str) -> None:
    family = {"beta": td.Beta, "rayleigh": td.Weibull}[name]
    twin = family(*(torch.tensor(v, dtype=torch.float64) for v in ((2.0, 5.0) if name == "beta" else (8**0.5, 2.0))))
    theta = torch.tensor([0.001, 0.1, 0.4, 0.95], dtype=torch.float64)
    slopes = []
    for prior in (eq.IndependentPrior([FROZEN[name]]), eq.IndependentPrior([twin])):
        at = theta[:, None].clone().requires_grad_()
        slopes.append(torch.autograd.grad(prior.log_prob(at).sum(), at)[0])
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["beta", "student_t", "fisher"])
def test_second_derivatives_where_scipy_has_the_cdf(name: str) -> None:
    marginal = make(name)
    theta = torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: marginals.to_normal(marginal, t), theta)
    assert torch.autograd.gradgradcheck(lambda t: marginals.to_normal(marginal, t), theta)


def test_draws_of_scipy_follow_the_seed() -> None:
    prior = eq.IndependentPrior([scipy.stats.beta(2, 5)])
    draws = []
    for seed in (1, 1, 2):
        with isolated(seed):
            draws.append(prior.sample((4,)))
    assert draws[0].shape == (4, 1) and draws[0].dtype == torch.float32
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_distributions_of_ones_own_in_scipys_style_are_not_stored() -> None:
    class Triangle(scipy.stats.rv_continuous):
        def _pdf(self, x):
            return 2 * x

        def _cdf(self, x):
            return x**2

    prior = eq.IndependentPrior([Triangle(a=0, b=1, name="triangle")()])
    torch.testing.assert_close(prior.to_uniform(torch.tensor([[0.5]])), torch.tensor([[0.25]]))
    torch.testing.assert_close(prior.from_uniform(torch.tensor([[0.25]])), torch.tensor([[0.5]]))
    assert prior.spec()["kind"] == "opaque"


@pytest.mark.parametrize("loc", [0.0, 2.5, -1.0])
def test_an_angle_lives_between_minus_pi_and_pi(loc: float) -> None:
    marginal = td.VonMises(torch.tensor(loc, dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64))
    prior = eq.IndependentPrior([marginal])
    theta = torch.linspace(-math.pi, math.pi, 20_001, dtype=torch.float64)
    density = prior.log_prob(theta[:, None]).exp()
    cumulative = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(density, theta)]).double()
    torch.testing.assert_close(cumulative[-1], torch.tensor(1.0, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(prior.to_uniform(theta[:, None])[:, 0], cumulative, atol=1e-6, rtol=0)
    z = torch.linspace(-3, 3, 25, dtype=torch.float64)[:, None]
    torch.testing.assert_close(prior.to_normal(prior.from_normal(z)), z, atol=1e-8, rtol=0)
    torch.manual_seed(0)
    draws = prior.sample((5000,))
    assert scipy.stats.kstest(prior.to_uniform(draws)[:, 0].numpy(), "uniform").pvalue > 1e-5
    assert not prior.contains(torch.tensor([3.2])) and prior.log_prob(torch.tensor([[3.2]])) == -math.inf


# --- log-uniform ---------------------------------------------------------------------------------------------------


@given(st.floats(-30, 8), st.floats(1e-3, 29), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_log_uniform_is_a_uniform_of_the_logarithm(exponent: float, decades: float, u: float) -> None:
    ends = torch.tensor([10**exponent, 10 ** (exponent + decades)], dtype=torch.float64)
    prior = eq.as_prior(eq.LogUniform(ends[:1], ends[1:]))
    box = eq.BoxUniform(ends[:1].log(), ends[1:].log())
    theta = prior.from_uniform(torch.tensor([[u]], dtype=torch.float64))
    assert prior.contains(theta).all()
    torch.testing.assert_close(
        theta.log(), box.from_uniform(torch.tensor([[u]], dtype=torch.float64)), atol=1e-10, rtol=0
    )
    torch.testing.assert_close(prior.log_prob(theta), box.log_prob(box.mean) - theta[:, 0].log())
    rounding = 1e-12 / decades / scipy.stats.norm.pdf(5.2)
    assert abs(float(prior.to_normal(theta) - box.to_normal(theta.log()))) < 1e-6 + rounding


def test_log_uniform_in_single_precision() -> None:
    marginal = eq.LogUniform(1e-30, 1e30)  # 60 decades, whose ratio is no float32
    prior = eq.IndependentPrior([marginal])
    reference = scipy.stats.loguniform(1e-30, 1e30)
    u = torch.linspace(0, 1, 33)[:, None]
    np.testing.assert_allclose(prior.from_uniform(u)[:, 0], reference.ppf(u[:, 0].numpy()), rtol=1e-5)
    theta = prior.sample((2000,))
    assert prior.contains(theta).all() and theta.dtype == torch.float32
    assert scipy.stats.kstest(theta[:, 0].double().numpy(), reference.cdf).pvalue > 1e-5
    torch.testing.assert_close(prior.from_normal(prior.to_normal(theta)), theta, rtol=2e-4, atol=0)
    edges = torch.tensor([[1e-30], [1e30]])
    torch.testing.assert_close(prior.to_normal(edges), torch.tensor([[-5.2], [5.2]]), atol=1e-5, rtol=0)
    assert not prior.contains(torch.tensor([[-1.0], [0.0], [1.1e30]])).any()
    assert (prior.log_prob(torch.tensor([[-1.0], [0.0], [1.1e30]])) == -math.inf).all()


def test_log_uniform_as_a_torch_distribution() -> None:
    reference = scipy.stats.loguniform([0.001, 2.0], [10.0, 3.0])
    batch = eq.LogUniform(torch.tensor([0.001, 2.0], dtype=torch.float64), torch.tensor([10.0, 3.0]))
    assert batch.batch_shape == (2,) and batch.low.dtype == torch.float64
    np.testing.assert_allclose(batch.mean, reference.mean())
    np.testing.assert_allclose(batch.variance, reference.var(), rtol=1e-7)
    np.testing.assert_allclose(batch.entropy(), reference.entropy(), rtol=1e-7)
    theta = torch.tensor([[0.5, 2.5], [11.0, 1.0]], dtype=torch.float64)
    np.testing.assert_allclose(batch.log_prob(theta), reference.logpdf(theta))
    np.testing.assert_allclose(batch.cdf(theta), reference.cdf(theta))
    assert batch.expand((3, 2)).sample((4,)).shape == (4, 3, 2)
    assert batch.support.check(batch.sample((100,))).all()
    prior = eq.as_prior(td.Independent(batch, 1))
    assert isinstance(prior, eq.IndependentPrior) and repr(prior.marginals[0]) == "LogUniform(low=0.001, high=10)"
    end = torch.tensor(2.0, requires_grad=True)
    (slope,) = torch.autograd.grad(eq.LogUniform(1.0, end).rsample((5,)).sum(), end)
    assert slope > 0
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="0 < low < high"):
            eq.LogUniform(low, high)


# --- shapes of sbi, simplices, single precision -------------------------------------------------------------------


def test_marginals_with_shape_one_are_marginals() -> None:
    shaped = [
        td.Uniform(torch.zeros(1), torch.ones(1)),
        td.Independent(td.Gamma(torch.ones(1), 2 * torch.ones(1)), 1),
        td.MultivariateNormal(torch.ones(1), 4 * torch.eye(1)),
        td.Normal(1.0, 2.0),
        eq.BoxUniform([0.0], [3.0]),
        eq.GaussianPrior([0.0], [[4.0]]),
        eq.IndependentPrior([td.Normal(0.0, 1.0)]),
        eq.LogUniform([1.0], [2.0]),
    ]
    plain = [
        td.Uniform(0.0, 1.0),
        td.Gamma(1.0, 2.0),
        td.Normal(1.0, 2.0),
        td.Normal(1.0, 2.0),
        td.Uniform(0.0, 3.0),
        td.Normal(0.0, 2.0),
        td.Normal(0.0, 1.0),
        eq.LogUniform(1.0, 2.0),
    ]
    prior = eq.IndependentPrior(shaped)
    assert prior.dim == len(shaped) and prior.spec() == eq.IndependentPrior(plain).spec()


@pytest.mark.parametrize(
    "prior",
    [
        td.Dirichlet(torch.ones(3)),
        td.LogisticNormal(torch.zeros(2), torch.ones(2)),
        td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Dirichlet(torch.ones(2, 3))),
    ],
)
def test_simplices_are_refused_with_a_way_out(prior: td.Distribution) -> None:
    with pytest.raises(ValueError, match=r"simplex.*Leave out the last coordinate"):
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
        (lambda: eq.BoxUniform([1e44], [1e45]), "too large for single precision.*Rescale"),
        (lambda: eq.BoxUniform(torch.tensor([1e44]), torch.tensor([1e45])), "ends at 3.4e38"),
        (lambda: eq.BoxUniform([0.0], [1e-60]), "too small for single precision"),
        (lambda: eq.BoxUniform([0.0, 2459000.0], [1.0, 2459000.1]), "too close together.*offset"),
        (lambda: eq.LogUniform(1e-60, 1.0), "too small for single precision"),
        (
            lambda: eq.as_prior(
                eq.BoxUniform(torch.tensor([2459000.0], dtype=DOUBLE), torch.tensor([2459000.1], dtype=DOUBLE))
            ),
            "parameter 0 of .* varies too little.*steps of 0.25.*offset",
        ),
        (lambda: eq.as_prior(eq.IndependentPrior([td.Normal(2459000.0, 0.01)])), "varies too little"),
        (lambda: eq.as_prior(eq.GaussianPrior([0.0, 1e8], [[1.0, 0.0], [0.0, 1.0]])), "parameter 1"),
        (lambda: eq.as_prior(td.MultivariateNormal(torch.full((1,), 1e8), torch.eye(1))), "varies too little"),
        (lambda: eq.as_prior(td.Uniform(torch.zeros(1), torch.tensor([1e44]))), "3.4e38"),
        (lambda: eq.as_prior(eq.IndependentPrior([scipy.stats.norm(0, 1e45)])), "too large for single"),
        (lambda: eq.as_prior(Dates(2459000.0, 0.01)), "vary too little for single precision"),
        (lambda: eq.as_prior(Dates(1e44, 1e43)), "too large for single precision"),
        (lambda: prior_from_spec({"kind": "box", "low": [1e44], "high": [1e45]}), "too large"),
        (lambda: prior_from_spec({"kind": "box", "low": [2459000.0], "high": [2459000.1]}), "too close"),
    ],
)
def test_what_single_precision_cannot_hold(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_what_single_precision_hardly_holds_is_told_of() -> None:
    with pytest.warns(UserWarning, match="steps of 0.25 only.*offset"):
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


# --- the page about priors -----------------------------------------------------------------------------------------


def test_texts_and_files_of_the_page_are_priors(tmp_path: Path) -> None:
    # Its Python is run with that of the other pages.
    page = (Path(__file__).parents[1] / "docs" / "priors.md").read_text(encoding="utf-8")
    texts = re.findall(r"--prior '(.*?)'", page)
    assert len(texts) > 2 and all(parse_prior(text).dim > 1 for text in texts)
    files = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert len(files) == 3
    for text in files:
        (tmp_path / "prior.json").write_text(text)
        prior = parse_prior(str(tmp_path / "prior.json"))
        assert prior.dim > 1 and json.loads(text)["kind"] == prior.spec()["kind"]
    table = page[page.index("| term |") :]
    assert set(DISTRIBUTIONS) == {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in row.strip("`").split("`, `")
    }
    assert "text for eleven of them" in page and len(DISTRIBUTIONS) == 11


# --- storing and moving --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spec_round_trip_through_json(name: str, dtype: torch.dtype) -> None:
    prior = priors(dtype)[name]
    again = prior_from_spec(json.loads(json.dumps(prior.spec())))
    torch.manual_seed(0)
    theta = prior.sample((10,))
    assert type(again) is type(prior) and again.sample((1,)).dtype == dtype
    assert torch.equal(again.log_prob(theta), prior.log_prob(theta))
    assert torch.equal(again.to_normal(theta), prior.to_normal(theta))


@pytest.mark.parametrize("name", NAMES)
def test_to_the_same_device(name: str) -> None:
    prior = priors()[name]
    moved = prior.to("cpu")
    theta = prior.sample((5,))
    assert moved.device == torch.device("cpu") == prior.device
    assert torch.equal(moved.log_prob(theta), prior.log_prob(theta))


def test_moving_reaches_every_tensor() -> None:
    # The meta device holds no numbers, but shows where a tensor would be.
    for marginal in [*(make(name) for name in MARGINALS), mixture()]:
        moved = parts.moved(marginal, torch.device("meta"))
        assert parts.device_of(moved).type == "meta" and parts.device_of(marginal).type == "cpu"
    box, gaussian = priors()["box"], priors()["gaussian"]
    assert isinstance(box, eq.BoxUniform) and isinstance(gaussian, eq.GaussianPrior)
    assert gaussian.loc.to("meta").device.type == "meta"
    opaque = eq.as_prior(Scripted()).to("meta")
    assert opaque.device.type == "meta" and opaque.sample((3,)).device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_to_a_gpu_and_arguments_from_elsewhere(name: str) -> None:
    prior = priors()[name]
    moved = prior.to("cuda")
    theta = prior.sample((100,))
    assert moved.sample((2,)).is_cuda
    torch.testing.assert_close(moved.to_normal(theta.cuda()).cpu(), prior.to_normal(theta), atol=1e-4, rtol=1e-4)
    assert prior.log_prob(theta.cuda()).is_cuda and not moved.log_prob(theta).is_cuda
