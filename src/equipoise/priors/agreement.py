r"""Whether parameters were drawn from the prior that is said to be theirs.

Posteriors, ratios and balance are relative to the prior, and training would not show that θ came from elsewhere: from
an earlier posterior, or from a range in other units. So each marginal is compared with the prior's, by the
Kolmogorov–Smirnov distance

.. math:: D_j = \sup_t \left| \tfrac1n \#\{i : \theta_{ij} \le t\} - F_j(t) \right|,

whose distribution under the prior does not depend on the prior. A prior without CDFs is represented by draws: the
distance of two samples of sizes n and m is distributed about as that of one sample of size nm / (n + m).

Rounding does not count. Where single precision leaves few values (a box of width 1 at a million), the sample is
compared as if each number lay wherever in its rounding error it fits the prior best.
"""

from __future__ import annotations

__all__ = ["same_description", "warn_unless_drawn_from"]

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise.support.errors import warn
from equipoise.support.randomness import integer, isolated

from .closed_forms import GaussianPrior
from .prior import Prior

#: Numbers of two descriptions may differ by rounding to single precision.
SAME_NUMBER = 2e-7

#: The chance of a false alarm in one call. There are many calls, and every one that is right should be silent.
LEVEL = 1e-6
#: How many rows are looked at.
ROWS = 10_000
#: How many draws stand for a prior without CDFs.
DRAWS = 8192


def warn_unless_drawn_from(prior: Prior | None, theta: Tensor) -> str:
    """Warn if a marginal of θ is not distributed as the prior's; returns the text of the warning, or "".

    Arguments:
        prior: the prior, or None if there is none to compare with.
        theta: parameters inside its support, with shape `(n, D)`.

    Example:
        >>> from equipoise.priors import BoxUniform
        >>> warn_unless_drawn_from(BoxUniform([0.0], [1.0]), torch.linspace(0, 1, 1000)[:, None])
        ''
    """
    if prior is None or not len(theta):
        return ""
    from scipy.stats import kstwo  # here, since it takes long to import

    rows = np.linspace(0, len(theta) - 1, min(len(theta), ROWS)).astype(np.int64)
    sample = theta.detach()[torch.from_numpy(rows).to(theta.device)].cpu()
    unit = float(torch.finfo(torch.float32).eps)
    values, error = sample.double(), sample.double().abs() * unit
    with isolated(integer(0, "priors", "agreement")):
        draws = None if prior.has_normal_map else prior.sample((DRAWS,)).detach().cpu().double()
    low = np.sort(_share(prior, values - error, draws, "left"), 0)
    high = np.sort(_share(prior, values + error, draws, "right"), 0)
    place = np.arange(1, len(rows) + 1)[:, None] / len(rows)
    distance = np.maximum(place - high, low - (place - 1 / len(rows))).max(0).clip(0, 1)
    size = len(rows) if draws is None else round(len(rows) * DRAWS / (len(rows) + DRAWS))
    p = np.minimum(1, prior.dim * kstwo.sf(distance, size))
    found = np.flatnonzero(p < LEVEL)
    if not len(found):
        return ""
    worst = int(found[distance[found].argmax()])
    text = (
        f"theta was not drawn from this prior, by its distribution: {_described(prior, values[:, worst], worst)}"
        + (f" ({len(found)} of {prior.dim} parameters differ)" if len(found) > 1 else "")
        + ". A posterior here is for parameters drawn from the prior; give the prior that they were drawn from. If "
        "simulations that failed were left out, they fail where theta is missing, and the prior is what remains"
    )
    warn(text)
    return text


def _share(prior: Prior, theta: Tensor, draws: Tensor | None, side: Literal["left", "right"]) -> np.ndarray:
    """F_j(θ_j), with shape `(n, D)`: from the prior's CDFs, or as the share of draws that are smaller or not larger."""
    if draws is not None:  # which may have ties, as θ then has
        columns = zip(np.sort(draws.numpy(), 0).T, theta.numpy().T, strict=True)
        return np.stack([np.searchsorted(d, t, side) for d, t in columns], 1) / DRAWS
    theta = theta.to(prior.device)
    if isinstance(prior, GaussianPrior):  # whose map to N(0, I) mixes the parameters
        scores = (theta - prior.loc.to(theta)) / prior.variance.to(theta).sqrt()
        return torch.special.ndtr(scores).cpu().numpy()
    return prior.to_uniform(theta).cpu().numpy()


def _described(prior: Prior, values: Tensor, j: int) -> str:
    with isolated(integer(0, "priors", "agreement")):
        expected = prior.sample((DRAWS,)).detach().cpu().double()[:, j]
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    (a, b, c), (d, e, f) = (v.quantile(levels).tolist() for v in (values, expected))
    return (
        f"90% of {prior.label(j)} lie between {a:.3g} and {c:.3g}, with median {b:.3g}, and of the prior between "
        f"{d:.3g} and {f:.3g}, with median {e:.3g}"
    )


def same_description(a: Any, b: Any) -> bool:
    """Whether two descriptions (`prior.spec()`) are the same, whatever their precision."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = a.keys() - {"dtype"}
        return names == b.keys() - {"dtype"} and all(same_description(a[n], b[n]) for n in names)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same_description(*pair) for pair in zip(a, b, strict=True))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME_NUMBER)
    return bool(a == b)
