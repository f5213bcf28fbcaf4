"""Finding out how a simulator is to be called, unless the caller says so with `batched=` and `array=`.

Its signature says whether it takes a seed, and may name NumPy. The rest is tried on draws from the prior. Tensors come
first: if it cannot take them, mixes them with NumPy's arrays, or answers with something else, it is given arrays. It
takes batches if 7 rows give 7 results and 3 rows give 3.

Many simulators written for one θ accept a batch too, by broadcasting, and are wrong there: the rows of
`theta + rng.normal(size=D)` share one noise, and `y / y.max()` divides by the largest of all rows. Where both ways
work, a deterministic simulator must give the rows that it gives one by one. A random one is called R times with a
batch of θ_1, …, θ_7 and S times with each θ_j alone. Summaries of x are ranked over the R + S draws at each θ_j and
scaled to z, with mean 0 and variance 1. If batches are right, Σ_b (Σ_j z_bj)² / 7 over batches is about χ² with R
degrees of freedom, as rows are independent, and S Σ_j (mean of z_j one by one)² about χ² with 7, as a row has the same
law in a batch as alone. (Ranks, cut at ±2, have lighter tails.) A p-value below `LEVEL`, divided by the number of
summaries, speaks against batches.
"""

from __future__ import annotations

__all__ = ["PROBES", "adapt"]

import inspect
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.special import chdtrc
from torch import Tensor

from equipoise.support import randomness
from equipoise.support.errors import warn

from .simulators import Adapter, Failure, as_array, one_line

#: Rows of the prior that are used.
PROBES = 7
#: How often they are simulated as a batch, and one by one: at most, and at least where that takes over so many seconds.
BATCHES, SINGLES, SECONDS = (30, 10), (6, 3), 2.0
#: The chance of calling a right simulator one by one, at most.
LEVEL = 1e-4
#: Elements of x that are looked at.
ELEMENTS = 16


def adapt(
    simulator: Callable[..., Any], theta: np.ndarray, seed: int, batched: bool | None = None, array: str | None = None
) -> Adapter:
    """The adapter for a simulator. What the caller did not say is found out on rows of `theta`, with shape `(7, D)`."""
    if not callable(simulator):
        raise TypeError(f"the simulator should be a function of theta, got {type(simulator).__name__}")
    if array not in (None, "torch", "numpy"):
        raise ValueError(f"array should be 'torch' or 'numpy' (or None to find out), got {array!r}")
    takes_seed, prefers_numpy = _signature(simulator)
    if batched is not None and array is not None:
        return Adapter(simulator, array, batched, takes_seed)
    found: Adapter | None = None
    tried: _Probe | None = None
    failures: list[tuple[str, BaseException]] = []
    for kind in [array] if array is not None else ["numpy", "torch"] if prefers_numpy else ["torch", "numpy"]:
        probe = _Probe(simulator, kind, takes_seed, theta, seed)
        takes_batches = probe.takes_batches() if batched is None else batched if probe.works(batched) else None
        if takes_batches is None:
            failures.append((kind, probe.failure or RuntimeError("it failed")))
            continue
        found, tried = Adapter(simulator, kind, takes_batches, takes_seed), probe
        if kind == "numpy" or probe.answered_in_torch:
            break
    if found is None or tried is None:
        kind, error = failures[0]
        also = "".join(f"\nWith {k} input: {one_line(e)}" for k, e in failures[1:])
        reason, trace = f"with {kind} input: {one_line(error)}{also}", "".join(traceback.format_exception(error))
        raise Failure(0, theta[0], reason, trace) from error
    if found.batched and tried.random_both_ways and (doubt := tried.against_batches()):
        warn(
            f"the simulator takes one theta and a batch of them, but {doubt}. It is called one theta at a time. If it "
            "does treat the rows of a batch independently, pass batched=True, which is faster; if not, batched=False."
        )
        found = tried.single
    _warn_if_unrepeatable(found, theta, seed)
    return found


class _Probe:
    """Tries a simulator with one kind of array."""

    def __init__(self, simulator: Any, kind: str, takes_seed: bool, theta: np.ndarray, seed: int) -> None:
        self.batch, self.single = (Adapter(simulator, kind, flag, takes_seed) for flag in (True, False))
        self.theta, self.seed = theta, seed
        self.random_both_ways = self.answered_in_torch = False
        self.size = 0  # of one x
        self.failure: BaseException | None = None

    def works(self, batched: bool) -> bool:
        """Whether it can be called in the given way."""
        return self._try(batched, self.theta[:3] if batched else self.theta[0]) is not None

    def takes_batches(self) -> bool | None:
        """Whether it takes batches; None if it can be called in neither way."""
        theta, same = self.theta, np.repeat(self.theta[:1], PROBES, 0)
        many = self._try(True, theta)
        few = None if many is None else self._try(True, theta[:3])
        one = self._try(False, theta[0])
        if many is None or few is None or many.shape[1:] != few.shape[1:]:
            return None if one is None else False
        rows, again = self._try(True, same), self._try(True, theta, "again")
        if one is None or one.shape != many.shape[1:] or rows is None or again is None:
            return True
        if _equal(many, again) and _equal(one, self._try(False, theta[0], "again")):
            if not _equal(rows, rows[:1].repeat(PROBES, 0)):
                return True  # noise that does not depend on the seed: as a batch, at least, rows differ
            alone = [self._try(False, t) for t in theta]
            return all(y is not None and np.allclose(x, y, 1e-4, 1e-6, True) for x, y in zip(many, alone, strict=True))
        self.random_both_ways, self.size = True, one.size
        # Rows of one θ that are equal in three calls, which differ, share all noise: coins do so with a chance of 5e-6.
        calls = [rows, *(self._try(True, same, "same", k) for k in (1, 2))]
        shared = all(x is not None and _equal(x, x[:1].repeat(PROBES, 0)) for x in calls)
        return not shared or all(_equal(rows, x) for x in calls)

    def against_batches(self) -> str | None:
        """What the draws say against batches; None if nothing."""
        batches, singles = self._draws(True, *BATCHES), self._draws(False, *SINGLES)
        if batches is None or singles is None:
            return None  # what fails here will fail, and be reported, there
        z = _ranked(np.concatenate([batches, singles]))
        together, alone = z[: len(batches)], z[len(batches) :]
        shared = chdtrc(len(together), (together.sum(1) ** 2).sum(0) / PROBES)
        law = chdtrc(PROBES, len(alone) * (alone.mean(0) ** 2).sum(0))
        if law.min() < LEVEL / 2 / len(law):
            return "a row of a batch has another distribution than alone"
        return "rows of a batch depend on each other" if shared.min() < LEVEL / 2 / len(shared) else None

    def _draws(self, batched: bool, most: int, least: int) -> np.ndarray | None:
        """Summaries of repeated draws at each θ, with shape `(draws, 7, summaries)`."""
        draws: list[np.ndarray] = []
        started = time.monotonic()
        while len(draws) < most and (len(draws) < least or time.monotonic() - started < SECONDS):
            given = [self.theta] if batched else list(self.theta)
            x = [self._try(batched, t, "look", int(batched), len(draws), j) for j, t in enumerate(given)]
            good = [y for y in x if y is not None and y.size * len(given) == self.size * PROBES]
            if len(good) < len(x):
                return None
            draws.append(_summaries(np.concatenate(good).reshape(PROBES, -1)))
        return np.stack(draws)

    def _try(self, batched: bool, theta: np.ndarray, *path: str | int) -> np.ndarray | None:
        adapter = self.batch if batched else self.single
        try:
            with randomness.undisturbed(), warnings.catch_warnings(record=True) as caught:
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
        return x.reshape(-1, 1) if batched and x.ndim == 1 else x.reshape(1) if x.ndim == 0 else x


def _warn_if_unrepeatable(adapter: Adapter, theta: np.ndarray, seed: int) -> None:
    given = theta[:3] if adapter.batched else theta[0]
    with randomness.undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        repeatable = _equal(*(adapter.call(given, seed, "probe") for _ in range(2)))
    if not repeatable:
        warn(
            "the simulator gave two answers to one theta and one state of the global generators: it keeps a "
            "generator of its own, so simulations cannot be repeated, and in several processes its streams may "
            "coincide. Let it take seed=… and make its generator from that."
        )


def _signature(simulator: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether the simulator takes `seed`, and whether its annotation names NumPy's arrays."""
    try:
        parameters = list(inspect.signature(simulator).parameters.values())
    except (TypeError, ValueError):  # builtins and some extension functions have no signature
        return False, False
    takes_seed = any(p.name == "seed" and p.kind is not p.POSITIONAL_ONLY for p in parameters)
    return takes_seed, bool(parameters) and "ndarray" in str(parameters[0].annotation).lower()


def _summaries(x: np.ndarray) -> np.ndarray:
    """Some elements, the mean, the least and the largest of x, with shape `(*, P)`."""
    x = np.nan_to_num(x.astype(np.float64), nan=3e39, posinf=1e39, neginf=-1e39)
    some = x[..., np.unique(np.linspace(0, x.shape[-1] - 1, ELEMENTS).round().astype(int))]
    return np.concatenate([some, *(f(-1, keepdims=True) for f in (x.mean, x.min, x.max))], -1)


def _ranked(x: np.ndarray) -> np.ndarray:
    """Ranks along the first axis, and distances from the middle rank, scaled; 0 where values differ by rounding."""
    size = np.abs(x).max(0)
    rounding = np.ptp(x, 0) <= 1e-5 * size + 1e-6 * size.max(-1, keepdims=True)
    ranks = (x[:, None] > x).sum(1) + (x[:, None] >= x).sum(1)  # twice the rank; equal values share one
    z = np.where(rounding, 0.0, _scaled(ranks))
    return np.concatenate([z, _scaled(np.abs(z))], -1).clip(-2, 2)


def _scaled(z: np.ndarray) -> np.ndarray:
    z = z - z.mean(0)
    return z / np.maximum(np.sqrt(np.square(z).mean(0)), 1e-9)


def _equal(a: np.ndarray, b: np.ndarray | None) -> bool:
    return b is not None and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
