"""The page in a browser: headless Chromium, through Playwright. Skipped, with the reason, where there is none."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from report_results import synthetic_results

from equipoise.report import write_report

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no browser test: Playwright is not installed")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser test: none of {', '.join(NAMES)} is on the PATH (CHROMIUM=… names another)")
    with playwright.sync_playwright() as p:
        try:
            found = p.chromium.launch(executable_path=path, args=FLAGS)
        except playwright.Error as error:
            pytest.skip(f"no browser test: {path} does not start: {str(error).splitlines()[0]}")
        yield found
        found.close()


@pytest.fixture(scope="module")
def results() -> xr.Dataset:
    absent = [("two_moons", "bnre", 4096, 1), *(("slcp", "npe", 1024, r) for r in range(3))]
    methods = ("npe", "bnre", "bnpe_init")
    return synthetic_results(tasks=("slcp", "two_moons"), methods=methods, members=2, missing=absent, epochs=20)


@pytest.fixture(scope="module")
def report(results: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(results, tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def open_page(browser: Any, report: Path) -> Iterator[Any]:
    """Opens the page as asked; at the end nothing may have been complained of, or asked of a network."""
    contexts, trouble = [], []

    def opened(width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:")) else trouble.append(request.url),
        )
        page.goto(report.as_uri())
        page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not trouble


def point_at(page: Any, title: str, task: str, level: float) -> dict[str, tuple[float, float, float]]:
    """Point at a level of a panel, and read what appears: coverage, low and high of each curve, by its key."""
    svg = page.get_by_role("slider", name=re.compile(f"^{title}, {task}:"))
    hover(page, svg, (38 + level * 252) / 300, f"level {level:.3f}")
    return read(page)


def hover(page: Any, svg: Any, along: float, text: str) -> None:
    """Move the pointer over a panel until the readout says `text`.

    The page has no say in when the browser delivers a pointer's move: one that falls between a scroll and the next
    frame goes to what was there before. A person moves again, and so does this, from the panel's new place.
    """
    level = page.locator("#readout .level")
    for _ in range(40):
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        x, y = box["x"] + box["width"] * along, box["y"] + box["height"] / 2
        page.mouse.move(x, y - 1)
        page.mouse.move(x, y)
        if level.is_visible() and level.inner_text() == text:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"pointed at {text!r}, the page shows {level.all_inner_texts()}")


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-").replace("+", ""))


def read(page: Any) -> dict[str, tuple[float, float, float]]:
    found = {}
    for row in page.locator("#readout tbody tr").all():
        low, high = row.locator(".interval").inner_text().split(" to ")
        found[row.get_attribute("data-curve")] = (number(row.locator(".value").inner_text()), number(low), number(high))
    return found


def in_results(results: xr.Dataset, key: str, level: float, run: int | None = None) -> tuple[float, float, float]:
    task, method, budget = key.split("/")
    one = results.sel({"task": task, "method": method, "budget": int(budget)})
    one = one.isel(level=int(np.abs(one["level"].values - level).argmin()))
    if run is not None:
        one = one.isel(run=run)
        return float(one["coverage"]), float(one["coverage_lower"]), float(one["coverage_upper"])
    runs = one["coverage"].values[np.isfinite(one["coverage"].values)]
    return float(np.median(runs)), float(runs.min()), float(runs.max())


def agree(shown: dict[str, Any], results: xr.Dataset, level: float, run: int | None = None, shift: float = 0) -> None:
    """What is shown has three digits; the page holds numbers to within 1 / 120,000."""
    for key, values in shown.items():
        expected = np.array(in_results(results, key, level, run)) - shift
        np.testing.assert_allclose(values, expected, atol=5.1e-4, err_msg=key)


def test_hover_shows_the_numbers_of_the_results(open_page, results) -> None:
    page = open_page()
    for title, task, level in (("BNRE", "SLCP", 0.95), ("NPE", "Two Moons", 0.5), ("BNPE Init", "SLCP", 0.07)):
        shown = point_at(page, title, task, level)
        assert len(shown) == 2
        agree(shown, results, level)
    assert list(point_at(page, "NPE", "SLCP", 0.9)) == ["slcp/npe/4096"]  # the other cell was never computed
    page.mouse.move(2, 2)
    page.locator("#readout").wait_for(state="hidden")


def test_one_run_with_its_band_and_the_difference_view(open_page, results) -> None:
    page = open_page()
    page.select_option("select[name=run]", "1")
    shown = point_at(page, "BNRE", "SLCP", 0.8)
    agree(shown, results, 0.8, run=1)
    assert "95% band" in page.locator("#readout thead").inner_text()
    assert list(point_at(page, "BNRE", "Two Moons", 0.8)) == ["two_moons/bnre/1024"]  # run 1 at 4,096 is missing
    page.select_option("select[name=run]", "all")
    page.check("input[name=view][value=difference]")
    agree(point_at(page, "NPE", "Two Moons", 0.6), results, 0.6, shift=0.6)
    page.check("input[name=by][value=budget]")
    shown = point_at(page, "4,096 simulations", "SLCP", 0.3)
    assert set(shown) == {f"slcp/{m}/4096" for m in ("npe", "bnre", "bnpe_init")}
    agree(shown, results, 0.3, shift=0.3)


def test_toggles(open_page) -> None:
    page = open_page()
    panels, curves = page.locator(".panel"), page.locator(".panel .curve")
    assert (panels.count(), curves.count()) == (6, 11)
    page.get_by_role("checkbox", name="NPE", exact=True).uncheck()
    assert (panels.count(), curves.count()) == (4, 8)
    page.get_by_role("checkbox", name="1,024").uncheck()
    assert (panels.count(), curves.count()) == (4, 4)
    page.get_by_role("checkbox", name="Two Moons").uncheck()
    assert (panels.count(), curves.count()) == (2, 2)
    assert page.locator(".band").count() == 2
    page.get_by_role("checkbox", name="bands").uncheck()
    assert page.locator(".band").count() == 0
    page.locator("button[data-all=method]").click()
    assert panels.count() == 3
    page.locator("button[data-all=method]").click()
    assert panels.count() == 0
    assert "Nothing is selected" in page.locator("#panels").inner_text()


def test_keyboard(open_page, results) -> None:
    page = open_page()
    page.locator("select[name=run]").focus()
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.get_attribute("role") == "slider"
    assert focused.get_attribute("aria-label").startswith("NPE, SLCP: coverage")
    page.keyboard.press("Tab")
    for key, level in (
        ("Home", 0.0),
        ("ArrowRight", 0.01),
        ("Shift+ArrowRight", 0.11),
        ("End", 1.0),
        ("ArrowLeft", 0.99),
    ):
        page.keyboard.press(key)
        assert float(page.locator(":focus").get_attribute("aria-valuenow")) == pytest.approx(level)
    agree(read(page), results, 0.99)
    spoken = page.locator(":focus").get_attribute("aria-valuetext")
    middle, low, high = in_results(results, "slcp/bnre/4096", 0.99)
    assert f"4,096: coverage {middle:.3f}, from {low:.3f} to {high:.3f}" in spoken
    page.keyboard.press("Escape")
    page.locator("#readout").wait_for(state="hidden")


def test_tables_sort_and_filter(open_page, results) -> None:
    page = open_page()
    table = page.locator("#verdict-table")
    head = table.get_by_role("button", name="Coverage AUC")

    def column() -> list[float]:
        values = [row.locator("td").nth(3).get_attribute("data-value") for row in table.locator("tbody tr").all()]
        assert values[-1] == ""  # what was not computed stays last, either way
        return [float(v) for v in values[:-1]]

    head.press("Enter")
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("Coverage")
    up = column()
    assert up == sorted(up) and len(up) == 11
    head.click()
    assert column() == sorted(up, reverse=True)
    np.testing.assert_allclose(up[0], results["coverage_auc"].median("run").min())
    page.locator("#filter").fill("two moons bnre")
    left = [row.get_attribute("data-setting") for row in table.locator("tbody tr:visible").all()]
    assert sorted(left) == ["two_moons/bnre/1024", "two_moons/bnre/4096"]
    assert page.locator("#filtered").inner_text() == "2 of 12 rows"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_contrast(open_page, scheme) -> None:
    """Text has a contrast of 4.5 and curves of 2 at least against what is behind them."""
    page = open_page(color_scheme=scheme)

    def luminance(colour: str) -> float:
        rgb = np.array([float(v) for v in re.findall(r"[\d.]+", colour)[:3]]) / 255
        return float(np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])

    def contrast(a: str, b: str) -> float:
        x, y = sorted((luminance(a), luminance(b)))
        return (y + 0.05) / (x + 0.05)

    def style(selector: str, name: str) -> str:
        return str(page.locator(selector).first.evaluate(f"node => getComputedStyle(node)['{name}']"))

    paper = style("body", "backgroundColor")
    assert (luminance(paper) < 0.05) == (scheme == "dark")
    for selector in ("body", ".lead", ".note", "nav a", "figcaption", ".tick"):
        assert contrast(style(selector, "fill" if selector == ".tick" else "color"), paper) >= 4.5, selector
    for selector in ("td.over", "td.safe"):
        assert contrast(style(selector, "color"), style(selector, "backgroundColor")) >= 4.5, selector
    for curve in page.locator(".panel .curve").all()[:4]:
        assert contrast(curve.evaluate("node => getComputedStyle(node).stroke"), paper) >= 2
    ink = page.locator("#information svg[role=img] text").first.evaluate("node => getComputedStyle(node).fill")
    assert contrast(ink, paper) >= 4.5  # figures follow the theme


def test_print(open_page) -> None:
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden() and page.locator("select[name=run]").is_hidden()
    assert page.locator(".panel").first.is_visible()
    assert page.locator("#choices label", has_text="BNRE").is_visible()  # the legend of what is drawn
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12


def test_phone(open_page) -> None:
    page = open_page(width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    hover(page, page.locator(".panel svg").first, (38 + 0.5 * 252) / 300, "level 0.500")
    shown = page.locator("#readout").bounding_box()
    assert shown["x"] >= 0 and shown["x"] + shown["width"] <= 375


def test_without_scripts_tables_remain(browser, report) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.get_by_text("scripts are switched off").is_visible()
    assert page.locator("#choices").is_hidden() and page.locator("#verdict-table tbody tr").count() == 12
    context.close()
