r"""The abstract network: log-ratios for a stack of members.

A network is an architecture without weights; the weights of all members travel beside it as `StackedWeights`. Its
log-ratio is evaluated in three parts, so that each is computed as seldom as possible:

- `encode(theta)`: what is fixed about θ, its coordinates (standardised, or z = Φ⁻¹(F(θ)) for a flow started at the
  prior) and, for a flow, the offset that turns its density into a ratio. No weights; computed once for a data set.
- `embed(p, x)`: the features of x. Once per batch, shared by joint, marginal and contrastive pairs.
- `ratio(p, code, features)`: the log-ratio of pairs.

`log_ratio(p, theta, x)` is the three together.
"""

from __future__ import annotations

__all__ = ["LOG_WEIGHTS", "Network"]

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from equipoise.priors import Prior

from .embeddings import Embedding
from .stacked_weights import Layout, StackedWeights, stack_members

#: The name of the members' log weights in their mixture, `(M,)`, among the weights; absent where all are equal.
LOG_WEIGHTS = "log_weights"


class Network(ABC):
    """An architecture that gives log q(θ|x) - log p(θ) for a stack of members."""

    #: "classifier" or "flow": whether it can be sampled directly.
    kind: str
    prior: Prior
    embedding: Embedding

    @abstractmethod
    def init_head(self, seed: int) -> dict[str, Tensor]:
        """The weights of one member, apart from those of the embedding."""

    @abstractmethod
    def encode(self, theta: Tensor) -> Tensor:
        """What is fixed about θ: with shape `(*, E)` from `(*, D)`."""

    @abstractmethod
    def ratio(self, p: StackedWeights, code: Tensor, features: Tensor) -> Tensor:
        """Log-ratios with shape `(M, *S, N)` from codes `(M or 1, *S, N, E)` and features `(M, N, C)`."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """A JSON description of the architecture."""

    def _spec(self, **own: Any) -> dict[str, Any]:
        """A description with what is the architecture's own, and the constants and the embedding."""
        constants = {name: getattr(self, name).tolist() for name in ("theta_loc", "theta_scale")}
        return {"kind": self.kind, **own, **constants, "embedding": self.embedding.spec()}

    @property
    def in_threads(self) -> bool:
        """Whether several threads may evaluate it at once."""
        return self.prior.in_threads and self.embedding.in_threads

    def described(self, members: int) -> list[tuple[str, str]]:
        """For each of so many members, the architecture, and how it reads x, in words."""
        spec = self.spec()
        own = {k: v for k, v in spec.items() if k not in ("theta_loc", "theta_scale", "init", "embedding")}
        words, reads = (", ".join(f"{k}={v}" for k, v in part.items()) for part in (own, spec["embedding"]))
        return [(words, reads)] * members

    def masks(self) -> dict[str, Tensor]:
        """Zeros where an entry is not trained."""
        return {}

    def capturable(self, device: torch.device) -> bool:
        """Whether a CUDA graph can record what it computes."""
        return self.embedding.capturable(device)

    def to(self, device: str | torch.device) -> Self:
        """The same architecture with its prior and constants on another device."""
        twin = copy.copy(self)
        for name in ("prior", "theta_loc", "theta_scale"):
            if hasattr(self, name):
                object.__setattr__(twin, name, getattr(self, name).to(device))
        return twin

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of one observation."""
        return self.embedding.x_shape

    @property
    def dim(self) -> int:
        """The number of parameters D."""
        return self.prior.dim

    @cached_property
    def layout(self) -> Layout:
        """Where each parameter lies in the flat buffer."""
        head = {name: tuple(w.shape) for name, w in self.init_head(0).items()}
        fixed = dict.fromkeys(self.embedding.constants(), torch.zeros(()))
        return Layout({**self.embedding.shapes(), **head}, {**fixed, **self.embedding.frozen(), **self.masks()})

    def init(self, seeds: Sequence[tuple[int, int]], *constants: Sequence[Tensor]) -> StackedWeights:
        """A stack of new members.

        Arguments:
            seeds: for each member, the seeds of head and embedding.
            constants: for each of `embedding.constants()`, in order, its value for each member.
        """
        names, members = list(self.embedding.constants()), []
        for (head, body), *values in zip(seeds, *constants, strict=True):
            known = dict(zip(names, values, strict=True))
            members.append({**known, **self.embedding.init(body), **self.init_head(head)})
        return stack_members(members)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of everything of one member."""
        return self.layout.shapes

    @property
    def encoding(self) -> str:
        """Networks for which this is equal encode θ alike."""
        return json.dumps({k: v for k, v in self.spec().items() if k in ("kind", "start", "theta_loc", "theta_scale")})

    def select(self, p: StackedWeights, rows: Sequence[int]) -> tuple[Network, StackedWeights]:
        """The network and the weights of some of the members."""
        return self, {name: w[list(rows)] for name, w in p.items()}

    def x_constants(self, p: StackedWeights) -> StackedWeights:
        """What standardises x: `x_loc` and `x_scale`, with a leading member axis."""
        return {name: p[name] for name in ("x_loc", "x_scale") if name in p}

    def embed(self, p: StackedWeights, x: Tensor) -> Tensor:
        """Features with shape `(M, N, C)` from observations with shape `(M or 1, N, *x_shape)`."""
        return self.embedding(p, x)

    def stack_ratio(self, flat: Tensor, code: Tensor, x: Tensor, embedded: bool = False) -> Tensor:
        """Log-ratios `(M, *S, N)` of codes `(M or 1, *S, N, E)` with the weights in a buffer `(M, P)`.

        `x` are observations `(M or 1, N, *x_shape)` or, if `embedded`, their features `(M or 1, N, C)`.
        """
        p = self.layout.cut(flat)
        return self.ratio(p, code, x.expand(len(flat), -1, -1) if embedded else self.embed(p, x))

    def log_ratio(self, p: StackedWeights, theta: Tensor, x: Tensor) -> Tensor:
        """Log-ratios `(M, *S, N)` of θ `(*S, N, D)` and x `(N, *x_shape)`, the same for all members."""
        return self.ratio(p, self.encode(theta).unsqueeze(0), self.embed(p, x.unsqueeze(0)))
