"""The abstract prior, and what all priors share: checks of numbers and the standard normal."""

from __future__ import annotations

__all__ = ["Prior", "as_numbers", "as_vector", "dtype_name", "log_phi", "ndtr", "normal_cdf", "refuse_unresolved_ends"]

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from equipoise.support.arrays import as_tensor, plain
from equipoise.support.checks import parameter_names
from equipoise.support.randomness import isolated


class Prior(Distribution, ABC):
    """A distribution over parameter vectors, with shape `(D,)`, that knows its support and its map to N(0, I)."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    #: Whether `to_normal`, `from_normal`, `to_uniform` and `from_uniform` are available.
    has_normal_map: bool = True
    #: Whether several threads may ask at once.
    in_threads: bool = True
    #: The names of the parameters; None where they have none.
    names: tuple[str, ...] | None = None

    def __init__(self, dim: int, device: torch.device) -> None:
        if dim < 1:
            raise ValueError("a prior has at least one parameter")
        super().__init__(batch_shape=Size(), event_shape=Size([dim]), validate_args=False)
        self.device = device  # where draws are made

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.event_shape[0]

    def named(self, names: Sequence[str] | None) -> Self:
        """The same prior with these names of its parameters."""
        twin = copy.copy(self)
        twin.names = None if names is None else parameter_names(names, self.dim)
        return twin

    def outside(self, theta: Tensor) -> str:
        """Which parameters of one θ, with shape `(D,)`, lie outside the support: "gamma = 7.2"; "" where unknown."""
        if not self.has_normal_map:
            return ""
        with isolated(0):
            points = self.sample((1,)).repeat(self.dim, 1)  # each with one coordinate of θ
        points.diagonal().copy_(theta)
        lost = (~self.contains(points)).nonzero().flatten().tolist()
        return ", ".join(f"{self.label(j)} = {float(theta[j]):g}" for j in lost)

    def label(self, j: int) -> str:
        """The name of parameter j, or theta[:, j]."""
        return f"theta[:, {j}]" if self.names is None else self.names[j]

    @abstractmethod
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws, with shape `(*sample_shape, D)`."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """log p(θ) of each row of `value`, with shape `(*, D)`; shape `(*,)`, -inf outside the support."""

    def contains(self, theta: Tensor) -> Tensor:
        """Whether each row of `theta`, with shape `(*, D)`, lies in the support; shape `(*,)`, False for NaN."""
        return self.log_prob(theta).isfinite()

    @abstractmethod
    def to_normal(self, theta: Tensor) -> Tensor:
        """z with z ~ N(0, I) when θ follows the prior; shape `(*, D)`, always finite inside the support."""

    @abstractmethod
    def from_normal(self, z: Tensor) -> Tensor:
        """θ from z: the inverse of `to_normal`; shape `(*, D)`, always inside the support."""

    @abstractmethod
    def to_uniform(self, theta: Tensor) -> Tensor:
        """u, uniform on [0, 1]^D when θ follows the prior; shape `(*, D)`."""

    @abstractmethod
    def from_uniform(self, u: Tensor) -> Tensor:
        """θ from u: the inverse of `to_uniform`; shape `(*, D)`, always inside the support."""

    @abstractmethod
    def to(self, device: str | torch.device) -> Prior:
        """The same prior on another device."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """A JSON description from which `prior_from_spec` rebuilds the prior.

        Its kind is "opaque" where only code can rebuild the prior; users then pass it again.
        """

    def _check(self, theta: Tensor) -> Tensor:
        theta = torch.as_tensor(theta)
        if theta.shape[-1:] != self.event_shape:
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but the prior has {self.dim} parameter(s)")
        if theta.is_complex():
            raise TypeError("theta should be an array of real numbers, and is complex")
        return theta if theta.is_floating_point() else theta.to(torch.get_default_dtype())


def ndtr(z: Tensor) -> Tensor:
    """Φ(z), with all of its digits in the lower tail.

    Torch's own (2.13, on a CPU) is (1 + erf(z/√2))/2 there: in float32 it is 4% off at z = -5, and 0 from -6 on.
    """
    return torch.special.erfc(z * -math.sqrt(0.5)) / 2


def log_phi(z: Tensor) -> Tensor:
    """log φ(z)."""
    return -(z**2) / 2 - math.log(2 * math.pi) / 2


def normal_cdf(z: float) -> float:
    """Φ(z) as a Python number."""
    return math.erfc(-z / math.sqrt(2)) / 2


def as_vector(value: Any, name: str) -> Tensor:
    """Numbers with one entry per parameter, with shape `(D,)`; errors call them `name`."""
    tensor = torch.atleast_1d(as_numbers(value, name))
    if tensor.ndim != 1:
        raise ValueError(f"{name} should be a vector with one entry per parameter, got shape {tuple(tensor.shape)}")
    return tensor


def as_numbers(value: Any, name: str) -> Tensor:
    """Real numbers of any shape as a floating-point tensor; errors call them `name`."""
    tensor = as_tensor(value, name)
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def refuse_unresolved_ends(what: str, low: Any, high: Any) -> None:
    """Raise if the ends of an interval, as the caller gave them, are in order, but not after rounding to a tensor."""
    exact = [torch.as_tensor(plain(end), dtype=torch.float64).cpu() for end in (low, high)]
    kept = [as_numbers(end, "an end").double().cpu() for end in (low, high)]
    outside = (e.isfinite() & ~k.isfinite() | (e != 0) & (k == 0) for e, k in zip(exact, kept, strict=True))
    lost = any(bool(o.any()) for o in outside) or not bool((kept[0] < kept[1]).all())
    if lost and bool((exact[0] < exact[1]).all()):
        ends, become = (" and ".join(str(end.tolist()) for end in pair) for pair in (exact, kept))
        raise ValueError(
            f"{what} between {ends} does not fit single precision, in which networks compute: its ends become "
            f"{become}. Rescale the parameter (other units, or its logarithm), or subtract an offset from it and add "
            "that in the simulator"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in a description."""
    return str(dtype).removeprefix("torch.")
