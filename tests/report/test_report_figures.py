"""Figures: all that the results allow, in two formats, readable, with the right numbers in them."""

from __future__ import annotations

import io
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from report_results import EXACT, NATURE, PRIOR, synthetic_results

from equipoise.plots import panels, posterior_gallery
from equipoise.plots.gallery import TILE
from equipoise.plots.labels import METHODS, labels_of
from equipoise.plots.style import PRINT, budget_looks, method_looks
from equipoise.report import open_results, write_figures
from equipoise.report.print_figures import figures

KINDS = {"verdicts", "coverage", "plane", "nominal_log_prob", "balancing_error", "members", "training"}
KINDS |= {"gallery_slcp", "gallery_two_moons"}


@pytest.fixture(scope="module")
def results():
    return synthetic_results(tasks=("slcp", "two_moons"), methods=("npe", "bnre"), members=2, runs=2, pairs=200)


def test_every_figure_is_written_as_png_and_vector_pdf(results, tmp_path) -> None:
    results.to_netcdf(tmp_path / "results.nc", engine="h5netcdf")
    written = write_figures(tmp_path, tmp_path / "figures")
    assert {p.stem for p in written} == KINDS
    assert sorted(p.name for p in (tmp_path / "figures").iterdir()) == sorted(p.name for p in written)
    for path in written:
        if path.suffix == ".png":
            picture = np.asarray(Image.open(path).convert("L"), float)
            assert picture.shape[1] > 600 and picture.std() > 5, path.name  # print width at 300 dots, not blank
        else:
            content = path.read_bytes()
            assert content.startswith(b"%PDF") and b"/Font" in content and b"/FontFile2" in content, path.name
            if not path.stem.startswith("gallery"):  # densities are pictures; everything else is lines and type
                assert b"/Subtype /Image" not in content, path.name


def test_many_methods_have_one_row_per_family_and_stay_inside_their_panels() -> None:
    assert len(NATURE) == 10
    many = synthetic_results(("slcp", "two_moons"), tuple(NATURE), (1024, 8192), runs=2, pairs=200)
    for ds, rows in ((many.isel(method=slice(5)), 1), (many, 4)):
        drawn = dict(figures(ds))
        for name in ("plane", "nominal_log_prob", "balancing_error"):
            axes = drawn[name].axes
            assert len(axes) == 2 * rows, name
            for ax in axes:
                (_, low), (_, high) = ax.dataLim.get_points()
                bottom, top = ax.get_ylim()
                assert top >= high - 1e-9, name
                assert bottom <= low + 1e-9 or ax.get_yscale() == "log", name  # single runs may be 0 by chance
                front = [line for line in ax.lines if line.get_color() != panels.BEHIND["color"]]
                assert rows == 1 or len(ax.lines) > len(front) > 0, name


def test_type_is_legible_in_print_and_figures_fit_a_page(results) -> None:
    grid = synthetic_results(("slcp", "two_moons"), tuple(NATURE), (1024, 8192), runs=2, pairs=200, epochs=20)
    with mpl.rc_context(PRINT):
        for ds in (results, grid):
            for name, figure in figures(ds):
                sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
                assert min(sizes) >= 7, name
                assert figure.get_figwidth() <= 7 and figure.get_figheight() <= 9.7, name


def test_coverage_panel_draws_median_and_range(results) -> None:
    ax = Figure().subplots()
    panels.coverage_panel(results, "slcp", method="npe", ax=ax)
    curves = {to_hex(line.get_color()): line.get_ydata() for line in ax.lines[1:]}
    for budget, look in budget_looks([1024, 4096]).items():
        runs = results["coverage"].sel({"task": "slcp", "method": "npe", "budget": budget}).values
        np.testing.assert_allclose(curves[look.colour], np.median(runs, 0))


def test_one_run_has_its_own_band() -> None:
    ds = synthetic_results(methods=("npe",), budgets=(1024,), runs=1, gallery=False, pairs=200)
    cell = ds.sel({"task": "slcp", "method": "npe", "budget": 1024})
    stored = ("coverage", "coverage_lower", "coverage_upper")
    low, middle, high = panels.coverage_over_runs({name: cell[name].values for name in stored})
    np.testing.assert_array_equal(low, ds["coverage_lower"].values.ravel())
    np.testing.assert_array_equal(middle, ds["coverage"].values.ravel())
    np.testing.assert_array_equal(high, ds["coverage_upper"].values.ravel())


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def test_prior_and_exact_posterior_are_named_in_the_plane() -> None:
    tasks = ("slcp", "two_moons", "spatial_sir")  # of the last no exact posterior is known
    many = synthetic_results(tasks=tasks, methods=tuple(NATURE), runs=2, pairs=200, gallery=False)
    for ds in (many.sel({"method": ["npe", "bnre"]}), many):
        axes = dict(figures(ds))["plane"].axes
        for i, ax in enumerate(axes):
            places = {"prior": 0.0, "exact": 1.0} if i % 3 < 2 else {"prior": PRIOR["spatial_sir"]}
            marks = [line for line in ax.lines if line.get_marker() == "+"]
            assert [line.get_xdata()[0] for line in marks] == list(places.values())
            low, high = ax.get_xlim()
            assert low < min(places.values()) and high > max(places.values())
            named = {t.get_text(): t.xy[0] for t in ax.texts if t.get_text() in ("prior", "exact")}
            assert named == (places if i < 3 else {})  # in the first row only


def test_a_cross_that_is_far_from_every_point_stays_out() -> None:
    ds = synthetic_results(methods=("npe", "bnre"), runs=2, pairs=200, gallery=False)
    span = EXACT["slcp"] - PRIOR["slcp"]
    for shift, named in ((-0.02, ["prior"]), (0.9, ["exact"])):
        ds["information_kept"] = shift + 0.05 * ds["information_kept"]
        ds["nominal_log_prob"] = PRIOR["slcp"] + span * ds["information_kept"]
        drawn = dict(figures(ds))
        (plane,), (nominal,) = drawn["plane"].axes, drawn["nominal_log_prob"].axes
        assert [t for t in texts(plane) if t in ("prior", "exact")] == named
        assert ("prior" in texts(nominal)) == (named == ["prior"]) and "exact" in texts(nominal)


def test_nominal_log_posterior_stands_between_prior_and_exact(results) -> None:
    for ax, task in zip(dict(figures(results))["nominal_log_prob"].axes, ("slcp", "two_moons"), strict=True):
        bottom, top = ax.get_ylim()
        level = {t.get_text(): t.xy[1] for t in ax.texts}
        assert level == {"exact": EXACT[task], "prior": PRIOR[task]}
        heights = [line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1]
        assert set(level.values()) <= set(heights)
        assert bottom < PRIOR[task] - 0.05 * (top - bottom) and top > EXACT[task] + 0.05 * (top - bottom)
    without = results.drop_vars("prior_log_prob")
    assert all("prior" not in texts(ax) for ax in dict(figures(without))["nominal_log_prob"].axes)


def test_the_best_epoch_is_an_epoch(results) -> None:
    """Also in results of an earlier version, which kept the mean over networks."""
    ds = results.copy()
    ds["best_epoch"] = ds["best_epoch"] + 1 / 3
    ax, short = Figure().subplots(2)
    panels.history_panel(ds, "slcp", "npe", ax=ax)
    dots = np.concatenate([c.get_offsets() for c in ax.collections])
    assert len(dots) == 2 and (dots[:, 0] == np.rint(dots[:, 0])).all()
    panels.history_panel(ds.isel(epoch=[0, 1]), "slcp", "npe", ax=short)
    assert all(tick == int(tick) for tick in short.get_xticks())


def names(ticks) -> list[str]:
    return [t.get_text() for t in ticks]


def test_gallery_names_budgets_and_shows_the_exact_posterior_once(results) -> None:
    drawn = dict(figures(results))
    whole, cut = ("−3 to 3", "−3 to 3"), ("−0.75 to 0.125", "−0.125 to 0.75")  # around a narrow exact posterior
    for task, (across, up) in (("slcp", whole), ("two_moons", cut)):
        ax, bar = drawn[f"gallery_{task}"].axes
        assert names(bar.get_yticklabels()) == ["≤ 0.1", "1", "10", "≥ 100"]  # of all densities
        assert names(ax.get_xticklabels()) == ["1,024", "4,096", "exact"]
        assert names(ax.get_yticklabels()) == ["NPE", "BNRE"]
        assert len(ax.patches) == 2 * 2 + 1  # a frame for each density
        assert names(drawn[f"gallery_{task}"].legends[0].get_texts()) == ["true θ", "95% region"]
        assert ax.texts[-1].get_text() == f"across: θ₁, from {across}\nup: θ₂, from {up}"
    ds = results.copy()
    ds["gallery_density"] = ds["gallery_density"].where(ds["budget"] != 4096)
    assert names(posterior_gallery(ds, "slcp", figure=Figure()).get_xticklabels()) == ["1,024", "exact"]
    ds["gallery_density"] = ds["gallery_density"].where(ds["method"] != "npe")
    assert "not\ncomputed" in texts(posterior_gallery(ds, "slcp", figure=Figure()))


def one_density(results, density):
    """The gallery of one density with shape (20, 20), from -3 to 3."""
    ds = results.isel(task=[0], method=[0], budget=[0]).drop_vars(["gallery_density", "gallery_exact"])
    ds["gallery_density"] = (("task", "method", "budget", "grid_0", "grid_1"), density[None, None, None])
    ds["gallery_theta"] = ds["gallery_theta"].copy(data=[[2.0, -2.0]])
    return posterior_gallery(ds, "slcp", figure=Figure())


def test_a_flat_density_has_no_line_around_it(results) -> None:
    bumps = np.sin(np.linspace(0, 9, 20))
    for height, lines in ((0.05, 0), (5.0, 1)):
        assert len(one_density(results, np.exp(height * np.outer(bumps, bumps))).collections) == lines


def test_gallery_density_is_upright(results) -> None:
    """A mass at (high θ₁, low θ₂) is drawn at the right and at the bottom, and so are its contour and the truth."""
    density = np.zeros((20, 20))
    density[15:19, 1:5] = 1
    density[16:18, 2:4] = 5
    ax = one_density(results, density)
    corner = np.array([0.7, 0.7]) * TILE  # y goes downwards
    assert (ax.lines[0].get_xydata()[0] > corner).all()
    (contour,) = (path.vertices for c in ax.collections for path in c.get_paths())
    assert (contour.min(0) > corner - 0.05).all()
    picture = np.asarray(ax.images[0].get_array())
    rows, columns = np.nonzero(picture > 0.1)
    assert min(rows) > 0.7 * picture.shape[0] * TILE - 1 and min(columns) > 0.7 * picture.shape[1] * TILE - 1
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_missing_cells_missing_variables_and_one_of_everything() -> None:
    absent = [("slcp", "npe", 1024, r) for r in range(2)] + [
        ("spatial_sir", "bnre", b, r) for b in (1024, 4096) for r in range(2)
    ]
    holes = synthetic_results(tasks=("slcp", "spatial_sir"), methods=("npe", "bnre"), runs=2, missing=absent, pairs=200)
    one = synthetic_results(methods=("npe",), budgets=(1024,), runs=1, gallery=False, pairs=200)
    bare = one[["coverage", "coverage_auc", "verdict"]]
    for name, ds, kinds in (
        ("holes", holes, KINDS - {"members", "gallery_two_moons"}),
        ("one", one, KINDS - {"members", "gallery_slcp", "gallery_two_moons"}),
        ("bare", bare, {"verdicts", "coverage"}),
    ):
        drawn = set()
        with mpl.rc_context(PRINT):
            for kind, figure in figures(open_results(ds)):
                figure.savefig(io.BytesIO(), format="png", dpi=40)
                drawn.add(kind)
        assert drawn == kinds, name


def test_methods_are_told_apart_without_colour() -> None:
    """Within one hue, line and marker differ; versions of a method differ in shade and marker."""
    names = [*NATURE, "bnre[strength=1]", "bnre[strength=10]", "mine", "yours"]
    looks = method_looks(labels_of(xr.Dataset(coords={"method": names})).methods)
    seen = {(look.colour, str(look.line), look.marker, look.filled) for look in looks.values()}
    assert len(seen) == len(looks)
    by_hue: dict[str, set[tuple[str, str]]] = {}
    for name in NATURE:
        mark = (str(looks[name].line), looks[name].marker)
        assert mark not in by_hue.setdefault(looks[name].colour, set())
        by_hue[looks[name].colour].add(mark)


def test_a_look_follows_from_what_the_results_say_of_a_method() -> None:
    stored = {
        "method_label": ["Banana", "Apple", "Apple"],
        "method_network": ["flow", "classifier", "classifier"],
        "method_loss": ["npe", "nre", "nre"],
        "method_balance": ["none", "chi2", "chi2"],
        "method_start": ["random"] * 3,
    }
    ds = xr.Dataset({n: ("method", v) for n, v in stored.items()}, {"method": ["banana", "a[strength=1]", "a"]})
    rows = labels_of(ds).methods
    assert [row.label for row in rows.values()] == ["Banana", "Apple (strength 1)", "Apple"]
    looks, paper = list(method_looks(rows).values()), method_looks(METHODS)
    assert looks[0] == paper["npe"] and looks[1] == paper["bnre"]  # not balanced, although it starts with b
    assert looks[2].marker != looks[1].marker


def test_the_table_of_methods_is_that_of_the_package() -> None:
    from equipoise.methods import METHODS as TABLE
    from equipoise.methods import MIXTURES

    every = TABLE | {name: rows[0] for name, rows in MIXTURES.items()}
    ours = {n: (m.network, m.loss, m.balance, m.start) for n, m in every.items()}
    assert {n: tuple(row[1:]) for n, row in METHODS.items()} == ours


def test_report_needs_neither_torch_nor_dask() -> None:
    code = "import sys, equipoise.report; sys.exit(any(m in sys.modules for m in ('torch', 'dask', 'distributed')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_narrow_panel_names_fewer_budgets_and_keeps_every_tick() -> None:
    budgets = tuple(2**k for k in range(10, 18))
    ds = synthetic_results(tasks=("slcp",), methods=("nre",), budgets=budgets, runs=2, pairs=50)
    named = {}
    for width in (1.6, 6.0):
        ax = Figure(figsize=(width, 2)).subplots()
        panels.line_panel(ds, "slcp", "balancing_error", ax=ax)
        assert len(ax.get_xticks()) == len(budgets)
        named[width] = [t for t in ax.xaxis.get_major_formatter().seq if t]
    assert len(named[6.0]) == len(budgets)
    assert 2 <= len(named[1.6]) <= 5
    assert named[1.6][0] == named[6.0][0]
