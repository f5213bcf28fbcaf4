"""What people report of a posterior for one observation: a table, the mode, regions, predictive draws.

The mode is that of the density of θ in its own units. It is searched in two steps: the best of many draws, and then a
cross-entropy search around it, in the coordinates in which the prior is N(0, I), where the support has no edges. Each
round draws from the Gaussian of the best points of the last one. It needs no gradients, which a prior or a network of
the user's may not have.
"""

from __future__ import annotations

__all__ = ["BoundPosterior", "Region", "draws_table", "labels", "mode", "predict", "region", "summary"]

import dataclasses
import inspect
import itertools
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.arrays import as_tensor
from equipoise.support.checks import finite_number, one_of, true_or_false, whole_number
from equipoise.support.randomness import generator as make_generator
from equipoise.support.randomness import integer, isolated

from .shapes import observations

if TYPE_CHECKING:
    import pandas

    from .posterior import Posterior

#: Levels of the central intervals in a summary.
LEVELS = (0.68, 0.95)
#: The search for the mode: rounds, and points that are kept of a round, of ten times as many.
ROUNDS, KEPT = 25, 50


@dataclasses.dataclass(frozen=True)
class Region:
    """A highest-density region: all θ with a density of at least the threshold.

    Attributes:
        posterior: whose region it is.
        x: the observation, with shape `x_shape`.
        level: the probability that the region holds.
        threshold: the log density at its boundary.
    """

    posterior: Posterior = dataclasses.field(repr=False)
    x: Tensor = dataclasses.field(repr=False)
    level: float
    threshold: float

    def contains(self, theta: Any) -> Tensor:
        """Whether each θ, with shape `(*, D)`, lies in the region; shape `(*,)`."""
        return self.posterior.log_prob(theta, self.x) >= self.threshold


@dataclasses.dataclass(frozen=True)
class BoundPosterior:
    """A posterior for one observation, which need not be given again.

    It has the methods that functions of sbi call. Where such a function gives an x, that one is used.

    Attributes:
        posterior: for any observation.
        x: the observation, with shape `x_shape`.
    """

    posterior: Posterior
    x: Tensor = dataclasses.field(repr=False)

    @property
    def prior(self) -> Prior:
        """The prior p(θ)."""
        return self.posterior.prior

    def sample(
        self, sample_shape: Any = (), x: Any = None, seed: int | None = None, *, show_progress_bars: bool = False
    ) -> Tensor:
        """Draws, with shape `(*sample_shape, D)`; there is no progress bar, whatever sbi asks for."""
        return self.posterior.sample(sample_shape, self.x if x is None else x, seed)

    def sample_batched(
        self, sample_shape: Any, x: Any, seed: int | None = None, *, show_progress_bars: bool = False
    ) -> Tensor:
        """Draws for other observations, as of `Posterior.sample_batched`."""
        return self.posterior.sample_batched(sample_shape, x, seed)

    def log_prob(self, theta: Any, x: Any = None) -> Tensor:
        """log q(θ|x) of θ with shape `(*, D)`; shape `(*,)`."""
        return self.posterior.log_prob(theta, self.x if x is None else x)

    def summary(self, n: int = 10_000, seed: int = 0) -> pandas.DataFrame:
        """As `Posterior.summary`."""
        return summary(self.posterior, self.x, n, seed)

    def map(self, seed: int = 0) -> Tensor:
        """As `Posterior.map`."""
        return mode(self.posterior, self.x, seed=seed)

    def region(self, level: float = 0.95, n: int = 10_000, seed: int = 0) -> Region:
        """As `Posterior.region`."""
        return region(self.posterior, self.x, level, n, seed)


def labels(posterior: Posterior) -> tuple[str, ...]:
    """The names of the parameters; theta_0, theta_1, … where they have none."""
    return posterior.names or tuple(f"theta_{j}" for j in range(posterior.prior.dim))


def one_observation(posterior: Posterior, x: Any) -> Tensor:
    """x with shape `x_shape`, on the device of the posterior."""
    x = observations(posterior.network, posterior.stack, x)
    if len(x) != 1:
        raise ValueError(f"give one observation of shape {posterior.x_shape}, got {len(x)} of them")
    return x[0]


def summary(posterior: Posterior, x: Any, n: int = 10_000, seed: int = 0) -> pandas.DataFrame:
    """See `Posterior.summary`."""
    from pandas import Index

    from .tables import SummaryTable

    x, n = one_observation(posterior, x), whole_number("n", n, least=2)
    draws = posterior.sample((n,), x, seed=integer(seed, "summary"))
    theta = draws.double()
    with isolated(integer(seed, "prior")):
        prior = posterior.prior.sample((n,)).to(theta)
    columns = {"mean": theta.mean(0), "median": theta.median(0).values, "sd": theta.std(0)}
    for level in LEVELS:
        low, high = theta.quantile(theta.new_tensor([(1 - level) / 2, (1 + level) / 2]), 0)
        columns |= {f"{level:.0%} low": low, f"{level:.0%} high": high}
    columns |= {"map": mode(posterior, x, draws, seed), "contraction": 1 - theta.var(0) / prior.var(0)}
    index = Index(labels(posterior), name="parameter")
    return SummaryTable({name: value.double().cpu().numpy() for name, value in columns.items()}, index)


@torch.no_grad()
def mode(posterior: Posterior, x: Any, draws: Tensor | None = None, seed: int = 0) -> Tensor:
    """See `Posterior.map`. The search begins with `draws`, with shape `(n, D)`, where there are some."""
    x, prior = one_observation(posterior, x), posterior.prior
    theta = posterior.sample((2000,), x, seed=integer(seed, "mode")) if draws is None else draws
    q, known = posterior.untempered(), posterior.observed(x.unsqueeze(0))

    def log_density(theta: Tensor) -> Tensor:
        """Up to a constant; shape `(P,)` for `(P, D)`."""
        log_prior = prior.log_prob(theta).to(theta)
        ratio = q.log_ratio(theta[None, :, None], known)[0, :, 0]
        value = torch.where(prior.contains(theta), posterior.temperature * ratio + log_prior, -math.inf)
        return value.nan_to_num(-math.inf, math.inf, -math.inf)

    value = log_density(theta)
    best, highest = theta[value.argmax()], value.max()
    if not prior.has_normal_map:
        return best
    # Points around the best draw first, so that of two peaks only one is climbed.
    z, kept = prior.to_normal(theta), max(KEPT, 4 * prior.dim)
    far = ((z - prior.to_normal(best)) / z.std(0).clamp(min=1e-9)).square().sum(-1)
    good, generator = z[far.argsort()[:kept]], make_generator(seed, "mode", "search", device=z.device)
    for _ in range(ROUNDS):
        centre = good.mean(0)
        noise = torch.randn(10 * kept, len(good), generator=generator, dtype=z.dtype, device=z.device)
        z = centre + noise @ (good - centre) / math.sqrt(max(len(good) - 1, 1))
        theta = prior.from_normal(z)
        value = log_density(theta)
        if value.max() > highest:
            best, highest = theta[value.argmax()], value.max()
        good = z[value.topk(kept).indices]
    return best


def region(posterior: Posterior, x: Any, level: float = 0.95, n: int = 10_000, seed: int = 0) -> Region:
    """See `Posterior.region`."""
    level = finite_number("level", level, above=0, below=1)
    x, n = one_observation(posterior, x), whole_number("n", n, least=2)
    value = posterior.log_prob(posterior.sample((n,), x, seed=integer(seed, "region")), x)
    return Region(posterior, x, level, float(value.double().quantile(1 - level)))


def draws_table(posterior: Posterior, x: Any, n: int = 1000, seed: int | None = None) -> pandas.DataFrame:
    """See `Posterior.to_pandas`."""
    import pandas

    draws = posterior.sample((whole_number("n", n),), one_observation(posterior, x), seed)
    return pandas.DataFrame(draws.cpu().numpy(), columns=list(labels(posterior)))


def predict(
    posterior: Posterior,
    simulator: Callable[..., Any],
    x: Any,
    n: int = 1000,
    seed: int | None = None,
    batched: bool | None = None,
    array: str | None = None,
) -> Tensor:
    """See `Posterior.predict`."""
    if not callable(simulator):
        raise TypeError(f"the simulator should be a function of theta, got {type(simulator).__name__}")
    n = whole_number("n", n, least=1)
    ways = (False, True) if batched is None else (true_or_false("batched", batched),)
    arrays = ("torch", "numpy") if array is None else (one_of("array", array, ("torch", "numpy")),)
    seed = int(torch.randint(2**62, ()).item()) if seed is None else seed
    theta = posterior.sample((n,), one_observation(posterior, x), seed=integer(seed, "predict", "theta")).cpu()
    try:
        takes_seed = "seed" in inspect.signature(simulator).parameters
    except (TypeError, ValueError):  # builtins and some extension functions have no signature
        takes_seed = False

    def call(given: Any, row: int) -> Tensor:
        """x of one θ or of a batch, from a stream of its own."""
        stream = integer(seed, "predict", "x", row)
        with isolated(stream):
            found = simulator(given, seed=stream) if takes_seed else simulator(given)
        return as_tensor(found, "x of the simulator").detach().to("cpu", torch.float32)

    failures, ways_to_call, mixed = [], list(itertools.product(ways, arrays)), set()
    for many, kind in ways_to_call:
        given: Any = theta.float() if kind == "torch" else theta.double().numpy()
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                first = call(given if many else given[0], 0)
            # A simulator in NumPy may take a tensor, with a complaint at every product: arrays are tried before.
            complaint = any("__array_wrap__" in str(w.message) for w in caught)
            if complaint and "numpy" in arrays and (many, kind) not in mixed:
                mixed.add((many, kind))
                ways_to_call.append((many, kind))
                continue
            for w in caught:
                warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
            wanted = (n, *posterior.x_shape) if many else posterior.x_shape
            if first.shape != wanted and (*first.shape, 1) != wanted:
                raise ValueError(f"x has shape {tuple(first.shape)} instead of {wanted}")
        except Exception as error:  # whatever a user's simulator may raise
            failures.append((f"with {'a batch of' if many else 'one'} theta as {kind}: {error}", error))
            continue
        rows = [] if many else [call(given[i], i).reshape(posterior.x_shape) for i in range(1, n)]
        return first.reshape(wanted) if many else torch.stack([first.reshape(wanted), *rows])
    raise ValueError(
        f"the simulator gives no x of shape {posterior.x_shape}, on which the posterior was trained:\n"
        + "\n".join(text for text, _ in failures)
    ) from failures[-1][1]
