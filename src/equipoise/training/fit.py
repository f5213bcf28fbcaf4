"""`fit`: from simulations to a posterior. `fit_many`: many members, methods, strengths and data sets in one call."""

from __future__ import annotations

__all__ = ["fit", "fit_many"]

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.losses import pairs_needed
from equipoise.methods import Method, resolve
from equipoise.networks import Embedding, Flat, Network
from equipoise.posteriors import Posterior, describe_training
from equipoise.priors import as_prior
from equipoise.priors.agreement import warn_unless_drawn_from
from equipoise.support.randomness import integer

from .data import take
from .inputs import (
    Pairs,
    as_device,
    as_embedding,
    batch_for,
    check_pairs,
    split_rows,
    warn_about_few,
)
from .loop import OnEpoch, Trained
from .members import Member, network_of
from .outcome import posterior_of, report_divergence, report_idleness
from .scaling import affordable, theta_scaling, x_scaling
from .settings import PAPER, Settings
from .stacking import grouped, train_members
from .trial import try_out


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
    batch_size: int | None = None,
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
    clip: float | None = 5.0,
    unbiased_balance: bool = False,
    normalized_balance: bool = False,
    contrastive: int = 5,
    gamma: float = 1.0,
    init: str | None = None,
    hidden: Sequence[int] | None = None,
    transforms: int = 3,
    compile: bool | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
) -> Posterior:
    """Train a posterior on simulated pairs.

    Arguments:
        theta: parameters drawn from the prior, with shape `(N, D)`.
        x: what the simulator made of them, with shape `(N, *x_shape)`: a tensor, an array, a table, the simulations
            themselves (`pairs`, or an `eq.Store`), or what reads rows from a file (`numpy.memmap`, an h5py dataset).
            Whole-number dtypes are kept as they are until they are used.
        prior: the prior: `eq.BoxUniform`, any torch distribution over vectors, or anything with `sample` and
            `log_prob`.
        method: a row of `eq.METHODS`. The default, a balanced flow started at the prior, draws fast and cannot leak;
            a mixture of several is wider than one of them, which alone is often overconfident.
        balance: "none", "chi2", "kl", or for contrastive losses "multiclass"; None follows the method.
        balance_strength: λ; None follows the method (100 in balanced rows).
        start: "random", "prior" or "prior_base", for flows; None follows the method.
        members: how many networks to train; the posterior is their mixture.
        epochs: at most this many.
        batch_size: pairs in a batch; None for 256, or for fewer where an epoch would have fewer than 4 steps.
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
        clip: the largest norm of a member's gradient; None for no limit, as in the paper. Without one, spline flows
            lose what they have learnt now and then.
        unbiased_balance: estimate a χ² balance without bias from the batch.
        normalized_balance: balance h - log Ẑ(x) instead of h, for classifiers.
        contrastive: K of NRE-C.
        gamma: γ of NRE-C.
        init: "standard", "scaled" or "identity" weights of a flow; None for the paper's choice.
        hidden: widths of the hidden layers; None for the paper's (6 × 256, or 3 × 256 in each transform of a flow).
        transforms: of a flow.
        compile: whether to use torch.compile; None where it pays back.
        on_epoch: a function for trackers, called with the number of each epoch and a dictionary of arrays with shape
            `(members,)`: train_loss, validation_loss, balance, validation_balance, learning_rate; NaN for members
            that have stopped. On a GPU it hears of several epochs in a row.
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
            "flow. Choose one of nre, bnre, nre_c, bnre_c."
        )
    options = {
        "unbiased": unbiased_balance,
        "normalized": normalized_balance,
        "contrastive": contrastive,
        "gamma": gamma,
    }
    settings = Settings(
        epochs=epochs,
        batch_size=batch_for(len(theta), validation_fraction) if batch_size is None else batch_size,
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
    prior = as_prior(prior)
    pairs = check_pairs(theta, x, prior, torch.get_default_dtype())
    warn_unless_drawn_from(prior, pairs.theta)
    warn_about_few(len(pairs.theta), validation_fraction)
    posteriors = fit_many(
        specs,
        [pairs],
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
        on_epoch=on_epoch,
        progress=progress,
    )
    alive = [p for p in posteriors if p is not None]
    if not alive:
        raise RuntimeError(
            f"{'the member' if members == 1 else f'all {members} members'} diverged: no validation loss was ever "
            f"finite. Lower learning_rate (now {learning_rate})"
            + ("" if clip is None else f" or clip (now {clip})")
            + ", and check x for extreme values."
        )
    report_idleness(alive, row.objective(**options), settings)
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
    on_epoch: OnEpoch | None = None,
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
        on_epoch: as in `fit`, of all members.
        progress: as in `fit`.

    Returns:
        One posterior a member, in order, each with its own history; None where a member never had a finite loss.
        Members that differ in the weights they keep alone are trained once.
    """
    wanted = list(members)
    members = list(dict.fromkeys(m.training for m in wanted))
    prior = as_prior(prior)
    target = as_device(device)
    dtype = torch.get_default_dtype()
    pairs = [pair if isinstance(pair, Pairs) else check_pairs(*pair, prior, dtype) for pair in data]
    sizes = {len(theta) for theta, _ in pairs}
    shapes = {tuple(x.shape[1:]) for _, x in pairs}
    if len(sizes) > 1 or len(shapes) > 1:
        raise ValueError(
            f"data sets that train together have equal sizes and shapes, got {sorted(sizes)} pairs of {sorted(shapes)}"
        )
    (n,), (x_shape,) = sizes, shapes
    objectives = [m.method.objective(**dict(m.objective)) for m in members]
    rows = split_rows(n, validation_fraction, settings, max(map(pairs_needed, objectives)), split_seed)

    # A network of your own sees x as it is.
    body = as_embedding(embedding if network is None else Flat(x_shape), x_shape, progress)
    place = prior.to(target)
    loc, scale = (t.to(target) for t in theta_scaling(prior, standardize))
    nets = [network_of(m, place, body, loc, scale, own=network, hidden=hidden, transforms=transforms) for m in members]
    constants = [x_scaling(body, x, rows[0], standardize and network is None, x_scale) for _, x in pairs]
    try_out(nets[0], pairs, rows[0], constants)
    # The paper's protocols know their data; yours may meet an observation that is unlike them.
    some = rows[0][: affordable(1 << 14, x_shape)]
    memories = [
        describe_training(theta[some], torch.as_tensor(take(x, some)), body.statistics_shape) if standardize else {}
        for theta, x in pairs
    ]

    places: dict[Member, tuple[Network, Trained, int]] = {}
    stacks = grouped(nets, objectives)
    for number, chosen in enumerate(stacks):
        mine = [members[i] for i in chosen]
        trained = train_members(
            mine,
            [nets[i] for i in chosen],
            [objectives[i] for i in chosen],
            pairs,
            constants,
            rows,
            settings,
            target,
            path=None if checkpoint is None else Path(checkpoint) / f"stack-{number}.safetensors",
            compile=compile,
            on_epoch=None if on_epoch is None else partial(_tell, on_epoch, mine, wanted),
            progress=progress,
            label="training" if len(stacks) == 1 else f"training stack {number + 1} of {len(stacks)}",
        )
        places |= {member: (nets[i], trained, k) for k, (member, i) in enumerate(zip(mine, chosen, strict=True))}
        report_divergence(trained, mine, wanted)
    return [posterior_of(m, *places[m.training], settings, target, n, memories[m.data]) for m in wanted]


def _tell(
    on_epoch: OnEpoch, mine: Sequence[Member], wanted: Sequence[Member], epoch: int, values: dict[str, np.ndarray]
) -> None:
    """Pass on what a stack says of its members as what all that were wanted do; NaN for those of other stacks."""
    place = {member: k for k, member in enumerate(mine)}
    rows = [place.get(m.training, -1) for m in wanted]
    on_epoch(epoch, {n: np.array([v[k] if k >= 0 else np.nan for k in rows]) for n, v in values.items()})
