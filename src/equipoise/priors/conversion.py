"""Priors from the objects that users bring."""

from __future__ import annotations

__all__ = ["OpaquePrior", "as_prior"]

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributions as td
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from equipoise.support.errors import warn
from equipoise.support.randomness import isolated, undisturbed

from .closed_forms import BoxUniform, GaussianPrior
from .independent import IndependentPrior, scalar_marginals, unwrapped
from .marginals import has_cdf
from .prior import Prior
from .scipy_marginals import is_scipy

#: Draws that are tried, and the share of them outside the support, or the error of a CDF, that rounding may explain.
TRIED, UNDONE = 200, 0.02


def as_prior(prior: Any) -> Prior:
    """The prior a user gave, as a `Prior`.

    A list of marginals is their product, a dictionary of them has names. Box-uniform, independent and Gaussian torch
    distributions, also in sbi's wrappers, and sbi's `BoxUniform` and `MultipleIndependent` are recognised and get their
    map to N(0, I). Anything else with `sample` and `log_prob` is taken as it is, after both have been tried.

    Example:
        >>> as_prior(td.Independent(td.Uniform(torch.zeros(2), torch.ones(2)), 1))
        BoxUniform(low=[0.0, 0.0], high=[1.0, 1.0])
        >>> as_prior({"beta": td.Uniform(0.0, 2.0), "gamma": td.Normal(0.0, 1.0)}).names
        ('beta', 'gamma')
    """
    if isinstance(prior, Prior):
        return _resolved(prior)
    if isinstance(prior, Mapping | list | tuple):
        product = IndependentPrior(prior)
        return _resolved(_box_or(product.marginals).named(product.names))
    prior = unwrapped(prior)
    if not (hasattr(prior, "sample") and hasattr(prior, "log_prob")):
        raise TypeError(
            f"a prior is eq.BoxUniform(low, high), eq.GaussianPrior, a list or dictionary of distributions, one per "
            f"parameter, a torch distribution over vectors, or anything else with sample and log_prob; got "
            f"{type(prior).__name__}{_advice(prior)}"
        )
    if _over_scalars(prior):
        raise ValueError(
            f"{prior} is a distribution over scalars. For one parameter give a list of one, [prior], or "
            "torch.distributions.Independent over a batch of one."
        )
    if _on_a_simplex(prior):
        raise ValueError(
            f"{prior} lives on a simplex: its coordinates add up to 1, so it has no density over all of them. Leave "
            "out the last one, and have the simulator append 1 minus the sum of the others (see docs/priors.md)."
        )
    if isinstance(prior, td.MultivariateNormal | td.LowRankMultivariateNormal) and not prior.batch_shape:
        return _resolved(GaussianPrior(prior.loc, prior.covariance_matrix))
    rows = scalar_marginals(prior)
    if rows and all(has_cdf(m) for m in rows):
        return _resolved(_box_or(rows))
    return OpaquePrior(prior)


def _box_or(rows: Sequence[Distribution]) -> Prior:
    """The product of scalar marginals: a box if all are uniform."""
    boxes = [m for m in rows if isinstance(m, td.Uniform)]
    if len(boxes) < len(rows):
        return IndependentPrior(rows)
    return BoxUniform(torch.stack([m.low for m in boxes]), torch.stack([m.high for m in boxes]))


def _advice(thing: Any) -> str:
    """What to give instead of something that is no prior."""
    if isinstance(thing, str):
        return "; text is for the shell (equipoise fit --prior)"
    if type(thing).__name__.startswith("multivariate_normal"):
        return "; SciPy's multivariate_normal(mean, cov) is eq.GaussianPrior(mean, cov)"
    if is_scipy(thing) and hasattr(thing, "dist"):
        return "; for one parameter give a list of one, [prior]"
    if hasattr(thing, "rvs"):
        return "; wrap its rvs and logpdf in an object with sample(shape) and log_prob(theta)"
    return ""


def _over_scalars(prior: Any) -> bool:
    """Whether draws of a torch distribution are numbers; sbi's `RestrictedPrior` only says that they are."""
    if not isinstance(prior, Distribution) or prior.batch_shape or prior.event_shape:
        return False
    with undisturbed():
        return torch.as_tensor(prior.sample(Size([2]))).ndim < 2


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
            f"{_called(prior, int(infinite.nonzero()[0]))} of {prior} is too large for single precision, which ends at "
            "3.4e38 and in which networks compute. Rescale it: other units, or its logarithm."
        )
    low, middle, high = quartiles
    gap = torch.nextafter(middle.abs(), torch.full_like(middle, torch.inf)) - middle.abs()
    share = gap / (high - low).clamp(min=torch.finfo(dtype).tiny)
    worst = int(share.argmax())
    spread = float(high[worst] - low[worst])
    text = (
        f"{_called(prior, worst)} of {prior} varies too little for single precision, in which networks compute: its "
        f"steps are {float(gap[worst]):.2g}, and the middle half of the prior spans {spread:.2g}. "
        "Subtract an offset from the parameter, and add it in the simulator"
    )
    if float(share[worst]) > 0.5:
        raise ValueError(text)
    _refuse_unusable(prior, UNDONE + float(share[worst]))
    if float(share[worst]) > 0.01:
        warn(text)
    return prior


def _refuse_unusable(prior: Prior, error: float) -> None:
    """Raise where draws or densities are not finite in single precision, or the CDF undoes quantiles with an error."""
    u = torch.tensor([0.25, 0.5, 0.75], device=prior.device)[:, None].expand(-1, prior.dim)
    with isolated(0), torch.no_grad():
        theta = prior.sample(Size([TRIED]))
        density, back = prior.log_prob(theta), prior.to_uniform(prior.from_uniform(u))
    wrong = ~theta.isfinite().all(0) | ((back - u).abs() > error).any(0).to(theta.device)
    lost = density.isnan() | density.isposinf()
    if bool(wrong.any()) or bool(lost.any()) or float(density.isneginf().double().mean()) > UNDONE:
        where = f"{_called(prior, int(wrong.nonzero()[0]))} of {prior}" if bool(wrong.any()) else str(prior)
        raise ValueError(
            f"{where} is too large, too small or too wide for single precision, which holds 1.2e-38 to 3.4e38 and in "
            "which networks compute: its draws or densities are not finite. Rescale it: other units, or its logarithm."
        )


def _called(prior: Prior, j: int) -> str:
    """Parameter j by its name, or else its number."""
    return f"parameter {j}" if prior.names is None else prior.names[j]


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


def _tried_draws(distribution: Any) -> Tensor:
    """Two draws with shape `(2, D)`, or an error that says what `sample` should do."""
    try:
        draw = torch.as_tensor(distribution.sample(Size([2])))
    except TypeError as error:
        raise TypeError(
            f"sample((2,)) of the prior, {type(distribution).__name__}, failed ({' '.join(str(error).split())[:200]}). "
            "A prior's sample takes a shape, as torch's do: sample((n,)) gives n draws with shape (n, D). If yours "
            "takes a number, let it take a shape and use shape[0]"
        ) from error
    if draw.ndim != 2 or len(draw) != 2:
        raise ValueError(
            "a prior is a distribution over vectors: sample((2,)) should have shape (2, D), got "
            f"{tuple(draw.shape)}. Wrap scalar distributions in torch.distributions.Independent, or give a list with "
            "one distribution per parameter."
        )
    support = _support_of(distribution)
    if getattr(support, "is_discrete", False):
        raise ValueError(
            f"{distribution!r} is, at least in part, over whole numbers, and posteriors here are densities over real "
            "ones. Draw such a parameter in the simulator, or choose a continuous one instead."
        )
    return draw


class OpaquePrior(Prior):
    """Any object with `sample` and `log_prob`, as users bring them; it has no map to N(0, I) and cannot be stored.

    Moved to another device, the object stays where it is; draws and densities are copied across.
    """

    has_normal_map = False
    in_threads = False

    def __init__(self, distribution: Any, device: str | torch.device | None = None) -> None:
        self.distribution = distribution
        with undisturbed():  # looking at a prior must not advance the user's generator
            draw = _tried_draws(distribution)
            for rows in (draw, draw[:1]):
                density = torch.as_tensor(distribution.log_prob(rows))
                if density.shape != rows.shape[:1]:
                    raise ValueError(
                        f"log_prob of {len(rows)} draw(s) of the prior should have shape ({len(rows)},), got "
                        f"{tuple(density.shape)}. Wrap the prior in torch.distributions.Independent(prior, 1) to sum "
                        "over parameters."
                    )
        _refuse_unresolved_draws(distribution, draw)
        self._anchor = draw[0] if draw.is_floating_point() else draw[0].to(torch.get_default_dtype())
        super().__init__(draw.shape[1], torch.device(draw.device if device is None else device))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        draw = torch.as_tensor(self.distribution.sample(Size(sample_shape)))
        return draw.to(self.device) if draw.is_floating_point() else draw.to(self.device, torch.get_default_dtype())

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._check(value)
        # In the shape and precision that was tried: sbi's priors refuse more than two dimensions, and some others
        # another dtype than that of their draws.
        here = value.to(self._anchor).reshape(-1, self.dim)
        # torch's own validation refuses points outside the support, or NaN, instead of returning -inf.
        inside = here.isfinite().all(-1)
        if (support := _support_of(self.distribution)) is not None:
            within = support.check(here)
            inside = inside & (within if within.shape == inside.shape else within.all(-1))
        safe = torch.where(inside.unsqueeze(-1), here, self._anchor)
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
