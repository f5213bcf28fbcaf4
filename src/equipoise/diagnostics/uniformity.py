r"""Are ranks uniform? SBC and TARP, by the same two-sided test.

*SBC* (Talts et al. 2018) ranks each coordinate of θ* among posterior draws; *TARP* (Lemos et al. 2023) ranks the
distance of θ* to a random reference point. Under a correct posterior both are uniform, and TARP's uniformity for all
references is also sufficient. The ECDF is compared with the diagonal by the statistic γ₂ of `bands`, so that a
p-value below 5% and a curve that leaves the 95% band are the same event.

References are drawn from the prior where one is known and else from the observed θ of other pairs; either way they do
not depend on the pair's own θ*. Distances are Euclidean after dividing each coordinate by its standard deviation over
the pairs.
"""

from __future__ import annotations

__all__ = ["uniformity_p_value"]

import numpy as np
from numpy.typing import ArrayLike

from .bands import DRAWS, GRID, Array, binomial_cdf, binomial_sf, null_statistics
from .coverage import coverage_curve


def uniformity_p_value(rank: ArrayLike) -> Array:
    """The p-value of "these ranks are uniform", two-sided and simultaneous over levels; `(*,)` from ranks `(*, n)`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p = uniformity_p_value(np.stack([rng.random(500), rng.beta(2, 2, 500)]))
        >>> bool(p[0] > 0.05), bool(p[1] < 0.001)
        (True, True)
    """
    rank = np.asarray(rank, float)
    n = rank.shape[-1]
    curve = coverage_curve(rank, GRID)
    count = np.rint(curve * n)
    gamma = 2 * np.minimum(binomial_cdf(count, n, GRID), binomial_sf(count, n, GRID)).min(-1)
    simulated = (1 + np.searchsorted(null_statistics(n).two_sided, gamma, side="right")) / (DRAWS + 1)
    return np.where(np.isnan(curve).any(-1), np.nan, np.minimum(simulated, len(GRID) * gamma))
