"""The page as a file: whole, self-contained, and equal to the results in every number of its tables."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr
from report_results import NATURE, synthetic_results

from equipoise.plots.settings import settings_of, signed
from equipoise.report import open_results, write_report

CELL = ("task", "method", "budget")


class Page(HTMLParser):
    """Ids, headings, addresses, the text, and the rows of the tables that have an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.addresses: list[str] = []
        self.unnamed_pictures = 0
        self.rows: dict[str, list[list[tuple[str, str]]]] = {}
        self.words: list[str] = []
        self._table = ""
        self._cell: list[str] | None = None
        self._value = ""
        self._silent = 0
        self.feed(text)
        self.text = re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        at = dict(attrs)
        self.ids += [at["id"]] if at.get("id") else []
        self.addresses += [v for k, v in attrs if k in ("href", "src", "xlink:href") and v]
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        self.unnamed_pictures += tag in ("svg", "img") and not (
            at.get("aria-label") or at.get("aria-hidden") or at.get("alt")
        )
        self._silent += tag in ("script", "style", "svg")
        if tag == "table":
            self._table = at.get("id") or ""
        if tag == "tr" and self._table:
            self.rows.setdefault(self._table, []).append([])
        if tag in ("td", "th") and self._table:
            self._cell, self._value = [], at.get("data-value") or ""

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("script", "style", "svg")
        if tag in ("td", "th") and self._cell is not None:
            self.rows[self._table][-1].append((self._value, " ".join("".join(self._cell).split())))
            self._cell = None
        if tag == "table":
            self._table = ""

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.words.append(data)
        if self._cell is not None:
            self._cell.append(data + " ")


@pytest.fixture(scope="module")
def results() -> xr.Dataset:
    absent = [("two_moons", "bnre", 4096, 1), *(("slcp", "npe", 1024, r) for r in range(3))]
    return synthetic_results(tasks=("slcp", "two_moons"), members=2, missing=absent, pairs=500, epochs=30)


@pytest.fixture(scope="module")
def text(results: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    results.to_netcdf(folder / "results.nc", engine="h5netcdf")
    out = write_report(folder, folder / "deep" / "report.html")
    assert out == folder / "deep" / "report.html"
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_page_is_one_small_file_that_asks_for_nothing(text: str, page: Page) -> None:
    assert len(text.encode()) < 1_000_000
    assert all(a.startswith(("#", "data:")) for a in page.addresses)
    assert not re.search(r"url\((?!#)|@import|https?://", text.replace("http://www.w3.org/2000/svg", ""))
    assert "default-src 'none'" in text
    assert not re.search(r"\{\{|\{%|Undefined|\bnan\b", text)


def test_page_is_well_formed_for_assistive_technology(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert page.unnamed_pictures == 0
    assert page.headings[0] == 1 and page.headings.count(1) == 1
    assert all(b - a <= 1 for a, b in zip(page.headings, page.headings[1:], strict=False))
    inner = [a[1:] for a in page.addresses if a.startswith("#")]
    assert set(inner) <= set(page.ids)


def test_table_of_verdicts_equals_the_results(results: xr.Dataset, page: Page) -> None:
    _, *rows = page.rows["verdict-table"]
    cells = [
        (t, m, b) for t in results["task"].values for m in results["method"].values for b in results["budget"].values
    ]
    assert len(rows) == len(cells)
    for row, place in zip(rows, cells, strict=True):
        one = results.sel(dict(zip(CELL, place, strict=True)))
        (_, task), (_, method), (budget, _), (_, verdict), auc, p, nominal, kept, g, covered, settle = row
        assert (task.lower().replace(" ", "_"), method.lower(), int(budget)) == place
        there = [w for w in one["verdict_holm"].values if w]
        if not there:
            assert verdict == "– not computed" and auc == ("", "–")
            continue
        for word in set(there):
            said = word if len(set(there)) == 1 else f"{there.count(word)} {word.removesuffix(' conservative')}"
            assert said in verdict
        assert "2 of 3 runs" in verdict or len(there) == 3
        named = ((auc, "coverage_auc", 3), (nominal, "nominal_log_prob", 2), (g, "balance_signed", 3))
        for (value, shown), name, digits in named:
            runs = one[name].values
            runs = runs[np.isfinite(runs)]
            assert float(value) == np.median(runs)
            assert signed(np.median(runs), digits) in shown
            low, high = signed(runs.min(), digits), signed(runs.max(), digits)
            assert f"[{low}, {high}]" in shown or low == high
        assert float(p[0]) == np.nanmedian(one["verdict_p_value"].values)
        assert float(kept[0]) == np.nanmedian(one["information_kept"].values)
        assert float(covered[0]) == np.nanmedian(one["levels_covered"].values)
        both = zip(one["verdict_holm"].values, one["verdict"].values, strict=True)
        taken_back = [w for h, w in both if h != w]  # settled alone, but not for all runs together
        assert (settle[1] == "–") == (there.count("inconclusive") == len(taken_back) or "inconclusive" not in there)
        assert ("before Holm" in verdict) == bool(taken_back)
        if settle[0]:
            assert re.fullmatch(r"about [\d,]+ more", settle[1])
            assert float(settle[1].split()[1].replace(",", "")) == pytest.approx(float(settle[0]), rel=0.05)
    assert any(row[-1][0] for row in rows) and "more would settle it if the curve stays as it is." in page.text


def test_pairs_to_settle_are_the_least_where_pairs_are_few(tmp_path) -> None:
    few = Page(write_report(synthetic_results(pairs=400, epochs=30), tmp_path / "r.html").read_text(encoding="utf-8"))
    shown = [settle for *_, (value, settle) in few.rows["verdict-table"][1:] if value]
    assert shown and all(re.fullmatch(r"at least about [\d,]+ more", s) for s in shown)
    assert "with fewer than 500 pairs" in few.text


def test_mixture_table_equals_the_results(results: xr.Dataset, page: Page) -> None:
    _, *rows = page.rows["mixture-table"]
    judged = [s for s in settings_of(open_results(results)) if s.runs]
    assert len(rows) == len(judged)
    for row, s in zip(rows, judged, strict=True):
        one = results.sel({"task": s.task, "method": s.method, "budget": s.budget})
        assert float(row[3][0]) == np.nanmedian(one["member_coverage_auc"].values)
        assert float(row[4][0]) == s.auc.median
        words = [w for w in one["member_verdict"].values.ravel() if w]
        assert row[7][1] == f"{words.count('overconfident')} of {len(words)}"


def test_configuration_versions_and_command_are_there(results: xr.Dataset, page: Page) -> None:
    for word in (
        "equipoise run --grid grids/demo.toml --out demo",
        "2.13.0",
        "3:03 min",
        "31 January 2025, 12:00 UTC",
        "500 pairs",
        "a mixture of 2 networks",
        '"protocol": "paper"',
        "Four runs of 48 are not here",
    ):
        assert word in page.text, word


def test_table_of_coverage_equals_the_results(results: xr.Dataset, page: Page) -> None:
    head, *rows = page.rows["coverage-table"]
    judged = [s for s in settings_of(open_results(results)) if s.runs]
    assert [name for _, name in head][4:] == [f"at level {u}" for u in (0.5, 0.8, 0.9, 0.95, 0.99)]
    assert len(rows) == len(judged)
    for row, s in zip(rows, judged, strict=True):
        one = results["coverage"].sel({"task": s.task, "method": s.method, "budget": s.budget})
        for (value, shown), level in zip(row[4:], (0.5, 0.8, 0.9, 0.95, 0.99), strict=True):
            runs = one.sel(level=level, method="nearest").dropna("run").values
            assert float(value) == np.median(runs)
            assert f"[{runs.min():.3f}, {runs.max():.3f}]" in shown or runs.min() == runs.max()


def test_one_run_shows_its_band(tmp_path) -> None:
    ds = synthetic_results(methods=("npe",), budgets=(1024,), runs=1, pairs=200, epochs=10)
    page = Page(write_report(ds, tmp_path / "r.html").read_text(encoding="utf-8"))
    low, high = (float(ds[f"coverage_{end}"].sel(level=0.9, method="nearest").squeeze()) for end in ("lower", "upper"))
    assert f"[{low:.3f}, {high:.3f}]" in page.rows["coverage-table"][1][6][1]


def test_a_large_grid_stays_small(monkeypatch: pytest.MonkeyPatch, results: xr.Dataset, tmp_path) -> None:
    """Of many panels the page shows coverage by method; the tables have everything."""
    monkeypatch.setattr("equipoise.report.page_figures.MOST_PANELS", 10)
    monkeypatch.setattr("equipoise.report.page_figures.MOST_POINTS", 500)
    text = write_report(results, tmp_path / "r.html").read_text(encoding="utf-8")
    assert 'class="panel view-method' in text and 'class="panel view-budget' not in text
    assert "equipoise figures" in text and len(Page(text).rows["verdict-table"]) == 17


def test_what_people_type_cannot_break_out(results: xr.Dataset, tmp_path) -> None:
    """Names, commands and configurations are text, wherever they come from."""
    evil = "</script><script>alert(1)</script>"
    ds = results.isel(task=[0], method=[1], run=[0]).assign_coords(method=[evil])
    ds.attrs |= {"command": evil, "config": json.dumps({"x": evil}), "notes": evil}
    text = write_report(ds, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "alert(1)" in text and "<script>alert" not in text


@pytest.mark.parametrize(
    "grid",
    [
        {"methods": ("npe",), "budgets": (1024,), "runs": 1, "gallery": False},
        {"tasks": ("spatial_sir",), "methods": ("npe", "bnre"), "runs": 1},
        {"methods": ("brnpe", "brnpe_init"), "runs": 2, "protocol": "released"},
    ],
)
def test_small_grids_have_no_empty_sections(grid, tmp_path) -> None:
    ds = synthetic_results(**grid, pairs=200, epochs=10)
    text = write_report(ds, tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "mixture" not in page.ids
    assert ("posteriors" in page.ids) == ("gallery_density" in ds and bool(np.isfinite(ds["gallery_density"]).any()))
    assert ("Information kept" in [c[1] for c in page.rows["verdict-table"][0]]) == (
        grid.get("tasks") != ("spatial_sir",)
    )
    if grid.get("protocol") == "released":
        assert "BRNPE Init (paper: BNPE Init)" in page.text


def test_bare_results_still_make_a_page(results: xr.Dataset, tmp_path) -> None:
    bare = results[["coverage", "coverage_auc", "verdict"]]
    bare.attrs = {}
    page = Page(write_report(bare, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "not corrected for their number" in page.text
    assert {"verdicts", "coverage", "table"} <= set(page.ids) and "information" not in page.ids


def test_versions_of_a_method_have_ids_of_their_own(tmp_path) -> None:
    ds = synthetic_results(methods=tuple(NATURE)[:2], runs=1, pairs=200, epochs=10)
    ds = ds.assign_coords(method=["bnre[strength=1]", "bnre[strength=10]"])
    page = Page(write_report(ds, tmp_path / "report.html").read_text(encoding="utf-8"))
    assert len(page.ids) == len(set(page.ids)) and all(re.fullmatch(r"[\w-]+", i) for i in page.ids)
    assert "BNRE (strength 10)" in page.text


def test_settings_are_counted_among_those_that_were_computed(tmp_path) -> None:
    gone = [("slcp", "bnre", 4096, run) for run in range(2)]
    ds = synthetic_results(methods=("npe", "bnre"), runs=2, pairs=100, missing=gone)
    text = write_report(ds, tmp_path / "report.html").read_text(encoding="utf-8")
    counts = re.findall(r"(\d+) of (\d+) settings</p>", text)
    assert counts and {n for _, n in counts} == {"3"} and sum(int(k) for k, _ in counts) == 3
