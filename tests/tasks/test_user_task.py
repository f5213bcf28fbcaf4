"""Tasks of a user's own: read from a file, checked before anything runs, and run in a grid like the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from torch.distributions import Normal

import equipoise as eq
from equipoise.experiments import Folder, GridError, load_grid, read_results, run_grid, write_results
from equipoise.experiments.cells import stacks_of
from equipoise.report import write_report

FILE = '''
import numpy as np
import torch
import equipoise as eq


class Gauss:
    """x ~ N(theta, s^2), of which the posterior is known."""

    label = "A normal"

    def __init__(self, s=0.5):
        self.prior, self.s = eq.BoxUniform([-1.0, -1.0], [1.0, 1.0]).named(["mass", "age"]), s

    def simulate(self, theta):
        return theta + self.s * torch.randn_like(theta)

    def log_posterior(self, theta, x):
        box = torch.distributions.Normal(x, self.s)
        inside = (box.cdf(torch.ones_like(x)) - box.cdf(-torch.ones_like(x))).log()
        return torch.where((theta.abs() <= 1).all(-1), (box.log_prob(theta) - inside).sum(-1), -torch.inf)


class Seeded:
    prior = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3))

    def simulate(self, theta, seed):
        return np.random.default_rng(seed).normal(np.asarray(theta), 1.0).repeat(2, 1)


seeded = Seeded()
one = type("One", (), {"prior": eq.BoxUniform([0.0], [1.0]), "simulate": lambda self, theta: theta[0]})()
nothing = 3
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_file_holds_is_a_task(folder) -> None:
    task = eq.task("mine.py:Gauss", s=0.25)
    assert task.x_shape == (2,) and task.has_exact_posterior and task.options.keys() == {"s", "code"}
    theta = task.prior.sample((100,))
    x = task.simulate(theta, seed=3)
    assert torch.equal(x, task.simulate(theta, seed=3)) and not torch.equal(x, task.simulate(theta, seed=4))
    # the exact posterior is that of a truncated normal distribution, for one x and for one each
    at = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 201), torch.linspace(-1, 1, 201), indexing="ij"), -1)
    mass = task.log_posterior(at.reshape(-1, 2), x[0]).exp().reshape(201, 201)
    assert float(torch.trapezoid(torch.trapezoid(mass, dx=0.01), dx=0.01)) == pytest.approx(1, abs=1e-3)
    each = task.log_posterior(theta, x)
    assert torch.allclose(each[7], task.log_posterior(theta[7], x[7]))
    assert task.parameters == ("mass", "age") and eq.task("mine.py:seeded").parameters == ()
    assert task.label == "A normal" and eq.task("mine.py:seeded").label == "mine.py:seeded"
    again = eq.task("mine.py:Gauss", **task.options)
    assert again.options == task.options
    (folder / "mine.py").write_text(FILE + "\n# another\n")
    with pytest.raises(ValueError, match=r"the file of mine.py:Gauss has changed"):
        eq.task("mine.py:Gauss", **task.options)
    assert eq.task("mine.py:seeded").x_shape == (6,) and not eq.task("mine.py:seeded").has_exact_posterior


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("mine.py:Gaus", {}, ValueError, "has no Gaus; there are Gauss, Seeded"),
        ("nowhere.py:Gauss", {}, FileNotFoundError, "there is no file nowhere.py"),
        ("mine.py:nothing", {}, TypeError, "has no prior"),
        ("mine.py:seeded", {"s": 1}, TypeError, "takes no options"),
        ("mine.py:one", {}, ValueError, r"takes a batch of parameters with shape \(N, 1\)"),
        ("mine.py:", {}, ValueError, "is FILE.py:NAME or MODULE:NAME"),
        ("slpc", {}, ValueError, "did you mean 'slcp'.*FILE.py:NAME"),
    ],
)
def test_what_is_no_task_is_told(name, options, error, words, folder) -> None:
    with pytest.raises(error, match=words):
        eq.task(name, **options)


def test_a_grid_refuses_what_is_no_task_before_anything_runs(folder) -> None:
    with pytest.raises(GridError, match=r"mine\.py:nothing has no prior"):
        load_grid({"tasks": ["mine.py:nothing"], "methods": ["npe"], "budgets": [128]}, import_tasks=True)


@pytest.mark.slow
def test_a_grid_runs_them_and_knows_their_source(folder) -> None:
    config = {
        "tasks": ["mine.py:Gauss", {"name": "mine.py:Gauss", "s": 0.1}, "mine.py:seeded"],
        "methods": ["npe"],
        "budgets": [128],
        "members": 1,
        "pairs": 60,
        "test": 60,
        "samples": 16,
        "hidden": [8],
        "training": {"epochs": 2, "batch_size": 32},
    }
    assert run_grid(load_grid(config, import_tasks=True), folder / "out", device="cpu").complete
    ds = xr.open_dataset(write_results(Folder(folder / "out")))
    assert list(ds.task.values) == ["mine.py:Gauss", "mine.py:Gauss[s=0.1]", "mine.py:seeded"]
    assert np.isfinite(ds.coverage_auc.values).all()
    known = np.isfinite(ds.information_kept.values).all((1, 2, 3))
    assert known.tolist() == [True, True, False]
    # E log p(θ) of the box; of the three normal distributions over 60 pairs, standard error 0.16
    prior = [-np.log(4), -np.log(4), -3 * float(Normal(0, 1).entropy())]
    np.testing.assert_allclose(ds.prior_log_prob.values[:2], prior[:2], rtol=1e-5)
    assert ds.prior_log_prob.values[2] == pytest.approx(prior[2], abs=0.8)
    assert np.isfinite(ds.gallery_density.sel({"task": "mine.py:Gauss"}).values).all()
    # what its file says of a task travels to the report, which never runs the file
    assert ds.task_label.values.tolist() == ["A normal", "A normal (s 0.1)", "mine.py:seeded"]
    assert ds.task_parameters.values.tolist() == ['["mass", "age"]'] * 2 + ["[]"]
    page = write_report(read_results(folder / "out"), folder / "report.html").read_text()
    for words in ("across: mass, from", "up: age, from", "A normal (s 0.1)"):
        assert words in page
    before = {s.identity for s in stacks_of(load_grid(config, import_tasks=True))}
    (folder / "mine.py").write_text(FILE.replace("s=0.5", "s=0.4"))
    assert before.isdisjoint(s.identity for s in stacks_of(load_grid(config, import_tasks=True)))
