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

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
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
    grid = {"tasks": ("slcp", "two_moons"), "methods": methods, "members": 2, "pairs": 3000}  # some are certified
    return synthetic_results(**grid, missing=absent, epochs=20)


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


def shown(page: Any, what: str) -> int:
    return int(page.locator(what).locator("visible=true").count())


def test_choices_show_and_hide_panels_curves_and_verdicts(open_page) -> None:
    page = open_page()
    panels, curves, marks = ".panel", ".panel [id*='-curve-']", ".marks li"
    # Two tasks × three methods, and two budgets of each; one setting was never computed.
    assert (shown(page, panels), shown(page, curves), shown(page, marks)) == (6, 11, 12)
    page.get_by_role("checkbox", name="NPE", exact=True).uncheck()
    assert (shown(page, panels), shown(page, curves), shown(page, marks)) == (4, 8, 8)
    page.get_by_role("checkbox", name="1,024").uncheck()
    assert (shown(page, panels), shown(page, curves), shown(page, marks)) == (4, 4, 4)
    page.get_by_role("checkbox", name="Two Moons").uncheck()
    assert (shown(page, panels), shown(page, curves), shown(page, marks)) == (2, 2, 2)
    page.get_by_role("radio", name="one panel per budget").check()
    assert (shown(page, panels), shown(page, curves), shown(page, marks)) == (1, 2, 2)
    page.get_by_role("radio", name="level, one panel per method").check()
    assert shown(page, panels) == 2
    page.locator("button[data-all=method]").click()
    assert shown(page, panels) == 3
    page.locator("button[data-all=method]").click()
    assert shown(page, panels) == 0
    assert page.get_by_role("checkbox", name="NPE", exact=True).is_visible()


def test_curves_are_those_of_the_results(open_page, results) -> None:
    """The path of a curve, in the coordinates of its panel, gives the median over runs."""
    page = open_page()
    task, method, budget = "two_moons", "bnre", 1024
    path = page.locator("[id='method-1-1-curve-budget-0'] path").get_attribute("d")
    assert re.fullmatch(r"M[^A-Za-z]+l[^A-Za-z]+", path)  # one point, and steps from point to point
    x, y = np.array([float(v) for v in re.findall(r"-?[\d.]+", path)]).reshape(-1, 2).cumsum(0).T
    assert x[0] == x.min() and y[0] == y.max() and y[-1] == y.min()
    level, coverage = (x - x[0]) / np.ptp(x), (y[0] - y) / np.ptp(y)
    expected = results["coverage"].sel({"task": task, "method": method, "budget": budget}).median("run")
    np.testing.assert_allclose(coverage, np.interp(level, results["level"], expected), atol=0.01)
    told = page.locator("[id='method-1-1-curve-budget-0'] title").text_content()
    assert "1,024" in told and f"{float(expected.sel(level=0.9, method='nearest')):.3f} at 0.9\n" in told


def test_keyboard_reaches_every_choice(open_page) -> None:
    page = open_page()
    page.locator("#task0").focus()
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.locator(":focus").get_attribute("name") == "method"
    page.keyboard.press("Space")
    assert shown(page, ".panel") == 4


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
    for selector in ("body", ".lead", ".note", "nav a", "figcaption", ".marks"):
        assert contrast(style(selector, "color"), paper) >= 4.5, selector
    for selector in ("td.over", "td.safe"):
        assert contrast(style(selector, "color"), style(selector, "backgroundColor")) >= 4.5, selector
    # In the dark, figures are inverted with their hues kept: white turns black, and dark colours bright.
    inverted = style("svg[role=img]", "filter")
    assert ("invert(1)" in inverted and "hue-rotate(180deg)" in inverted) == (scheme == "dark")
    for path in page.locator(".panel [id*='-curve-'] path").all()[:4]:
        assert contrast(path.evaluate("node => getComputedStyle(node).stroke"), "rgb(255, 255, 255)") >= 2


def test_print(open_page) -> None:
    page = open_page(color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden() and page.locator("input[name=view]").first.is_hidden()
    assert page.locator(".panel").first.is_visible() and "invert" not in page.locator(".panel svg").first.evaluate(
        "node => getComputedStyle(node).filter"
    )
    assert page.locator("#choices label", has_text="BNRE").is_visible()  # the legend of what is drawn
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 12


def test_phone(open_page) -> None:
    page = open_page(width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    box = page.locator(".panel svg").first.bounding_box()
    assert box["x"] >= 0 and 300 <= box["width"] <= 375


def test_without_scripts_tables_remain(browser, report) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#verdict-table tbody tr").count() == 12
    page.get_by_role("checkbox", name="NPE", exact=True).uncheck()
    assert shown(page, ".panel") == 4  # choosing needs no script
    context.close()


PAYLOADS = (
    "</script><script>hit()</script>",
    "<img src=x onerror=hit()>",
    '"><script>hit()</script>',
    "</style><script>hit()</script>",
    "</text></svg><script>hit()</script>",
    "{{ hit() }}{% include 'report.js' %}",
    "<a href=javascript:hit()>x</a>",
    "&lt;script&gt;hit()&lt;/script&gt;",
    "$\\mathtt{<script>hit()</script>}$",
    "<iframe srcdoc='<script>parent.hit()</script>'>",
    'url(#x)"/><script>hit()</script>',
    "<!--<script>hit()</script>",
    "<svg/onload=hit()>",
    "'-hit()-'",
    '" autofocus onfocus=hit() x="',
    "<details open ontoggle=hit()>",
    "\u2028hit()//\\\u0022;hit();",
    "<object data=javascript:hit()>",
)


def test_no_text_of_the_results_runs(browser, tmp_path) -> None:
    """As names of tasks and methods, labels, command, configuration, notes, versions, hardware, date and cells."""
    ds = synthetic_results(
        tasks=("slcp",), methods=("npe",) * 3, budgets=(1024,), runs=1, members=2, pairs=50, epochs=5
    )
    for first in range(3):
        some, others = PAYLOADS[first::6], PAYLOADS[first + 3 :: 6]
        bad = ds.assign_coords(method=[f"{p} {i}" for i, p in enumerate(some)], task=[others[0]])
        bad["method_label"] = ("method", list(others))
        bad["task_label"] = ("task", [some[1]])
        everything = "\n".join(some + others)
        bad.attrs |= {"command": some[0], "config": f'{{"x": {others[1]!r}}}', "notes": everything, "torch": some[2]}
        bad.attrs |= {"equipoise": others[0], "hardware": some[1], "created": others[2], "protocol": some[0]}
        bad["cell"] = bad["verdict"].copy(data=np.full(bad["verdict"].shape, others[1], dtype=object))
        report = write_report(bad, tmp_path / "bad.html", progress=False)
        context = browser.new_context()
        page = context.new_page()
        hits: list[Any] = []
        page.expose_function("hit", lambda hits=hits: hits.append(1))
        page.on("dialog", lambda dialog, hits=hits: hits.append(dialog.message))
        page.goto(report.as_uri())
        page.mouse.move(300, 300)
        page.wait_for_timeout(200)
        assert not hits and page.locator("script").count() == 1, some
        made = (
            "body *[onload], body *[onerror], body *[onmouseover], body *[onfocus], iframe, object, details[ontoggle]"
        )
        assert page.locator(made).count() == 0, some
        context.close()
