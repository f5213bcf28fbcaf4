"""A user's network: anything with `log_ratio(theta, x)`.

Balancing a new kind of model means giving it `log_ratio`, nothing else. An `nn.Module` is copied and stacked as a
user's embedding is, see `user_modules`.
"""

from __future__ import annotations

__all__ = ["UserNetwork"]

import math
from typing import Any

import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.randomness import isolated

from .embeddings import Flat
from .network import Network
from .stacked_weights import StackedWeights
from .user_modules import TRIAL, StackedModule


class UserNetwork(Network):
    """An `nn.Module` with a method `log_ratio(theta, x)`: `(N, D)` and `(N, *x_shape)` to `(N,)`.

    Its log-ratio is used as a classifier's is: normalised over the prior for densities and samples.
    """

    kind = "classifier"

    def __init__(self, network: Any, prior: Prior, x_shape: tuple[int, ...], stored: bool = False) -> None:
        self.prior, self.embedding = prior, Flat(tuple(x_shape))
        with isolated(0):
            theta = prior.sample((TRIAL,)).to("cpu")
        x = torch.linspace(0, 1, TRIAL * math.prod(x_shape)).view(TRIAL, *x_shape)
        self._stacked = StackedModule(network, "network", (theta, x), stored)
        self.switched_off = self._stacked.switched_off
        out = self._stacked.out
        if not isinstance(out, Tensor) or tuple(out.shape) != (TRIAL,):
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"log_ratio of {TRIAL} pairs should have shape ({TRIAL},), got {shape}")
        self._stacked.one_by_one(prior.device)

    def init_head(self, seed: int) -> dict[str, Tensor]:
        return self._stacked.init(seed)

    def masks(self) -> dict[str, Tensor]:
        return self._stacked.frozen()

    def capturable(self, device: torch.device) -> bool:
        return not self._stacked.one_by_one(device)

    def encode(self, theta: Tensor) -> Tensor:
        return theta

    def ratio(self, p: StackedWeights, code: Tensor, features: Tensor) -> Tensor:
        members, count = features.shape[:2]
        x = features.unflatten(-1, self.x_shape)
        rolls = code.shape[1:-2]
        code = code.expand(members, *rolls, count, self.dim).reshape(members, -1, self.dim)
        x = x.repeat(1, math.prod(rolls), *[1] * len(self.x_shape))
        return self._stacked(p, code, x).view(members, *rolls, count)

    def spec(self) -> dict[str, Any]:
        return {"kind": "user", "repr": repr(self._stacked.own), "embedding": self.embedding.spec()}
