"""Priors from the objects that users bring."""

from __future__ import annotations

__all__ = ["OpaquePrior", "as_prior"]

import math
from typing import Any

import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from equipoise.support.errors import warn
from equipoise.support.randomness import undisturbed

from .closed_forms import BoxUniform, GaussianPrior
from .independent import IndependentPrior, scalar_marginals
from .marginals import has_cdf
from .prior import Prior
from .scipy_marginals import is_scipy


def as_prior(prior: Any) -> Prior:
    """The prior a user gave, as a `Prior`.

    Box-uniform, independent and Gaussian torch distributions (and sbi's `BoxUniform` and `MultipleIndependent`) are
    recognised and get their map to N(0, I); anything else with `sample` and `log_prob` is taken as it is.

    Example:
        >>> as_prior(td.Independent(td.Uniform(torch.zeros(2), torch.ones(2)), 1))
        BoxUniform(low=[0.0, 0.0], high=[1.0, 1.0])
    """
    if isinstance(prior, Prior):
        return _resolved(prior)
    if not (hasattr(prior, "sample") and hasattr(prior, "log_prob")):
        advice = ""
        if isinstance(prior, str):
            advice = "; text is for the shell (equipoise fit --prior)"
        elif is_scipy(prior) or isinstance(prior, list | tuple):
            advice = "; a list of distributions, one per parameter, goes into eq.IndependentPrior"
        raise TypeError(
            f"a prior is eq.BoxUniform(low, high), eq.GaussianPrior, eq.IndependentPrior, a torch distribution over "
            f"vectors, or anything else with sample and log_prob; got {type(prior).__name__}{advice}"
        )
    if isinstance(prior, Distribution) and not prior.batch_shape and not prior.event_shape:
        raise ValueError(
            f"{prior} is a distribution over scalars. For one parameter use eq.IndependentPrior([prior]), or "
            "torch.distributions.Independent over a batch of one."
        )
    if _on_a_simplex(prior):
        raise ValueError(
            f"{prior} lives on a simplex: its coordinates add up to 1, so it has no density over all of them. Leave "
            "out the last one, and have the simulator append 1 minus the sum of the others (see docs/priors.md)."
        )
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape:
        return _resolved(GaussianPrior(prior.loc, prior.covariance_matrix))
    rows = scalar_marginals(prior)
    boxes = [m for m in rows if isinstance(m, td.Uniform)]
    if rows and len(boxes) == len(rows):
        return _resolved(BoxUniform(torch.stack([m.low for m in boxes]), torch.stack([m.high for m in boxes])))
    if rows and all(has_cdf(m) for m in rows):
        return _resolved(IndependentPrior(rows))
    return OpaquePrior(prior)


def _on_a_simplex(prior: Any) -> bool:
    """Whether a prior, or a part of it, is over vectors that add up to 1."""
    if inside := getattr(prior, "dists", None):  # sbi's MultipleIndependent
        return any(_on_a_simplex(part) for part in inside)
    support = _support_of(prior)
    return isinstance(getattr(support, "base_constraint", support), type(constraints.simplex))


def _resolved(prior: Prior) -> Prior:
    """The prior itself; an error or a warning where single precision hardly resolves its quartiles."""
    if not prior.has_normal_map:
        return prior
    dtype = torch.get_default_dtype()
    u = torch.tensor([0.25, 0.5, 0.75], dtype=dtype, device=prior.device)
    with torch.no_grad():
        quartiles = prior.from_uniform(u[:, None].expand(-1, prior.dim)).cpu()
    infinite = ~quartiles.isfinite().all(0)
    if bool(infinite.any()):
        raise ValueError(
            f"parameter {int(infinite.nonzero()[0])} of {prior} is too large for single precision, which ends at "
            "3.4e38 and in which networks compute. Rescale it: other units, or its logarithm."
        )
    low, middle, high = quartiles
    gap = torch.nextafter(middle.abs(), torch.full_like(middle, torch.inf)) - middle.abs()
    share = gap / (high - low).clamp(min=torch.finfo(dtype).tiny)
    worst = int(share.argmax())
    text = (
        f"parameter {worst} of {prior} varies too little for single precision, in which networks compute: its steps "
        f"are {float(gap[worst]):.2g}, and the middle half of the prior spans {float(high[worst] - low[worst]):.2g}. "
        "Subtract an offset from the parameter, and add it in the simulator"
    )
    if float(share[worst]) > 0.5:
        raise ValueError(text)
    if float(share[worst]) > 0.01:
        warn(text)
    return prior


def _support_of(distribution: Any) -> Any:
    """The support that a distribution says it has; None where it does not."""
    try:
        return getattr(distribution, "support", None)
    except NotImplementedError:  # what torch's base class says for "unknown"
        return None


def _refuse_unresolved_draws(distribution: Any, draw: Tensor) -> None:
    """Raise where two draws, with shape `(2, D)`, differ and single precision cannot tell them apart."""
    dtype = torch.get_default_dtype()
    rounded = draw.to(dtype)
    large = (draw.isfinite() & ~rounded.isfinite()).any(0)
    lost = (draw[0] != draw[1]) & (rounded[0] == rounded[1])
    for j in (large | lost).nonzero().flatten().tolist()[:1]:
        why = "are too large" if large[j] else "vary too little"
        raise ValueError(
            f"draws of parameter {j} of {distribution!r} {why} for single precision: {draw[:, j].tolist()} become "
            f"{rounded[:, j].tolist()}. Rescale it, or subtract an offset, and undo that in the simulator."
        )


class OpaquePrior(Prior):
    """Any object with `sample` and `log_prob`, as users bring them; it has no map to N(0, I) and cannot be stored.

    Moved to another device, the object stays where it is; draws and densities are copied across.
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
        _refuse_unresolved_draws(distribution, draw)
        self._anchor = draw[0]
        super().__init__(draw.shape[1], torch.device(draw.device if device is None else device))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        draw = torch.as_tensor(self.distribution.sample(Size(sample_shape)))
        return draw.to(self.device) if draw.is_floating_point() else draw.to(self.device, torch.get_default_dtype())

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._check(value)
        here = value.to(self._anchor.device).reshape(-1, self.dim)  # sbi's priors refuse more than two dimensions
        # torch's own validation refuses points outside the support, or NaN, instead of returning -inf.
        inside = here.isfinite().all(-1)
        if (support := _support_of(self.distribution)) is not None:
            within = support.check(here)
            inside = inside & (within if within.shape == inside.shape else within.all(-1))
        safe = torch.where(inside.unsqueeze(-1), here, self._anchor.to(here.dtype))
        density = torch.as_tensor(self.distribution.log_prob(safe))
        return torch.where(inside, density, -math.inf).reshape(value.shape[:-1]).to(value.device)

    def _no_map(self, _: Tensor) -> Tensor:
        raise ValueError(
            f"{self.distribution!r} has no map to N(0, I): only priors with a CDF have one. Describe it with "
            "eq.BoxUniform, eq.IndependentPrior or eq.GaussianPrior, or choose what needs no map (start='random')."
        )

    to_normal = from_normal = to_uniform = from_uniform = _no_map  # type: ignore[assignment]

    def to(self, device: str | torch.device) -> OpaquePrior:
        return OpaquePrior(self.distribution, device).named(self.names)

    def spec(self) -> dict[str, Any]:
        return {"kind": "opaque", "dim": self.dim, "repr": repr(self.distribution)}

    def __repr__(self) -> str:
        return f"OpaquePrior({self.distribution!r})"
