"""The posterior that training returns: densities and draws of a stack of members, and of their mixture.

A `Posterior` holds a network, the weights of M members, and the prior. With one member it is that member's density;
with several it is their equal-weight mixture, log q = logmeanexp over members of their *normalised* log densities.
Members trained together are nearly free, and their mixture is wider than each of them where they disagree, which is
where a single one is overconfident.

Each member is normalised over the prior's support first: a flow that may leak is cut to it (`flows`), and a
classifier's ratio is divided by Z(x) (`classifiers`). A draw of the mixture is a draw of a member chosen at random.
"""

from __future__ import annotations

__all__ = ["Posterior"]

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equipoise.networks import Network, SplineFlow, Stack
from equipoise.priors import Prior
from equipoise.support.devices import as_device
from equipoise.support.randomness import generator as make_generator

from . import classifiers, flows
from .evaluation import at_once, member_ratios, some_weights
from .shapes import counts, observations, paired
from .training_range import warn_if_far

if TYPE_CHECKING:
    import xarray as xr

#: Entries of a record that are lists with one value per member.
PER_MEMBER = ("seeds", "fold")


class Posterior:
    """q(θ|x) of one or several members.

    Arguments:
        network: the architecture.
        stack: the weights, each with shape `(M, *shape)`.
        history: what happened in training, per epoch and member, as an `xarray.Dataset`.
        record: how it was trained, as plain data for JSON.
    """

    def __init__(
        self,
        network: Network,
        stack: Stack,
        history: xr.Dataset | None = None,
        record: dict[str, Any] | None = None,
    ) -> None:
        self.network, self.stack = network, stack
        self.history, self.record = history, record or {}
        #: How the last draws from a classifier were made, with their effective sample size or acceptance.
        self.sampler: dict[str, Any] = {}

    # --- what it is ------------------------------------------------------------------------------------------------

    @property
    def prior(self) -> Prior:
        """The prior p(θ)."""
        return self.network.prior

    @property
    def kind(self) -> str:
        """ "flow" or "classifier"."""
        return self.network.kind

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self.network.x_shape

    @property
    def n_members(self) -> int:
        """M, the number of members."""
        return len(some_weights(self.stack))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return some_weights(self.stack).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return some_weights(self.stack).dtype

    @property
    def can_leak(self) -> bool:
        """Whether a member may have mass outside the prior's support: a flow not started at a bounded prior."""
        if not (isinstance(self.network, SplineFlow) and self.network.can_leak):
            return False
        far = torch.full((2, self.prior.dim), 1e30, device=self.device)
        far[1] *= -1
        return not bool(self.prior.contains(far).all())

    @property
    def members(self) -> list[Posterior]:
        """One posterior per member."""
        return [self.select([m]) for m in range(self.n_members)]

    @classmethod
    def joined(cls, posteriors: Sequence[Posterior]) -> Posterior:
        """All members of posteriors with the same network as one: weights stacked, histories side by side."""
        import xarray as xr

        first = posteriors[0]
        same = [(p.network.spec(), repr(p.prior)) for p in posteriors]
        if any(other != same[0] for other in same[1:]):
            raise ValueError("only posteriors with the same network and prior can be joined")
        if len(posteriors) == 1:
            return first
        stack = {name: torch.cat([p.stack[name] for p in posteriors]) for name in first.stack}
        histories = [p.history for p in posteriors if p.history is not None]
        history = None
        if len(histories) == len(posteriors):
            history = xr.concat(histories, "member", join="outer", data_vars="all", combine_attrs="override")
            names = [str(m) for m in range(history.sizes["member"])]
            history = history.assign_coords(member=names).transpose("epoch", "member", ...)
        lists = [name for name in PER_MEMBER if name in first.record]
        record = first.record | {name: [v for p in posteriors for v in p.record.get(name, [])] for name in lists}
        return cls(first.network, stack, history, record)

    def select(self, members: list[int]) -> Posterior:
        """The posterior of some of the members."""
        rows = torch.tensor(members, device=self.device)
        stack = {name: w[rows] for name, w in self.stack.items()}
        history = None if self.history is None else self.history.isel(member=members)
        lists = {n: v for n, v in self.record.items() if n in PER_MEMBER and len(v) == self.n_members}
        record = self.record | {name: [values[m] for m in members] for name, values in lists.items()}
        return Posterior(self.network, stack, history, record)

    def to(self, device: str | torch.device | None) -> Posterior:
        """The same posterior on another device; None takes a GPU where there is one."""
        target = as_device(device)
        stack = {name: w.to(target) for name, w in self.stack.items()}
        return Posterior(self.network.to(target), stack, self.history, self.record)

    def __repr__(self) -> str:
        name = self.record.get("method", {}).get("name", self.kind)
        return (
            f"Posterior({name}, {self.n_members} member(s), D={self.prior.dim}, x_shape={self.x_shape}, {self.device})"
        )

    # --- per member, for diagnostics -------------------------------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """What the members' embeddings make of x with shape `(B, *x_shape)`: `(M, B, C)`, for the methods below."""
        return self.network.embed(self.stack, x.unsqueeze(0))

    @torch.no_grad()
    def log_ratios(self, theta: Tensor, x: Tensor, *, features: Tensor | None = None, each: bool = False) -> Tensor:
        """The raw log-ratio of every member.

        Arguments:
            theta: with shape `(*S, B, D)`.
            x: with shape `(B, *x_shape)`.
            features: of x, where they are known already.
            each: θ has the shape `(M, *S, B, D)`, every member its own.

        Returns:
            With shape `(M, *S, B)`. Inside the prior's support only; nothing is checked and nothing is cut in pieces.
        """
        code = self.network.encode(theta if each else theta.unsqueeze(0))
        return self.network.ratio(self.stack, code, self.features(x) if features is None else features)

    @torch.no_grad()
    def log_normalizers(self, x: Tensor) -> Tensor:
        """What to subtract from `log_ratios` to normalise each member over the prior: `(M, B)` for `(B, *x_shape)`."""
        if self.kind == "classifier":
            return classifiers.log_z(self.network, self.stack, x)
        if self.can_leak:
            return flows.log_inside(self._flow(), self.stack, x)
        return torch.zeros(self.n_members, len(x), dtype=self.dtype, device=self.device)

    @torch.no_grad()
    def sample_members(
        self, n: int, x: Tensor, generator: torch.Generator, *, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Raw draws of every member of a flow, leaked ones included, and their raw log densities, in one pass.

        Returns:
            θ with shape `(M, n, B, D)` and log q(θ|x) with shape `(M, n, B)`.
        """
        flow = self._flow()
        features = self.features(x) if features is None else features
        theta, ratio = flows.raw_draws(flow, self.stack, features, n, generator)
        # Outside the support a leaky flow takes its log-ratio with log p = 0.
        log_prior = self.prior.log_prob(theta).to(ratio)
        return theta, ratio + torch.where(log_prior.isfinite(), log_prior, 0.0)

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

        A single classifier gives its raw output; a mixture, and a flow, the ratio of the normalised density.
        """
        theta, x, unpaired = paired(self.network, self.stack, theta, x)
        if self.kind == "classifier" and self.n_members == 1:
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

    def save(self, path: str | Path) -> None:
        """Write the posterior to a directory: weights and history as safetensors, everything else as JSON."""
        from .files import save

        save(self, path)

    def to_arviz(self, x: Any, n: int = 1000, *, names: Sequence[str] | None = None, seed: int | None = None) -> Any:
        """n draws of each member for one observation, as ArviZ takes them; a member is a chain.

        Arguments:
            x: the observation, with shape `x_shape`.
            n: draws of each member.
            names: of the parameters; without, all are one variable `theta`.
            seed: None for fresh draws each time.
        """
        from .export import to_arviz

        return to_arviz(self, x, n, names=names, seed=seed)

    # --- the mixture -----------------------------------------------------------------------------------------------

    def _mixture_ratio(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whether θ is inside the support, and the normalised log-ratio of the mixture, each with shape `(S, B)`."""
        inside = self.prior.contains(theta)
        ratios = member_ratios(self.network, self.stack, theta, inside, x) - self.log_normalizers(x).unsqueeze(1)
        return inside, torch.logsumexp(ratios, 0) - math.log(self.n_members)

    def _draw(self, n: int, x: Tensor, generator: torch.Generator, seed: int) -> Tensor:
        """n draws of the mixture for each x, with shape `(n, B, D)`: each draw from a member chosen at random."""
        member = torch.randint(self.n_members, (n,), generator=generator, device=self.device)
        draws = torch.empty(n, len(x), self.prior.dim, dtype=self.dtype, device=self.device)
        reports = []
        for m in range(self.n_members):
            mine = (member == m).nonzero().squeeze(1)
            if len(mine) == 0:
                continue
            one = self.select([m]) if self.n_members > 1 else self
            size = at_once(x, one.stack, len(mine))
            for lo in range(0, len(x), size):
                piece = x[lo : lo + size]
                if self.kind == "flow":
                    part = flows.draw(self._flow(), one.stack, len(mine), piece, generator)
                else:
                    part, report = classifiers.draw(self.network, one.stack, len(mine), piece, generator, seed + m)
                    reports.append((m, report))
                draws[mine.unsqueeze(1), torch.arange(lo, lo + len(piece), device=self.device)] = part
        if reports:
            self.sampler = {k: min(r[k] for _, r in reports) for k in reports[0][1]}
            if "ess" in self.sampler:  # members are sampled apart: their effective numbers of draws add up
                worst: dict[int, float] = {}
                for m, report in reports:
                    worst[m] = min(worst.get(m, math.inf), report["ess"])
                self.sampler["ess"] = sum(worst.values())
        return draws

    def _flow(self) -> SplineFlow:
        if not isinstance(self.network, SplineFlow):
            raise TypeError("only a flow can be sampled directly; this posterior is a classifier's")
        return self.network
