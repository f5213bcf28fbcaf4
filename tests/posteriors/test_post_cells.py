"""Posteriors on interpolated cells, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import equipoise as eq
from equipoise.posteriors.cells import make_cells


class Counted:
    """Log-ratios given by a function of θ and of the observations' numbers, and how many were asked for."""

    def __init__(self, log_ratio) -> None:
        self.log_ratio, self.count = log_ratio, 0

    def __call__(self, theta: Tensor, which: Tensor) -> Tensor:
        assert theta.shape[2] == len(which)
        self.count += theta[..., 0].numel()
        return self.log_ratio(theta, which)


def box(dim: int) -> eq.BoxUniform:
    return eq.BoxUniform(torch.zeros(dim), torch.ones(dim))


def gaussians(scale: Tensor, centre: Tensor):
    """Log-ratios of N(centre, scale²) with respect to U(0, 1)^D, one a column, plus a constant each."""

    def log_ratio(theta: Tensor, which: Tensor) -> Tensor:
        s = scale[which].unsqueeze(-1)
        return torch.distributions.Normal(centre[which], s).log_prob(theta).sum(-1) + 10.0 * which

    return log_ratio


@pytest.mark.parametrize("dim", [1, 2])
def test_normalisers_and_ranks_of_gaussians_are_exact_at_any_width(dim: int) -> None:
    scale = torch.tensor([0.002, 0.005, 0.02, 0.07, 0.2], dtype=torch.float64)
    centre = torch.linspace(0.31, 0.67, 5 * dim, dtype=torch.float64).reshape(5, dim)
    ratio = Counted(gaussians(scale, centre))
    cells = make_cells(ratio, torch.arange(5), box(dim), torch.zeros(1, dtype=torch.float64))
    inside = torch.tensor(
        [
            [math.log(stats.norm.cdf((1 - c) / s) - stats.norm.cdf(-c / s)) for c in row]
            for row, s in zip(centre.tolist(), scale.tolist(), strict=True)
        ]
    ).sum(-1)
    torch.testing.assert_close(cells.log_z[0] - 10 * torch.arange(5), inside.double(), rtol=0, atol=0.01)
    # The rank of a point at distance kσ, where the box cuts nothing off.
    share = (cells.log_mass - cells.log_z.unsqueeze(1)).exp()[0, :, :4]
    for k in (0.5, 1.0, 2.0):
        there = gaussians(scale, centre)((centre + k * scale[:, None] / math.sqrt(dim))[None, None], torch.arange(5))
        rank = (share * (cells.log_ratio[0, :, :4] > there[0, 0, :4])).sum(0)
        want = torch.full((4,), stats.chi2.cdf(k**2, dim), dtype=torch.float64)
        torch.testing.assert_close(rank, want, rtol=0, atol=0.012)
    assert (cells.error < 0.15).all()


def test_a_smooth_posterior_takes_two_thousand_evaluations_and_members_are_apart() -> None:
    def log_ratio(theta: Tensor, which: Tensor) -> Tensor:
        wave = torch.sin(4 * theta[..., 0] + which) * torch.cos(3 * theta[..., 1])
        return wave * torch.tensor([1.0, -1.0]).view(2, 1, 1)

    ratio = Counted(log_ratio)
    cells = make_cells(ratio, torch.arange(3), box(2), torch.zeros(1))
    assert ratio.count / 3 <= 2 * 2048  # the second round is each member's own
    axis = (torch.arange(400) + 0.5) / 400
    grid = torch.cartesian_prod(axis, axis).reshape(1, -1, 1, 2).expand(-1, -1, 3, -1)
    want = log_ratio(grid, torch.arange(3)).double().logsumexp(1) - math.log(400**2)
    torch.testing.assert_close(cells.log_z.double(), want, rtol=0, atol=1e-4)


def test_two_far_modes_of_unlike_width_are_both_found() -> None:
    narrow = torch.distributions.Normal(torch.tensor([0.13, 0.82]), torch.tensor([0.006, 0.004]))
    broad = torch.distributions.Normal(torch.tensor([0.71, 0.33]), torch.tensor([0.05, 0.09]))

    def log_ratio(theta: Tensor, which: Tensor) -> Tensor:
        return torch.logaddexp(narrow.log_prob(theta).sum(-1), broad.log_prob(theta).sum(-1))

    cells = make_cells(log_ratio, torch.arange(1), box(2), torch.zeros(1))
    assert float(cells.log_z) == pytest.approx(math.log(2), abs=0.02)
    share = (cells.log_mass - cells.log_z.unsqueeze(1)).exp()
    assert float((share * (cells.u[..., 0] < 0.4)).sum()) == pytest.approx(0.5, abs=0.01)


def test_a_ridge_too_thin_for_cells_says_so() -> None:
    def log_ratio(theta: Tensor, which: Tensor) -> Tensor:
        across = (theta[..., 0] - theta[..., 1]) / 2e-4
        return -0.5 * across.square()

    cells = make_cells(log_ratio, torch.arange(1), box(2), torch.zeros(1))
    assert float(cells.error) > 0.5
    assert torch.isfinite(cells.log_z).all()


def test_a_flat_ratio_and_one_that_is_minus_infinity_somewhere() -> None:
    flat = make_cells(lambda theta, which: theta[..., 0] * 0 + 3.0, torch.arange(1), box(2), torch.zeros(1))
    assert float(flat.log_z) == pytest.approx(3.0, abs=1e-5)

    def half(theta: Tensor, which: Tensor) -> Tensor:
        return torch.where(theta[..., 0] < 0.5, 0.0, -math.inf)

    cells = make_cells(half, torch.arange(1), box(2), torch.zeros(1))
    assert float(cells.log_z) == pytest.approx(-math.log(2), abs=0.01)


def test_members_and_observations_do_not_depend_on_their_company() -> None:
    """A narrow posterior is cut again and again; a flat one beside it must not lose patches to it."""

    def log_ratio(theta: Tensor, which: Tensor) -> Tensor:
        narrow = -0.5 * ((theta - 0.37) / 0.002).square().sum(-1)
        flat = 0 * narrow
        # Member 0: flat, flat, narrow; member 1: narrow, flat, flat.
        kind = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])[:, which].unsqueeze(1)
        return kind * narrow + (1 - kind) * flat

    cells = make_cells(log_ratio, torch.arange(3), box(2), torch.zeros(1))
    peak = math.log(2 * math.pi * 0.002**2)
    want = torch.tensor([[0.0, 0.0, peak], [peak, 0.0, 0.0]])
    torch.testing.assert_close(cells.log_z, want, rtol=0, atol=0.01)
    area = (cells.width.square() * (cells.log_mass > -math.inf)).sum(1)
    torch.testing.assert_close(area[0, :2], torch.ones(2), rtol=0, atol=1e-4)


@pytest.mark.parametrize("scale", [0.001, 0.002])
@pytest.mark.parametrize("centre", [80.5 / 128, 161.5 / 256, 0.3])
@pytest.mark.parametrize(
    ("shape", "log_area"),
    [(lambda r: -r, math.log(2)), (lambda r: -2 * (1 + r.square()).log(), math.log(math.pi / 2))],
    ids=["cone", "student"],
)
def test_peaks_that_are_even_about_the_middle_of_a_patch(shape, log_area: float, centre: float, scale: float) -> None:
    """Their last coefficient vanishes there, so that something else has to notice."""
    cells = make_cells(
        lambda theta, which: shape((theta[..., 0] - centre).abs() / scale),
        torch.arange(1),
        box(1),
        torch.zeros(1, dtype=torch.float64),
    )
    assert float(cells.log_z) == pytest.approx(log_area + math.log(scale), abs=0.03)


@pytest.mark.parametrize("dim", [1, 2])
def test_in_the_tail_of_a_normal_prior_it_is_right_or_says_so(dim: int) -> None:
    """In u = F(θ) a narrow posterior at three standard deviations lies at the very edge of the cube."""
    prior = eq.GaussianPrior(torch.zeros(dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64))
    for place in (0.0, 1.5, 2.5, 3.0, 3.5):
        for scale in (0.05, 0.1, 0.3):
            mean = torch.zeros(dim, dtype=torch.float64)
            mean[0] = place
            cells = make_cells(
                lambda t, which, m=mean, s=scale: -0.5 * ((t - m) / s).square().sum(-1),
                torch.arange(1),
                prior,
                torch.zeros(1, dtype=torch.float64),
            )
            want = dim * math.log(scale / math.hypot(1, scale)) - place**2 / 2 / (1 + scale**2)
            wrong = abs(float(cells.log_z) - want)
            assert wrong < 0.05 or float(cells.error) > 0.5, (place, scale, wrong, float(cells.error))
            assert wrong < 0.05 or place > 2.6, (place, scale, wrong)
