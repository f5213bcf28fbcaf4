"""Finding out how a simulator is to be called, unless the caller says so with `batched=` and `array=`.

Its signature says whether it takes a seed, and may name NumPy. The rest is tried on draws from the prior. Tensors come
first: if it cannot take them, mixes them with NumPy's arrays, or answers with something else, it is given arrays. It
takes batches if 7 rows give 7 results and 3 rows give 3.

Many simulators written for one θ accept a batch too, by broadcasting, and are wrong there: the rows of
`theta + rng.normal(size=D)` share one noise, and `y / y.max()` divides by the largest of all rows. Where both ways
work, a deterministic simulator must give the rows that it gives one by one, and a random one unequal rows at equal θ.
It is then called R times with a batch of θ_1, …, θ_7 and S times with each θ_j alone. Summaries of x are ranked over
the R + S draws at each θ_j and scaled to z, with mean 0 and variance 1. If batches are right, Σ_b (Σ_j z_bj)² / 7 is
about χ² with R degrees of freedom, as rows are independent, and S Σ_j (mean of z_j one by one)² about χ² with 7, as a
row has the same law in a batch as alone. (Ranks, cut at ±2, have lighter tails.) A p-value, times the number of
them, below `LEVEL` speaks against batches.
"""

from __future__ import annotations

__all__ = ["PROBES", "adapt"]

import contextlib
import inspect
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.support import randomness
from equipoise.support.errors import warn

from .simulators import Adapter, Failure, one_line

#: Rows of the prior that are used.
PROBES = 7
#: How often they are simulated as a batch, and one by one, to compare the two.
BATCHES, SINGLES = 24, 5
#: The chance of calling a right simulator one by one, at most.
LEVEL = 1e-4


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
    kinds = [array] if array is not None else ["numpy", "torch"] if prefers_numpy else ["torch", "numpy"]
    found: Adapter | None = None
    failures: list[tuple[str, Exception]] = []
    doubt, repeatable, compare = False, True, False
    with randomness.undisturbed(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in kinds:
            chosen, random = Adapter(simulator, kind, bool(batched), takes_seed), False
            try:
                if batched is None:
                    chosen, random = _choose(chosen, theta, seed)
                in_torch = _answers_in_torch(chosen, theta, seed)
            except Exception as error:
                failures.append((kind, error))
                continue
            found, compare = chosen, random
            if in_torch or kind == "numpy":
                break
        if found is None:
            reason, first = "\nWith ".join(f"{kind} input: {one_line(e)}" for kind, e in failures), failures[0][1]
            raise Failure(0, theta[0], f"with {reason}", "".join(traceback.format_exception(first))) from first
        given = theta[:3] if found.batched else theta[0]
        with contextlib.suppress(Exception):  # what fails here will fail, and be reported, in the simulations
            repeatable = _equal(*(found.call(given, seed, "probe") for _ in range(2)))
            doubt = compare and _doubt(found, theta, seed)
    if doubt:
        warn(
            "the simulator takes one theta and a batch of them, but the rows of a batch depend on each other. It is "
            "called one theta at a time. If that is wrong, pass batched=True, which is faster; if not, batched=False "
            "(in the shell, --batched or --one-by-one)."
        )
    if not repeatable:
        warn(
            "the simulator gave two answers to one theta and one state of the global generators: it keeps a "
            "generator of its own, so simulations cannot be repeated, and in several processes its streams may "
            "coincide. Let it take seed=… and make its generator from that."
        )
    return replace(found, batched=found.batched and not doubt)


def _choose(single: Adapter, theta: np.ndarray, seed: int) -> tuple[Adapter, bool]:
    """The way that works, batches first; and whether both do and are random, so that draws are to be compared."""
    batch = replace(single, batched=True)
    many, few, one = _try(batch, theta, seed), _try(batch, theta[:3], seed), _try(single, theta[0], seed)
    if many is None or few is None or many.shape[1:] != few.shape[1:]:
        single.call(theta[0], seed, "probe")  # raises if it works in neither way
        return single, False
    if one is None or one.shape != many.shape[1:]:
        return batch, False
    rows = [batch.call(np.repeat(theta[:1], PROBES, 0), seed, "probe")]
    again = batch.call(theta, seed, "probe", "again"), single.call(theta[0], seed, "probe", "again")
    if _equal(many, again[0]) and _equal(one, again[1]):  # deterministic, or noise that does not depend on the seed
        alone = np.stack([single.call(t, seed, "probe") for t in theta])
        return single if _alike(rows) and not np.allclose(many, alone, 1e-4, 1e-6, True) else batch, False
    # Rows of one θ that are equal in three calls, which differ, share all noise: coins do so with a chance of 5e-6.
    rows += [batch.call(np.repeat(theta[:1], PROBES, 0), seed, "probe", k) for k in (1, 2)]
    shared = _alike(rows) and not all(_equal(rows[0], x) for x in rows)
    return (single, False) if shared else (batch, True)


def _alike(calls: list[np.ndarray]) -> bool:
    return all(_equal(x, x[:1].repeat(PROBES, 0)) for x in calls)


def _try(adapter: Adapter, theta: np.ndarray, seed: int) -> np.ndarray | None:
    try:
        return adapter.call(theta, seed, "probe")
    except Exception:
        return None


def _answers_in_torch(adapter: Adapter, theta: np.ndarray, seed: int) -> bool:
    """Whether x is a tensor. One mixed with NumPy's arrays gives itself away: it is float64, or NumPy complains."""
    given = theta[:3] if adapter.batched else theta[0]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = adapter.raw(given, seed, "probe")
    adapter.checked(output, given)
    mixed = any("__array_wrap__" in str(w.message) for w in caught)
    return isinstance(output, Tensor) and output.dtype != torch.float64 and not mixed


def _doubt(batch: Adapter, theta: np.ndarray, seed: int) -> bool:
    """Whether draws as batches and one by one speak against batches."""
    single = replace(batch, batched=False)
    together = [batch.call(theta, seed, "probe", k) for k in range(BATCHES)]
    alone = [[single.call(t, seed, "probe", k, j) for j, t in enumerate(theta)] for k in range(SINGLES)]
    return _p_value(*(np.reshape(x, (len(x), PROBES, -1)) for x in (together, alone))) < LEVEL


def _p_value(together: np.ndarray, alone: np.ndarray) -> float:
    """Of draws as batches and one by one, both with shape `(draws, 7, P)`, if batches are right."""
    x = np.nan_to_num(np.concatenate([together, alone]).astype(np.float64), nan=3e39, posinf=1e39, neginf=-1e39)
    some = x[..., np.unique(np.linspace(0, x.shape[-1] - 1, 16).round().astype(int))]
    x = np.concatenate([some, *(f(-1, keepdims=True) for f in (x.mean, x.min, x.max))], -1)
    size = np.abs(x).max(0)
    rounding = np.ptp(x, 0) <= 1e-5 * size + 1e-6 * size.max(-1, keepdims=True)
    x = np.where(rounding, 0.0, x)
    z = _scaled((x[:, None] > x).sum(1) + (x[:, None] >= x).sum(1))  # ranks; equal values share one
    z = np.concatenate([z, _scaled(np.abs(z))], -1).clip(-2, 2)
    shared = _tail((z[: len(together)].sum(1) ** 2).sum(0) / PROBES, len(together))
    law = _tail(len(alone) * (z[len(together) :].mean(0) ** 2).sum(0), PROBES)
    return float(torch.cat([shared, law]).min()) * 2 * len(law)


def _tail(chi2: np.ndarray, degrees: int) -> Tensor:
    """The chance of a larger χ². (Importing SciPy for it would take as long as torch, in every worker process.)"""
    x = torch.from_numpy(chi2 / 2)
    return torch.special.gammaincc(torch.full_like(x, degrees / 2), x)


def _scaled(z: np.ndarray) -> np.ndarray:
    z = z - z.mean(0)
    return z / np.maximum(z.std(0), 1e-9)


def _signature(simulator: Callable[..., Any]) -> tuple[bool, bool]:
    """Whether the simulator takes `seed`, and whether its annotation names NumPy's arrays."""
    try:
        parameters = list(inspect.signature(simulator).parameters.values())
    except (TypeError, ValueError):  # builtins and some extension functions have no signature
        return False, False
    takes_seed = any(p.name == "seed" and p.kind is not p.POSITIONAL_ONLY for p in parameters)
    return takes_seed, bool(parameters) and "ndarray" in str(parameters[0].annotation).lower()


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
