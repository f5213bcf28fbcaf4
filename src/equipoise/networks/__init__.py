"""Networks: architectures without weights, each giving `log_ratio` for a stack of members."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from equipoise.choices import INITS, STARTS
from equipoise.priors import Prior

from .classifier import Classifier
from .compiler_marks import apply_marks
from .embeddings import Convolutional, Embedding, Flat, Module, choose_embedding, embedding_from_spec
from .flow import Flow
from .mixture import Mixture
from .network import LOG_WEIGHTS, Network
from .stacked_weights import Layout, StackedWeights, dense, matmul_precision, stack_members
from .univariate import UNIVARIATE
from .user_modules import required, warn_of_differences
from .user_network import UserNetwork

__all__ = [
    "INITS",
    "LOG_WEIGHTS",
    "STARTS",
    "UNIVARIATE",
    "Classifier",
    "Convolutional",
    "Embedding",
    "Flat",
    "Flow",
    "Layout",
    "Mixture",
    "Module",
    "Network",
    "StackedWeights",
    "UserNetwork",
    "apply_marks",
    "choose_embedding",
    "dense",
    "embedding_from_spec",
    "matmul_precision",
    "network_from_spec",
    "stack_members",
]


def network_from_spec(
    spec: dict[str, Any], prior: Prior, embedding: nn.Module | None = None, network: nn.Module | None = None
) -> Network:
    """Rebuild an architecture from its `spec()`; a user's modules have to be given again."""
    if spec["kind"] == "mixture":
        return Mixture([network_from_spec(one, prior, embedding, network) for one in spec["networks"]], spec["sizes"])
    if spec["kind"] == "user":
        own = required(network, spec, "network")
        given = UserNetwork(own, prior, tuple(spec["embedding"]["x_shape"]), stored=True)
        warn_of_differences(spec, given.spec(), "network")
        return given
    body = embedding_from_spec(spec["embedding"], embedding)
    scaling: dict[str, Any] = {name: torch.tensor(spec[name]) for name in ("theta_loc", "theta_scale")}
    if spec["kind"] == "classifier":
        return Classifier(prior, body, tuple(spec["hidden"]), **scaling)
    if spec["kind"] == "flow":
        shape = {"transforms": spec["transforms"], "hidden": tuple(spec["hidden"]), "bins": spec["bins"]}
        of = spec.get("univariate", "spline")
        return Flow(prior, body, spec["start"], spec["init"], **shape, univariate=of, **scaling)
    raise ValueError(f"unknown kind of network {spec['kind']!r}; was the file written by a newer Equipoise?")
