"""A user's simulator, whatever it looks like, as a function from a block of θ to a block of x.

A simulator is any callable `simulator(theta)` or `simulator(theta, seed=...)`. It may take one θ, with shape `(D,)`,
or a batch, with shape `(n, D)`; torch tensors (float32) or NumPy arrays (float64); and return a tensor, an array, a
list or a number, of any fixed shape.

**What it wants is found by trying** on a few draws from the prior, unless the caller says so. Tensors first: if it
cannot take them, mixes them with NumPy's arrays, or answers with something else, it is given arrays. A simulator
takes batches if 7 rows give 7 results and 3 rows give 3. One case would pass this test and be wrong: `theta + rng.normal(size=D)` accepts a
batch, but all of its rows share one noise. So rows with the same θ are compared: a simulator whose rows agree with
each other, and yet change with the seed, is called one θ at a time.

**Streams.** Every unit of work has its own stream, keyed by the seed, the block, and (for simulators that take one θ
at a time) the row. From it come the integer given as `seed` and the states of the global generators of `random`,
NumPy and torch, which are set before each call, and given back to the caller as they were. So nothing depends on
which process simulates what, or in which order.
"""

from __future__ import annotations

__all__ = ["Adapter", "Failure", "Outcome", "adapt", "global_streams", "global_streams_kept"]

import functools
import inspect
import random
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import randomness

#: Rows of the prior that are used to find out what a simulator wants.
PROBES = 7
_LOCK = threading.RLock()


@contextmanager
def global_streams_kept() -> Iterator[None]:
    """Give the global generators back as they were. One thread at a time, since there is one set of them."""
    with _LOCK:
        yield from _kept()


def _kept() -> Iterator[None]:
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def global_streams(seed: int, *path: str | int) -> int:
    """Set the global generators from a stream, and return the stream's integer."""
    number = randomness.integer(seed, *path)
    random.seed(number)
    # Simulators written for NumPy's global generator must be reproducible too, hence the legacy call.
    np.random.seed(randomness.sequence(seed, *path).generate_state(8))  # noqa: NPY002
    torch.default_generator.manual_seed(number)
    if _has_cuda():
        torch.cuda.manual_seed_all(number)
    return number


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


def adapt(
    simulator: Callable[..., Any], theta: np.ndarray, seed: int, batched: bool | None = None, array: str | None = None
) -> Adapter:
    """The adapter for a simulator. What the caller did not say is found out on rows of `theta`, with shape `(7, D)`."""
    if not callable(simulator):
        raise TypeError(f"the simulator should be a function of theta, got {type(simulator).__name__}")
    if array not in (None, "torch", "numpy"):
        raise ValueError(f"array should be 'torch' or 'numpy' (or None to find out), got {array!r}")
    takes_seed, hint = _signature(simulator)
    if batched is not None and array is not None:
        return Adapter(simulator, array, batched, takes_seed)
    found: Adapter | None = None
    failures: list[tuple[str, BaseException]] = []
    kinds = [array] if array is not None else ["numpy", "torch"] if hint == "numpy" else ["torch", "numpy"]
    for kind in kinds:
        probe = _Probe(simulator, kind, takes_seed, theta, seed)
        takes_batches = probe.takes_batches() if batched is None else probe.works(batched)
        if takes_batches is None:
            failures.append((kind, probe.failure or RuntimeError("it failed")))
            continue
        found = Adapter(simulator, kind, takes_batches if batched is None else batched, takes_seed)
        if kind == "numpy" or probe.answered_in_torch:
            break
    if found is None:
        kind, error = failures[0]
        also = "".join(f"\nWith {k} input: {_one_line(e)}" for k, e in failures[1:])
        raise Failure(
            0, theta[0], f"with {kind} input: {_one_line(error)}{also}", "".join(traceback.format_exception(error))
        ) from error
    _warn_if_unrepeatable(found, theta, seed)
    return found


class Failure(RuntimeError):
    """A simulation that raised: at which row of its block, at which θ, and why. It travels between processes."""

    def __init__(self, row: int, theta: np.ndarray, reason: str, trace: str) -> None:
        super().__init__(row, theta, reason, trace)
        self.row, self.theta, self.reason, self.trace = row, theta, reason, trace


@dataclass(frozen=True, eq=False)
class Outcome:
    """The rows of a block that were simulated, and the failure that ended the work early, if any."""

    block: int
    rows: np.ndarray
    theta: np.ndarray
    x: np.ndarray
    failure: Failure | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """A simulator, and how it is to be called."""

    simulator: Callable[..., Any]
    array: str
    batched: bool
    takes_seed: bool

    def run(self, seed: int, block: int, rows: np.ndarray, theta: np.ndarray) -> Outcome:
        """Simulate the given rows of a block; `theta`, with shape `(len(rows), D)`, are their parameters."""
        started = time.monotonic()
        with global_streams_kept():
            if self.batched:
                x, failure = self._run_batch(seed, block, theta)
            else:
                x, failure = self._run_rows(seed, block, rows, theta)
        return Outcome(block, rows[: len(x)], theta[: len(x)], x, failure, time.monotonic() - started)

    def _run_batch(self, seed: int, block: int, theta: np.ndarray) -> tuple[np.ndarray, Failure | None]:
        try:
            return self.call(theta, seed, "x", block), None
        except Exception as error:
            row = self._culprit(theta, seed, block)
            return np.empty((0, 0), np.float32), _failure(row or 0, theta[row or 0], error, found=row is not None)

    def _culprit(self, theta: np.ndarray, seed: int, block: int) -> int | None:
        """The row whose θ makes a batch fail, by halving; None if no row fails without the others."""
        low, high = 0, len(theta)
        while high - low > 1:
            middle = (low + high) // 2
            if self._fails(theta[low:middle], seed, block):
                high = middle
            else:
                low = middle
        return low if self._fails(theta[low:high], seed, block) else None

    def _fails(self, theta: np.ndarray, seed: int, block: int) -> bool:
        try:
            self.call(theta, seed, "x", block)
        except Exception:
            return True
        return False

    def _run_rows(
        self, seed: int, block: int, rows: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, Failure | None]:
        done: list[np.ndarray] = []
        failure = None
        for row, parameters in zip(rows.tolist(), theta, strict=True):
            try:
                x = self.call(parameters, seed, "x", block, row)
                if done and x.shape != done[0].shape:
                    raise ValueError(
                        f"the simulator returned shape {x.shape} here and {done[0].shape} before; the shape of "
                        "x must be the same for every theta (pad, crop or summarise)"
                    )
                done.append(x)
            except Exception as error:
                failure = _failure(row, parameters, error)
                break
        return np.stack(done) if done else np.empty((0, 0), np.float32), failure

    def call(self, theta: np.ndarray, seed: int, *path: str | int) -> np.ndarray:
        """Simulate once: a batch `(n, D)` to float32 `(n, *x_shape)`, or one θ `(D,)` to float32 `(*x_shape)`."""
        x = as_array(self.raw(theta, seed, *path))
        if not self.batched:
            return x.reshape(1) if x.ndim == 0 else x
        if x.ndim == 0 or len(x) != len(theta):
            raise ValueError(
                f"the simulator was given {len(theta)} parameters at once and returned shape {x.shape}; it "
                f"should return ({len(theta)}, …). If it takes one theta at a time, pass batched=False."
            )
        return x.reshape(-1, 1) if x.ndim == 1 else x

    def raw(self, theta: np.ndarray, seed: int, *path: str | int) -> Any:
        """What the simulator itself returns."""
        number = global_streams(seed, "simulations", *path)
        # A copy each time: a simulator that works in place must not change what is stored.
        given = torch.from_numpy(theta.copy()) if self.array == "torch" else theta.astype(np.float64)
        return self.simulator(given, seed=number) if self.takes_seed else self.simulator(given)


def as_array(output: Any) -> np.ndarray:
    """What a simulator returned, as a float32 array; values beyond float32 become infinite.

    Example:
        >>> as_array([1, 2.5])
        array([1. , 2.5], dtype=float32)
    """
    if output is None:
        raise TypeError("the simulator returned None; does it miss a return statement?")
    if isinstance(output, Tensor):
        output = output.detach().cpu()
        if output.is_complex():
            raise TypeError(
                "the simulator returned complex numbers; return their real and imaginary parts as two channels"
            )
        return output.to(torch.float32, copy=True).numpy()
    try:
        array = np.asarray(output)
    except ValueError as error:
        raise TypeError(f"the simulator returned a {type(output).__name__} that is not one array: {error}") from error
    if array.dtype.kind == "c":
        raise TypeError("the simulator returned complex numbers; return their real and imaginary parts as two channels")
    if array.dtype.kind not in "fiub":
        raise TypeError(
            f"the simulator returned a {type(output).__name__} of dtype {array.dtype}; it should return "
            "numbers, as a tensor, an array, a list or a scalar"
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


class _Probe:
    """Tries a simulator with one kind of array."""

    def __init__(self, simulator: Any, kind: str, takes_seed: bool, theta: np.ndarray, seed: int) -> None:
        self.batch, self.single = (Adapter(simulator, kind, flag, takes_seed) for flag in (True, False))
        self.theta, self.seed = theta, seed
        self.failure: BaseException | None = None
        self.answered_in_torch = False

    def works(self, batched: bool) -> bool | None:
        """True if it can be called in the given way, None if not."""
        return True if self._try(batched, self.theta[:3] if batched else self.theta[0]) is not None else None

    def takes_batches(self) -> bool | None:
        """Whether it takes batches; None if it can be called in neither way."""
        theta = self.theta
        many, few = self._try(True, theta), None
        if many is not None:
            few = self._try(True, theta[:3])
        follows = many is not None and few is not None and many.shape[1:] == few.shape[1:]
        one = self._try(False, theta[0])
        if not follows:
            return None if one is None else False
        assert many is not None
        if one is None or one.shape != many.shape[1:]:
            return True
        same = np.repeat(theta[:1], PROBES, 0)
        rows = self._try(True, same)
        if rows is None or not _equal(rows, np.repeat(rows[:1], PROBES, 0)):
            return True
        again = self._try(True, same, "again")
        if again is None or not _equal(rows, again):
            return False  # random, and yet the same in each row: the rows share their noise
        return bool(np.allclose(many[0], one, rtol=1e-4, atol=1e-6, equal_nan=True))

    def _try(self, batched: bool, theta: np.ndarray, *path: str) -> np.ndarray | None:
        adapter = self.batch if batched else self.single
        try:
            with global_streams_kept(), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                output = adapter.raw(theta, self.seed, "probe", *path)
                x = as_array(output)
                if batched and (x.ndim == 0 or len(x) != len(theta)):
                    raise ValueError(f"{len(theta)} parameters at once gave an x of shape {x.shape}")
        except Exception as error:
            self.failure = error
            return None
        # A tensor mixed with NumPy's arrays gives a NumPy simulator away: it becomes float64, or NumPy complains.
        mixed = any("__array_wrap__" in str(w.message) for w in caught)
        self.answered_in_torch = isinstance(output, Tensor) and output.dtype != torch.float64 and not mixed
        x = x.reshape(-1, 1) if batched and x.ndim == 1 else x
        return x.reshape(1) if x.ndim == 0 else x


def _warn_if_unrepeatable(adapter: Adapter, theta: np.ndarray, seed: int) -> None:
    given = theta[:3] if adapter.batched else theta[0]
    with global_streams_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repeatable = _equal(*(adapter.call(given, seed, "probe") for _ in range(2)))
    if not repeatable:
        warnings.warn(
            "the simulator gave two answers to one theta and one state of the global generators: it keeps a "
            "generator of its own, so simulations cannot be repeated, and in several processes its streams may "
            "coincide. Let it take seed=… and make its generator from that.",
            UserWarning,
            stacklevel=4,
        )


def _signature(simulator: Callable[..., Any]) -> tuple[bool, str | None]:
    """Whether the simulator takes `seed`, and the kind of array its annotation names."""
    try:
        parameters = list(inspect.signature(simulator).parameters.values())
    except (TypeError, ValueError):  # builtins and some extension functions have no signature
        return False, None
    takes_seed = any(p.name == "seed" and p.kind is not p.POSITIONAL_ONLY for p in parameters)
    annotation = str(parameters[0].annotation).lower() if parameters else ""
    return takes_seed, "numpy" if "ndarray" in annotation else None


def _failure(row: int, theta: np.ndarray, error: BaseException, found: bool = True) -> Failure:
    reason = _one_line(error) if found else f"{_one_line(error)} (in a batch; no single theta of it fails alone)"
    return Failure(row, theta, reason, "".join(traceback.format_exception(error)))


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
