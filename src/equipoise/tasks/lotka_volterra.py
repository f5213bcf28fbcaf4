r"""Lotka–Volterra: predators and prey as a Markov jump process, two of four rates inferred.

θ = (φ1, φ2), the log rates of predator birth and death; the nuisances (φ3, φ4) are those of prey birth and death; all
four have the prior U(-4, 1). From 50 predators x and 100 prey y the events and their rates are

    predator + 1   e^φ1 · x · y         prey + 1   e^φ3 · y
    predator - 1   e^φ2 · x             prey - 1   e^φ4 · x · y

`clock="jump"` (the published task) records the embedded jump chain: each step draws one event in proportion to its
rate and records the state after it. The state (0, 0) is absorbing, and the rest of the series is then 0. Its exact
posterior is in `equipoise.tasks.jump_chain`.

`clock="time"` reads the same process at `steps` equally spaced times, the last of them at `duration`, with exact
exponential waiting times (Gillespie). Prey without predators grow exponentially, so the process stops after
`max_events` events; **the times it did not reach hold -1 in both columns**, which no count can be. There is no exact
posterior.
"""

from __future__ import annotations

__all__ = ["LotkaVolterra"]

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import BoxUniform

from . import jump_chain
from .abstract_task import Task
from .streams import compiled, run_rows, start, uniform

LOW, HIGH = -4.0, 1.0
PREDATORS, PREY = 50, 100


@compiled
def _rates(state: Any, theta: Any) -> Any:
    """The four rates, the two nuisances drawn from their prior."""
    phi3, phi4 = LOW + (HIGH - LOW) * uniform(state), LOW + (HIGH - LOW) * uniform(state)
    return math.exp(theta[0]), math.exp(theta[1]), math.exp(phi3), math.exp(phi4)


@compiled
def _event(state: Any, rates: Any, x: Any, y: Any) -> Any:
    """The state after one event; (0, 0) stays."""
    if x == 0:
        return (0, y + 1) if y > 0 else (0, 0)
    if y == 0:
        return x - 1, 0
    pairs = float(x) * float(y)
    birth = rates[0] * pairs
    death = birth + rates[1] * x
    prey = death + rates[2] * y
    v = uniform(state) * (prey + rates[3] * pairs)
    # No branches: which event it is cannot be predicted, and a processor that tries loses a third of its time.
    one, two, three = int(v >= birth), int(v >= death), int(v >= prey)
    return x + 1 - 2 * one + two, y + two - 2 * three


@compiled
def _simulate_jumps(theta: Any, key: Any, first: Any, out: Any) -> None:
    state = np.empty(4, np.uint64)
    for i in range(theta.shape[0]):
        start(state, key, first + i)
        rates = _rates(state, theta[i])
        x, y = PREDATORS, PREY
        for t in range(out.shape[1]):
            if x + y == 0:
                out[i, t:, :] = 0
                break
            x, y = _event(state, rates, x, y)
            out[i, t, 0] = x
            out[i, t, 1] = y


@compiled
def _simulate_times(theta: Any, key: Any, first: Any, out: Any, duration: Any, max_events: Any) -> None:
    state = np.empty(4, np.uint64)
    steps = out.shape[1]
    for i in range(theta.shape[0]):
        start(state, key, first + i)
        rates = _rates(state, theta[i])
        x, y = PREDATORS, PREY
        now, row, events = 0.0, 0, 0
        while row < steps and events <= max_events:
            total = (rates[0] + rates[3]) * float(x) * float(y) + rates[1] * x + rates[2] * y
            now = now - math.log(1.0 - uniform(state)) / total if total > 0.0 else math.inf
            while row < steps and (row + 1) * duration / steps <= now:
                out[i, row, 0] = x
                out[i, row, 1] = y
                row += 1
            x, y = _event(state, rates, x, y)
            events += 1
        out[i, row:, :] = -1


class LotkaVolterra(Task):
    """The predator–prey task.

    Arguments:
        steps: the length T of the series; 2001 in the paper's text, 1001 in the authors' code.
        clock: `"jump"` for the jump chain, `"time"` for equally spaced times.
        duration: the last time that is read, where the clock is `"time"`.
        max_events: where the process is stopped, where the clock is `"time"`.
    """

    name = "lotka_volterra"
    label = "Lotka-Volterra"
    parameters = ("log predator birth rate", "log predator death rate")
    expectations = (({"steps": 2001}, 24_000), ({"steps": 1001}, 24_000))
    storage = "integers"

    def __init__(
        self,
        steps: int = 2001,
        clock: Literal["jump", "time"] = "jump",
        duration: float = 30.0,
        max_events: int = 100_000,
    ) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"steps is the length of the series, a positive integer; got {steps!r}")
        if clock not in ("jump", "time"):
            raise ValueError(f"clock is 'jump' or 'time', got {clock!r}")
        if clock == "jump" and (duration, max_events) != (30.0, 100_000):
            raise ValueError("duration and max_events belong to clock='time'; the jump chain has no time")
        if not (0 < duration < math.inf) or max_events < 1:
            raise ValueError(f"duration and max_events should be positive, got {duration!r} and {max_events!r}")
        self.steps, self.clock, self.duration, self.max_events = steps, clock, float(duration), int(max_events)
        self.prior = BoxUniform([LOW, LOW], [HIGH, HIGH])
        self.x_shape = (steps, 2)
        self.has_exact_posterior = clock == "jump"

    @property
    def options(self) -> dict[str, Any]:
        if self.clock == "jump":
            return {"steps": self.steps, "clock": "jump"}
        return {"steps": self.steps, "clock": "time", "duration": self.duration, "max_events": self.max_events}

    def _draw(self, theta: np.ndarray, key: np.ndarray, dtype: Any) -> np.ndarray:
        # No count can grow by more than one per event.
        events = self.steps if self.clock == "jump" else self.max_events
        small = np.int16 if events + PREY <= np.iinfo(np.int16).max else np.int32
        x = np.empty((len(theta), self.steps, 2), small)
        if self.clock == "jump":
            run_rows(_simulate_jumps, theta, key, x)
        else:
            run_rows(_simulate_times, theta, key, x, self.duration, self.max_events)
        return x

    def _log_terms(self, theta: Tensor, x: Tensor, evidence: bool) -> tuple[Tensor, Tensor]:
        path = x.detach().cpu().numpy()
        if not np.array_equal(path, np.round(path)):
            raise ValueError("x should hold counts; undo any scaling before asking for the posterior")
        shape = torch.broadcast_shapes(theta.shape[:-1], x.shape[:-2])
        rows = theta.detach().cpu().double().reshape(-1, 2).numpy()
        paths = path.reshape(-1, self.steps, 2).astype(np.int64)
        which = _indices(theta.shape[:-1], shape), _indices(x.shape[:-2], shape)
        terms = jump_chain.log_terms(rows, paths, *which, (PREDATORS, PREY), evidence)
        likelihood, log_evidence = (torch.from_numpy(term).to(theta.device) for term in terms)
        return likelihood.reshape(shape), log_evidence.reshape(x.shape[:-2])


def _indices(lead: torch.Size, shape: torch.Size) -> np.ndarray:
    """For each element of the broadcast shape, the row it comes from."""
    return torch.arange(lead.numel()).reshape(lead).expand(shape).reshape(-1).numpy()
