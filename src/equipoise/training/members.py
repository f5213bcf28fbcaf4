"""Members: what one network to train is, which of them train together, and what their stack starts from.

Members that can be evaluated by the same code, whatever their loss, strength, seed, data set and start, train in one
stack. Their data sets are held once, however many members read them, and θ is encoded once for each data set and way
to encode it.
"""

from __future__ import annotations

__all__ = ["Member", "grouped", "network_of", "stack_identity", "stack_inputs"]

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.losses import objective_kinds, rolls_needed
from equipoise.methods import Method
from equipoise.networks import Classifier, Embedding, Flat, Flow, Network, UserNetwork
from equipoise.priors import OpaquePrior, Prior
from equipoise.support.checks import one_of, whole_number
from equipoise.support.randomness import integer

from .checkpoint import fingerprint
from .data import Data
from .inputs import Pairs
from .loop import StackInputs
from .settings import Settings
from .state import MemberState


@dataclasses.dataclass(frozen=True)
class Member:
    """One network to train.

    Arguments:
        method: a row of `eq.METHODS`, possibly changed with `Method.but`.
        seed: of its weights and shuffles.
        data: which of the data sets it reads.
        keep: which of its weights make its posterior, "best" or "last"; None for the settings'. Members that differ in
            this alone are trained once.
        fold: the fold that it does not train on and is validated by; None without folds.
    """

    method: Method
    seed: int = 0
    data: int = 0
    keep: str | None = None
    fold: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise TypeError(f"method is an eq.Method, such as eq.METHODS['bnpe'], got {self.method!r}")
        integer(self.seed)
        whole_number("data", self.data)
        if self.keep is not None:
            one_of("keep", self.keep, ("best", "last"))
        if self.fold is not None:
            whole_number("fold", self.fold)

    @property
    def training(self) -> Member:
        """The same without `keep`: members that are equal in this are trained once."""
        return dataclasses.replace(self, keep=None)


def network_of(
    member: Member, prior: Prior, body: Embedding, loc: Tensor, scale: Tensor, own: nn.Module | None = None
) -> Network:
    """The architecture of a member; `loc` and `scale` standardise θ, `own` is a user's module with `log_ratio`."""
    if own is not None:
        return UserNetwork(own, prior, body.x_shape)
    method = member.method
    widths: dict[str, Any] = {} if method.hidden is None else {"hidden": method.hidden}
    if method.network == "classifier":
        return Classifier(prior, body, theta_loc=loc, theta_scale=scale, **widths)
    init = method.init or ("standard" if method.start == "random" else "scaled")
    widths |= {"transforms": method.transforms, "univariate": method.univariate, "bins": method.bins}
    return Flow(prior, body, method.start, init, theta_loc=loc, theta_scale=scale, **widths)


def grouped(members: Sequence[Member], nets: Sequence[Network]) -> list[list[int]]:
    """The indices of the members of each stack."""
    stacks: dict[str, list[int]] = {}
    for i, (member, net) in enumerate(zip(members, nets, strict=True)):
        stacks.setdefault(_stack_key(member, net), []).append(i)
    return list(stacks.values())


def stack_inputs(
    members: Sequence[Member],
    nets: Sequence[Network],
    pairs: Sequence[Pairs],
    scales: Sequence[tuple[Tensor, ...]],
    rows: tuple[Tensor, Tensor],
    settings: Settings,
    device: torch.device,
) -> StackInputs:
    """What one stack is trained from: members and their networks, all evaluated by the code of the first; all data
    sets with what standardises their x; and the rows that train and validate, with one row of each table per fold.
    """
    sets, dtype = sorted({m.data for m in members}), pairs[0].theta.dtype
    keys = [(member.data, net.encoding) for member, net in zip(members, nets, strict=True)]
    encoders = dict(zip(keys, nets, strict=True))
    codes = [net.encode(pairs[d].theta.to(device)) for (d, _), net in encoders.items()]
    xs, body = [pairs[d].x for d in sets], nets[0].embedding
    # What has no weights is computed once, and not in every step: of x in the memory of a CPU, which is short.
    embedded = isinstance(body, Flat) and nets[0].kind == "flow" and device.type == "cpu"
    embedded = embedded and all(isinstance(x, Tensor) for x in xs)
    if embedded:
        known = [dict(zip(body.constants(), (c[None].to(dtype) for c in scales[d]), strict=True)) for d in sets]
        xs = [body(p, x.unsqueeze(0))[0] for p, x in zip(known, xs, strict=True)]
    data = Data(codes, xs, device)
    first = []
    for member, net in zip(members, nets, strict=True):
        seeds = [(integer(member.seed, "weights"), integer(member.seed, "embedding"))]
        first.append(nets[0].layout.flatten(net.init(seeds, *([c] for c in scales[member.data]))))
    objectives, mode = [m.method.objective for m in members], settings.threshold_mode
    state = MemberState.fresh(
        torch.cat(first).to(dtype),
        settings.learning_rate,
        settings.epochs,
        averaged=settings.average > 0,
        kind=torch.tensor(objective_kinds(objectives)[1]),
        strength=torch.tensor([o.strength for o in objectives], dtype=dtype),
        absolute=torch.tensor([o.can_be_negative if mode == "auto" else mode == "absolute" for o in objectives]),
        shuffle_key=torch.tensor([integer(m.seed, "shuffle") for m in members]),
        code_set=torch.tensor([list(encoders).index(key) for key in keys]),
        data_set=torch.tensor([sets.index(m.data) for m in members]),
        fold=torch.tensor([m.fold or 0 for m in members]),
    )
    return StackInputs(nets[0], objectives, state, data, rows, embedded)


def stack_identity(
    inputs: StackInputs, members: Sequence[Member], nets: Sequence[Network], pairs: Sequence[Pairs], settings: Settings
) -> str:
    """The fingerprint of everything that decides what a stack's training ends in; the first weights hold what
    standardises x, and whatever weights a user's modules brought.
    """
    prior, points = nets[0].prior, pairs[members[0].data].theta
    described = {
        # Which weights are kept is decided afterwards.
        "settings": {k: v for k, v in dataclasses.asdict(settings).items() if k != "keep"},
        "members": [dataclasses.asdict(m) for m in members],
        "networks": [net.spec() for net in nets],
        "prior": _known_prior(prior, points[:: max(1, len(points) // 16)][:16]),
        "dtype": str(points.dtype),
    }
    arrays = [a for d in sorted({m.data for m in members}) for a in pairs[d]]
    own = [getattr(nets[0], "network", None), getattr(nets[0].embedding, "module", None)]
    buffers = [b for module in own if module is not None for b in module.buffers()]
    return fingerprint(described, [*arrays, *inputs.rows, inputs.state.weights, *buffers])


def _known_prior(prior: Prior, theta: Tensor) -> dict[str, Any]:
    """What identifies a prior from one process to the next: its description or, where it has none, its type and its log
    densities at some of the training parameters, to two decimals: another machine may round differently.
    """
    spec = prior.spec()
    if spec["kind"] != "opaque":
        return spec
    kind = type(prior.distribution if isinstance(prior, OpaquePrior) else prior).__qualname__
    densities = prior.log_prob(theta.to(prior.device)).double().round(decimals=2) + 0.0  # no -0
    return {"kind": "opaque", "dim": prior.dim, "type": kind, "log_densities": densities.tolist()}


def _stack_key(member: Member, net: Network) -> str:
    """Members with equal keys are evaluated by the same code and train in one step.

    A flow's start decides how θ is encoded and which weights it begins with, but in the step only whether the base
    is normal. The number of rolls decides what is evaluated: a plain NPE member would pay for marginal pairs that it
    does not use.
    """
    spec = {k: v for k, v in net.spec().items() if k not in ("start", "init", "theta_loc", "theta_scale")}
    base = net.start == "prior_base" if isinstance(net, Flow) else None
    return json.dumps([spec, base, rolls_needed(member.method.objective)], sort_keys=True)
