"""The one door through which diagnostics see a posterior.

Everything behind it works on a `Surrogate`. There are five kinds:

- `Ours`: an `equipoise.Posterior`, all members at once (and `Apart`, each at points of its own);
- `Lazy`: what turns x into a batched distribution, `flow(x).sample((n,))` and `flow(x).log_prob(theta)` (zuko's
  flows, and lampe's NPE through its `flow`);
- `Ratio`: a function of (theta, x) that gives log p̂(θ|x) - log p(θ) up to a constant of x (lampe's NRE);
- `Foreign`: anything with `sample((n,), x)` and `log_prob(theta, x)` for one x (sbi's posteriors);
- `Ensemble`: several of those with weights (sbi's ensembles).
"""

from __future__ import annotations

__all__ = ["Apart", "Ours", "as_surrogate"]

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import as_prior

from .foreign import Ensemble, Foreign, Lazy, Ratio
from .peers import is_sbi
from .surrogates import Surrogate


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


def as_surrogate(posterior: Any, prior: Any = None) -> Surrogate:
    """The posterior a user gave, as a `Surrogate`."""
    if all(hasattr(posterior, name) for name in ("log_ratios", "sample_members", "n_members", "prior")):
        return Ours(posterior)
    if prior is None and not callable(getattr(posterior, "prior", None)):
        prior = getattr(posterior, "prior", None)  # sbi's posteriors carry theirs
    known = None if prior is None else as_prior(prior)
    if is_sbi(posterior, "EnsemblePosterior"):
        return Ensemble([as_surrogate(p, known) for p in posterior.posteriors], posterior.weights, known)
    if hasattr(posterior, "sample") and hasattr(posterior, "log_prob"):
        return Foreign(posterior, known)
    build = getattr(posterior, "flow", posterior)
    if callable(build):
        needed = _needed(build)
        if needed == 2:
            if known is None:
                raise ValueError(
                    f"{type(posterior).__name__} is a function of (theta, x) and is taken for a log-ratio "
                    "log p(theta|x) - log p(theta): it says nothing without the prior. Give it: "
                    "eq.diagnose(..., prior=prior)"
                )
            return Ratio(build, known)
        if needed < 2:
            return Lazy(build, known)
    raise TypeError(
        f"cannot diagnose a {type(posterior).__name__}: it needs sample((n,), x) and log_prob(theta, x), or to be a "
        "function from x to a distribution, or from (theta, x) to the log-ratio log p(theta|x) - log p(theta)"
    )


def _needed(function: Callable[..., Any]) -> int:
    """How many arguments a function cannot do without."""
    if isinstance(function, torch.nn.Module):
        function = function.forward
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(a.kind in positional and a.default is inspect.Parameter.empty for a in arguments)
