"""Posteriors of other packages, and of plain objects, as a `Surrogate`; `as_surrogate` chooses among them.

- `DistributionSurrogate`: what turns x into a batched distribution, `flow(x).sample((n,))` and
  `flow(x).log_prob(theta)` (zuko's flows, and lampe's NPE through its `flow`);
- `RatioSurrogate`: a function of (theta, x) that gives log p̂(θ|x) - log p(θ) up to a constant of x (lampe's NRE);
- `SampledSurrogate`: anything with `sample((n,), x)` and `log_prob(theta, x)` for one x (sbi's posteriors). All pairs
  go in one call where it has `sample_batched` and `log_prob_batched`, as sbi's direct posterior has;
- `EnsembleSurrogate`: several of those with weights (sbi's ensembles).

sbi's posteriors share names and not always meanings:

- `log_prob` of what is drawn by MCMC or by rejection is the potential: a log density up to a constant of x. It says so
  in a warning. Ranks compare densities at one x and need no constant; the log posterior and the balance do.
- `log_prob` of the importance sampler is normalised, by a sum over ten thousand fresh draws in every call: two calls
  for one x differ by a random constant, so that ranks take the potential, which does not.
- `reject_outside_prior=False` gives a flow's draws as they are, which is what leakage is measured from; to the
  rejection sampler it means draws of its proposal.
- `sample_batched` exists everywhere, and raises a NotImplementedError where it is not implemented.

Draws and densities that are not finite are refused: ranks among them would mean nothing.
"""

from __future__ import annotations

__all__ = ["as_surrogate"]

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior, as_prior
from equipoise.priors.agreement import same_description
from equipoise.support.arrays import as_tensor

from .surrogates import EquipoiseSurrogate, Surrogate, seeded

#: Pairs that go together where a posterior takes them one by one.
ONE_BY_ONE = 16
#: Numbers of x that are repeated at once for a function of pairs (theta, x).
REPEATED = 1 << 24
#: A posterior may give this share of its own draws inside the prior a density of 0: they may lie on its very edge.
EDGE = 0.01
#: What a `log_prob` says that is not normalised.
UNNORMALISED = (r".*un-?normali[sz]ed", r".*not normali[sz]ed", r".*up to an? (normali[sz]ing |additive )?constant")
#: What sbi says of draws that are asked for as they are.
LEAKS = (r".*of samples drawn with reject_outside_prior=False lie outside the prior support",)
#: What sbi says of several observations at once.
BATCHES = (
    r"Note that for batched sampling, we use num_chains many chains for each x",
    r"Capping max_sampling_batch_size from \d+ to \d+",
)


class DistributionSurrogate(Surrogate):
    """A function from x with shape `(B, *x_shape)` to a distribution with batch shape `(B,)`."""

    kind = "foreign"

    def __init__(self, build: Callable[[Tensor], Any], prior: Prior | None) -> None:
        self.build, self.prior = build, prior
        self.dim = None if prior is None else prior.dim
        self.can_leak = prior is not None
        self.device, self.dtype = module_place(build) or (self.device, self.dtype)

    def log_density(self, theta: Tensor, x: Tensor) -> Tensor:
        distribution = self.build(x)
        name = f"log_prob of {type(distribution).__name__}"
        return checked(distribution.log_prob(theta), theta.shape[:-1], name).unsqueeze(0)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        distribution = self.build(x)
        with seeded(generator):
            theta = checked_draws(distribution.sample((n,)), n, x, f"sample of {type(distribution).__name__}")
        density = checked(distribution.log_prob(theta), theta.shape[:-1], f"log_prob of {type(distribution).__name__}")
        return _drawn(theta, density.unsqueeze(0), self.prior, f"log_prob of {type(distribution).__name__}")


class RatioSurrogate(Surrogate):
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
            ratio = checked(self.function(part.flatten(0, 1), many), torch.Size([len(many)]), "the log-ratio")
            parts.append(ratio.unflatten(0, part.shape[:2]))
        return torch.cat(parts).reshape(shape).unsqueeze(0)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        raise TypeError("a log-ratio has no draws")


class SampledSurrogate(Surrogate):
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
        if warns_of(UNNORMALISED, lambda: self.log_density(theta.unsqueeze(0), x)):
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
            density = self._log_prob_all(theta, x, **options)
            return checked(density, theta.shape[:-1], "log_prob_batched").reshape(shape)
        evaluate = self.posterior.potential if self._resamples else self.posterior.log_prob
        return self._one_by_one(evaluate, theta, x, options).reshape(shape)

    def _one_by_one(self, evaluate: Callable[..., Any], theta: Tensor, x: Tensor, options: dict[str, Any]) -> Tensor:
        """Log densities with shape `(S, B)` of θ with shape `(S, B, D)`, pair by pair."""
        columns = []
        # That a density is not normalised is known by now, and in the notes.
        with explained(), silent(() if self.normalised else UNNORMALISED):
            for b in range(len(x)):
                columns.append(checked(evaluate(theta[:, b], x[b], **options), theta.shape[:1], "log_prob"))
        return torch.stack(columns, -1)

    def draw(self, n: int, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        # Samplers may climb a gradient. Leakage is measured from draws as they are, and reported; how many pairs go
        # together is decided here.
        kept_back = (*BATCHES, *(LEAKS if self._raw else ()))
        with seeded(generator), torch.enable_grad(), explained(), silent(kept_back):
            theta = self._samples(n, x)
        return _drawn(theta, self.log_density(theta, x), self.prior, "log_prob")

    def _samples(self, n: int, x: Tensor) -> Tensor:
        if self._sample_all is not None:
            try:
                found = self._sample_all((n,), x, **self._options(self._sample_all))
                return checked_draws(found, n, x, "sample_batched")
            except NotImplementedError:  # declared but not implemented
                self._sample_all = None
        options = self._options(self.posterior.sample)
        draws = [self.posterior.sample((n,), x[b], **options) for b in range(len(x))]
        return checked_draws(torch.stack([_tensor(d, "sample") for d in draws], 1), n, x, "sample")

    def _options(self, function: Callable[..., Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "show_progress_bars" in _arguments(function):
            options["show_progress_bars"] = False
        if self._raw:
            options["reject_outside_prior"] = False
        if self._resamples and "method" in _arguments(function):
            options["method"] = "sir"  # draws, not proposals with weights
        return options


class EnsembleSurrogate(Surrogate):
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


def _drawn(theta: Tensor, density: Tensor, prior: Prior | None, name: str) -> tuple[Tensor, Tensor]:
    """Draws with shape `(n, B, D)` and their densities with shape `(1, n, B)`, as `Surrogate.draw` gives them.

    Draws inside the prior to which a posterior gives no density are an error of it, but for a few at its edge.
    """
    inside = torch.ones_like(density[0], dtype=torch.bool) if prior is None else prior.contains(theta)
    _refuse(density[0].isneginf() & inside, f"{name}, at its own draws,", EDGE)
    return theta.unsqueeze(0), density


def checked(value: Any, shape: torch.Size, name: str) -> Tensor:
    """Log densities, if they have this shape and none is NaN or +inf; -inf is a density of 0."""
    density = _tensor(value, name)
    if density.shape != shape:
        raise ValueError(
            f"{name} should have shape {tuple(shape)}, one density per parameter vector, got {tuple(density.shape)}"
        )
    _refuse(density.isnan() | density.isposinf(), name)
    return density


def checked_draws(theta: Any, n: int, x: Tensor, name: str) -> Tensor:
    """Draws, if they have the shape `(n, B, D)` and are finite."""
    theta = _tensor(theta, name)
    if theta.ndim != 3 or theta.shape[:2] != (n, len(x)):
        raise ValueError(
            f"{n} samples for each of {len(x)} observations should have shape ({n}, {len(x)}, D), got "
            f"{tuple(theta.shape)} from {name}; sample((n,), x) should give shape (n, D) for one observation"
        )
    _refuse(~theta.isfinite().all(-1), name)
    return theta


def _tensor(value: Any, name: str) -> Tensor:
    """What a method returned, as a tensor without a gradient."""
    try:
        return as_tensor(value, f"what {name} returns").detach()
    except TypeError as error:
        if isinstance(value, Tensor):
            raise
        raise TypeError(f"{name} should return a tensor, and returned {type(value).__name__}") from error


def _refuse(bad: Tensor, name: str, most: float = 0.0) -> None:
    """Raise if more than a share of the values of a method are not finite."""
    if bool(bad.any()) and float(bad.double().mean()) > most:
        raise ValueError(
            f"{name} returned {int(bad.sum())} of {bad.numel()} values that are not finite (NaN or infinite): a "
            "posterior that gives them cannot be judged. Check it on these observations, or train it again"
        )


def module_place(build: Any) -> tuple[torch.device, torch.dtype] | None:
    """The device and the precision of a module's parameters; None for what is no module or has none."""
    first = next(build.parameters(), None) if isinstance(build, torch.nn.Module) else None
    return None if first is None else (first.device, first.dtype)


def is_sbi(posterior: Any, name: str) -> bool:
    """Whether a posterior is sbi's of this class, or of one derived from it."""
    return any(c.__name__ == name and c.__module__.split(".")[0] == "sbi" for c in type(posterior).__mro__)


def warns_of(patterns: Sequence[str], call: Callable[[], Any]) -> bool:
    """Whether a call gives one of these warnings. They are not shown: the same call is made again."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        call()
    return any(re.match(p, str(w.message), re.IGNORECASE) for w in given for p in patterns)


@contextmanager
def silent(patterns: Sequence[str]) -> Iterator[None]:
    """Ignore exactly these warnings, because what they say is dealt with here."""
    if not patterns:
        yield
        return
    with warnings.catch_warnings():
        for pattern in patterns:
            warnings.filterwarnings("ignore", message=pattern)
        yield


@contextmanager
def explained() -> Iterator[None]:
    """A posterior that was fitted to one observation knows no others: an error that names the remedy."""
    try:
        yield
    except ValueError as error:
        if "not fit on the specified observation" not in str(error):
            raise
        raise ValueError(
            "this posterior was fitted to a single observation (sbi's VIPosterior after train()), and coverage asks "
            "for a posterior of every test observation. Fit one for all: posterior.train_amortized(theta, x), or "
            "another method"
        ) from error


def as_surrogate(posterior: Any, prior: Any = None) -> Surrogate:
    """The posterior a user gave, as a `Surrogate`."""
    if all(hasattr(posterior, name) for name in ("log_ratios", "sample_members", "n_members", "prior")):
        _refuse_another_prior(posterior, prior)
        return EquipoiseSurrogate(posterior)
    if hasattr(type(posterior), "as_surrogate"):  # one of these, tempered
        _refuse_another_prior(posterior, prior)
        own: Surrogate = posterior.as_surrogate()
        return own
    if prior is None and not callable(getattr(posterior, "prior", None)):
        prior = getattr(posterior, "prior", None)  # sbi's posteriors carry theirs
    known = None if prior is None else as_prior(prior)
    if is_sbi(posterior, "EnsemblePosterior"):
        return EnsembleSurrogate([as_surrogate(p, known) for p in posterior.posteriors], posterior.weights, known)
    if hasattr(posterior, "sample") and hasattr(posterior, "log_prob"):
        return SampledSurrogate(posterior, known)
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
            return RatioSurrogate(build, known)
        if needed < 2:
            return DistributionSurrogate(build, known)
    raise TypeError(
        f"cannot diagnose a {type(posterior).__name__}: it needs sample((n,), x) and log_prob(theta, x), or to be a "
        "function from x to a distribution, or from (theta, x) to the log-ratio log p(theta|x) - log p(theta)"
    )


def _refuse_another_prior(posterior: Any, prior: Any) -> None:
    """Raise if a prior was given to a posterior that has its own, and is another by its description."""
    if prior is None or prior is posterior.prior:
        return
    given = as_prior(prior)
    if not same_description(given.spec(), posterior.prior.spec()):
        raise ValueError(
            f"prior= is {given}, and the posterior's own is {posterior.prior}: a posterior is judged with the prior "
            "that it was trained with. Leave prior= out; for another prior, train again"
        )


def _needed(function: Callable[..., Any]) -> int:
    """How many arguments a function requires."""
    if isinstance(function, torch.nn.Module):
        function = function.forward
    try:
        arguments = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(a.kind in positional and a.default is inspect.Parameter.empty for a in arguments)
