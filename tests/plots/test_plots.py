"""Figures: what is drawn is what the results say, each function returns its Axes, and torch is not needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from scipy import stats
from scipy.ndimage import label

from equipoise import plots

LEVEL = np.linspace(0, 1, 101)


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def diagnosed() -> xr.Dataset:
    """What `diagnose` returns, in the parts that are drawn, made by hand."""
    from equipoise.diagnostics import bands, coverage_curve, judge, uniformity_p_value

    rng = np.random.default_rng(0)
    rank = np.stack([rng.random(500) ** 0.6, rng.random(500), rng.random(500) ** 1.2])
    curve = coverage_curve(rank, LEVEL)
    low, high = bands.simultaneous_band(curve, 500)
    low_one, high_one = bands.pointwise_band(curve, 500)
    uniform_low, uniform_high = bands.calibration_band(LEVEL, 500)
    sbc = np.stack([rank, rng.random((3, 500))], 1)
    return xr.Dataset(
        {
            "rank": (("member", "pair"), rank),
            "coverage": (("member", "level"), curve),
            "coverage_lower": (("member", "level"), low),
            "coverage_upper": (("member", "level"), high),
            "coverage_lower_pointwise": (("member", "level"), low_one),
            "coverage_upper_pointwise": (("member", "level"), high_one),
            "calibration_lower": ("level", uniform_low),
            "calibration_upper": ("level", uniform_high),
            "verdict": ("member", judge(rank).verdict),
            "sbc": (("member", "parameter", "level"), coverage_curve(sbc, LEVEL)),
            "sbc_p_value": (("member", "parameter"), uniformity_p_value(sbc)),
            "tarp": (("member", "level"), curve),
            "tarp_p_value": ("member", uniformity_p_value(rank)),
            "coverage_auc": ("member", 0.5 - rank.mean(-1)),
            "information_kept": ("member", [0.4, 0.8, 0.7]),
        },
        coords={"member": ["0", "1", "mixture"], "level": LEVEL, "parameter": [0, 1]},
    )


@pytest.fixture
def results() -> xr.Dataset:
    rng = np.random.default_rng(1)
    shape = (2, 3, 4, 5)
    axes = ("task", "method", "budget", "run")
    area = rng.normal(0, 0.1, shape)
    ds = xr.Dataset(
        {
            "coverage": ((*axes, "level"), np.clip(LEVEL + area[..., None] * LEVEL * (1 - LEVEL), 0, 1)),
            "coverage_auc": (axes, area),
            "nominal_log_prob": (axes, rng.normal(-1, 0.2, shape)),
            "balancing_error": (axes, rng.random(shape) + 0.01),
            "information_kept": (axes, rng.random(shape)),
            "expected_log_prob": ("task", [-0.1, -0.2]),
            "prior_log_prob": ("task", [-3.6, -1.4]),
        },
        coords={
            "task": ["slcp", "two_moons"],
            "method": ["nre", "npe", "bnpe"],
            "budget": [1024, 2048, 4096, 8192],
            "run": range(5),
            "level": LEVEL,
        },
    )
    ds["coverage"][0, 1] = np.nan  # a cell that is missing
    ds["coverage"][1, 1, 0, 0] = np.nan  # and a run
    return ds


def drawn(ax: Axes, wanted: xr.DataArray) -> bool:
    """Whether one of the lines is the given one."""
    heights = [np.asarray(line.get_ydata(), float) for line in ax.get_lines()]
    return any(len(y) == wanted.size and np.allclose(y, wanted) for y in heights)


def test_coverage_draws_the_curve_and_its_band(diagnosed: xr.Dataset):
    ax = plots.coverage(diagnosed)
    assert drawn(ax, diagnosed.coverage.sel(member="mixture"))
    assert len(ax.get_lines()) == 2 + 1 + 1  # members, diagonal, mixture
    band = ax.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() <= 1 and band[:, 1].min() >= 0
    text = [t.get_text().replace("\n", " ") for t in ax.get_legend().get_texts()]
    assert f"mixture: {diagnosed.verdict.values[-1]}" in text
    given = plt.figure().subplots()
    assert plots.coverage(diagnosed, "0", ax=given, difference=True, pointwise=True) is given
    assert drawn(given, diagnosed.coverage.sel(member="0") - LEVEL)


def test_the_summary_draws_the_curve_and_every_interval(diagnosed: xr.Dataset):
    level = [0.68, 0.95]
    shares = {
        "interval_coverage": (("member", "parameter", "report_level"), np.full((3, 2, 2), [[0.6, 0.9], [0.7, 0.94]])),
        "region_coverage": (("member", "report_level"), np.full((3, 2), [0.5, 0.8])),
    }
    shares |= {f"{name}_se": (dims, np.full(v.shape, 0.01)) for name, (dims, v) in shares.items()}
    ds = diagnosed.assign(shares).assign(gain=("member", [1.0, 2.0, 2.5])).assign_coords(report_level=level)
    ds.attrs["pairs"] = 500
    curve, intervals = plots.summary(ds, names=["beta", "gamma"])
    assert drawn(curve, ds.coverage.sel(member="mixture"))
    for i, share in enumerate(([0.6, 0.7, 0.5], [0.9, 0.94, 0.8])):
        assert any(np.allclose(line.get_xdata(), share) for line in intervals.lines if len(line.get_xdata()) == 3), i
    assert [t.get_text() for t in intervals.get_yticklabels()] == ["beta", "gamma", "joint region"]
    told = curve.figure.get_suptitle().lower()
    assert told == str(ds.verdict.sel(member="mixture").values)
    # Numbers of the dataset are parameters without names; names of the dataset are used.
    named = ds.assign_coords(parameter=["a", "b"])
    assert [t.get_text() for t in plots.summary(named)[1].get_yticklabels()] == ["a", "b", "joint region"]


def test_sbc_and_tarp_draw_departures_from_uniformity(diagnosed: xr.Dataset):
    ax = plots.sbc(diagnosed, names=["a", "b"])
    assert drawn(ax, diagnosed.sbc.sel(member="mixture", parameter=1) - LEVEL)
    assert any("p" in t.get_text() for t in ax.get_legend().get_texts())
    ax = plots.tarp(diagnosed, ["0", "mixture"])
    assert drawn(ax, diagnosed.tarp.sel(member="0") - LEVEL)


def test_without_a_mixture_the_members_are_drawn(diagnosed: xr.Dataset):
    members = diagnosed.isel(member=[0, 0]).assign_coords(member=["0", "1"])
    for draw in (plots.coverage, plots.tarp):
        labels = draw(members).get_legend_handles_labels()[1]
        assert {label.split(":")[0].split("  ")[0] for label in labels} >= {"0", "1"}
    assert len(plots.sbc(members).get_legend_handles_labels()[1]) >= members.sizes["parameter"]


def test_local_coverage_draws_each_level(diagnosed: xr.Dataset):
    from equipoise.diagnostics import local_coverage

    local = local_coverage(diagnosed, np.arange(500.0), bins=5, levels=[0.5, 0.9], name="time")
    ax = plots.local_coverage(local)
    assert ax.get_xlabel() == "time"
    assert drawn(ax, local.coverage.sel(member="mixture", level=0.9))
    assert plots.local_coverage(local, 0, name="temperature").get_xlabel() == "temperature"


def covered(ax: Axes) -> list[str]:
    """The lines and bands that the legend lies on."""
    ax.figure.draw_without_rendering()
    box = ax.get_legend().get_window_extent()
    found = []
    for artist in (*ax.get_lines(), *ax.collections):
        for path in [artist.get_path()] if hasattr(artist, "get_xydata") else artist.get_paths():
            corners = artist.get_transform().transform(path.vertices)
            # Between corners as well: bands and curves have one at each hundredth, the line at 0 two.
            at = np.linspace(0, len(corners) - 1, 20 * len(corners))
            x, y = (np.interp(at, np.arange(len(corners)), c) for c in corners.T)
            inside = (x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)
            found += [artist.get_label()] * bool(inside.any())
    return found


@pytest.mark.parametrize("members", [["mixture"], ["0", "1", "mixture"]])
def test_legends_lie_on_nothing(diagnosed: xr.Dataset, members: list[str]):
    for draw in (
        lambda **at: plots.coverage(diagnosed, members, difference=True, pointwise=True, **at),
        lambda **at: plots.coverage(diagnosed, difference=True, **at),
        lambda **at: plots.sbc(diagnosed, members[0], **at),
        lambda **at: plots.tarp(diagnosed, members, **at),
    ):
        assert covered(draw()) == []
        ax = draw()
        ax.set_title("in a talk")
        assert covered(ax) == []
        given = plt.figure(figsize=(8, 3), layout="constrained").subplots(1, 2)[1]
        draw(ax=given)
        assert covered(draw(ax=given)) == []  # a second one on the same axes
    many = diagnosed.isel(parameter=[0, 1] * 5).assign_coords(parameter=range(10))
    assert covered(plots.sbc(many)) == []


@pytest.mark.parametrize("power", [0.2, 0.5, 0.62, 0.75, 0.9, 1.0, 1.3, 3.0])
@pytest.mark.parametrize("member", [None, "0", ["0", "1", "mixture"]])
def test_the_legend_leaves_curves_alone_however_far_they_are_from_the_diagonal(
    diagnosed: xr.Dataset, power: float, member: str | list[str] | None
):
    bent = diagnosed.copy()
    bent["verdict"] = diagnosed["verdict"].copy(data=["certified conservative"] * diagnosed.sizes["member"])
    powers = power * np.linspace(1.4, 1, diagnosed.sizes["member"])
    for name, shift in (("coverage", 0.0), ("coverage_lower", -0.05), ("coverage_upper", 0.05)):
        curves = (LEVEL ** powers[:, None] + shift).clip(0, 1)
        bent[name] = diagnosed[name].copy(data=curves if diagnosed[name].dims[0] == "member" else curves.T)
    given = plt.figure(figsize=(8, 3)).subplots(1, 2)[1]
    for ax in (plots.coverage(bent, member), plots.coverage(bent, member, ax=given)):
        assert covered(ax) == []


def test_what_is_not_there_is_named(diagnosed: xr.Dataset):
    from equipoise.diagnostics import local_coverage

    local = local_coverage(diagnosed, np.arange(500.0), bins=5)
    for draw in (plots.coverage, plots.sbc, plots.tarp, lambda _, m: plots.local_coverage(local, m)):
        with pytest.raises(ValueError, match=r"no member '9'.*0, 1, mixture"):
            draw(diagnosed, "9")
        draw(diagnosed, 1)  # members are numbered
    with pytest.raises(ValueError, match=r"names should have 2 entries, one for each parameter, got 1"):
        plots.sbc(diagnosed, names=["a"])
    samples = np.random.default_rng(0).normal(size=(100, 3))
    for short in ({"truth": [0, 0]}, {"names": ["a"]}, {"limits": [(0, 1)] * 4}):
        (name,) = short
        with pytest.raises(ValueError, match=f"{name} should have 3 entries, one for each parameter, got"):
            plots.corner(samples, **short)
    for short in ({"truth": [0]}, {"names": ["a"]}):
        with pytest.raises(ValueError, match="should have 2 entries"):
            plots.posterior_2d(*samples.T[:2], **short)


def test_coverage_grid_has_a_panel_for_each_method_and_task(results: xr.Dataset):
    axes = plots.coverage_grid(results.assign_coords(task_label=("task", ["five numbers", "two"])))
    assert axes.shape == (3, 2) and axes[0, 0].get_title() == "five numbers"
    assert [t.get_text() for t in axes[2, 1].texts] == ["BNPE"]
    # The diagonal and the budgets that exist.
    assert len(axes[0, 0].get_lines()) == 5 and len(axes[1, 0].get_lines()) == 1 and len(axes[1, 1].get_lines()) == 5
    median = results.coverage.sel({"task": "slcp", "method": "nre", "budget": 2048}).median("run")
    assert drawn(axes[0, 0], median)
    assert plots.coverage_grid(results.sel({"task": ["slcp"], "method": ["nre", "npe"]})).shape == (2, 1)


@pytest.mark.parametrize("draw", [plots.nominal_log_prob, plots.balancing_error])
def test_budget_panels_draw_median_and_range(results: xr.Dataset, draw):
    axes = draw(results)
    name = draw.__name__
    assert len(axes) == 2
    cell = results[name].sel({"task": "two_moons", "method": "npe"})
    assert drawn(axes[1], cell.median("run"))
    heights = np.concatenate([c.get_paths()[0].vertices[:, 1] for c in axes[1].collections])
    assert np.isclose(heights, float(cell.max())).any() and np.isclose(heights, float(cell.min())).any()


def scattered(ax: Axes) -> set[tuple[float, float]]:
    """Where the marks are."""
    marks = [c for c in ax.collections if isinstance(c, PathCollection)]
    return {(round(float(x), 9), round(float(y), 9)) for c in marks for x, y in c.get_offsets()}


def test_plane_has_a_point_for_each_cell(results: xr.Dataset, diagnosed: xr.Dataset):
    ax = plots.plane(results)
    points = scattered(ax)
    middle = results[["information_kept", "coverage_auc"]].median("run").stack(cell=("task", "method", "budget"))
    for kept, area in zip(middle.information_kept.values, middle.coverage_auc.values, strict=True):
        assert tuple(np.round([kept, area], 9)) in points
    assert isinstance(plots.plane(diagnosed), Axes)


def test_plane_shows_the_log_posterior_where_no_exact_one_is_known(diagnosed: xr.Dataset):
    unknown = diagnosed.assign(
        information_kept=("member", [np.nan] * 3),
        nominal_log_prob=("member", [-2.5, -2.0, -1.5]),
        prior_log_prob=-3.6,
    )
    ax = plots.plane(unknown)
    areas = [round(float(a), 9) for a in unknown.coverage_auc]
    assert scattered(ax) == set(zip([-2.5, -2.0, -1.5], areas, strict=True))
    (cross,) = (line for line in ax.get_lines() if line.get_marker() == "+")
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (-3.6, 0.0)
    assert ax.get_xlabel() == "Nominal log posterior"
    assert "prior" in [t.get_text() for t in ax.texts]
    assert plots.plane(diagnosed).get_xlabel() == "Information kept"
    # Neither is known of a posterior that is not normalised: the axes say so.
    nothing = unknown.assign(nominal_log_prob=("member", [np.nan] * 3))
    assert "not known" in plots.plane(nothing).texts[-1].get_text()


def test_plane_has_no_prior_where_tasks_have_different_ones(results: xr.Dataset):
    ax = plots.plane(results.assign(information_kept=results.information_kept * np.nan))
    assert ax.texts == [] or all(t.get_text() != "prior" for t in ax.texts)
    assert ax.get_xlabel() == "Nominal log posterior"


def test_plane_tells_ten_methods_apart(results: xr.Dataset):
    one = results.isel(task=[0], method=[0] * 10, budget=[0]).assign_coords(method=[f"m{i}" for i in range(10)])
    legend = plots.plane(one).get_legend()
    looks = {(h.get_color(), h.get_marker()) for h in legend.get_lines()}
    assert len(legend.get_lines()) == len(looks) == 10


def test_posteriors_are_drawn_from_grids_and_from_samples():
    x = np.linspace(-4, 4, 801)
    ax = plots.posterior_1d(x, stats.norm.pdf(x), truth=0.3, levels=(0.95,))
    shaded = ax.collections[0].get_paths()[0].vertices[:, 0]
    # The 95% region of N(0, 1).
    assert shaded.min() == pytest.approx(-1.96, abs=0.02) and shaded.max() == pytest.approx(1.96, abs=0.02)
    density = np.outer(stats.norm.pdf(x[::8]), stats.norm.pdf(x[::8]))
    ax = plots.posterior_2d(x[::8], x[::8], density, truth=(0, 0), levels=(0.5, 0.95))
    radius = sorted(
        np.hypot(*path.vertices.T).mean() for c in ax.collections[1:] for path in c.get_paths() if len(path.vertices)
    )
    np.testing.assert_allclose(radius, np.sqrt(stats.chi2.ppf([0.5, 0.95], 2)), atol=0.05)
    samples = np.random.default_rng(0).normal(size=(3000, 3))
    plots.posterior_1d(samples[:, 0])
    plots.posterior_2d(samples[:, 0], samples[:, 1])
    axes = plots.corner(samples, truth=[0, 0, 0], names=["a", "b", "c"], limits=[(-5, 5)] * 3)
    assert axes.shape == (3, 3) and not axes[0, 2].get_visible() and axes[2, 1].get_xlim() == (-5, 5)
    with pytest.raises(ValueError, match=r"shape \(n, D\)"):
        plots.corner(samples[:, 0])


def test_regions_on_an_uneven_grid_hold_their_mass():
    """Exp(1), whose 95% region ends at -log 0.05, and two of them, where it is x + y < 4.744 (a Gamma of shape 2)."""
    x = np.geomspace(1e-3, 12, 400)
    ax = plots.posterior_1d(x, np.exp(-x), levels=(0.95,))
    assert ax.collections[0].get_paths()[0].vertices[:, 0].max() == pytest.approx(-np.log(0.05), abs=0.08)
    y = np.linspace(0, 12, 300)
    ax = plots.posterior_2d(x, y, np.exp(-x[:, None] - y), levels=(0.95,))
    line = np.concatenate([path.vertices for path in ax.collections[1].get_paths()])
    np.testing.assert_allclose(line.sum(1), stats.gamma.ppf(0.95, 2), atol=0.08)
    down = plots.posterior_1d(x[::-1], np.exp(-x[::-1]), levels=(0.95,))
    assert down.collections[0].get_paths()[0].vertices[:, 0].max() == pytest.approx(-np.log(0.05), abs=0.08)


@pytest.mark.parametrize("n", [300, 4000, 40_000])
def test_samples_of_a_flat_posterior_have_no_contours_of_noise(n: int):
    """Each density is taken for a shape once in about 1,000 times; seeds are fixed."""
    rng = np.random.default_rng(n)
    axes = plots.corner(rng.uniform(-3, 3, (n, 3)))
    for i in range(3):
        (shade,) = axes[i, i].collections
        assert len(shade.get_paths()) == 1  # no slits
        x = shade.get_paths()[0].vertices[:, 0]
        assert x.min() < -2.9 and x.max() > 2.9
        for j in range(i):
            (mesh,) = axes[i, j].collections
            assert np.ptp(mesh.get_array()) == 0
    # What has a shape along one axis has contours, and so has a slope.
    normal = np.stack([rng.uniform(-3, 3, n), rng.normal(size=n), 3 * rng.beta(1, 2, n)], 1)
    axes = plots.corner(normal)
    assert all(len(axes[i, j].collections) > 1 for i in range(3) for j in range(i))


def test_flat_samples_are_told_from_shapes():
    from equipoise.plots.posteriors import _smoothed

    rng = np.random.default_rng(0)
    flat = [rng.uniform(size=(2, 1000)) for _ in range(200)]
    # More than 3 of 200 with a chance of 1 in 1,000 each: 7e-5.
    assert sum(not _smoothed(x)[2] for x, _ in flat) <= 3
    assert sum(not _smoothed(*pair)[2] for pair in flat) <= 3
    sloped = [rng.beta(1, 1.5, 1000) for _ in range(50)]
    assert not any(_smoothed(x)[2] for x in sloped)
    assert not any(_smoothed(x, rng.uniform(size=1000))[2] for x in sloped)


def test_regions_of_samples_are_those_of_their_density() -> None:
    """A Gaussian and a thin ring: the smoothed density's regions hold their share of new draws, in one piece."""
    from equipoise.plots.posteriors import _smoothed, hpd_thresholds

    def gauss(rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.normal(size=(n, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])

    def ring(rng: np.random.Generator, n: int) -> np.ndarray:
        angle, radius = rng.uniform(0, 2 * np.pi, n), rng.normal(1, 0.05, n)
        return np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)

    for draw in (gauss, ring):
        (x, y), density, flat = _smoothed(*draw(np.random.default_rng(0), 3000).T)
        assert not flat
        thresholds = hpd_thresholds(density, np.ones_like(density), (0.5, 0.95))
        new = draw(np.random.default_rng(1), 20_000)
        near = tuple(np.abs(axis - v[:, None]).argmin(1) for axis, v in zip((x, y), new.T, strict=True))
        held = [(density[near] >= t).mean() for t in thresholds]
        np.testing.assert_allclose(held, (0.5, 0.95), atol=0.07)
        assert label(density >= thresholds[1])[1] == 1
    assert density[60, 60] < 0.02 * density.max()  # the middle of the ring


def test_a_flat_grid_is_shaded_whole():
    x = np.linspace(0, 1, 50)
    ax = plots.posterior_1d(x, 1 + 1e-4 * np.sin(40 * x))
    assert all(len(c.get_paths()) == 1 for c in ax.collections)
    ax = plots.posterior_2d(x, x, 1 + 1e-4 * np.sin(np.add.outer(40 * x, 30 * x)))
    assert len(ax.collections) == 1


def test_importing_plots_does_not_import_torch():
    code = "import sys, equipoise.plots; sys.exit('torch' in sys.modules or 'dask' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_corners_leave_out_far_tails_and_never_the_truth():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(2000, 2))
    samples[:3, 0] = 1e4
    axes = plots.corner(samples, truth=[0.0, 9.0])
    low, high = axes[1, 0].get_xlim()
    assert low < -2.5 and 2.5 < high < 10
    low, high = axes[1, 0].get_ylim()
    assert low < -2.5 and high > 9
    with pytest.raises(ValueError, match="NaN"):
        plots.corner(np.full((50, 2), np.nan))


def test_predictive_bands_hold_their_share_of_the_draws():
    rng = np.random.default_rng(0)
    draws = rng.normal(np.arange(5), 1, size=(4000, 5))
    draws[0, 0] = np.nan  # a simulation that failed
    ax = plots.predictive(draws, np.arange(5))
    wide, narrow = (c.get_paths()[0].get_extents() for c in ax.collections)
    # Central intervals of N(0, 1) to N(4, 1); a quantile of 4,000 draws errs by less than 0.2.
    assert wide.y0 == pytest.approx(-1.96, abs=0.2) and wide.y1 == pytest.approx(5.96, abs=0.2)
    assert narrow.y0 == pytest.approx(-0.67, abs=0.1) and narrow.y1 == pytest.approx(4.67, abs=0.1)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), np.arange(5))
    series = plots.predictive(rng.normal(size=(50, 7, 2)), np.zeros((7, 2)), names=["hares", "lynxes"])
    assert len(series.lines) == 2 and "lynxes: observed" in series.get_legend_handles_labels()[1]
    times = [0.0, 0.5, 2.0, 4.0, 8.0]
    np.testing.assert_array_equal(plots.predictive(draws, np.arange(5), at=times).lines[0].get_xdata(), times)
    with pytest.raises(ValueError, match=r"at should have one place for each step of x, 5, got shape \(4,\)"):
        plots.predictive(draws, np.arange(5), at=times[:4])
    for given, x in ((draws, np.arange(4)), (draws[:, 0], np.zeros(())), (draws * np.nan, np.arange(5))):
        with pytest.raises(ValueError, match=r"draws have shape|NaN"):
            plots.predictive(given, x)


def test_a_table_names_the_axes_of_a_corner():
    pandas = pytest.importorskip("pandas")
    samples = np.random.default_rng(0).normal(size=(200, 2))
    axes = plots.corner(pandas.DataFrame(samples, columns=["beta", "gamma"]))
    assert axes[1, 0].get_xlabel() == "beta" and axes[1, 0].get_ylabel() == "gamma"
    axes = plots.corner(pandas.DataFrame(samples, columns=["beta", "gamma"]), names=["a", "b"])
    assert axes[1, 0].get_xlabel() == "a"


def test_a_legend_above_leaves_room_for_curves_and_titles(diagnosed: xr.Dataset):
    bent = diagnosed.copy()
    bent["verdict"] = diagnosed["verdict"].copy(data=["certified conservative"] * diagnosed.sizes["member"])
    for name, shift in (("coverage", 0.0), ("coverage_lower", -0.3), ("coverage_upper", 0.3)):
        bent[name] = (diagnosed[name] * 0 + LEVEL + shift).clip(0, 1)  # curves everywhere
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
    axes[2].set_title("a title")
    for ax in (*axes, *axes):  # twice, which makes six entries
        plots.coverage(bent, ["0", "1", "mixture"], ax=ax)
    figure.draw_without_rendering()
    for ax in axes:
        assert ax.get_position().width > 0.15 and ax.get_position().height > 0.4
    title, box = axes[2].title.get_window_extent(), axes[2].get_legend().get_window_extent()
    assert not title.overlaps(box)
