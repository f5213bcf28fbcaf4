r"""How much a posterior says about the truth, in nats.

- *Nominal log posterior*: E log p̂(θ*|x*), normalised.
- *Information kept*: where the exact posterior is known,

  .. math:: \kappa = \frac{E \log \hat p(\theta^*|x^*) - E \log p(\theta^*)}
                          {E \log p(\theta^*|x^*) - E \log p(\theta^*)},

  0 for the prior, 1 for the exact posterior, negative for a surrogate worse than knowing nothing. Its numerator is
  the mutual information minus the expected KL(p‖p̂). The standard error is that of a ratio of means over the same
  pairs.
"""

from __future__ import annotations

__all__ = ["information_kept", "mean_and_error"]

import numpy as np
from numpy.typing import ArrayLike

from .bands import Array


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
