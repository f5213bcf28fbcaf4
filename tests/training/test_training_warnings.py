"""Warnings are few and right: a plain problem, done as the documentation does it, gives none."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.problems import PROBLEMS
from torch import Tensor

import equipoise as eq

#: What may be said of few simulations and a short training: that nothing was certified, and how many pairs would do.
RIGHT = re.compile(r"(not seen to be|is not certified) conservative: .*(too few|not certified)")

BOX = eq.BoxUniform([-1.0, 0.5], [1.0, 2.0]).named(["centre", "width"])


def gaussian(theta: Tensor) -> Tensor:
    """Eight draws of a Gaussian."""
    return theta[:, :1] + theta[:, 1:] * torch.randn(len(theta), 8)


def counts(theta: Tensor) -> Tensor:
    """Whole numbers, many of them 0, with a long tail."""
    rate = (2 * theta[:, :1] + torch.linspace(-1, 1, 6) * theta[:, 1:]).exp()
    return torch.poisson(rate)


@pytest.mark.parametrize("simulator", [gaussian, counts])
def test_a_plain_problem_gives_no_warning(simulator: Callable[[Tensor], Tensor]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pairs = eq.simulate(BOX, simulator, 800, seed=0, progress=False)
        fresh = eq.simulate(BOX, simulator, 200, seed=1, progress=False)
        posterior = eq.fit(pairs, prior=BOX, method="npe", members=2, epochs=20, device="cpu", progress=False)
        ds = eq.diagnose(posterior, fresh.theta, fresh.x, samples=100, progress=False)
        eq.summary(ds)
        posterior.sample((100,), fresh.x[0])
        posterior.log_prob(fresh.theta, fresh.x)
        posterior.summary(fresh.x[0], n=200)
        eq.diagnose(posterior.tempered(0.8), fresh.theta, fresh.x, samples=100, progress=False)
    assert [str(w.message) for w in caught] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["survey", "outbreak", "lynx_hare", "switch", "curved"])
def test_problems_like_users_give_none_that_is_noise(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counts, series, populations, two modes and ten parameters: everything that people ask of a posterior."""
    problem = PROBLEMS[name]

    def simulator(theta: np.ndarray, seed: int) -> np.ndarray:
        return problem.simulator(np.asarray(theta, np.float64), np.random.default_rng(seed))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pairs = eq.simulate(problem.prior, simulator, 500, seed=0, progress=False)
        fresh = eq.simulate(problem.prior, simulator, 100, seed=1, progress=False)
        posterior = eq.fit(pairs, prior=problem.prior, epochs=8, device="cpu", progress=False)
        alone = eq.fit(pairs, prior=problem.prior, members=1, epochs=30, device="cpu", progress=False)
        careful = eq.calibrate(alone, fresh.theta, fresh.x, progress=False)
        alone.save(tmp_path / "model")
        x_o = fresh.x[fresh.x.flatten(1).amax(1).argsort()[50]]  # an ordinary one: of populations, some explode
        for q in (posterior, careful, eq.load(tmp_path / "model")):
            eq.summary(eq.diagnose(q, fresh.theta[:60], fresh.x[:60], samples=128, progress=False))
            q.sample((50,), x_o)
            q.log_prob(fresh.theta[:3], x_o)
            q.region(x_o, n=50)
            q.map(x_o)
            str(q.summary(x_o, n=50))
            q.predict(simulator, x_o, n=3, batched=True)
    noise = [str(w.message) for w in caught if not RIGHT.search(str(w.message))]
    assert noise == []


@pytest.mark.slow
def test_the_shell_gives_none(tmp_path: Path) -> None:
    for seed in (0, 1):
        pairs = eq.simulate(BOX, counts, 300, seed=seed, progress=False)
        np.savez(tmp_path / f"pairs{seed}.npz", theta=pairs.theta.numpy(), x=pairs.x.numpy())
    np.save(tmp_path / "x.npy", pairs.x[0].numpy())
    for words in (
        "fit pairs0.npz --prior uniform(-1,1),uniform(0.5,2) --names centre,width --members 1 --epochs 20 --out model",
        "diagnose model pairs1.npz",
        "sample model x.npy --number 5",
    ):
        command = [sys.executable, "-W", "always::UserWarning", "-m", "equipoise", *words.split()]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert found.returncode == 0, found.stderr
        assert "warn" not in found.stderr.lower()


def test_the_quick_look_is_one_network_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = eq.simulate(BOX, gaussian, 300, seed=0, progress=False)
    posterior = eq.fit(pairs, prior=BOX, members=1, epochs=2, device="cpu")
    assert posterior.n_members == 1 and posterior.calibration is None and posterior.temperature == 1
    told = capsys.readouterr().err
    assert "calibrated, 1 member, 300 simulations" in told
    assert "not calibrated); 5 members or more are cross-fitted and calibrated" in told
    with pytest.raises(ValueError, match="needs out-of-fold pairs"):
        eq.fit(pairs, prior=BOX, members=1, calibrate=True)
