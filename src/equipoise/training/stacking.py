"""Stacking: which members train together, and what their loop begins with.

Members that can be evaluated by the same code, whatever their loss, strength, seed, data set and start, train in one
stack. Their data sets are held once, however many members read them, and θ is encoded once for each data set and way
to encode it.
"""

from __future__ import annotations

__all__ = ["grouped", "train_members"]

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.losses import Objective, rolls_needed
from equipoise.networks import Network, SplineFlow
from equipoise.priors import OpaquePrior, Prior
from equipoise.support.randomness import integer

from .checkpoint import Checkpoint, fingerprint
from .data import Data
from .loop import OnEpoch, Trained, train_stack
from .members import Member
from .settings import Settings


def grouped(nets: Sequence[Network], objectives: Sequence[Objective]) -> list[list[int]]:
    """The indices of the members of each stack."""
    stacks: dict[str, list[int]] = {}
    for i, (net, objective) in enumerate(zip(nets, objectives, strict=True)):
        stacks.setdefault(_stack_key(net, objective), []).append(i)
    return list(stacks.values())


def train_members(
    members: Sequence[Member],
    nets: Sequence[Network],
    objectives: Sequence[Objective],
    pairs: Sequence[tuple[Tensor, Any]],
    constants: Sequence[tuple[Tensor, Tensor]],
    rows: tuple[Tensor, Tensor],
    settings: Settings,
    device: torch.device,
    *,
    path: Path | None = None,
    compile: bool | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
    label: str = "training",
) -> Trained:
    """Train one stack.

    Arguments:
        members: its M members.
        nets: their networks, all evaluated by the code of the first.
        objectives: what they minimise.
        pairs: all data sets, `(N, D)` and `(N, *x_shape)`; members name theirs by its index.
        constants: what standardises x, mean and deviation of each data set.
        rows: of a data set, those that train and those that judge.
        settings: the protocol.
        device: where to train.
        path: of the checkpoint; None for none.
        compile: as in `train_stack`.
        on_epoch: as in `train_stack`.
        progress: as in `train_stack`.
        label: as in `train_stack`.
    """
    which_code, which_x, (train, validation) = _data(members, nets, pairs, rows, device)
    shuffles = torch.tensor([integer(m.seed, "shuffle") for m in members])
    first = _first_weights(members, nets, constants).to(pairs[0][0].dtype)
    identity = None if path is None else _identity(members, nets, first, pairs, rows, settings, compile)
    return train_stack(
        nets[0],
        objectives,
        first,
        shuffles,
        which_code,
        which_x,
        train,
        validation,
        settings,
        compile=compile,
        checkpoint=None if path is None or identity is None else Checkpoint(path, identity),
        on_epoch=on_epoch,
        progress=progress,
        label=label,
    )


def _first_weights(
    members: Sequence[Member], nets: Sequence[Network], constants: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    """The weights that members begin with, with shape `(M, P)`."""
    flat = []
    for member, net in zip(members, nets, strict=True):
        seeds = [(integer(member.seed, "weights"), integer(member.seed, "embedding"))]
        mean, std = constants[member.data]
        flat.append(nets[0].layout.flatten(net.init(seeds, [mean], [std])))
    return torch.cat(flat)


def _data(
    members: Sequence[Member],
    nets: Sequence[Network],
    pairs: Sequence[tuple[Tensor, Any]],
    rows: tuple[Tensor, Tensor],
    device: torch.device,
) -> tuple[Tensor, Tensor, list[Data]]:
    """Which code and which data set each member reads, each with shape `(M,)`, and the data of training and validation.

    There is one code for each data set and way to encode θ.
    """
    sets = sorted({m.data for m in members})
    which_x = torch.tensor([sets.index(m.data) for m in members])
    keys = [(member.data, _encoding_key(net)) for member, net in zip(members, nets, strict=True)]
    encoders: dict[tuple[int, str], Network] = {}
    for key, net in zip(keys, nets, strict=True):
        encoders.setdefault(key, net)
    which_code = torch.tensor([list(encoders).index(key) for key in keys])
    parts = []
    for chosen in rows:
        codes = [net.encode(pairs[d][0][chosen].to(device)) for (d, _), net in encoders.items()]
        parts.append(Data(codes, [pairs[d][1] for d in sets], device, rows=chosen))
    return which_code, which_x, parts


def _identity(
    members: Sequence[Member],
    nets: Sequence[Network],
    first: Tensor,
    pairs: Sequence[tuple[Tensor, Any]],
    rows: tuple[Tensor, Tensor],
    settings: Settings,
    compile: bool | None,
) -> str:
    """The fingerprint of everything that decides what a stack's training ends in.

    The first weights, with shape `(M, P)`, hold what standardises x, and whatever weights a user's modules brought.
    """
    prior, points = nets[0].prior, pairs[members[0].data][0]
    described = {
        # Which weights are kept is decided afterwards.
        "settings": {k: v for k, v in dataclasses.asdict(settings).items() if k != "keep"},
        "members": [dataclasses.asdict(m) for m in members],
        "networks": [net.spec() for net in nets],
        "prior": _known_prior(prior, points[:: max(1, len(points) // 16)][:16]),
        "dtype": str(pairs[0][0].dtype),
        "compile": compile,
    }
    arrays = [a for d in sorted({m.data for m in members}) for a in pairs[d]]
    own = [getattr(nets[0], "network", None), getattr(nets[0].embedding, "module", None)]
    buffers = [b for module in own if module is not None for b in module.buffers()]
    return fingerprint(described, [*arrays, *rows, first, *buffers])


def _known_prior(prior: Prior, theta: Tensor) -> dict[str, Any]:
    """What a prior is known by from one process to the next.

    That is its description where it has one. Any other is known by its type and its log densities at some of the
    parameters that train: what an object prints may hold its address in memory, and does not have to hold its numbers.
    Two decimals, so that another machine's rounding does not make it another prior.
    """
    spec = prior.spec()
    if spec["kind"] != "opaque":
        return spec
    kind = type(prior.distribution if isinstance(prior, OpaquePrior) else prior).__qualname__
    densities = prior.log_prob(theta.to(prior.device)).double().round(decimals=2) + 0.0  # no -0
    return {"kind": "opaque", "dim": prior.dim, "type": kind, "log_densities": densities.tolist()}


def _encoding_key(net: Network) -> str:
    """Networks with equal keys encode θ alike."""
    return json.dumps({k: v for k, v in net.spec().items() if k in ("kind", "start", "theta_loc", "theta_scale")})


def _stack_key(net: Network, objective: Objective) -> str:
    """Members with equal keys are evaluated by the same code and train in one step.

    A flow's start decides how θ is encoded and which weights it begins with, but in the step only whether the base
    is normal. The number of rolls decides what is evaluated: a plain NPE member would pay for marginal pairs that it
    does not use.
    """
    spec = {k: v for k, v in net.spec().items() if k not in ("start", "init", "theta_loc", "theta_scale")}
    base = net.start == "prior_base" if isinstance(net, SplineFlow) else None
    return json.dumps([spec, base, rolls_needed(objective)], sort_keys=True)
