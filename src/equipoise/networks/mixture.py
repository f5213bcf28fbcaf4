"""Several architectures as one network: members of one posterior need not be alike.

The members of the first architecture come first, then those of the second, and so on. Each keeps its own weights, under
names with the number of the architecture before them (`0.x_loc`, `1.flow.0.0.weight`). Features of different lengths
are padded with zeros to the longest; coordinates of θ lie side by side, once for each way to encode them.

Nothing is trained here: the architectures are trained in stacks of their own, and joined afterwards.
"""

from __future__ import annotations

__all__ = ["Mixture"]

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from .network import LOG_WEIGHTS, Network
from .stacked_weights import StackedWeights


class Mixture(Network):
    """Architectures with the number of members of each.

    Arguments:
        networks: the architectures, which share their prior and read observations of one shape.
        sizes: the number of members of each.
    """

    def __init__(self, networks: Sequence[Network], sizes: Sequence[int]) -> None:
        self.networks, self.sizes = list(networks), [int(size) for size in sizes]
        if len(self.networks) != len(self.sizes) or not self.networks or min(self.sizes) < 1:
            raise ValueError(f"a mixture has members of each architecture, got {len(networks)} and sizes {sizes}")
        if len({net.x_shape for net in self.networks}) > 1 or len({net.dim for net in self.networks}) > 1:
            raise ValueError("architectures of a mixture have the same parameters and observations")
        self.prior, self.embedding = self.networks[0].prior, self.networks[0].embedding
        self.kind = "flow" if all(net.kind == "flow" for net in self.networks) else "classifier"

    @staticmethod
    def joined(parts: Sequence[tuple[Network, StackedWeights]]) -> tuple[Mixture, StackedWeights]:
        """The mixture of some architectures and its weights, from theirs."""
        sizes = [len(next(iter(p.values()))) for _, p in parts]
        every = {f"{g}.{name}": w for g, (_, p) in enumerate(parts) for name, w in p.items() if name != LOG_WEIGHTS}
        like = next(iter(every.values()))
        counts = [
            p[LOG_WEIGHTS] if LOG_WEIGHTS in p else like.new_zeros(m) for (_, p), m in zip(parts, sizes, strict=True)
        ]
        return Mixture([net for net, _ in parts], sizes), {LOG_WEIGHTS: torch.cat(counts).log_softmax(0), **every}

    def parts(self, p: StackedWeights) -> Iterator[tuple[int, Network, StackedWeights, slice]]:
        """The number of each architecture, the architecture, its weights, and the places of its members."""
        low = 0
        for g, (network, size) in enumerate(zip(self.networks, self.sizes, strict=True)):
            start = f"{g}."
            own = {name[len(start) :]: w for name, w in p.items() if name.startswith(start)}
            yield g, network, own, slice(low, low + size)
            low += size

    def select(self, p: StackedWeights, rows: Sequence[int]) -> tuple[Network, StackedWeights]:
        found: list[tuple[Network, StackedWeights]] = []
        if list(rows) != sorted(rows):
            raise ValueError(f"members of a mixture are selected in their order, got {list(rows)}")
        for _, network, own, place in self.parts(p):
            mine = [m - place.start for m in rows if place.start <= m < place.stop]
            if mine:
                weights = {LOG_WEIGHTS: p[LOG_WEIGHTS][place], **own}
                found.append((network, {name: w[mine] for name, w in weights.items()}))
        return found[0] if len(found) == 1 else Mixture.joined(found)

    @property
    def can_leak(self) -> bool:
        """Whether a member may have mass outside the prior's support."""
        return any(getattr(net, "can_leak", False) for net in self.networks)

    # --- log-ratios ------------------------------------------------------------------------------------------------

    @cached_property
    def _encoders(self) -> tuple[list[Network], list[int]]:
        """Networks that encode θ differently, and which of them each architecture reads."""
        keys = [net.encoding for net in self.networks]
        distinct = list(dict.fromkeys(keys))
        return [self.networks[keys.index(key)] for key in distinct], [distinct.index(key) for key in keys]

    def encode(self, theta: Tensor) -> Tensor:
        return torch.cat([net.encode(theta) for net in self._encoders[0]], -1)

    @cached_property
    def _code_sizes(self) -> list[int]:
        point = self.prior.sample((1,))
        return [net.encode(point).shape[-1] for net in self._encoders[0]]

    def embed(self, p: StackedWeights, x: Tensor) -> Tensor:
        longest = max(net.embedding.features for net in self.networks)
        features = [net.embed(own, x if len(x) == 1 else x[place]) for _, net, own, place in self.parts(p)]
        return torch.cat([F.pad(f, (0, longest - f.shape[-1])) for f in features])

    def ratio(self, p: StackedWeights, code: Tensor, features: Tensor) -> Tensor:
        codes, which = code.split(self._code_sizes, -1), self._encoders[1]
        found = []
        for g, net, own, place in self.parts(p):
            mine = codes[which[g]]
            mine = mine if len(mine) == 1 else mine[place]
            found.append(net.ratio(own, mine, features[place, ..., : net.embedding.features]))
        return torch.cat(found)

    # --- draws -----------------------------------------------------------------------------------------------------

    def base_noise(self, uniform: Tensor) -> Tensor:
        """U(0, 1)^D as it is: the bases of the architectures may differ, and `sample` maps to each."""
        return uniform

    def sample(self, p: StackedWeights, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """θ with shape `(M, *S, N, D)` and its log-ratio, `(M, *S, N)`, as `Flow.sample`."""
        found = []
        for _, net, own, place in self.parts(p):
            net_: Any = net
            found.append(
                net_.sample(own, features[place, ..., : net.embedding.features], net_.base_noise(noise[place]))
            )
        return torch.cat([theta for theta, _ in found]), torch.cat([ratio for _, ratio in found])

    # --- what it is ------------------------------------------------------------------------------------------------

    def init_head(self, seed: int) -> dict[str, Tensor]:
        raise TypeError("a mixture is not trained: train its architectures, and join them")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        own = {f"{g}.{name}": shape for g, net in enumerate(self.networks) for name, shape in net.shapes.items()}
        return {LOG_WEIGHTS: (), **own}

    def to(self, device: str | torch.device) -> Self:
        twin = super().to(device)
        twin.__dict__.pop("_encoders", None)
        twin.networks = [net.to(device) for net in self.networks]
        return twin

    def x_constants(self, p: StackedWeights) -> StackedWeights:
        return next(net.x_constants(own) for _, net, own, _ in self.parts(p))

    @property
    def in_threads(self) -> bool:
        return all(net.in_threads for net in self.networks)

    def described(self, members: int) -> list[tuple[str, str]]:
        return [words for net, size in zip(self.networks, self.sizes, strict=True) for words in net.described(size)]

    def spec(self) -> dict[str, Any]:
        parts = [net.spec() for net in self.networks]
        return {"kind": "mixture", "networks": parts, "sizes": self.sizes, "embedding": parts[0]["embedding"]}
