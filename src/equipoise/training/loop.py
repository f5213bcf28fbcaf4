"""The training loop of a stack: epochs of steps, validation, members that leave when they have converged.

`train_stack` is the loop. On a GPU, which members are still training is checked every few epochs, on a fixed schedule,
so that what a member is stacked with never depends on how fast the machine is.

Steps run eagerly at first. They are compiled once the epochs that are probably left would save more time than that
takes; what a step computes is the same up to rounding. On a CPU small networks train on one thread and
are not compiled.
"""

from __future__ import annotations

__all__ = ["OnEpoch", "StackInputs", "Trained", "train_stack", "trains_by_hand"]

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from equipoise.losses import Objective, objective_kinds, objective_terms, pairs_needed, rolls_needed
from equipoise.networks import Flat, Flow, Network, UserNetwork, matmul_precision
from equipoise.support.devices import fixed_threads
from equipoise.support.errors import warn
from equipoise.support.progress import Progress

from .batches import Batches
from .checkpoint import Checkpoint
from .data import Data
from .graphs import Graphs
from .settings import Settings
from .state import HISTORY, MemberState
from .step import Plan, Program, compiler_available, log_ratios, program_for, step

#: Epochs between two checks of which members are still training; each of which makes a GPU wait.
CHECK_EVERY = {"cpu": 1, "cuda": 5}
#: The stack is made smaller once this share of it, or less, is still training; on a CPU, which records no graphs, once
#: a member has stopped.
SHRINK_AT = 0.75
#: The seconds that compiling a step takes, and the share of a step's time that it saves: on two cores, and on an H200.
COMPILING = {"cpu": (45.0, 0.2), "cuda": (60.0, 0.4)}
#: On a CPU steps of fewer multiplications than this are computed by one thread: five spline flows with two layers of
#: 64, in batches of 256, have 4e7 and take 10 ms either way.
SMALL = 1e8
#: And of fewer than so many times that, they are not compiled: five flows with three layers of 96, as `eq.fit` trains
#: them, have up to 1.6e8; five with three layers of 256 have 7e8.
COMPILED_FROM = 3.0
#: How many of the last epochs say how long the next will take.
RECENT = 10

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
    embedded: bool = False  # whether the data hold the features of x in its place


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
    stop: threading.Event | None = None,
    threads: int | None = None,
) -> Trained:
    """Train a stack of members to the end; arguments as in `fit`, but `batch_size` is a number here.

    `stop` and `threads` are given to stacks that train at once, each on a thread of its own: where `stop` is set, the
    training is interrupted after its epoch; so many threads are shared by the members of all stacks.
    """
    started, device = time.monotonic(), inputs.data.device
    plan, by_hand = _plan(inputs, settings), trains_by_hand(inputs, settings)
    threads = threads or torch.get_num_threads()
    small = _small(inputs, plan) or by_hand
    large = not _small(inputs, plan, COMPILED_FROM) and not by_hand
    undecided = settings.compile is None and plan.program.fast is None and large and compiler_available(device)
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
    bar = Progress(label, settings.epochs, progress, done=epoch)
    try:
        # Graphs are captured on the current GPU, so it has to be the one that the stack is on.
        current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        with current, matmul_precision(settings.tf32), fixed_threads(1) if small else nullcontext(), bar:
            bar.advance(0)
            while bool(active.any()) and epoch < settings.epochs:
                alive, most = int(active.sum()), len(active)
                leaving = alive < most if device.type == "cpu" else alive <= SHRINK_AT * most
                if leaving:
                    all_members.put(present, state)
                    state, present = state.select(active.nonzero().squeeze(1).to(device)), present[active]
                if batches is None or leaving:  # else buffers stay where they are, as graphs need them
                    batches = Batches(inputs.data, inputs.rows, state, plan.batch)
                    possible = device.type == "cuda" and inputs.network.capturable(device)
                    graphs = Graphs(possible, [*state.tensors().values(), batches.cursor])
                    steps = {n: graphs.captured(partial(step, plan, state, batches, n)) for n in set(plan.sizes)}
                    end = partial(end_epoch, plan, state, batches)
                    finish = end if inputs.data.stream else graphs.captured(end)
                    if by_hand:
                        from .flow_epochs import FlowEpochs  # compiles

                        whole = FlowEpochs(inputs.network, plan, state, batches, threads)
                if checkpoint is not None:
                    complete = present, state.clone(), epoch
                new = range(epoch, min(settings.epochs, epoch + CHECK_EVERY.get(device.type, 1)))
                for epoch in new:
                    batches.shuffle(epoch)
                    state.epoch.fill_(epoch)
                    if by_hand:
                        end_epoch(plan, state, batches, whole.run())
                    else:
                        for size in plan.sizes:
                            batches.receive(graphs.possible)
                            steps[size]()
                        finish()
                    seconds[epoch], clock = time.monotonic() - clock, time.monotonic()
                epoch, active = new.stop, state.active.cpu()
                complete = present, state, epoch
                if on_epoch is not None:
                    _report(on_epoch, new, state, present, len(all_members.weights))
                # The first epoch sets things up, and its time says nothing about others.
                pace = float(seconds[max(1, epoch - RECENT) : epoch].mean())
                left = [pace * n for n in epochs_left(state, settings, epoch)]
                early = (
                    settings.schedule == "plateau"
                    and settings.early_stop
                    and bool((state.learning_rate == settings.learning_rate).all())
                )
                note, ended = _note(state, len(all_members.weights)), not bool(active.any())
                bar.advance(len(new), note, ended, (math.nan, math.nan) if early else (left[0], left[1]))
                cost, saved = COMPILING.get(device.type, COMPILING["cuda"])
                if undecided and saved * left[1] > cost:
                    undecided, batches = False, None  # graphs are recorded again
                    plan = dataclasses.replace(plan, program=_program(inputs, True))
                if checkpoint is not None and checkpoint.due() and bool(active.any()):
                    save(present, state, epoch)
                if stop is not None and stop.is_set():
                    raise KeyboardInterrupt
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
    groups = torch.arange(validation).split(batch if settings.validation == "batches" else validation)
    return Plan(
        program=_program(inputs, settings.compile),
        settings=settings,
        trainable=network.layout.trainable.to(device, inputs.state.weights.dtype).unsqueeze(0),
        batch=batch,
        sizes=sizes,
        least=least,
        piece=batch,  # so that nothing new has to be compiled
        rolled=torch.stack([torch.cat([g.roll(r) for g in groups]) for r in range(rolls)]).to(device),
    )


def _program(inputs: StackInputs, compiled: bool | None) -> Program:
    kinds, rolls = objective_kinds(inputs.objectives)[0], max(map(rolls_needed, inputs.objectives))
    return program_for(inputs.network, tuple(kinds), rolls, compiled, inputs.data.device, inputs.embedded)


def _small(inputs: StackInputs, plan: Plan, times: float = 1.0) -> bool:
    """Whether a step on a CPU has fewer multiplications than `SMALL`, or than so many times that.

    An embedding may do any number of multiplications with a weight, so that this is for networks of numbers alone.
    """
    products = inputs.state.weights.numel() * plan.batch * len(plan.rolled)
    flat = isinstance(inputs.network.embedding, Flat) and not isinstance(inputs.network, UserNetwork)
    return flat and products < times * SMALL and inputs.data.device.type == "cpu"


def trains_by_hand(inputs: StackInputs, settings: Settings) -> bool:
    """Whether `flow_epochs` trains a stack: spline flows, by maximum likelihood, in single precision, on a CPU.

    It leaves threads to other stacks, so that several can train at once.
    """
    network, data = inputs.network, inputs.data
    likelihood = max(map(rolls_needed, inputs.objectives)) == 1 and not settings.compile
    held = inputs.embedded and data.x is not None and data.device.type == "cpu"
    single = inputs.state.weights.dtype == torch.float32
    return likelihood and held and single and isinstance(network, Flow) and network.univariate == "spline"


def epochs_left(state: MemberState, settings: Settings, done: int) -> tuple[int, int]:
    """How many more epochs a stack trains at the least and, probably, at the most.

    A member stops after `patience + 1` epochs in a row without improvement at its learning rate and at each lower one
    (`apply_plateau_rule`). Epochs that improve come on top. How many is a guess: the rest takes as long as what was
    done, and not more than three times the least.
    """
    rest = settings.epochs - done
    if not settings.early_stop:
        return rest, rest
    if settings.schedule == "cycle":
        least = int(((settings.patience + 1 - state.bad_epochs) * state.active).max())
        return min(rest, least), rest
    falls = (settings.min_learning_rate / state.learning_rate).log() / math.log(settings.factor)
    rates = 1 + (falls - 1e-3).ceil().clamp(min=0)
    least = min(rest, int(((rates * (settings.patience + 1) - state.bad_epochs) * state.active).max()))
    return least, min(rest, max(least, min(done, 3 * least)))


def end_epoch(plan: Plan, state: MemberState, batches: Batches, losses: Tensor | None = None) -> None:
    """Validate, record the epoch, and decide what becomes of each member, in place.

    `losses` are those of the validation pairs, with shape `(M,)`, where they are known.
    """
    train, train_balance = state.loss_sum / len(plan.sizes), state.balance_sum / len(plan.sizes)
    validation, balance = _validate(plan, state, batches) if losses is None else (losses, train_balance)
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
    state.best_weights.copy_(torch.where(improved.unsqueeze(1), state.judged, state.best_weights))
    state.best_loss.copy_(torch.where(improved, validation, state.best_loss))
    state.best_epoch.copy_(torch.where(improved, state.epoch, state.best_epoch))

    relative_target = state.reference * (1 - settings.threshold)
    target = torch.where(state.absolute, state.reference - settings.threshold, relative_target)
    better = finite & (validation < target)
    state.reference.copy_(torch.where(active & better, validation, state.reference))
    bad = torch.where(better, 0, state.bad_epochs + 1)
    due = bad > settings.patience
    at_minimum = state.learning_rate <= settings.min_learning_rate * (1 + 1e-6)
    if settings.schedule == "cycle":  # whose rates are known, and have no minimum to wait for
        at_minimum = torch.ones_like(at_minimum)
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
        log_ratios(plan.program, state.judged, *batches.validation_batch(low, plan.piece, plan.rolled))
        for low in range(0, n, plan.piece)
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
    """A line for the progress bar: losses are means over the members that are training."""
    last = state.history[:, :, int(state.epoch)].nanmean(0).tolist()
    loss, balance = last[HISTORY.index("validation_loss")], last[HISTORY.index("balance")]
    text = f"epochs · {int(state.active.sum())} of {members} members training · validation loss {loss:.3f}"
    text += f", best {float(state.best_loss[state.history[:, 0, int(state.epoch)].isfinite()].mean()):.3f}"
    return text + ("" if np.isnan(balance) else f" · balance {balance:.1e}")
