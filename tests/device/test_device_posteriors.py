"""Posteriors on the pretended GPU give what they give on the CPU, whatever they are made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.distributions as td
from pretend import OnGpu, pretended_gpu
from torch import Tensor, nn

import equipoise as eq
from equipoise.networks import Classifier, Convolutional, Flat, Flow, UserNetwork
from equipoise.posteriors import Posterior


def independent(dim: int) -> eq.IndependentPrior:
    return eq.IndependentPrior([td.Exponential(0.5), td.LogNormal(0.5, 0.2), td.Uniform(-1.0, 3.0)][:dim])


def opaque(dim: int) -> object:
    mixture = td.MixtureSameFamily(td.Categorical(torch.ones(2)), td.Normal(torch.tensor([-1.0, 1.0]), torch.ones(2)))
    return td.Independent(mixture.expand((dim,)), 1)


PRIORS = {
    "box": lambda dim: eq.BoxUniform(-torch.ones(dim), 2 * torch.ones(dim)),
    "independent": independent,
    "gaussian": lambda dim: eq.GaussianPrior(torch.ones(dim), torch.eye(dim) + 0.5),
    "opaque": opaque,
}


def posterior(kind: str, dim: int, prior: str = "box", members: int = 2, x_shape: tuple[int, ...] = (3,)) -> Posterior:
    """An untrained posterior with lively weights, and constants that say where x and θ are."""
    p = eq.as_prior(PRIORS[prior](dim))
    body = Flat(x_shape) if len(x_shape) == 1 else Convolutional(x_shape, 2, 2)
    constants = {"theta_loc": torch.full((dim,), 0.1), "theta_scale": torch.full((dim,), 1.5)}
    if kind == "classifier":
        net: Classifier | Flow = Classifier(p, body, hidden=(12, 12), **constants)
    else:
        net = Flow(p, body, kind, hidden=(12, 12), transforms=1, **constants)
    shape = body.statistics_shape
    stack = net.init([(m, m) for m in range(members)], [torch.zeros(shape)] * members, [torch.ones(shape)] * members)
    if kind == "classifier":  # fresh ratios are nearly flat
        stack["mlp.2.weight"] = 6 * stack["mlp.2.weight"]
    return Posterior(net, stack)


def agree(away: Tensor, here: Tensor, tolerance: float = 1e-5) -> None:
    """The same numbers, one on the GPU and one on the CPU. The GPU takes larger pieces, whose sums round otherwise."""
    assert isinstance(away, OnGpu) and not isinstance(here, OnGpu)
    torch.testing.assert_close(away.cpu(), here, rtol=tolerance, atol=tolerance)


def everything(q: Posterior, theta: Tensor, x: Tensor) -> dict[str, Tensor]:
    """All that can be asked of a posterior, for θ with shape `(5, 4, D)` and x with shape `(4, *x_shape)`."""
    found = {
        "log_prob": q.log_prob(theta, x),
        "log_prob of one": q.log_prob(theta[0, 0], x[0]),
        "log_ratio": q.log_ratio(theta, x),
        "log_ratios": q.log_ratios(theta.to(q.device), x.to(q.device)),
        "log_normalizers": q.log_normalizers(x.to(q.device)),
        "sample": q.sample((6,), x=x[0], seed=1),
        "sample_batched": q.sample_batched((2, 3), x, seed=1),
        "a member": q.members[0].log_prob(theta, x),
    }
    if q.kind == "flow":
        stream = torch.Generator(device=q.device).manual_seed(2)
        found["draws"], found["their densities"] = q.sample_members(3, x.to(q.device), stream)
    return found


def compare(here: Posterior, outside: float = 50.0) -> None:
    """Everything on both devices, with θ and x given on either; one θ lies far outside, to be cut."""
    torch.manual_seed(0)
    theta, x = eq.as_prior(here.prior).sample((5, 4)), torch.randn(4, *here.x_shape)
    theta[0, 1] = outside
    expected = everything(here, theta, x)
    with pretended_gpu():
        before = torch.cuda.get_rng_state()
        away = here.to("cuda")
        assert away.device == torch.device("cuda:0") and "cuda" in repr(away)
        for name, value in everything(away, theta.to("cuda"), x.to("cuda")).items():
            agree(value, expected[name], 2e-4 if "sample" in name else 2e-5)
        agree(away.log_prob(theta, x), expected["log_prob"], 2e-5)
        agree(away.sample((6,), x=x[0], seed=1), expected["sample"], 2e-4)
        assert torch.equal(torch.cuda.get_rng_state(), before), "the GPU's global generator was disturbed"
        assert away.sample((2,), x=x[0]).shape == (2, here.prior.dim)
        agree(away.to("cpu").to("cuda").log_prob(theta, x), expected["log_prob"])


@pytest.mark.parametrize(
    ("start", "prior"), [("random", "box"), ("prior", "box"), ("prior", "independent"), ("prior_base", "independent")]
)
def test_flows(start: str, prior: str) -> None:
    compare(posterior(start, 2, prior))


@pytest.mark.parametrize(
    ("start", "dim", "prior", "members"),
    [("random", 1, "independent", 1), ("prior", 1, "independent", 2), ("prior_base", 3, "box", 1)],
)
def test_flows_of_one_and_three_parameters(start: str, dim: int, prior: str, members: int) -> None:
    compare(posterior(start, dim, prior, members))


@pytest.mark.parametrize(
    ("dim", "prior", "members"),
    [(1, "box", 2), (1, "independent", 1), (2, "box", 1), (2, "independent", 2), (3, "box", 2), (3, "independent", 1)],
)
def test_classifiers(dim: int, prior: str, members: int) -> None:
    compare(posterior("classifier", dim, prior, members))


def test_a_correlated_prior() -> None:
    compare(posterior("prior", 2, "gaussian", 1))


def test_every_prior() -> None:
    """Moved, and asked from either device; a gamma has no `icdf` in torch, so its quantiles are solved for."""
    torch.manual_seed(0)
    for name, make in {**PRIORS, "gamma": lambda dim: eq.IndependentPrior([td.Gamma(2.0, 1.0)] * dim)}.items():
        here = eq.as_prior(make(2))
        theta = here.sample((6,))
        with pretended_gpu():
            away = here.to("cuda")
            assert away.device.type == "cuda" and away.sample((2,)).is_cuda, name
            for function in ("log_prob", "contains", "to_normal", "to_uniform"):
                if here.has_normal_map or not function.startswith("to"):
                    expected = getattr(here, function)(theta)
                    agree(getattr(away, function)(theta.to("cuda")), expected)
                    agree(getattr(here, function)(theta.to("cuda")), expected)
                    torch.testing.assert_close(getattr(away, function)(theta), expected)
            if here.has_normal_map:
                agree(away.from_normal(here.to_normal(theta).to("cuda")), here.from_normal(here.to_normal(theta)))
                agree(away.from_uniform(here.to_uniform(theta).to("cuda")), here.from_uniform(here.to_uniform(theta)))


@pytest.mark.parametrize("kind", ["classifier", "random"])
def test_priors_of_the_users_own(kind: str) -> None:
    compare(posterior(kind, 2, "opaque"))


@pytest.mark.parametrize("x_shape", [(9, 2), (2, 8, 8)])
def test_series_and_images(x_shape: tuple[int, ...]) -> None:
    compare(posterior("prior", 2, x_shape=x_shape))


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.layer(torch.cat([theta, x], -1)).squeeze(-1)


def test_networks_of_the_users_own() -> None:
    network = UserNetwork(Ratio(), PRIORS["box"](2), (3,))
    stack = network.init([(m, m) for m in range(2)], [torch.zeros(3)] * 2, [torch.ones(3)] * 2)
    compare(Posterior(network, stack))


@pytest.mark.parametrize("prior", ["box", "independent", "gaussian"])
@pytest.mark.parametrize("kind", ["classifier", "random", "prior", "prior_base"])
def test_members_are_evaluated_without_a_wait(kind: str, prior: str) -> None:
    """No look from the host and no copy to the device, each of which a GPU would wait for, once all is in place."""
    torch.manual_seed(0)
    with pretended_gpu() as counts:
        q = posterior(kind, 2, prior).to("cuda")
        theta, x = q.prior.sample((3, 4)), torch.randn(4, 3, device="cuda")
        stream = torch.Generator(device="cuda").manual_seed(0)
        for _ in range(2):
            before = dataclasses.astuple(counts)
            q.log_ratios(theta, x)
            if kind != "classifier":
                q.sample_members(3, x, stream)
        assert dataclasses.astuple(counts) == before


@pytest.mark.parametrize("kind", ["classifier", "prior"])
def test_files(kind: str, tmp_path: Path) -> None:
    here = posterior(kind, 2, "independent")
    torch.manual_seed(0)
    theta, x = here.prior.sample((4,)), torch.randn(4, 3)
    with pretended_gpu():
        here.to("cuda").save(tmp_path)
        away = eq.load(tmp_path, device="cuda")
        assert away.device.type == "cuda" and away.prior.device.type == "cuda"
        agree(away.log_prob(theta, x), here.log_prob(theta, x))
    torch.testing.assert_close(eq.load(tmp_path).log_prob(theta, x), here.log_prob(theta, x))
