r"""Choosing a temperature: how far towards the prior a posterior has to go to be conservative.

A posterior q is tempered by t ∈ [0, 1],

.. math:: q_t(\theta|x) \propto p(\theta) \left[\frac{q(\theta|x)}{p(\theta)}\right]^t,

from the prior (t = 0), which is calibrated exactly, to q itself (t = 1). In between it is conservative as a rule, not
by theorem: with weak data (exact posterior variance 0.8 of the prior's) and a q that is 20% too tight, q_t is
overconfident at every t > 0. So t is chosen on pairs (θ*, x*), from the HPD ranks of θ* under each q_t.

**A guarantee, on pairs nobody trained on.** Let H_t be "the coverage of q_t is below level - tolerance at some level",
with the p-value p_t of its certificate (`certificates`). The t are tested upward, in a graph of hypotheses (Bretz et
al. 2009): each of K fixed starts holds the share α/K; H_t is rejected (t is *certified*) if p_t ≤ a, where a is the
share that has arrived at t; it then flows on to the next t, which adds its own if it is a start. If H_t is not
rejected, what arrived is lost:

    a = 0
    for t upward:
        a += α/K if t is a start
        if p_t ≤ a (and a > 0): t is certified, else: a = 0

This is a sequentially rejective Bonferroni procedure: the probability that any certified t is false is at most α,
whatever the dependence between the ranks. Proof. Let t be the smallest certified temperature with H_t true, and s < t
the next lower one with H_s true (or none). H_s was not rejected, so the share was 0 after s, and what arrives at t
comes from starts in (s, t]: the error needs p_t ≤ α · #{starts in (s, t]}/K. The true hypotheses are fixed, their
intervals (s, t] are disjoint, and p_t ≤ c has probability c at most under H_t: over all true t these sum to α at most.

Hence any choice among the certified t is valid, and may look at the data: the largest certified t that does not look
overconfident (p_over ≥ ½, p_over being the p-value of "coverage ≥ level everywhere"), else the smallest certified one.
The certificate alone would drive t to where coverage equals level - tolerance as pairs become many.

"The largest t that passes" at level α has no such guarantee (28 to 53% false on paths with uncoupled ranks), and a
sequence that starts at t = 0 stops there, since ranks that are calibrated exactly are not certified by 2,000 pairs.

**An observation, on out-of-fold pairs.** Each pair is judged by members that did not train on it, but the posterior is
the mixture of all members, of which this proves nothing. There the largest t with certificate and p_over ≥ ¼ is taken,
and reported as observed. From fewer than 500 pairs nothing is certified: the largest t with p_over ≥ ½.
"""

from __future__ import annotations

__all__ = ["STARTS", "TEMPERATURES", "Calibration", "certified_temperatures", "choose_temperature"]

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from equipoise.posteriors.temperature import Calibration
from equipoise.support.words import roughly

from .bands import GRID, Array
from .certificates import (
    CERTIFICATE_LEVELS,
    SHARE,
    certificate_floor,
    certificate_p_value,
    pairs_for_certificate,
    pairs_to_certify,
)
from .coverage import coverage_curve
from .verdicts import overconfidence_p_value

#: The temperatures that are tried.
TEMPERATURES: Array = np.arange(1, 51) / 50
#: Where the procedure with a guarantee starts.
STARTS = (0.04, 0.1, 0.2, 0.4, 0.6)
#: Rules for t by the pairs they are meant for, with what p_over has to be at least.
RULES = {"guaranteed": 0.5, "observed": 0.25}
#: p_over of a temperature that is chosen without a certificate.
CAUTIOUS = 0.5
#: Fewer out-of-fold pairs than this certify nothing.
FEWEST_PAIRS = 500
#: What the pairs of each rule are called.
PAIRS = {"guaranteed": "fresh", "observed": "out-of-fold"}


def certified_temperatures(
    ranks: ArrayLike,
    temperatures: ArrayLike = TEMPERATURES,
    starts: Sequence[float] = STARTS,
    alpha: float = 0.05,
    delta: float = 0.02,
    share: float | None = SHARE,
    effective: ArrayLike | None = None,
) -> tuple[NDArray[np.bool_], Array]:
    """The temperatures with coverage of at least level - tolerance, all of them together with probability 1 - alpha.

    Arguments:
        ranks: HPD ranks of the same pairs at each temperature, from the same draws, with shape `(T, n)`.
        temperatures: increasing, with shape `(T,)`.
        starts: those at which the procedure starts; each is one of the temperatures.
        alpha: the probability that any certified temperature is false.
        delta, share: the tolerance (`certificates.tolerance`).
        effective: the effective number of points behind each rank, broadcast to `(T, n)`.

    Returns:
        Whether each temperature is certified, and the p-value of its certificate alone, each with shape `(T,)`.

    Example:
        >>> ranks = np.random.default_rng(0).random(4000) ** np.linspace(1.3, 0.7, 50)[:, None]
        >>> certified, p = certified_temperatures(ranks)
        >>> TEMPERATURES[certified].min(), TEMPERATURES[certified].max()
        (np.float64(0.04), np.float64(0.52))
    """
    ranks, temperatures = _checked(ranks, temperatures)
    begin = np.isclose(temperatures[:, None], np.asarray(starts, float), atol=1e-9)
    if not begin.any(0).all():
        raise ValueError(f"starts are among the temperatures, got {list(np.asarray(starts)[~begin.any(0)])}")
    p = certificate_p_value(ranks, delta=delta, share=share, effective=effective)
    certified, budget = np.zeros(len(p), dtype=bool), 0
    for i, starting in enumerate(begin.sum(1)):
        budget += int(starting)
        certified[i] = budget > 0 and p[i] <= alpha * budget / len(starts)
        budget = budget if certified[i] else 0
    return certified, p


def choose_temperature(
    ranks: ArrayLike,
    temperatures: ArrayLike = TEMPERATURES,
    *,
    rule: str = "guaranteed",
    threshold: float | None = None,
    starts: Sequence[float] = STARTS,
    alpha: float = 0.05,
    delta: float = 0.02,
    share: float | None = SHARE,
    effective: ArrayLike | None = None,
) -> Calibration:
    """The temperature for a posterior, from the ranks of its pairs.

    Without a certificate, the temperature is the largest at which the posterior does not look overconfident (p_over ≥
    ½), and 0, the prior, if it does at all of them; the message says so, and how many pairs would be needed.

    Arguments:
        ranks, temperatures, starts, alpha, delta, share, effective: as `certified_temperatures`.
        rule: "guaranteed" for pairs nobody trained on, "observed" for out-of-fold pairs.
        threshold: what p_over is at least at the chosen temperature; None for the rule's own, ½ and ¼.

    Example:
        >>> ranks = np.random.default_rng(0).random(4000) ** np.linspace(1.3, 0.7, 50)[:, None]
        >>> print(choose_temperature(ranks))
        tempered to t = 0.52: certified conservative on 4,000 fresh pairs (p = 0.02)
        >>> print(choose_temperature(ranks[:, :200], rule="observed"))
        tempered to t = 0.08: not certified, 200 out-of-fold pairs are too few (about 790 would do)
    """
    if rule not in RULES:
        raise ValueError(f"rule is one of {', '.join(RULES)}, got {rule!r}")
    ranks, temperatures = _checked(ranks, temperatures)
    n = ranks.shape[1]
    p_over = overconfidence_p_value(coverage_curve(ranks, GRID), n)
    passed, p = certified_temperatures(ranks, temperatures, starts, alpha, delta, share, effective)
    fine = p_over >= (RULES[rule] if threshold is None else threshold)
    if rule == "guaranteed":
        chosen = np.flatnonzero(passed & fine)[-1:]
        chosen = chosen if len(chosen) else np.flatnonzero(passed)[:1]
    else:
        chosen = np.flatnonzero((p <= alpha) & fine & (n >= FEWEST_PAIRS))[-1:]
    certified = len(chosen) > 0
    if not certified:
        chosen = np.flatnonzero(p_over >= CAUTIOUS)[-1:]
    curves = coverage_curve(ranks, CERTIFICATE_LEVELS)
    needed = None
    if not certified:
        level = alpha / len(starts) if rule == "guaranteed" else alpha
        among = np.isin(temperatures.round(9), np.round(starts, 9)) if rule == "guaranteed" else slice(None)
        floor = np.broadcast_to(certificate_floor(ranks, delta, share, effective), curves.shape)
        needed = _pairs_needed(curves[among], n, level, floor[among], delta, share)
    t = float(temperatures[chosen[0]]) if len(chosen) else 0.0
    # The prior is calibrated exactly.
    at = (float(p_over[chosen[0]]), float(p[chosen[0]])) if len(chosen) else (1.0, 1.0)
    after = curves[chosen[0]] if len(chosen) else CERTIFICATE_LEVELS
    return Calibration(
        t=t,
        rule=rule,
        pairs=n,
        certified=certified,
        p_over=at[0],
        p_certificate=at[1],
        alpha=alpha,
        delta=delta,
        share=share,
        levels=tuple(CERTIFICATE_LEVELS.tolist()),
        before=tuple(curves[-1].tolist()),
        after=tuple(after.tolist()),
        pairs_needed=needed,
        message=_message(t, rule, n, at[1] if certified else None, needed),
    )


def _message(t: float, rule: str, n: int, p: float | None, needed: int | None) -> str:
    pairs = f"{n:,} {PAIRS[rule]} pairs"
    head = "not tempered (t = 1)" if t == 1 else "replaced by the prior (t = 0)" if t == 0 else f"tempered to t = {t:g}"
    if p is not None:
        shown = "certified" if rule == "guaranteed" else "observed to be"
        return f"{head}: {shown} conservative on {pairs} (p {f'= {p:.1g}' if p >= 1e-3 else '< 0.001'})"
    if needed is None:
        return f"{head}: not certified on {pairs}, and more of them would not change it if the curves stay as they are"
    return f"{head}: not certified, {pairs} are too few ({roughly(needed, None)} would do)"


def _pairs_needed(curves: Array, n: int, alpha: float, floor: Array, delta: float, share: float | None) -> int | None:
    """About how many pairs in all would give a certificate at one of the curves, with shape `(T, 99)`.

    Curves from few pairs say little about it. Then these are the pairs that give one with probability 0.8 to a
    posterior in five dimensions with a variance 1/0.9 times that of the exact one, or if there are so many already, to
    one that is calibrated exactly.
    """
    if n >= FEWEST_PAIRS and np.isfinite(least := pairs_to_certify(curves, n, alpha, floor).min()):
        return int(np.ceil(least))
    wide = special.gammainc(2.5, special.gammaincinv(2.5, CERTIFICATE_LEVELS) / 0.9)
    for coverage in (wide, CERTIFICATE_LEVELS):
        if (needed := pairs_for_certificate(coverage, alpha=alpha, delta=delta, share=share, runs=1000)) > n:
            return needed
    return None


def _checked(ranks: ArrayLike, temperatures: ArrayLike) -> tuple[Array, Array]:
    ranks, temperatures = np.asarray(ranks, float), np.asarray(temperatures, float)
    if ranks.ndim != 2 or temperatures.shape != ranks.shape[:1]:
        raise ValueError(f"ranks have one row for each temperature, got shapes {ranks.shape} and {temperatures.shape}")
    if not (np.diff(temperatures) > 0).all():
        raise ValueError("temperatures increase")
    if not np.isfinite(ranks).all():
        raise ValueError(f"{int((~np.isfinite(ranks)).sum())} of the ranks are not finite")
    return ranks, temperatures
