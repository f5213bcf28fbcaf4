"""The prose of README.md and docs/: how long it is, how wide its lines are, and whether its links resolve."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Tutorials and the gallery: notebooks, which are read one at a time.
NOTEBOOKS = [page for page in PAGES if page.parent.name in ("tutorials", "gallery")]
#: The most words of prose on all other pages together, and on all notebooks: no tables, code or figures.
WORDS, WORDS_OF_NOTEBOOKS = 20_000, 4_000
#: The most columns of a line of prose. The targets of links do not count.
COLUMNS = 100

FENCE = re.compile(r"^\s*```.*?^\s*```\s*$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"^\$\$$.*?^\$\$$", re.MULTILINE | re.DOTALL)
FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text: str) -> list[str]:
    """The lines of a page without front matter, code, formulas, tables, comments and figures; links keep their text."""
    text = FORMULA.sub("", FENCE.sub("", FRONT.sub("", text)))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = LINK.sub("]", IMAGE.sub("", text))
    return [line for line in text.splitlines() if not line.lstrip().startswith("|")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        if line.startswith("#"):
            slug = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            found.add(slug if slug not in found else f"{slug}-1")
    return found


def test_what_counts_as_prose():
    page = "# Title\n\nA [link](x.md).\n\n| a | b |\n|---|---|\n\n```\ncode\n```\n\n![figure](f.png)\n<!-- end -->\n"
    assert " ".join(prose(page)).split() == ["#", "Title", "A", "[link]."]


@pytest.mark.parametrize(
    ("pages", "most"),
    [([page for page in PAGES if page not in NOTEBOOKS], WORDS), (NOTEBOOKS, WORDS_OF_NOTEBOOKS)],
    ids=["reference", "notebooks"],
)
def test_the_prose_is_short(pages, most):
    words = {p.relative_to(ROOT): len(re.findall(r"\w+(?:[-'’.]\w+)*", "\n".join(prose(p.read_text())))) for p in pages}
    assert sum(words.values()) <= most, f"{sum(words.values()):,} words: {words}"


def test_the_readme_is_shorter_still():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) < 500


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lines_are_narrow(page):
    lines = prose(page.read_text(encoding="utf-8"))
    wide = [line for line in lines if len(line) > COLUMNS and not line.startswith("#")]
    assert not wide, f"wrap these lines at {COLUMNS} columns: {wide[:3]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_resolve(page):
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: there is no such file"
        assert not anchor or anchor in anchors(file), f"{target}: {file.name} has no such heading"
