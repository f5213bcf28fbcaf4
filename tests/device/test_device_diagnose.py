"""`diagnose` on the pretended GPU gives what it gives on the CPU, wherever pairs and posterior are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributions as td
import xarray as xr
from pretend import pretended_gpu
from test_device_posteriors import posterior
from torch import Tensor

import equipoise as eq
from equipoise.diagnostics import local_coverage
from equipoise.diagnostics.diagnosing import _bound
from equipoise.posteriors import Posterior

PAIRS = 60


def pairs(q: Posterior, n: int = PAIRS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return q.prior.sample((n,)), torch.randn(n, *q.x_shape)


def agree(away: xr.Dataset, here: xr.Dataset) -> None:
    """Every number of a dataset. A rank may round to the other side of one of its points, and means follow it."""
    assert away.data_vars.keys() == here.data_vars.keys()
    for name, value in here.data_vars.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(away[name], value, rtol=2e-2, atol=2e-2, err_msg=str(name))
            assert np.isfinite(away[name]).all() == np.isfinite(value).all(), name
    np.testing.assert_allclose(away["log_prob"], here["log_prob"], rtol=1e-3, atol=1e-3)
    assert np.mean(np.abs(away["rank"] - here["rank"]) > 1e-4) < 0.02


def compare(q: Posterior, n: int = PAIRS, test: bool = False, **options: object) -> None:
    """The diagnosis with everything on the CPU, with the posterior alone on the GPU, and with pairs there too."""
    theta, x = pairs(q, n)
    options = {"samples": 24} | options
    exact = q.prior.log_prob(theta) + 1  # some information, whatever it means

    def diagnose(p: Posterior, place: str) -> xr.Dataset:
        there = theta.to(place), x.to(place)
        more: dict[str, object] = {"test": there} if test else {}
        return eq.diagnose(p, *there, exact_log_prob=exact.to(place), progress=False, **more, **options)

    expected = diagnose(q, "cpu")
    with pretended_gpu():
        before = torch.cuda.get_rng_state()
        for place in ("cpu", "cuda"):
            agree(diagnose(q.to("cuda"), place), expected)
        agree(diagnose(q, "cuda"), expected)
        assert torch.equal(torch.cuda.get_rng_state(), before), "the GPU's global generator was disturbed"


@pytest.mark.parametrize(
    ("start", "dim", "prior", "members"),
    [
        ("random", 2, "box", 2),
        ("random", 1, "independent", 1),
        ("prior", 2, "independent", 2),
        ("prior_base", 4, "box", 1),
    ],
)
def test_flows(start: str, dim: int, prior: str, members: int) -> None:
    compare(posterior(start, dim, prior, members), test=members == 1)


@pytest.mark.parametrize(
    ("dim", "prior", "members"),
    [(1, "box", 2), (2, "independent", 1), (2, "box", 2), (3, "box", 1), (4, "box", 2), (2, "opaque", 2)],
)
def test_classifiers(dim: int, prior: str, members: int) -> None:
    compare(posterior("classifier", dim, prior, members), test=members == 1)


@pytest.mark.parametrize("kind", ["random", "classifier"])
def test_members_without_their_mixture(kind: str) -> None:
    compare(posterior(kind, 2), test=True, mixture=False)


@pytest.mark.parametrize("mixture", [True, False])
def test_classifiers_with_many_points(mixture: bool) -> None:
    """From some number of points on, classifiers of two parameters are interpolated."""
    compare(posterior("classifier", 2), samples=600, mixture=mixture, memory=1 << 30)  # one batch on both devices


def test_memory_is_bounded_by_the_gpus_own() -> None:
    with pretended_gpu():
        total = torch.cuda.mem_get_info("cuda")[1]
        assert _bound(torch.device("cuda")) == min(1 << 34, total // 4)
    assert _bound(torch.device("cpu")) == 1 << 28


@pytest.mark.parametrize("kind", ["random", "classifier"])
def test_the_released_recipe(kind: str) -> None:
    compare(posterior(kind, 1), recipe="released", n=50)


def test_images_and_a_tight_bound_of_memory() -> None:
    compare(posterior("prior", 2, x_shape=(2, 8, 8)), memory=1 << 22)


def test_functions_for_the_exact_posterior() -> None:
    q = posterior("prior", 2, members=1)
    theta, x = pairs(q)
    exact = td.Independent(td.Normal(torch.zeros(2), torch.ones(2)), 1)
    expected = eq.diagnose(q, theta, x, exact_log_prob=lambda t, _: exact.log_prob(t), samples=24, progress=False)
    with pretended_gpu():
        there = td.Independent(td.Normal(torch.zeros(2, device="cuda"), torch.ones(2, device="cuda")), 1)
        for place, known in (("cpu", exact), ("cuda", there)):
            ds = eq.diagnose(
                q.to("cuda"),
                theta.to(place),
                x.to(place),
                exact_log_prob=lambda t, _, known=known: known.log_prob(t),
                samples=24,
                progress=False,
            )
            agree(ds, expected)
            value = x[:, 0].to(place)
            assert np.isfinite(local_coverage(ds, value, bins=3).coverage).all()


class Foreign:
    """A posterior of someone else's: draws from the global generator of its device, one observation at a time."""

    def __init__(self, device: str) -> None:
        self.device = device

    def _at(self, x: Tensor) -> td.Distribution:
        return td.Independent(td.Normal(x[:2] / 2, torch.full((2,), 0.5, device=self.device)), 1)

    def sample(self, shape: tuple[int, ...], x: Tensor) -> Tensor:
        return self._at(x).sample(shape)

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._at(x).log_prob(theta)


@pytest.mark.parametrize("lazy", [True, False])
def test_posteriors_of_others(lazy: bool) -> None:
    prior = td.Independent(td.Normal(torch.zeros(2), torch.ones(2)), 1)
    torch.manual_seed(0)
    theta = prior.sample((PAIRS,))
    x = theta + torch.randn(PAIRS, 2)

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> td.Distribution:
            return td.Independent(td.Normal(self.factor * x, self.factor.sqrt()), 1)

    def diagnose(device: str) -> xr.Dataset:
        found = Flow().to(device) if lazy else Foreign(device)
        return eq.diagnose(found, theta, x, prior=prior, samples=24, progress=False)

    expected = diagnose("cpu")
    with pretended_gpu():
        before = torch.cuda.get_rng_state(), torch.get_rng_state()
        agree(diagnose("cuda"), expected)
        assert torch.equal(torch.cuda.get_rng_state(), before[0]) and torch.equal(torch.get_rng_state(), before[1])
