"""The classifier: a multi-layer perceptron whose output is the log-ratio itself.

The paper's has 6 hidden layers of 256 SELU units. The first layer reads θ and the features of x side by side; it is
evaluated as W_θ θ + W_x f(x), so that the second product is shared by all the θ that are paired with one x.
"""

from __future__ import annotations

__all__ = ["Classifier"]

import dataclasses
import itertools
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.priors import Prior
from equipoise.support.randomness import isolated

from .embeddings import Embedding
from .network import Network
from .stacked_weights import StackedWeights, dense, selu


@dataclasses.dataclass(frozen=True, eq=False)
class Classifier(Network):
    """An MLP log-ratio.

    Arguments:
        prior: the prior, for the number of parameters.
        embedding: what turns x into features.
        hidden: the widths of the hidden layers.
        theta_loc: what is subtracted from θ, with shape `(D,)`.
        theta_scale: what θ is then divided by, with shape `(D,)`.
    """

    prior: Prior
    embedding: Embedding
    hidden: tuple[int, ...] = (256,) * 6
    theta_loc: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(1))
    theta_scale: Tensor = dataclasses.field(default_factory=lambda: torch.ones(1))

    kind = "classifier"

    def init_head(self, seed: int) -> dict[str, Tensor]:
        widths = (self.dim + self.embedding.features, *self.hidden, 1)
        weights = {}
        with isolated(seed):
            for i, (before, after) in enumerate(itertools.pairwise(widths)):
                layer = nn.Linear(before, after)
                weights[f"mlp.{i}.weight"], weights[f"mlp.{i}.bias"] = layer.weight.detach(), layer.bias.detach()
        return weights

    def encode(self, theta: Tensor) -> Tensor:
        return (theta - self.theta_loc.to(theta)) / self.theta_scale.to(theta)

    def ratio(self, p: StackedWeights, code: Tensor, features: Tensor) -> Tensor:
        members = features.shape[0]
        w_theta, w_x = p["mlp.0.weight"].split([self.dim, self.embedding.features], dim=2)
        shared = dense(features, w_x, p["mlp.0.bias"])
        shared = shared.view(members, *[1] * (code.ndim - features.ndim), *shared.shape[1:])
        h = dense(code.expand(members, *code.shape[1:]), w_theta) + shared
        for i in range(1, len(self.hidden) + 1):
            h = dense(selu(h), p[f"mlp.{i}.weight"], p[f"mlp.{i}.bias"])
        return h.squeeze(-1)

    def spec(self) -> dict[str, Any]:
        return self._spec(hidden=list(self.hidden))
