r"""Scores over pairs: the balancing error, and how much a posterior says about the truth, each with its error.

**Balancing error**, with its sign,

.. math:: g = E_{joint}\,\sigma(h) + E_{marginal}\,\sigma(h) - 1, \qquad h = \log \hat p(\theta|x) - \log p(\theta).

A balanced surrogate has g = 0, and the paper reports |g|. For a normalised surrogate g < 0 goes with "too narrow".

Marginal pairs are made by rolling θ by one: (θ_{b-1}, x_b). With s_b = σ(h(θ_b, x_b)) + σ(h(θ_{b-1}, x_b)) - 1, g is
estimated by the mean of s. Neighbours share a θ, so they are correlated and nothing else is:

.. math:: \mathrm{Var}(\bar s) = \frac{1}{n}\left[\mathrm{Var}(s_b) + 2\,\mathrm{Cov}(s_b, s_{b+1})\right]

(cyclic).

**Information**, in nats:

- *Nominal log posterior*: E log p̂(θ*|x*), normalised.
- *Information kept*: where the exact posterior is known,

  .. math:: \kappa = \frac{E \log \hat p(\theta^*|x^*) - E \log p(\theta^*)}
                          {E \log p(\theta^*|x^*) - E \log p(\theta^*)},

  0 for the prior, 1 for the exact posterior, negative for a surrogate worse than knowing nothing. Its numerator is
  the mutual information minus the expected KL(p‖p̂). The standard error is that of a ratio of means over the same
  pairs.
"""

from __future__ import annotations

__all__ = ["information_kept", "mean_and_error", "signed_balance"]

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


def mean_and_error(values: ArrayLike) -> tuple[Array, Array]:
    """The mean over the last axis and its standard error; a mean of -inf has no error."""
    values = np.asarray(values, float)
    with np.errstate(invalid="ignore"):
        return values.mean(-1), values.std(-1, ddof=1) / np.sqrt(values.shape[-1])


def information_kept(log_prob: ArrayLike, log_prior: ArrayLike, exact: ArrayLike) -> tuple[Array, Array]:
    """κ and its standard error.

    Arguments:
        log_prob: log p̂(θ*|x*), with shape `(*, n)`.
        log_prior: log p(θ*), with shape `(n,)`.
        exact: the exact log p(θ*|x*), with shape `(n,)`.

    Example:
        >>> exact = np.array([1.0, 2.0, 3.0])
        >>> kept, _ = information_kept(np.stack([exact, np.zeros(3)]), np.zeros(3), exact)
        >>> kept
        array([1., 0.])
    """
    gained = np.asarray(log_prob, float) - np.asarray(log_prior, float)
    possible = np.asarray(exact, float) - np.asarray(log_prior, float)
    with np.errstate(invalid="ignore"):
        kept = gained.mean(-1) / possible.mean(-1)
        residual = gained - kept[..., None] * possible
        error = residual.std(-1, ddof=1) / np.sqrt(possible.shape[-1]) / abs(possible.mean(-1))
    return kept, error
