"""Tempering in closed form: a Gaussian posterior under a Gaussian prior stays Gaussian on its way to the prior."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Independent, Normal

from equipoise.posteriors.tempering import TARGET_ERROR, draw_tempered, log_acceptance, tempered_log_z
from equipoise.priors import as_prior

#: Observations: the posterior's centre is each of these, in all coordinates.
CENTRES = torch.tensor([0.0, 0.7, -1.3], dtype=torch.float64)


class Gaussian:
    """p = N(0, I), q = N(x, s² I), and what q_t is."""

    def __init__(self, dim: int, s: float) -> None:
        self.dim, self.s = dim, s
        zero, one = torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64)
        self.prior = as_prior(Independent(Normal(zero, one), 1))

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        q = Normal(x[:, None], self.s).log_prob(theta).sum(-1)
        return q - Normal(0.0, 1.0).log_prob(theta).sum(-1)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(n, len(x), self.dim, generator=generator, dtype=torch.float64)
        return x[:, None] + self.s * noise

    def points(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.randn(n, 1, self.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return x[:, None] + self.s * noise, torch.zeros(n, len(x), dtype=torch.float64)

    def tempered(self, t: float, x: Tensor) -> tuple[Tensor, float, Tensor]:
        """Mean, standard deviation and log Z_t: precisions add, weighted by t and 1 - t."""
        precision = t / self.s**2 + 1 - t
        mean = t * x / self.s**2 / precision
        # log of ∫ p^(1-t) q^t, coordinate by coordinate
        log_z = -t * math.log(self.s) - 0.5 * math.log(precision) - 0.5 * (t * x**2 / self.s**2 - precision * mean**2)
        return mean, precision**-0.5, self.dim * log_z


@pytest.mark.parametrize("t", [0.2, 0.7, 0.95])
@pytest.mark.parametrize(("dim", "s"), [(1, 0.1), (2, 0.3), (10, 0.5)])
def test_the_normaliser_is_within_its_error(dim: int, s: float, t: float) -> None:
    case = Gaussian(dim, s)
    found, error = tempered_log_z(case.log_ratio, case.points, CENTRES, case.prior, t)
    exact = case.tempered(t, CENTRES)[2]
    # Six numbers in each of nine cases: four standard errors are passed by chance in 1 of 300 suites.
    assert ((found - exact).abs() < 4.5 * error + 1e-6).all()
    assert (error <= TARGET_ERROR).all() or dim == 10


@pytest.mark.parametrize("t", [0.3, 0.8])
@pytest.mark.parametrize(("dim", "s"), [(1, 0.1), (2, 0.3), (10, 0.6)])
def test_draws_are_exact(dim: int, s: float, t: float) -> None:
    case, n = Gaussian(dim, s), 2000
    theta, acceptance = draw_tempered(
        case.log_ratio, case.draw, CENTRES, case.prior, t, n, torch.Generator().manual_seed(3)
    )
    mean, sd, log_z = case.tempered(t, CENTRES)
    for b, centre in enumerate(mean.tolist()):
        for j in range(dim):
            assert stats.kstest(theta[:, b, j], stats.norm(centre, sd).cdf).pvalue > 1e-5
        # Radii in ten dimensions see what single coordinates do not.
        radius = ((theta[:, b] - centre) / sd).square().sum(-1)
        assert stats.kstest(radius, stats.chi2(dim).cdf).pvalue > 1e-5
    # What is accepted is Z_t, with a binomial error.
    assert torch.allclose(acceptance.log(), log_z, atol=0.25)


def test_an_acceptance_is_a_probability() -> None:
    r = torch.linspace(-80, 80, 4001, dtype=torch.float64)
    for t in (1e-3, 0.1, 0.5, 0.9, 0.999):
        w = log_acceptance(r, t)
        assert float(w.max()) <= 1e-12 and torch.isfinite(w).all()
        m = torch.logaddexp(math.log(t) + r, torch.full_like(r, math.log1p(-t)))
        torch.testing.assert_close(w, t * r - m)


def test_an_observation_that_is_hopeless_ends() -> None:
    """A posterior 60 nats from the prior at t = 0.5: rejection gives up, and says so by its acceptance."""
    case = Gaussian(10, 0.002)
    theta, acceptance = draw_tempered(
        case.log_ratio, case.draw, CENTRES[:1], case.prior, 0.5, 5, torch.Generator().manual_seed(0)
    )
    assert float(acceptance[0]) < 1e-3 and theta.isnan().any()
