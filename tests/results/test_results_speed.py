"""The comparison with peers: what is read from its file, tabulated and drawn."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import speed
from reading import Missing

ROWS = [
    {"method": "sbi-maf", "members": 5, "log_prob": 1.0, "cpu_s": 100.0, "verdict": "overconfident"},
    {"method": "sbi-maf", "members": 1, "log_prob": 0.5, "cpu_s": 20.0},
    {"method": "equipoise", "members": 5, "log_prob": 0.9, "cpu_s": 30.0},
    {"method": "equipoise", "members": 10, "log_prob": 1.25, "cpu_s": 20.0, "exact": 1.5},
]
#: Two problems on two threads: ours is slower than one network of sbi in the first, and less sharp in the second.
BY_THE_CLOCK = [
    {"problem": "linear", "method": "sbi-maf", "members": 1, "log_prob": 0.5, "wall_s": 8.0},
    {"problem": "linear", "method": "equipoise", "members": 10, "log_prob": 1.0, "wall_s": 12.0},
    {"problem": "slcp", "method": "sbi-maf", "members": 1, "log_prob": 0.5, "wall_s": 10.0},
    {"problem": "slcp", "method": "sbi-nsf", "members": 1, "log_prob": 0.75, "wall_s": 25.0},
    {"problem": "slcp", "method": "equipoise", "members": 10, "log_prob": 0.25, "wall_s": 6.0},
]


def written(file: Path, rows: list[dict[str, object]], threads: int) -> Path:
    common = {"problem": "linear", "budget": 2000, "threads": threads, "group": "confirm", "entropy": 2.0}
    new = not file.exists()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, speed.FIELDS)
        if new:
            writer.writeheader()
        writer.writerows({**common, **row} for row in rows)
    return file


@pytest.fixture
def rows(tmp_path: Path) -> dict[speed.Key, dict[str, object]]:
    return speed.read(written(tmp_path / "peers.csv", ROWS, 1))


def test_of_several_rows_for_the_same_fit_the_last_counts(rows) -> None:
    assert len(rows) == 3 and rows["linear", 2000, "equipoise", 1, "mixture"]["cpu_s"] == 20
    assert speed.read(Path("nothing.csv")) == {}


def test_every_row_is_compared_with_five_networks_of_sbi(rows) -> None:
    found = {key[2::2]: (gain, ratio) for key, gain, ratio in speed.compared(rows, 1)}
    assert found == {("sbi-maf", "one"): (-0.5, 0.2), ("equipoise", "mixture"): (0.25, 0.2)}
    assert speed.compared(rows, 2) == []


def test_the_table_has_seconds_and_nats_over_the_prior(rows) -> None:
    head, line, _, _, _, goals, ours = speed.table(rows).splitlines()
    names = "problem budget exact equipoise, mixture sbi-maf, mixture sbi-maf, one"
    assert head.split() == names.split()
    assert line.split() == ["linear", "2,000", "3.50", "20", "/", "3.25", "100", "/", "3.00", "▼", "20", "/", "2.50"]
    assert "at least as sharp  at most 0.25 of its CPU seconds    both" in goals
    beside = ["equipoise", "sbi-maf, mixture", "2,000"]
    assert re.split(r"\s{2,}", ours) == [*beside, "1 of 1", "1 of 1", "1 of 1", "0.20", "+0.25"]


def test_on_two_threads_one_network_of_sbi_is_the_measure_by_the_clock(rows, tmp_path: Path) -> None:
    with pytest.raises(Missing, match="threads = 2"):
        speed.peers_table(tmp_path, 2)
    before = speed.peers_table(tmp_path)
    rows = speed.read(written(tmp_path / "peers.csv", BY_THE_CLOCK, 2))
    assert speed.peers_table(tmp_path) == before and "figures/peers.png" in before
    head, linear, slcp, _, legend, _, goals, ours, of_splines = speed.table(rows, 2).splitlines()
    assert re.split(r"\s{2,}", head) == [
        "problem",
        "budget",
        "exact",
        "equipoise, mixture",
        "sbi-maf, one",
        "sbi-nsf, one",
    ]
    assert re.split(r"\s{2,}", linear) == ["linear", "2,000", "12 / 3.00", "8.0 / 2.50", "–"]
    assert re.split(r"\s{2,}", slcp.strip()) == ["slcp", "2,000", "6.0 / 2.25", "10 / 2.50", "25 / 2.75"]
    assert legend.startswith("wall seconds") and "threads: 2; not judged" in legend
    assert "not slower" in goals
    beside = ["equipoise", "sbi-maf, one", "2,000"]
    assert re.split(r"\s{2,}", ours) == [*beside, "1 of 2", "1 of 2", "0 of 2", "1.05", "+0.12"]
    beside = ["equipoise", "sbi-nsf, one", "2,000"]
    assert re.split(r"\s{2,}", of_splines) == [*beside, "0 of 1", "1 of 1", "0 of 1", "0.24", "-0.50"]


def test_each_number_of_simulations_is_counted_by_itself(tmp_path: Path) -> None:
    more = [row | {"budget": 8000, "log_prob": row["log_prob"] - 1} for row in ROWS]
    rows = speed.read(written(tmp_path / "peers.csv", [*ROWS, *more], 1))
    lines = [re.split(r"\s{2,}", line) for line in speed.table(rows).splitlines()]
    assert [line[2] for line in lines if line[0] == "equipoise"] == ["2,000", "8,000"]


def test_on_two_threads_there_is_no_figure(rows, tmp_path: Path) -> None:
    written(tmp_path / "peers.csv", BY_THE_CLOCK, 2)
    assert "figures/peers.png" not in speed.peers_table(tmp_path, 2)


def test_the_figure_is_drawn_where_there_is_something_to_compare(rows, tmp_path: Path) -> None:
    file = speed.draw(rows, tmp_path / "figures" / "peers.png")
    assert file is not None and file.stat().st_size > 1000
    assert speed.draw({}, tmp_path / "none.png") is None and not (tmp_path / "none.png").exists()
