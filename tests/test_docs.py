"""The examples of README.md and docs/ run, as they stand and in their order, with networks that train for one epoch."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import types
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.diagnostics import dataset
from equipoise.losses.objective import BALANCES, LOSSES
from equipoise.methods import resolve_all
from equipoise.training import PAPER

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if BLOCK.search(page.read_text())]
#: What a page takes for granted.
BEFORE = {
    "posteriors": """
import arviz
import equipoise as eq
prior = eq.BoxUniform([0, 0], [1, 1])
theta = prior.sample((200,))
x = theta + 0.1 * torch.randn(200, 2)
x_o = x[0]
posterior = eq.fit(theta, x, prior=prior)
""",
    "diagnostics": """
import equipoise as eq
prior = eq.BoxUniform([0, 0], [1, 1])
def simulator(theta): return theta + 0.1 * torch.randn_like(theta)
pairs = eq.simulate(prior, simulator, 200, seed=0)
posterior = eq.fit(pairs.theta, pairs.x, prior=prior)
""",
    "report": """
import pathlib, shutil
pathlib.Path("demo").mkdir()
shutil.copy(ROOT / "results" / "leakage.nc", "demo/results.nc")
""",
    "training": """
prior = eq.BoxUniform([0, 0], [1, 1])
theta = prior.sample((200,))
x = theta[:, None] + 0.1 * torch.randn(200, 5, 2)
""",
}


class Writer:
    """Stands for a tracker, which is not among what the tests need."""

    def add_scalars(self, name: str, values: dict[str, float], epoch: int) -> None:
        assert values and all(isinstance(v, float) for v in values.values())


@pytest.fixture
def registries(monkeypatch):
    """What a page adds to a table is gone afterwards."""
    tables: list[dict] = [eq.METHODS, eq.TASKS, BALANCES, LOSSES]
    before = [dict(table) for table in tables]
    monkeypatch.setattr(dataset, "VARIABLES", dataset.VARIABLES)
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


#: Pages on which `eq.fit` has all of its default, folds and calibration too.
WHOLE = ("README", "conservative", "index")


@pytest.fixture
def small(monkeypatch, tmp_path, page):
    """Everything that takes long takes less; what is written goes to a folder of its own."""

    def fewer(theta, x=None, **options):
        default = page.stem in WHOLE and "method" not in options
        options = {"method": "calibrated" if default else "bnpe_init", "settings": eq.Settings(compile=False)} | options
        options = ({"folds": 5, "calibrate": True} if default else {}) | options | {"epochs": 1, "progress": False}
        if not options.get("folds"):
            options["members"] = 2
        options["method"] = [row.but(hidden=(8,)) for row in resolve_all(options["method"])]
        if x is None and page.stem in WHOLE:
            theta, x = theta.theta[:100], theta.x[:100]
        whole = x is None or hasattr(x, "lazy_x")  # simulations have no rows of x by index
        return fit(theta if whole else theta[:400], x if whole else x[:400], **options)

    def many(members, data, **options):
        members = [dataclasses.replace(m, method=m.method.but(hidden=(8,))) for m in members]
        options |= {"settings": dataclasses.replace(options.get("settings", PAPER), epochs=1), "progress": False}
        return fit_many(members, [(theta[:400], x[:400]) for theta, x in data], **options)

    fit, fit_many = eq.fit, eq.fit_many
    simulate, tracker = eq.simulate, types.ModuleType("torch.utils.tensorboard")
    tracker.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, tracker.__name__, tracker)
    monkeypatch.setattr(torch.utils, "tensorboard", tracker, raising=False)
    monkeypatch.setattr(eq, "fit", fewer)
    monkeypatch.setattr(eq, "fit_many", many)
    monkeypatch.setattr(eq, "diagnose", functools.partial(eq.diagnose, samples=20, progress=False))
    monkeypatch.setattr(eq, "simulate", functools.partial(simulate, progress=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what one epoch gives, there is much to warn of
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page, small, registries):
    text = page.read_text()
    names: dict[str, object] = {"torch": torch, "eq": eq, "ROOT": ROOT, "__name__": "__main__"}
    exec(BEFORE.get(page.stem, ""), names)
    for found in BLOCK.finditer(text):
        line = text[: found.start()].count("\n") + 1
        exec(compile("\n" * line + found[1], str(page), "exec"), names)
