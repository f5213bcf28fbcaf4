"""Priors as text and as JSON files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from equipoise.priors.text import DISTRIBUTIONS, parse_prior


def test_texts_and_files_of_the_page_are_priors(tmp_path: Path) -> None:
    # Its Python is run with that of the other pages.
    page = (Path(__file__).parents[2] / "docs" / "priors.md").read_text(encoding="utf-8")
    texts = re.findall(r"--prior '(.*?)'", page)
    assert len(texts) > 2 and all(parse_prior(text).dim > 1 for text in texts)
    files = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert len(files) == 3
    for text in files:
        (tmp_path / "prior.json").write_text(text)
        prior = parse_prior(str(tmp_path / "prior.json"))
        assert prior.dim > 1 and json.loads(text)["kind"] == prior.spec()["kind"]
    table = page[page.index("| term |") :]
    assert set(DISTRIBUTIONS) == {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in row.strip("`").split("`, `")
    }
    assert "text for eleven of them" in page and len(DISTRIBUTIONS) == 11


@pytest.mark.parametrize(
    "text", ["uniform(0, 1)^100000000", f"normal(0, 1)^{'9' * 5000}", "normal(0, 1)^999, uniform(0, 1)^2"]
)
def test_too_many_parameters_are_refused_before_memory_is_taken(text: str) -> None:
    with pytest.raises(ValueError, match="1,000 parameters"):
        parse_prior(text)
