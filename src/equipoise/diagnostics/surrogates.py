"""What diagnostics need of a posterior: raw log densities of M members at given points and, where it can, draws.

`EquipoiseSurrogate` is an `equipoise.Posterior`, and `TemperedSurrogate` its mixture at a temperature. Those of other
packages, and `as_surrogate`, are in `packages`.
"""

from __future__ import annotations

__all__ = ["EquipoiseSurrogate", "Surrogate", "TemperedSurrogate", "prior_draws", "seeded", "tarp_references"]

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.posteriors.tempering import Observed, Untempered, tempered_draws, tempered_normalizer
from equipoise.posteriors.weighted import LogRatio
from equipoise.priors import Prior
from equipoise.support.randomness import isolated


class Surrogate(ABC):
    """M densities p̂(θ|x), seen raw: as the networks give them, before anything is cut to the prior's support.

    Methods take what `embed` makes of the observations as x.
    """

    #: "flow" (has draws), "classifier" (has none) or "foreign" (has draws).
    kind: str
    prior: Prior | None
    n_members: int = 1
    #: The number of parameters and the shape of an observation, where known.
    dim: int | None = None
    x_shape: tuple[int, ...] | None = None
    device: torch.device = torch.device("cpu")
    dtype: torch.dtype | None = None
    #: Whether draws may lie outside the prior's support and have to be left out.
    can_leak: bool = False
    #: Whether each of several members can be evaluated at points of its own (`own_log_ratio`).
    own_points: bool = False
    #: Whether `log_density` is that of a density, up to what is cut off outside the prior's support; and, where it is
    #: not, whether `log_prob` is.
    normalised: bool = True
    has_log_prob: bool = False
    #: Log weights of the members in their mixture, with shape `(M,)`; None where all are equal.
    log_weights: Tensor | None = None
    #: How many pairs to ask for at once, where one at a time is all that a posterior can do.
    pairs_at_once: int | None = None
    #: Mean and standard deviation of the training observations, which broadcast to `x_shape`, where known.
    x_reference: tuple[Tensor, Tensor] | None = None
    #: What is judged as the mixture, where that is not the mixture of the members, and its temperature.
    tempered: Surrogate | None = None
    temperature: float = 1.0

    @abstractmethod
    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        """Raw log p̂ of every member at θ with shape `(*S, B, D)` and B observations; `(M, *S, B)`."""

    @abstractmethod
    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws with shape `(M, n, B, D)` and their raw log densities with shape `(M, n, B)`."""

    def embed(self, x: Tensor) -> Any:
        """What the members read of observations with shape `(B, *x_shape)`, along the first axis."""
        return x

    def log_prior(self, theta: Tensor) -> Tensor:
        """log p(θ), with shape `(*S, B)`; NaN where no prior is known."""
        if self.prior is None:
            return torch.full(theta.shape[:-1], torch.nan, dtype=theta.dtype, device=theta.device)
        return self.prior.log_prob(theta).to(theta)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        """Raw log p̂ - log p of every member, with shape `(M, *S, B)`."""
        return self.log_density(theta, x) - self.log_prior(theta)

    def own_log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        """Raw log p̂ - log p of every member at its own θ, `(M, P, B, D)`; shape `(M, P, B)`."""
        raise TypeError("the members cannot be evaluated at points of their own")

    def in_pieces(self, limit: int) -> LogRatio:
        """Log-ratios of all members as a function for `equipoise.posteriors.engine`, `limit` evaluations per call."""

        def log_ratio(theta: Tensor, x: Tensor) -> Tensor:
            parts = theta.split(max(1, limit // (self.n_members * len(x))), dim=1)
            if len(theta) == 1:
                return torch.cat([self.log_ratio(part[0], x) for part in parts], 1)
            return torch.cat([self.own_log_ratio(part, x) for part in parts], 1)

        return log_ratio

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """The object's own normalised log density, with shape `(M, B)`, where it differs and has one; else None."""
        return None

    @property
    def in_threads(self) -> bool:
        """Whether threads may take batches: our flows on a CPU, whose evaluations are many short loops."""
        return False

    def look(self, theta: Tensor, x: Tensor) -> bool:
        """Find out from one pair, `(1, D)` and `(1, *x_shape)`, whether `log_density` is `normalised`."""
        return self.normalised


class EquipoiseSurrogate(Surrogate):
    """An `equipoise.Posterior`, all members at once."""

    @property
    def in_threads(self) -> bool:
        flow = self.kind == "flow" and self.device.type == "cpu"
        return flow and getattr(self.posterior, "network", None) is not None and self.posterior.network.in_threads

    def __init__(self, posterior: Any) -> None:
        self.posterior = posterior
        self.kind, self.n_members = posterior.kind, posterior.n_members
        self.prior, self.dim = posterior.prior, posterior.prior.dim
        self.x_shape, self.device = tuple(posterior.x_shape), torch.device(posterior.device)
        self.dtype = getattr(posterior, "dtype", torch.float32)
        self.can_leak = bool(posterior.can_leak)
        self.own_points = hasattr(posterior, "features")
        self.log_weights = getattr(posterior, "log_weights", None)
        stack = getattr(posterior, "stack", {})
        known = posterior.network.x_constants(stack) if hasattr(posterior, "network") else stack
        if "x_loc" in known and "x_scale" in known:
            loc, scale = (known[name][0].cpu() for name in ("x_loc", "x_scale"))
            # Without standardisation the constants are 0 and one number, and say nothing about the observations.
            if bool((loc != 0).any()):
                self.x_reference = loc, scale
        if getattr(posterior, "temperature", 1.0) < 1:
            self.tempered, self.temperature = TemperedSurrogate(posterior), posterior.temperature

    def embed(self, x: Tensor) -> Tensor:
        """Features with shape `(B, M, C)`: an embedding may be all of the cost."""
        return self.posterior.features(x).movedim(0, 1) if self.own_points else x

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.log_ratio(theta, x) + self.log_prior(theta)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        ratios: Tensor = self.posterior.log_ratios(theta, x, **self._known(x))
        return ratios

    def own_log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        ratios: Tensor = self.posterior.log_ratios(theta, x, each=True, **self._known(x))
        return ratios

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draws: tuple[Tensor, Tensor] = self.posterior.sample_members(n, x, generator, **self._known(x))
        return draws

    def _known(self, features: Tensor) -> dict[str, Tensor]:
        return {"features": features.movedim(1, 0)} if self.own_points else {}


class TemperedSurrogate(Surrogate):
    """The mixture of an `equipoise.Posterior` at its temperature, as one density.

    Of a flow there are exact draws, inside the prior's support. Of a classifier there is the log-ratio. Those of other
    packages (`tempered_posterior`) have draws too.
    """

    q: Untempered
    t: float
    observed: Callable[[Tensor], Observed]

    def __init__(self, posterior: Any) -> None:
        self.observed, self.t, self.q = posterior.observed, posterior.temperature, posterior.untempered()
        self.kind, self.prior, self.dim = posterior.kind, posterior.prior, posterior.prior.dim
        self.x_shape, self.device = tuple(posterior.x_shape), torch.device(posterior.device)
        self.dtype = posterior.dtype

    def embed(self, x: Tensor) -> Observed:
        """What is known of x, with log Z_t of a flow as one more column of what normalises the members."""
        known = self.observed(x)
        log_z = torch.zeros(len(x), dtype=self.dtype, device=self.device)
        if self.kind != "classifier":
            log_z, _ = tempered_normalizer(self.q, known, self.t)
        return Observed(known.x, torch.cat([known.log_normalizer, log_z.unsqueeze(1)], 1))

    def log_density(self, theta: Tensor, x: Any) -> Tensor:
        return self.log_ratio(theta, x) + self.log_prior(theta)

    def log_ratio(self, theta: Tensor, x: Any) -> Tensor:
        flat = theta.reshape(1, -1, *theta.shape[-2:])
        found = self.t * self.q.log_ratio(flat, _members(x)) - x.log_normalizer[:, -1]
        return found.view(1, *theta.shape[:-1])

    def draw(self, n: int, x: Any, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        seed = int(torch.randint(2**62, (), device=generator.device, generator=generator))
        theta, _ = tempered_draws(self.q, _members(x), self.t, n, generator, seed)
        return theta.unsqueeze(0), self.log_density(theta, x)


def _members(x: Observed) -> Observed:
    """Without log Z_t."""
    return Observed(x.x, x.log_normalizer[:, :-1])


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Objects that draw from torch's global generator are reproducible inside this block, and leave it as it was."""
    with isolated(int(torch.randint(2**62, (), device=generator.device, generator=generator))):
        yield


def prior_draws(prior: Prior, n: int, pairs: int, generator: torch.Generator) -> Tensor:
    """Independent prior draws with shape `(n, B, D)`, for priors without cumulative distribution functions."""
    with seeded(generator):
        return prior.sample((n * pairs,)).reshape(n, pairs, -1).to(generator.device)


def tarp_references(theta: Tensor, prior: Prior | None, generator: torch.Generator) -> Tensor:
    """One reference point a pair, with shape `(n, D)`, for θ with shape `(n, D)`."""
    if prior is None:
        # Another pair's θ: a shift by a random amount that is never 0.
        shift = 1 + int(torch.randint(len(theta) - 1, (), device=generator.device, generator=generator))
        return theta.roll(shift, 0)
    with seeded(generator):
        return prior.sample((len(theta),)).to(theta)
