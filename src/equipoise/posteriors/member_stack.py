"""Networks of the same inputs with the weights of each: what they are, and what each of them says.

Posteriors and diagnostics build on it. Nothing here is normalised over members, tempered or checked.
"""

from __future__ import annotations

__all__ = ["MemberStack"]

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.networks import LOG_WEIGHTS, Network, StackedWeights
from equipoise.priors import Prior

from . import classifiers, flows
from .evaluation import some_weights


class MemberStack:
    """M networks of one architecture, or of a mixture of architectures.

    Arguments:
        network: the architecture.
        stack: the weights, each with shape `(M, *shape)`.
    """

    def __init__(self, network: Network, stack: StackedWeights) -> None:
        self.network, self.stack = network, stack

    @property
    def prior(self) -> Prior:
        """The prior p(θ)."""
        return self.network.prior

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the parameters; None where they have none."""
        return self.prior.names

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
    def log_weights(self) -> Tensor | None:
        """Log weights of the members in their mixture, with shape `(M,)`; None where all are equal."""
        return self.stack.get(LOG_WEIGHTS)

    @property
    def can_leak(self) -> bool:
        """Whether a member may have mass outside the prior's support: a flow not started at a bounded prior."""
        if not getattr(self.network, "can_leak", False):
            return False
        far = torch.full((2, self.prior.dim), 1e30, device=self.device)
        far[1] *= -1
        return not bool(self.prior.contains(far).all())

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

    # --- their mixture ---------------------------------------------------------------------------------------------

    def _flow(self) -> Any:
        """The network, which can be sampled: a `Flow`, or a mixture of some."""
        if self.kind != "flow":
            raise TypeError("only a flow can be sampled directly; this posterior is a classifier's")
        return self.network

    def _mean(self, log_ratios: Tensor) -> Tensor:
        """The log-ratio of the mixture from those of its members, the first axis."""
        if self.log_weights is None:
            return torch.logsumexp(log_ratios, 0) - math.log(len(log_ratios))
        return torch.logsumexp(log_ratios + self.log_weights.view(-1, *[1] * (log_ratios.ndim - 1)), 0)

    def _chosen(self, n: int, generator: torch.Generator) -> Tensor:
        """Which member each of n draws is from, as their weights say."""
        if self.log_weights is None or n == 0:
            return torch.randint(self.n_members, (n,), generator=generator, device=self.device)
        return torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
