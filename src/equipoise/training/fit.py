"""`fit`: from simulations to a posterior. `fit_many`: many members, methods, strengths and data sets in one call.

Members that can be evaluated by the same code, whatever their loss, strength, seed, data set and start, train in one
stack.
"""

from __future__ import annotations

__all__ = ["Member", "fit", "fit_many"]

import dataclasses
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from equipoise.losses import Objective, rolls_needed
from equipoise.methods import Method, resolve
from equipoise.networks import Classifier, Embedding, Module, Network, SplineFlow, UserNetwork, choose_embedding
from equipoise.posteriors import Posterior
from equipoise.priors import Prior, as_prior
from equipoise.randomness import integer

from .checkpoint import Checkpoint, fingerprint
from .data import Data
from .inputs import check_pairs, split_rows, theta_scaling
from .loop import Trained, train_stack
from .settings import PAPER, Settings


@dataclasses.dataclass(frozen=True)
class Member:
    """One network to train.

    Arguments:
        method: its row of the table, possibly changed with `methods.resolve`.
        seed: of its weights and shuffles.
        data: which of the data sets it reads.
        objective: `Objective`'s other options: unbiased, normalized, normalizer, contrastive, gamma.
        init: how a flow's weights start: "standard", "scaled" (the paper's recipe) or "identity"; None for standard
            weights in a random start and the paper's recipe otherwise.
    """

    method: Method
    seed: int = 0
    data: int = 0
    objective: tuple[tuple[str, Any], ...] = ()
    init: str | None = None


def fit(
    theta: Any,
    x: Any,
    *,
    prior: Any,
    method: str | Method = "bnpe_init",
    balance: str | None = None,
    balance_strength: float | None = None,
    start: str | None = None,
    members: int = 5,
    epochs: int = 500,
    batch_size: int = 256,
    validation_fraction: float = 0.1,
    standardize: bool = True,
    keep: str = "best",
    embedding: nn.Module | Embedding | None = None,
    network: nn.Module | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    learning_rate: float = 1e-3,
    patience: int = 10,
    early_stop: bool = True,
    weight_decay: float = 0.0,
    clip: float | None = None,
    unbiased_balance: bool = False,
    normalized_balance: bool = False,
    contrastive: int = 5,
    gamma: float = 1.0,
    init: str | None = None,
    hidden: Sequence[int] | None = None,
    transforms: int = 3,
    compile: bool | None = None,
    progress: bool | None = None,
) -> Posterior:
    """Train a posterior on simulated pairs.

    Arguments:
        theta: parameters drawn from the prior, with shape `(N, D)`.
        x: what the simulator made of them, with shape `(N, *x_shape)`. Whole-number dtypes are kept as they are
            until they are used.
        prior: the prior: `eq.BoxUniform`, any torch distribution over vectors, or anything with `sample` and
            `log_prob`.
        method: a row of `eq.METHODS`. The default, a balanced flow started at the prior, cannot leak and errs on the
            wide side.
        balance: "none", "chi2", "kl", or for contrastive losses "multiclass"; None follows the method.
        balance_strength: λ; None follows the method (100 in balanced rows).
        start: "random", "prior" or "prior_base", for flows; None follows the method.
        members: how many networks to train; the posterior is their mixture.
        epochs: at most this many.
        batch_size: pairs in a batch.
        validation_fraction: the share of the pairs that judges and never trains.
        standardize: scale θ by the prior and x by the training pairs. A flow is the identity beyond ±5, so leave
            this on.
        keep: "best" validation weights or the "last".
        embedding: an `nn.Module` from `(N, *x_shape)` to `(N, C)`; None chooses by shape: a vector as it is, (T, C)
            a series, (C, H, W) an image.
        network: a module of your own with `log_ratio(theta, x)`, trained with the method's loss.
        device: where to train; None takes a GPU where there is one, and returns the posterior to where `theta` is.
        seed: of everything random.
        checkpoint: a directory that keeps the state, so that a killed training goes on where it was.
        learning_rate: of Adam, divided by 10 after `patience` epochs without improvement, down to a hundredth.
        patience: see `learning_rate`.
        early_stop: stop a member that has converged at the smallest learning rate.
        weight_decay: as in AdamW.
        clip: the largest norm of a member's gradient.
        unbiased_balance: estimate a χ² balance without bias from the batch.
        normalized_balance: balance h - log Ẑ(x) instead of h, for classifiers.
        contrastive: K of NRE-C.
        gamma: γ of NRE-C.
        init: "standard", "scaled" or "identity" weights of a flow; None for the paper's choice.
        hidden: widths of the hidden layers; None for the paper's (6 × 256, or 3 × 256 in each transform of a flow).
        transforms: of a flow.
        compile: whether to use torch.compile; None where it pays back.
        progress: False for silence.

    Returns:
        The mixture of the members, as a `Posterior`.
    """
    if not isinstance(members, int) or members < 1:
        raise ValueError(f"members is the number of networks to train, at least 1, got {members!r}")
    row = resolve(method, balance, balance_strength, start)
    if network is not None and row.network != "classifier":
        raise ValueError(
            f"a network of your own gives a ratio, and is trained as a classifier is; method={row.name!r} trains a "
            "flow. Choose one of nre, "
            "bnre, nre_c, bnre_c."
        )
    options = {
        "unbiased": unbiased_balance,
        "normalized": normalized_balance,
        "contrastive": contrastive,
        "gamma": gamma,
    }
    settings = Settings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        patience=patience,
        min_learning_rate=learning_rate / 100,
        keep=keep,
        early_stop=early_stop,
        weight_decay=weight_decay,
        clip=clip,
        split="shuffled",
    )
    specs = [Member(row, integer(seed, "member", m), 0, tuple(options.items()), init) for m in range(members)]
    home = theta.device if isinstance(theta, Tensor) else torch.device("cpu")
    posteriors = fit_many(
        specs,
        [(theta, x)],
        prior=prior,
        settings=settings,
        validation_fraction=validation_fraction,
        standardize=standardize,
        embedding=embedding,
        network=network,
        hidden=hidden,
        transforms=transforms,
        device=device,
        split_seed=seed,
        checkpoint=checkpoint,
        compile=compile,
        progress=progress,
    )
    alive = [p for p in posteriors if p is not None]
    if not alive:
        raise RuntimeError(
            f"all {members} members diverged: no validation loss was ever finite. Lower learning_rate (now "
            f"{learning_rate}), set clip=1.0, and "
            "check x for extreme values."
        )
    whole = Posterior.joined(alive)
    return whole if device is not None else whole.to(home)


def fit_many(
    members: Sequence[Member],
    data: Sequence[tuple[Any, Any]],
    *,
    prior: Any,
    settings: Settings = PAPER,
    validation_fraction: float = 0.1,
    standardize: bool = False,
    embedding: nn.Module | Embedding | None = None,
    network: nn.Module | None = None,
    hidden: Sequence[int] | None = None,
    transforms: int = 3,
    x_scale: float = 1.0,
    device: str | torch.device | None = None,
    split_seed: int = 0,
    checkpoint: str | Path | None = None,
    compile: bool | None = None,
    progress: bool | None = None,
) -> list[Posterior | None]:
    """Train many members at once: several methods, strengths, seeds and data sets.

    Arguments:
        members: what to train.
        data: pairs `(theta, x)` of equal sizes; each member reads one.
        prior: the prior.
        settings: the protocol.
        validation_fraction: the share of each data set that judges.
        standardize: scale θ by the prior and x by the training pairs; the paper does not.
        embedding: as in `fit`, or an `Embedding`.
        network: as in `fit`.
        hidden: as in `fit`.
        transforms: as in `fit`.
        x_scale: what x is divided by where it is not standardised.
        device: where to train; None takes a GPU where there is one.
        split_seed: of the split into training and validation, where the protocol shuffles.
        checkpoint: as in `fit`.
        compile: as in `fit`.
        progress: as in `fit`.

    Returns:
        One posterior a member, in order, each with its own history; None where a member never had a finite loss.
    """
    prior = as_prior(prior)
    target = _device(device)
    dtype = torch.get_default_dtype()
    pairs = [check_pairs(theta, x, prior, dtype) for theta, x in data]
    sizes = {len(theta) for theta, _ in pairs}
    shapes = {tuple(x.shape[1:]) for _, x in pairs}
    if len(sizes) > 1 or len(shapes) > 1:
        raise ValueError(
            f"data sets that train together have equal sizes and shapes, got {sorted(sizes)} pairs of {sorted(shapes)}"
        )
    (n,), (x_shape,) = sizes, shapes
    objectives = [m.method.objective(**dict(m.objective)) for m in members]
    train_rows, validation_rows = split_rows(
        n, validation_fraction, settings, max(map(rolls_needed, objectives)), split_seed
    )

    body = _embedding(embedding, x_shape, progress)
    place = prior.to(target)
    loc, scale = (t.to(target) for t in theta_scaling(prior, standardize))
    nets = [_network(m, place, body, network, hidden, transforms, loc, scale) for m in members]
    constants = [_x_constants(body, x, train_rows, standardize and network is None, x_scale) for _, x in pairs]

    stacks: dict[str, list[int]] = {}
    for i, (net, objective) in enumerate(zip(nets, objectives, strict=True)):
        stacks.setdefault(_stack_key(net, objective), []).append(i)
    results: list[Posterior | None] = [None] * len(members)
    for number, chosen in enumerate(stacks.values()):
        label = "training" if len(stacks) == 1 else f"training stack {number + 1} of {len(stacks)}"
        mine = [members[i] for i in chosen]
        trained = _train(
            mine,
            [nets[i] for i in chosen],
            [objectives[i] for i in chosen],
            pairs,
            constants,
            (train_rows, validation_rows),
            settings,
            target,
            dtype,
            None if checkpoint is None else Path(checkpoint) / f"stack-{number}.safetensors",
            compile,
            progress,
            label,
        )
        for k, i in enumerate(chosen):
            results[i] = _posterior(members[i], nets[i], trained, k, settings, target, n)
        _report(trained, mine)
    return results


def _train(
    members: list[Member],
    nets: list[Network],
    objectives: list[Objective],
    pairs: list[tuple[Tensor, Any]],
    constants: list[tuple[Tensor, Tensor]],
    rows: tuple[Tensor, Tensor],
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
    path: Path | None,
    compile: bool | None,
    progress: bool | None,
    label: str,
) -> Trained:
    """One stack: its first weights, its data on the device, its loop."""
    layout = nets[0].layout
    flat = []
    for member, net in zip(members, nets, strict=True):
        seeds = [(integer(member.seed, "weights"), integer(member.seed, "embedding"))]
        mean, std = constants[member.data]
        flat.append(layout.flatten(net.init(seeds, [mean], [std])))
    sets = sorted({m.data for m in members})
    which_x = torch.tensor([sets.index(m.data) for m in members])
    # One code for each data set and way to encode θ.
    encodings: dict[tuple[int, str], Network] = {}
    for member, net in zip(members, nets, strict=True):
        encodings.setdefault((member.data, _encoding_key(net)), net)
    keys = list(encodings)
    which_code = torch.tensor([keys.index((m.data, _encoding_key(net))) for m, net in zip(members, nets, strict=True)])
    parts = []
    for chosen in rows:
        codes = [net.encode(pairs[d][0][chosen].to(device, dtype)) for (d, _), net in encodings.items()]
        xs = [_take(pairs[d][1], chosen) for d in sets]
        parts.append(Data(codes, xs, device))
    saved = None
    if path is not None:
        described = {
            "settings": dataclasses.asdict(settings),
            "members": [dataclasses.asdict(m) for m in members],
            "networks": [net.spec() for net in nets],
            "prior": nets[0].prior.spec(),
            "dtype": str(dtype),
            "compile": compile,
        }
        arrays = [a for d in sets for a in pairs[d]]
        saved = Checkpoint(path, fingerprint(described, [*arrays, *rows]))
    shuffles = torch.tensor([integer(m.seed, "shuffle") for m in members])
    return train_stack(
        nets[0],
        objectives,
        torch.cat(flat).to(dtype),
        shuffles,
        which_code,
        which_x,
        parts[0],
        parts[1],
        settings,
        compile=compile,
        checkpoint=saved,
        progress=progress,
        label=label,
    )


def _posterior(
    member: Member, net: Network, trained: Trained, k: int, settings: Settings, device: torch.device, n: int
) -> Posterior | None:
    """The posterior of one member of a trained stack."""
    if trained.best_epoch[k] < 0:
        return None
    stack = net.layout.cut(trained.flat[k : k + 1].to(device))
    epochs = int(trained.epochs[k])
    names = {"train_balance": "balance"}
    per_epoch = {names.get(n, n): (("epoch", "member"), a[:epochs, k : k + 1]) for n, a in trained.history.items()}
    per_member = {
        "best_epoch": ("member", trained.best_epoch[k : k + 1]),
        "best_loss": ("member", trained.best_loss[k : k + 1]),
        "epochs": ("member", trained.epochs[k : k + 1]),
        "diverged": ("member", trained.diverged[k : k + 1]),
    }
    history = xr.Dataset(per_epoch | per_member, coords={"epoch": range(epochs), "member": ["0"]})
    history.attrs |= {
        "compiled": int(trained.compiled),
        "stack_seconds": trained.seconds,
        "stack_members": len(trained.epochs),
    }
    record = {
        "method": dataclasses.asdict(member.method),
        "objective": dict(member.objective),
        "seeds": [member.seed],
        "settings": dataclasses.asdict(settings),
        "pairs": n,
        "torch": torch.__version__,
        "trained_on": str(device),
    }
    return Posterior(net, {name: w.clone() for name, w in stack.items()}, history, record)


def _report(trained: Trained, members: list[Member]) -> None:
    """Say which members diverged."""
    lost = np.flatnonzero(trained.diverged)
    if len(lost) == 0:
        return
    gone = [i for i in lost if trained.best_epoch[i] < 0]
    saved = [i for i in lost if trained.best_epoch[i] >= 0]
    parts = []
    if saved:
        parts.append(
            f"member(s) {', '.join(map(str, saved))} met a loss that was not finite and keep their best weights "
            "before it"
        )
    if gone:
        parts.append(f"member(s) {', '.join(map(str, gone))} never had a finite loss and are left out")
    names = sorted({m.method.name for m in members})
    warnings.warn(f"training {'/'.join(names)}: {'; '.join(parts)}. The others are not affected.", stacklevel=4)


# --- what a stack is made of -----------------------------------------------------------------------------------------


def _network(
    member: Member,
    prior: Prior,
    body: Embedding,
    own: nn.Module | None,
    hidden: Sequence[int] | None,
    transforms: int,
    loc: Tensor,
    scale: Tensor,
) -> Network:
    if own is not None:
        return UserNetwork(own, prior, body.x_shape)
    widths: dict[str, Any] = {} if hidden is None else {"hidden": tuple(hidden)}
    method = member.method
    if method.network == "classifier":
        return Classifier(prior, body, theta_loc=loc, theta_scale=scale, **widths)
    init = member.init or ("standard" if method.start == "random" else "scaled")
    return SplineFlow(
        prior, body, method.start, init, transforms=transforms, theta_loc=loc, theta_scale=scale, **widths
    )


def _encoding_key(net: Network) -> str:
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


def _embedding(embedding: nn.Module | Embedding | None, x_shape: tuple[int, ...], progress: bool | None) -> Embedding:
    if isinstance(embedding, Embedding):
        if embedding.x_shape != x_shape:
            raise ValueError(
                f"the embedding reads observations of shape {embedding.x_shape}, but x has shape {x_shape}"
            )
        return embedding
    if embedding is not None:
        return Module(embedding, x_shape)
    chosen = choose_embedding(x_shape)
    if len(x_shape) > 1 and progress is not False:
        kind = "a series (time, channels)" if len(x_shape) == 2 else "an image (channels, height, width)"
        print(f"observations of shape {x_shape} are read as {kind}: {chosen}; pass embedding= for another")
    return chosen


def _x_constants(body: Embedding, x: Any, rows: Tensor, standardize: bool, x_scale: float) -> tuple[Tensor, Tensor]:
    if standardize:
        mean, std = body.statistics(torch.as_tensor(_take(x, rows[: 1 << 16])))
    else:
        mean, std = torch.zeros(body.statistics_shape), torch.full(body.statistics_shape, float(x_scale))
    dtype = torch.get_default_dtype()
    return mean.to("cpu", dtype), std.to("cpu", dtype)  # where weights begin, wherever x is


def _take(x: Any, rows: Tensor) -> Any:
    """Some rows of an array; a view where they are contiguous."""
    lo, hi = int(rows[0]), int(rows[-1]) + 1
    if hi - lo == len(rows) and bool((rows[1:] > rows[:-1]).all()):
        return x[lo:hi]
    return x[rows] if isinstance(x, Tensor) else x[rows.numpy()]


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, but torch sees no GPU here; use device='cpu' or None")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device='{chosen}' was asked for, but torch sees {torch.cuda.device_count()} GPU(s) here, counted from 0"
        )
    return chosen
