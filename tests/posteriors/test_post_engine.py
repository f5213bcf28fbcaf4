"""The engine behind draws, normalisers and ranks: each strategy against Gaussians in closed form.

θ ~ N(0, I) and f(θ, x) = -|θ - x|² / (2 s²) + c: the density p e^{t f} / Z_t is N(x / (1 + v), v / (1 + v)) with
v = s² / t, and Z_t = e^{t c} (v / (1 + v))^{D/2} e^{-|x|² / (2 (1 + v))}.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.posteriors import WeightedPoints, draw_points, weighted_points
from equipoise.posteriors.engine import TRUSTED_ESS, particle_points, tempered_ratio
from equipoise.posteriors.proposals import adapted

OFFSET = 2.5
LIKE = torch.zeros(1, dtype=torch.float64)
WIDTHS = torch.tensor([1.0, 0.5], dtype=torch.float64)  # of two members


def log_ratio(theta: Tensor, x: Tensor) -> Tensor:
    """Two members, in terms of θ `(2 or 1, P, B, D)`: one of the width of the prior, one half as wide."""
    assert theta.shape[2] == len(x)
    return -0.5 * ((theta - x) / WIDTHS.view(2, 1, 1, 1)).square().sum(-1) + OFFSET


def narrow(theta: Tensor, x: Tensor) -> Tensor:
    """One member, twenty times narrower than the prior."""
    return -0.5 * ((theta - x) / 0.05).square().sum(-1) + OFFSET


def problem(dim: int) -> tuple[eq.GaussianPrior, Tensor]:
    prior = eq.GaussianPrior(torch.zeros(dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64))
    return prior, torch.linspace(-1, 1, 3 * dim, dtype=torch.float64).reshape(3, dim)


def exact(x: Tensor, widths: Tensor, t: float) -> tuple[Tensor, Tensor, Tensor]:
    """log Z `(M, B)`, means `(M, B, D)` and variances `(M,)`."""
    v, dim = widths.square() / t, x.shape[-1]
    log_z = t * OFFSET + 0.5 * dim * (v / (1 + v)).log().unsqueeze(1) - 0.5 * x.square().sum(-1) / (1 + v).unsqueeze(1)
    return log_z, x / (1 + v).view(-1, 1, 1), v / (1 + v)


def check(found: WeightedPoints, x: Tensor, widths: Tensor, t: float, error: float) -> None:
    """log Z within its error, and moments within those of the effective number of points, five standard errors each."""
    log_z, mean, variance = exact(x, widths, t)
    torch.testing.assert_close(found.log_w.logsumexp(1), found.log_z)
    torch.testing.assert_close(found.log_z, log_z, rtol=0, atol=error)
    share = found.log_w.softmax(1).unsqueeze(-1)
    seen = (share * found.theta).sum(1)
    noise = 5 * (variance.view(-1, 1, 1) / found.ess.unsqueeze(-1)).sqrt() + 1e-3
    assert ((seen - mean).abs() < noise).all()
    centred = found.theta - seen.unsqueeze(1)
    covariance = torch.einsum("mpb,mpbi,mpbj->mbij", share[..., 0], centred, centred)
    ratio = covariance / variance.view(-1, 1, 1, 1) - torch.eye(x.shape[-1], dtype=x.dtype)
    assert (ratio.abs() < 5 * (2 / found.ess).sqrt()[..., None, None] + 0.02).all()
    assert not found.rough.any()


@pytest.mark.parametrize("t", [1.0, 0.5])
@pytest.mark.parametrize("dim", [1, 2, 3, 6, 10])
def test_weighted_points_have_the_closed_forms_normaliser_and_moments(dim: int, t: float) -> None:
    prior, x = problem(dim)
    found = weighted_points(log_ratio, x, prior, LIKE, t=t, quick=True)
    # Cells interpolate a Gaussian exactly; quasi-random points with 200 effective ones err by 0.07 at most.
    check(found, x, WIDTHS, t, 0.003 if dim <= 2 else 0.07)
    assert (found.ess >= TRUSTED_ESS).all()


@pytest.mark.parametrize("t", [1.0, 0.5])
@pytest.mark.parametrize("dim", [1, 2, 3, 6, 10])
@pytest.mark.parametrize("strategy", ["adapted proposal", "particles"])
def test_narrow_posteriors_by_each_strategy(strategy: str, dim: int, t: float) -> None:
    prior, x = problem(dim)
    f = tempered_ratio(narrow, t)
    if strategy == "particles":
        found = particle_points(f, x, prior, LIKE)
    else:
        found = adapted(f, x, prior, LIKE, TRUSTED_ESS, learn=True)
    assert (found.ess >= TRUSTED_ESS).all()
    check(found, x, torch.tensor([0.05], dtype=torch.float64), t, 0.05)


@pytest.mark.parametrize("t", [1.0, 0.5])
@pytest.mark.parametrize("dim", [1, 2, 3, 6, 10])
def test_draws_follow_the_closed_form(dim: int, t: float) -> None:
    prior, x = problem(dim)
    generator = torch.Generator().manual_seed(0)
    theta, report = draw_points(log_ratio, x, prior, 2000, generator, 0, LIKE, t=t)
    assert theta.shape == (2, 2000, 3, dim)
    assert report["acceptance"] > 0.9 if dim <= 2 else report["ess"] > 500
    _, mean, variance = exact(x, WIDTHS, t)
    effective = 2000 if dim <= 2 else 500
    assert ((theta.mean(1) - mean).abs() < 5 * (variance / effective).sqrt().view(-1, 1, 1)).all()
    assert ((theta.var(1) / variance.view(-1, 1, 1) - 1).abs() < 5 * math.sqrt(2 / effective)).all()


def test_an_observation_does_not_depend_on_its_neighbours_and_nothing_is_random() -> None:
    prior, x = problem(3)
    for quick in (True, False):
        whole = weighted_points(narrow, x, prior, LIKE, quick=quick)
        one = weighted_points(narrow, x[1:2], prior, LIKE, quick=quick)
        torch.testing.assert_close(whole.log_z[:, 1:2], one.log_z)
        assert torch.equal(one.log_z, weighted_points(narrow, x[1:2], prior, LIKE, quick=quick).log_z)


def test_a_ridge_too_thin_for_cells_is_left_to_particles() -> None:
    prior = eq.BoxUniform(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))

    def ridge(theta: Tensor, x: Tensor) -> Tensor:
        return -0.5 * ((theta[..., 0] - theta[..., 1]) / 2e-4).square() * x

    found = weighted_points(ridge, torch.tensor([0.0, 1.0]), prior, LIKE)
    assert found.log_z[0, 0] == pytest.approx(0.0, abs=1e-6)
    # ∫∫ exp(-d²/2s²) over the square is s √(2π) (1 - 2 s / √(2π)).
    exactly = math.log(2e-4 * math.sqrt(2 * math.pi))
    assert found.rough[0].tolist() == [False, True] or found.log_z[0, 1] == pytest.approx(exactly, abs=0.1)


def test_the_exponent_is_checked() -> None:
    prior, x = problem(1)
    for t in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="t lies in"):
            weighted_points(narrow, x, prior, LIKE, t=t)
