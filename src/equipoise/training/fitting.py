"""`fit`: from simulations to a posterior. `fit_many`: many members, methods, strengths and data sets in one call."""

from __future__ import annotations

__all__ = ["fit", "fit_many", "members_of", "mixture_of", "suited"]

import dataclasses
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.losses import pairs_needed
from equipoise.methods import MIXTURES, Method, resolve_all
from equipoise.networks import Embedding, Flat, Flow, Network
from equipoise.posteriors import Posterior, describe_training
from equipoise.priors import Prior, as_prior
from equipoise.priors.agreement import warn_unless_drawn_from
from equipoise.support.checks import finite_number, true_or_false, whole_number
from equipoise.support.devices import as_device
from equipoise.support.errors import warn
from equipoise.support.randomness import integer
from equipoise.support.words import did_you_mean

from .checkpoint import Checkpoint
from .crossfit import calibrated, fold_rows, weighted_by_score
from .data import take
from .inputs import Pairs, check_pairs, named_prior, split_rows, warn_about_few
from .loop import OnEpoch, Trained, train_stack
from .members import Member, grouped, network_of, stack_identity, stack_inputs
from .modules import SHORT, as_embedding, try_out
from .outcome import posterior_of, warn_of_divergence, warn_of_idle_members
from .settings import DEFAULT, FOLDS, MOST_MEMBERS, PAPER, SMALL, SMALL_STEPS, Settings, batch_for
from .stacks import Job, trained_at_once
from .standardize import rows_to_read, theta_scaling, x_scaling


def fit(
    theta: Any,
    x: Any = None,
    *,
    prior: Any,
    method: str | Method | Sequence[str | Method] = "calibrated",
    balance: str | None = None,
    balance_strength: float | None = None,
    start: str | None = None,
    members: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    validation_fraction: float | None = None,
    standardize: bool = True,
    keep: str | None = None,
    embedding: nn.Module | Embedding | str | None = None,
    network: nn.Module | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    folds: int | str | None = "auto",
    calibrate: bool | None = None,
    settings: Settings | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
    names: Sequence[str] | None = None,
    **unknown: Any,
) -> Posterior:
    """Train a posterior on simulated pairs.

    Arguments:
        theta: parameters drawn from the prior, with shape `(N, D)`; or simulations, as `eq.simulate` returns them,
            which hold x too.
        x: what the simulator made of them, with shape `(N, *x_shape)`: a tensor, an array, a table, the simulations
            themselves, or what reads rows from a file (`numpy.memmap`, an h5py dataset).
        prior: `eq.BoxUniform`, a list or dictionary of distributions, one per parameter, any torch distribution over
            vectors, or anything with `sample` and `log_prob`.
        method: "calibrated", small spline flows, cross-fitted, mixed, and tempered until their coverage is
            conservative; a method of the paper by its name in `eq.METHODS`; one of your own,
            `eq.METHODS["bnpe"].but(hidden=(64, 64))`; or several of these, whose members are mixed.
        balance: "none", "chi2", "kl", or for contrastive losses "multiclass"; None follows the method.
        balance_strength: λ; None follows the method (100 in balanced rows).
        start: "random", "prior" or "prior_base", for flows; None follows the method.
        members: how many networks to train; the posterior is their mixture. None for 5 of each method. `members=1` is
            a quick look: with the default method one network on one split, neither cross-fitted nor calibrated.
        epochs: at most this many; None follows the settings (500, or 100 if the method is "calibrated").
        batch_size: pairs in a batch; None follows the settings (256, or fewer where an epoch would have fewer than 4
            steps, 12 if the method is "calibrated").
        validation_fraction: the share of the pairs that validates and never trains; None for 0.1.
        standardize: scale θ by the prior and x by the training pairs (with folds, by all). A flow is the identity
            beyond ±5, so leave this on.
        keep: "best" validation weights or the "last"; None follows the settings ("best").
        embedding: an `nn.Module` from `(N, *x_shape)` to `(N, C)`; "flatten"; "convolution" for a series (T, C) or an
            image (C, H, W); None flattens x of at most 64 numbers. Flattened heavy-tailed numbers are read as normal
            scores too, if x is standardised.
        network: a module of your own with `log_ratio(theta, x)`, trained with the method's loss.
        device: where to train; None takes a GPU where there is one, and returns the posterior to where `theta` is.
        seed: of everything random.
        checkpoint: a directory that keeps the state, so that a training that was killed or interrupted goes on.
        folds: F for cross-fitting: member m trains on all pairs but one of F folds, which validates it, so that every
            pair can be judged by members that never trained on it (`training.crossfit`). None for one common split;
            "auto" for 5 if the method is "calibrated" and there are as many members, and else None.
        calibrate: temper the mixture towards the prior as the out-of-fold pairs say; None for True if the method is
            "calibrated" and there are folds.
        settings: how to train: `eq.Settings(learning_rate=…, patience=…, clip=…, …)`. None for `training.SMALL` if the
            method is "calibrated" (one cycle of the learning rate, averaged weights), and else for `eq.Settings()`.
        on_epoch: a function for trackers, called with the number of each epoch and a dictionary of arrays with shape
            `(members,)`: train_loss, validation_loss, balance, validation_balance, learning_rate; NaN for members
            that have stopped. On a GPU it is called in bursts of several epochs.
        progress: False for silence.
        names: of the parameters; those of the simulations, of a table's columns or of the prior unless given.
        unknown: a TypeError that says where a keyword is now.

    Returns:
        The mixture of the members, as a `Posterior`.
    """
    if unknown:
        raise TypeError(_where_it_went(*next(iter(unknown.items()))))
    rows = resolve_all(method, balance, balance_strength, start)
    members = 5 * len(rows) if members is None else whole_number("members", members, 1, MOST_MEMBERS)
    if network is not None and any(row.network != "classifier" for row in rows):
        raise ValueError("network= is trained as a classifier, and this method trains a flow; use method='nre', say")
    mixture = isinstance(method, str) and method in MIXTURES
    if folds == "auto":
        folds = FOLDS if mixture and members >= FOLDS else None
    if isinstance(folds, str):
        raise ValueError(f"folds is a number, None or 'auto', got {folds!r}")
    calibrate = mixture and folds is not None if calibrate is None else true_or_false("calibrate", calibrate)
    if calibrate and folds is None:
        raise ValueError("calibrate=True needs out-of-fold pairs: give folds=5 and as many members or more")
    if settings is not None and not isinstance(settings, Settings):
        raise TypeError(f"settings is an eq.Settings, got {settings!r}")
    given: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "keep": keep}
    chosen = settings or (SMALL if mixture else DEFAULT)
    settings = dataclasses.replace(chosen, **{k: v for k, v in given.items() if v is not None})
    prior = named_prior(as_prior(prior), names, theta, x)
    if x is None:
        theta, x = _theta_and_x(theta)
    home = theta.device if isinstance(theta, Tensor) else torch.device("cpu")
    if mixture and start is None:
        rows = suited(rows, prior)
    pairs = check_pairs(theta, x, prior, torch.get_default_dtype())
    warn_unless_drawn_from(prior, pairs.theta)
    share = _validation_share(validation_fraction, folds)
    warn_about_few(len(pairs.theta), share)
    if mixture and settings.batch_size is None:
        settings = dataclasses.replace(settings, batch_size=batch_for(len(pairs.theta), share, SMALL_STEPS))
    if folds is not None and members < folds:
        raise ValueError(f"folds={folds} needs at least as many members, got members={members}")
    wanted = members_of(rows, [integer(seed, "member", m) for m in range(members)], folds)
    if network is None:
        x_shape = tuple(pairs.x.shape[1:])
        embedding = as_embedding(embedding, x_shape, progress, SHORT, pairs.x if standardize else None)
    posteriors = fit_many(
        wanted,
        [pairs],
        prior=prior,
        settings=settings,
        validation_fraction=validation_fraction,
        folds=folds,
        standardize=standardize,
        embedding=embedding,
        network=network,
        device=device,
        split_seed=seed,
        checkpoint=checkpoint,
        on_epoch=on_epoch,
        progress=progress,
    )
    name = method if isinstance(method, str) else "+".join(row.name for row in rows)
    whole = mixture_of(posteriors, rows, pairs, name, settings, seed, calibrate=calibrate, progress=progress)
    if whole is None:
        raise RuntimeError(
            f"all members ({members}) diverged: no validation loss was ever finite. Lower learning_rate (now "
            f"{settings.learning_rate}) or clip (now {settings.clip}) in settings=, and check x for extreme values."
        )
    if mixture and progress is not False:
        few = f"; {FOLDS} members or more are cross-fitted and calibrated" if members < FOLDS else ""
        print(f"{whole!r}{few}", file=sys.stderr)
    return whole if device is not None else whole.to(home)


def suited(rows: Sequence[Method], prior: Prior) -> tuple[Method, ...]:
    """The methods of a mixture such as "calibrated" with a start that the prior allows."""
    return tuple(rows) if prior.has_normal_map else tuple(row.but(start="random") for row in rows)


def members_of(
    rows: Sequence[Method], seeds: Sequence[int], folds: int | None, data: int = 0, keep: str | None = None
) -> list[Member]:
    """The members of one posterior, in order: one per seed. They take the methods in turn, and the folds.

    With a member of every method in every fold, the folds can tell what each method is worth.
    """
    kinds = len(rows)
    turn = kinds if folds is not None and len(seeds) >= kinds * folds else 1
    return [
        Member(rows[m % kinds], seed, data, keep, None if folds is None else m // turn % folds)
        for m, seed in enumerate(seeds)
    ]


def mixture_of(
    posteriors: Sequence[Posterior | None],
    rows: Sequence[Method],
    pairs: Pairs,
    name: str,
    settings: Settings,
    seed: int,
    *,
    calibrate: bool,
    progress: bool | None = None,
) -> Posterior | None:
    """The posterior of trained members: their mixture, with weights and a temperature as the folds say.

    Arguments:
        posteriors: of `members_of`, trained; None for those that diverged.
        rows: their methods.
        pairs: that they were trained on.
        name: of the mixture of several methods.
        settings: that they were trained with.
        seed: of the calibration.
        calibrate: whether to choose a temperature, for which there have to be folds.
        progress: False for no progress bar.

    Returns:
        None if all members diverged.
    """
    kinds = len(rows)
    alive = [p for p in posteriors if p is not None]
    if not alive:
        return None
    for g, row in enumerate(rows):
        warn_of_idle_members([p for p in posteriors[g::kinds] if p is not None], row.objective, settings)
    for m, one in enumerate(posteriors):
        if one is not None and kinds > 1:
            one.record["group"] = [m % kinds]
    whole = Posterior.joined(alive)
    if kinds > 1:
        whole.record |= {"method": {"name": name}, "methods": [dataclasses.asdict(row) for row in rows]}
        if "folds" in whole.record:
            whole = weighted_by_score(whole, whole.record["group"], pairs)
    if calibrate:
        whole = calibrated(whole, pairs, seed, progress)
        if whole.calibration is not None and not whole.calibration.certified:
            warn(f"the posterior is not seen to be conservative: {whole.calibration.message}")
    return whole


def fit_many(
    members: Sequence[Member],
    data: Sequence[tuple[Any, Any]],
    *,
    prior: Any,
    settings: Settings = PAPER,
    validation_fraction: float | None = None,
    folds: int | None = None,
    standardize: bool = False,
    embedding: nn.Module | Embedding | str | None = None,
    network: nn.Module | None = None,
    x_scale: float = 1.0,
    device: str | torch.device | None = None,
    split_seed: int = 0,
    checkpoint: str | Path | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
) -> list[Posterior | None]:
    """Train many members at once: several methods, strengths, seeds and data sets.

    Arguments:
        members: what to train; with folds, each with its fold.
        data: pairs `(theta, x)` of equal sizes; each member reads one.
        standardize: as in `fit`; the paper does not.
        x_scale: what x is divided by where it is not standardised.
        split_seed: of the folds, or of the split into training and validation, where the settings shuffle.

    All others are as in `fit`.

    Returns:
        One posterior per member, in order, each with its own history; None where a member never had a finite loss.
        Members that differ only in the weights they keep are trained once.
    """
    _check(standardize, checkpoint, network, on_epoch, progress)
    wanted = list(members)
    members = list(dict.fromkeys(m.training for m in wanted))
    prior = as_prior(prior)
    target = as_device(device)
    dtype = torch.get_default_dtype()
    pairs = [pair if isinstance(pair, Pairs) else check_pairs(*pair, prior, dtype) for pair in data]
    shapes = sorted({tuple(x.shape) for _, x in pairs})
    if len(shapes) > 1:
        raise ValueError(f"data sets that train together have equal sizes and shapes; x has {shapes}")
    ((n, *rest),) = shapes
    x_shape = tuple(rest)
    if not all((m.fold is None) if folds is None else (m.fold in range(folds)) for m in members):
        raise ValueError(f"each member has a fold from 0 to folds - 1, or None without folds; folds={folds}")
    share = _validation_share(validation_fraction, folds)
    least = max(pairs_needed(m.method.objective) for m in members)
    if folds is None:
        used, judge = split_rows(n, share, settings, least, split_seed)
        rows = used.unsqueeze(0), judge.unsqueeze(0)
    else:
        used, rows = torch.arange(n), fold_rows(n, folds, least, split_seed)
    if settings.batch_size is None:
        settings = dataclasses.replace(settings, batch_size=batch_for(n, share))

    # A network of your own sees x as it is.
    body = as_embedding(embedding if network is None else Flat(x_shape), x_shape, progress)
    place = prior.to(target)
    loc, scale = (t.to(target) for t in theta_scaling(prior, standardize))
    nets = [network_of(m, place, body, loc, scale, network) for m in members]
    scales = [x_scaling(body, x, used, standardize and network is None, x_scale) for _, x in pairs]
    try_out(nets[0], pairs, used, scales)
    # The paper's protocols know their data; yours may meet an observation that is unlike them.
    some = used[: rows_to_read(1 << 14, x_shape)]
    memories = [
        describe_training(theta[some], torch.as_tensor(take(x, some)), body.statistics_shape) if standardize else {}
        for theta, x in pairs
    ]

    places: dict[Member, tuple[Network, Trained, int]] = {}
    stacks = [([members[i] for i in chosen], [nets[i] for i in chosen]) for chosen in grouped(members, nets)]

    def job(number: int) -> Job:
        """What `train_stack` is given for a stack."""
        mine, their_nets = stacks[number]
        inputs = stack_inputs(mine, their_nets, pairs, scales, rows, settings, target)
        kept = None
        if checkpoint is not None:
            identity = stack_identity(inputs, mine, their_nets, pairs, settings)
            kept = Checkpoint(Path(checkpoint) / f"stack-{number}.safetensors", identity)
        reported = None if on_epoch is None else partial(_of_all, on_epoch, mine, wanted)
        return Job(inputs, {"checkpoint": kept, "on_epoch": reported})

    # On a GPU, or where networks are large, a stack is made when it is its turn: two need not be in memory.
    small = target.type == "cpu" and on_epoch is None and all(isinstance(net, Flow) for net in nets)
    found = trained_at_once(job, len(stacks), settings, progress) if small and len(stacks) > 1 else None
    for number, (mine, their_nets) in enumerate(stacks):
        if found is not None:
            trained = found[number]
        else:
            inputs, options = job(number)
            label = "training" if len(stacks) == 1 else f"training stack {number + 1} of {len(stacks)}"
            trained = train_stack(inputs, settings, progress=progress, label=label, **options)
        places |= {member: (net, trained, k) for k, (member, net) in enumerate(zip(mine, their_nets, strict=True))}
        warn_of_divergence(trained, mine, wanted)
    common = {"pairs": n} | ({} if folds is None else {"folds": int(folds), "split_seed": int(split_seed)})
    facts = [common | {"memory": memory} for memory in memories]
    return [posterior_of(m, *places[m.training], settings, target, facts[m.data]) for m in wanted]


def _validation_share(validation_fraction: float | None, folds: int | None) -> float:
    """The share of the pairs that validates a member."""
    if folds is None:
        share = 0.1 if validation_fraction is None else validation_fraction
        return finite_number("validation_fraction", share, above=0, below=1)
    if validation_fraction is not None:
        raise ValueError("validation_fraction and folds exclude each other: a fold validates")
    return 1 / whole_number("folds", folds, least=2)


def _where_it_went(name: str, value: Any) -> str:
    """Where to give a keyword that `fit` does not have."""
    if name in Settings.__dataclass_fields__:
        return f"{name} describes the training; give it as settings=eq.Settings({name}={value!r})"
    if name in Method.__dataclass_fields__:
        return f"{name} describes the method; give it as method=eq.METHODS[NAME].but({name}={value!r})"
    names = [n for n in fit.__annotations__ if n not in ("return", "unknown")]
    return did_you_mean(name, names, "argument of fit")


def _theta_and_x(pairs: Any) -> tuple[Any, Any]:
    """The parameters and the observations of simulations."""
    pairs = pairs.read() if not hasattr(pairs, "theta") and hasattr(pairs, "read") else pairs  # a store
    if not hasattr(pairs, "theta") or not (hasattr(pairs, "x") or hasattr(pairs, "lazy_x")):
        raise TypeError(
            f"x is missing: give eq.fit(theta, x, prior=…), or simulations, which hold both; got {type(pairs).__name__}"
        )
    return pairs.theta, pairs.lazy_x if hasattr(pairs, "lazy_x") else pairs.x


def _check(standardize: Any, checkpoint: Any, network: Any, on_epoch: Any, progress: Any) -> None:
    """Arguments that nothing else checks before training."""
    true_or_false("standardize", standardize)
    if progress is not None:
        true_or_false("progress", progress)
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise TypeError(f"checkpoint is the path of a directory, got {checkpoint!r}")
    if network is not None and not (isinstance(network, nn.Module) and hasattr(network, "log_ratio")):
        raise TypeError(f"network is an nn.Module with log_ratio(theta, x), got {network!r}")
    if on_epoch is not None and not callable(on_epoch):
        raise TypeError(f"on_epoch is a function of an epoch's number and its values, got {on_epoch!r}")


def _of_all(
    on_epoch: OnEpoch, mine: Sequence[Member], wanted: Sequence[Member], epoch: int, values: dict[str, np.ndarray]
) -> None:
    """Pass on the values of a stack's members as those of all members; NaN for those of other stacks."""
    place = {member: k for k, member in enumerate(mine)}
    rows = [place.get(m.training, -1) for m in wanted]
    on_epoch(epoch, {n: np.array([v[k] if k >= 0 else np.nan for k in rows]) for n, v in values.items()})
