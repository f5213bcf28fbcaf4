r"""Tempered posteriors: a path from a posterior to the prior.

.. math:: q_t(θ|x) = p(θ)\, r(θ, x)^t / Z_t(x), \qquad r = q/p, \qquad Z_t(x) = \int p^{1-t} q^t\,dθ, \quad 0 < t \le 1.

At t = 1 this is q, as t falls to 0 it becomes the prior. Both ends can be drawn from, so take the proposal

.. math:: m_t = t\, q + (1 - t)\, p.

By the inequality of weighted arithmetic and geometric means,

.. math:: w(θ) = \frac{p\, r^t}{m_t} = \frac{r^t}{t\, r + 1 - t} \le 1,

so that a draw of m_t, accepted with probability w, is an exact draw of q_t, and Z_t is the share that is accepted. From
Jensen's inequality \(Z_t \ge \exp(-(1 - t)\, \mathrm{KL}(q \| p))\): with t = 0.9, one draw in three at least is
accepted for a posterior that knows ten nats more than the prior. Where fewer than `LEAST_ACCEPTANCE` would be, the
engine's other strategies (`engine`) take over.

**The normaliser** comes from n points of q and m of g, a Gaussian between q and the prior in the coordinates in which
the prior is normal, mixed with the prior (`proposals`; the prior itself where there are no such coordinates). By the
balance heuristic, with r and g/p,

.. math:: Z_t = E_q\left[\frac{n\, r^t}{n r + m\, g/p}\right] + E_g\left[\frac{m\, r^t}{n r + m\, g/p}\right].

The same with r in the place of r^t is known to be 1, and serves as a control variate. There are as many points as
bring the standard error of log Z_t below `TARGET_ERROR`, by what the first say. The random numbers are fixed: the same
x gives the same Z_t.
"""

from __future__ import annotations

__all__ = [
    "LEAST_ACCEPTANCE",
    "TARGET_ERROR",
    "Observed",
    "Untempered",
    "draw_tempered",
    "log_acceptance",
    "tempered_draws",
    "tempered_log_z",
    "tempered_normalizer",
]

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.randomness import integer, isolated

from .engine import draw_points, weighted_points
from .proposals import GaussianProposal
from .weighted import LogRatio as EngineRatio
from .weighted import prior_points

#: The standard error of log Z that is aimed at, as if points were independent. They are quasi-random: over 80 Gaussian
#: cases, D = 1 to 8, the error had a root mean square of 0.005.
TARGET_ERROR = 0.02
#: Points of q behind a normaliser: first, and at most.
FIRST_POINTS, MOST_POINTS = 128, 1 << 14
#: A normaliser with a larger error than this, in spite of all points, is left to the engine.
WORST_ERROR = 0.05
#: Rejection gives up on an observation below this acceptance.
LEAST_ACCEPTANCE = 1e-3

#: Normalised log-ratios `(P, B)` of θ with shape `(P, B, D)` and observations `(B, …)`.
LogRatio = Callable[[Tensor, Any], Tensor]
#: n fixed points of q for each observation, with shape `(n, B, D)`, and the logarithms of their shares up to a
#: constant, with shape `(n, B)`: -inf outside the prior's support. The points of one observation do not depend on the
#: others.
Points = Callable[[int, Any], tuple[Tensor, Tensor]]
#: n draws of q for each observation, with shape `(n, B, D)`.
Draw = Callable[[int, Any, torch.Generator], Tensor]


def log_acceptance(log_ratio: Tensor, t: float) -> Tensor:
    """log w = t log r - log(t r + 1 - t), at most 0.

    Example:
        >>> log_acceptance(torch.tensor([-3.0, 0.0, 3.0]), 0.5).exp()
        tensor([0.4251, 1.0000, 0.4251])
    """
    return t * log_ratio - torch.logaddexp(log_ratio + math.log(t), torch.full_like(log_ratio, math.log1p(-t)))


def tempered_log_z(
    log_ratio: LogRatio, points: Points, x: Any, prior: Prior, t: float, target: float = TARGET_ERROR
) -> tuple[Tensor, Tensor]:
    """log Z_t(x) and its standard error, each with shape `(B,)`.

    Arguments:
        log_ratio: log q - log p, normalised, inside the prior's support.
        points: fixed points of q.
        x: B observations along the first axis.
        prior: p.
        t: the exponent, in (0, 1).
        target: the standard error at which points are enough; an observation with a larger one had all of
            `MOST_POINTS`.
    """
    found, error = _log_z(log_ratio, points, x, prior, t, FIRST_POINTS)
    number, wanted = FIRST_POINTS, FIRST_POINTS * (error / target).square()
    while number < MOST_POINTS and bool((error > target).any()):
        number *= 2
        columns = ((error > target) & ((wanted <= 1.5 * number) | (number == MOST_POINTS))).nonzero().squeeze(1)
        if len(columns) == 0:
            continue
        better, smaller = _log_z(log_ratio, points, x[columns], prior, t, number)
        found, error = found.index_copy(0, columns, better), error.index_copy(0, columns, smaller)
    return found, error


def _log_z(log_ratio: LogRatio, points: Points, x: Any, prior: Prior, t: float, n: int) -> tuple[Tensor, Tensor]:
    """log Z_t and its standard error from n points of q and half as many of g."""
    theta, log_share = points(n, x)
    anchor = prior_points(prior, max(n // 2, 32), theta)
    # A point outside the support has no share; another one stands in its place, since nothing is evaluated outside.
    theta = torch.where(log_share.isfinite().unsqueeze(-1), theta, anchor[:1].unsqueeze(1))
    share = log_share.double().softmax(0)
    n_q, n_g = 1 / share.square().sum(0), len(anchor)
    own_g, others_g = torch.zeros_like(share), torch.zeros_like(anchor[:, :1]).double()
    others = anchor.unsqueeze(1).expand(-1, len(x), -1)
    if prior.has_normal_map:
        z = prior.to_normal(theta).double()
        proposal = _on_the_way(z, share, t)
        uniforms = torch.quasirandom.SobolEngine(prior.dim + 1, scramble=True, seed=20230425).draw(n_g).to(z)
        drawn = proposal.draw(uniforms.unsqueeze(1))[0]
        others = prior.from_normal(drawn.to(theta))
        own_g, others_g = (
            proposal.log_over_prior(at.unsqueeze(0), -0.5 * at.square().sum(-1).unsqueeze(0))[0]
            for at in (z, prior.to_normal(others).double())
        )
    parts = []
    for ratio, log_g, weight, number in (
        (log_ratio(theta, x).double(), own_g, share, n_q),
        (log_ratio(others, x).double(), others_g, torch.full_like(others_g, 1 / n_g), n_g),
    ):
        log_number = torch.as_tensor(number, dtype=torch.float64, device=share.device).log()
        over = torch.logaddexp(ratio + n_q.log(), log_g + math.log(n_g)) - log_number
        values = torch.stack([t * ratio - over, ratio - over]).exp()
        mean = (weight * values).sum(1)
        centred = weight * (values - mean.unsqueeze(1))
        parts.append((mean, torch.einsum("inb,jnb->ijb", centred, centred)))
    mean, product = parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]
    beta = torch.where(product[1, 1] > 0, product[0, 1] / product[1, 1], 0.0)
    z_t, variance = mean[0] - beta * (mean[1] - 1), product[0, 0] - beta * product[0, 1]
    # A mean of h far from 1 says that points were missed: then without it, and with the larger error.
    far = (z_t <= 0) | ((mean[1] - 1).abs() > 6 * product[1, 1].sqrt() + 1e-3)
    z_t, variance = torch.where(far, mean[0], z_t), torch.where(far, product[0, 0], variance)
    return z_t.log(), variance.clamp(min=0).sqrt() / z_t


def _on_the_way(z: Tensor, share: Tensor, t: float) -> GaussianProposal:
    """The Gaussian that q_t would be if q were one: with the precision tΛ + (1 - t)I in the coordinates z, `(n, B, D)`,
    in which the prior is N(0, I); Λ and the mean of q from its points.
    """
    mean = torch.einsum("nb,nbi->bi", share, z)
    centred = z - mean
    covariance = torch.einsum("nb,nbi,nbj->bij", share, centred, centred)
    return GaussianProposal.between(mean, covariance, t)


def draw_tempered(
    log_ratio: LogRatio, draw: Draw, x: Any, prior: Prior, t: float, n: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Exact draws of q_t by rejection.

    Arguments:
        log_ratio, x, prior, t: as in `tempered_log_z`.
        draw: draws of q, inside the support.
        n: how many for each observation.
        generator: of the random numbers.

    Returns:
        θ with shape `(n, B, D)`, and the acceptance of each observation with shape `(B,)`. Where that is below
        `LEAST_ACCEPTANCE` the draws of an observation may be unfinished, and are NaN.
    """
    device, batch = generator.device, len(x)
    theta: Tensor | None = None
    done = torch.zeros(batch, dtype=torch.int64, device=device)
    tried = torch.zeros(batch, dtype=torch.float64, device=device)
    accepted = torch.zeros(batch, dtype=torch.float64, device=device)
    columns = torch.arange(batch, device=device)
    while len(columns):
        # As many as the acceptance so far says are missing, and a few more.
        rate = float(((accepted + 1) / (tried + 2))[columns].min())
        missing = int((n - done[columns]).max())
        size = int(min(max(1.2 * missing / max(rate, LEAST_ACCEPTANCE) + 8, 16), 4 * n + 4096))
        here = x[columns]
        own = draw(size, here, generator)
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        other = _prior_draws(prior, size, len(columns), seed).to(own)
        toss = torch.rand(2, size, len(columns), generator=generator, device=device, dtype=torch.float64)
        proposed = torch.where((toss[0] < t).unsqueeze(-1), own, other)
        good = toss[1].log() < log_acceptance(log_ratio(proposed, here), t).double()
        if theta is None:
            theta = torch.full((n, batch, proposed.shape[-1]), torch.nan, dtype=proposed.dtype, device=device)
        place = done[columns] + good.cumsum(0) - 1
        keep = good & (place < n)
        row, column = keep.nonzero(as_tuple=True)
        theta[place[row, column], columns[column]] = proposed[row, column]
        done[columns] += keep.sum(0)
        tried[columns] += size
        accepted[columns] += good.sum(0)
        hopeless = (tried >= 10 / LEAST_ACCEPTANCE) & (accepted < LEAST_ACCEPTANCE * tried)
        columns = ((done < n) & ~hopeless).nonzero().squeeze(1)
    assert theta is not None
    return theta, accepted / tried


def _prior_draws(prior: Prior, n: int, batch: int, seed: int) -> Tensor:
    """Draws of the prior, with shape `(n, B, D)`."""
    with isolated(integer(seed, "tempering", "prior")):
        return prior.sample((n, batch))


# --- a density, whatever is known of it ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Observed:
    """B observations, or features of them, with what normalises each of M members there: `(B, …)` and `(B, M)`."""

    x: Tensor
    log_normalizer: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Any) -> Observed:
        return Observed(self.x[rows], self.log_normalizer[rows])


@dataclasses.dataclass(frozen=True)
class Untempered:
    """A density q(θ|x) that is to be tempered.

    Attributes:
        prior: p.
        like: a tensor of the dtype and on the device of its values.
        log_ratio: log q - log p inside the support, as `engine` takes it: from θ `(1, P, B, D)` and `Observed` to
            `(1, P, B)`; normalised if there are draws.
        draw, points: draws of q, and fixed points; None for a density that is known by its log-ratio alone.
        draw_rated: draws with their log-ratios, where these cost less than evaluating q there.
    """

    prior: Prior
    like: Tensor
    log_ratio: EngineRatio
    draw: Draw | None = None
    points: Points | None = None
    draw_rated: Callable[[int, Observed, torch.Generator], tuple[Tensor, Tensor]] | None = None

    def rated(self, n: int, x: Observed, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n draws for each observation, with shape `(n, B, D)`, and the log-ratios there, `(n, B)`."""
        if self.draw_rated is not None:
            return self.draw_rated(n, x, generator)
        assert self.draw is not None
        theta = self.draw(n, x, generator)
        return theta, self.at(theta, x)

    def at(self, theta: Tensor, x: Observed) -> Tensor:
        """The log-ratio at θ with shape `(P, B, D)`: `(P, B)`."""
        return self.log_ratio(theta.unsqueeze(0), x)[0]


def tempered_normalizer(q: Untempered, x: Observed, t: float) -> tuple[Tensor, Tensor]:
    """log Z_t(x), and whether it may be off by more than `WORST_ERROR`, each with shape `(B,)`.

    From draws of q and of the prior where there are any and they suffice, and else by the engine.
    """
    columns = torch.arange(len(x), device=q.like.device)
    log_z, rough = q.like.new_zeros(len(x)), torch.ones(len(x), dtype=torch.bool, device=q.like.device)
    if q.points is not None:
        found, error = tempered_log_z(q.at, q.points, x, q.prior, t)
        log_z, rough = found.to(log_z), ~((error <= WORST_ERROR) & (found >= math.log(LEAST_ACCEPTANCE)))
        columns = rough.nonzero().squeeze(1)
    if len(columns):
        points = weighted_points(q.log_ratio, x[columns], q.prior, q.like, t=t)
        log_z = log_z.index_copy(0, columns, points.log_z[0].to(log_z))
        rough = rough.index_copy(0, columns, points.rough[0])
    return log_z, rough


def tempered_draws(
    q: Untempered, x: Observed, t: float, n: int, generator: torch.Generator, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """n draws of q_t for each observation, with shape `(n, B, D)`, and how they were made.

    Exact, by rejection, where q can be drawn from and enough is accepted; by the engine elsewhere (`draw_points`, with
    its `seed`).
    """
    if q.draw is None:
        theta, report = draw_points(q.log_ratio, x, q.prior, n, generator, seed, q.like, t=t)
        return theta[0], report
    theta, acceptance = draw_tempered(q.at, q.draw, x, q.prior, t, n, generator)
    missing = theta.isnan().flatten(2).any(-1).any(0).nonzero().squeeze(1)
    if len(missing):
        more, report = draw_points(q.log_ratio, x[missing], q.prior, n, generator, seed, q.like, t=t)
        theta[:, missing] = more[0].to(theta)
        return theta, report
    return theta, {"sampler": "rejection", "acceptance": float(acceptance.min()) if len(x) else 1.0}
