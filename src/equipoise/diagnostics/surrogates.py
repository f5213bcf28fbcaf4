"""What diagnostics need of a posterior: raw log densities of M members at given points and, where it can, draws."""

from __future__ import annotations

__all__ = ["PARTICLES", "Surrogate", "checked", "module_place", "seeded"]

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.posteriors.tempered import tempered_sample
from equipoise.priors import Prior
from equipoise.support.randomness import isolated

#: Evaluations of a single classifier in one call, where particles are drawn.
EACH_CALL = 1 << 13
#: Tempered particles of each member and observation.
PARTICLES = 1024


class Surrogate(ABC):
    """M densities p̂(θ|x), seen raw: as the networks give them, before anything is cut to the prior's support."""

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
    #: Whether each of several classifiers can be evaluated at points of its own.
    has_own_points: bool = False
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

    @abstractmethod
    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        """Raw log p̂ of every member at θ with shape `(*S, B, D)` and x with shape `(B, *x_shape)`; `(M, *S, B)`."""

    @abstractmethod
    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws with shape `(M, n, B, D)` and their raw log densities with shape `(M, n, B)`."""

    def log_prior(self, theta: Tensor) -> Tensor:
        """log p(θ), with shape `(*S, B)`; NaN where no prior is known."""
        if self.prior is None:
            return torch.full(theta.shape[:-1], torch.nan, dtype=theta.dtype, device=theta.device)
        return self.prior.log_prob(theta).to(theta)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        """Raw log p̂ - log p of every member, with shape `(M, *S, B)`."""
        return self.log_density(theta, x) - self.log_prior(theta)

    def ratio_of(self, x: Tensor, height: int) -> Callable[..., Tensor]:
        """Log-ratios of a single classifier for `make_cells`, at most `height` rows of θ at once."""

        def ratio(theta: Tensor, columns: Tensor | None = None) -> Tensor:
            here = x if columns is None else x[columns]
            rows = theta.expand(-1, -1, len(here), -1)[0].split(height)
            return torch.cat([self.log_ratio(part, here) for part in rows], 1)

        return ratio

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """The object's own normalised log density, with shape `(M, B)`, where it differs and has one; else None."""
        return None

    def look(self, theta: Tensor, x: Tensor) -> bool:
        """Find out from one pair, `(1, D)` and `(1, *x_shape)`, whether `log_density` is `normalised`."""
        return self.normalised

    def particles(self, x: Tensor, generator: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """log Z of classifiers with shape `(M, B)` and draws with shape `(M, N, B, D)`, by tempered particles.

        None where the members cannot be evaluated at points of their own.
        """
        if self.prior is None or (self.n_members > 1 and not self.has_own_points):
            return None
        ratio = self.ratio_of(x, max(1, EACH_CALL // len(x)))
        seed = int(torch.randint(2**31, (), device=generator.device, generator=generator))
        found = tempered_sample(ratio, self.prior, self.n_members, len(x), PARTICLES, seed, like)
        return found.log_normalizer, found.theta


def checked(value: Tensor, shape: torch.Size, name: str) -> Tensor:
    """Log densities, if they have this shape."""
    if value.shape != shape:
        raise ValueError(
            f"{name} should have shape {tuple(shape)}, one density a parameter vector, got {tuple(value.shape)}"
        )
    return value


def module_place(build: Any) -> tuple[torch.device, torch.dtype] | None:
    """The device and the precision of a module's parameters; None for what is no module or has none."""
    first = next(build.parameters(), None) if isinstance(build, torch.nn.Module) else None
    return None if first is None else (first.device, first.dtype)


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Objects that draw from torch's global generator are reproducible inside this block, and leave it as it was."""
    with isolated(int(torch.randint(2**62, (), device=generator.device, generator=generator))):
        yield
