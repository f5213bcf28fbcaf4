"""The comparison with peers: what is read from its file, tabulated and drawn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import speed

ROWS = [
    {"method": "sbi-maf", "members": 5, "log_prob": 1.0, "cpu_s": 100.0, "entropy": 2.0, "verdict": "overconfident"},
    {"method": "sbi-maf", "members": 1, "log_prob": 0.5, "cpu_s": 20.0, "entropy": 2.0},
    {"method": "equipoise", "members": 5, "log_prob": 0.9, "cpu_s": 30.0, "entropy": 2.0},
    {"method": "equipoise", "members": 10, "log_prob": 1.25, "cpu_s": 20.0, "entropy": 2.0, "exact": 1.5},
]


@pytest.fixture
def rows(tmp_path: Path) -> dict[speed.Key, dict[str, object]]:
    file = tmp_path / "peers.csv"
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, speed.FIELDS)
        writer.writeheader()
        writer.writerows({"problem": "linear", "budget": 2000, "threads": 1, "group": "confirm", **row} for row in ROWS)
    return speed.read(file)


def test_of_several_rows_for_the_same_fit_the_last_counts(rows) -> None:
    assert len(rows) == 3 and rows["linear", 2000, "equipoise", 1, "mixture"]["cpu_s"] == 20
    assert speed.read(Path("nothing.csv")) == {}


def test_every_row_is_compared_with_five_networks_of_sbi(rows) -> None:
    found = {key[2::2]: (gain, ratio) for key, gain, ratio in speed.compared(rows, 1)}
    assert found == {("sbi-maf", "one"): (-0.5, 0.2), ("equipoise", "mixture"): (0.25, 0.2)}
    assert speed.compared(rows, 2) == []


def test_the_table_has_seconds_and_nats_over_the_prior(rows) -> None:
    head, line, *rest = speed.table(rows).splitlines()
    names = "problem budget exact equipoise, mixture sbi-maf, mixture sbi-maf, one"
    assert head.split() == names.split()
    assert line.split() == ["linear", "2,000", "3.50", "20", "/", "3.25", "100", "/", "3.00", "▼", "20", "/", "2.50"]
    (ours,) = [text for text in rest if text.startswith("equipoise, mixture")]
    assert "sharp in 1 of 1" in ours and "CPU seconds in 1;" in ours and "+0.25 nats" in ours


def test_the_figure_is_drawn_where_there_is_something_to_compare(rows, tmp_path: Path) -> None:
    file = speed.draw(rows, tmp_path / "figures" / "peers.png")
    assert file is not None and file.stat().st_size > 1000
    assert speed.draw({}, tmp_path / "none.png") is None and not (tmp_path / "none.png").exists()
