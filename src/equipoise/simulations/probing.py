"""Finding out how a simulator wants to be called.

What it wants is found by trying it on a few draws from the prior, unless the caller says so. Tensors first: if it
cannot take them, mixes them with NumPy's arrays, or answers with something else, it is given arrays. A simulator
takes batches if 7 rows give 7 results and 3 rows give 3.

**Both ways.** Many simulators written for one θ accept a batch too, by broadcasting, and are wrong there: the rows of
`theta + rng.normal(size=D)` share one noise, those of `theta + rng.normal() + 0.1 * rng.normal(size=theta.shape)`
share a part of it, and `y / y.max()` divides by the largest of all rows. Where both ways work, θ_1, …, θ_7 are
simulated R times as a batch and S times one by one. If batches are right, the R + S values of a summary of x at θ_j are
draws from one law, and independent of those at θ_k. So they may be permuted, for each j on its own, and with z their
ranks at θ_j, scaled to mean 0 and variance 1 (over the batches in ρ), no permutation should change much in

- Σ_{j<k} ρ_jk² and Σ_{j<k} ρ_jk, with ρ_jk the correlation of z_j and z_k over the batches: what rows share, whatever
  its sign, or, in smaller amounts, with one sign (Kendall's W);
- Σ_j (mean of z_j one by one)²: whether a row has the same law in a batch as alone.

The summaries are elements of x and its mean, least and largest; each also by its distance from the middle rank, which
sees shared or different scales. The largest statistic over all summaries is compared with its own permutations, so
the level is exact for any law of x: heavy tails, ties, constant columns. A statistic is held against batches if at
most 1 of 999 permutations reaches it, and again so in a second look at new draws. A right simulator is then called one
by one with probability 0.004² + 0.002² = 2e-5 at most, and 5e-6 for coins that fall alike (`_shares_everything`).
Values that differ by rounding count as equal.
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
from torch import Tensor

from equipoise.support import randomness
from equipoise.support.errors import warn

from .simulators import Adapter, Failure, as_array, global_streams_kept, one_line

#: Rows of the prior that are used.
PROBES = 7
#: How often they are simulated as a batch and one by one, if both work: by any simulator, and by one that does the
#: first in so many seconds. The second look, which few simulators need that are right, may take longer.
FEW, MANY, SECONDS = (4, 3), (30, 6), (1.0, 10.0)
#: Seconds after which a look is given up.
PATIENCE = 60.0
#: Permutations of a look, and how many may reach a statistic that is held against batches.
PERMUTATIONS, REACHED = 999, 1
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
    takes_seed, hint = _signature(simulator)
    if batched is not None and array is not None:
        return Adapter(simulator, array, batched, takes_seed)
    found: Adapter | None = None
    tried: _Probe | None = None
    failures: list[tuple[str, BaseException]] = []
    kinds = [array] if array is not None else ["numpy", "torch"] if hint == "numpy" else ["torch", "numpy"]
    for kind in kinds:
        probe = _Probe(simulator, kind, takes_seed, theta, seed)
        takes_batches = probe.takes_batches() if batched is None else probe.works(batched)
        if takes_batches is None:
            failures.append((kind, probe.failure or RuntimeError("it failed")))
            continue
        found, tried = Adapter(simulator, kind, takes_batches if batched is None else batched, takes_seed), probe
        if kind == "numpy" or probe.answered_in_torch:
            break
    if found is None or tried is None:
        kind, error = failures[0]
        also = "".join(f"\nWith {k} input: {one_line(e)}" for k, e in failures[1:])
        raise Failure(
            0, theta[0], f"with {kind} input: {one_line(error)}{also}", "".join(traceback.format_exception(error))
        ) from error
    if found.batched and tried.works_both_ways and (reason := tried.against_batches()):
        warn(
            f"the simulator takes one theta and a batch of them, but {reason}. It is called one theta at a time. If it "
            "does treat the rows of a batch independently, pass batched=True, which is faster; if not, batched=False.",
        )
        found = tried.single
    _warn_if_unrepeatable(found, theta, seed)
    return found


class _Probe:
    """Tries a simulator with one kind of array."""

    def __init__(self, simulator: Any, kind: str, takes_seed: bool, theta: np.ndarray, seed: int) -> None:
        self.batch, self.single = (Adapter(simulator, kind, flag, takes_seed) for flag in (True, False))
        self.theta, self.seed = theta, seed
        self.works_both_ways = False
        self.x_shape: tuple[int, ...] = ()
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
        rows, again = self._try(True, np.repeat(theta[:1], PROBES, 0)), self._try(True, theta, "again")
        if rows is None or again is None:
            return True
        if not (_equal(many, again) and _equal(one, self._try(False, theta[0], "again"))):
            self.works_both_ways, self.x_shape = True, one.shape
            return not self._shares_everything(rows)
        if not _constant(rows):
            return True  # noise that does not depend on the seed: as a batch, at least, rows differ
        last = self._try(False, theta[-1])
        return last is not None and _close(many[0], one) and _close(many[-1], last)

    def _shares_everything(self, rows: np.ndarray) -> bool:
        """Whether rows with one θ are equal in each of three calls, and not in all of them together.

        Independent coins do so with probability (p⁷ + q⁷)³ - p²¹ - q²¹, at most 5e-6.
        """
        calls = [rows]
        while _constant(calls[-1]) and len(calls) < 3:
            more = self._try(True, np.repeat(self.theta[:1], PROBES, 0), "same", len(calls))
            if more is None:
                return False
            calls.append(more)
        return all(map(_constant, calls)) and not all(_equal(rows, call) for call in calls)

    def against_batches(self) -> str | None:
        """What the data say against batches, in two looks; None if nothing."""
        first = self._look(0)
        second = self._look(1) if first else []
        if first is None:
            return f"it is too slow to find out in {PATIENCE:g} seconds whether the two agree"
        reasons = first if second is None else [reason for reason in first if reason in second]
        return reasons[-1] if reasons else None

    def _look(self, look: int) -> list[str] | None:
        """What new draws say against batches; None if they take too long."""
        batches: list[np.ndarray] = []
        singles: list[np.ndarray] = []
        started = time.monotonic()
        for n_batches, n_singles in (FEW, MANY):
            for batched, gathered, n in ((True, batches, n_batches), (False, singles, n_singles * PROBES)):
                for i in range(len(gathered), n):
                    given = self.theta if batched else self.theta[i % PROBES]
                    x = self._try(batched, given, "look", look, "batch" if batched else "single", i)
                    if x is None or x.shape[int(batched) :] != self.x_shape:
                        return []  # what fails here will fail, and be reported, there
                    gathered.append(_summaries(x.reshape(*given.shape[:-1], -1)))
                    if time.monotonic() - started > PATIENCE:
                        return None
            if time.monotonic() - started > SECONDS[look]:
                break
        rng = np.random.default_rng(randomness.sequence(self.seed, "simulations", "probe", "permutations", look))
        alone = np.stack(singles).reshape(-1, *batches[0].shape)
        return _disagreements(np.concatenate([np.stack(batches), alone]), len(batches), rng)

    def _try(self, batched: bool, theta: np.ndarray, *path: str | int) -> np.ndarray | None:
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


def _disagreements(x: np.ndarray, n_batches: int, rng: np.random.Generator) -> list[str]:
    """What summaries, with shape `(R + S, J, K)`, say against the first R being independent draws, like the last S."""
    z = _ranks(x)
    z = np.concatenate([z, _standard(np.abs(z))], -1)
    observed = _statistics(z, n_batches)
    reached = np.zeros(len(observed), int)
    for _ in range(PERMUTATIONS):
        order = rng.permuted(np.tile(np.arange(len(z))[:, None], (1, z.shape[1])), axis=0)
        permuted = np.take_along_axis(z, order[:, :, None], 0)
        reached += _statistics(permuted, n_batches) >= observed - 1e-9
        if (reached > REACHED).all():
            return []  # as most simulators that are right do, after a few permutations
    shared, law = "rows of a batch depend on each other", "a row of a batch has another distribution than alone"
    return [what for what, r in zip((shared, shared, law), reached, strict=True) if r <= REACHED]


def _statistics(z: np.ndarray, n_batches: int) -> np.ndarray:
    """Σ ρ², Σ ρ and Σ mean², each the largest over the summaries, from z with shape `(R + S, J, K)`."""
    batches = _standard(z[:n_batches]).transpose(2, 1, 0)
    rho = batches @ batches.transpose(0, 2, 1) / n_batches
    off = rho * (1 - np.eye(rho.shape[1]))
    law = np.square(z[n_batches:].mean(0)).sum(0)
    return np.array([np.square(off).sum((1, 2)).max(), off.sum((1, 2)).max(), law.max()])


def _summaries(x: np.ndarray) -> np.ndarray:
    """Some elements, the mean, the least and the largest of x, with shape `(*, P)`."""
    x = np.nan_to_num(x.astype(np.float64), nan=3e39, posinf=1e39, neginf=-1e39)
    some = x[..., np.unique(np.linspace(0, x.shape[-1] - 1, ELEMENTS).round().astype(int))]
    return np.concatenate([some, *(f(-1, keepdims=True) for f in (x.mean, x.min, x.max))], -1)


def _ranks(x: np.ndarray) -> np.ndarray:
    """Ranks along the first axis, scaled to mean 0 and variance 1. Equal but for rounding is equal."""
    order = np.argsort(x, 0)
    rising = np.take_along_axis(x, order, 0)
    size = np.abs(rising)
    rounding = 3e-6 * np.maximum(size[1:], size[:-1]) + 3e-7 * np.median(np.abs(x).max(-1))
    level = np.zeros(x.shape, int)
    level[1:] = np.cumsum(np.diff(rising, axis=0) > rounding, 0)
    below = (level[:, None] > level).sum(1)
    up_to = (level[:, None] >= level).sum(1)
    z = np.empty(x.shape)
    np.put_along_axis(z, order, (below + up_to) / 2, 0)
    return _standard(z)


def _standard(z: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 along the first axis; 0 where all are equal."""
    z = z - z.mean(0)
    scale = np.sqrt(np.square(z).mean(0))
    return np.where(scale > 1e-9, z / np.maximum(scale, 1e-9), 0.0)


def _constant(rows: np.ndarray) -> bool:
    return _equal(rows, np.repeat(rows[:1], len(rows), 0))


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True))


def _equal(a: np.ndarray, b: np.ndarray | None) -> bool:
    return b is not None and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
