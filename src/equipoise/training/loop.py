"""The training loop of a stack: epochs of steps, validation, members that leave when they have converged.

`train_stack` is the loop. On a GPU, which members are still training is checked every few epochs, on a fixed schedule,
so that what a member is stacked with never depends on how fast the machine is.
"""

from __future__ import annotations

__all__ = ["OnEpoch", "StackInputs", "Trained", "train_stack"]

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from equipoise.losses import Objective, objective_kinds, objective_terms, pairs_needed, rolls_needed
from equipoise.networks import Network, matmul_precision
from equipoise.support.errors import warn
from equipoise.support.progress import Progress

from .batches import Batches
from .checkpoint import Checkpoint
from .data import Data
from .graphs import Graphs
from .settings import Settings
from .state import HISTORY, MemberState
from .step import Plan, compiler_available, log_ratios, program_for, step

#: Epochs between two checks of which members are still training; each of which makes a GPU wait.
CHECK_EVERY = {"cpu": 1, "cuda": 5}
#: The stack is made smaller once this share of it, or less, is still training.
SHRINK_AT = 0.75
#: Compiling pays back from about this many steps of single members on.
COMPILE_FROM = {"cpu": 20_000, "cuda": 200_000}

#: Called with the number of an epoch and a dictionary of arrays with shape `(M,)`, one for each of `HISTORY`; NaN for
#: members that have stopped.
OnEpoch = Callable[[int, dict[str, np.ndarray]], None]


@dataclasses.dataclass(frozen=True)
class StackInputs:
    """What a stack of members is trained from."""

    network: Network  # the architecture they share
    objectives: Sequence[Objective]  # what each minimises
    state: MemberState  # all members before the first step, on the CPU
    data: Data
    rows: tuple[Tensor, Tensor]  # those that train and those that validate, as in `Batches`


@dataclasses.dataclass(frozen=True)
class Trained:
    """What comes out of a stack."""

    state: MemberState  # all members after the last epoch, on the CPU
    epoch_seconds: Tensor  # how long each epoch took, with shape `(epochs,)`
    compiled: bool
    seconds: float  # how long all of it took


def train_stack(
    inputs: StackInputs,
    settings: Settings,
    *,
    checkpoint: Checkpoint | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
    label: str = "training",
) -> Trained:
    """Train a stack of members to the end; arguments as in `fit`, but `batch_size` is a number here."""
    started, device = time.monotonic(), inputs.data.device
    plan = _plan(inputs, settings)
    inputs.network.embedding.prepare(device)
    all_members = inputs.state.clone()  # on the CPU; updated from the device when members leave
    present, epoch, spent = torch.arange(len(all_members.weights)), 0, 0.0
    seconds = torch.full((settings.epochs,), float("nan"), dtype=torch.float64)
    if checkpoint is not None:
        checkpoint.prepare()
        found = checkpoint.load()
        if found is not None:
            present, seconds = found.pop("present"), found.pop("seconds")
            epoch, spent = int(found.pop("epochs_done")), float(found.pop("spent"))
            all_members = MemberState(**found)

    def save(present: Tensor, state: MemberState, epoch: int) -> None:
        """Write the state of those present after `epoch` epochs to the full state and to the checkpoint, if any."""
        all_members.put(present, state)
        if checkpoint is not None:
            time_spent = torch.tensor(spent + time.monotonic() - started, dtype=torch.float64)
            more = {"present": present, "epochs_done": torch.tensor(epoch), "seconds": seconds, "spent": time_spent}
            try:
                checkpoint.save(all_members.tensors() | more)
            except OSError as error:  # a full disk loses what could be resumed, and not what was trained
                warn(f"the checkpoint {checkpoint.path} could not be written ({error})")

    state, batches = all_members.select(present, device), None
    active, clock = state.active.cpu(), time.monotonic()
    complete = present, state, epoch  # to go on from after an interrupt: no step of a next epoch is in it
    bar = Progress(label, settings.epochs, progress, done=epoch, at_most=settings.early_stop)
    try:
        # Graphs are captured on the current GPU, so it has to be the one that the stack is on.
        current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with current, matmul_precision(settings.tf32), bar:
            bar.advance(0)
            while bool(active.any()) and epoch < settings.epochs:
                leaving = int(active.sum()) <= SHRINK_AT * len(active)
                if leaving:
                    all_members.put(present, state)
                    state, present = state.select(active.nonzero().squeeze(1).to(device)), present[active]
                if batches is None or leaving:  # until members leave, buffers stay where they are, as graphs need them
                    batches = Batches(inputs.data, inputs.rows, state, plan.batch)
                    possible = device.type == "cuda" and inputs.network.capturable(device)
                    graphs = Graphs(possible, [*state.tensors().values(), batches.cursor])
                    steps = {n: graphs.captured(partial(step, plan, state, batches, n)) for n in set(plan.sizes)}
                    end = partial(end_epoch, plan, state, batches)
                    finish = end if inputs.data.stream else graphs.captured(end)
                if checkpoint is not None:
                    complete = present, state.clone(), epoch
                new = range(epoch, min(settings.epochs, epoch + CHECK_EVERY.get(device.type, 1)))
                for epoch in new:
                    batches.shuffle(epoch)
                    state.epoch.fill_(epoch)
                    for size in plan.sizes:
                        batches.receive(graphs.possible)
                        steps[size]()
                    finish()
                    seconds[epoch], clock = time.monotonic() - clock, time.monotonic()
                epoch, active = new.stop, state.active.cpu()
                complete = present, state, epoch
                if on_epoch is not None:
                    _report(on_epoch, new, state, present, len(all_members.weights))
                bar.advance(len(new), _note(state, len(all_members.weights)), last=not bool(active.any()))
                if checkpoint is not None and checkpoint.due() and bool(active.any()):
                    save(present, state, epoch)
    except KeyboardInterrupt:
        if checkpoint is not None:
            save(*complete)
        raise
    save(present, state, epoch)
    return Trained(all_members, seconds, plan.program.fast is not None, spent + time.monotonic() - started)


def _plan(inputs: StackInputs, settings: Settings) -> Plan:
    """What is computed in each step, and in how many; raises where a batch is too small for the objectives."""
    network, device = inputs.network, inputs.data.device
    train, validation = (table.shape[1] for table in inputs.rows)
    assert settings.batch_size is not None
    batch = min(settings.batch_size, train)
    rolls, least = max(map(rolls_needed, inputs.objectives)), max(map(pairs_needed, inputs.objectives))
    if batch < least:
        raise ValueError(f"batch_size={batch} is too small for {rolls} rolls of θ, which need {least}")
    full, rest = divmod(train, batch)
    sizes = (batch,) * full + ((rest,) if settings.partial_batch and rest >= least else ())
    compiled = settings.compile
    if compiled is None:
        steps = settings.epochs * full * len(inputs.state.weights)
        compiled = steps >= COMPILE_FROM.get(device.type, 0) and compiler_available(device)
    kinds, _ = objective_kinds(inputs.objectives)
    groups = torch.arange(validation).split(batch if settings.validation == "batches" else validation)
    return Plan(
        program=program_for(network, tuple(kinds), rolls, compiled, device),
        settings=settings,
        trainable=network.layout.trainable.to(device, inputs.state.weights.dtype).unsqueeze(0),
        batch=batch,
        sizes=sizes,
        least=least,
        rolled=torch.stack([torch.cat([g.roll(r) for g in groups]) for r in range(rolls)]).to(device),
    )


def end_epoch(plan: Plan, state: MemberState, batches: Batches) -> None:
    """Validate, record the epoch, and decide what becomes of each member, in place."""
    train, train_balance = state.loss_sum / len(plan.sizes), state.balance_sum / len(plan.sizes)
    validation, balance = _validate(plan, state, batches)
    values = torch.stack((train, validation, train_balance, balance, state.learning_rate), dim=1)  # as `HISTORY`
    trained = torch.where(state.active, 0.0, float("nan"))  # who does not train any more leaves no record
    state.history.index_copy_(2, state.epoch.unsqueeze(0), (values + trained.unsqueeze(1)).unsqueeze(2))
    apply_plateau_rule(state, train, validation, plan.settings)
    state.loss_sum.zero_()
    state.balance_sum.zero_()


def apply_plateau_rule(state: MemberState, train: Tensor, validation: Tensor, settings: Settings) -> None:
    """Set learning rates, best weights and which members continue, in place, from losses with shape `(M,)`.

    The rules are those of `torch.optim.lr_scheduler.ReduceLROnPlateau`, for many members at once, with one addition: a
    member whose learning rate cannot fall further when it is due to fall has converged and stops. All is a tensor with
    a member axis, so that the end of an epoch can be captured in a CUDA graph and the host never waits for it.
    """
    active = state.active.clone()
    finite = validation.isfinite() & train.isfinite()
    improved = active & finite & (validation < state.best_loss)
    state.best_weights.copy_(torch.where(improved.unsqueeze(1), state.weights, state.best_weights))
    state.best_loss.copy_(torch.where(improved, validation, state.best_loss))
    state.best_epoch.copy_(torch.where(improved, state.epoch, state.best_epoch))

    relative_target = state.reference * (1 - settings.threshold)
    target = torch.where(state.absolute, state.reference - settings.threshold, relative_target)
    better = finite & (validation < target)
    state.reference.copy_(torch.where(active & better, validation, state.reference))
    bad = torch.where(better, 0, state.bad_epochs + 1)
    due = bad > settings.patience
    at_minimum = state.learning_rate <= settings.min_learning_rate * (1 + 1e-6)
    lower = (state.learning_rate * settings.factor).clamp(min=settings.min_learning_rate)
    state.learning_rate.copy_(torch.where(active & due & ~at_minimum, lower, state.learning_rate))
    state.bad_epochs.copy_(torch.where(active, torch.where(due, 0, bad), state.bad_epochs))

    state.diverged.copy_(state.diverged | (active & ~finite))
    converged = due & at_minimum if settings.early_stop else torch.zeros_like(due)
    state.active.copy_(active & finite & ~converged)


@torch.no_grad()
def _validate(plan: Plan, state: MemberState, batches: Batches) -> tuple[Tensor, Tensor]:
    """The validation loss and balance of each member, over the whole set or as the mean over its batches."""
    n, kinds = plan.rolled.shape[1], plan.program.kinds
    pieces = [
        log_ratios(plan.program, state.weights, *batches.validation_batch(low, plan.rolled))
        for low in range(0, n, plan.batch)
    ]
    h = torch.cat(pieces, dim=2)[:, :, :n]
    if plan.settings.validation == "whole":
        return objective_terms(h, kinds, state.kind, state.strength)
    parts = [p for p in h.split(plan.batch, dim=2) if p.shape[2] >= plan.least]
    terms = [objective_terms(p, kinds, state.kind, state.strength) for p in parts]
    return torch.stack([t[0] for t in terms]).mean(0), torch.stack([t[1] for t in terms]).mean(0)


def _report(on_epoch: OnEpoch, epochs: range, state: MemberState, present: Tensor, members: int) -> None:
    """Call `on_epoch` for some epochs."""
    found = state.history[:, :, epochs.start : epochs.stop].cpu().numpy()
    for k, epoch in enumerate(epochs):
        values = {name: np.full(members, np.nan) for name in HISTORY}
        for i, name in enumerate(HISTORY):
            values[name][present.numpy()] = found[:, i, k]
        on_epoch(epoch, values)


def _note(state: MemberState, members: int) -> str:
    """A line for the progress bar."""
    last = state.history[:, :, int(state.epoch)].nanmedian(0).values.tolist()
    loss, balance = last[HISTORY.index("validation_loss")], last[HISTORY.index("balance")]
    text = f"{int(state.active.sum())} of {members} members training · loss {loss:.3f}"
    return text + ("" if np.isnan(balance) else f" · balance {balance:.1e}")
