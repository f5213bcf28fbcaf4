"""The problems of the benchmarks: pairs that repeat, lie inside the prior and are finite; a posterior that is exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import problems
from benchmarks.problems import PROBLEMS
from scipy import stats

import equipoise as eq
from equipoise.experiments import load_grid


@pytest.mark.parametrize("name", PROBLEMS)
def test_pairs_repeat_and_lie_inside_the_prior(name: str) -> None:
    problem = PROBLEMS[name]
    theta, x = problem.simulate(40, seed=3)
    assert theta.shape == (40, problem.prior.dim) and x.shape == (40, *problem.x_shape)
    assert theta.dtype == x.dtype == torch.float32
    assert bool(problem.prior.contains(theta).all()) and bool(theta.isfinite().all()) and bool(x.isfinite().all())
    again, other = problem.simulate(40, seed=3), problem.simulate(40, seed=4)
    assert torch.equal(theta, again[0]) and torch.equal(x, again[1])
    assert not torch.equal(theta, other[0]) and not torch.equal(x, other[1])


def test_the_posterior_of_the_linear_problem_follows_from_bayes_rule() -> None:
    problem = PROBLEMS["linear"]
    theta, x = problem.simulate(5, seed=0)
    mean, covariance = problem.prior.loc.double().numpy(), problem.prior.covariance.double().numpy()
    design, noise = problems._DESIGN, problems._LINEAR_NOISE**2 * np.eye(16)
    evidence = stats.multivariate_normal(design @ mean, design @ covariance @ design.T + noise)
    assert problem.log_posterior is not None
    for t, o, found in zip(
        theta.double().numpy(), x.double().numpy(), problem.log_posterior(theta, x).tolist(), strict=True
    ):
        prior, likelihood = stats.multivariate_normal(mean, covariance), stats.multivariate_normal(design @ t, noise)
        assert found == pytest.approx(prior.logpdf(t) + likelihood.logpdf(o) - evidence.logpdf(o), abs=1e-6)


def test_entropies_agree_with_closed_forms() -> None:
    for name in ("switch", "linear", "exponentials"):
        prior = PROBLEMS[name].prior
        if name == "exponentials":
            # A log-uniform's entropy is E log θ + log log(high / low).
            rates = np.log(10) / 2 + np.log(np.log(10)) + np.log(0.1) + np.log(10) / 2 + np.log(np.log(10))
            expected = 2 * np.log(2) + rates + stats.norm(0, 0.5).entropy()
        elif name == "linear":
            expected = stats.multivariate_normal(np.zeros(12), prior.covariance.numpy()).entropy()
        else:
            expected = float(prior.entropy())
        assert problems.prior_entropy(PROBLEMS[name]) == pytest.approx(expected, abs=0.05)


def test_problems_are_chosen_by_name_and_group() -> None:
    groups = {group: [p.name for p in problems.named([group])] for group in ("choose", "confirm", "paper")}
    assert [len(g) for g in groups.values()] == [6, 4, 5]
    assert [p.name for p in problems.named(["slcp", "choose"])] == [*groups["choose"], "slcp"]
    with pytest.raises(ValueError, match="slpc"):
        problems.named(["slpc"])


def test_problems_are_tasks_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with dataclasses can be imported by its name, and what the task simulates is what the problem does."""
    monkeypatch.chdir(Path(problems.__file__).parents[1])
    grid = load_grid("frontier_untuned", import_tasks=True)
    assert [facts.x_dims for _, facts in grid.user_tasks] == [1] * 4
    for entry in grid.tasks:
        task = eq.task(entry.name, **dict(entry.options))
        problem = PROBLEMS[dict(entry.options)["problem"]]
        assert task.prior.dim == problem.prior.dim and task.x_shape == problem.x_shape
        assert task.has_exact_posterior == (problem.log_posterior is not None)
        theta, x = problem.simulate(20, seed=3)
        assert torch.equal(task.simulate(theta, seed=3), x)
        assert not torch.equal(task.simulate(theta, seed=4), x)
