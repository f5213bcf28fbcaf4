"""The one door through which diagnostics see a posterior.

Everything behind it works on a `Surrogate`: raw log densities of M members at given points and, where it can, draws
with their densities. There are three kinds:

- `Ours`: an `equipoise.Posterior`, all members at once;
- `Lazy`: what turns x into a batched distribution, `flow(x).sample((n,))` and `flow(x).log_prob(theta)` (zuko's
  flows, and lampe's NPE through its `flow`);
- `Foreign`: anything with `sample((n,), x)` and `log_prob(theta, x)` for one x (sbi's posteriors). Where it also has
  `sample_batched` and `log_prob_batched`, as sbi's direct posterior has, all pairs go in one call; otherwise one at a
  time.
"""

from __future__ import annotations

__all__ = ["Apart", "Foreign", "Lazy", "Ours", "Surrogate", "as_surrogate"]

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.posteriors.tempered import tempered_sample
from equipoise.priors import Prior, as_prior
from equipoise.randomness import isolated

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


class Ours(Surrogate):
    """An `equipoise.Posterior`."""

    def __init__(self, posterior: Any) -> None:
        self.posterior = posterior
        self.kind, self.n_members = posterior.kind, posterior.n_members
        self.prior, self.dim = posterior.prior, posterior.prior.dim
        self.x_shape, self.device = tuple(posterior.x_shape), torch.device(posterior.device)
        self.dtype = getattr(posterior, "dtype", torch.float32)
        self.can_leak = bool(posterior.can_leak)
        self.has_own_points = self.kind == "classifier" and hasattr(posterior, "ratio_of")
        stack = getattr(posterior, "stack", {})
        if "x_loc" in stack and "x_scale" in stack:
            loc, scale = stack["x_loc"][0].cpu(), stack["x_scale"][0].cpu()
            # Without standardisation the constants are 0 and one number, and say nothing about the observations.
            if bool((loc != 0).any()):
                self.x_reference = loc, scale
        self._last: tuple[Tensor | None, dict[str, Any]] = None, {}

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.log_ratio(theta, x) + self.log_prior(theta)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        ratios: Tensor = self.posterior.log_ratios(theta, x, **self._known(x))
        return ratios

    def ratio_of(self, x: Tensor, height: int) -> Callable[..., Tensor]:
        if not hasattr(self.posterior, "ratio_of"):
            return super().ratio_of(x, height)
        ratio: Callable[..., Tensor] = self.posterior.ratio_of(x, **self._known(x))
        return ratio

    def log_ratio_each(self, theta: Tensor, x: Tensor) -> Tensor:
        ratios: Tensor = self.posterior.log_ratios(theta, x, each=True, **self._known(x))
        return ratios

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        draws: tuple[Tensor, Tensor] = self.posterior.sample_members(n, x, generator, **self._known(x))
        return draws

    def _known(self, x: Tensor) -> dict[str, Any]:
        """The features of x. A batch asks for them many times, and an embedding may be all of the cost: they are kept
        until another batch comes."""
        if self._last[0] is not x:
            self._last = x, {"features": self.posterior.features(x)} if hasattr(self.posterior, "features") else {}
        return self._last[1]


class Apart(Surrogate):
    """The M members of a classifier as M · B pairs of a single one, so that each has points of its own.

    θ has the shape `(S, M · B, D)`, member by member; x stays with shape `(B, *x_shape)`.
    """

    kind = "classifier"

    def __init__(self, whole: Ours) -> None:
        self.whole, self.prior = whole, whole.prior
        self.device, self.dtype = whole.device, whole.dtype

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.log_ratio(theta, x) + self.log_prior(theta)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        each = theta.unflatten(1, (self.whole.n_members, len(x))).movedim(1, 0)
        return self.whole.log_ratio_each(each, x).movedim(0, 1).flatten(1, 2).unsqueeze(0)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise TypeError("a classifier has no draws")

    def particles(self, x: Tensor, generator: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor] | None:
        drawn = self.whole.particles(x, generator, like)
        return None if drawn is None else (drawn[0].reshape(1, -1), drawn[1].movedim(0, 1).flatten(1, 2).unsqueeze(0))


class Lazy(Surrogate):
    """A function from x with shape `(B, *x_shape)` to a distribution with batch shape `(B,)`."""

    kind = "foreign"

    def __init__(self, build: Callable[[Tensor], Any], prior: Prior | None) -> None:
        self.build, self.prior = build, prior
        self.dim = None if prior is None else prior.dim
        self.can_leak = prior is not None
        if isinstance(build, torch.nn.Module):
            first = next(build.parameters(), None)
            if first is not None:
                self.device, self.dtype = first.device, first.dtype

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return _checked(self.build(x).log_prob(theta), theta.shape[:-1], "log_prob").unsqueeze(0)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        distribution = self.build(x)
        with seeded(generator):
            theta = distribution.sample((n,))
        if theta.ndim != 3 or theta.shape[:2] != (n, len(x)):
            raise ValueError(
                f"{n} samples for each of {len(x)} observations should have shape ({n}, {len(x)}, D), got "
                f"{tuple(theta.shape)} from {type(distribution).__name__}"
            )
        density = _checked(distribution.log_prob(theta), theta.shape[:-1], "log_prob")
        return theta.unsqueeze(0), density.unsqueeze(0)


class Foreign(Surrogate):
    """Anything with `sample((n,), x)` and `log_prob(theta, x)` for one observation x."""

    kind = "foreign"

    def __init__(self, posterior: Any, prior: Prior | None) -> None:
        self.posterior, self.prior = posterior, prior
        self.dim = None if prior is None else prior.dim
        self._sample_all = getattr(posterior, "sample_batched", None)
        self._log_prob_all = getattr(posterior, "log_prob_batched", None)
        sample, log_prob = self._sample_all or posterior.sample, self._log_prob_all or posterior.log_prob
        # sbi rejects draws outside the prior, and renormalises each density with ten thousand more of them. Ranks
        # compare densities at one x and need no normaliser; the raw draws give it, and the leakage, at no further
        # cost.
        self._normalises = "norm_posterior" in _arguments(log_prob)
        self._rejects = "reject_outside_prior" in _arguments(sample)
        self._raw = self._rejects and prior is not None
        self.can_leak = prior is not None and (self._raw or not self._normalises)
        self._sampling = {"show_progress_bars": False} if "show_progress_bars" in _arguments(sample) else {}
        if self._raw:
            self._sampling["reject_outside_prior"] = False
        device = getattr(posterior, "_device", None) or getattr(posterior, "device", None)
        if isinstance(device, str | torch.device):
            self.device = torch.device(device)

    @property
    def batched(self) -> bool:
        """Whether all pairs go in one call."""
        return self._sample_all is not None and self._log_prob_all is not None

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._density(theta, x, {"norm_posterior": False} if self._normalises else {}).unsqueeze(0)

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor | None:
        if not self._normalises or self._raw:
            return None
        return self._density(theta.unsqueeze(0), x, {})[0].unsqueeze(0)

    def _density(self, theta: Tensor, x: Tensor, options: dict[str, Any]) -> Tensor:
        shape = theta.shape[:-1]
        theta = theta.reshape(-1, *theta.shape[-2:])
        if self._log_prob_all is not None:
            density = torch.as_tensor(self._log_prob_all(theta, x, **options))
            return _checked(density, theta.shape[:-1], "log_prob_batched").reshape(shape)
        columns = [
            _checked(
                torch.as_tensor(self.posterior.log_prob(theta[:, b], x[b], **options)), theta.shape[:1], "log_prob"
            )
            for b in range(len(x))
        ]
        return torch.stack(columns, -1).reshape(shape)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        with seeded(generator):
            if self._sample_all is not None:
                theta = torch.as_tensor(self._sample_all((n,), x, **self._sampling))
            else:
                draws = [self.posterior.sample((n,), x[b], **self._sampling) for b in range(len(x))]
                theta = torch.stack([torch.as_tensor(d) for d in draws], 1)
        if theta.ndim != 3 or theta.shape[:2] != (n, len(x)):
            raise ValueError(
                f"{n} samples for each of {len(x)} observations should have shape ({n}, {len(x)}, D), got "
                f"{tuple(theta.shape)}; sample((n,), x) should give shape (n, D) for one observation"
            )
        return theta.unsqueeze(0), self.log_density(theta, x)


def as_surrogate(posterior: Any, prior: Any = None) -> Surrogate:
    """The posterior a user gave, as a `Surrogate`."""
    if all(hasattr(posterior, name) for name in ("log_ratios", "sample_members", "n_members", "prior")):
        return Ours(posterior)
    if prior is None and not callable(getattr(posterior, "prior", None)):
        prior = getattr(posterior, "prior", None)  # sbi's posteriors carry theirs
    known = None if prior is None else as_prior(prior)
    if hasattr(posterior, "sample") and hasattr(posterior, "log_prob"):
        return Foreign(posterior, known)
    build = getattr(posterior, "flow", posterior)
    if callable(build):
        return Lazy(build, known)
    raise TypeError(
        f"cannot diagnose a {type(posterior).__name__}: it needs sample((n,), x) and log_prob(theta, x), or to be a "
        "function from x to a distribution"
    )


def _checked(value: Tensor, shape: torch.Size, name: str) -> Tensor:
    if value.shape != shape:
        raise ValueError(
            f"{name} should have shape {tuple(shape)}, one density a parameter vector, got {tuple(value.shape)}"
        )
    return value


def _arguments(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Objects that draw from torch's global generator are reproducible inside this block, and leave it as it was."""
    with isolated(int(torch.randint(2**62, (), device=generator.device, generator=generator))):
        yield
