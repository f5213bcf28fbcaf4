"""The posterior that training returns: densities and draws of a stack of members, and of their mixture.

A `Posterior` holds a network, the weights of M members, and the prior. With one member it is that member's density;
with several it is their mixture, q = Σ w_m q_m of their *normalised* densities, with equal weights or with those stored
beside the networks' (`log_weights`). Members may be of several architectures (`networks.Mixture`). Their mixture is
wider than each of them where they disagree, which is where a single one is overconfident.

Each member is normalised over the prior's support first: a flow that may leak is cut to it (`flows`), and a
classifier's ratio is divided by Z(x) (`classifiers`). A draw of the mixture is a draw of a member chosen at random, by
its weight.

A *tempered* posterior has a temperature t < 1: its density is p (q/p)^t / Z_t(x), q being the mixture (`tempering`).
"""

from __future__ import annotations

__all__ = ["Posterior"]

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.networks import LOG_WEIGHTS, Mixture, Network, StackedWeights
from equipoise.support.arrays import as_tensor
from equipoise.support.checks import true_or_false
from equipoise.support.devices import as_device
from equipoise.support.errors import warn
from equipoise.support.progress import Progress
from equipoise.support.randomness import generator as make_generator
from equipoise.support.words import shown

from . import classifiers, flows
from .cells import EVALUATIONS, fits_cells
from .evaluation import at_once, log_ratio_of, member_ratios, some_weights
from .member_stack import MemberStack
from .proposals import POINTS
from .shapes import counts, observations, paired
from .temperature import Calibration, check_temperature
from .tempering import FIRST_POINTS, WORST_ERROR, Observed, Untempered, tempered_draws, tempered_normalizer
from .training_range import warn_if_far

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas
    import xarray as xr

    from .answers import BoundPosterior, Region

#: Entries of a record that are lists with one value per member.
PER_MEMBER = ("seeds", "fold", "group")


class Posterior(MemberStack):
    """q(θ|x) of one or several members.

    Arguments:
        network: the architecture.
        stack: the weights, each with shape `(M, *shape)`.
        history: what happened in training, per epoch and member, as an `xarray.Dataset`; the coordinate `network` says
            which architecture a member has, and `embedding` how x is read.
        record: how it was trained, as plain data for JSON.
        temperature: t in (0, 1]: the density is p (q/p)^t / Z_t(x), with q the mixture of the members; 1 for q itself.
        calibration: how the temperature was chosen, and what is known about it; None where nothing is.
    """

    def __init__(
        self,
        network: Network,
        stack: StackedWeights,
        history: xr.Dataset | None = None,
        record: dict[str, Any] | None = None,
        *,
        temperature: float = 1.0,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(network, stack)
        self.history = None if history is None else history.assign_coords(self._architecture())
        self.record = record or {}
        self.temperature, self.calibration = check_temperature(temperature), calibration
        #: How the last draws from a classifier, or of a tempered posterior, were made, with their effective sample size
        #: or acceptance.
        self.sampler: dict[str, Any] = {}
        #: The verdict of the last `diagnose` of the mixture, and its number of pairs; None before. It is not saved.
        self.verdict: tuple[str, int] | None = None

    # --- what it is ------------------------------------------------------------------------------------------------

    def _architecture(self) -> dict[str, Any]:
        """What the history says beside the numbers: the architecture of each member, and how it reads x."""
        words, reads = zip(*self.network.described(self.n_members), strict=True)
        return {"network": ("member", list(words)), "embedding": ("member", list(reads))}

    @property
    def members(self) -> list[Posterior]:
        """One posterior per member: the networks as they were trained, whatever the temperature of their mixture."""
        return [self._alone(m) for m in range(self.n_members)]

    @classmethod
    def joined(cls, posteriors: Sequence[Posterior]) -> Posterior:
        """All members of posteriors as one: weights stacked, histories side by side.

        Those of one architecture come together, in the order in which the architectures first appear; the rows of
        history and record follow.
        """
        import xarray as xr

        first = posteriors[0]
        if len(posteriors) == 1:
            return first
        if any((repr(p.prior), p.temperature) != (repr(first.prior), first.temperature) for p in posteriors):
            raise ValueError("only posteriors with the same prior and temperature can be joined")
        kinds: dict[str, list[Posterior]] = {}
        for one in posteriors:
            trained = {k: v for k, v in one.network.spec().items() if k != "init"}  # how the weights began
            kinds.setdefault(json.dumps(trained, sort_keys=True), []).append(one)
        posteriors = [one for alike in kinds.values() for one in alike]
        parts = [
            (alike[0].network, {name: torch.cat([p.stack[name] for p in alike]) for name in alike[0].stack})
            for alike in kinds.values()
        ]
        network, stack = parts[0] if len(parts) == 1 else Mixture.joined(parts)
        histories = [p.history for p in posteriors if p.history is not None]
        history = None
        if len(histories) == len(posteriors):
            history = xr.concat(histories, "member", join="outer", data_vars="all", combine_attrs="override")
            names = [str(m) for m in range(history.sizes["member"])]
            history = history.assign_coords(member=names).transpose("epoch", "member", ...)
        lists = [name for name in PER_MEMBER if name in first.record]
        record = first.record | {name: [v for p in posteriors for v in p.record.get(name, [])] for name in lists}
        return cls(network, stack, history, record, temperature=first.temperature)

    def select(self, members: list[int]) -> Posterior:
        """The posterior of some of the members, with the same temperature; nothing is known of its calibration."""
        try:
            here = [range(self.n_members)[m] for m in members]
        except (TypeError, IndexError):
            here = []
        if not here:
            raise ValueError(f"members are numbers below {self.n_members}, at least one of them, got {shown(members)}")
        network, stack = self.network.select(self.stack, members)
        if LOG_WEIGHTS in stack:
            share = stack.pop(LOG_WEIGHTS)
            stack = {LOG_WEIGHTS: share.log_softmax(0), **stack} if len(share) > 1 else stack
        history = None if self.history is None else self.history.isel(member=members)
        lists = {n: v for n, v in self.record.items() if n in PER_MEMBER and len(v) == self.n_members}
        record = self.record | {name: [values[m] for m in members] for name, values in lists.items()}
        return Posterior(network, stack, history, record, temperature=self.temperature)

    def weighted(self, weights: Sequence[float]) -> Posterior:
        """The mixture of the same members with other weights; those of weight 0 are left out.

        Arguments:
            weights: not negative, one per member; their sum does not matter.
        """
        share = as_tensor(weights, "weights").double()
        if share.shape != (self.n_members,) or not bool((share >= 0).all() and share.sum() > 0):
            given = shown(weights)
            raise ValueError(f"weights are {self.n_members} numbers that are not negative and not all 0, got {given}")
        kept = share.nonzero().squeeze(1).tolist()
        some = self.select(kept) if len(kept) < self.n_members else self
        plain = {name: w for name, w in some.stack.items() if name != LOG_WEIGHTS}
        log_weights = (share[kept] / share.sum()).log().to(self.device, self.dtype)
        known = {LOG_WEIGHTS: log_weights} if len(kept) > 1 else {}
        return Posterior(some.network, known | plain, some.history, some.record, temperature=self.temperature)

    def tempered(self, t: float) -> Posterior:
        """The posterior moved towards the prior: q_t(θ|x) = p(θ) [q(θ|x)/p(θ)]^t / Z_t(x).

        Arguments:
            t: in (0, 1]. At 1 it is this posterior, near 0 the prior. Temperatures multiply:
                `posterior.tempered(a).tempered(b)` is `posterior.tempered(a * b)`.

        Returns:
            A posterior like any other. It is the mixture that is tempered; its `members` are the networks as they were
            trained. `log_prob` is normalised to about 0.01, with a warning where that fails, and `sample` is exact.
        """
        if check_temperature(t) == 1:
            return self
        return self._with(self.temperature * t, None)

    def to(self, device: str | torch.device | None) -> Posterior:
        """The same posterior on another device; None takes a GPU where there is one."""
        target = as_device(device)
        stack = {name: w.to(target) for name, w in self.stack.items()}
        return Posterior(
            self.network.to(target),
            stack,
            self.history,
            self.record,
            temperature=self.temperature,
            calibration=self.calibration,
        )

    def __repr__(self) -> str:
        from .description import one_line

        return one_line(self)

    def _repr_html_(self) -> str:
        from .description import html

        return html(self)

    def _with(self, temperature: float, calibration: Calibration | None) -> Posterior:
        """The same members with another temperature, of which this is known."""
        return Posterior(
            self.network, self.stack, self.history, self.record, temperature=temperature, calibration=calibration
        )

    def _alone(self, member: int) -> Posterior:
        """The posterior of one network, as it was trained."""
        return self.select([member])._with(1.0, None)

    # --- the contract ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_prob(self, theta: Any, x: Any) -> Tensor:
        """log q(θ|x), normalised over the prior's support, -inf outside.

        Arguments:
            theta: with shape `(*T, D)`.
            x: with shape `(*X, *x_shape)`; leading dimensions broadcast against θ's: one x for all θ, or one x per θ.

        Returns:
            With shape `(*,)`, the broadcast of `*T` and `*X`.
        """
        theta, x, unpaired = paired(self.network, self.stack, theta, x)
        warn_if_far(self.record.get("memory"), x)
        inside, ratio = self._mixture_ratio(theta, x)
        log_prior = self.prior.log_prob(theta).to(ratio)
        return unpaired(torch.where(inside, ratio + log_prior, -math.inf))

    @torch.no_grad()
    def log_ratio(self, theta: Any, x: Any) -> Tensor:
        """log q(θ|x) - log p(θ), with shapes as in `log_prob`; -inf outside the prior's support.

        A single classifier gives its raw output; a mixture, a flow and a tempered posterior the ratio of the
        normalised density.
        """
        theta, x, unpaired = paired(self.network, self.stack, theta, x)
        if self.kind == "classifier" and self.n_members == 1 and self.temperature == 1:
            inside = self.prior.contains(theta)
            ratio = member_ratios(self.network, self.stack, theta, inside, x)[0]
        else:
            inside, ratio = self._mixture_ratio(theta, x)
        return unpaired(torch.where(inside, ratio, -math.inf))

    def sample(self, sample_shape: Any = (1,), x: Any = None, seed: int | None = None) -> Tensor:
        """Draws for one observation, with shape `(*sample_shape, D)`, inside the prior's support.

        Arguments:
            sample_shape: how many, as a tuple.
            x: the observation, with shape `x_shape` (or `(1, *x_shape)`).
            seed: None for fresh draws each time.
        """
        if x is None:
            raise ValueError("sample needs the observation: posterior.sample((1000,), x=x_o)")
        x = observations(self.network, self.stack, x)
        if x.shape[0] != 1:
            raise ValueError(
                f"sample takes one observation of shape {self.x_shape}, got {x.shape[0]} of them; use "
                "sample_batched((n,), x)"
            )
        return self.sample_batched(sample_shape, x, seed)[..., 0, :]

    @torch.no_grad()
    def sample_batched(self, sample_shape: Any, x: Any, seed: int | None = None) -> Tensor:
        """Draws for many observations at once, with shape `(*sample_shape, B, D)` for x with shape `(B, *x_shape)`."""
        x = observations(self.network, self.stack, x)
        shape = counts(sample_shape)
        warn_if_far(self.record.get("memory"), x)
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        generator = make_generator(seed, "posterior", device=self.device)
        return self._draw(shape.numel(), x, generator, seed).reshape(*shape, len(x), self.prior.dim)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the posterior to a directory: weights and history as safetensors, everything else as JSON.

        Arguments:
            path: the directory, which is made if it does not exist.
            overwrite: True to replace another model that is there, which is an error otherwise.
        """
        from .files import save

        save(self, path, true_or_false("overwrite", overwrite))

    def to_arviz(self, x: Any, n: int = 1000, *, names: Sequence[str] | None = None, seed: int | None = None) -> Any:
        """n draws of each member for one observation, as ArviZ takes them; a member is a chain.

        Arguments:
            x: the observation, with shape `x_shape`.
            n: draws of each member.
            names: of the parameters, those of the posterior unless given; without any, all are one variable `theta`.
            seed: None for fresh draws each time.
        """
        from .export import to_arviz

        return to_arviz(self, x, n, names=names, seed=seed)

    # --- answers for one observation (`answers`) -------------------------------------------------------------------

    def at(self, x: Any) -> BoundPosterior:
        """The posterior for one observation, with `sample((n,))` and `log_prob(theta)`, as sbi's functions call it."""
        from .answers import BoundPosterior, one_observation

        return BoundPosterior(self, one_observation(self, x))

    def summary(self, x: Any, n: int = 10_000, seed: int = 0) -> pandas.DataFrame:
        """A table with one row per parameter, from n draws for one observation.

        Returns:
            Mean, median, standard deviation, ends of the central 68% and 95% intervals, the parameter's value at the
            mode of the joint density (`map`), and the contraction, 1 - variance / variance under the prior.
        """
        from .answers import summary

        return summary(self, x, n, seed)

    def map(self, x: Any, seed: int = 0) -> Tensor:
        """The mode of q(θ|x), with shape `(D,)`, inside the prior's support; of several peaks the highest that is seen.

        It is the best of 2,000 draws, improved by a search if the prior has a map to N(0, I).
        """
        from .answers import mode

        return mode(self, x, seed=seed)

    def region(self, x: Any, level: float = 0.95, n: int = 10_000, seed: int = 0) -> Region:
        """The highest-density region of a level, its `threshold` from n draws; `contains(theta)` tells who is in it."""
        from .answers import region

        return region(self, x, level, n, seed)

    def predict(
        self,
        simulator: Callable[..., Any],
        x: Any,
        n: int = 1000,
        seed: int | None = None,
        *,
        batched: bool | None = None,
        array: str | None = None,
    ) -> Tensor:
        """Posterior predictive draws: the simulator at n draws for one observation, with shape `(n, *x_shape)`.

        Arguments:
            simulator: `simulator(theta)` or `simulator(theta, seed=...)`.
            x: the observation, with shape `x_shape`.
            n: how many.
            seed: None for fresh draws each time.
            batched: True to call it once with all θ, `(n, D)`; False for one θ, `(D,)`, at a time. None tries one.
            array: `"torch"` or `"numpy"` for what the simulator is given; None tries tensors first.
        """
        from .answers import predict

        return predict(self, simulator, x, n, seed, batched, array)

    def to_pandas(self, x: Any, n: int = 1000, *, seed: int | None = None) -> pandas.DataFrame:
        """n draws for one observation as a table with one column per parameter; None for fresh draws each time."""
        from .answers import draws_table

        return draws_table(self, x, n, seed)

    # --- the mixture -----------------------------------------------------------------------------------------------

    def _mixture_ratio(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whether θ is inside the support, and the normalised log-ratio of the mixture, each with shape `(S, B)`."""
        inside = self.prior.contains(theta)
        log_normalizer = self._member_normalizers(x)
        ratio = self._mean(member_ratios(self.network, self.stack, theta, inside, x) - log_normalizer.unsqueeze(1))
        if self.temperature < 1:
            ratio = self.temperature * ratio - self._log_z(x, log_normalizer)
        return inside, ratio

    def _draw(self, n: int, x: Tensor, generator: torch.Generator, seed: int) -> Tensor:
        """n draws of the mixture for each x, with shape `(n, B, D)`: each draw from a member chosen at random."""
        if self.temperature < 1 and n > 0:
            return self._draw_tempered(n, x, generator, seed)
        member = self._chosen(n, generator)
        draws = torch.empty(n, len(x), self.prior.dim, dtype=self.dtype, device=self.device)
        reports = []
        chosen = [(m, mine) for m in range(self.n_members) if len(mine := (member == m).nonzero().squeeze(1))]
        with Progress("sampling", len(chosen) * len(x)) as bar:
            for m, mine in chosen:
                one = self._alone(m) if self.n_members > 1 else self
                size = at_once(x, one.stack, len(mine))
                for lo in range(0, len(x), size):
                    piece = x[lo : lo + size]
                    if self.kind == "flow":
                        part = flows.draw(one._flow(), one.stack, len(mine), piece, generator)
                    else:
                        part, report = classifiers.draw(one.network, one.stack, len(mine), piece, generator, seed + m)
                        reports.append((m, report))
                    draws[mine.unsqueeze(1), torch.arange(lo, lo + len(piece), device=self.device)] = part
                    bar.advance(len(piece), "observations, for each member")
        if reports:
            self.sampler = {k: min(r[k] for _, r in reports) for k in reports[0][1]}
            if "ess" in self.sampler:  # members are sampled apart: their effective numbers of draws add up
                worst: dict[int, float] = {}
                for m, report in reports:
                    worst[m] = min(worst.get(m, math.inf), report["ess"])
                self.sampler["ess"] = sum(worst.values())
        return draws

    # --- the tempered mixture --------------------------------------------------------------------------------------

    def _member_normalizers(self, x: Tensor) -> Tensor:
        """What normalises the members, `(M, B)`; 0 for a single classifier whose tempered density needs none of it."""
        if self.temperature < 1 and self.kind == "classifier" and self.n_members == 1:
            return torch.zeros(1, len(x), dtype=self.dtype, device=self.device)
        return self.log_normalizers(x)

    @torch.no_grad()
    def observed(self, x: Tensor, log_normalizer: Tensor | None = None) -> Observed:
        """Features of observations `(B, *x_shape)`, and what normalises each member there: for `untempered`."""
        known = self._member_normalizers(x) if log_normalizer is None else log_normalizer
        return Observed(self.features(x).movedim(0, 1), known.T)

    def untempered(self) -> Untempered:
        """The mixture as the networks give it, a function of what `observed` makes of x: for `tempering`."""
        stack, each = self.stack, log_ratio_of(self.network, self.stack)

        def log_ratio(theta: Tensor, known: Observed) -> Tensor:
            return self._mean(each(theta, known.x) - known.log_normalizer.T.unsqueeze(1)).unsqueeze(0)

        if self.kind == "classifier":
            return Untempered(self.prior, some_weights(stack), log_ratio)
        flow, alone = self._flow(), self.members

        def features_of(m: int, known: Observed) -> Tensor:
            return known.x[:, m, : alone[m].network.embedding.features]

        def drawn(n: int, known: Observed, generator: torch.Generator, rated: bool) -> tuple[Tensor, Tensor]:
            """Draws `(n, B, D)` and, if they are `rated`, the log-ratios of all members there, `(M, n, B)`."""
            member = self._chosen(n, generator)
            theta = torch.empty(n, len(known), self.prior.dim, dtype=self.dtype, device=self.device)
            ratio = theta.new_empty(len(alone), n, len(known))
            for m, one in enumerate(alone):
                mine = (member == m).nonzero().squeeze(1)
                if len(mine) == 0:
                    continue
                features = features_of(m, known).unsqueeze(0)
                theta[mine], ratio[m, mine] = flows.draw_from(one._flow(), one.stack, len(mine), features, generator)
            for m, other in enumerate(alone if rated else ()):
                rest = (member != m).nonzero().squeeze(1)
                if len(rest):
                    at = log_ratio_of(other.network, other.stack)
                    ratio[m, rest] = at(theta[rest].unsqueeze(0), features_of(m, known).unsqueeze(1))[0]
            return theta, ratio

        def draw(n: int, known: Observed, generator: torch.Generator) -> Tensor:
            return drawn(n, known, generator, False)[0]

        def draw_rated(n: int, known: Observed, generator: torch.Generator) -> tuple[Tensor, Tensor]:
            theta, ratio = drawn(n, known, generator, True)
            return theta, self._mean(ratio - known.log_normalizer.T.unsqueeze(1))

        def points(n: int, known: Observed) -> tuple[Tensor, Tensor]:
            return flows.fixed_points(flow, stack, n, known.x.movedim(1, 0), self.log_weights)

        return Untempered(self.prior, some_weights(stack), log_ratio, draw, points, draw_rated)

    def _pieces(self, x: Tensor, evaluations: int) -> range:
        """Where pieces of the observations begin that are tempered together."""
        if self.kind == "classifier":
            evaluations = max(evaluations, EVALUATIONS[self.prior.dim] if fits_cells(self.prior) else POINTS)
        return range(0, len(x), at_once(x, self.stack, max(evaluations, 1)))

    def _log_z(self, x: Tensor, log_normalizer: Tensor) -> Tensor:
        """log Z_t(x), with shape `(B,)`."""
        q, starts = self.untempered(), self._pieces(x, 2 * FIRST_POINTS)
        found, doubtful = [x.new_zeros(0, dtype=self.dtype)], 0
        with Progress("normalising", len(x)) as bar:
            for low in starts:
                rows = slice(low, low + starts.step)
                known = self.observed(x[rows], log_normalizer[:, rows])
                log_z, rough = tempered_normalizer(q, known, self.temperature)
                found.append(log_z)
                doubtful += int(rough.sum())
                bar.advance(len(known), "observations")
        if doubtful:
            warn(
                f"the normaliser of the tempered density has an error above {WORST_ERROR} for {doubtful} of {len(x)} "
                "observation(s): log_prob may be off by it, by the same number for every θ. Draws are not affected"
            )
        return torch.cat(found)

    def _draw_tempered(self, n: int, x: Tensor, generator: torch.Generator, seed: int) -> Tensor:
        """n draws of q_t for each x, with shape `(n, B, D)`."""
        q, starts = self.untempered(), self._pieces(x, n)
        parts, reports = [torch.empty(n, 0, self.prior.dim, dtype=self.dtype, device=self.device)], []
        with Progress("sampling", len(x)) as bar:
            for low in starts:
                known = self.observed(x[low : low + starts.step])
                theta, report = tempered_draws(q, known, self.temperature, n, generator, seed)
                parts.append(theta)
                reports.append(report)
                bar.advance(len(known), "observations")
        if reports:
            # Of several ways the one that tells least.
            ways = sorted({r["sampler"] for r in reports}, key=lambda way: way == "rejection")
            alike = [r for r in reports if r["sampler"] == ways[0]]
            self.sampler = {k: min(r[k] for r in alike) for k in alike[0]}
        return torch.cat(parts, 1)
