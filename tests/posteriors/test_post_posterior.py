"""Posteriors: shapes, normalisation, draws against densities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributions as td
from scipy import stats
from torch import Tensor, nn

import equipoise as eq
from equipoise.networks import Classifier, Flat, Flow, UserNetwork
from equipoise.posteriors import Posterior

BOX = eq.BoxUniform(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))


def random_posterior(kind: str, members: int = 3, prior: object = BOX, x_shape: tuple[int, ...] = (4,)) -> Posterior:
    """An untrained posterior with lively weights."""
    prior = eq.as_prior(prior)
    body = Flat(x_shape)
    if kind == "mixture":  # of two architectures and two starts, with weights
        parts = [random_posterior(k, n, prior, x_shape) for k, n in (("affine", 1), ("random", members - 1))]
        return Posterior.joined(parts).weighted(range(1, members + 1))
    if kind == "affine":
        net = Flow(prior, body, "prior" if prior.has_normal_map else "random", hidden=(16,), univariate="affine")
    elif kind == "classifier":
        net = Classifier(prior, body, hidden=(24, 24))
    else:
        net = Flow(prior, body, kind, hidden=(24, 24))
    seeds = [(m, 0) for m in range(members)]
    stack = net.init(seeds, [torch.zeros(x_shape)] * members, [torch.ones(x_shape)] * members)
    if kind == "classifier":  # fresh ratios are nearly flat
        stack["mlp.2.weight"] = 4 * stack["mlp.2.weight"]
    return Posterior(net, stack)


KINDS = ["classifier", "random", "prior", "prior_base", "mixture"]


@pytest.mark.parametrize("kind", KINDS)
def test_leading_dimensions_broadcast(kind: str) -> None:
    p = random_posterior(kind)
    theta, x = BOX.sample((5, 7)), torch.randn(5, 7, 4)
    whole = p.log_prob(theta, x)
    assert whole.shape == (5, 7)
    torch.testing.assert_close(p.log_prob(theta[2], x[2]), whole[2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(p.log_prob(theta[2, 3], x[2, 3]), whole[2, 3], rtol=1e-4, atol=1e-4)
    one = p.log_prob(theta, x[0, 0])
    assert one.shape == (5, 7)
    torch.testing.assert_close(one[0, 0], whole[0, 0], rtol=1e-4, atol=1e-4)
    stretched = p.log_prob(theta, x[:, :1])
    torch.testing.assert_close(stretched[3, 4], p.log_prob(theta[3, 4], x[3, 0]), rtol=1e-4, atol=1e-4)
    assert p.log_ratio(theta, x).shape == (5, 7)
    assert p.log_prob(theta[:0], x[0, 0]).shape == (0, 7)
    assert p.sample((2, 3), x=x[0, 0]).shape == (2, 3, 2)
    assert p.sample_batched((6,), x[0]).shape == (6, 7, 2)


@pytest.mark.parametrize("kind", ["classifier", "random"])
@pytest.mark.parametrize(
    ("of_theta", "of_x", "distinct"),
    [
        ((6,), (1,), 1),
        ((5, 6), (1, 1), 1),
        ((5, 6), (5, 1), 5),
        ((5, 6), (1, 6), 6),
        ((), (1,), 1),
        ((3, 1, 2), (4, 1), 4),
    ],
)
def test_nothing_is_computed_twice_for_an_observation(
    kind: str, of_theta: tuple[int, ...], of_x: tuple[int, ...], distinct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However θ and x broadcast, each x is normalised once, and every pair is as it is alone."""
    p = random_posterior(kind)
    g = torch.Generator().manual_seed(2)
    theta, x = BOX.from_uniform(torch.rand(*of_theta, 2, generator=g)), torch.randn(*of_x, 4, generator=g)
    shape = torch.broadcast_shapes(of_theta, of_x)
    pairs = zip(theta.expand(*shape, 2).reshape(-1, 2), x.expand(*shape, 4).reshape(-1, 4), strict=True)
    alone = torch.stack([p.log_prob(t, o) for t, o in pairs]).reshape(shape)
    asked, normalizers = [], Posterior.log_normalizers
    monkeypatch.setattr(Posterior, "log_normalizers", lambda q, x: (asked.append(len(x)), normalizers(q, x))[1])
    torch.testing.assert_close(p.log_prob(theta, x), alone, rtol=1e-4, atol=1e-4)
    assert p.log_ratio(theta, x).shape == shape
    assert asked == [distinct] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_densities_integrate_to_one_over_the_support(kind: str) -> None:
    """Members and their mixture, on a 400 × 400 midpoint grid of the box."""
    p = random_posterior(kind)
    ticks = (torch.arange(400) + 0.5) / 400
    theta = BOX.from_uniform(torch.cartesian_prod(ticks, ticks))
    x = torch.randn(4, generator=torch.Generator().manual_seed(1))
    tolerance = 0.02 if kind in ("random", "mixture") else 0.005  # the mass inside comes from 1,024 draws
    for q in (p, p.members[0]):
        mass = (q.log_prob(theta, x).double() - BOX.log_prob(theta)).exp().mean()
        assert mass == pytest.approx(1.0, abs=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_density(kind: str) -> None:
    """KS tests of both marginals of 8,000 draws of the mixture against its integrated density; rejects at 1e-5."""
    p = random_posterior(kind)
    x = torch.randn(4, generator=torch.Generator().manual_seed(1))
    draws = p.sample((8000,), x=x, seed=3)
    assert BOX.contains(draws).all()
    u = BOX.to_uniform(draws).double()
    side = 400
    ticks = (torch.arange(side) + 0.5) / side
    theta = BOX.from_uniform(torch.cartesian_prod(ticks, ticks))
    density = (p.log_prob(theta, x).double() - BOX.log_prob(theta)).exp().view(side, side)
    density = density / density.mean()
    edges = torch.linspace(0, 1, side + 1).numpy()
    for axis in (0, 1):
        marginal = density.mean(1 - axis)
        cdf = torch.cat([torch.zeros(1), marginal.cumsum(0) / side]).double().numpy()
        result = stats.kstest(u[:, axis].numpy(), lambda t, cdf=cdf: np.interp(t, edges, cdf))
        assert result.pvalue > 1e-5


def test_the_mixture_is_the_mean_of_its_normalised_members() -> None:
    for kind in KINDS:
        p = random_posterior(kind)
        theta, x = BOX.sample((10,)), torch.randn(10, 4)
        parts = torch.stack([q.log_prob(theta, x) for q in p.members])
        share = torch.tensor([1.0, 2.0, 3.0] if kind == "mixture" else [2.0, 2.0, 2.0]) / 6
        want = torch.logsumexp(parts + share.log()[:, None], 0)
        torch.testing.assert_close(p.log_prob(theta, x), want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(p.log_ratio(theta, x), want - BOX.log_prob(theta), rtol=1e-4, atol=1e-4)
        assert [q.n_members for q in p.members] == [1, 1, 1]


def test_a_single_classifiers_log_ratio_is_its_raw_output() -> None:
    p = random_posterior("classifier", members=1)
    theta, x = BOX.sample((10,)), torch.randn(10, 4)
    torch.testing.assert_close(p.log_ratio(theta, x), p.log_ratios(theta, x)[0])
    log_z = p.log_normalizers(x)[0]
    torch.testing.assert_close(p.log_prob(theta, x), p.log_ratios(theta, x)[0] - log_z + BOX.log_prob(theta))


@pytest.mark.parametrize("kind", KINDS)
def test_outside_the_prior_there_is_nothing(kind: str) -> None:
    p = random_posterior(kind)
    theta = torch.tensor([[0.0, 1.0], [1.5, 1.0], [0.0, -0.1], [1.0, 3.0]])
    finite = p.log_prob(theta, torch.randn(4)).isfinite()
    assert finite.tolist() == [True, False, False, True]
    assert p.log_ratio(theta, torch.randn(4)).isfinite().tolist() == [True, False, False, True]


def test_seeds_make_draws_repeat() -> None:
    for kind in ("classifier", "prior"):
        p = random_posterior(kind)
        x = torch.randn(4)
        assert torch.equal(p.sample((20,), x=x, seed=1), p.sample((20,), x=x, seed=1))
        assert not torch.equal(p.sample((20,), x=x, seed=1), p.sample((20,), x=x, seed=2))
        assert not torch.equal(p.sample((20,), x=x), p.sample((20,), x=x))


def test_draws_for_many_observations_belong_to_their_observations() -> None:
    """A flow trained for a moment on x ≈ θ: draws for each x have means ordered as the x are."""
    g = torch.Generator().manual_seed(0)
    prior = eq.BoxUniform([-1.0], [1.0])
    theta = 2 * torch.rand(3000, 1, generator=g) - 1
    x = theta + 0.1 * torch.randn(3000, 1, generator=g)
    for name in ("npe", "nre"):
        method = eq.METHODS[name].but(hidden=(32, 32))
        p = eq.fit(theta, x, prior=prior, method=method, members=2, epochs=15, batch_size=64, progress=False)
        means = p.sample_batched((500,), torch.tensor([[-0.7], [0.0], [0.7]]), seed=0).mean(0)[:, 0]
        assert torch.allclose(means, torch.tensor([-0.7, 0.0, 0.7]), atol=0.12)


def test_a_flow_whose_mass_has_leaked_out_says_so() -> None:
    p = random_posterior("random", members=1)
    far = eq.BoxUniform(torch.tensor([40.0, 40.0]), torch.tensor([41.0, 41.0]))
    network = Flow(far, Flat((4,)), "random", hidden=(24, 24))
    lost = Posterior(network, p.stack)
    with pytest.raises(RuntimeError, match=r"leaked out.*start='prior'"):
        lost.sample((3,), x=torch.zeros(4), seed=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.log_prob(torch.zeros(3, 5), torch.zeros(4)), "2 parameter"),
        (lambda p: p.log_prob(torch.zeros(3, 2), torch.zeros(5)), "observations of shape"),
        (lambda p: p.log_prob(torch.zeros(3, 2), torch.zeros(2, 4)), "do not broadcast"),
        (lambda p: p.log_prob(torch.zeros(3, 2), torch.full((4,), math.nan)), "NaN"),
        (lambda p: p.sample((3,)), "needs the observation"),
        (lambda p: p.sample((3,), x=torch.zeros(2, 4)), "sample_batched"),
    ],
)
def test_bad_calls_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(random_posterior("prior"))


# --- more than two dimensions -----------------------------------------------------------------------------------------


class GaussianRatio(nn.Module):
    """The exact log-ratio of θ ~ N(0, I) and x = θ + s ε: a classifier whose posterior is known, however narrow."""

    def __init__(self, dim: int, noise: float) -> None:
        super().__init__()
        self.noise = nn.Parameter(torch.tensor(float(noise)))
        self.dim = dim

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        s2 = self.noise.square()
        log_likelihood = -0.5 * ((x - theta).square() / s2).sum(-1) - self.dim * self.noise.log()
        log_evidence = -0.5 * (x.square() / (1 + s2)).sum(-1) - 0.5 * self.dim * (1 + s2).log()
        return log_likelihood - log_evidence


def gaussian_posterior(dim: int, noise: float) -> Posterior:
    network = UserNetwork(GaussianRatio(dim, noise), eq.GaussianPrior(torch.zeros(dim), torch.eye(dim)), (dim,))
    return Posterior(network, network.init([(0, 0)], [torch.zeros(dim)], [torch.ones(dim)]))


@pytest.mark.parametrize(("dim", "noise"), [(3, 0.7), (3, 0.02), (6, 0.3)])
def test_the_sampler_beyond_two_dimensions_finds_a_known_posterior(dim: int, noise: float) -> None:
    """Means, deviations and the normaliser (exactly 0) of posteriors up to 50 times narrower than the prior."""
    p = gaussian_posterior(dim, noise)
    x = torch.linspace(-1, 1, dim)
    draws = p.sample((2000,), x=x, seed=0)
    deviation = noise / math.sqrt(1 + noise**2)
    assert p.sampler["sampler"] == "tempered sequential Monte Carlo" and p.sampler["ess"] > 500
    # With an effective size above 500 the mean errs by less than 5/√500 = 0.22 deviations but once in two million
    # times.
    assert ((draws.mean(0) - x / (1 + noise**2)).abs() < 0.22 * deviation).all()
    assert ((draws.std(0) / deviation - 1).abs() < 0.2).all()
    assert p.log_normalizers(x[None])[0, 0].item() == pytest.approx(0.0, abs=0.05)


class FoldedRatio(GaussianRatio):
    """The ratio of θ ~ N(0, I) and x = (|θ_1|, θ_2, …) + s ε: two equal peaks, exact where s is small against x_1."""

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        folded = torch.cat([theta[..., :1].abs(), theta[..., 1:]], -1)
        return super().log_ratio(folded, x) - math.log(2)


class EdgedRatio(GaussianRatio):
    """The ratio of θ, uniform on [-1, 1]^D, and x = θ + s ε: posteriors that end at an edge of the box."""

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        normal, s = td.Normal(0.0, 1.0), self.noise
        log_evidence = ((normal.cdf((1 - x) / s) - normal.cdf((-1 - x) / s)) / 2).log().sum(-1)
        return (normal.log_prob((theta - x) / s) - s.log()).sum(-1) - log_evidence


class OwnNormal:
    """N(0, I) of one's own, without a map to the cube."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(*shape, self.dim)

    def log_prob(self, theta: Tensor) -> Tensor:
        return td.Normal(0.0, 1.0).log_prob(theta).sum(-1)


@pytest.mark.parametrize(
    ("ratio", "prior", "dim", "noise"),
    [
        (GaussianRatio, "normal", 3, 0.02),
        (GaussianRatio, "normal", 5, 0.3),
        (GaussianRatio, "normal", 5, 0.02),
        (GaussianRatio, "normal", 10, 0.3),
        (GaussianRatio, "own", 5, 0.02),
        (EdgedRatio, "box", 3, 0.005),
        (FoldedRatio, "normal", 3, 0.02),
    ],
)
def test_densities_of_narrow_posteriors_are_exact(
    ratio: type[GaussianRatio], prior: str, dim: int, noise: float
) -> None:
    """Normalisers of exact ratios are 1. With 200 effective quasi-random points at least, log Z errs by 0.02 at most in
    these; the particles' own estimate errs by 0.1 to 0.5, and by more than 0.05 for one of eight x almost surely."""
    priors = {
        "normal": eq.GaussianPrior(torch.zeros(dim), torch.eye(dim)),
        "own": eq.as_prior(OwnNormal(dim)),
        "box": eq.BoxUniform([-1.0] * dim, [1.0] * dim),
    }
    network = UserNetwork(ratio(dim, noise), priors[prior], (dim,))
    p = Posterior(network, network.init([(0, 0)], [torch.zeros(dim)], [torch.ones(dim)]))
    x = torch.rand(8, dim, generator=torch.Generator().manual_seed(1)) * 2 - 1
    x[:, 0] = 0.999  # at the edge of the box; far from the fold
    assert p.log_normalizers(x).abs().max() < 0.05


@pytest.mark.parametrize("noise", [0.01, 0.005])
def test_a_rough_normaliser_is_announced(noise: float) -> None:
    """Two peaks 200 deviations apart, or more, in ten dimensions: particles of few ancestors lose one of the two."""
    network = UserNetwork(FoldedRatio(10, noise), eq.GaussianPrior(torch.zeros(10), torch.eye(10)), (10,))
    p = Posterior(network, network.init([(0, 0)], [torch.zeros(10)], [torch.ones(10)]))
    x = torch.linspace(1, -1, 10)
    with pytest.warns(UserWarning, match=r"normaliser is rough for 1 of 1 observation.*narrow peaks") as told:
        p.log_prob(x, x)
    assert told[0].filename == __file__


def test_what_is_said_of_one_x_does_not_depend_on_its_neighbours() -> None:
    p = gaussian_posterior(3, 0.05)
    x = torch.randn(5, 3)
    torch.testing.assert_close(p.log_normalizers(x)[:, 2:3], p.log_normalizers(x[2:3]))


class Numpys:
    """A prior that draws from NumPy's global generator, as SciPy's distributions do."""

    def sample(self, shape: tuple[int, ...]) -> np.ndarray:
        return stats.norm.rvs(size=(*shape, 3)).astype(np.float32)

    def log_prob(self, theta: Tensor) -> Tensor:
        return torch.as_tensor(stats.norm.logpdf(theta.numpy()).sum(-1), dtype=torch.float32)


def test_a_prior_of_scipys_gives_the_same_every_time() -> None:
    """Normalisers, draws and a training with a seed, for draws that come from NumPy's generator."""
    network = UserNetwork(GaussianRatio(3, 0.7), eq.as_prior(Numpys()), (3,))
    p = Posterior(network, network.init([(0, 0)], [torch.zeros(3)], [torch.ones(3)]))
    x = torch.linspace(-1, 1, 3)
    assert torch.equal(p.log_prob(x, x), p.log_prob(x, x))
    assert torch.equal(p.sample((50,), x=x, seed=1), p.sample((50,), x=x, seed=1))
    theta = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    options = {
        "method": eq.METHODS["npe"].but(hidden=(8,)),
        "members": 1,
        "epochs": 1,
        "batch_size": 16,
        "progress": False,
    }
    a, b = (eq.fit(theta, theta, prior=Numpys(), device="cpu", **options) for _ in range(2))
    assert a.history.validation_loss.equals(b.history.validation_loss)


@pytest.mark.parametrize("members", [[], [9], [-9], ["0"], [0.5], None])
def test_members_that_are_not_there_cannot_be_selected(members: object) -> None:
    with pytest.raises(ValueError, match="members are numbers below"):
        random_posterior("random").select(members)  # type: ignore[arg-type]
