"""`diagnose`: closed forms, the contract, mixtures, leakage, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import xarray as xr
from diagnostics_fakes import TAU, GaussianPosterior, coverage, exact_log_prob, pairs
from scipy import stats
from torch import Tensor

import equipoise as eq
from equipoise.diagnostics import VARIABLES, bands, diagnose, input_checks, local_coverage, summary
from equipoise.diagnostics.dataset import Variable
from equipoise.diagnostics.diagnosing import VALUE_BYTES, _batch_size
from equipoise.diagnostics.input_checks import warn_if_unlike_training
from equipoise.diagnostics.scores import information_kept, signed_balance
from equipoise.diagnostics.surrogates import EquipoiseSurrogate
from equipoise.priors import BoxUniform
from equipoise.support.devices import fixed_threads

SCALES = [0.7, 1.0, 1.4]


@pytest.fixture(scope="module", params=["flow", "classifier"])
def result(request: pytest.FixtureRequest) -> xr.Dataset:
    theta, x = pairs(3000, 2, seed=0)
    posterior = GaussianPosterior(SCALES, 2, request.param, offset=0.4 if request.param == "classifier" else 0.0)
    return diagnose(posterior, theta, x, exact_log_prob=exact_log_prob, samples=300)


def test_coverage_follows_the_closed_form_within_its_band(result: xr.Dataset):
    for member, scale in zip("012", SCALES, strict=True):
        one = result.sel(member=member)
        truth = coverage(scale, 2, result.level.values)
        # Six bands at 95%: these seeds hold; a systematic error of 2% in coverage would leave the band.
        assert (one.coverage_lower <= truth + 1e-9).all() and (truth <= one.coverage_upper + 1e-9).all()
        assert abs(one.coverage - truth).max() < 0.03
        area = np.trapezoid(
            coverage(scale, 2, np.linspace(0, 1, 2001)) - np.linspace(0, 1, 2001), np.linspace(0, 1, 2001)
        )
        assert abs(float(one.coverage_auc) - area) < 4 * float(one.coverage_auc_se)
        assert float(one.coverage_auc) == pytest.approx(0.5 - float(one["rank"].mean()))
    assert result.verdict.values[0] == "overconfident" and result.verdict.values[2] == "certified conservative"
    assert result.verdict.values[1] != "overconfident"


def test_information_follows_the_closed_form(result: xr.Dataset):
    dim = 2
    prior = -dim / 2 * (math.log(2 * math.pi) + 1)
    best = -dim / 2 * (math.log(2 * math.pi * TAU**2) + 1)
    for member, scale in zip("012", SCALES, strict=True):
        one = result.sel(member=member)
        nominal = -dim / 2 * (math.log(2 * math.pi * TAU**2 * scale**2) + 1 / scale**2)
        assert abs(float(one.nominal_log_prob) - nominal) < 4 * float(one.nominal_log_prob_se)
        kept = (nominal - prior) / (best - prior)
        assert abs(float(one.information_kept) - kept) < 4 * float(one.information_kept_se) + 0.005
        entropy = dim / 2 * (math.log(2 * math.pi * TAU**2 * scale**2) + 1)
        assert float(one.entropy) == pytest.approx(entropy, abs=0.02)
    assert float(result.prior_log_prob) == pytest.approx(prior, abs=0.1)
    assert float(result.exact_log_prob) == pytest.approx(best, abs=0.1)
    assert float(result.nominal_log_prob[1]) == pytest.approx(float(result.exact_log_prob), abs=0.01)


def test_mixture_is_the_mean_density_of_the_normalised_members(result: xr.Dataset):
    theta, x = pairs(3000, 2, seed=0)
    members = torch.stack([torch.distributions.Normal(x / 1.25, s * TAU).log_prob(theta).sum(-1) for s in SCALES])
    mixture = (members.logsumexp(0) - math.log(3)).numpy()
    gap = result["log_prob"].sel(member="mixture").values - mixture
    assert abs(gap.mean()) < 0.005 and np.sqrt((gap**2).mean()) < 0.1
    # Its HPD ranks, by the closed form of a mixture of concentric Gaussians: the share of mass nearer to the centre.
    q = ((theta - x / 1.25) ** 2).sum(-1).numpy()
    truth = np.mean([stats.chi2.cdf(q / (s * TAU) ** 2, 2) for s in SCALES], 0)
    error = result["rank"].sel(member="mixture").values - truth
    assert np.sqrt((error**2).mean()) < 0.035 and abs(error.mean()) < 0.003


def test_balance_is_the_mean_over_joint_and_rolled_pairs(result: xr.Dataset):
    theta, x = pairs(3000, 2, seed=0)
    offset = 0.4 if "points" in result.attrs["ranks"] else 0.0
    posterior = GaussianPosterior(SCALES, 2, "classifier", offset=offset)
    joint, marginal = posterior.log_ratios(theta, x), posterior.log_ratios(theta.roll(1, 0), x)
    g = (joint.sigmoid().mean(-1) + marginal.sigmoid().mean(-1) - 1).numpy()
    np.testing.assert_allclose(result.balance_signed.values[:3], g, atol=1e-5)
    np.testing.assert_allclose(result.balancing_error.values[:3], abs(g), atol=1e-5)
    if offset == 0:
        assert g[0] < 0 < g[2]  # too narrow, too wide
        assert abs(g[1]) < 4 * result.balance_signed_se.values[1]  # the exact posterior is balanced


def test_standard_error_of_balance_has_the_neighbour_covariance():
    # The same surrogate over 4,000 data sets of 200 pairs: the standard error has to match the spread of g over them.
    # Neighbours share a θ, and this surrogate is so wide that without their covariance the error is 18% too small.
    sets, n = 4000, 200
    posterior = GaussianPosterior([3.0], 1, "flow")
    theta, x = pairs(sets * n, 1, seed=1000)
    rolled = theta.view(sets, n).roll(1, 1).view(-1, 1)
    joint, marginal = (posterior.log_ratios(t, x).view(sets, n).double() for t in (theta, rolled))
    g, error = signed_balance(joint, marginal)
    s = (joint.sigmoid() + marginal.sigmoid() - 1).numpy()
    spread, plain = g.std(), np.sqrt(s.var(1, ddof=1).mean() / n)
    # The standard deviation of 4,000 numbers is known to 1.1%: 5% is over four standard errors.
    assert np.sqrt(np.square(error).mean()) == pytest.approx(spread, rel=0.05)
    assert plain < 0.88 * spread


def test_sbc_and_tarp_find_what_is_wrong_and_nothing_else(result: xr.Dataset):
    assert (result.sbc_p_value.sel(member=["0", "2"]) < 1e-3).all()
    assert (result.sbc_p_value.sel(member="1") > 1e-3).all()
    assert (result.tarp_p_value.sel(member=["0", "2"]) < 1e-3).all()
    assert float(result.tarp_p_value.sel(member="1")) > 1e-3


def test_dataset_keeps_the_contract(result: xr.Dataset):
    assert [str(m) for m in result.member.values] == ["0", "1", "2", "mixture"]
    assert result.coverage.dims == ("member", "level") and result["rank"].dims == ("member", "pair")
    assert result.coverage_auc.dims == result.verdict.dims == ("member",)
    assert set(result.verdict.values) <= {"overconfident", "certified conservative", "inconclusive"}
    assert float(result.delta) == 0.02 and result.attrs["seed"] == 0 and result.attrs["pairs"] == 3000
    assert np.isfinite(result.coverage).all() and (result.coverage.diff("level") >= 0).all()
    assert (result.calibration_lower <= result.level).all() and (result.level <= result.calibration_upper).all()
    assert all("long_name" in result[v].attrs for v in result.data_vars)
    text = summary(result)
    assert "overconfident" in text and "member  " in text


@pytest.mark.parametrize(("n", "words"), [(500, "about 1,200"), (499, "at least about 1,200")])
def test_the_summary_projects_as_firmly_as_it_can(result: xr.Dataset, n: int, words: str):
    to_settle = xr.DataArray([0.0, 0.0, np.inf, 1234.0], dims="member")
    open_ = result.assign(pairs_to_settle=to_settle, verdict=("member", np.array(["inconclusive"] * 4, object)))
    text = summary(open_.assign_attrs(pairs=n))
    assert f"; {words} more pairs would settle it if the curve stays as it is" in text


def test_results_go_to_netcdf_and_back(result: xr.Dataset, tmp_path):
    result.to_netcdf(tmp_path / "ds.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "ds.nc", engine="h5netcdf") as again:
        assert again.verdict.values.tolist() == result.verdict.values.tolist()
        np.testing.assert_array_equal(again.coverage, result.coverage)


def test_seed_decides_everything_and_memory_bounds_calls():
    theta, x = pairs(200, 2, seed=1)
    for kind in ("flow", "classifier"):
        first, second, third = (
            diagnose(GaussianPosterior([1.0, 1.2], 2, kind), theta, x, samples=100, seed=s) for s in (3, 3, 4)
        )
        xr.testing.assert_equal(first, second)
        assert not np.array_equal(first["rank"], third["rank"])
        small = GaussianPosterior([1.0, 1.2], 2, kind)
        limit = 50 * 8192
        diagnose(small, theta, x, samples=100, memory=limit)
        assert small.largest <= 50 + 4 < GaussianPosterior([1.0], 2, kind).largest + 100
        assert small.largest <= 50


def test_a_single_member_is_its_own_mixture():
    theta, x = pairs(100, 1, seed=1)
    ds = diagnose(GaussianPosterior([1.0], 1), theta, x, samples=50)
    np.testing.assert_array_equal(ds["rank"].sel(member="0"), ds["rank"].sel(member="mixture"))


def test_few_samples_leave_the_error_of_the_area_near_its_floor():
    theta, x = pairs(1500, 2, seed=2)
    for kind in ("flow", "classifier"):
        few, many = (diagnose(GaussianPosterior(SCALES, 2, kind), theta, x, samples=s) for s in (128, 600))
        assert (few.coverage_auc_se <= 1.1 * many.coverage_auc_se).all()
        # And the area itself moves by less than its own error.
        assert (abs(few.coverage_auc - many.coverage_auc) < few.coverage_auc_se).all()


class LeakyPosterior(GaussianPosterior):
    """Flows on a box prior that put mass outside it, members by different amounts."""

    def __init__(self, scales: list[float], prior: BoxUniform) -> None:
        super().__init__(scales, prior.dim, "flow", prior=prior)
        self.can_leak = True

    def _normal(self, x: Tensor, extra: int) -> torch.distributions.Normal:
        return torch.distributions.Normal(x, self.scales.reshape(-1, *[1] * (extra + 2)))


def leaky_pairs(prior: BoxUniform, n: int, noise: float) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    theta = prior.from_uniform(torch.rand(n, prior.dim, generator=g))
    return theta, theta + noise * torch.randn(n, prior.dim, generator=g)


def test_leaked_mass_is_cut_and_reported():
    prior, noise = BoxUniform([0.0], [1.0]), 0.3
    theta, x = leaky_pairs(prior, 4000, noise)
    # With a uniform prior the posterior is the likelihood cut to the box: the leaky flow is exact once it is cut.
    ds = diagnose(LeakyPosterior([noise, noise], prior), theta, x, samples=500)
    normal = torch.distributions.Normal(x, noise)
    inside = normal.cdf(torch.tensor(1.0)) - normal.cdf(torch.tensor(0.0))
    assert float(ds.leakage[0]) == pytest.approx(float(1 - inside.mean()), abs=0.003)
    exact = (normal.log_prob(theta) - inside.log()).squeeze(-1).numpy()
    for member in ("0", "mixture"):
        one = ds.sel(member=member)
        assert stats.kstest(one["rank"].values, "uniform").pvalue > 1e-4
        assert float(one.nominal_log_prob) == pytest.approx(exact.mean(), abs=0.005)
    assert float(ds.nominal_log_prob_raw[0]) == pytest.approx(float(normal.log_prob(theta).mean()), abs=1e-4)
    # Kept draws, as in the released code, rank θ* within the whole Gaussian.
    released = diagnose(LeakyPosterior([noise], prior), theta, x, samples=500, recipe="released")
    whole = stats.chi2.cdf(((theta - x) ** 2).squeeze(-1).numpy() / noise**2, 1)
    assert np.sqrt(((released["rank"][0].values - whole) ** 2).mean()) < 0.025
    assert abs(whole - ds["rank"][0].values).max() > 0.2


def test_members_that_leak_differently_mix_with_their_cut_densities():
    prior = BoxUniform([0.0], [1.0])
    theta, x = leaky_pairs(prior, 600, 0.3)
    near = ((x > -0.1) & (x < 1.1)).squeeze(-1)  # further out the narrow member has no draw inside the box at all
    theta, x = theta[near], x[near]
    scales = [0.1, 0.6]
    ds = diagnose(LeakyPosterior(scales, prior), theta, x, samples=4000)
    grid = torch.linspace(0, 1, 4001)[:, None, None]
    parts = [torch.distributions.Normal(x, s).log_prob(grid).squeeze(-1).softmax(0) for s in scales]
    mixture = (parts[0] + parts[1]) / 2
    at = [
        torch.distributions.Normal(x, s).log_prob(theta).squeeze(-1)
        - (
            torch.distributions.Normal(x, s).cdf(torch.tensor(1.0))
            - torch.distributions.Normal(x, s).cdf(torch.tensor(0.0))
        )
        .log()
        .squeeze(-1)
        for s in scales
    ]
    truth = torch.logaddexp(at[0], at[1]) - math.log(2)
    above = (mixture * 4000).log() > truth
    rank = (mixture * above).sum(0).numpy()
    error = ds["rank"].sel(member="mixture").values - rank
    assert np.sqrt((error**2).mean()) < 0.015 and abs(error.mean()) < 0.003


@pytest.mark.parametrize("scales", [[1.0, 1.0], [0.5, 2.0]], ids=["alike", "differently"])
def test_ranks_of_leaking_mixtures_are_uniform_however_few_the_draws(scales: list[float]):
    """θ* has a weight as the draws have, and it is a good part of all where most of 8 draws have leaked away.

    θ* follows the mixture of the cut densities. Members that are alike have weights that cancel, and exactly uniform
    ranks. If θ* had weight 1, the largest distance to uniformity would be about 0.12; that of 4,000 uniform ranks is
    beyond 0.035 once in ten thousand times.
    """
    prior, g = BoxUniform([0.0], [1.0]), torch.Generator().manual_seed(0)
    x = torch.rand(4000, 1, generator=g)
    normal = torch.distributions.Normal(x, torch.tensor(scales))
    low, high = normal.cdf(torch.tensor(0.0)), normal.cdf(torch.tensor(1.0))
    member = torch.randint(2, (4000, 1), generator=g)
    drawn = normal.icdf(low + (high - low) * torch.rand(4000, 2, generator=g)).clamp(0, 1)
    ds = diagnose(LeakyPosterior(scales, prior), drawn.gather(1, member), x, samples=8)
    assert float((1 - high + low).mean()) > 0.5  # most of it leaks
    mixture = ds.sel(member="mixture")
    for rank in (mixture["rank"], mixture["sbc_rank"].squeeze(), mixture["tarp_rank"]):
        assert stats.kstest(rank.values, "uniform").statistic < 0.035


@pytest.mark.parametrize(
    ("kind", "recipe", "number"),
    [("flow", "equipoise", 256), ("flow", "released", 1000), ("classifier", "equipoise", 1000)],
)
def test_the_number_of_samples_follows_what_they_cost(kind: str, recipe: str, number: int):
    theta, x = pairs(60, 2, seed=0)
    posterior = GaussianPosterior([1.0], 2, kind)
    ds, same = (diagnose(posterior, theta, x, recipe=recipe, **n) for n in ({}, {"samples": number}))
    assert ds.attrs["samples"] == number
    np.testing.assert_array_equal(ds["rank"], same["rank"])


def test_released_recipe_counts_strictly():
    theta, x = pairs(100, 1, seed=4)
    ds = diagnose(GaussianPosterior([1.0], 1), theta, x, samples=10, recipe="released")
    assert np.allclose(ds["rank"] * 10, np.rint(ds["rank"] * 10))


def test_a_larger_test_set_serves_balance_and_raw_density():
    theta, x = pairs(100, 2, seed=5)
    big = pairs(20_000, 2, seed=6)
    ds = diagnose(GaussianPosterior([0.7, 1.4], 2), theta, x, samples=20, test=big)
    small = diagnose(GaussianPosterior([0.7, 1.4], 2), theta, x, samples=20)
    assert (ds.balance_signed_se[:2] < 0.2 * small.balance_signed_se[:2]).all()
    assert np.isnan(ds.balance_signed[2]) and "mixture" in ds.attrs["notes"]
    nominal = -(math.log(2 * math.pi * TAU**2 * 0.49) + 1 / 0.49)
    assert float(ds.nominal_log_prob_raw[0]) == pytest.approx(nominal, abs=0.06)


def test_information_kept_of_prior_and_exact():
    rng = np.random.default_rng(0)
    exact, prior = rng.normal(1, 1, 500), np.zeros(500)
    kept, error = information_kept(np.stack([exact, prior]), prior, exact)
    np.testing.assert_allclose(kept, [1, 0])
    assert error[0] == pytest.approx(0)


def test_local_coverage_finds_where_a_posterior_fails():
    theta, x = pairs(5000, 1, seed=7)
    width = torch.where(x[:, 0] > 0, 1.5, 0.6).numpy()
    rank = stats.chi2.cdf((((theta - x / 1.25) / TAU) ** 2).sum(-1).numpy() / width**2, 1)
    local = local_coverage(rank, x[:, 0], levels=[0.5, 0.9], bins=10, name="x")
    low, high = local.coverage.isel(member=0, bin=slice(0, 4)), local.coverage.isel(member=0, bin=slice(6, 10))
    truth = [coverage(s, 1, np.array([0.5, 0.9])) for s in (0.6, 1.5)]
    np.testing.assert_allclose(low.mean("bin"), truth[0], atol=0.03)
    np.testing.assert_allclose(high.mean("bin"), truth[1], atol=0.03)
    assert (local.coverage_lower <= local.coverage).all() and local.pairs.sum() == 5000
    with pytest.raises(ValueError, match="one number for each"):
        local_coverage(rank, x[:10, 0])
    with pytest.raises(ValueError, match="bins"):
        local_coverage(rank, x[:, 0], bins=2000)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_pairs_are_refused_with_a_reason():
    theta, x = pairs(60, 2, seed=0)
    posterior = GaussianPosterior([1.0], 2)
    with pytest.raises(ValueError, match="49 pairs are too few"):
        diagnose(posterior, theta[:49], x[:49])
    with pytest.raises(ValueError, match="each theta needs the x"):
        diagnose(posterior, theta, x[:50])
    with pytest.raises(ValueError, match="3 parameter"):
        diagnose(posterior, torch.zeros(60, 3), x)
    with pytest.raises(ValueError, match=r"trained on \(2,\)"):
        diagnose(posterior, theta, torch.zeros(60, 5))
    with pytest.raises(ValueError, match=r"shape \(n, D\)"):
        diagnose(posterior, theta[:, 0], x)
    broken = x.clone()
    broken[7, 1] = math.nan
    with pytest.raises(ValueError, match=r"1 of the 60 pairs have NaN or infinite x .*pair 7"):
        diagnose(posterior, theta, broken)
    with pytest.raises(ValueError, match="NaN or infinite theta"):
        diagnose(posterior, theta / 0, x)
    boxed = GaussianPosterior([1.0], 2, prior=BoxUniform([-0.1, -0.1], [0.1, 0.1]))
    with pytest.raises(ValueError, match="outside the prior"):
        diagnose(boxed, theta, x)
    with pytest.raises(TypeError, match="theta should be a tensor"):
        diagnose(posterior, "theta", x)
    with pytest.raises(TypeError, match="theta should be an array of real numbers, and is complex"):
        diagnose(posterior, theta + 0j, x)
    with pytest.raises(TypeError, match="x should be an array of real numbers, and is sparse"):
        diagnose(posterior, theta, x.to_sparse())


def test_bad_options_are_refused():
    theta, x = pairs(60, 2, seed=0)
    posterior = GaussianPosterior([1.0], 2)
    for options, match in (
        ({"samples": 0}, "samples"),
        ({"alpha": 2.0}, "alpha"),
        ({"recipe": "paper"}, "recipe"),
        ({"levels": [0.5, 1.5]}, "levels"),
        ({"exact_log_prob": np.zeros(3)}, "one number for each"),
        ({"exact_log_prob": np.full(60, np.nan)}, "not finite"),
    ):
        with pytest.raises(ValueError, match=match):
            diagnose(posterior, theta, x, **options)
    with pytest.raises(TypeError, match="cannot diagnose a str"):
        diagnose("posterior", theta, x)
    deep = GaussianPosterior([1.0], 3, "classifier")
    with pytest.raises(ValueError, match="up to 2 parameters"):
        diagnose(deep, *pairs(60, 3, seed=0), recipe="released")


def test_observations_unlike_those_of_training_are_warned_about():
    theta, x = pairs(200, 2, seed=0)
    posterior = GaussianPosterior([1.0], 2)
    posterior.stack = {"x_loc": torch.full((1, 2), 0.01), "x_scale": torch.full((1, 2), 1.1)}
    assert diagnose(posterior, theta, x, samples=20).attrs["notes"] == ""
    with pytest.warns(UserWarning, match="do not look like those the posterior was trained on"):
        ds = diagnose(posterior, theta, x + 10, samples=20)
    assert "same simulator" in ds.attrs["notes"]
    with pytest.warns(UserWarning, match="do not look like"):
        diagnose(posterior, theta, 100 * x, samples=20)


def reference(posterior: GaussianPosterior, x: Tensor, axes: list[int]) -> GaussianPosterior:
    """A posterior that remembers the mean and the spread of x over these axes."""
    loc, scale = x.double().mean(axes, keepdim=True), x.double().std(axes, keepdim=True)
    posterior.stack = {"x_loc": loc, "x_scale": scale}
    posterior.x_shape = tuple(x.shape[1:])
    return posterior


def test_a_trend_in_the_training_data_is_not_a_difference_from_them():
    """A channel's mean and spread are those of all its positions."""
    g = torch.Generator().manual_seed(0)
    ramp, border = torch.linspace(0, 10, 40)[:, None], torch.zeros(3, 6, 6)
    border[:, 0] = 5.0
    # Channels last with a trend, channels first with a border, and a channel that never varies.
    for shape, axes in ((ramp, [0, 1]), (border, [0, 2, 3])):
        x = shape + 0.5 * torch.randn(200, *shape.shape, generator=g)
        surrogate = EquipoiseSurrogate(reference(GaussianPosterior([1.0], 2), x, axes))
        assert warn_if_unlike_training(x, surrogate) == ""
        with pytest.warns(UserWarning, match="100% of the features"):
            warn_if_unlike_training(x + 20, surrogate)
        with pytest.warns(UserWarning, match="100% of the features"):
            warn_if_unlike_training(0.1 * (x - x.mean()) + x.mean(), surrogate)
    constant = torch.full((200, 2), 0.1, dtype=torch.float64)
    posterior = GaussianPosterior([1.0], 2)
    posterior.stack = {"x_loc": torch.full((1, 2), 0.1), "x_scale": torch.ones(1, 2)}
    assert warn_if_unlike_training(constant, EquipoiseSurrogate(posterior)) == "" and bool((constant == 0.1).all())


def test_observations_are_compared_with_training_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch):
    x = torch.randint(0, 255, (300, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loc, scale = torch.rand(3, 1, 1), 50 * torch.rand(3, 1, 1) + 1
    z = ((x.double() - loc.double()) / scale.double()).transpose(0, 1).flatten(1)
    sizes, double = [], Tensor.double
    monkeypatch.setattr(input_checks, "PIECE", 1000)
    monkeypatch.setattr(Tensor, "double", lambda self: sizes.append(self.numel()) or double(self))
    mean, spread = input_checks._moments(x, loc, scale)
    assert max(sizes) <= 1000 and len(sizes) > 50
    torch.testing.assert_close(mean, z.mean(1))
    torch.testing.assert_close(spread, z.std(1, correction=0))


class DivergedPosterior(GaussianPosterior):
    """Its second member returns NaN."""

    def log_ratios(self, theta: Tensor, x: Tensor) -> Tensor:
        ratios = super().log_ratios(theta, x)
        ratios[1] = math.nan
        return ratios


def test_a_diverged_member_leaves_the_others_alone():
    theta, x = pairs(100, 2, seed=0)
    with pytest.warns(UserWarning, match="1, mixture are NaN"):
        ds = diagnose(DivergedPosterior([1.0, 1.0], 2), theta, x, samples=50)
    assert np.isfinite(ds.coverage.sel(member="0")).all() and np.isnan(ds.coverage.sel(member="1")).all()
    assert ds.verdict.sel(member="1").item() == "inconclusive" and np.isnan(ds.verdict_p_value.sel(member="1"))


def test_bands_of_the_dataset_are_those_of_the_functions(result: xr.Dataset):
    low, high = bands.simultaneous_band(result.coverage.values, 3000)
    np.testing.assert_array_equal(result.coverage_lower, low)
    np.testing.assert_array_equal(result.coverage_upper, high)


# --- the table of variables -------------------------------------------------------------------------------------------


def test_the_dataset_is_its_table_of_variables():
    theta, x = pairs(60, 2, seed=0)
    ds = diagnose(GaussianPosterior([1.0, 1.5], 2), theta, x, samples=20)
    assert [v.name for v in VARIABLES] == list(ds.data_vars)
    for v in VARIABLES:
        assert ds[v.name].dims == v.dims and ds[v.name].attrs["long_name"] == v.meaning
        if v.kept is not None:
            assert v.dims in (("member",), ("member", "level"))


def test_a_new_diagnostic_is_a_function_and_a_row(monkeypatch: pytest.MonkeyPatch):
    theta, x = pairs(60, 2, seed=0)
    worst = Variable("worst_log_prob", ("member",), "smallest log posterior", lambda f: f.log_prob.min(-1), "cell")
    monkeypatch.setattr("equipoise.diagnostics.dataset.VARIABLES", (*VARIABLES, worst))
    ds = diagnose(GaussianPosterior([1.0], 2), theta, x, samples=20)
    np.testing.assert_array_equal(ds.worst_log_prob, ds.log_prob.min("pair"))


@pytest.mark.parametrize("method", ["sample", "log_prob"])
def test_a_foreign_posterior_that_returns_nothing_is_refused_by_name(method: str) -> None:
    class Foreign:
        def sample(self, shape, x):
            return None if method == "sample" else torch.rand(*shape, 2)

        def log_prob(self, theta, x):
            return None if method == "log_prob" else torch.zeros(theta.shape[:-1])

    prior = BoxUniform([0.0, 0.0], [1.0, 1.0])
    with pytest.raises(TypeError, match=f"{method} should return a tensor, and returned NoneType"):
        diagnose(Foreign(), torch.rand(60, 2), torch.rand(60, 2), prior=prior, progress=False)


def test_draws_that_are_complex_are_refused_by_name() -> None:
    class Foreign:
        def sample(self, shape, x):
            return torch.rand(*shape, 2) + 0j

        def log_prob(self, theta, x):
            return torch.zeros(theta.shape[:-1])

    prior = BoxUniform([0.0, 0.0], [1.0, 1.0])
    with pytest.raises(TypeError, match="what sample returns should be an array of real numbers, and is complex"):
        diagnose(Foreign(), torch.rand(60, 2), torch.rand(60, 2), prior=prior, progress=False)


def test_any_number_of_threads_finds_the_same_in_flows():
    """Threads take batches, each with random numbers of its own; tempered flows and their calibration too."""
    theta, x = pairs(400, 2, seed=5)
    fresh = pairs(300, 2, seed=6)
    prior = eq.GaussianPrior(torch.zeros(2), torch.eye(2))
    small = eq.METHODS["npe"].but(hidden=(12, 12))
    posterior = eq.fit(theta, x, prior=prior, method=small, members=2, epochs=3, progress=False, device="cpu")
    found = []
    for threads in (1, 2):
        with fixed_threads(threads):
            results = [diagnose(p, *fresh, samples=60, memory=1 << 22) for p in (posterior, posterior.tempered(0.6))]
            with pytest.warns(UserWarning, match="300 fresh pairs are too few"):
                calibrated = eq.calibrate(posterior, *fresh, progress=False)
            found.append((*results, calibrated.calibration))
    one, two = found
    assert one[2] == two[2]
    for first, second in zip(one[:2], two[:2], strict=True):
        xr.testing.assert_identical(first, second)


def test_what_two_threads_cannot_call_at_once_is_called_by_one():
    """A user's module holds one member's weights while it is called; SciPy warns where it has no quantile."""
    box, beta = BoxUniform([-1.0] * 2, [1.0] * 2), eq.IndependentPrior([torch.distributions.Beta(2.0, 3.0)] * 2)
    small = eq.METHODS["npe"].but(hidden=(8,))

    def threaded(prior: object, **options: object) -> bool:
        theta = prior.sample((200,))
        fitted = eq.fit(
            theta, theta + 0.1, prior=prior, method=small, members=2, epochs=1, progress=False, device="cpu", **options
        )
        return EquipoiseSurrogate(fitted).in_threads

    assert threaded(box)
    assert not threaded(box, embedding=torch.nn.Linear(2, 3)) and not threaded(beta)


@pytest.mark.parametrize(("memory", "samples"), [(1 << 28, 64), (1 << 20, 64), (1 << 16, 300)])
def test_batches_that_threads_hold_at_once_keep_to_the_memory(memory: int, samples: int):
    theta, x = pairs(100, 2, seed=1)
    method = eq.METHODS["npe"].but(hidden=(8,))
    prior = eq.GaussianPrior(torch.zeros(2), torch.eye(2))
    s = EquipoiseSurrogate(
        eq.fit(theta, x, prior=prior, method=method, epochs=1, members=2, progress=False, device="cpu")
    )
    size, _, at_once = _batch_size(s, x, samples, memory)
    assert s.in_threads and 1 <= at_once <= 8
    assert at_once == 1 or size * at_once * 2 * samples * VALUE_BYTES <= memory
