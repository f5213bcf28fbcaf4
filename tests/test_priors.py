"""Priors: support, densities and the map to N(0, I), against scipy, closed forms and finite differences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributions as td
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.priors import OpaquePrior, Prior, marginals, prior_from_spec
from equipoise.randomness import isolated

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
    beta = td.Independent(td.Beta(torch.tensor([2.0, 3.0]), torch.tensor([2.0, 1.0])), 1)
    prior = eq.as_prior(beta)  # Beta has no cdf in torch
    assert isinstance(prior, OpaquePrior)
    theta = torch.tensor([[0.5, 0.5], [0.5, 1.5], [math.nan, 0.5]])
    expected = beta.log_prob(theta[0])
    torch.testing.assert_close(prior.log_prob(theta), torch.stack([expected, *[torch.tensor(-math.inf)] * 2]))


def test_looking_at_a_prior_leaves_the_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    eq.as_prior(td.Independent(td.Beta(torch.ones(2), torch.ones(2)), 1))
    eq.IndependentPrior([td.Cauchy(0.0, 1.0), td.Gamma(1.0, 1.0)])
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
        (lambda: eq.as_prior(td.Beta(torch.ones(3), torch.ones(3))), ValueError, "Independent"),
        (lambda: eq.BoxUniform([0.0], [0.0]), ValueError, "low < high"),
        (lambda: eq.BoxUniform([0.0], [math.inf]), ValueError, "finite"),
        (lambda: eq.BoxUniform([[0.0]], [[1.0]]), ValueError, "vector"),
        (lambda: eq.IndependentPrior([]), ValueError, "at least one"),
        (lambda: eq.IndependentPrior([td.Beta(1.0, 2.0)]), ValueError, "no continuous cdf"),
        (lambda: eq.IndependentPrior([td.Poisson(1.0)]), ValueError, "no continuous cdf"),
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
        moved = marginals.moved(marginal, torch.device("meta"))
        assert marginals.device_of(moved).type == "meta" and marginals.device_of(marginal).type == "cpu"
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
