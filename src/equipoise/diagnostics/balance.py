r"""The balancing error, with its sign and its standard error.

.. math:: g = E_{joint}\,\sigma(h) + E_{marginal}\,\sigma(h) - 1, \qquad h = \log \hat p(\theta|x) - \log p(\theta).

A balanced surrogate has g = 0, and the paper reports |g|. For a normalised surrogate g < 0 goes with "too narrow".

Marginal pairs are made by rolling θ by one: (θ_{b-1}, x_b). With s_b = σ(h(θ_b, x_b)) + σ(h(θ_{b-1}, x_b)) - 1, g is
estimated by the mean of s. Neighbours share a θ, so they are correlated and nothing else is:

.. math:: \mathrm{Var}(\bar s) = \frac{1}{n}\left[\mathrm{Var}(s_b) + 2\,\mathrm{Cov}(s_b, s_{b+1})\right]

(cyclic).
"""

from __future__ import annotations

__all__ = ["signed_balance"]

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from .bands import Array


def signed_balance(joint: ArrayLike, marginal: ArrayLike) -> tuple[Array, Array]:
    """g and its standard error, from log-ratios `(*, n)` of joint pairs and of pairs with θ rolled by one.

    Example:
        >>> signed_balance(np.zeros(10), np.zeros(10))  # the prior as surrogate
        (np.float64(0.0), np.float64(0.0))
    """
    s = expit(np.asarray(joint, float)) + expit(np.asarray(marginal, float)) - 1
    n = s.shape[-1]
    g = s.mean(-1)
    centred = s - g[..., None]
    variance = (centred**2).sum(-1) / (n - 1)
    neighbours = (centred * np.roll(centred, 1, -1)).sum(-1) / (n - 1)
    # The neighbour covariance is at least -Var/2 in truth, but its estimate may overshoot.
    return g, np.sqrt(np.maximum(variance + 2 * neighbours, 0) / n)
