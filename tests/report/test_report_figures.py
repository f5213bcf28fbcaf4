"""Figures: all that the results allow, in two formats, readable, with the right numbers in them."""

from __future__ import annotations

import io
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from report_results import NATURE, synthetic_results

from equipoise.report import open_results, panels, write_figures
from equipoise.report.figures import figures
from equipoise.report.style import PRINT, budget_looks, method_looks

KINDS = {
    "verdicts",
    "coverage",
    "plane",
    "nominal_log_prob",
    "balancing_error",
    "members",
    "training",
    "gallery_slcp",
    "gallery_two_moons",
}


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


def test_many_methods_have_a_row_a_family_and_stay_inside_their_panels() -> None:
    few = synthetic_results(
        tasks=("slcp", "two_moons"), methods=tuple(NATURE)[:5], budgets=(1024, 8192), runs=2, pairs=200
    )
    many = synthetic_results(
        tasks=("slcp", "two_moons"), methods=tuple(NATURE), budgets=(1024, 8192), runs=2, pairs=200
    )
    assert len(NATURE) == 10
    for ds, rows in ((few, 1), (many, 4)):
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
    grid = synthetic_results(
        tasks=("slcp", "two_moons"),
        methods=tuple(NATURE),
        budgets=(1024, 8192),
        runs=2,
        pairs=200,
        epochs=20,
    )
    with mpl.rc_context(PRINT):
        for ds in (results, grid):
            for name, figure in figures(ds):
                sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
                assert min(sizes) >= 7, name
                assert figure.get_figwidth() <= 7 and figure.get_figheight() <= 9.7, name


def test_coverage_panel_draws_median_and_range(results) -> None:
    ax = panels.coverage_panel(Figure().subplots(), results, "slcp", "npe")
    curves = {to_hex(line.get_color()): line.get_ydata() for line in ax.lines[1:]}
    for budget, look in budget_looks([1024, 4096]).items():
        runs = results["coverage"].sel({"task": "slcp", "method": "npe", "budget": budget}).values
        np.testing.assert_allclose(curves[look.colour], np.median(runs, 0))
    low, high = (
        ax.collections[0].get_paths()[0].vertices[:, 1].min(),
        ax.collections[0].get_paths()[0].vertices[:, 1].max(),
    )
    assert 0 <= low <= high <= 1


def test_one_run_has_its_own_band() -> None:
    ds = synthetic_results(methods=("npe",), budgets=(1024,), runs=1, gallery=False, pairs=200)
    low, middle, high = panels.coverage_over_runs(ds.sel({"task": "slcp", "method": "npe", "budget": 1024}))
    np.testing.assert_array_equal(low, ds["coverage_lower"].values.ravel())
    np.testing.assert_array_equal(middle, ds["coverage"].values.ravel())
    np.testing.assert_array_equal(high, ds["coverage_upper"].values.ravel())


def test_gallery_density_is_upright() -> None:
    """A mass at (high θ₁, low θ₂) is drawn at the right and at the bottom."""
    density = np.zeros((20, 20))
    density[16:19, 1:4] = 1
    figure = Figure(figsize=(2, 2), dpi=100)
    ax = figure.add_axes((0, 0, 1, 1))
    panels.gallery_panel(ax, density, (-3, -3), (3, 3), (-2, 2))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    blue = np.asarray(Image.open(buffer).convert("RGB")).astype(float)
    ink = blue[..., 2] - blue[..., 0]
    rows, columns = np.nonzero(ink > 60)
    assert columns.mean() > 150 and rows.mean() > 150


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
    looks = method_looks([*NATURE, "bnre[strength=1]", "bnre[strength=10]", "mine", "yours"])
    seen = {(look.colour, str(look.line), look.marker, look.filled) for look in looks.values()}
    assert len(seen) == len(looks)
    by_hue: dict[str, set[tuple[str, str]]] = {}
    for name in NATURE:
        mark = (str(looks[name].line), looks[name].marker)
        assert mark not in by_hue.setdefault(looks[name].colour, set())
        by_hue[looks[name].colour].add(mark)


def test_report_needs_neither_torch_nor_dask() -> None:
    code = "import sys, equipoise.report; sys.exit(any(m in sys.modules for m in ('torch', 'dask', 'distributed')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
