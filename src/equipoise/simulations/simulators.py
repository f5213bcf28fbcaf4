"""A user's simulator, whatever it looks like, as a function from a block of θ to a block of x.

A simulator is any callable `simulator(theta)` or `simulator(theta, seed=...)`. It may take one θ, with shape `(D,)`,
or a batch, with shape `(n, D)`; torch tensors (float32) or NumPy arrays (float64); and return a tensor, an array, a
list or a number, of any fixed shape.

**Streams.** Every unit of work has its own stream, keyed by the seed, the block, and (for simulators that take one θ
at a time) the row. From it come the integer given as `seed` and the states of the global generators of `random`,
NumPy and torch, which are set before each call, and given back to the caller as they were. So nothing depends on
which process simulates what, or in which order.
"""

from __future__ import annotations

__all__ = ["Adapter", "Failure", "Outcome", "as_array", "one_line", "seed_globals"]

import functools
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.support import randomness
from equipoise.support.arrays import plain


def seed_globals(seed: int, *path: str | int) -> int:
    """Set the global generators from a stream, and return the stream's integer."""
    words = randomness.sequence(seed, *path).generate_state(8)
    number = int(words[:2].view(np.uint64)[0]) >> 1  # as randomness.integer has it, without hashing the path again
    random.seed(number)
    # Simulators written for NumPy's global generator must be reproducible too, hence the legacy call.
    np.random.seed(words)  # noqa: NPY002
    torch.default_generator.manual_seed(number)
    if _has_cuda():
        torch.cuda.manual_seed_all(number)
    return number


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


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
        with randomness.undisturbed():
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
        number = seed_globals(seed, "simulations", *path)
        # A copy each time: a simulator that works in place must not change what is stored.
        given = torch.from_numpy(theta.copy()) if self.array == "torch" else theta.astype(np.float64)
        return self.simulator(given, seed=number) if self.takes_seed else self.simulator(given)


def as_array(output: Any) -> np.ndarray:
    """What a simulator returned, as a float32 array; values beyond float32 become infinite, masked ones NaN.

    Example:
        >>> as_array([1, 2.5])
        array([1. , 2.5], dtype=float32)
    """
    if output is None:
        raise TypeError("the simulator returned None; does it miss a return statement?")
    if isinstance(output, Tensor):
        output = output.detach().cpu()
        output = (output if output.is_complex() else output.to(torch.float32)).numpy()
    try:
        array = np.asarray(plain(output))
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


def _failure(row: int, theta: np.ndarray, error: BaseException, found: bool = True) -> Failure:
    reason = one_line(error) if found else f"{one_line(error)} (in a batch; no single theta of it fails alone)"
    return Failure(row, theta, reason, "".join(traceback.format_exception(error)))


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
