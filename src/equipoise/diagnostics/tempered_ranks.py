r"""HPD ranks at every temperature from one set of draws.

The tempered posterior q_t ∝ p (q/p)^t has the log density log p + t (log q - log p), up to its normaliser, which
neither ranks nor self-normalised weights need. Points drawn once from a proposal g serve every t with the weights

.. math:: w_t(\theta) = \frac{p(\theta)\, [q(\theta|x)/p(\theta)]^t}{g(\theta|x)},

which is (q/p)^(t-1) for draws of q itself. These are poor at small t: q_t is wider than q, and the weights of the few
points in its tails grow. Prior draws beside them defend against it. With L draws of q and M of p the proposal is their
mixture, g = (L q + M p)/(L + M) (the balance heuristic), whose weights never exceed (L + M)/L (p/q)^(1-t) nor
(L + M)/M (q/p)^t. As t → 0 the points are then prior draws, and as t → 1 draws of q.

θ* counts as one more point, with its own weight w*, and ties are split at random with one V ~ U(0, 1) for each pair at
all temperatures (`ranks` derives this). The same draws and the same V couple the ranks at neighbouring temperatures.
The ranks are exactly uniform under calibration for independent points of g; fixing the numbers L and M of a mixture
changes this by O(1/(L + M)).

The effective number of points counts θ* too, E = (W + w*)²/(Σw² + w*²): where the points miss the mass around θ*, its
weight dominates, the rank is a coin, and E is near 1.
"""

from __future__ import annotations

__all__ = ["tempered_ranks"]

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .bands import Array
from .calibration import TEMPERATURES

#: Points that are held at once: few enough for a CPU's cache.
BLOCK = 1 << 17
#: log 0, such that multiples and differences stay numbers.
NEVER = np.float32(-1e30)


class TemperedRanks(NamedTuple):
    """Ranks and effective numbers of points, each with shape `(T, n)`."""

    rank: Array
    effective: Array


def tempered_ranks(
    log_q_draws: ArrayLike,
    log_p_draws: ArrayLike,
    log_q_true: ArrayLike,
    log_p_true: ArrayLike,
    temperatures: ArrayLike = TEMPERATURES,
    generator: np.random.Generator | int = 0,
    *,
    prior_draws: tuple[ArrayLike, ArrayLike] | None = None,
    log_proposal: tuple[ArrayLike, ArrayLike] | None = None,
) -> TemperedRanks:
    """The HPD rank of θ* under q_t ∝ p (q/p)^t for every t, from the same draws.

    Arguments:
        log_q_draws: log q(θ|x*) of L draws of q for each pair, normalised if `prior_draws` are given, with shape
            `(n, L)`.
        log_p_draws: log p(θ) of the same draws, with shape `(n, L)`; -inf, outside the prior, leaves a draw out.
        log_q_true: log q(θ*|x*), with shape `(n,)`.
        log_p_true: log p(θ*), with shape `(n,)`.
        temperatures: with shape `(T,)`, in [0, 1]; 0, the prior itself, needs `prior_draws`.
        generator: NumPy's, or a seed; draws one V for each pair.
        prior_draws: log q and log p of M draws of the prior for each pair, each with shape `(n, M)`.
        log_proposal: log g of the draws `(n, L)` and of θ* `(n,)`, if they come from another proposal than q.

    Returns:
        Ranks and effective numbers of points, each with shape `(T, n)`.

    Example:
        >>> rng = np.random.default_rng(0)  # prior N(0, 1), posterior N(0, 0.1²) at every x
        >>> draws, truth = 0.1 * rng.normal(size=(500, 1000)), 0.1 * rng.normal(size=500)
        >>> log_q, log_p = lambda z: np.log(10) - 50 * z**2, lambda z: -0.5 * z**2
        >>> found = tempered_ranks(log_q(draws), log_p(draws), log_q(truth), log_p(truth), [0.5, 1.0])
        >>> found.rank.mean(-1).round(1)  # the wider posterior puts θ* further inside
        array([0.4, 0.5])
        >>> found.effective.mean(-1).round()
        array([ 625., 1001.])
    """
    q, p = _points(log_q_draws, "log_q_draws", 2), _points(log_p_draws, "log_p_draws", 2)
    q_true, p_true = _points(log_q_true, "log_q_true", 1), _points(log_p_true, "log_p_true", 1)
    t_all = np.asarray(temperatures, float)
    n, draws = q.shape
    if p.shape != q.shape or q_true.shape != (n,) or p_true.shape != (n,):
        raise ValueError(
            f"log densities have shapes (n, L), (n, L), (n,), (n,), got {q.shape}, {p.shape}, {q_true.shape}, "
            f"{p_true.shape}"
        )
    if not np.isfinite(p_true).all():
        raise ValueError(f"{int((~np.isfinite(p_true)).sum())} of the true parameters lie outside the prior")
    if t_all.ndim != 1 or not ((t_all >= 0) & (t_all <= 1)).all():
        raise ValueError("temperatures are a list of numbers from 0 to 1")
    if (t_all == 0).any() and prior_draws is None:
        raise ValueError("the temperature 0 needs prior_draws")
    if prior_draws is not None and log_proposal is not None:
        raise ValueError("log_proposal is for draws of one proposal, without prior_draws")
    more_q, more_p = (_points(v, "prior_draws", 2) for v in prior_draws or (q[:, :0], p[:, :0]))
    if len(more_q) != n or more_q.shape != more_p.shape:
        raise ValueError(f"prior_draws hold two arrays with shape ({n}, M), got {more_q.shape} and {more_p.shape}")
    g = None if log_proposal is None else _points(log_proposal[0], "log_proposal", 2)
    g_true = None if log_proposal is None else _points(log_proposal[1], "log_proposal", 1)
    numbers = (draws, more_q.shape[1])
    uniform = np.random.default_rng(generator).random((n,))
    rank, effective = (np.empty((len(t_all), n)) for _ in range(2))
    size = max(1, BLOCK // sum(numbers))
    for low in range(0, n, size):
        rows = slice(low, low + size)
        log_q, log_p = np.hstack([q[rows], more_q[rows]]), np.hstack([p[rows], more_p[rows]])
        ratio, own = _difference(log_q, log_p), _difference(q_true[rows], p_true[rows])
        over = _log_g_over_p(ratio, numbers) if g is None else _difference(g[rows], log_p)
        own_over = _log_g_over_p(own, numbers) if g_true is None else _difference(g_true[rows], p_true[rows])
        outside = log_p == -np.inf
        over[outside] = np.inf
        ahead = np.where(outside, 0, log_p - p_true[rows, None]).astype(np.float32)
        steeper = (ratio - own[:, None]).astype(np.float32)
        for i, t in enumerate(t_all):
            log_w, log_own = _times(t, ratio) - over, _times(t, own) - own_over
            peak = np.maximum(np.maximum(log_w.max(1), log_own), NEVER)
            weight = np.exp(log_w - peak[:, None], dtype=np.float32)
            mine = np.exp(log_own - peak)
            higher = ahead + _times(t, steeper)
            above, equal = (weight * (higher > 0)).sum(1), higher == 0
            tied = (weight * equal).sum(1) if equal.any() else 0.0
            total, squares = weight.sum(1) + mine, np.einsum("ij,ij->i", weight, weight) + mine**2
            # No weight at all, neither of the points nor of θ*: the rank is a coin.
            empty = total == 0
            rank[i, rows] = np.where(empty, v := uniform[rows], (above + v * (tied + mine)) / np.where(empty, 1, total))
            effective[i, rows] = np.where(empty, 0, total**2 / np.where(empty, 1, squares))
    return TemperedRanks(rank, effective)


def _points(values: ArrayLike, name: str, ndim: int) -> NDArray[Any]:
    array = np.asarray(values)
    array = array if array.dtype in (np.float32, np.float64) else array.astype(float)
    if array.ndim != ndim:
        raise ValueError(f"{name} has {ndim} dimensions, got shape {array.shape}")
    if (bad := int((~(array < np.inf)).sum())) > 0:
        raise ValueError(f"{name} holds {bad} values that are NaN or infinite")
    return array


def _difference(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a - b; 0 where b is -inf (not used), and else hugely negative where a is."""
    with np.errstate(invalid="ignore"):
        return np.where(b == -np.inf, 0, np.where(a == -np.inf, NEVER, a - b))


def _times(t: float, values: NDArray[Any]) -> NDArray[Any]:
    return values * values.dtype.type(t)


def _log_g_over_p(ratio: NDArray[Any], numbers: tuple[int, int]) -> NDArray[Any]:
    """log g/p, up to a constant, for g of `numbers` draws of q and of p, from log q/p."""
    draws, prior = numbers
    return np.where(ratio == NEVER, 0, ratio) if prior == 0 else np.logaddexp(np.log(draws) + ratio, np.log(prior))
