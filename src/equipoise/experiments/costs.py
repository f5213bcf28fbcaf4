"""What a stack costs, before it is computed: seconds and bytes.

The figures are measured: milliseconds of a member-step on two CPU cores, and microseconds on one H200, where a step
of a stack of M members costs a + b / M per member. They hold for the paper's networks (about 400,000 weights) and scale
with the weights of others. Training stops members that have converged, so that what is said here is the most that it
can take. How much less it takes is known once some stacks are finished: their `pace`.
"""

from __future__ import annotations

__all__ = ["ONCE", "Cost", "cost", "device_kind", "pace"]

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from equipoise.diagnostics.recipes import CELLS_FROM, RELEASED_BINS
from equipoise.losses import rolls_needed

from .cells import Cell, Stack

#: Milliseconds of a member-step on two CPU cores: for one roll of θ, and for each further one.
CPU_MS = {"flow": (13.0, 12.0), "classifier": (5.0, 5.0)}
#: Microseconds of a member-step on one H200: a and b for one roll of θ, and what each further roll adds to a.
GPU_US = {"flow": (17.0, 420.0, 12.0), "classifier": (13.0, 210.0, 4.0)}
#: The same of a step that is not compiled, as networks of `eq.fit`'s own sizes are trained.
GPU_EAGER_US = (60.0, 5000.0, 60.0)
#: Weights behind these figures.
WEIGHTS = {"flow": 450e3, "classifier": 335e3}
#: The share of a step that does not depend on the number of weights.
FLAT = 0.4
#: Evaluations behind each draw of a flow (one per parameter, and one of the mixture) or point of a classifier, and
#: behind a classifier that is interpolated.
EVALUATIONS = {"flow": 3, "classifier": 2}
INTERPOLATED = 2100
#: Seconds that a convolutional embedding adds to a member-step, whatever the rolls: the most of the paper's two tasks,
#: on a GPU with the kernels, and the rest of the step not compiled.
EMBEDDING = {"cpu": {"flow": 0.2, "classifier": 0.2}, "cuda": {"flow": 590e-6, "classifier": 340e-6}}
#: Floating-point operations a second, of evaluations without gradients.
RATE = {"cpu": 2.5e10, "cuda": 1.5e13}
#: Seconds to start a stack: simulations, and on a GPU compiling.
START = {"cpu": 1.0, "cuda": 20.0}
#: Seconds that the first stack of a process takes in addition: what is imported, and drawn once for all stacks.
ONCE = {"cpu": 4.0, "cuda": 10.0}
#: Stacks are expected to take this much more than finished ones did, relative to their costs.
MARGIN = 1.25
#: Bytes of a stack's file: of itself, of a cell's numbers, of each of a cell's members, and of a picture.
BYTES = (36_000, 3300, 500, 15_000)


class Cost(NamedTuple):
    """At most this many seconds of training and of diagnosis, and about this many bytes on disk."""

    training: float
    diagnosis: float
    size: float

    @property
    def seconds(self) -> float:
        return self.training + self.diagnosis


def cost(stack: Stack, device: str = "cpu") -> Cost:
    """What a stack costs on "cpu" (two cores) or "cuda" (one H200)."""
    steps = stack.settings.epochs * stack.steps
    share = FLAT + (1 - FLAT) * _weights(stack) / WEIGHTS[stack.network]
    trained = {cell.training: cell for cell in stack.cells}.values()
    rolls = Counter(rolls_needed(cell.row.objective) for cell in trained)
    each = stack.members, stack.network, device, stack.sizes.as_fit
    step = sum(n * stack.members * _step(r, n, *each) for r, n in rolls.items())
    embedding = stack.size * EMBEDDING[device][stack.network] if stack.embedded else 0.0
    # Measured with batches of 256; larger ones take at most as much more.
    training = (step * share + embedding) * steps * max(1.0, (stack.settings.batch_size or 256) / 256)
    evaluations = stack.rules.pairs * stack.members * sum(_points(stack, cell) for cell in stack.cells)
    if stack.rules.released_pairs:
        points = RELEASED_BINS**2 if stack.network == "classifier" else 1000 * EVALUATIONS["flow"]
        evaluations += stack.rules.released_pairs * stack.members * len(stack.cells) * points
    if stack.calibrate:  # the mixture is judged untempered too, after out-of-fold pairs have chosen its temperature
        evaluations = 2 * evaluations + stack.budget * stack.members * sum(_points(stack, cell) for cell in stack.cells)
    diagnosis = evaluations * 2 * _weights(stack) / RATE[device]
    file, numbers, member, picture = BYTES
    size = file + sum(numbers + member * stack.members + picture * cell.gallery for cell in stack.cells)
    return Cost(training + START[device], diagnosis, size)


def device_kind(device: str | None) -> str:
    """ "cuda" or "cpu": what a device means here."""
    if device:
        return device
    import torch  # here, since those who only read results do without

    return "cuda" if torch.cuda.is_available() else "cpu"


def pace(stack: Stack, attributes: Iterable[Mapping[str, Any]], device: str = "cpu") -> float:
    """What a stack is expected to take as a share of its cost, with a margin.

    It is what finished stacks, of which these are the attributes, took with the same network on such a device; 1 where
    there are none.
    """
    kind = stack.network, stack.embedded, device
    known = [h for h in attributes if "cost" in h]  # earlier versions did not say
    alike = [h for h in known if (h.get("network"), h.get("embedded"), h.get("device")) == kind]
    return MARGIN * sum(h["seconds"] for h in alike) / sum(h["cost"] for h in alike) if alike else 1.0


def _points(stack: Stack, cell: Cell) -> int:
    """Evaluations behind the rank of one pair and member."""
    samples = stack.rules.samples
    if stack.network == "classifier":
        if cell.recipe == "released":
            return int(RELEASED_BINS**2)
        if stack.members == 1 and samples >= CELLS_FROM:
            return INTERPOLATED
    return samples * EVALUATIONS[stack.network]


def _step(rolls: int, cells: int, members: int, network: str, device: str, eager: bool) -> float:
    """Seconds of one member-step among the members of cells that look at as many rolls of θ, and train in one step."""
    if device == "cpu":
        first, more = CPU_MS[network]
        return (first + more * (rolls - 1)) * 1e-3
    a, b, more = GPU_EAGER_US if eager else GPU_US[network]
    return (a + b / (cells * members) + more * (rolls - 1)) * 1e-6


def _weights(stack: Stack) -> float:
    """About how many weights a network has."""
    hidden = stack.sizes.classifier if stack.network == "classifier" else stack.sizes.flow
    inner = sum(a * b for a, b in itertools.pairwise(hidden)) + 40 * (hidden[0] + hidden[-1])
    return float(inner * (stack.sizes.transforms if stack.network == "flow" else 1))
