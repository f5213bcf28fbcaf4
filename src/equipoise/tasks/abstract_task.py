"""The abstract task: a prior, a simulator, and, where it is known, the exact posterior.

The class of a task names itself (`name`, `label`, `parameters`) and gives these; this file does the rest (checks,
seeds, threads, broadcasting, memory):

- `_kernel`: the compiled simulator, one random stream per row, as `streams.run_rows` calls it;
- `_statistics(x)`: what the likelihood needs of x, with shape `(*, K)`;
- `_log_likelihood(theta, statistics)`: log p(x|θ), broadcasting, in float64;
- `_log_evidence(statistics)`: log p(x) = log ∫ p(x|θ) p(θ) dθ, to a tolerance that the file states and a test checks.

Then log p(θ|x) = log p(x|θ) + log p(θ) - log p(x). Without the last two, `has_exact_posterior` is False.
"""

from __future__ import annotations

__all__ = ["CHUNK", "Task", "clustered", "in_chunks", "legendre"]

import json
import math
from collections.abc import Callable
from importlib import resources
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import BoxUniform
from equipoise.support.arrays import as_tensor

from .streams import compiled, key_of, run_rows

#: Numbers held at once while evaluating a likelihood: 2²² float64, 32 MiB per intermediate result.
CHUNK = 1 << 22


class Task:
    """A prior, a simulator, and the exact posterior where it is known. Make one with `equipoise.task(name)`."""

    #: The name in `TASKS`.
    name: ClassVar[str]
    #: The name in plots and reports.
    label: ClassVar[str]
    #: The names of the parameters in plots; none where they have no names.
    parameters: ClassVar[tuple[str, ...]]
    #: How `simulate_compact` holds x: "float32"; "bits" (0 or 1, as uint8); "integers".
    storage: ClassVar[Literal["float32", "bits", "integers"]] = "float32"
    #: Options, and number of simulated pairs, of each expected log posterior in expected.json.
    expectations: ClassVar[tuple[tuple[dict[str, Any], int], ...]] = ()
    #: Float64 numbers that the likelihood of one pair, and the evidence of one x, hold at once.
    _width: ClassVar[int] = 64
    _evidence_width: ClassVar[int] = 64
    #: The simulator: `_kernel(theta, key, first_row, out)`.
    _kernel: ClassVar[Any]

    prior: BoxUniform
    x_shape: tuple[int, ...]
    has_exact_posterior: bool

    def __init_subclass__(cls) -> None:
        if "has_exact_posterior" not in cls.__dict__:
            cls.has_exact_posterior = cls._log_likelihood is not Task._log_likelihood

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that rebuild this task: `task(name, **options)`."""
        return {}

    @property
    def simulator(self) -> Callable[..., Any]:
        """What `equipoise.simulate` calls."""
        return self.simulate

    @property
    def kept(self) -> bool:
        """Whether simulations are worth storing. Real-valued ones of the paper's tasks are cheaper to repeat."""
        return self.storage != "float32"

    def simulate(self, theta: Any, seed: int = 0) -> Tensor:
        """Draw x for each row of `theta`.

        Row i depends on `theta[i]`, the seed and i alone: any number of threads gives the same, and so does any
        number of rows after it. Runs on `torch.get_num_threads()` threads.

        Arguments:
            theta: parameters inside the prior, with shape `(N, D)`; an array or tensor of any dtype, on any device. A
                single vector with shape `(D,)` counts as one row.
            seed: a non-negative integer.

        Returns:
            x with shape `(N, *x_shape)`, float32, on the device of `theta`.
        """
        rows, device = self._rows(theta)
        return torch.from_numpy(self._draw(rows, key_of(seed, "task", self.name), np.float32)).float().to(device)

    def simulate_compact(self, theta: Any, seed: int = 0) -> np.ndarray:
        """`simulate`, as a NumPy array in the small dtype that `storage` names; the same numbers."""
        rows, _ = self._rows(theta)
        return self._draw(rows, key_of(seed, "task", self.name), np.float32)

    def log_likelihood(self, theta: Any, x: Any) -> Tensor:
        """log p(x|θ). Shapes as in `log_posterior`."""
        theta, x = self._pairs(theta, x)
        return self._log_terms(theta.double(), x, evidence=False)[0].to(theta.dtype)

    def log_posterior(self, theta: Any, x: Any) -> Tensor:
        """The exact log p(θ|x), -inf outside the prior.

        Arguments:
            theta: with shape `(*, D)`.
            x: with shape `(*, *x_shape)`; the leading dimensions broadcast against those of `theta`, so that one x
                serves all θ, or each θ has its own. What depends on x alone is computed once for each x given.

        Returns:
            With the broadcast leading shape, in the dtype and on the device of `theta`. Computed in float64 and in
            chunks, so that ten thousand x against ten thousand θ need little more memory than the result.
        """
        theta, x = self._pairs(theta, x)
        likelihood, evidence = self._log_terms(theta.double(), x, evidence=True)
        posterior = likelihood - evidence + self.prior.log_prob(theta)
        return torch.where(self.prior.contains(theta), posterior, -math.inf).to(theta.dtype)

    def expected_log_posterior(self) -> tuple[float, float]:
        """E log p(θ*|x*) over pairs from the joint, and its standard error: the most any posterior can score.

        Computed once by `python -m equipoise.tasks.expected` and kept in the package.
        """
        self._need_posterior()
        table = json.loads(resources.files(__package__).joinpath("expected.json").read_text())
        for row in table["tasks"]:
            if row["task"] == self.name and row["options"] == self.options:
                return row["value"], row["standard_error"]
        compute = "compute it with equipoise.tasks.expected.estimate(task, pairs, seed)"
        raise ValueError(f"no expected log posterior is kept for {self!r}; {compute}")

    def _draw(self, theta: np.ndarray, key: np.ndarray, dtype: Any) -> np.ndarray:
        """x for `theta` with shape `(N, D)`. Tasks with real-valued x give it in `dtype`."""
        x = np.empty((len(theta), *self.x_shape), np.uint8 if self.storage == "bits" else dtype)
        run_rows(self._kernel, theta, key, x)
        return x

    def _log_terms(self, theta: Tensor, x: Tensor, evidence: bool) -> tuple[Tensor, Tensor]:
        """log p(x|θ) of the broadcast pairs and, where `evidence` is wanted, log p(x) of each x."""
        statistics = self._statistics(x)
        likelihood = in_chunks(self._log_likelihood, theta, statistics, CHUNK // self._width)
        if not evidence:
            return likelihood, likelihood.new_zeros(())
        limit = max(1, CHUNK // self._evidence_width)
        return likelihood, in_chunks(lambda _, s: self._log_evidence(s), theta.new_empty(0), statistics, limit)

    def _statistics(self, x: Tensor) -> Tensor:
        """What the likelihood needs of x, with shape `(*, K)`, float64."""
        return x.double().flatten(x.ndim - len(self.x_shape))

    def _log_likelihood(self, theta: Tensor, statistics: Tensor) -> Tensor:
        """log p(x|θ) for θ inside the prior; shape of the broadcast leading dimensions."""
        raise ValueError(f"the likelihood of {self!r} is not known")

    def _log_evidence(self, statistics: Tensor) -> Tensor:
        """log p(x), with shape `(*,)`."""
        raise ValueError(f"the evidence of {self!r} is not known")

    def _rows(self, theta: Any) -> tuple[np.ndarray, torch.device]:
        """θ as an array with shape `(N, D)`, checked, and the device it came from."""
        theta = _real(theta, "theta")
        if theta.ndim == 1:
            theta = theta[None]
        if theta.ndim != 2 or theta.shape[1] != self.prior.dim:
            wanted = f"(N, {self.prior.dim}), one row per simulation"
            raise ValueError(f"{self.name} takes theta with shape {wanted}; got {tuple(theta.shape)}")
        rows = np.ascontiguousarray(theta.detach().cpu().numpy())
        low, high = self.prior.low.tolist(), self.prior.high.tolist()
        bad = _first_outside(rows, np.array(low), np.array(high))
        if bad >= 0:
            where = f"theta[{bad}] = {rows[bad].tolist()}"
            raise ValueError(f"{where} is not inside the prior of {self.name}, the box from {low} to {high}")
        return rows, theta.device

    def _pairs(self, theta: Any, x: Any) -> tuple[Tensor, Tensor]:
        """θ and x as tensors on one device, with shapes that go together."""
        self._need_posterior()
        theta = _real(theta, "theta")
        x = _real(x, "x").to(theta.device)
        cut = x.ndim - len(self.x_shape)
        if theta.ndim == 0 or theta.shape[-1] != self.prior.dim:
            raise ValueError(f"{self.name} takes theta with shape (*, {self.prior.dim}), got {tuple(theta.shape)}")
        if cut < 0 or tuple(x.shape[cut:]) != self.x_shape:
            shape = "".join(f", {n}" for n in self.x_shape)
            raise ValueError(f"{self.name} takes x with shape (*{shape}), got {tuple(x.shape)}")
        if bool(x.isnan().any()):
            raise ValueError("x has NaN in it: observations should be numbers")
        try:
            torch.broadcast_shapes(theta.shape[:-1], x.shape[:cut])
        except RuntimeError:
            raise ValueError(
                f"theta has leading shape {tuple(theta.shape[:-1])} and x {tuple(x.shape[:cut])}; give one x for all "
                "theta, one x per theta, or shapes that broadcast"
            ) from None
        return theta, x

    def _need_posterior(self) -> None:
        if not self.has_exact_posterior:
            raise ValueError(f"the exact posterior of {self!r} is not known; task.has_exact_posterior is False")

    def __repr__(self) -> str:
        options = "".join(f", {k}={v!r}" for k, v in self.options.items())
        return f"task({self.name!r}{options})"


@compiled
def _first_outside(rows: Any, low: Any, high: Any) -> Any:
    """The first row that is not inside the box (NaN is not), or -1. NumPy would take as long as a simulation."""
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if not low[j] <= rows[i, j] <= high[j]:
                return i
    return -1


def _real(value: Any, name: str) -> Tensor:
    """What a user gave, as float32 or float64."""
    tensor = as_tensor(value, name)
    if tensor.dtype == torch.bool:
        raise TypeError(f"{name} should hold real numbers, got {tensor.dtype}")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def in_chunks(f: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, limit: int) -> Tensor:
    """f(a, b) with shape `(*,)` for a `(*, I)` and b `(*, J)`, on pieces of at most `limit` elements of the result."""
    shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    if shape.numel() <= limit or not shape:
        return f(a, b)
    a, b = a.expand(*shape, a.shape[-1]), b.expand(*shape, b.shape[-1])
    axis = max(range(len(shape)), key=lambda i: shape[i])
    pieces = max(1, shape[axis] * limit // shape.numel())
    parts = zip(a.split(pieces, axis), b.split(pieces, axis), strict=True)
    return torch.cat([in_chunks(f, p, q, limit) for p, q in parts], axis)


def legendre(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Nodes and weights with shape `(n,)` of the n-point rule on [0, 1].

    Example:
        >>> node, weight = legendre(5)
        >>> round(float((weight * node**9).sum()), 12)
        0.1
    """
    node, weight = np.polynomial.legendre.leggauss(n)
    return torch.tensor((node + 1) / 2, device=device), torch.tensor(weight / 2, device=device)


def clustered(n: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    r"""A rule on [0, 1], accurate for \(\sqrt{t}\) and \(\sqrt{1-t}\) at the ends: t = (1 - cos πs)/2, s Legendre.

    Example:
        >>> node, weight = clustered(16)
        >>> round(float((weight * (node * (1 - node)).sqrt()).sum()) * 8 / math.pi, 12)
        1.0
    """
    s, weight = legendre(n, device)
    return (1 - (math.pi * s).cos()) / 2, weight * math.pi / 2 * (math.pi * s).sin()
