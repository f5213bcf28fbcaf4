"""Priors of which nothing is known but draws and densities."""

from __future__ import annotations

__all__ = ["OpaquePrior", "support_of"]

import math
from typing import Any

import torch
from torch import Size, Tensor

from equipoise.support.randomness import undisturbed

from .base import Prior


def support_of(distribution: Any) -> Any:
    """The support that a distribution says it has; None where it does not."""
    try:
        return getattr(distribution, "support", None)
    except NotImplementedError:  # what torch's base class says for "unknown"
        return None


def _refuse_what_rounding_loses(distribution: Any, draw: Tensor) -> None:
    """Raise where two draws, with shape `(2, D)`, differ and single precision cannot tell."""
    dtype = torch.get_default_dtype()
    rounded = draw.to(dtype)
    large = (draw.isfinite() & ~rounded.isfinite()).any(0)
    lost = (draw[0] != draw[1]) & (rounded[0] == rounded[1])
    for j in (large | lost).nonzero().flatten().tolist()[:1]:
        why = "are too large" if large[j] else "vary too little"
        raise ValueError(
            f"draws of parameter {j} of {distribution!r} {why} for single precision, in which networks compute: "
            f"{draw[:, j].tolist()} become {rounded[:, j].tolist()}. Rescale the parameter, or subtract an offset from "
            "it, and undo that in the simulator."
        )


class OpaquePrior(Prior):
    """Any object with `sample` and `log_prob`, as users bring them; it has no map to N(0, I) and cannot be stored.

    Moved to another device it stays where it is: draws and densities are carried across.
    """

    has_normal_map = False

    def __init__(self, distribution: Any, device: str | torch.device | None = None) -> None:
        self.distribution = distribution
        with undisturbed():  # looking at a prior must not advance the user's generator
            draw = torch.as_tensor(distribution.sample((2,)))
            if draw.ndim != 2:
                raise ValueError(
                    "a prior is a distribution over vectors: sample((2,)) should have shape (2, D), got "
                    f"{tuple(draw.shape)}. Wrap scalar distributions in torch.distributions.Independent, or give "
                    "eq.IndependentPrior a list."
                )
            density = torch.as_tensor(distribution.log_prob(draw))
        if density.shape != (2,):
            raise ValueError(
                f"log_prob of 2 draws of the prior should have shape (2,), got {tuple(density.shape)}. Wrap the prior "
                "in torch.distributions.Independent(prior, 1) to sum over parameters."
            )
        _refuse_what_rounding_loses(distribution, draw)
        self._anchor = draw[0]
        self._device = torch.device(device) if device is not None else draw.device
        super().__init__(draw.shape[1])

    @property
    def device(self) -> torch.device:
        return self._device

    def sample(self, sample_shape: Any = ()) -> Tensor:
        draw = torch.as_tensor(self.distribution.sample(Size(sample_shape)))
        return draw.to(self.device) if draw.is_floating_point() else draw.to(self.device, torch.get_default_dtype())

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._check(value)
        here = value.to(self._anchor.device)
        # torch's own validation refuses points outside the support, or NaN, instead of returning -inf.
        inside = here.isfinite().all(-1)
        if (support := support_of(self.distribution)) is not None:
            within = support.check(here)
            inside = inside & (within if within.shape == inside.shape else within.all(-1))
        safe = torch.where(inside.unsqueeze(-1), here, self._anchor.to(here.dtype))
        density = torch.as_tensor(self.distribution.log_prob(safe))
        return torch.where(inside, density, -math.inf).to(value.device)

    def _no_map(self, _: Tensor) -> Tensor:
        raise ValueError(
            f"{self.distribution!r} has no map to N(0, I): only priors with a CDF have one. Describe it with "
            "eq.BoxUniform, eq.IndependentPrior or eq.GaussianPrior, or choose what needs no map (start='random')."
        )

    to_normal = from_normal = to_uniform = from_uniform = _no_map  # type: ignore[assignment]

    def to(self, device: str | torch.device) -> OpaquePrior:
        return OpaquePrior(self.distribution, device)

    def spec(self) -> dict[str, Any]:
        return {"kind": "opaque", "dim": self.dim, "repr": repr(self.distribution)}

    def __repr__(self) -> str:
        return f"OpaquePrior({self.distribution!r})"
