"""The posterior that training returns: densities and draws of a stack of members, and of their mixture.

A `Posterior` holds a network, the weights of M members, and the prior. With one member it is that member's density;
with several it is their equal-weight mixture, log q = logmeanexp over members of their *normalised* log densities.
Members trained together are nearly free, and their mixture is wider than each of them where they disagree, which is
where a single one is overconfident.

What is normalised, and how:
- a flow started at the prior has no mass outside the prior's support, and nothing is done;
- any other flow is cut to the support: the mass inside is the share of fixed quasi-random draws of the flow that
  fall inside;
- a classifier's ratio is divided by Z(x), from cells for D ≤ 2 (`cells`) and quasi-random prior draws beyond
  (`tempered`).
"""

from __future__ import annotations

__all__ = ["Posterior"]

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Size, Tensor

from equipoise.networks import Network, SplineFlow, Stack
from equipoise.priors import Prior
from equipoise.randomness import generator as make_generator

from .cells import EVALUATIONS, Cells, Ratio, make_cells, sample_cells
from .tempered import POINTS, prior_points, tempered_sample

if TYPE_CHECKING:
    import xarray as xr

#: Quasi-random draws behind the mass of a flow inside the prior's support.
INSIDE_POINTS = 1 << 10
#: Rejection gives up on an observation once it has seen this many draws of which less than this share lies in the
#: support.
ENOUGH_TRIES, LEAST_ACCEPTANCE = 10_000, 1e-3
#: A normaliser from prior draws is trusted down to this effective sample size.
TRUSTED_ESS = 200.0
#: Pairs that are evaluated at once, members counted, on a CPU and on a GPU.
CHUNK = {"cpu": 1 << 16, "cuda": 1 << 20}
#: Evaluations in one call of a network: on a CPU, as many as leave their activations in its cache.
AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 20}


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
        return next(iter(self.stack.values())).shape[0]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(iter(self.stack.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the weights."""
        return next(iter(self.stack.values())).dtype

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
        """One posterior a member."""
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
        record = first.record | {"seeds": [s for p in posteriors for s in p.record.get("seeds", [])]}
        return cls(first.network, stack, history, record)

    def select(self, members: list[int]) -> Posterior:
        """The posterior of some of the members."""
        rows = torch.tensor(members, device=self.device)
        stack = {name: w[rows] for name, w in self.stack.items()}
        history = None if self.history is None else self.history.isel(member=members)
        return Posterior(self.network, stack, history, self.record)

    def to(self, device: str | torch.device) -> Posterior:
        """The same posterior on another device."""
        return Posterior(
            self.network.to(device), {n: w.to(device) for n, w in self.stack.items()}, self.history, self.record
        )

    def __repr__(self) -> str:
        name = self.record.get("method", {}).get("name", self.kind)
        return (
            f"Posterior({name}, {self.n_members} member(s), D={self.prior.dim}, x_shape={self.x_shape}, {self.device})"
        )

    # --- per member, for diagnostics -------------------------------------------------------------------------------

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """What the members' embeddings make of x with shape `(B, *x_shape)`: `(M, B, C)`, for the two methods below."""
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
            small = self.prior.dim <= 2 and self.prior.has_normal_map
            evaluations = EVALUATIONS[self.prior.dim] if small else POINTS
            return self._by_observation(x, evaluations, self._log_z)
        if self.can_leak:
            return self._by_observation(x, INSIDE_POINTS, self._log_inside)
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
        shape = (self.n_members, n, len(x), self.prior.dim)
        uniform = torch.rand(shape, generator=generator, device=self.device, dtype=self.dtype)
        return self._densities(*flow.sample(self.stack, features, flow.base_noise(uniform)))

    # --- the contract ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_prob(self, theta: Any, x: Any) -> Tensor:
        """log q(θ|x), normalised over the prior's support, -inf outside.

        Arguments:
            theta: with shape `(*T, D)`.
            x: with shape `(*X, *x_shape)`; leading dimensions broadcast against θ's: one x for all θ, or one x a θ.

        Returns:
            With shape `(*,)`, the broadcast of `*T` and `*X`.
        """
        theta, x, shape = self._prepare(theta, x)
        inside, ratio = self._mixture_ratio(theta, x)
        log_prior = self.prior.log_prob(theta).to(ratio)
        return torch.where(inside, ratio + log_prior, -math.inf).reshape(shape)

    @torch.no_grad()
    def log_ratio(self, theta: Any, x: Any) -> Tensor:
        """log q(θ|x) - log p(θ), with shapes as in `log_prob`; -inf outside the prior's support.

        A single classifier gives its raw output; a mixture, and a flow, the ratio of the normalised density.
        """
        theta, x, shape = self._prepare(theta, x)
        if self.kind == "classifier" and self.n_members == 1:
            inside = self.prior.contains(theta)
            ratio = self._member_ratios(theta, inside, x)[0]
        else:
            inside, ratio = self._mixture_ratio(theta, x)
        return torch.where(inside, ratio, -math.inf).reshape(shape)

    def sample(self, sample_shape: Any = (1,), x: Any = None, seed: int | None = None) -> Tensor:
        """Draws for one observation, with shape `(*sample_shape, D)`, inside the prior's support.

        Arguments:
            sample_shape: how many, as a tuple.
            x: the observation, with shape `x_shape` (or `(1, *x_shape)`).
            seed: None for fresh draws each time.
        """
        if x is None:
            raise ValueError("sample needs the observation: posterior.sample((1000,), x=x_o)")
        x = self._observations(x)
        if x.shape[0] != 1:
            raise ValueError(
                f"sample takes one observation of shape {self.x_shape}, got {x.shape[0]} of them; use "
                "sample_batched((n,), x)"
            )
        return self.sample_batched(sample_shape, x, seed)[..., 0, :]

    @torch.no_grad()
    def sample_batched(self, sample_shape: Any, x: Any, seed: int | None = None) -> Tensor:
        """Draws for many observations at once, with shape `(*sample_shape, B, D)` for x with shape `(B, *x_shape)`."""
        x = self._observations(x)
        shape = Size(sample_shape) if not isinstance(sample_shape, int) else Size([sample_shape])
        n = shape.numel()
        if seed is None:
            seed = int(torch.randint(2**62, ()).item())
        generator = make_generator(seed, "posterior", device=self.device)
        draws = self._draw(n, x, generator, seed)
        return draws.reshape(*shape, len(x), self.prior.dim)

    def save(self, path: str | Path) -> None:
        """Write the posterior to a directory: weights and history as safetensors, everything else as JSON."""
        from .files import save

        save(self, path)

    # --- ratios ----------------------------------------------------------------------------------------------------

    def _mixture_ratio(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Whether θ is inside the support, and the normalised log-ratio of the mixture, each with shape `(S, B)`."""
        inside = self.prior.contains(theta)
        ratios = self._member_ratios(theta, inside, x) - self.log_normalizers(x).unsqueeze(1)
        return inside, torch.logsumexp(ratios, 0) - math.log(self.n_members)

    def _member_ratios(self, theta: Tensor, inside: Tensor, x: Tensor) -> Tensor:
        """`log_ratios` in pieces, with θ outside the support replaced by a point inside it; shape `(M, S, B)`."""
        if not bool(inside.all()):
            anchor = self._anchor()
            theta = torch.where(inside.unsqueeze(-1), theta, anchor)
        rows, batch = theta.shape[:2]
        if rows == 0:
            return theta.new_zeros(self.n_members, 0, batch)
        chunk = max(1, self._chunk() // (self.n_members * rows))
        parts = []
        for lo in range(0, batch, chunk):
            t, piece = theta[:, lo : lo + chunk], x[lo : lo + chunk]
            height = max(1, self._at_once() // (self.n_members * t.shape[1]))
            features = self.features(piece)
            parts.append(torch.cat([self.log_ratios(s, piece, features=features) for s in t.split(height)], 1))
        return torch.cat(parts, 2) if parts else theta.new_zeros(self.n_members, rows, 0)

    def _anchor(self) -> Tensor:
        """Some point of the support."""
        return prior_points(self.prior, 1, self._like())[0]

    def _log_z(self, x: Tensor) -> Tensor:
        """log Z(x) of each member of a classifier, with shape `(M, B)`."""
        if self.prior.dim <= 2 and self.prior.has_normal_map:
            cells = self.cells(x)
            thin = cells.thin
            log_z, columns = cells.log_normalizer, thin.any(0).nonzero().squeeze(1)
            if len(columns) > 0:
                found = self._tempered(1024, x[columns], seed=0).log_normalizer
                log_z = log_z.index_copy(1, columns, torch.where(thin[:, columns], found, log_z[:, columns]))
            return log_z
        points = prior_points(self.prior, POINTS, self._like())
        h = self.log_ratios(points.unsqueeze(1), x)
        log_z = torch.logsumexp(h, 1) - math.log(POINTS)
        ess = (2 * torch.logsumexp(h, 1) - torch.logsumexp(2 * h, 1)).exp()
        narrow = (ess < TRUSTED_ESS).any(0)
        if bool(narrow.any()):
            found = self._tempered(1024, x[narrow], seed=0)
            log_z[:, narrow] = torch.where(ess[:, narrow] < TRUSTED_ESS, found.log_normalizer, log_z[:, narrow])
        return log_z

    def _log_inside(self, x: Tensor) -> Tensor:
        """The logarithm of each flow's mass inside the prior's support, with shape `(M, B)`."""
        flow = self._flow()
        sobol = torch.quasirandom.SobolEngine(self.prior.dim, scramble=True, seed=20230421).draw(INSIDE_POINTS)
        noise = flow.base_noise(sobol.to(self._like()))[None, :, None, :]
        noise = noise.expand(self.n_members, -1, len(x), -1)
        theta, _ = flow.sample(self.stack, flow.embed(self.stack, x.unsqueeze(0)), noise)
        share = self.prior.contains(theta).to(self.dtype).mean(1)
        return share.clamp(min=0.5 / INSIDE_POINTS).log()

    def cells(self, x: Tensor) -> Cells:
        """The posterior of a classifier on cells, for x with shape `(B, *x_shape)` (D ≤ 2)."""
        return make_cells(self.ratio_of(x), self.prior, self._like())

    def ratio_of(self, x: Tensor, *, features: Tensor | None = None) -> Ratio:
        """Log-ratios of θ and these observations, with the features of x computed once."""
        features = self.features(x) if features is None else features

        def ratio(theta: Tensor, columns: Tensor | None = None) -> Tensor:
            of = features if columns is None else features[:, columns]
            codes = self.network.encode(theta).expand(-1, -1, of.shape[1], -1)
            height = max(1, self._at_once() // (self.n_members * of.shape[1]))
            return torch.cat([self.network.ratio(self.stack, c, of) for c in codes.split(height, dim=1)], 1)

        return ratio

    # --- draws -----------------------------------------------------------------------------------------------------

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
            chunk = max(1, self._chunk() // len(mine))
            for lo in range(0, len(x), chunk):
                piece = x[lo : lo + chunk]
                if self.kind == "flow":
                    part = one._draw_flow(len(mine), piece, generator)
                else:
                    part, report = one._draw_classifier(len(mine), piece, generator, seed + m)
                    reports.append(report)
                draws[mine.unsqueeze(1), torch.arange(lo, lo + len(piece), device=self.device)] = part
        if reports:
            self.sampler = {k: min(r[k] for r in reports) if k != "sampler" else reports[0][k] for k in reports[0]}
        return draws

    def _draw_flow(self, n: int, x: Tensor, generator: torch.Generator) -> Tensor:
        """n draws of a single flow for each x, `(n, B, D)`, rejected until they lie in the prior's support."""
        flow = self._flow()
        features = flow.embed(self.stack, x.unsqueeze(0))

        def draw(rows: int, columns: Tensor) -> Tensor:
            uniform = torch.rand(
                1, rows, len(columns), self.prior.dim, generator=generator, device=self.device, dtype=self.dtype
            )
            return flow.sample(self.stack, features[:, columns], flow.base_noise(uniform))[0][0]

        everyone = torch.arange(len(x), device=self.device)
        height = max(1, self._chunk() // len(x))
        theta = torch.cat([draw(min(height, n - done), everyone) for done in range(0, n, height)])
        outside = ~self.prior.contains(theta)
        drawn = torch.full((len(x),), float(n), device=self.device)  # candidates so far, by observation
        accepted = n - outside.sum(0)
        asked = 1
        while bool(outside.any()):
            hopeless = (drawn >= ENOUGH_TRIES) & (accepted < LEAST_ACCEPTANCE * drawn)
            if bool(hopeless.any()):
                worst = int(hopeless.nonzero()[0])
                raise RuntimeError(
                    f"for observation {worst}, {int(accepted[worst])} of {int(drawn[worst])} draws of the flow lie "
                    "inside the "
                    "prior's support: almost all of its mass has leaked out. Train with start='prior' (method "
                    "'bnpe_init'), "
                    "which cannot leak, or check that x looks like the simulations."
                )
            row, column = outside.nonzero(as_tuple=True)
            asked = max(1, min(2 * asked, self._chunk() // len(row), 1024))
            candidates = draw(asked, column)  # (asked, rows, D)
            good = self.prior.contains(candidates)
            first, found = good.to(torch.int8).argmax(0), good.any(0)
            pick = candidates[first, torch.arange(len(row), device=self.device)]
            theta[row[found], column[found]] = pick[found]
            outside[row[found], column[found]] = False
            drawn.index_add_(0, column, torch.full_like(column, asked, dtype=drawn.dtype))
            accepted.index_add_(0, column, good.sum(0))
        return theta

    def _draw_classifier(
        self, n: int, x: Tensor, generator: torch.Generator, seed: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """n draws of a single classifier for each x, with shape `(n, B, D)`, and a word on how good they are."""
        if self.prior.dim <= 2 and self.prior.has_normal_map:
            parts, accepted = [], 1.0
            size = max(1, self._chunk() // (1 << 13))
            for piece in x.split(size):
                ratio = self.ratio_of(piece)
                cells = make_cells(ratio, self.prior, self._like())
                theta, acceptance = sample_cells(cells, ratio, self.prior, n, generator)
                columns = cells.thin[0].nonzero().squeeze(1)
                if len(columns) > 0:
                    found = self._tempered(max(1024, n), piece[columns], seed)
                    keep = torch.randperm(found.theta.shape[1], generator=generator, device=self.device)[:n]
                    theta = theta.index_copy(2, columns, found.theta[:, keep])
                    acceptance = acceptance.index_fill(1, columns, 1.0)
                parts.append(theta[0])
                accepted = min(accepted, float(acceptance.min()))
            return torch.cat(parts, 1), {"sampler": "cells and Metropolis", "acceptance": accepted}
        particles = max(1024, n)
        found = self._tempered(particles, x, seed)
        ess = float(found.ess.min())
        if ess < 0.1 * particles:
            warnings.warn(
                f"the sampler's effective sample size is {ess:.0f} of {particles} particles for at least one "
                "observation; treat "
                "these draws with care",
                stacklevel=4,
            )
        keep = torch.randperm(particles, generator=generator, device=self.device)[:n]
        return found.theta[0][keep], {"sampler": "tempered sequential Monte Carlo", "ess": ess * n / particles}

    def _tempered(self, particles: int, x: Tensor, seed: int) -> Any:
        return tempered_sample(self.ratio_of(x), self.prior, self.n_members, len(x), particles, seed, self._like())

    # --- small things ----------------------------------------------------------------------------------------------

    def _flow(self) -> SplineFlow:
        if not isinstance(self.network, SplineFlow):
            raise TypeError("only a flow can be sampled directly; this posterior is a classifier's")
        return self.network

    def _densities(self, theta: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
        """θ and its raw log density from its log-ratio, which a leaky flow takes with log p = 0 outside the support."""
        log_prior = self.prior.log_prob(theta).to(ratio)
        return theta, ratio + torch.where(log_prior.isfinite(), log_prior, 0.0)

    def _like(self) -> Tensor:
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def _at_once(self) -> int:
        return AT_ONCE.get(self.device.type, AT_ONCE["cpu"])

    def _chunk(self) -> int:
        return CHUNK.get(self.device.type, CHUNK["cpu"])

    def _by_observation(self, x: Tensor, evaluations: int, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a function of observations piece by piece, `evaluations` a member and observation at once."""
        size = max(1, self._chunk() // (evaluations * self.n_members))
        return torch.cat([function(piece) for piece in x.split(size)], 1) if len(x) else x.new_zeros(self.n_members, 0)

    def _observations(self, x: Any) -> Tensor:
        """Observations with shape `(B, *x_shape)`."""
        x = torch.as_tensor(x).to(self.device)
        if x.is_floating_point():
            x = x.to(self.dtype)
        if x.ndim < len(self.x_shape) or x.shape[x.ndim - len(self.x_shape) :] != self.x_shape:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, but the posterior was trained on observations of shape {self.x_shape}"
            )
        if x.is_floating_point() and not bool(x.isfinite().all()):
            raise ValueError("x has NaN or infinite values")
        return x.reshape(-1, *self.x_shape)

    def _prepare(self, theta: Any, x: Any) -> tuple[Tensor, Tensor, Size]:
        """θ with shape `(S, B, D)`, x with shape `(B, *x_shape)`, and the shape of the answer."""
        theta = torch.as_tensor(theta).to(self.device, self.dtype)
        if theta.ndim == 0 or theta.shape[-1] != self.prior.dim:
            raise ValueError(
                f"theta has shape {tuple(theta.shape)}, but the posterior has {self.prior.dim} parameter(s)"
            )
        leading = torch.as_tensor(x).shape[: torch.as_tensor(x).ndim - len(self.x_shape)]
        x = self._observations(x)
        try:
            shape = torch.broadcast_shapes(theta.shape[:-1], leading)
        except RuntimeError:
            raise ValueError(
                f"theta's leading dimensions {tuple(theta.shape[:-1])} do not broadcast against x's {tuple(leading)}: "
                "give one x for all "
                "theta, or one x a theta"
            ) from None
        theta = theta.expand(*shape, self.prior.dim)
        if shape[len(shape) - len(leading) :] != leading:  # x is stretched somewhere in the middle: repeat it
            x = x.reshape(*leading, *self.x_shape).expand(*shape, *self.x_shape).reshape(-1, *self.x_shape)
        return theta.reshape(-1, len(x), self.prior.dim) if len(x) else theta.reshape(0, 0, self.prior.dim), x, shape
