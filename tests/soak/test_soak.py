"""Short versions of `make soak`: verdicts, kills and faults, altered inputs.

A count fails if a rate at its bound would exceed it once in a million.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import soak_clusters
import soak_power
import soak_verdicts
from scipy import stats

HERE = Path(__file__).parent


@pytest.mark.parametrize("table", soak_verdicts.TABLES, ids=lambda table: table.__name__)
def test_false_verdicts_are_as_rare_as_promised(table, monkeypatch):
    monkeypatch.setattr(soak_verdicts, "SIZES", (500, 2000))
    monkeypatch.setattr(soak_verdicts, "EFFECTIVE", (10, 100, 1000, float("inf")))
    rows = list(table(0.015))
    assert not [row for row in rows if not row.holds]
    if table is soak_verdicts.false_certificates:  # the bound is attained: the certificate is not vacuous
        assert sum(row.count for row in rows) > 0


def test_power_beside_other_tests():
    found = soak_verdicts.power(0.25)
    rates = {world: {test: row.rate for test, row in tests.items()} for world, tests in found.items()}
    runs = next(iter(found["calibrated, D = 2"].values())).runs
    most = stats.binom.isf(1e-6, runs, 0.05) / runs
    assert rates["calibrated, D = 2"]["overconfident"] <= most
    # What is too wide is never called overconfident; tests of uniformity object to it.
    assert rates["10% too wide, D = 2"]["overconfident"] <= most and rates["10% too wide, D = 2"]["SBC"] > 0.5
    # Long runs: 99% and 89%, where one-sided KS has 20% of the second.
    assert rates["10% too tight, D = 1"]["overconfident"] > 0.9
    dip = rates["coverage .92 at .95 alone"]
    assert dip["overconfident"] > 0.7 and dip["KS, one-sided"] < 0.45


def run(script: str, *arguments: str, fails: bool = False) -> dict[str, int]:
    """The counts in the last line of a script, which says what was wrong before, and has to fail where that is due."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == fails, done.stdout + done.stderr
    words = done.stdout.splitlines()[-1].split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and limits on the size of files")
def test_kills_and_faults_lose_nothing():
    counts = run("soak_kills.py", "6", "--quick")
    assert counts["wrong"] == 0 and counts["kills"] >= 5 and counts["faults"] >= 5


def test_power_cuts_lose_nothing_that_was_flushed():
    if reason := soak_power.why_not():
        pytest.skip(reason)
    counts = run("soak_power.py", "3", "--quick")
    assert counts["wrong"] == 0 and counts["cuts"] >= 15
    # That the cut is one: without the flushes something is lost.
    without = run("soak_power.py", "1", "--quick", "--only", "NetCDF", "--without-flush", fails=True)
    assert without["wrong"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["scheduler", "slurm"])
def test_kills_on_a_cluster_change_nothing(cluster):
    if reason := soak_clusters.why_not(cluster):
        pytest.skip(f"no {cluster}: {reason}")
    counts = run("soak_clusters.py", "3", "--only", cluster)
    assert counts["wrong"] == 0 and counts["kills"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and limits on memory")
def test_altered_inputs_are_read_or_refused_by_name():
    counts = run("soak_fuzz.py", "1400")
    assert counts["wrong"] == 0 and counts["inputs"] >= 1400 and counts["flipped"] >= 50
