"""`simulate`: what it accepts, what it repeats, what it refuses, and what it keeps when something fails."""

from __future__ import annotations

import hashlib
import math
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import equipoise as eq
from equipoise.simulations import InvalidSimulationsWarning, SimulationError
from equipoise.simulations.probing import adapt

PRIOR = eq.BoxUniform([-1.0, 0.5], [1.0, 2.0])


# --- simulators as users write them --------------------------------------------------------------------------------


def torch_batched(theta):
    return theta[:, :1] + theta[:, 1:] * torch.randn(len(theta), 3)


def torch_batched_seed(theta, seed):
    generator = torch.Generator().manual_seed(seed)
    return theta[:, :1] + theta[:, 1:] * torch.randn(len(theta), 3, generator=generator)


def torch_single(theta):
    mean, scale = theta
    return mean + scale * torch.randn(3)


def numpy_batched(theta):
    return theta[:, :1] + theta[:, 1:] * np.random.standard_normal((len(theta), 3))  # noqa: NPY002


def numpy_single_seed(theta, seed):
    return np.random.default_rng(seed).normal(theta[0], theta[1], size=3)


def python_single(theta):
    return [random.gauss(float(theta[0]), float(theta[1])) for _ in range(3)]


def elementwise(theta):
    """The law for one θ is right; given a batch it would share one noise among the rows."""
    return np.concatenate([theta, theta[..., :1]], -1) * 0 + theta[..., :1] + theta[..., 1:] * np.random.randn(3)  # noqa: NPY002


SIMULATORS = {
    # simulator: (batched, array)
    torch_batched: (True, "torch"),
    torch_batched_seed: (True, "torch"),
    torch_single: (False, "torch"),
    numpy_batched: (True, "numpy"),
    numpy_single_seed: (False, "numpy"),
    python_single: (False, "numpy"),
    elementwise: (False, "numpy"),
}
every_simulator = pytest.mark.parametrize("simulator", list(SIMULATORS), ids=lambda f: f.__name__)


@every_simulator
def test_finds_out_how_a_simulator_is_called(simulator) -> None:
    theta = PRIOR.sample((7,)).numpy()
    adapter = adapt(simulator, theta, seed=0)
    assert (adapter.batched, adapter.array) == SIMULATORS[simulator]


@every_simulator
def test_law_and_shape(simulator) -> None:
    """(x - θ0)/θ1 is standard normal, independently over rows: the mean of 3·2000 has standard error 0.013, and so has
    the correlation of neighbouring rows. Bounds at 4 standard errors, a false alarm in 16,000; the seed is fixed."""
    pairs = eq.simulate(PRIOR, simulator, 2000, seed=3)
    assert pairs.theta.shape == (2000, 2) and pairs.x.shape == (2000, 3)
    assert pairs.theta.dtype == pairs.x.dtype == torch.float32
    z = (pairs.x - pairs.theta[:, :1]) / pairs.theta[:, 1:]
    assert abs(z.mean()) < 4 / 6000**0.5 and abs(z.std() - 1) < 4 / 12000**0.5
    assert abs((z[1:] * z[:-1]).mean()) < 4 / 6000**0.5
    assert PRIOR.contains(pairs.theta).all() and len(pairs.theta.unique(dim=0)) == 2000


@every_simulator
def test_repeats_and_leaves_the_global_generators_alone(simulator) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    want = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    first = eq.simulate(PRIOR, simulator, 50, seed=5)
    assert want == (random.random(), np.random.rand(), torch.rand(1))  # noqa: NPY002
    again, other = (eq.simulate(PRIOR, simulator, 50, seed=s) for s in (5, 6))
    assert torch.equal(first.theta, again.theta) and torch.equal(first.x, again.x)
    assert not torch.isin(other.theta, first.theta).any() and not torch.isin(other.x, first.x).any()


@every_simulator
@settings(max_examples=8, deadline=None)
@given(n=st.integers(1, 100), more=st.integers(0, 100), size=st.sampled_from([1, 7, 64]))
def test_fewer_are_a_prefix_of_more(simulator, n: int, more: int, size: int) -> None:
    options = {"batched": SIMULATORS[simulator][0], "array": SIMULATORS[simulator][1], "block_size": size}
    few, many = (eq.simulate(PRIOR, simulator, k, seed=2, **options) for k in (n, n + more))
    assert len(few) == n
    assert torch.equal(few.theta, many.theta[:n]) and torch.equal(few.x, many.x[:n])


UNIFORM = {
    "torch": lambda theta: torch.rand(len(theta), 3) + 0 * theta[:, :1],
    "torch, seed": lambda theta, seed: (
        torch.rand(len(theta), 3, generator=torch.Generator().manual_seed(seed)) + 0 * theta[:, :1]
    ),
    "numpy": lambda theta: np.random.random((len(theta), 3)) + 0 * theta[:, :1],  # noqa: NPY002
    "numpy, seed": lambda theta, seed: np.random.default_rng(seed).random(3) + 0 * theta[0],
    "python": lambda theta: [random.random() + 0 * float(theta[0]) for _ in range(3)],
}


@pytest.mark.parametrize(
    ("simulator", "block_size", "x"),
    [
        ("torch", None, "35b10d07234b0411"),
        ("torch", 64, "24b9c991515a3abd"),
        ("torch, seed", 64, "24b9c991515a3abd"),
        ("numpy", 64, "8d11db4bace49ba3"),
        ("numpy, seed", None, "fdf54653df43dbaa"),
        ("numpy, seed", 64, "db1b98cb20d57794"),
        ("python", 64, "a0b270af31560eed"),
    ],
)
def test_a_seed_gives_what_it_always_gave(simulator: str, block_size: int | None, x: str) -> None:
    """To the bit, as of version 0.1: stores and stored results rely on it. Uniform numbers do not depend on the CPU."""

    def digest(values: Tensor) -> str:
        return hashlib.blake2b(values.numpy().tobytes(), digest_size=8).hexdigest()

    pairs = eq.simulate(eq.BoxUniform([0.0] * 2, [1.0] * 2), UNIFORM[simulator], 150, seed=11, block_size=block_size)
    assert digest(pairs.theta) == ("39ac240118478e03" if block_size is None else "fcac1f1a644ff7b6")
    assert digest(pairs.x) == x


@pytest.mark.parametrize("simulator", [torch_batched, python_single, lambda theta, shift=5.0: [shift, *theta]])
def test_number_of_workers_changes_nothing(simulator) -> None:
    one, two = (eq.simulate(PRIOR, simulator, 150, seed=1, workers=w, block_size=64) for w in (1, 2))
    assert torch.equal(one.theta, two.theta) and torch.equal(one.x, two.x)


# --- shapes and kinds of output ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (3, 5, 5)])
def test_any_fixed_shape(shape) -> None:
    pairs = eq.simulate(PRIOR, lambda theta: float(theta[0]) + np.zeros(shape), 10)
    assert pairs.x.shape == (10, *(shape or (1,)))
    torch.testing.assert_close(pairs.x.flatten(1)[:, 0], pairs.theta[:, 0])


def test_batched_scalars_become_vectors_of_one() -> None:
    assert eq.simulate(PRIOR, lambda theta: theta[:, 0] + torch.randn(len(theta)), 10).x.shape == (10, 1)


def test_deterministic_simulators_are_batched_where_they_can_be() -> None:
    calls: list[int] = []

    def simulator(theta):
        calls.append(theta.ndim)
        return torch.stack([theta[..., 0] ** 2, theta[..., 1]], -1)

    pairs = eq.simulate(PRIOR, simulator, 2000)
    assert len(calls) < 20
    assert torch.equal(pairs.x[:, 0], pairs.theta[:, 0] ** 2)


def test_a_simulator_that_changes_theta_in_place_changes_nothing_stored() -> None:
    def simulator(theta):
        theta *= 100
        return theta + torch.randn_like(theta)

    assert eq.simulate(PRIOR, simulator, 10).theta.abs().max() <= 2


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "returned None"),
        (1j, "complex"),
        ("text", "dtype"),
        ({"a": 1}, "dtype"),
        ([[1.0], [1.0, 2.0]], "not one array"),
    ],
)
def test_output_that_is_not_numbers(output, message) -> None:
    with pytest.raises(SimulationError, match=message):
        eq.simulate(PRIOR, lambda theta: output, 5, batched=False, array="numpy")


def test_output_whose_shape_varies() -> None:
    with pytest.raises(SimulationError, match="shape"):
        eq.simulate(PRIOR, lambda theta: np.zeros(3 + (theta[0] > 0.5)), 100, batched=False, array="numpy")
    with pytest.raises(SimulationError, match="batched=False"):
        eq.simulate(PRIOR, lambda theta: torch.zeros(3), 10, batched=True, array="torch")


def test_annotation_and_explicit_words_decide() -> None:
    seen = []

    def simulator(theta: np.ndarray) -> np.ndarray:
        seen.append(type(theta))
        return theta + np.random.randn(len(theta), 2)  # noqa: NPY002

    eq.simulate(PRIOR, simulator, 10)
    assert set(seen) == {np.ndarray}
    seen.clear()
    eq.simulate(PRIOR, simulator, 10, batched=True, array="numpy")
    assert len(seen) == 1, "nothing is tried when everything is said"


def test_values_beyond_float32_are_invalid() -> None:
    with pytest.warns(InvalidSimulationsWarning):
        pairs = eq.simulate(PRIOR, lambda theta: np.where(theta[:, :1] > 0, 1e300, 1.0), 100)
    assert torch.equal(pairs.x, torch.ones_like(pairs.x)) and (pairs.theta[:, 0] <= 0).all()


# --- invalid rows --------------------------------------------------------------------------------------------------


def sometimes_nan(theta):
    x = theta + torch.randn_like(theta)
    return torch.where(theta[:, :1] > 0.5, torch.nan, x)


def test_invalid_rows_are_dropped_counted_and_shown() -> None:
    everything = eq.simulate(PRIOR, sometimes_nan, 500, on_invalid="keep")
    bad = everything.theta[:, 0] > 0.5
    assert len(everything) == 500 and everything.n_invalid == int(bad.sum()) > 50
    with pytest.warns(InvalidSimulationsWarning, match=rf"{int(bad.sum())} of 500") as caught:
        pairs = eq.simulate(PRIOR, sometimes_nan, 500)
    assert caught[0].filename == __file__, "the warning points at the user's own line"
    assert pairs.n_invalid == int(bad.sum()) and len(pairs) == 500 - pairs.n_invalid
    assert torch.equal(pairs.theta, everything.theta[~bad]) and torch.equal(pairs.x, everything.x[~bad])
    assert torch.equal(pairs.invalid_theta, everything.theta[bad])


@pytest.mark.parametrize("batched", [True, False])
def test_masked_values_are_invalid(batched: bool) -> None:
    def simulator(theta: np.ndarray) -> np.ndarray:
        return np.ma.array(theta, mask=theta > 0.9)

    options = {"batched": batched, "array": "numpy", "on_invalid": "keep"}
    kept = eq.simulate(PRIOR, simulator, 200, **options)
    assert kept.n_invalid == int((kept.theta > 0.9).any(1).sum()) > 0
    assert torch.equal(kept.x.isnan(), kept.theta > 0.9)
    pairs = eq.Simulations(np.ma.array(np.ones((3, 1))), np.ma.array([[1], [2], [3]], mask=[[0], [1], [0]]))
    assert pairs.x.isnan().flatten().tolist() == [False, True, False]


def test_tables_are_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert torch.equal(eq.Simulations(frame[["a"]], frame).x, torch.tensor([[1.0, 3.0], [2.0, 4.0]]))
    pairs = eq.simulate(PRIOR, lambda theta: pandas.Series(np.asarray(theta)), 20, batched=False, array="numpy")
    assert torch.equal(pairs.x, pairs.theta)


@pytest.mark.parametrize("store", [False, True])
def test_values_beyond_single_precision_are_named_as_such(store: bool, tmp_path) -> None:
    options = {"batched": True, "array": "numpy", "store": tmp_path if store else None}
    for _ in range(2):  # a store knows it later, too
        with pytest.raises(ValueError, match=r"all 100 simulations .*too large for single precision.*rescale x"):
            eq.simulate(PRIOR, large, 100, **options)
    with pytest.raises(SimulationError, match="too large for single precision"):
        eq.simulate(PRIOR, large, 100, on_invalid="raise", batched=True, array="numpy")
    with pytest.warns(InvalidSimulationsWarning, match=r"NaN or infinite values and were left out"):
        eq.simulate(PRIOR, lambda t: np.where(t > 0.9, np.nan, t), 100, batched=True, array="numpy")


def large(theta: np.ndarray) -> np.ndarray:
    return (1 + theta) * 1e45


def test_invalid_rows_refused() -> None:
    with pytest.raises(SimulationError, match="NaN or infinite") as caught:
        eq.simulate(PRIOR, sometimes_nan, 500, on_invalid="raise", block_size=50)
    everything = eq.simulate(PRIOR, sometimes_nan, 500, on_invalid="keep", block_size=50)
    assert len(caught.value.simulations) == 50
    assert caught.value.row == int((everything.theta[:, 0] > 0.5).nonzero()[0])
    assert torch.equal(caught.value.theta, everything.theta[caught.value.row])


# --- failures ------------------------------------------------------------------------------------------------------


class Fragile:
    """Fails at one θ of block 0, once it is told which."""

    def __init__(self, poison: float | None = None, batched: bool = False) -> None:
        self.poison, self.batched = poison, batched

    def __call__(self, theta: Tensor) -> Tensor:
        first = theta[..., 0]
        if self.poison is not None and (first == self.poison).any():
            raise ZeroDivisionError("the pendulum is upside down")
        if self.batched:
            return theta[:, :1] + torch.randn(len(theta), 2)
        return theta[0] + torch.randn(2)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_failure_names_theta_and_loses_nothing(batched: bool, workers: int, tmp_path) -> None:
    options = {"batched": batched, "array": "torch", "block_size": 16, "seed": 4}
    good = eq.simulate(PRIOR, Fragile(batched=batched), 64, **options)
    row = 37
    broken = Fragile(float(good.theta[row, 0]), batched)
    with pytest.raises(SimulationError, match="upside down") as caught:
        eq.simulate(PRIOR, broken, 64, workers=workers, **options)
    error = caught.value
    assert error.row == row and torch.equal(error.theta, good.theta[row])
    assert f"Simulation {row} failed at theta = {good.theta[row].tolist()}" in str(error)
    assert "in __call__" in error.__notes__[0], "the simulator's own traceback is shown"
    done = error.simulations
    assert done is not None and len(done) >= (32 if batched else 37)
    where = (good.theta[:, None] == done.theta).all(-1).nonzero()
    assert len(where) == len(done) and torch.equal(done.x, good.x[where[:, 0]])

    folder = tmp_path / "store"
    with pytest.raises(SimulationError, match="kept in"):
        eq.simulate(PRIOR, broken, 64, workers=workers, store=folder, name="fragile", **options)
    calls: list[int] = []

    def mended(theta):
        calls.append(1)
        return Fragile(batched=batched)(theta)

    with pytest.raises(ValueError, match=r"has changed since .* was begun"):
        eq.simulate(PRIOR, mended, 64, store=folder, name="fragile", **options)
    calls.clear()
    resumed = eq.simulate(PRIOR, mended, 64, store=folder, name="fragile", same_simulator=True, **options)
    assert torch.equal(resumed.theta, good.theta) and torch.equal(resumed.x, good.x)
    assert len(calls) <= (2 if batched else 64 - 37), "only what was missing is simulated"


def test_batch_that_fails_as_a_whole() -> None:
    def simulator(theta):
        if len(theta) > 3:
            raise RuntimeError("out of memory")
        return theta

    with pytest.raises(SimulationError, match="no single theta of it fails alone"):
        eq.simulate(PRIOR, simulator, 64, batched=True, array="torch", block_size=16)


def test_interrupt_keeps_what_was_done(tmp_path) -> None:
    calls: list[int] = []

    def simulator(theta):
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return theta + np.random.randn(2)  # noqa: NPY002

    options = {"batched": False, "array": "numpy", "store": tmp_path / "store"}
    with pytest.raises(KeyboardInterrupt):
        eq.simulate(PRIOR, simulator, 50, block_size=10, **options)
    before = len(calls)
    eq.simulate(PRIOR, simulator, 50, **options)
    # One unit, at most the rest of a block of ten, was under way when the interrupt came.
    assert before + 50 - 30 <= len(calls) <= before + 50 - 30 + 11


def test_a_simulator_that_cannot_be_called_at_all() -> None:
    with pytest.raises(SimulationError, match=r"(?s)draw from the prior.*With numpy input") as caught:
        eq.simulate(PRIOR, lambda theta: theta.no_such_thing, 5)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_private_generator_is_noticed() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="generator of its own"):
        eq.simulate(PRIOR, lambda theta: theta + rng.normal(size=np.shape(theta)), 5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        *(({"n": v}, (ValueError, TypeError), "n is a whole") for v in (0, 2.5, -1, True, "5", None, math.nan, 10**30)),
        *(({"workers": v}, (ValueError, TypeError), "workers is") for v in (0, -2, 1.5, True, "2", None, 10**30)),
        *(({"seed": v}, (ValueError, TypeError), "seed") for v in (-1, 0.5, True, "0", None, 10**30)),
        *(({"block_size": v}, (ValueError, TypeError), "block_size") for v in (-1, 1.5, True, "2", 10**30)),
        *(({"storage": v}, (ValueError, TypeError), "storage") for v in (3, "", [], object())),
        *(({"store": v}, (ValueError, TypeError), "store") for v in (3, b"a", [], "a\0b")),
        *(({n: v}, TypeError, n) for n in ("verify", "same_simulator", "progress") for v in (0, "no", math.nan, [])),
        *(({"batched": v}, (ValueError, TypeError), "batched") for v in (0, "no", math.nan, [])),
        *(({"array": v}, (ValueError, TypeError), "array") for v in (3, [], np.zeros(3))),
        *(({"names": v}, ValueError, "names") for v in ("ab", ["a"], ["a", "a"], 3)),
        ({"on_invalid": "ignore"}, ValueError, "on_invalid"),
        ({"storage": "float16"}, ValueError, "storage"),
        ({"array": "jax"}, ValueError, "array"),
        ({"block_size": 0}, ValueError, "block_size"),
        ({"simulator": 3}, TypeError, "function of theta"),
        ({"prior": 3}, TypeError, "sample"),
    ],
)
def test_bad_arguments(change, error, message) -> None:
    arguments = {"prior": PRIOR, "simulator": torch_batched, "n": 5, **change}
    with pytest.raises(error, match=message):
        eq.simulate(**arguments)


# --- other people's priors and simulators --------------------------------------------------------------------------


def test_torch_and_opaque_priors() -> None:
    class Mixed:
        """A correlated prior that only has what the contract asks for, drawn with NumPy."""

        def sample(self, shape=()):
            z = torch.as_tensor(np.random.randn(*shape, 2))  # noqa: NPY002
            return torch.stack([z[..., 0], z[..., 0] + z[..., 1]], -1)

        def log_prob(self, theta):
            return -theta.square().sum(-1)

    for prior in (torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)), Mixed()):
        one, two = (eq.simulate(prior, torch_batched, 100, seed=1) for _ in range(2))
        assert one.theta.shape == (100, 2) and one.theta.dtype == torch.float32 and torch.equal(one.theta, two.theta)


def test_sbi_style() -> None:
    """A prior and simulator prepared by sbi's own helpers go straight in."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sbi.utils import BoxUniform
        from sbi.utils.user_input_checks import process_prior, process_simulator

        prior, _, returns_numpy = process_prior(BoxUniform(torch.zeros(2), torch.ones(2)))
        simulator = process_simulator(lambda theta: theta + 0.1 * torch.randn_like(theta), prior, returns_numpy)
    pairs = eq.simulate(prior, simulator, 300, seed=0)
    assert pairs.x.shape == (300, 2) and abs((pairs.x - pairs.theta).std() - 0.1) < 4 * 0.1 / 1200**0.5


def test_tasks_go_straight_in(tmp_path) -> None:
    tasks = pytest.importorskip("equipoise.tasks", reason="the tasks are not in this tree")
    for name in tasks.TASKS:
        task = eq.task(name)
        pairs = eq.simulate(task.prior, task.simulate, 20, seed=0)
        assert pairs.x.shape == (20, *task.x_shape)
        assert pairs.storage == task.storage
        stored = eq.simulate(task.prior, task.simulate, 20, seed=0, store=tmp_path / name)
        assert torch.equal(stored.x, pairs.x) and torch.equal(stored.theta, pairs.theta)


def test_names_of_parameters_are_kept(tmp_path) -> None:
    prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
    store = tmp_path / "store"
    call = {"batched": True, "array": "torch", "block_size": 8, "name": "identity", "version": "1"}
    assert eq.simulate(prior, lambda theta: theta, 10, **call).names is None
    assert eq.simulate(prior, lambda theta: theta, 10, names=["beta", "gamma"], **call).names == ("beta", "gamma")
    assert eq.simulate(prior.named(["a", "b"]), lambda theta: theta, 10, **call).names == ("a", "b")
    eq.simulate(prior, lambda theta: theta, 10, names=["beta", "gamma"], store=store, **call)
    more = eq.simulate(prior, lambda theta: theta, 20, store=store, **call)  # the store remembers them
    assert more.names == eq.Store(store).names == eq.read_simulations(store).names == ("beta", "gamma")
    with pytest.raises(ValueError, match="one name for each of the 2"):
        eq.simulate(prior, lambda theta: theta, 10, names=["beta"], **call)
    for damaged in (b"", b'["beta"]', b"\xff", b"3", b'["beta", 1]'):
        (store / "names.json").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"names\.json is damaged"):
            eq.read_simulations(store)
