"""What a release rests on: one version everywhere, a quickstart that can be run, links that are checked."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import check_site
import equipoise as eq
import try_wheel

ROOT = Path(__file__).parents[1]


def test_citation_has_the_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == eq.__version__
    assert citation["references"][0]["authors"][0]["family-names"] == "Delaunoy"


def test_changelog_has_the_version():
    assert re.search(rf"^## {re.escape(eq.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_forms_for_issues_and_workflows_are_yaml():
    files = [*(ROOT / ".github").rglob("*.yml")]
    assert len(files) >= 5 and all(yaml.safe_load(file.read_text(encoding="utf-8")) for file in files)


def test_cells_of_a_notebook_are_its_code():
    first = "```{code-cell} ipython3\n:tags: [hide]\na = 1\n```\n"
    second = "```{code-cell}\n---\nx: y\n---\na\n```\n"
    page = f"# Title\n{first}Text.\n```python\nb = 2\n```\n{second}"
    assert try_wheel.cells(page) == ["a = 1\n", "a\n"]


def test_broken_links_are_found(tmp_path, capsys):
    (tmp_path / "a.html").write_text(
        '<h1 id="top-of-a">A</h1><a href="b.html#here">1</a><a href="b.html#there">2</a><a href="c.html">3</a>'
        '<img src="no.png"><a href="https://example.org/x">4</a><a href="https://nowhere">5</a>'
        '<a href="#top-of-a">6</a><a href="../out.html">7</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here">B</p>')
    assert check_site.main(str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert all(f": {link}: " in out for link in ("b.html#there", "c.html", "no.png", "https://nowhere", "../out.html"))
    assert "8 links of 2 pages checked, 5 broken" in out


def test_a_site_whose_links_work_passes(tmp_path):
    (tmp_path / "index.html").write_text('<a href="#x">1</a><p id="x">')
    assert check_site.main(str(tmp_path)) == 0
