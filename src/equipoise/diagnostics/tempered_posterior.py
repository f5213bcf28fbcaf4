"""Posteriors of other packages, tempered: draws and a normalised density of q_t ∝ p (q/p)^t.

Users ask for one observation at a time, and diagnostics for many at once.
"""

from __future__ import annotations

__all__ = ["TemperedPosterior", "known_of", "untempered_of"]

import dataclasses
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from equipoise.posteriors.temperature import Calibration, check_temperature
from equipoise.posteriors.tempering import WORST_ERROR, Observed, Untempered, tempered_draws, tempered_normalizer
from equipoise.posteriors.weighted import prior_points
from equipoise.priors import Prior
from equipoise.support.arrays import as_tensor
from equipoise.support.errors import warn
from equipoise.support.randomness import generator as make_generator

from .packages import as_surrogate
from .surrogates import Surrogate, TemperedSurrogate

#: Draws behind the mass of a posterior inside the prior's support, and how often draws outside are replaced.
INSIDE_DRAWS, MOST_ROUNDS = 1024, 200
#: The fewest draws that are asked for at once, to replace those outside.
LEAST_DRAWN = 32
#: Observations of which it is kept what is known.
KEPT = 64
#: Observations that diagnostics ask for at once.
PAIRS_AT_ONCE = 64


@dataclasses.dataclass
class _Seen:
    """What is known of one observation, and log Z_t once it was asked for."""

    known: Observed
    log_z: Tensor | None = None


class TemperedPosterior:
    """The posterior of another package at a temperature.

    Arguments:
        posterior: anything that `diagnose` accepts.
        t: the temperature, in (0, 1].
        x_shape: the shape of one observation.
        prior: for posteriors that do not know theirs.
        calibration: how the temperature was chosen; None where nothing is known.
    """

    def __init__(
        self,
        posterior: Any,
        t: float,
        x_shape: tuple[int, ...],
        prior: Any = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.x_shape = x_shape
        self.posterior, self.temperature, self.calibration = posterior, check_temperature(t), calibration
        self._surrogate = as_surrogate(posterior, prior)
        self.prior: Prior = prior_of(self._surrogate)
        self._q: Untempered | None = None
        self._seen: dict[bytes, _Seen] = {}

    def __repr__(self) -> str:
        known = f"t={self.temperature:.4g}" if self.calibration is None else self.calibration.message
        return f"TemperedPosterior({type(self.posterior).__name__}, {known})"

    @torch.no_grad()
    def sample(self, sample_shape: Any = (1,), x: Any = None, seed: int | None = None) -> Tensor:
        """Draws for one observation x, with shape `(*sample_shape, D)`, inside the prior's support."""
        shape = torch.Size([sample_shape]) if isinstance(sample_shape, int) else torch.Size(sample_shape)
        seed = int(torch.randint(2**62, ()).item()) if seed is None else seed
        q, at = self._at(x)
        stream = make_generator(seed, "tempered posterior", device=q.like.device)
        if self.temperature == 1 and q.draw is not None:
            theta = q.draw(shape.numel(), at.known, stream)
        else:
            theta, _ = tempered_draws(q, at.known, self.temperature, shape.numel(), stream, seed)
        return theta[:, 0].reshape(*shape, -1)

    @torch.no_grad()
    def log_prob(self, theta: Any, x: Any) -> Tensor:
        """log q_t(θ|x), normalised, for θ with shape `(*T, D)` and one observation x; -inf outside the support."""
        q, at = self._at(x)
        theta = as_tensor(theta, "theta").to(q.like)
        shape, flat = theta.shape[:-1], theta.reshape(-1, 1, theta.shape[-1])
        inside = self.prior.contains(flat)
        flat = torch.where(inside.unsqueeze(-1), flat, prior_points(self.prior, 1, q.like)[0])
        if at.log_z is None:
            at.log_z, rough = q.like.new_zeros(1), torch.zeros(1, dtype=torch.bool)
            if self.temperature < 1 or q.draw is None:
                at.log_z, rough = tempered_normalizer(q, at.known, self.temperature)
            if bool(rough.any()):
                warn(
                    f"the normaliser of the tempered density has an error above {WORST_ERROR}: log_prob may be off by "
                    "it, by the same number for every θ"
                )
        log_q = self.temperature * q.at(flat, at.known) - at.log_z + self.prior.log_prob(flat).to(q.like)
        return torch.where(inside, log_q, -math.inf).reshape(shape)

    def as_surrogate(self) -> Surrogate:
        """What `diagnose` judges."""
        return _TemperedForeign(self._surrogate, self.prior, self.temperature, self.x_shape)

    def _at(self, x: Any) -> tuple[Untempered, _Seen]:
        """The density, and what is known of one observation; that of the last few is kept."""
        if x is None:
            raise ValueError("the observation is missing: give x")
        s = self._surrogate
        x = as_tensor(x, "x").to(s.device)
        x = x.to(s.dtype or torch.float32) if x.is_floating_point() else x
        if tuple(x.shape) not in (self.x_shape, (1, *self.x_shape)):
            raise ValueError(f"one observation x has shape {self.x_shape}, got {tuple(x.shape)}")
        x = x.reshape(1, *self.x_shape)
        if self._q is None:
            s.look(prior_points(self.prior, 1, torch.zeros((), dtype=s.dtype or torch.float32, device=s.device)), x)
            self._q = untempered_of(s)
        key = x.cpu().numpy().tobytes()
        if key not in self._seen:
            while len(self._seen) >= KEPT:
                self._seen.pop(next(iter(self._seen)))
            self._seen[key] = _Seen(known_of(s, x))
        return self._q, self._seen[key]


class _TemperedForeign(TemperedSurrogate):
    """A surrogate at a temperature, with draws inside the prior's support and a normalised density."""

    kind = "foreign"

    def __init__(self, s: Surrogate, prior: Prior, t: float, x_shape: tuple[int, ...]) -> None:
        self.inner, self.prior, self.t, self.x_shape, self.dim = s, prior, t, x_shape, prior.dim
        self.device, self.dtype = s.device, s.dtype or torch.float32
        self.pairs_at_once = s.pairs_at_once or PAIRS_AT_ONCE
        self.observed = partial(known_of, s)

    def look(self, theta: Tensor, x: Tensor) -> bool:
        self.inner.look(theta, x)
        self.q = untempered_of(self.inner)
        return True


def prior_of(s: Surrogate) -> Prior:
    """The prior towards which a surrogate is tempered."""
    if s.prior is None:
        raise ValueError("tempering moves a posterior towards the prior, and this one knows none: give it as prior=")
    return s.prior


def known_of(s: Surrogate, x: Tensor) -> Observed:
    """Observations `(B, *x_shape)` with the log of each member's mass inside the prior's support, for `untempered_of`.

    From fixed draws; 0 where nothing can lie outside, or the density is not normalised anyway.
    """
    log_inside = torch.zeros(len(x), s.n_members, dtype=s.dtype or torch.float32, device=s.device)
    if s.can_leak and s.normalised and s.kind != "classifier":
        theta, _ = s.draw(INSIDE_DRAWS, x, make_generator(0, "tempering", "inside", device=s.device))
        share = prior_of(s).contains(theta).to(log_inside.dtype).mean(1)
        log_inside = share.clamp(min=0.5 / INSIDE_DRAWS).log().T
    return Observed(x, log_inside)


def untempered_of(s: Surrogate) -> Untempered:
    """The mixture of a surrogate's members, each cut to the prior's support.

    A log-ratio, and a density that is not normalised, are known by their log-ratio alone.
    """
    prior = prior_of(s)
    like = torch.zeros((), dtype=s.dtype or torch.float32, device=s.device)
    log_weights = torch.full((s.n_members,), -math.log(s.n_members)) if s.log_weights is None else s.log_weights
    log_weights = log_weights.to(like).view(-1, 1, 1)

    def log_ratio(theta: Tensor, known: Observed) -> Tensor:
        each = s.log_ratio(theta[0], known.x) - known.log_normalizer.T.unsqueeze(1)
        return (each + log_weights).logsumexp(0, keepdim=True).to(like)

    if s.kind == "classifier" or not s.normalised:
        return Untempered(prior, like, log_ratio)

    def draw(n: int, known: Observed, generator: torch.Generator) -> Tensor:
        """Each draw from a member chosen at random, anew until it lies inside the support."""
        weights = log_weights.flatten().exp()
        member = torch.multinomial(weights.expand(len(known), -1), n, replacement=True, generator=generator).T
        theta, missing = like.new_zeros(n, len(known), prior.dim), torch.ones_like(member, dtype=torch.bool)
        for _ in range(MOST_ROUNDS):
            columns = missing.any(0).nonzero().squeeze(1)
            if len(columns) == 0:
                return theta
            left = missing[:, columns]
            number = min(n, max(LEAST_DRAWN, 2 * int(left.sum(0).max())))
            rows = left.to(torch.int8).argsort(dim=0, descending=True, stable=True)[:number]  # missing ones first
            fresh, _ = s.draw(number, known.x[columns], generator)
            chosen = member[:, columns].gather(0, rows)[None, ..., None].expand(1, -1, -1, prior.dim)
            fresh = fresh.to(like).gather(0, chosen)[0]
            take = left.gather(0, rows) & prior.contains(fresh)
            at = rows[take], columns.expand_as(rows)[take]
            theta[at], missing[at] = fresh[take], False
        raise RuntimeError("almost all draws of the posterior lie outside the prior's support: it cannot be tempered")

    def points(n: int, known: Observed) -> tuple[Tensor, Tensor]:
        theta = draw(n, known, make_generator(0, "tempering", "points", device=s.device))
        return theta, theta.new_zeros(theta.shape[:2])

    return Untempered(prior, like, log_ratio, draw, points)
