"""The spline flow against zuko, autograd and numerical integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributions as td
import zuko
from scipy import stats
from torch import Tensor, nn

import equipoise as eq
from equipoise.networks import Flat, Flow, flow_kernels
from equipoise.networks.spline import spline_forward, spline_inverse
from equipoise.priors import Prior
from equipoise.support.devices import fixed_threads

FEATURES = 3


@pytest.fixture(autouse=True)
def double() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield None
    torch.set_default_dtype(before)


def priors(dim: int) -> dict[str, Prior]:
    marginals = [td.Gamma(torch.tensor(2.0), torch.tensor(1.5)), td.Normal(torch.tensor(1.0), torch.tensor(2.0))]
    return {
        "box": eq.BoxUniform(-2 * torch.ones(dim), 3 * torch.ones(dim)),
        "independent": eq.IndependentPrior([marginals[j % 2] for j in range(dim)]),
        "gaussian": eq.GaussianPrior(torch.zeros(dim), torch.eye(dim) + 0.5),
    }


def make(
    prior: Prior, start: str, init: str, members: int = 2, hidden: tuple[int, ...] = (16, 16)
) -> tuple[Flow, dict]:
    flow = Flow(prior, Flat((FEATURES,)), start, init, hidden=hidden)
    seeds = [(7 + m, 0) for m in range(members)]
    zeros, ones = torch.zeros(FEATURES), torch.ones(FEATURES)
    p = flow.init(seeds, [zeros] * members, [ones] * members)
    # Fresh splines are nearly straight; larger last layers make them curved.
    p = {n: (2 * w if n.startswith("flow") and f".{len(hidden)}." in n else w) for n, w in p.items()}
    return flow, p


ZUKOS = {"spline": zuko.flows.NSF, "affine": zuko.flows.MAF}


@pytest.mark.parametrize("univariate", ["spline", "affine"])
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_density_is_zukos(dim: int, univariate: str) -> None:
    prior = priors(dim)["box"]
    flow = Flow(prior, Flat((FEATURES,)), hidden=(32, 32), univariate=univariate)
    p = flow.init([(5, 0), (6, 0)], [torch.zeros(FEATURES)] * 2, [torch.ones(FEATURES)] * 2)
    theta, x = prior.sample((50,)), torch.randn(50, FEATURES)
    got = flow.log_ratio(p, theta, x)
    for m, seed in enumerate((5, 6)):
        torch.manual_seed(seed)
        reference = ZUKOS[univariate](dim, FEATURES, transforms=3, hidden_features=(32, 32), activation=nn.SELU)
        torch.testing.assert_close(got[m], reference(x).log_prob(theta) - prior.log_prob(theta))


@pytest.mark.parametrize("univariate", ["spline", "affine"])
@pytest.mark.parametrize(
    ("dim", "hidden"), [(1, (32, 32)), (1, (8, 24)), (1, (24, 8)), (2, (32, 31)), (3, (17,)), (5, (9, 12, 7))]
)
def test_many_densities_and_draws_an_observation_are_zukos(dim: int, hidden: tuple[int, ...], univariate: str) -> None:
    """Where a transform is walked coordinate by coordinate, sharing among draws what sees x alone."""
    prior = priors(dim)["box"]
    flow = Flow(prior, Flat((FEATURES,)), hidden=hidden, univariate=univariate)
    p = flow.init([(5, 0), (6, 0)], [torch.zeros(FEATURES)] * 2, [torch.ones(FEATURES)] * 2)
    theta, x, noise = prior.sample((7, 6)), torch.randn(6, FEATURES), 2 * torch.randn(2, 7, 6, dim)
    with torch.no_grad():
        ratio = flow.ratio(p, flow.encode(theta)[None], flow.embed(p, x[None]))
        draws, draws_ratio = flow.sample(p, flow.embed(p, x[None]), noise)
    for m, seed in enumerate((5, 6)):
        torch.manual_seed(seed)
        reference = ZUKOS[univariate](dim, FEATURES, transforms=3, hidden_features=hidden, activation=nn.SELU)(x)
        torch.testing.assert_close(ratio[m], reference.log_prob(theta) - prior.log_prob(theta))
        want = reference.transform.inv(noise[m])
        torch.testing.assert_close(draws[m], want, rtol=1e-6, atol=1e-7)
        inside = prior.contains(want)
        own = reference.log_prob(want)[inside] - prior.log_prob(want)[inside]
        torch.testing.assert_close(draws_ratio[m][inside], own, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("dim", "hidden", "bins", "draws"),
    [(1, (8, 24), 4, 40), (2, (32, 31), 8, 12), (3, (17,), 2, 300), (5, (9, 12, 7), 4, 40), (12, (20, 30), 4, 9)],
)
def test_compiled_loops_in_single_precision_are_zukos(
    dim: int, hidden: tuple[int, ...], bins: int, draws: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of observations, and of the draws of one; those at the end are smaller."""
    monkeypatch.setattr(flow_kernels, "BLOCK", 100)
    prior, x, seeds = priors(dim)["box"], torch.randn(6, FEATURES), (5, 6, 7)
    flow = Flow(prior, Flat((FEATURES,)), hidden=hidden, bins=bins)
    p = flow.init([(seed, 0) for seed in seeds], [torch.zeros(FEATURES)] * 3, [torch.ones(FEATURES)] * 3)
    theta, noise = prior.sample((draws, 6)), 2 * torch.randn(3, draws, 6, dim)
    single, code = {name: w.float() for name, w in p.items()}, flow.encode(theta).float()[None]
    features = flow.embed(single, x.float()[None])
    with torch.no_grad(), fixed_threads(threads):
        ratio = flow.ratio(single, code, features)
        points, points_ratio = flow.sample(single, features, noise.float())
    assert ratio.dtype == points.dtype == torch.float32
    for m, seed in enumerate(seeds):
        torch.manual_seed(seed)
        shape = {"transforms": 3, "hidden_features": hidden, "bins": bins}
        reference = zuko.flows.NSF(dim, FEATURES, **shape, activation=nn.SELU)(x)
        want = reference.log_prob(theta) - prior.log_prob(theta)
        torch.testing.assert_close(ratio[m].double(), want, rtol=1e-4, atol=1e-4)
        want = reference.transform.inv(noise[m])
        torch.testing.assert_close(points[m].double(), want, rtol=1e-4, atol=1e-4)
        inside = prior.contains(want)
        own = reference.log_prob(want)[inside] - prior.log_prob(want)[inside]
        torch.testing.assert_close(points_ratio[m].double()[inside], own, rtol=1e-4, atol=1e-3)


def test_compiled_loops_keep_what_is_not_a_number_to_its_member() -> None:
    flow, p = make(priors(2)["gaussian"], "prior", "standard")
    single = {name: w.float() for name, w in p.items()}
    single["flow.1.1.bias"][1, 3] = torch.nan
    code = flow.encode(priors(2)["gaussian"].sample((20, 4))).float()[None]
    with torch.no_grad():
        ratio = flow.ratio(single, code, flow.embed(single, torch.randn(1, 4, FEATURES).float()))
    assert ratio[0].isfinite().all() and ratio[1].isnan().all()


def test_exponential_of_the_compiled_loops() -> None:
    at = np.linspace(-86.9, 87.9, 20_001, dtype=np.float32)
    found = np.array([flow_kernels.exponential(v) for v in at], float)
    np.testing.assert_allclose(found, np.exp(at.astype(float)), rtol=2e-7)
    assert flow_kernels.exponential(np.float32(-1e9)) < 1e-37 and math.isnan(
        flow_kernels.exponential(np.float32(np.nan))
    )


def test_spline_is_zukos_inside_and_outside_its_domain() -> None:
    x = 4 * torch.randn(2000, generator=torch.Generator().manual_seed(0))
    phi = 2 * torch.randn(2000, 23, generator=torch.Generator().manual_seed(1))
    reference = zuko.transforms.MonotonicRQSTransform(*phi.split([8, 8, 7], -1))
    y, log_slope = spline_forward(x, phi)
    want_y, want_slope = reference.call_and_ladj(x)
    torch.testing.assert_close(y, want_y)
    torch.testing.assert_close(log_slope, want_slope)
    back, slope_there = spline_inverse(y, phi)
    torch.testing.assert_close(back, x, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(slope_there, log_slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("start", ["random", "prior", "prior_base"])
@pytest.mark.parametrize("kind", ["box", "independent", "gaussian"])
def test_log_density_is_the_jacobian_of_the_map_to_the_base(kind: str, start: str) -> None:
    """log q(θ) = log base(T(u(θ))) + log|det dT(u(θ))/dθ|, with the determinant from autograd."""
    prior = priors(2)[kind]
    flow, p = make(prior, start, "standard", members=1)
    x = torch.randn(1, FEATURES)
    features = flow.embed(p, x[None])

    def base(theta: Tensor) -> Tensor:
        u = flow.encode(theta)[None, None, : flow.dim][None]
        for t, shared in enumerate(flow._shared(p, features)):
            u, _ = spline_forward(u, flow._numbers(p, t, u, shared), flow.bins)
        return u.flatten()

    for theta in prior.sample((5,)):
        jacobian = torch.autograd.functional.jacobian(base, theta)
        v = base(theta)
        log_base = -2 * math.log(10) if start == "prior_base" else td.Normal(0.0, 1.0).log_prob(v).sum()
        want = log_base + jacobian.det().abs().log() - prior.log_prob(theta)
        got = flow.log_ratio(p, theta[None], x)[0, 0]
        torch.testing.assert_close(got, torch.as_tensor(want), rtol=1e-8, atol=1e-8)


def test_gradients_of_the_log_ratio_are_right() -> None:
    flow, p = make(priors(2)["box"], "prior", "standard", members=1)
    theta, x = priors(2)["box"].sample((3,)), torch.randn(3, FEATURES)
    flat = flow.layout.flatten(p).requires_grad_()
    direction = torch.randn_like(flat) * flow.layout.trainable

    def value(weights: Tensor) -> Tensor:
        return flow.log_ratio(flow.layout.cut(weights), theta, x).sum()

    (gradient,) = torch.autograd.grad(value(flat), flat)
    step = 1e-6
    numerical = (value(flat + step * direction) - value(flat - step * direction)) / (2 * step)
    torch.testing.assert_close((gradient * direction).sum(), numerical.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "kind", "start"),
    [(1, kind, start) for kind in ("box", "independent", "gaussian") for start in ("prior", "prior_base")]
    + [(2, "box", "prior"), (2, "gaussian", "prior"), (2, "box", "prior_base")],
)
def test_all_mass_is_inside_the_support(dim: int, kind: str, start: str) -> None:
    """∫ q(θ|x) dθ over the support is 1, by a midpoint sum in the coordinates in which the flow is smooth."""
    prior = priors(dim)[kind]
    flow, p = make(prior, start, "standard")
    side = 4000 if dim == 1 else 300 if start == "prior" else 500
    ticks = (torch.arange(side) + 0.5) / side
    u = torch.cartesian_prod(*[ticks] * dim).reshape(-1, dim)
    if start == "prior":
        z = 5.2 * (2 * u - 1)
        theta, weight = prior.from_normal(z), td.Normal(0.0, 1.0).log_prob(z).sum(-1).exp() * 10.4**dim
    else:
        theta, weight = prior.from_uniform(u), torch.ones(len(u))
    ratio = flow.log_ratio(p, theta[:, None, :], torch.randn(1, FEATURES, generator=torch.Generator().manual_seed(2)))
    mass = (ratio[:, :, 0].exp() * weight).mean(1)
    torch.testing.assert_close(mass, torch.ones(2), rtol=5e-3, atol=0)


def test_a_random_start_has_mass_one_over_the_whole_space() -> None:
    prior = eq.BoxUniform(-torch.ones(1), torch.ones(1))
    flow, p = make(prior, "random", "standard")
    theta = torch.linspace(-12, 12, 20_001)[:, None, None]
    log_density = flow.log_ratio(p, theta, torch.randn(1, FEATURES)) + prior.log_prob(torch.zeros(1, 1))
    # Outside the box encode() takes log p as 0, so undo what was not subtracted there.
    log_density = torch.where(prior.contains(theta)[None], log_density, log_density - prior.log_prob(torch.zeros(1, 1)))
    torch.testing.assert_close(
        torch.trapezoid(log_density.exp()[:, :, 0], theta[:, 0, 0]), torch.ones(2), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("start", ["random", "prior", "prior_base"])
def test_samples_carry_their_own_log_ratio(start: str, dim: int) -> None:
    prior = priors(dim)["box"]
    flow, p = make(prior, start, "standard")
    x = torch.randn(6, FEATURES)
    noise = flow.base_noise(torch.rand(2, 40, 6, dim))
    features = flow.embed(p, x[None])
    theta, ratio = flow.sample(p, features, noise)
    inside = prior.contains(theta)
    assert start == "random" or inside.all()
    want = flow.ratio(p, flow.encode(theta), features)
    torch.testing.assert_close(ratio[inside], want[inside], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("start", ["prior", "prior_base"])
def test_samples_follow_the_density(start: str) -> None:
    """A Kolmogorov–Smirnov test of 20,000 draws against the integrated density; rejects at 1e-6."""
    prior = priors(1)["box"]
    flow, p = make(prior, start, "standard", members=1)
    x = torch.randn(1, FEATURES)
    uniform = torch.rand(1, 20_000, 1, 1, generator=torch.Generator().manual_seed(3))
    theta, _ = flow.sample(p, flow.embed(p, x[None]), flow.base_noise(uniform))
    # In z the density is smooth; in θ it may pile up at the edges of the box.
    z = torch.linspace(-5.2, 5.2, 20_001)
    ratio = flow.log_ratio(p, prior.from_normal(z[:, None])[:, None, :], x)[0, :, 0]
    cdf = torch.cumulative_trapezoid((ratio + td.Normal(0.0, 1.0).log_prob(z)).exp(), z)
    values = prior.to_normal(theta[0, :, 0]).flatten().numpy()
    result = stats.kstest(values, lambda t: np.interp(t, z[1:].numpy(), cdf.numpy()))
    assert result.pvalue > 1e-6


@pytest.mark.parametrize(("start", "univariate"), [("prior", "spline"), ("prior_base", "spline"), ("prior", "affine")])
@pytest.mark.parametrize("kind", ["box", "independent", "gaussian"])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_identity_start_is_the_prior_exactly(dim: int, kind: str, start: str, univariate: str) -> None:
    prior = priors(dim)[kind]
    flow = Flow(prior, Flat((FEATURES,)), start, "identity", hidden=(16,), univariate=univariate)
    p = flow.init([(0, 0)], [torch.zeros(FEATURES)], [torch.ones(FEATURES)])
    theta, x = prior.sample((100,)), 5 * torch.randn(100, FEATURES)
    ratio = flow.log_ratio(p, theta, x)[0]
    torch.testing.assert_close(ratio, torch.zeros(100), rtol=0, atol=1e-12)
    assert eq.losses.balance_chi2(ratio, ratio.roll(1)).item() < 1e-20
    draws, _ = flow.sample(p, flow.embed(p, x[None, :1]), flow.base_noise(torch.rand(1, 4000, 1, dim)))
    for j in range(dim):
        assert stats.ks_2samp(draws[0, :, 0, j].numpy(), prior.sample((4000,))[:, j].numpy()).pvalue > 1e-6


def test_the_papers_recipe_is_near_the_prior_and_a_random_start_is_not() -> None:
    prior = eq.BoxUniform(-3 * torch.ones(2), 3 * torch.ones(2))
    theta, x = prior.sample((500,)), torch.randn(500, FEATURES)
    spread = {}
    for start, init in (("prior", "scaled"), ("prior", "standard"), ("random", "standard")):
        flow = Flow(prior, Flat((FEATURES,)), start, init)
        p = flow.init([(0, 0)], [torch.zeros(FEATURES)], [torch.ones(FEATURES)])
        assert (init != "scaled") or all(bool((w == 0).all()) for n, w in p.items() if n.endswith("bias"))
        spread[start, init] = flow.log_ratio(p, theta, x).abs().mean().item()
    assert spread["prior", "scaled"] < 0.01 < spread["prior", "standard"] < spread["random", "standard"]


def test_points_on_the_edge_of_a_box_have_a_finite_ratio_in_float32() -> None:
    prior = eq.BoxUniform(torch.tensor([0.1, -3.0], dtype=torch.float32), torch.tensor([0.7, 3.0], dtype=torch.float32))
    corners = torch.stack([prior.low, prior.high, torch.stack([prior.low[0], prior.high[1]])])
    for start in ("random", "prior", "prior_base"):
        flow = Flow(prior, Flat((FEATURES,)), start, "standard", hidden=(16,))
        p = flow.init([(0, 0)], [torch.zeros(FEATURES)], [torch.ones(FEATURES)])
        p = {n: w.float() for n, w in p.items()}
        assert flow.log_ratio(p, corners, torch.randn(3, FEATURES, dtype=torch.float32)).isfinite().all()


def test_a_prior_without_cdfs_cannot_start_a_flow() -> None:
    class Ring:
        def sample(self, shape: tuple[int, ...]) -> Tensor:
            return torch.rand(*shape, 2)

        def log_prob(self, theta: Tensor) -> Tensor:
            return torch.zeros(theta.shape[:-1])

    with pytest.raises(ValueError, match="cumulative distribution functions"):
        Flow(eq.as_prior(Ring()), Flat((FEATURES,)), "prior")
