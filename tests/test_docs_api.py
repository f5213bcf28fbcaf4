"""The API reference has every public name, and the lines that the page of the mathematics names exist."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import equipoise as eq

DOCS = Path(__file__).parents[1] / "docs"
DIRECTIVE = re.compile(r"^\.\. (?:auto\w+|py:data):: (equipoise\.[\w.]+)$", re.MULTILINE)
SOURCE = re.compile(r"\{source\}`([\w.]+)`")
MODULES = sorted({*eq._MODULES, "report"})


def documented() -> list[str]:
    return [name for page in sorted((DOCS / "api").glob("*.md")) for name in DIRECTIVE.findall(page.read_text())]


def test_every_name_of_the_root_is_documented():
    missing = {f"equipoise.{name}" for name in eq.__all__} - set(documented())
    assert not missing, f"add to docs/api/: {sorted(missing)}"


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_module_is_documented(module):
    at_root = {name for name, home in eq._HOME.items() if home == module}
    public = {f"equipoise.{module}.{name}" for name in importlib.import_module(f"equipoise.{module}").__all__}
    missing = {name for name in public - set(documented()) if name.rsplit(".", 1)[1] not in at_root}
    assert not missing, f"add to docs/api/: {sorted(missing)}"


def test_names_are_documented_once():
    names = documented()
    assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]


def test_names_of_the_reference_exist():
    for name in documented():
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_lines_of_the_mathematics_exist(monkeypatch):
    pytest.importorskip("sphinx", reason="the site's extra `docs` is not installed")
    monkeypatch.setattr(sys, "path", [str(DOCS / "_ext"), *sys.path])
    from source_lines import SRC, line_of

    names = SOURCE.findall((DOCS / "mathematics.md").read_text())
    assert len(names) >= 10
    for name in names:
        file, line = line_of(name)
        source = (SRC / file).read_text().splitlines()[line - 1]
        wanted = rf"(def|class) {name.rsplit('.', 1)[1]}\b|^\s*@"
        assert re.search(wanted, source), f"{name}: {file}:{line} is {source!r}"
