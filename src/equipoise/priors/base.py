"""What every prior has."""

from __future__ import annotations

__all__ = ["Prior", "as_numbers", "as_vector", "dtype_name", "refuse_what_single_precision_loses"]

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints


def as_vector(value: Any, name: str) -> Tensor:
    """Numbers with one entry a parameter, with shape `(D,)`; `name` is what an error calls them."""
    tensor = torch.atleast_1d(as_numbers(value, name))
    if tensor.ndim != 1:
        raise ValueError(f"{name} should be a vector with one entry a parameter, got shape {tuple(tensor.shape)}")
    return tensor


def as_numbers(value: Any, name: str) -> Tensor:
    """Real numbers of any shape as a floating-point tensor; `name` is what an error calls them."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} should be numbers, got {value!r}") from error
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def refuse_what_single_precision_loses(what: str, low: Any, high: Any) -> None:
    """Raise if the ends of an interval, as they were given, are in order but no longer so once they are tensors.

    Arguments:
        what: what the error says has these ends.
        low: the lower ends as the caller has them, before any rounding.
        high: the upper ends.
    """
    exact = [torch.as_tensor(end, dtype=torch.float64) for end in (low, high)]
    if not bool((exact[0] < exact[1]).all()):
        return
    kept = [as_numbers(end, "an end").double() for end in (low, high)]
    if any(bool((e.isfinite() & ~k.isfinite()).any()) for e, k in zip(exact, kept, strict=True)):
        raise ValueError(
            f"{what} from {_listed(low)} to {_listed(high)} is too large for single precision, which ends at 3.4e38 "
            "and in which networks compute. Rescale the parameter: other units, or its logarithm"
        )
    if any(bool(((e != 0) & (k == 0)).any()) for e, k in zip(exact, kept, strict=True)):
        raise ValueError(
            f"{what} from {_listed(low)} to {_listed(high)} is too small for single precision, which ends at 1e-45 "
            "and in which networks compute. Rescale the parameter: other units, or its logarithm"
        )
    if not bool((kept[0] < kept[1]).all()):
        raise ValueError(
            f"{what} from {_listed(low)} to {_listed(high)}: the ends are too close together for single precision, "
            f"where they become {kept[0].tolist()} and {kept[1].tolist()}; networks compute in it. Subtract an offset "
            "from the parameter, and add it in the simulator"
        )


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def dtype_name(dtype: torch.dtype) -> str:
    """What a dtype is called in a description."""
    return str(dtype).removeprefix("torch.")


class Prior(Distribution, ABC):
    """A distribution over parameter vectors, with shape `(D,)`, that knows its support and its map to N(0, I)."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    #: Whether `to_normal`, `from_normal`, `to_uniform` and `from_uniform` are available.
    has_normal_map: bool = True

    def __init__(self, dim: int) -> None:
        super().__init__(batch_shape=Size(), event_shape=Size([dim]), validate_args=False)

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.event_shape[0]

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where draws are made."""

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

        Of the kind "opaque" for one that takes code to rebuild; users then bring it again.
        """

    def _check(self, theta: Tensor) -> Tensor:
        theta = torch.as_tensor(theta)
        if theta.shape[-1:] != self.event_shape:
            raise ValueError(f"theta has shape {tuple(theta.shape)}, but the prior has {self.dim} parameter(s)")
        return theta if theta.is_floating_point() else theta.to(torch.get_default_dtype())
