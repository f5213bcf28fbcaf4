"""What every task promises: shapes, seeds, threads, prefixes, errors, broadcasting."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
from equipoise.tasks import TASKS, abstract_task
from equipoise.tasks.expected import estimate

MADE = {
    **{name: eq.task(name) for name in TASKS},
    "short": eq.task("lotka_volterra", steps=40),
    "clocked": eq.task("lotka_volterra", steps=50, clock="time", max_events=2000),
}
SHAPES = {
    "slcp": (2, (8,)),
    "weinberg": (1, (20,)),
    "spatial_sir": (2, (3, 50, 50)),
    "lotka_volterra": (2, (2001, 2)),
    "two_moons": (2, (2,)),
    "short": (2, (40, 2)),
    "clocked": (2, (50, 2)),
}
EXACT = ["slcp", "weinberg", "two_moons", "short"]


def draws(name: str, n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    prior = MADE[name].prior
    return prior.from_uniform(torch.rand(n, prior.dim, generator=generator))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", MADE)
def test_shapes_dtypes_and_seeds(name: str) -> None:
    task = MADE[name]
    dim, shape = SHAPES[name]
    theta = draws(name, 9)
    x = task.simulate(theta, seed=4)
    assert task.x_shape == shape and x.shape == (9, *shape) and x.dtype == torch.float32 and x.isfinite().all()
    assert task.prior.event_shape == (dim,) and len(task.parameters) == dim
    assert torch.equal(x, task.simulate(theta, seed=4))
    assert not torch.equal(x, task.simulate(theta, seed=5))
    assert repr(eq.task(task.name, **task.options)) == repr(task)


@pytest.mark.parametrize("name", MADE)
def test_threads_change_nothing(name: str, one_thread: None) -> None:
    task, theta = MADE[name], draws(name, 301)
    alone = task.simulate(theta)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(alone, task.simulate(theta))


@pytest.mark.parametrize("name", MADE)
def test_a_smaller_batch_is_a_prefix(name: str) -> None:
    task, theta = MADE[name], draws(name, 37)
    x = task.simulate(theta, seed=1)
    for k in (0, 1, 2, 16, 36):
        assert torch.equal(task.simulate(theta[:k], seed=1), x[:k])


@given(st.integers(0, 2**40), st.integers(1, 200), st.integers(0, 200))
@settings(max_examples=30, deadline=None)
def test_prefixes_for_any_seed_and_size(seed: int, n: int, k: int) -> None:
    task, theta = MADE["two_moons"], draws("two_moons", n)
    assert torch.equal(task.simulate(theta[:k], seed=seed), task.simulate(theta, seed=seed)[:k])


@pytest.mark.parametrize("name", MADE)
def test_rows_do_not_share_their_noise(name: str) -> None:
    task = MADE[name]
    x = task.simulate(draws(name, 1).expand(50, -1), seed=0).flatten(1)
    assert len(x.unique(dim=0)) > 1
    if name in ("slcp", "weinberg", "two_moons"):
        assert len(x.unique(dim=0)) == 50


@pytest.mark.parametrize("name", MADE)
def test_compact_form_holds_the_same_numbers(name: str) -> None:
    task, theta = MADE[name], draws(name, 6)
    compact = task.simulate_compact(theta, seed=2)
    assert torch.equal(torch.from_numpy(compact).float(), task.simulate(theta, seed=2))
    allowed = {"float32": ("float32",), "bits": ("uint8",), "integers": ("int16", "int32")}
    assert compact.dtype.name in allowed[task.storage]
    if task.storage == "bits":
        assert set(np.unique(compact)) <= {0, 1}


def test_concurrent_calls() -> None:
    task, theta = MADE["spatial_sir"], draws("spatial_sir", 40)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: task.simulate(theta, seed=seed), [0, 1, 0, 1]))
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert torch.equal(found[0], task.simulate(theta, seed=0))


def test_global_generators_are_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    MADE["slcp"].simulate(draws("slcp", 5))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", MADE)
def test_theta_is_taken_as_users_have_it(name: str) -> None:
    task = MADE[name]
    theta = draws(name, 3)
    x = task.simulate(theta)
    assert torch.equal(task.simulate(theta.numpy()), x)
    assert torch.equal(task.simulate(theta.double()), x)
    assert torch.equal(task.simulate(theta.tolist()), x)
    assert torch.equal(task.simulate(theta.clone().requires_grad_()), x)
    assert torch.equal(task.simulate(theta[0]), x[:1])
    assert torch.equal(task.simulate(theta.T.contiguous().T), x)
    middle = torch.ones(1, task.prior.dim, dtype=torch.int64)
    assert torch.equal(task.simulate(middle), task.simulate(middle.float()))
    assert task.simulate(torch.stack([task.prior.low, task.prior.high])).isfinite().all()


@pytest.mark.parametrize(
    ("theta", "error", "words"),
    [
        (torch.tensor([[0.0, 0.0], [3.5, 0.0]]), ValueError, r"theta\[1\] = \[3.5, 0.0\] is not inside the prior"),
        (torch.tensor([[math.nan, 0.0]]), ValueError, r"theta\[0\]"),
        (torch.tensor([[math.inf, 0.0]]), ValueError, r"theta\[0\]"),
        (torch.zeros(4, 3), ValueError, r"shape \(N, 2\).*got \(4, 3\)"),
        (torch.zeros(2, 2, 2), ValueError, r"shape \(N, 2\)"),
        (torch.zeros(()), ValueError, r"shape \(N, 2\)"),
        (torch.zeros(2, 2, dtype=torch.complex64), TypeError, "real numbers"),
        (torch.zeros(2, 2, dtype=torch.bool), TypeError, "real numbers"),
        ("theta", TypeError, "theta"),
    ],
)
def test_invalid_theta(theta, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MADE["slcp"].simulate(theta)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_invalid_seed(seed) -> None:
    with pytest.raises((ValueError, TypeError), match="seed is a whole number"):
        MADE["slcp"].simulate(torch.zeros(1, 2), seed=seed)


def test_unknown_names_and_options() -> None:
    assert list(eq.TASKS) == ["slcp", "weinberg", "spatial_sir", "lotka_volterra", "two_moons"]
    with pytest.raises(ValueError, match="did you mean 'lotka_volterra'"):
        eq.task("lotka-voltera")
    with pytest.raises(ValueError, match="slcp, weinberg"):
        eq.task("zzz")
    with pytest.raises(TypeError, match="does not take these options"):
        eq.task("slcp", steps=3)
    wrong = [{"steps": 0}, {"steps": 2.5}, {"clock": "sun"}, {"duration": 3.0}, {"clock": "time", "duration": -1.0}]
    for options in wrong:
        with pytest.raises(ValueError, match=r"steps|clock|duration"):
            eq.task("lotka_volterra", **options)


# --- the exact posterior -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_leading_dimensions_broadcast(name: str) -> None:
    task = MADE[name]
    theta, x = draws(name, 5), task.simulate(draws(name, 5))
    paired = task.log_posterior(theta, x)
    every = task.log_posterior(theta[:, None], x)
    assert paired.shape == (5,) and every.shape == (5, 5) and paired.dtype == torch.float32
    torch.testing.assert_close(every.diagonal(), paired)
    torch.testing.assert_close(task.log_posterior(theta, x[2]), every[:, 2])
    torch.testing.assert_close(task.log_posterior(theta[3], x), every[3])
    assert task.log_posterior(theta[0], x[0]).shape == ()
    assert task.log_posterior(theta.expand(2, 3, 5, -1), x).shape == (2, 3, 5)
    assert task.log_likelihood(theta, x).shape == paired.shape
    wide = theta.double()[:, None]
    difference = task.log_posterior(wide, x) - task.log_likelihood(wide, x)
    finite = difference[:, 1][difference[:, 1].isfinite()]
    torch.testing.assert_close(
        finite, finite[:1].expand_as(finite), atol=1e-4, rtol=1e-5
    )  # p(θ)/p(x): one x, one number


@pytest.mark.parametrize("name", EXACT)
def test_minus_infinity_outside_the_prior(name: str) -> None:
    task = MADE[name]
    x = task.simulate(draws(name, 2))
    outside = task.prior.high + 0.01
    assert (task.log_posterior(outside, x) == -math.inf).all()
    nan = torch.full((task.prior.dim,), math.nan)
    assert (task.log_posterior(nan, x) == -math.inf).all()
    for corner in (task.prior.low, task.prior.high):
        assert not task.log_posterior(corner, x).isnan().any()


@pytest.mark.parametrize("name", EXACT)
def test_posterior_refuses_what_it_cannot_mean(name: str) -> None:
    task = MADE[name]
    theta, x = draws(name, 4), task.simulate(draws(name, 4))
    with pytest.raises(ValueError, match="takes x with shape"):
        task.log_posterior(theta, x[..., :1])
    with pytest.raises(ValueError, match="takes theta with shape"):
        task.log_posterior(torch.zeros(4, 5), x)
    with pytest.raises(ValueError, match="give one x for all theta"):
        task.log_posterior(theta, x[:3])
    with pytest.raises(ValueError, match="NaN"):
        task.log_posterior(theta, torch.full_like(x, math.nan))


@pytest.mark.parametrize("name", ["spatial_sir", "clocked"])
def test_no_posterior_where_none_is_known(name: str) -> None:
    task = MADE[name]
    assert not task.has_exact_posterior
    x = task.simulate(draws(name, 1))
    for call in (task.log_posterior, task.log_likelihood):
        with pytest.raises(ValueError, match="not known"):
            call(draws(name, 1), x)
    with pytest.raises(ValueError, match="not known"):
        task.expected_log_posterior()


def test_large_evaluations_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    task = MADE["slcp"]
    theta, x = draws("slcp", 31), task.simulate(draws("slcp", 17))
    whole = task.log_posterior(theta[:, None], x)
    seen = []
    original = type(task)._log_likelihood

    def watched(self, t, s):
        result = original(self, t, s)
        seen.append(result.numel())
        return result

    monkeypatch.setattr(type(task), "_log_likelihood", watched)
    monkeypatch.setattr(abstract_task, "CHUNK", 40 * task._width)
    torch.testing.assert_close(task.log_posterior(theta[:, None], x), whole)
    assert max(seen) <= 40 and sum(seen) == 31 * 17


@pytest.mark.parametrize("name", ["slcp", "weinberg", "two_moons"])
def test_kept_expectation_agrees_with_a_fresh_one(name: str) -> None:
    kept, kept_error = MADE[name].expected_log_posterior()
    assert 0 < kept_error < 0.01
    value, error = estimate(MADE[name], 1500, seed=1)
    assert abs(value - kept) < 5 * math.hypot(error, kept_error)


def test_kept_expectation_of_lotka_volterra() -> None:
    for steps in (1001, 2001):
        value, error = eq.task("lotka_volterra", steps=steps).expected_log_posterior()
        assert -2 * math.log(5.0) < value < 0 and 0 < error < 0.01  # between the prior's and a very sharp one
    with pytest.raises(ValueError, match="no expected log posterior is kept"):
        MADE["short"].expected_log_posterior()


def test_a_task_says_everything_about_itself() -> None:
    for name, cls in TASKS.items():
        task = eq.task(name)
        assert cls.name == name and cls.label and len(cls.parameters) == task.prior.dim
        for options, _ in cls.expectations:
            assert eq.task(name, **options).expected_log_posterior()[1] < 0.01


def test_a_new_task_needs_its_class_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line(eq.Task):
        name, label, parameters = "line", "A line", ("a",)
        has_exact_posterior = False

        def __init__(self) -> None:
            self.prior, self.x_shape = eq.BoxUniform([0.0], [1.0]), (2,)

        def _draw(self, theta, key, dtype):
            return np.repeat(theta, 2, 1).astype(dtype)

    monkeypatch.setitem(TASKS, Line.name, Line)
    task = eq.task("line")
    pairs = eq.simulate(task.prior, task.simulator, 4, seed=0)
    assert pairs.x.shape == (4, 2) and repr(task) == "task('line')"
    with pytest.raises(ValueError, match="not known"):
        task.log_likelihood(pairs.theta, pairs.x)
