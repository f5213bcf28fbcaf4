"""A user's own network: anything with `log_ratio(theta, x)`.

Balancing a new kind of model means giving it `log_ratio`, nothing else. An `nn.Module` is stacked with `vmap` over its
parameters, where its operations allow it.
"""

from __future__ import annotations

__all__ = ["UserNetwork"]

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from equipoise.priors import Prior
from equipoise.randomness import isolated

from .base import Network
from .embeddings import Flat
from .stacks import Stack


class _Call(nn.Module):
    """Makes `log_ratio` the forward of a module, which is what `functional_call` calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.network.log_ratio(theta, x)  # type: ignore[operator]
        return out


class UserNetwork(Network):
    """An `nn.Module` with a method `log_ratio(theta, x)`: `(N, D)` and `(N, *x_shape)` to `(N,)`.

    Its log-ratio is used as a classifier's is: normalised over the prior for densities and samples.
    """

    kind = "classifier"

    def __init__(self, network: Any, prior: Prior, x_shape: tuple[int, ...]) -> None:
        if not isinstance(network, nn.Module) or not callable(getattr(network, "log_ratio", None)):
            raise TypeError(
                "network should be a torch.nn.Module with a method log_ratio(theta, x) -> (N,), got "
                f"{type(network).__name__}"
            )
        self.network, self.prior, self.embedding = network, prior, Flat(tuple(x_shape))
        self._call = _Call(network)
        self._buffers = {name: b.detach().to(prior.device) for name, b in self._call.named_buffers()}
        with torch.no_grad():
            theta = prior.sample((2,)).to("cpu")
            parameter = next(network.parameters(), theta)
            out = self._call(theta.to(parameter), torch.zeros(2, *x_shape).to(parameter))
        if tuple(out.shape) != (2,):
            raise ValueError(f"log_ratio of 2 pairs should have shape (2,), got {tuple(out.shape)}")

    def init_head(self, seed: int) -> dict[str, Tensor]:
        network: Any = copy.deepcopy(self._call)
        with isolated(seed):
            for layer in network.modules():
                reset: Any = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        return {f"user.{name}": w.detach().clone().cpu() for name, w in network.named_parameters()}

    def to(self, device: str | torch.device) -> Self:
        twin = super().to(device)
        twin._buffers = {name: b.to(device) for name, b in self._buffers.items()}
        return twin

    def encode(self, theta: Tensor) -> Tensor:
        return theta

    def ratio(self, p: Stack, code: Tensor, features: Tensor) -> Tensor:
        weights = {name[len("user.") :]: w for name, w in p.items() if name.startswith("user.")}
        members, count = features.shape[:2]
        x = features.unflatten(-1, self.x_shape)
        rolls = code.shape[1:-2]
        code = code.expand(members, *rolls, count, self.dim).reshape(members, -1, self.dim)
        x = x.repeat(1, math.prod(rolls), *[1] * len(self.x_shape))

        def one(w: dict[str, Tensor], theta: Tensor, row: Tensor) -> Tensor:
            out: Tensor = functional_call(self._call, w | self._buffers, (theta, row))
            return out

        out = vmap(one, randomness="different")(weights, code, x)
        return out.view(members, *rolls, count)

    def spec(self) -> dict[str, Any]:
        return {"kind": "user", "repr": repr(self.network), "embedding": self.embedding.spec()}
