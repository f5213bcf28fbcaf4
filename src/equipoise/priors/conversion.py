"""Priors of what users bring, and of what was stored."""

from __future__ import annotations

__all__ = ["as_prior", "prior_from_spec"]

from typing import Any

import torch
import torch.distributions as td
from torch.distributions import Distribution, constraints

from equipoise.support.errors import MissingPart, warn

from . import marginals as one
from . import parts
from .base import Prior, refuse_what_single_precision_loses
from .box import BoxUniform
from .gaussian import GaussianPrior
from .independent import IndependentPrior
from .opaque import OpaquePrior, support_of
from .scipys import is_scipy


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
        given = f"the text {prior!r}" if isinstance(prior, str) else type(prior).__name__
        shell = "; text is for the shell (equipoise fit --prior)" if isinstance(prior, str) else ""
        if is_scipy(prior):
            shell = "; a list of scipy.stats distributions, one a parameter, goes into eq.IndependentPrior"
        elif isinstance(prior, list | tuple):
            shell = "; a list of distributions, one a parameter, goes into eq.IndependentPrior"
        raise TypeError(
            f"a prior is eq.BoxUniform(low, high), eq.GaussianPrior, eq.IndependentPrior, a torch distribution over "
            f"vectors, or anything else with sample and log_prob; got {given}{shell}"
        )
    if isinstance(prior, Distribution) and not prior.batch_shape and not prior.event_shape:
        raise ValueError(
            f"{prior} is a distribution over scalars. For one parameter use eq.IndependentPrior([prior]), or "
            "torch.distributions.Independent over a batch of one."
        )
    if _on_a_simplex(prior):
        raise ValueError(
            f"{prior} lives on a simplex: its coordinates add up to 1, so that one of them says nothing new, and it "
            "has no density over all of them, which is what posteriors here are. Leave out the last coordinate: bring "
            "an object with sample and log_prob over the others, and have the simulator append 1 minus their sum "
            "(docs/priors.md has one)."
        )
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape:
        return _resolved(GaussianPrior(prior.loc, prior.covariance_matrix))
    rows = parts.scalars(prior)
    boxes = [m for m in rows if isinstance(m, td.Uniform)]
    if rows and len(boxes) == len(rows):
        return _resolved(BoxUniform(torch.stack([m.low for m in boxes]), torch.stack([m.high for m in boxes])))
    if rows and all(one.has_cdf(m) for m in rows):
        return _resolved(IndependentPrior(rows))
    return OpaquePrior(prior)


def _on_a_simplex(prior: Any) -> bool:
    """Whether a prior, or a part of it, is over vectors that add up to 1."""
    if inside := getattr(prior, "dists", None):  # sbi's MultipleIndependent
        return any(_on_a_simplex(part) for part in inside)
    support = support_of(prior)
    return isinstance(getattr(support, "base_constraint", support), type(constraints.simplex))


def _resolved(prior: Prior) -> Prior:
    """The prior itself, unless the precision of networks cannot tell its quartiles apart."""
    if not prior.has_normal_map:
        return prior
    dtype = torch.get_default_dtype()
    u = torch.tensor([0.25, 0.5, 0.75], dtype=dtype, device=prior.device)
    with torch.no_grad():
        low, middle, high = prior.from_uniform(u[:, None].expand(-1, prior.dim)).cpu()
    infinite = ~(low.isfinite() & middle.isfinite() & high.isfinite())
    if bool(infinite.any()):
        raise ValueError(
            f"parameter {int(infinite.nonzero()[0])} of {prior} is too large for single precision, which ends at "
            "3.4e38 and in which networks compute. Rescale it: other units, or its logarithm."
        )
    gap = torch.nextafter(middle.abs(), torch.full_like(middle, torch.inf)) - middle.abs()
    share = gap / (high - low).clamp(min=torch.finfo(dtype).tiny)
    worst = int(share.argmax())
    if float(share[worst]) > 0.5:
        raise ValueError(
            f"parameter {worst} of {prior} varies too little for single precision, in which networks compute: around "
            f"{float(middle[worst]):.9g} it knows steps of {float(gap[worst]):.2g} only. Subtract an offset from the "
            "parameter, and add it in the simulator."
        )
    if float(share[worst]) > 0.01:
        warn(
            f"single precision knows parameter {worst} of {prior} in steps of {float(gap[worst]):.2g} only, and the "
            f"middle half of the prior spans {float(high[worst] - low[worst]):.2g}. Subtract an offset from the "
            "parameter, and add it in the simulator",
        )
    return prior


def prior_from_spec(spec: dict[str, Any]) -> Prior:
    """Rebuild a prior from its `spec()`.

    Example:
        >>> prior_from_spec(BoxUniform([0.0], [2.0]).spec())
        BoxUniform(low=[0.0], high=[2.0])
    """
    match spec.get("kind"):
        case "box":
            low, high = parts.numbers(spec, "low"), parts.numbers(spec, "high")
            if low.dtype != torch.float64:  # written by hand, the numbers may not be rounded yet
                refuse_what_single_precision_loses("the box", spec["low"], spec["high"])
            return BoxUniform(low, high)
        case "gaussian":
            return GaussianPrior(parts.numbers(spec, "loc"), parts.numbers(spec, "covariance"))
        case "independent":
            if not isinstance(spec["marginals"], list):
                raise ValueError(f'"marginals" should be a list, got {spec["marginals"]!r}')
            return IndependentPrior([parts.build(m) for m in spec["marginals"]])
        case "opaque":
            raise MissingPart(
                f"the prior was {spec['repr']}, which cannot be stored without pickle; "
                "pass it again: eq.load(path, prior=…)",
                "prior",
            )
    raise ValueError(f"unknown kind of prior {spec.get('kind')!r}; was the file written by a newer Equipoise?")
