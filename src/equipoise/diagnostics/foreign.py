"""Posteriors of others, as a `Surrogate`.

`Foreign` asks for all pairs in one call where a posterior has `sample_batched` and `log_prob_batched`, as sbi's direct
posterior has, and otherwise goes from pair to pair. What sbi's classes need beyond that is said in `peers`.
"""

from __future__ import annotations

__all__ = ["Ensemble", "Foreign", "Lazy", "Ratio"]

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior

from .peers import BATCHES, LEAKS, UNNORMALISED, explained, is_sbi, silent, speaks_of
from .surrogates import Surrogate, checked, module_place, seeded

#: Pairs that go together where a posterior takes them one by one.
ONE_BY_ONE = 16
#: Numbers of x that are repeated at once for a function of pairs (theta, x).
REPEATED = 1 << 24


class Lazy(Surrogate):
    """A function from x with shape `(B, *x_shape)` to a distribution with batch shape `(B,)`."""

    kind = "foreign"

    def __init__(self, build: Callable[[Tensor], Any], prior: Prior | None) -> None:
        self.build, self.prior = build, prior
        self.dim = None if prior is None else prior.dim
        self.can_leak = prior is not None
        self.device, self.dtype = module_place(build) or (self.device, self.dtype)

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return checked(self.build(x).log_prob(theta), theta.shape[:-1], "log_prob").unsqueeze(0)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        distribution = self.build(x)
        with seeded(generator):
            theta = distribution.sample((n,))
        if theta.ndim != 3 or theta.shape[:2] != (n, len(x)):
            raise ValueError(
                f"{n} samples for each of {len(x)} observations should have shape ({n}, {len(x)}, D), got "
                f"{tuple(theta.shape)} from {type(distribution).__name__}"
            )
        density = checked(distribution.log_prob(theta), theta.shape[:-1], "log_prob")
        return theta.unsqueeze(0), density.unsqueeze(0)


class Ratio(Surrogate):
    """A function of θ with shape `(N, D)` and x with shape `(N, *x_shape)` that gives log-ratios `(N,)`.

    It is a classifier, known up to a constant of x.
    """

    kind = "classifier"

    def __init__(self, function: Callable[[Tensor, Tensor], Any], prior: Prior) -> None:
        self.function, self.prior, self.dim = function, prior, prior.dim
        self.device, self.dtype = module_place(function) or (self.device, self.dtype)

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.log_ratio(theta, x) + self.log_prior(theta)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        rows, shape = theta.reshape(-1, *theta.shape[-2:]), theta.shape[:-1]
        parts = []
        for part in rows.split(max(1, REPEATED // max(1, x.numel()))):
            many = x.expand(len(part), *x.shape).flatten(0, 1)
            ratio = torch.as_tensor(self.function(part.flatten(0, 1), many)).detach()
            parts.append(checked(ratio, torch.Size([len(many)]), "the log-ratio").unflatten(0, part.shape[:2]))
        return torch.cat(parts).reshape(shape).unsqueeze(0)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise TypeError("a log-ratio has no draws")


class Foreign(Surrogate):
    """Anything with `sample((n,), x)` and `log_prob(theta, x)` for one observation x."""

    kind = "foreign"

    def __init__(self, posterior: Any, prior: Prior | None) -> None:
        self.posterior, self.prior = posterior, prior
        self.dim = None if prior is None else prior.dim
        self._sample_all = getattr(posterior, "sample_batched", None)
        self._log_prob_all = getattr(posterior, "log_prob_batched", None)
        ways = [way for way in (posterior.sample, self._sample_all) if way is not None]
        # sbi rejects draws outside the prior, and renormalises each density with ten thousand more of them. Ranks
        # compare densities at one x and need no normaliser; the raw draws give it, and the leakage, at no further
        # cost.
        self._normalises = "norm_posterior" in _arguments(self._log_prob_all or posterior.log_prob)
        self._raw = (
            prior is not None
            and not is_sbi(posterior, "RejectionPosterior")
            and all("reject_outside_prior" in _arguments(way) for way in ways)
        )
        self._resamples = is_sbi(posterior, "ImportanceSamplingPosterior")
        self.can_leak = prior is not None and (self._raw or not self._normalises)
        self.normalised = not self._resamples
        self.has_log_prob = self._resamples or (self._normalises and not self._raw)
        self.pairs_at_once = None if self._sample_all and self._log_prob_all else ONE_BY_ONE
        device = getattr(posterior, "_device", None) or getattr(posterior, "device", None)
        if isinstance(device, str | torch.device):
            self.device = torch.device(device)

    def look(self, theta: Tensor, x: Tensor) -> bool:
        if speaks_of(UNNORMALISED, lambda: self.log_density(theta.unsqueeze(0), x)):
            self.normalised = False
        return self.normalised

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return self._density(theta, x, {"norm_posterior": False} if self._normalises else {}).unsqueeze(0)

    def log_prob(self, theta: Tensor, x: Tensor) -> Tensor | None:
        if not self.has_log_prob:
            return None
        if self._resamples:
            return self._one_by_one(self.posterior.log_prob, theta.unsqueeze(0), x, {})
        return self._density(theta.unsqueeze(0), x, {})

    def _density(self, theta: Tensor, x: Tensor, options: dict[str, Any]) -> Tensor:
        """Log densities with shape `(*S, B)`."""
        shape = theta.shape[:-1]
        theta = theta.reshape(-1, *theta.shape[-2:])
        if self._log_prob_all is not None:
            density = torch.as_tensor(self._log_prob_all(theta, x, **options)).detach()
            return checked(density, theta.shape[:-1], "log_prob_batched").reshape(shape)
        evaluate = self.posterior.potential if self._resamples else self.posterior.log_prob
        return self._one_by_one(evaluate, theta, x, options).reshape(shape)

    def _one_by_one(self, evaluate: Callable[..., Any], theta: Tensor, x: Tensor, options: dict[str, Any]) -> Tensor:
        """Log densities with shape `(S, B)` of θ with shape `(S, B, D)`, pair by pair."""
        columns = []
        # Of a density that is not normalised this is known by now, and told in a note.
        with explained(), silent(() if self.normalised else UNNORMALISED):
            for b in range(len(x)):
                density = torch.as_tensor(evaluate(theta[:, b], x[b], **options)).detach()
                columns.append(checked(density, theta.shape[:1], "log_prob"))
        return torch.stack(columns, -1)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        # Samplers may climb a gradient. Leakage is measured from draws as they are, and reported; how many pairs go
        # together is decided here.
        kept_back = (*BATCHES, *(LEAKS if self._raw else ()))
        with seeded(generator), torch.enable_grad(), explained(), silent(kept_back):
            theta = self._samples(n, x)
        if theta.ndim != 3 or theta.shape[:2] != (n, len(x)):
            raise ValueError(
                f"{n} samples for each of {len(x)} observations should have shape ({n}, {len(x)}, D), got "
                f"{tuple(theta.shape)}; sample((n,), x) should give shape (n, D) for one observation"
            )
        return theta.unsqueeze(0), self.log_density(theta, x)

    def _samples(self, n: int, x: Tensor) -> Tensor:
        if self._sample_all is not None:
            try:
                return torch.as_tensor(self._sample_all((n,), x, **self._options(self._sample_all))).detach()
            except NotImplementedError:  # the name is there, the deed is not
                self._sample_all = None
        options = self._options(self.posterior.sample)
        draws = [self.posterior.sample((n,), x[b], **options) for b in range(len(x))]
        return torch.stack([torch.as_tensor(d).detach() for d in draws], 1)

    def _options(self, function: Callable[..., Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "show_progress_bars" in _arguments(function):
            options["show_progress_bars"] = False
        if self._raw:
            options["reject_outside_prior"] = False
        if self._resamples and "method" in _arguments(function):
            options["method"] = "sir"  # draws, not proposals with weights
        return options


class Ensemble(Surrogate):
    """Posteriors of others as members, mixed with their weights.

    An ensemble's own `log_prob` would renormalise each of them, for each x, with ten thousand draws; here they are
    judged as members are.
    """

    kind = "foreign"

    def __init__(self, members: Sequence[Surrogate], weights: Any, prior: Prior | None) -> None:
        self.each, self.prior, self.n_members = members, prior, len(members)
        self.dim = None if prior is None else prior.dim
        self.device = members[0].device
        self.can_leak = any(m.can_leak for m in members)
        weights = torch.as_tensor(weights, dtype=torch.float32, device=self.device)
        if not torch.allclose(weights, weights[:1]):
            self.log_weights = (weights / weights.sum()).log()
        several = [m.pairs_at_once for m in members if m.pairs_at_once is not None]
        self.pairs_at_once = min(several, default=None)

    def look(self, theta: Tensor, x: Tensor) -> bool:
        found = [m.look(theta, x) for m in self.each]  # each has to be asked
        self.normalised = all(found)
        return self.normalised

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.cat([m.log_density(theta, x) for m in self.each])

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        parts = [m.draw(n, x, generator) for m in self.each]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def _arguments(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
