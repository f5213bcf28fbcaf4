"""Posteriors for ArviZ: draws of one observation as its data structure.

Each member is a chain. Members weigh the same in the mixture, so that all chains together are draws of the mixture,
and what ArviZ computes between chains compares members: R̂ well above 1 says that networks trained on the same
simulations disagree about this observation. A tempered posterior is no mixture of members: its draws are one chain.
"""

from __future__ import annotations

__all__ = ["to_arviz"]

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from equipoise.support.checks import parameter_names
from equipoise.support.randomness import integer, isolated

from .shapes import observations

if TYPE_CHECKING:
    from .posterior import Posterior


def to_arviz(
    posterior: Posterior, x: Any, n: int = 1000, *, names: Sequence[str] | None = None, seed: int | None = None
) -> Any:
    """Draws for one observation as ArviZ takes them.

    Arguments:
        posterior: where to draw from.
        x: the observation, with shape `x_shape`.
        n: draws of each member, or of a tempered posterior.
        names: of the parameters, which then are variables of their own; those of the posterior unless given. Without
            any, all are one variable `theta`.
        seed: None for fresh draws each time.

    Returns:
        An `arviz.InferenceData`, from ArviZ 1.0 on an `xarray.DataTree`, with the groups `posterior` (one chain per
        member, or one of a tempered posterior), `sample_stats` (`lp`, the log density), `prior` and `observed_data`.
    """
    try:
        import arviz
    except ImportError:
        raise ImportError("to_arviz needs ArviZ: pip install arviz") from None
    import xarray as xr

    dim = posterior.prior.dim
    names = posterior.names if names is None else parameter_names(names, dim)
    x = observations(posterior.network, posterior.stack, x)
    if len(x) != 1:
        raise ValueError(f"to_arviz takes one observation of shape {posterior.x_shape}, got {len(x)} of them")
    seed = int(torch.randint(2**62, ()).item()) if seed is None else seed
    chains = posterior.members if posterior.temperature == 1 else [posterior]
    draws = torch.stack([one.sample((n,), x, seed=integer(seed, "member", m)) for m, one in enumerate(chains)])
    log_density = posterior.log_prob(draws.reshape(-1, 1, dim), x).reshape(draws.shape[:2])
    with isolated(integer(seed, "prior")):
        prior = posterior.prior.sample((n,)).reshape(1, n, dim)

    def variables(theta: torch.Tensor) -> xr.Dataset:
        """θ with shape `(chain, draw, D)` as variables."""
        values = theta.detach().cpu().numpy()
        if names is None:
            data = {"theta": (("chain", "draw", "parameter"), values)}
            return xr.Dataset(data, {"parameter": np.arange(dim), **_places(values)})
        columns = {name: (("chain", "draw"), values[..., d]) for d, name in enumerate(names)}
        return xr.Dataset(columns, _places(values))

    lp = log_density.cpu().numpy()
    seen = x[0].cpu().numpy()
    groups = {
        "posterior": variables(draws),
        "sample_stats": xr.Dataset({"lp": (("chain", "draw"), lp)}, _places(lp)),
        "prior": variables(prior),
        "observed_data": xr.Dataset({"x": (tuple(f"x_dim_{i}" for i in range(seen.ndim)), seen)}),
    }
    structure: Any = getattr(arviz, "InferenceData", None)
    return xr.DataTree.from_dict(groups) if structure is None else structure(**groups)


def _places(values: np.ndarray) -> dict[str, np.ndarray]:
    return {"chain": np.arange(values.shape[0]), "draw": np.arange(values.shape[1])}
