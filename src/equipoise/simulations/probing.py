"""Finding out how a simulator wants to be called.

What it wants is found by trying it on a few draws from the prior, unless the caller says so. Tensors first: if it
cannot take them, mixes them with NumPy's arrays, or answers with something else, it is given arrays. A simulator
takes batches if 7 rows give 7 results and 3 rows give 3. One case would pass this test and be wrong: `theta +
rng.normal(size=D)` accepts a batch, but all of its rows share one noise. So rows with the same θ are compared: a
simulator whose rows agree with each other, and yet change with the seed, is called one θ at a time.
"""

from __future__ import annotations

__all__ = ["PROBES", "adapt"]

import inspect
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .reports import warn
from .simulators import Adapter, Failure, as_array, global_streams_kept, one_line

#: Rows of the prior that are used.
PROBES = 7


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
        also = "".join(f"\nWith {k} input: {one_line(e)}" for k, e in failures[1:])
        raise Failure(
            0, theta[0], f"with {kind} input: {one_line(error)}{also}", "".join(traceback.format_exception(error))
        ) from error
    _warn_if_unrepeatable(found, theta, seed)
    return found


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
        warn(
            "the simulator gave two answers to one theta and one state of the global generators: it keeps a "
            "generator of its own, so simulations cannot be repeated, and in several processes its streams may "
            "coincide. Let it take seed=… and make its generator from that.",
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


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
