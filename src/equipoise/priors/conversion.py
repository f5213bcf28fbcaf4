"""Priors of what users bring, and of what was stored."""

from __future__ import annotations

__all__ = ["as_prior", "prior_from_spec"]

from typing import Any

import torch
import torch.distributions as td
from torch.distributions import Distribution

from . import marginals as one
from .base import Prior
from .box import BoxUniform
from .gaussian import GaussianPrior
from .independent import IndependentPrior
from .opaque import OpaquePrior


def as_prior(prior: Any) -> Prior:
    """The prior a user gave, as a `Prior`.

    Box-uniform, independent and Gaussian torch distributions (and sbi's `BoxUniform` and `MultipleIndependent`) are
    recognised and get their map to N(0, I); anything else with `sample` and `log_prob` is taken as it is.

    Example:
        >>> as_prior(td.Independent(td.Uniform(torch.zeros(2), torch.ones(2)), 1))
        BoxUniform(low=[0.0, 0.0], high=[1.0, 1.0])
    """
    if isinstance(prior, Prior):
        return prior
    if not (hasattr(prior, "sample") and hasattr(prior, "log_prob")):
        given = f"the text {prior!r}" if isinstance(prior, str) else type(prior).__name__
        shell = "; text is for the shell (equipoise fit --prior)" if isinstance(prior, str) else ""
        raise TypeError(
            f"a prior is eq.BoxUniform(low, high), eq.GaussianPrior, eq.IndependentPrior, a torch distribution over "
            f"vectors, or anything else with sample and log_prob; got {given}{shell}"
        )
    if isinstance(prior, Distribution) and not prior.batch_shape and not prior.event_shape:
        raise ValueError(
            f"{prior} is a distribution over scalars. For one parameter use eq.IndependentPrior([prior]), or "
            "torch.distributions.Independent over a batch of one."
        )
    if isinstance(prior, td.MultivariateNormal) and not prior.batch_shape:
        return GaussianPrior(prior.loc, prior.covariance_matrix)
    rows = one.scalars(prior)
    boxes = [m for m in rows if isinstance(m, td.Uniform)]
    if rows and len(boxes) == len(rows):
        return BoxUniform(torch.stack([m.low for m in boxes]), torch.stack([m.high for m in boxes]))
    if rows and all(one.has_cdf(m) for m in rows):
        return IndependentPrior(rows)
    return OpaquePrior(prior)


def prior_from_spec(spec: dict[str, Any]) -> Prior:
    """Rebuild a prior from its `spec()`.

    Example:
        >>> prior_from_spec(BoxUniform([0.0], [2.0]).spec())
        BoxUniform(low=[0.0], high=[2.0])
    """
    dtype = getattr(torch, spec.get("dtype", "float32"))
    match spec.get("kind"):
        case "box":
            return BoxUniform(torch.tensor(spec["low"], dtype=dtype), torch.tensor(spec["high"], dtype=dtype))
        case "gaussian":
            return GaussianPrior(torch.tensor(spec["loc"], dtype=dtype), torch.tensor(spec["covariance"], dtype=dtype))
        case "independent":
            return IndependentPrior([one.build(m) for m in spec["marginals"]])
        case "opaque":
            raise ValueError(
                f"the prior was {spec['repr']}, which cannot be stored without pickle; "
                "pass it again: eq.load(path, prior=…)"
            )
    raise ValueError(f"unknown kind of prior {spec.get('kind')!r}; was the file written by a newer Equipoise?")
