"""`equipoise simulate`, and draws for several observations: from a user's file to files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import equipoise as eq
from equipoise import cli

SIMULATOR = """
import numpy as np
from helper_of_mine import noise

def simulator(theta, seed):
    return np.concatenate([theta, theta]) + noise(seed, 4)

def slow(theta, seed):
    import time
    time.sleep(0.02)
    return simulator(theta, seed)

number = 3
"""
HELPER = """
import numpy as np

def noise(seed, n):
    return 0.1 * np.random.default_rng(seed).normal(size=n)
"""
PRIOR = ("--prior", "uniform(0,1), normal(0,1)")


def equipoise(*arguments, code=0):
    result = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SIMULATOR)
    Path("helper_of_mine.py").write_text(HELPER)


@pytest.mark.usefixtures("_here")
def test_from_a_simulator_to_draws_without_python():
    command = ("simulate", "mine.py:simulator", *PRIOR, "--names", "beta, gamma")
    told = equipoise(*command, "-n", 150, "--out", "pairs")
    assert "importing mine.py:simulator" in told.stderr
    assert "150 simulations of beta, gamma are in pairs" in told.stdout
    equipoise(*command, "-n", 60, "--seed", 1, "--out", "fresh.h5", "--quiet")
    with h5py.File("fresh.h5") as file:
        assert list(file["theta"].attrs["names"]) == ["beta", "gamma"] and file["x"].shape == (60, 4)
    assert not list(Path().glob("*.unfinished"))

    def simulator(theta, seed):
        return np.concatenate([theta, theta]) + 0.1 * np.random.default_rng(seed).normal(size=4)

    prior = eq.IndependentPrior(eq.priors.text.parse_prior(PRIOR[1]).marginals)
    same = eq.simulate(prior, simulator, 150, progress=False)
    np.testing.assert_array_equal(eq.read_simulations("pairs").x, same.x)

    train = ("--method", "npe", "--members", 1, "--epochs", 2, "--quiet")
    equipoise("fit", "pairs", *PRIOR, *train, "--out", "model")
    assert "gamma, central interval" in equipoise("diagnose", "model", "fresh.h5", "--samples", 20).stdout

    x = eq.read_simulations("fresh.h5").x[:3].numpy()
    np.save("three.npy", x)
    np.savetxt("three.txt", x)
    np.savetxt("three.csv", x, delimiter=",", header="x_0,x_1,x_2,x_3", comments="")
    posterior = eq.load("model")
    expected = posterior.sample_batched((7,), x, seed=0).numpy()
    for name in ("three.npy", "three.txt", "three.csv"):
        told = equipoise("sample", "model", name, "-n", 7, "--out", "draws.csv").stdout
        table = pandas.read_csv("draws.csv")
        assert list(table) == ["row", "beta", "gamma"] and table["row"].tolist() == [0] * 7 + [1] * 7 + [2] * 7
        np.testing.assert_allclose(
            table[["beta", "gamma"]].to_numpy().reshape(3, 7, 2), expected.swapaxes(0, 1), rtol=1e-5
        )
        middle = np.quantile(expected[:, 2, 1], 0.5)
        assert f"row 2, gamma: {middle:.4g}, 95% between" in told and "for each of 3 observations" in told
    equipoise("sample", "model", "three.npy", "-n", 7, "--out", "draws.npy", "--quiet")
    np.testing.assert_array_equal(np.load("draws.npy"), expected)


@pytest.mark.usefixtures("_here")
def test_a_folder_is_extended_and_another_simulator_refused():
    command = ("simulate", "mine.py:simulator", *PRIOR, "--out", "pairs", "--quiet")
    equipoise(*command, "-n", 30)
    before = eq.read_simulations("pairs").x
    equipoise(*command, "-n", 50, "--workers", 2)  # the file beside it is imported in the workers too
    after = eq.read_simulations("pairs").x
    assert len(after) == 50 and np.array_equal(before, after[:30])
    Path("mine.py").write_text(SIMULATOR.replace("[theta, theta]", "[theta, -theta]"))
    assert "--same-simulator" in equipoise(*command, "-n", 60, code=2).output
    equipoise(*command, "-n", 60, "--same-simulator")
    assert len(eq.read_simulations("pairs")) == 60


@pytest.mark.usefixtures("_here")
def test_mistakes_are_named():
    for simulator, words in (
        ("mine.py", "FILE.py:NAME or MODULE:NAME"),
        ("mine.py:simulater", "has no simulater; there are noise, simulator"),
        ("mine.py:number", "is int, not a function of theta"),
        ("nobody.py:simulator", "there is no file nobody.py"),
    ):
        told = equipoise("simulate", simulator, *PRIOR, "-n", 5, "--out", "pairs", code=2).output
        assert words in told, told
    Path("pairs.h5").write_text("")
    told = equipoise("simulate", "mine.py:simulator", *PRIOR, "-n", 5, "--out", "pairs.h5", code=2).output
    assert "is there already" in told and "--force" in told
    equipoise("simulate", "mine.py:simulator", *PRIOR, "-n", 5, "--out", "pairs.h5", "--force", "--quiet")
    told = equipoise("simulate", "mine.py:simulator", *PRIOR, "-n", 5, "--names", "a", "--out", "p", code=2).output
    assert "2 parameter(s)" in told
    Path("broken.py").write_text("def simulator(theta):\n    raise RuntimeError('no simulation today')\n")
    broken = ("simulate", "broken.py:simulator", *PRIOR, "--names", "beta,gamma", "-n", 5, "-o", "p")
    told = equipoise(*broken, code=1).output
    assert "no simulation today" in told and "at beta = 0." in told and ", gamma = " in told


@pytest.mark.usefixtures("_here")
def test_what_was_stopped_goes_on():
    command = ["simulate", "mine.py:slow", *PRIOR, "-n", "400", "--out", "pairs.h5"]
    environment = os.environ | {"PYTHONPATH": str(Path(eq.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-m", "equipoise", *command], env=environment, stderr=subprocess.PIPE)
    begun = time.monotonic()
    while not Path("pairs.h5.unfinished").exists():
        assert process.poll() is None and time.monotonic() - begun < 120
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130 and b"the same command goes on from there" in told
    assert list(Path("pairs.h5.unfinished").glob("block-*.partial")) and not Path("pairs.h5").exists()
    equipoise(*command, "--quiet")
    assert len(eq.read_simulations("pairs.h5")) == 400 and not Path("pairs.h5.unfinished").exists()
