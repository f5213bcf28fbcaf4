"""Training a stack: epochs of steps, validation over the whole set, members that leave when they have converged.

`train_stack` is the loop. Between two departures the stack is a `Segment`: fixed buffers, and on a GPU two captured
graphs (a step; the end of an epoch). The host looks at who is still training every few epochs only, on a fixed
schedule, so that what a member is stacked with never depends on how fast the machine is.
"""

from __future__ import annotations

__all__ = ["OnEpoch", "Trained", "train_stack"]

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.losses import Objective, objective_kinds, pairs_needed, rolls_needed
from equipoise.networks import Network, matmul_precision
from equipoise.support.errors import warn
from equipoise.support.progress import Progress

from .checkpoint import Checkpoint
from .data import Data
from .plateau import Control
from .segment import HISTORY, Segment
from .settings import Settings
from .step import State, compiler_available, program

#: Epochs between two looks from the host on a GPU.
LOOK_EVERY = 5
#: The stack is made smaller once this share of it, or less, is still training.
SHRINK_AT = 0.75
#: Compiling pays back from about this many member-steps on, on a CPU and on a GPU.
PAYS_BACK = {"cpu": 20_000, "cuda": 200_000}

#: Called with the number of an epoch and the numbers of every member, with shape `(M,)`: those of `HISTORY` but the
#: seconds, under the names they have in a posterior's history. NaN for members that have stopped.
OnEpoch = Callable[[int, dict[str, np.ndarray]], None]


@dataclasses.dataclass
class Trained:
    """What comes out of a stack of M members.

    Arguments:
        best: the weights of the best validation loss, with shape `(M, P)`, on the CPU.
        last: those after the last epoch; the best ones of a member that diverged.
        history: for each of `HISTORY`, an array with shape `(epochs, M)`; NaN after a member has stopped.
        best_epoch: the epoch of the best validation loss, with shape `(M,)`; -1 where none was finite.
        best_loss: that loss, with shape `(M,)`.
        diverged: who met a loss that was not finite, with shape `(M,)`.
        epochs: how many epochs each trained, with shape `(M,)`.
        compiled: whether the step was compiled.
        seconds: how long it took.
    """

    best: Tensor
    last: Tensor
    history: dict[str, np.ndarray]
    best_epoch: np.ndarray
    best_loss: np.ndarray
    diverged: np.ndarray
    epochs: np.ndarray
    compiled: bool
    seconds: float


def train_stack(
    network: Network,
    objectives: Sequence[Objective],
    flat: Tensor,
    keys: Tensor,
    which_code: Tensor,
    which_x: Tensor,
    train: Data,
    validation: Data,
    settings: Settings,
    *,
    compile: bool | None = None,
    checkpoint: Checkpoint | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
    label: str = "training",
) -> Trained:
    """Train a stack of M members to the end.

    Arguments:
        network: the architecture they share.
        objectives: what each minimises.
        flat: their first weights, with shape `(M, P)`.
        keys: the key of each member's shuffles, with shape `(M,)`.
        which_code: the code set of each member, with shape `(M,)`.
        which_x: the data set of each member, with shape `(M,)`.
        train: the training sets.
        validation: the validation sets.
        settings: the protocol.
        compile: True or False to force; None decides by whether it would pay back.
        checkpoint: where to keep the state of an unfinished training.
        on_epoch: told of every epoch, see `OnEpoch`.
        progress: False for silence.
        label: what the progress bar calls it.
    """
    device = train.device
    started = time.monotonic()
    members = flat.shape[0]
    batch = min(settings.batch_size, train.n)
    rolls = max(map(rolls_needed, objectives))
    least = max(map(pairs_needed, objectives))
    if batch < least:
        raise ValueError(
            f"a batch of {batch} pairs is too small for {rolls} rolls of θ, which need {least}; use a larger "
            "batch_size or fewer contrastive parameters"
        )
    if compile is None:
        steps = settings.epochs * max(train.n // batch, 1) * members
        compile = steps >= PAYS_BACK.get(device.type, 0) and compiler_available(device)
    kinds, index = objective_kinds(objectives)
    prog = program(network, tuple(kinds), rolls, compile, device)

    state = State.fresh(flat.to(device).clone(), settings.learning_rate)
    control = Control.fresh(state)
    network.embedding.prepare(state.flat.device)
    history = {name: np.full((settings.epochs, members), np.nan) for name in HISTORY}
    kept = {
        "best": flat.clone().cpu().numpy(),
        "last": flat.clone().cpu().numpy(),
        "best_epoch": np.full(members, -1),
        "best_loss": np.full(members, np.inf),
    }
    kept |= {"diverged": np.zeros(members, bool), "epochs": np.zeros(members, int)}
    ids, epoch, spent = np.arange(members), 0, 0.0

    if checkpoint is not None:
        checkpoint.prepare()
    found = checkpoint.load() if checkpoint is not None else None
    if found is not None:
        state = State(**{n: found[f"state.{n}"].to(device) for n in state.tensors()})
        control = Control(**{n: found[f"control.{n}"].to(device) for n in control.tensors()})
        history = {n: found[f"history.{n}"].numpy() for n in history}
        kept = {n: found[f"kept.{n}"].numpy() for n in kept}
        ids, epoch, spent = found["ids"].numpy(), int(found["epoch"]), float(found["spent"])

    def collect(segment: Segment) -> None:
        """Bring what the device knows of these members to the host."""
        segment.collect(history, ids)
        best = segment.control.best_flat
        kept["best"][ids] = best.cpu().numpy()
        kept["last"][ids] = torch.where(segment.control.diverged.unsqueeze(1), best, segment.state.flat).cpu().numpy()
        for name in ("best_epoch", "best_loss", "diverged"):
            kept[name][ids] = getattr(segment.control, name).cpu().numpy()
        kept["epochs"][ids] = np.isfinite(history["learning_rate"][:, ids]).sum(0)

    def save(segment: Segment) -> None:
        if checkpoint is None:
            return
        collect(segment)
        tensors = {f"state.{n}": t for n, t in segment.state.tensors().items()}
        tensors |= {f"control.{n}": t for n, t in segment.control.tensors().items()}
        tensors |= {f"history.{n}": torch.from_numpy(a) for n, a in history.items()}
        tensors |= {f"kept.{n}": torch.as_tensor(a) for n, a in kept.items()}
        tensors |= {"ids": torch.from_numpy(ids), "epoch": torch.tensor(epoch)}
        spent_now = torch.tensor(spent + time.monotonic() - started, dtype=torch.float64)
        try:
            checkpoint.save(tensors | {"spent": spent_now})
        except OSError as error:  # a full disk costs what could have been resumed, and not what was trained
            warn(f"the checkpoint {checkpoint.path} could not be written ({error})")

    kind, strength = torch.tensor(index), torch.tensor([o.strength for o in objectives], dtype=flat.dtype)
    absolute = torch.tensor([_is_absolute(o, settings) for o in objectives])

    def segment_of(ids: np.ndarray, state: State, control: Control) -> Segment:
        rows = torch.from_numpy(ids)
        per_member = [t[rows].to(device) for t in (kind, strength, absolute, keys, which_code, which_x)]
        return Segment(prog, state, control, per_member, train, validation, settings, batch, least)

    segment = segment_of(ids, state, control)
    bar = Progress(label, settings.epochs, progress, done=epoch, at_most=settings.early_stop)
    with _current(device), matmul_precision(settings.tf32), bar:
        bar.advance(0)
        while epoch < settings.epochs:
            look = min(settings.epochs, epoch + (LOOK_EVERY if device.type == "cuda" else 1))
            before = epoch
            while epoch < look:
                segment.run_epoch(epoch)
                epoch += 1
            active = segment.state.active.cpu()
            if on_epoch is not None:
                for number, values in segment.told(before, epoch, ids, members):
                    on_epoch(number, values)
            bar.advance(epoch - before, segment.note(members), last=not bool(active.any()))
            if not bool(active.any()):
                break
            if checkpoint is not None and checkpoint.due():
                save(segment)
            if int(active.sum()) <= SHRINK_AT * len(active):
                collect(segment)
                rows = active.nonzero().squeeze(1)
                keep = rows.to(device)
                ids = ids[rows.numpy()]
                segment = segment_of(ids, segment.state.select(keep), segment.control.select(keep))
    collect(segment)
    save(segment)
    ran = max(int(kept["epochs"].max()), 1)
    return Trained(
        best=torch.from_numpy(kept["best"]),
        last=torch.from_numpy(kept["last"]),
        history={n: a[:ran] for n, a in history.items()},
        best_epoch=kept["best_epoch"],
        best_loss=kept["best_loss"],
        diverged=kept["diverged"],
        epochs=kept["epochs"],
        compiled=prog.fast is not None,
        seconds=spent + time.monotonic() - started,
    )


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Graphs are captured on the current GPU, so it has to be the one that the stack is on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _is_absolute(objective: Objective, settings: Settings) -> bool:
    if settings.threshold_mode == "auto":
        return objective.can_be_negative
    return settings.threshold_mode == "absolute"
