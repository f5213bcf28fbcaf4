"""Ranks: exactly uniform under calibration at any number of points, and accurate where there are enough."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest
import torch
from diagnostics_fakes import SIGMA, TAU, GaussianPosterior, Likelihood, PriorPosterior, exact_log_prob, pairs
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import equipoise as eq
from equipoise.diagnostics import diagnose
from equipoise.diagnostics.ranks import weighted_rank
from equipoise.posteriors.particles import density_of
from equipoise.posteriors.proposals import CellProposal, GaussianProposal
from equipoise.posteriors.weighted import effective_size
from equipoise.priors import BoxUniform, GaussianPrior, OpaquePrior


def test_rank_is_the_formula_with_ties():
    statistic = torch.tensor([1.0, 1.0, 2.0, 3.0, 0.0])[:, None]
    v = torch.tensor([0.25])
    rank = weighted_rank(statistic, torch.tensor([1.0]), uniform=v)
    assert rank.item() == pytest.approx((2 + 0.25 * (2 + 1)) / 6)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.floats(0.01, 5)), min_size=1, max_size=12),
    st.floats(0, 1),
    st.floats(0.01, 5),
)
def test_weighted_rank_is_the_weight_above(points: list[tuple[int, float]], v: float, own: float):
    statistic = torch.tensor([float(p) for p, _ in points], dtype=torch.float64)[:, None]
    weight = torch.tensor([w for _, w in points], dtype=torch.float64)[:, None]
    rank = weighted_rank(
        statistic,
        torch.zeros(1, dtype=torch.float64),
        uniform=torch.tensor([v], dtype=torch.float64),
        log_weight=weight.log(),
        truth_log_weight=torch.tensor([math.log(own)], dtype=torch.float64),
    )
    above = sum(w for p, w in points if p > 0)
    equal = sum(w for p, w in points if p == 0)
    total = sum(w for _, w in points)
    assert rank.item() == pytest.approx((above + v * (equal + own)) / (total + own), rel=1e-9)
    assert effective_size(weight.log()).item() >= 1 - 1e-9


def test_a_density_of_nan_gives_a_rank_of_nan():
    assert weighted_rank(torch.zeros(3, 1), torch.tensor([math.nan]), uniform=torch.rand(1)).isnan().all()


@pytest.mark.parametrize("samples", [1, 4, 32])
@pytest.mark.parametrize("kind", ["flow", "classifier"])
@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_ranks_are_uniform_under_calibration_for_any_number_of_points(dim: int, kind: str, samples: int):
    theta, x = pairs(4000, dim, seed=dim)
    # Two exact members, so that the mixture is exact as well and everything is exercised.
    posterior = GaussianPosterior([1.0, 1.0], dim, kind, offset=0.7 if kind == "classifier" else 0.0)
    ds = diagnose(posterior, theta, x, samples=max(samples, 1), seed=samples)
    for member in ("0", "1", "mixture"):
        one = ds.sel(member=member)
        for ranks in (one["rank"], one["tarp_rank"], *one["sbc_rank"]):
            # About 300 such tests; one falls below 1e-6 with probability 3e-4.
            assert stats.kstest(ranks.values, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("truth", ["0", "1", "mixture"])
def test_shared_draws_give_uniform_ranks_to_members_that_differ(truth: str):
    """θ* of a member, or of the mixture: its ranks are uniform from three draws of the mixture, and others' are not."""
    scales = [0.4, 2.0]
    _, x = pairs(4000, 2, seed=3)
    member = torch.arange(4000) % 2 if truth == "mixture" else torch.full((4000,), int(truth))
    torch.manual_seed(0)
    theta = x / (1 + SIGMA**2) + TAU * torch.tensor(scales)[member, None] * torch.randn(4000, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these θ are not draws of the prior
        ds = diagnose(GaussianPosterior(scales, 2), theta, x, samples=3)
    for name in ("0", "1", "mixture"):
        one = ds.sel(member=name)
        uniform = [stats.kstest(r.values, "uniform").pvalue for r in (one["rank"], one["tarp_rank"], *one["sbc_rank"])]
        assert min(uniform) > 1e-5 if name == truth else min(uniform) < 1e-5


def test_ranks_from_prior_draws_are_uniform_where_the_prior_has_no_cdf():
    theta, x = pairs(3000, 2, seed=0)
    prior = OpaquePrior(torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)))
    ds = diagnose(GaussianPosterior([1.0], 2, "classifier", prior=prior), theta, x, samples=400)
    assert stats.kstest(ds["rank"][0].values, "uniform").pvalue > 1e-5
    assert "prior draws" in ds.attrs["ranks"]


@pytest.mark.parametrize("kind", ["flow", "classifier"])
@pytest.mark.parametrize("dim", [1, 2, 6])
def test_the_prior_as_surrogate_is_calibrated_balanced_and_knows_nothing(kind: str, dim: int):
    prior = BoxUniform([-1.0] * dim, [3.0] * dim)
    g = torch.Generator().manual_seed(dim)
    theta = prior.from_uniform(torch.rand(2000, dim, generator=g))
    x = theta + torch.randn(2000, dim, generator=g)
    exact = torch.full((2000,), 1.0) + prior.log_prob(theta)  # any posterior one nat better than the prior
    ds = diagnose(PriorPosterior(prior, (dim,), kind), theta, x, exact_log_prob=exact, samples=200)
    one = ds.sel(member="mixture")
    # All densities tie: only random tie-breaking gives a uniform rank.
    assert stats.kstest(one["rank"].values, "uniform").pvalue > 1e-4
    assert abs(float(one.coverage_auc)) < 4 * float(one.coverage_auc_se)
    assert float(one.verdict_p_value) > 1e-3
    assert float(one.balancing_error) == pytest.approx(0, abs=1e-6)
    # A normaliser from 200 points, with an effective number of about 80, is biased by 1/160 of a nat at most.
    assert float(one.information_kept) == pytest.approx(0, abs=0.01)
    assert float(one.entropy) == pytest.approx(float(prior.entropy()), abs=0.01)


@pytest.mark.parametrize("sd", [0.05, 0.3])
@pytest.mark.parametrize("dim", [1, 2])
def test_sbc_and_tarp_on_cells_are_uniform_to_the_ends(dim: int, sd: float):
    """The exact posterior of a box, interpolated: the points of a coordinate are not those of a lattice."""
    prior = BoxUniform([0.0] * dim, [1.0] * dim)
    g = torch.Generator().manual_seed(dim)
    theta = torch.rand(1500, dim, generator=g)
    x = theta + sd * torch.randn(1500, dim, generator=g)
    ds = diagnose(Likelihood(prior, sd), theta, x)
    assert "interpolated" in ds.attrs["ranks"]
    one = ds.sel(member="0")
    # Exactly uniform: one of these ten p-values falls below 1e-3 with probability 1%. Ranks among the centres of cells
    # gave 1e-5 and less at two parameters, for they are 0 or 1 in half of the outermost columns.
    assert (one.sbc_p_value > 1e-3).all() and float(one.tarp_p_value) > 1e-3
    truth, low, high = (stats.norm.cdf((t - x.numpy()) / sd) for t in (theta.numpy(), 0.0, 1.0))
    error = one.sbc_rank.values.T - (truth - low) / (high - low)
    # Points anywhere in their cells are noisy by 0.005 with two parameters.
    assert np.sqrt((error**2).mean()) < 0.008


def test_a_correlated_prior_has_uniform_sbc_ranks_on_cells():
    """Cells are not boxes in θ here."""
    prior = GaussianPrior(torch.tensor([1.0, -1.0]), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    g = torch.Generator().manual_seed(0)
    theta = prior.from_uniform(torch.rand(1500, 2, generator=g))
    ds = diagnose(Likelihood(prior, 0.3), theta, theta + 0.3 * torch.randn(1500, 2, generator=g))
    # Three p-values, of which one falls below 1e-3 with probability 0.3%.
    assert (ds.sbc_p_value.sel(member="0") > 1e-3).all() and float(ds.tarp_p_value.sel(member="0")) > 1e-3


# --- agreement on exact posteriors -----------------------------------------------------------------------------------


class ExactPosterior:
    """The exact posterior of a task as a classifier: the log-likelihood, not normalised over θ."""

    kind, n_members, can_leak = "classifier", 1, False
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, task: eq.Task) -> None:
        self.task, self.prior, self.x_shape = task, task.prior, task.x_shape
        self.evaluations = 0

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        self.evaluations += theta[..., 0].numel()
        return self.task.log_likelihood(theta, x).unsqueeze(0)

    def sample_members(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise AssertionError("a classifier has no draws")


def grid_ranks(task: eq.Task, theta: Tensor, x: Tensor, side: int, warp: int = 1) -> np.ndarray:
    """Ranks by numerical integration on side² cells; `warp` = 3 packs them around 0, where SLCP is narrowest."""
    axis = (torch.arange(side, dtype=torch.float64) + 0.5) / side * 2 - 1
    points = torch.cartesian_prod(axis, axis)
    volume = points.abs().pow(warp - 1).prod(-1).log()
    points = points.sign() * points.abs().pow(warp) * task.prior.high.double()
    ranks = []
    for t, o in zip(theta.double(), x.double(), strict=True):
        log_p, truth = task.log_likelihood(points, o), task.log_likelihood(t, o)
        weight = (log_p + volume).softmax(0)
        ranks.append(float(weight[log_p > truth].sum()))
    return np.array(ranks)


@functools.cache
def grid_references(name: str, checked: int, side: int, warp: int) -> tuple[eq.Simulations, np.ndarray, np.ndarray]:
    """Pairs of a task, and the ranks of the first of them on a fine grid and on one of 100 × 100."""
    task = eq.task(name)
    data = eq.simulate(task.prior, task.simulate, 60, seed=5)
    grids = ((side, warp), (100, 1))
    fine, fixed = (grid_ranks(task, data.theta[:checked], data.x[:checked], *grid) for grid in grids)
    return data, fine, fixed


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "most", "factor"), [(511, 0.1, 2.0), (1000, 0.9, 0.5)], ids=["points", "cells"])
@pytest.mark.parametrize(("name", "side", "warp"), [("slcp", 450, 3), ("two_moons", 1000, 1)])
def test_fewer_evaluations_beat_a_fixed_grid(name: str, side: int, warp: int, samples: int, most: float, factor: float):
    """Exact posteriors, narrower than a trained network's, against a grid of 100 × 100.

    Weighted points with a tenth of its evaluations have at most twice its error; interpolation with nine tenths of
    them has at most half of it. (For a trained network, which is smoother, it takes a fifth of them.)
    """
    task, checked = eq.task(name), 16
    data, reference, fixed = grid_references(name, checked, side, warp)
    posterior = ExactPosterior(task)
    found = [
        diagnose(posterior, data.theta, data.x, samples=samples, seed=s)["rank"][0].values[:checked] for s in range(3)
    ]
    assert posterior.evaluations / (3 * 60) < most * 100**2
    # The worst tenth is left out: posteriors of SLCP narrower than any cell, on which a fixed grid puts all the mass
    # in one point and ours keeps the rank random (the tests of uniformity above look at those).
    fixed_error, error = (np.sort(abs(r - reference), None) for r in (fixed, np.stack(found)))
    fixed_error, error = (np.sqrt(np.mean(e[: int(0.9 * len(e))] ** 2)) for e in (fixed_error, error))
    assert error < factor * fixed_error, (fixed_error, error)


@pytest.mark.filterwarnings("ignore:theta was not drawn")  # a box that holds them is enough for ranks
def test_grid_weighted_and_sample_ranks_agree_on_one_posterior():
    theta, x = pairs(300, 2, seed=3)
    scale = 0.8
    closed = stats.chi2.cdf(
        ((theta - x / 1.25) ** 2).sum(-1).numpy() / (scale**2 * 0.2), 2
    )  # the rank of a Gaussian is χ² of the standardised distance
    by_samples = diagnose(GaussianPosterior([scale], 2, "flow"), theta, x, samples=4000)["rank"][0].values
    by_points = diagnose(GaussianPosterior([scale], 2, "classifier"), theta, x, samples=4000)["rank"][0].values
    assert np.sqrt(np.mean((by_samples - closed) ** 2)) < 0.008  # √(r(1-r)/4000) is at most 0.0079
    assert np.sqrt(np.mean((by_points - closed) ** 2)) < 0.007
    box = BoxUniform([-6.0, -6.0], [6.0, 6.0])
    on_box = GaussianPosterior([scale], 2, "classifier", prior=box)
    by_grid = diagnose(on_box, theta, x, recipe="released")["rank"][0].values
    assert np.sqrt(np.mean((by_grid - closed) ** 2)) < 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:theta was not drawn")  # a box that holds them is enough for ranks
def test_interpolated_ranks_follow_the_closed_form_to_its_ends():
    theta, x = pairs(4000, 2, seed=3)
    closed = stats.chi2.cdf(((theta - x / 1.25) ** 2).sum(-1).numpy() / 0.2, 2)
    box = BoxUniform([-6.0, -6.0], [6.0, 6.0])
    rank = diagnose(GaussianPosterior([1.0], 2, "classifier", prior=box), theta, x, samples=512)["rank"][0].values
    assert (rank > 0).all() and (rank < 1).all()
    assert np.sqrt(np.mean((rank - closed) ** 2)) < 0.007
    # Calibrated: four of 4,000 ranks below 0.001, and as many above 0.999; twelve come once in a thousand such tests.
    assert (rank < 0.001).sum() < 12 and (rank > 0.999).sum() < 12
    assert stats.ks_2samp(rank, closed).statistic < 0.008


@pytest.mark.parametrize("name", ["slcp", "two_moons", "weinberg"])
def test_exact_posteriors_of_tasks_are_neither_overconfident_nor_far_from_the_diagonal(name: str):
    task = eq.task(name)
    data = eq.simulate(task.prior, task.simulate, 400, seed=11)
    ds = diagnose(ExactPosterior(task), data.theta, data.x, exact_log_prob=task.log_posterior, samples=512, seed=1)
    one = ds.sel(member="0")
    # Exactly uniform ranks: p-values below 1e-3 come once in a thousand.
    assert float(one.verdict_p_value) > 1e-3
    assert stats.kstest(one["rank"].values, "uniform").pvalue > 1e-3
    assert abs(float(one.coverage_auc)) < 3.5 * float(one.coverage_auc_se)
    # The normaliser is ours, from cells; the exact one is the task's, by quadrature.
    assert float(one.information_kept) == pytest.approx(1, abs=0.03)


class Half:
    """A classifier that rules half of the box out, as one with an infinite weight would."""

    kind, n_members, can_leak, x_shape = "classifier", 1, False, (1,)
    device, dtype = torch.device("cpu"), torch.float32
    prior = BoxUniform([0.0, 0.0], [1.0, 1.0])

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.where(theta[..., 0] < 0.5, 0.0, -math.inf).unsqueeze(0)

    def sample_members(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise AssertionError("a classifier has no draws")


def test_what_is_ruled_out_is_not_a_tie():
    theta = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    ds = diagnose(Half(), theta, torch.zeros(200, 1), samples=1000)
    outside = theta[:, 0].numpy() > 0.5
    assert (ds["rank"][0].values[outside] > 0.99).all()
    assert stats.kstest(ds["rank"][0].values[~outside], "uniform").pvalue > 1e-3
    assert str(ds["verdict"].values[0]) == "overconfident"


# --- proposals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "side"), [(1, 50), (2, 12), (3, 5)])
def test_cells_are_a_density_and_their_map_is_invertible(dim: int, side: int):
    g = torch.Generator().manual_seed(dim)
    mass = torch.rand(4, side**dim, generator=g, dtype=torch.float64) ** 3 + 1e-3
    proposal = CellProposal(mass / mass.sum(-1, keepdim=True), side, dim)
    y = torch.rand(2000, 4, dim, generator=g, dtype=torch.float64)
    u, log_g = proposal.push(y)
    assert ((u >= 0) & (u <= 1)).all()
    for row in range(0, 2000, 97):
        back, again = proposal.pull(u[row])
        torch.testing.assert_close(back, y[row], atol=1e-9, rtol=0)
        torch.testing.assert_close(again, log_g[row])
    # E_g[1/g] is the volume of the cube; its standard error is computed from the draws.
    inverse = (-log_g).exp()
    assert ((inverse.mean(0) - 1).abs() < 5 * inverse.std(0) / math.sqrt(2000)).all()


def test_gaussian_proposal_is_a_density_and_finds_a_narrow_posterior():
    g = torch.Generator().manual_seed(0)
    _, x = pairs(20, 6, seed=1)
    posterior = GaussianPosterior([1.0], 6, "classifier")
    density = density_of(lambda theta, x: posterior.log_ratios(theta[0], x), x, posterior.prior)
    start = torch.randn(1, 250, 20, 6, generator=g)
    proposal = GaussianProposal.learn(density, start, 1000, lambda n: torch.rand(n, 20, 7, generator=g), shared=True)
    torch.testing.assert_close(proposal.mean[0], (x / 1.25).double(), atol=0.25, rtol=0)
    z = torch.randn(1, 40_000, 20, 6, generator=g)  # E_prior[g / p] = 1
    over_prior = proposal.log_over_prior(z, -0.5 * z.square().sum(-1))[0].exp()
    assert ((over_prior.mean(0) - 1).abs() < 5 * over_prior.std(0) / 200).all()
    # E_g[p / g] = 1, over draws of it.
    z = proposal.draw(torch.rand(40_000, 20, 7, generator=g))
    inverse = (-proposal.log_over_prior(z, -0.5 * z.square().sum(-1)))[0].exp()
    assert ((inverse.mean(0) - 1).abs() < 5 * inverse.std(0) / 200).all()


def test_log_normaliser_is_right():
    theta, x = pairs(200, 2, seed=4)
    ds = diagnose(GaussianPosterior([1.0], 2, "classifier", offset=2.5), theta, x, samples=1000)
    gap = ds["log_prob"][0].values - exact_log_prob(theta, x).numpy()
    assert abs(gap.mean()) < 0.01 and np.abs(gap).max() < 0.3
    raw = float(ds["nominal_log_prob_raw"][0]) - float(ds["nominal_log_prob"][0])
    assert raw == pytest.approx(2.5, abs=0.01)
