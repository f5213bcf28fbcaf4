"""Benchmarks that nobody runs for a while still run: they reach into the package, and would break in silence."""

from __future__ import annotations

import csv
import importlib
import math
import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from equipoise import BoxUniform, GaussianPrior
from equipoise.support.devices import fixed_threads
from equipoise.support.randomness import isolated

HERE = Path(__file__).parents[1] / "benchmarks"


def imported(name: str) -> ModuleType:
    """A benchmark as a module."""
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(HERE))


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a benchmark as a script and give what it prints. In this process: to start one takes longer than most."""
    monkeypatch.syspath_prepend(str(HERE))

    def run(name: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
        capsys.readouterr()
        with warnings.catch_warnings(), fixed_threads(1), isolated(0):
            warnings.simplefilter("ignore")  # trainings so short are warned of
            try:
                runpy.run_path(str(HERE / f"{name}.py"), run_name="__main__")
            except SystemExit as ended:
                if ended.code:
                    pytest.fail(f"{name} ended with {ended.code}: {capsys.readouterr().err}")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.parametrize("case", ["NRE", "BNPE"])
def test_training_times_the_authors_step_and_ours(case, printed) -> None:
    options = ("--device", "cpu", "--cases", case, "--stacks", "2", "--seconds", "0.01", "--eager")
    (line,) = [text for text in printed("training", *options).splitlines() if text.startswith(case)]
    theirs, ours, ratio, _ = map(float, line.removeprefix(case).split())
    assert theirs > 0 and ratio == pytest.approx(theirs / ours, abs=0.06)


@pytest.mark.slow
def test_jumps_are_counted_for_every_limit(printed) -> None:
    text = printed("jumps", "--device", "cpu", "--members", "2", "--epochs", "2", "--budget", "512")
    counts = re.findall(r"^float32 +(none|20|5|1) +(\d)/2", text, flags=re.MULTILINE)
    assert [limit for limit, _ in counts] == ["none", "20", "5", "1"]
    assert all(int(n) <= 2 for _, n in counts)


@pytest.mark.slow
def test_diagnostics_stand_beside_their_peers(printed) -> None:
    text = printed("diagnostics", "--pairs", "50", "--peer-pairs", "2", "--samples", "16")
    assert "lampe" in text and "sbi" in text


@pytest.mark.slow
def test_defaults_are_judged_as_mixtures_and_one_by_one(printed) -> None:
    options = ("--tasks", "two_moons", "--methods", "bnpe", "--budgets", "128", "--runs", "2", "--members", "2")
    *_, line = printed("defaults", *options, "--epochs", "1", "--pairs", "100", "--device", "cpu").splitlines()
    cells = [c.strip() for c in line.strip("|").split("|")]
    assert cells[0] == "two_moons, bnpe" and cells[1] == "128"
    for cell, total in zip(cells[2:4], (4, 2), strict=True):
        assert sum(map(int, re.findall(r"\d+", cell))) == total


@pytest.mark.slow
def test_images_and_series_from_memory_and_from_disk(printed) -> None:
    options = ("--device", "cpu", "--simulations", "300", "--epochs", "1", "--pairs", "50")
    options += ("--seconds", "0.001", "--side", "8", "--length", "9")
    rows = [[c.strip() for c in t.strip("|").split("|")] for t in printed("own", *options).splitlines()[-6:]]
    kinds = ("in memory", "in a file", "streamed")
    assert [(r[0], r[4]) for r in rows] == [(p, x) for p in ("image", "series") for x in kinds]
    for first, *others in (rows[:3], rows[3:]):
        assert all(other[6:] == first[6:] for other in others)


@pytest.mark.slow
def test_peers_train_on_the_same_simulations_and_nothing_is_computed_twice(tmp_path: Path, printed) -> None:
    file = tmp_path / "peers.csv"
    options = ("--quick", "--problems", "switch", "--budgets", "200", "--pairs", "60", "--out", str(file))
    alone = (*options, "--methods", "equipoise,sbi-maf", "--networks", "1")
    printed("peers", *alone)
    options += ("--methods", "equipoise,lampe-nsf,sbi-maf")
    text = printed("peers", *options)
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    found = [(r["method"], r["members"]) for r in rows]
    first = [("equipoise", "2"), ("sbi-maf", "1")]
    assert found == [*first, *((m, n) for m in ("lampe-nsf", "sbi-maf") for n in "12")]
    assert all(float(r["cpu_s"]) > 0 and -20 < float(r["log_prob"]) < 3 for r in rows)
    assert rows[1]["log_prob"] == rows[4]["log_prob"] and rows[4]["log_prob"] != rows[5]["log_prob"]
    printed("peers", *alone)
    again = printed("peers", *options)
    assert len(file.read_text().splitlines()) == len(rows) + 1 and again.strip() in text


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    import peers

    assert "bayesflow" in {*peers.PEERS} and "bayesflow" not in peers.METHODS
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["peers.py", "--methods", "bayesflow", "--out", str(tmp_path / "peers.csv")])
    with pytest.raises(SystemExit, match="2"):
        peers.main()
    assert 'pip install "bayesflow>=2"' in capsys.readouterr().err


def test_the_mass_inside_the_prior_is_estimated_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    import peers

    network = peers.Network(lambda theta, x: x[:, 0], lambda n, x: x + torch.randn(n, *x.shape))
    x = torch.linspace(-2, 2, 4000)[:, None]
    with isolated(0):
        found = peers.inside(network, BoxUniform([-1.0], [1.0]), x)
    exact = torch.log(torch.special.ndtr(1 - x) - torch.special.ndtr(-1 - x))[:, 0]
    # One x has a standard deviation of 0.21 at most, the mean of 4,000 of 0.0033.
    assert float((found - exact).mean()) == pytest.approx(0, abs=0.015)
    assert float(peers.inside(network, GaussianPrior([0.0], [[1.0]]), x).abs().max()) == 0


def test_the_toy_of_balance_is_what_batches_give() -> None:
    """Quadrature against 40,000 simulated batches: the loss, and the expectation of both estimates of balance."""
    balance = imported("balance")
    from equipoise import losses

    n, repeats, noise, t, c = 8, 40_000, 0.7, 0.8, 0.3
    loss, g, variance = balance.Toy(noise).terms(t, c)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(repeats, n, generator=generator, dtype=torch.float64)
    x = theta + noise * torch.randn(repeats, n, generator=generator, dtype=torch.float64)
    exact = torch.distributions.Normal(x / (1 + noise**2), noise / (1 + noise**2) ** 0.5)
    prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    joint, marginal = (t * (exact.log_prob(s) - prior.log_prob(s)) + c for s in (theta, theta.roll(1, 1)))
    found = {
        loss: losses.nre(joint, marginal),
        g**2 + variance / n: losses.balance_chi2(joint, marginal),
        g**2: losses.balance_chi2(joint, marginal, unbiased=True),
    }
    for expected, values in found.items():
        assert abs(values.mean() - expected) < 4 * values.std() / repeats**0.5
    # The shared θ and the bias are large enough to be seen.
    plain = losses.balance_chi2(joint, marginal)
    assert plain.mean() - g**2 > 20 * plain.std() / repeats**0.5


def test_near_the_prior_the_plain_estimate_tempers() -> None:
    """Of log-ratios t log r: t = 1/(1 + λ/n) with the plain estimate, and 1 with the unbiased one."""
    with open(HERE.parent / "results" / "estimate-toy.csv", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    weak = [row for row in rows if float(row["information"]) < 0.01]
    assert len(weak) == 12
    for row in weak:
        expected = 1 / (1 + float(row["strength"]) / float(row["batch"]))
        assert float(row["t_plain"]) == pytest.approx(expected, rel=0.01)
    assert all(float(row["t_unbiased"]) == pytest.approx(1, abs=1e-3) for row in rows)


@pytest.mark.slow
def test_networks_are_trained_with_both_estimates_and_never_twice(tmp_path: Path, printed) -> None:
    printed("balance", "train", "--quick", "--out", str(tmp_path))
    file = tmp_path / "estimate-train.csv"
    with file.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(r["objective"], r["t"]) for r in rows] == [
        ("nre", "1.0"), ("bnre, plain", "1.0"), ("bnre, unbiased", "1.0"), ("nre", "0.5"),
    ]  # fmt: skip
    assert 0 < float(rows[1]["least_loss_t"]) < 1 and float(rows[2]["least_loss_t"]) == 1
    before = file.read_bytes()
    printed("balance", "train", "--quick", "--out", str(tmp_path))
    assert file.read_bytes() == before


@pytest.mark.parametrize(("loss", "expected"), [("nre", 0.5), ("nre_c", 0.643), ("npe", 0.8)])
def test_the_best_tempering_is_the_derived_one_near_the_prior(loss: str, expected: float) -> None:
    """Of exact log-ratios of 0.005 nats, with λ = n: κ/(κ + ¼), from pairs in any order; the likelihood has none."""
    balance = imported("balance")
    from equipoise.losses import Objective, batch_temperature

    generator, noise = torch.Generator().manual_seed(0), 10.0
    theta, error = torch.randn(2, 100_000, generator=generator, dtype=torch.float64)
    x, variance = theta + noise * error, 1 / (1 + noise**-2)

    def exact(theta: torch.Tensor) -> torch.Tensor:
        return -0.5 * (theta - variance * x / noise**2) ** 2 / variance - 0.5 * math.log(variance) + 0.5 * theta**2

    rolls = torch.stack([exact(theta.roll(r)) for r in range(6)])
    objective = Objective(loss, "chi2", 256.0)
    assert batch_temperature(objective, 256) == pytest.approx(expected, abs=1e-3)
    found = balance.tempered_optimum(objective, 256, rolls)
    assert math.isnan(found) if loss == "npe" else found == pytest.approx(expected, abs=0.06)


def test_the_command_line_of_balance_names_the_design(capsys) -> None:
    balance = imported("balance")
    options = balance.parsed(["train", "--tasks", "slcp", "--families", "rnpe", "npe", "--batches", "64"])
    design = balance.design_of(options)
    assert (design.tasks, design.batches) == (("slcp",), (64,))
    assert [family for family, _ in design.families] == ["rnpe", "npe"]
    assert balance.design_of(balance.parsed(["train"])) == balance.Design()
    with pytest.raises(SystemExit):
        balance.parsed(["train", "--quick"])
    assert "--quick needs --out" in capsys.readouterr().err


def test_rolls_of_a_task_are_its_exact_log_ratios() -> None:
    """The second roll by likelihoods, against the posterior evaluated there."""
    balance = imported("balance")
    import equipoise as eq

    task = eq.task("slcp")
    rolls = balance.exact_rolls("slcp", 2, 50)
    found = eq.simulate(task.prior, task.simulate, 50, seed=10_002)
    there = balance.exact(task, found.theta.roll(1, 0), found.x)
    torch.testing.assert_close(rolls[1], there, rtol=1e-4, atol=1e-3)


def test_load_measures_folders_of_many_cells(printed) -> None:
    text = printed("load", "--cells", "100", "--only", "status,results")
    rows = [line.split("|") for line in text.splitlines() if "one-cell" in line]
    assert len(rows) == 2 and all(float(row[4]) > 100 for row in rows)
