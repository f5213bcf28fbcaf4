"""Training a stack: epochs of steps, validation over the whole set, members that leave when they have converged.

`train_stack` is the loop. Between two departures the stack is a `_Segment`: fixed buffers, and on a GPU two captured
graphs (a step; the end of an epoch). The host looks at who is still training every few epochs only, on a fixed
schedule, so that what a member is stacked with never depends on how fast the machine is.
"""

from __future__ import annotations

__all__ = ["NAMES", "OnEpoch", "Trained", "train_stack"]

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.losses import Objective, objective_kinds, objective_terms, pairs_needed, rolls_needed
from equipoise.networks import Network, matmul_precision
from equipoise.progress import Progress

from .checkpoint import Checkpoint
from .data import Data
from .plateau import Control
from .settings import Settings
from .shuffle import permutations
from .step import Program, State, compiler_available, program

#: Epochs between two looks from the host on a GPU.
LOOK_EVERY = 5
#: The stack is made smaller once this share of it, or less, is still training.
SHRINK_AT = 0.75
#: Compiling pays back from about this many member-steps on, on a CPU and on a GPU.
PAYS_BACK = {"cpu": 20_000, "cuda": 200_000}

#: Called with the number of an epoch and the numbers of every member, with shape `(M,)`: those of `HISTORY` but the
#: seconds, under the names they have in a posterior's history. NaN for members that have stopped.
OnEpoch = Callable[[int, dict[str, np.ndarray]], None]

HISTORY = ("train_loss", "validation_loss", "train_balance", "validation_balance", "learning_rate", "seconds")
#: What they are called in a posterior's history, where that is something else.
NAMES = {"train_balance": "balance"}


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

    found = checkpoint.load() if checkpoint is not None else None
    if found is not None:
        state = State(**{n: found[f"state.{n}"].to(device) for n in state.tensors()})
        control = Control(**{n: found[f"control.{n}"].to(device) for n in control.tensors()})
        history = {n: found[f"history.{n}"].numpy() for n in history}
        kept = {n: found[f"kept.{n}"].numpy() for n in kept}
        ids, epoch, spent = found["ids"].numpy(), int(found["epoch"]), float(found["spent"])

    def collect(segment: _Segment) -> None:
        """Bring what the device knows of these members to the host."""
        segment.collect(history, ids)
        best = segment.control.best_flat
        kept["best"][ids] = best.cpu().numpy()
        kept["last"][ids] = torch.where(segment.control.diverged.unsqueeze(1), best, segment.state.flat).cpu().numpy()
        for name in ("best_epoch", "best_loss", "diverged"):
            kept[name][ids] = getattr(segment.control, name).cpu().numpy()
        kept["epochs"][ids] = np.isfinite(history["learning_rate"][:, ids]).sum(0)

    def save(segment: _Segment) -> None:
        if checkpoint is None:
            return
        collect(segment)
        tensors = {f"state.{n}": t for n, t in segment.state.tensors().items()}
        tensors |= {f"control.{n}": t for n, t in segment.control.tensors().items()}
        tensors |= {f"history.{n}": torch.from_numpy(a) for n, a in history.items()}
        tensors |= {f"kept.{n}": torch.as_tensor(a) for n, a in kept.items()}
        tensors |= {"ids": torch.from_numpy(ids), "epoch": torch.tensor(epoch)}
        checkpoint.save(tensors | {"spent": torch.tensor(spent + time.monotonic() - started, dtype=torch.float64)})

    kind, strength = torch.tensor(index), torch.tensor([o.strength for o in objectives], dtype=flat.dtype)
    absolute = torch.tensor([_is_absolute(o, settings) for o in objectives])

    def segment_of(ids: np.ndarray, state: State, control: Control) -> _Segment:
        rows = torch.from_numpy(ids)
        per_member = [t[rows].to(device) for t in (kind, strength, absolute, keys, which_code, which_x)]
        return _Segment(prog, state, control, per_member, train, validation, settings, batch, least)

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


class _Segment:
    """A stack between two departures: fixed members, fixed buffers."""

    def __init__(
        self,
        prog: Program,
        state: State,
        control: Control,
        per_member: list[Tensor],
        train: Data,
        validation: Data,
        settings: Settings,
        batch: int,
        least: int,
    ) -> None:
        self.program, self.state, self.control, self.settings = prog, state, control, settings
        self.kind, self.strength, self.absolute, self.keys, self.which_code, self.which_x = per_member
        #: `least` pairs an objective takes: a smaller rest of an epoch, or of the validation set, is left out.
        self.train, self.validation, self.batch, self.least = train, validation, batch, least
        device, dtype, members = train.device, state.flat.dtype, state.flat.shape[0]
        self.trainable = prog.network.layout.trainable.to(device, dtype).unsqueeze(0)
        self.full, self.rest = divmod(train.n, batch)
        if not (settings.partial_batch and self.rest >= least):
            self.rest = 0
        self.order = torch.zeros(members, train.n, dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        shape = (settings.epochs, members)
        self.record = {n: torch.full(shape, float("nan"), dtype=dtype, device=device) for n in HISTORY[:-1]}
        self.times = np.full(settings.epochs, np.nan)
        self.clock = time.monotonic()
        self.validation_codes = _rolled(
            validation.codes, prog.rolls, batch if settings.validation == "batches" else validation.n
        )
        #: Where all members validate on the same pairs, these are read and embedded once, not once a member.
        self.same_x = bool((self.which_x == self.which_x[0]).all())
        self.same_code = bool((self.which_code == self.which_code[0]).all())
        #: Where x is read a batch at a time the host knows what to read next, and reads while the device computes.
        self.which_read = self.which_x.cpu()
        self.reads: Iterator[Tensor] = iter(())
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        resident = not train.stream and not validation.stream
        self._can_capture = device.type == "cuda" and resident and prog.network.capturable(device)

    # --- an epoch --------------------------------------------------------------------------------------------------

    def run_epoch(self, epoch: int) -> None:
        """Shuffle, step through the batches, and judge."""
        self.order.copy_(permutations(self.keys, epoch, self.train.n))
        if self.train.stream:
            self.reads = iter(self.order.cpu().split(self.batch, 1))
        self.cursor.zero_()
        self.epoch.fill_(epoch)
        for _ in range(self.full):
            self._run("step", self._step)
        if self.rest:
            self._run("rest", self._rest_step)
        self._run("end", self._end_epoch)
        now = time.monotonic()
        self.times[epoch], self.clock = now - self.clock, now

    def _take(self, index: Tensor) -> None:
        which, rows = (self.which_read, next(self.reads)) if self.train.stream else (self.which_x, index)
        batch = self.train.code_batch(self.which_code, index), self.train.x_batch(which, rows)
        self.program.step(
            self.state, batch, self.trainable, self.kind, self.strength, self.settings.weight_decay, self.settings.clip
        )

    def _step(self) -> None:
        columns = self.cursor + torch.arange(self.batch, device=self.order.device)
        self._take(self.order.index_select(1, columns))
        self.cursor += self.batch

    def _rest_step(self) -> None:
        self._take(self.order[:, self.full * self.batch :])

    def _end_epoch(self) -> None:
        steps = self.full + bool(self.rest)
        train, train_balance = self.state.loss_sum / steps, self.state.balance_sum / steps
        validation, balance = self._validate()
        row = torch.where(self.state.active, 0.0, float("nan"))  # what is no longer trained leaves no trace
        values = (train, validation, train_balance, balance, self.state.lr)
        for name, value in zip(self.record, values, strict=True):
            self.record[name].index_copy_(0, self.epoch.unsqueeze(0), (value + row).unsqueeze(0))
        self.control.end_epoch(self.state, train, validation, self.epoch, self.absolute, self.settings)
        self.state.loss_sum.zero_()
        self.state.balance_sum.zero_()

    @torch.no_grad()
    def _validate(self) -> tuple[Tensor, Tensor]:
        """The validation loss and balance of each member, over the whole set or as the mean over its batches."""
        n, device = self.validation.n, self.order.device
        chunks = []
        for lo in range(0, n, self.batch):
            # Every chunk has the training batch's shape, so that nothing new has to be compiled: the last wraps around.
            rows = torch.arange(lo, lo + self.batch, device=device) % n
            which_x = self.which_x[:1] if self.same_x else self.which_x
            which_code = self.which_code[:1] if self.same_code else self.which_code
            x = self.validation.x_batch(which_x, rows.expand(len(which_x), -1))
            chunks.append(self.program.ratios(self.state.flat, self.validation_codes[which_code][:, :, rows], x))
        h = torch.cat(chunks, dim=2)[:, :, :n]
        if self.settings.validation == "whole":
            return objective_terms(h, self.program.kinds, self.kind, self.strength)
        parts = [p for p in h.split(self.batch, dim=2) if p.shape[2] >= self.least]
        terms = [objective_terms(p, self.program.kinds, self.kind, self.strength) for p in parts]
        return torch.stack([t[0] for t in terms]).mean(0), torch.stack([t[1] for t in terms]).mean(0)

    # --- running and recording -------------------------------------------------------------------------------------

    def _run(self, name: str, function: Callable[[], None]) -> None:
        """Run a part of the epoch: replayed from a captured graph on a GPU, called elsewhere."""
        if not self._can_capture:
            function()
            return
        if name not in self._graphs:
            self._graphs[name] = self._capture(function)
        self._graphs[name].replay()

    def _capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record a function of fixed buffers as one graph. The rehearsals change the buffers, so these are put back."""
        buffers = [*self.state.tensors().values(), *self.control.tensors().values(), *self.record.values(), self.cursor]
        saved = [b.clone() for b in buffers]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                function()
                self.cursor.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        for buffer, value in zip(buffers, saved, strict=True):
            buffer.copy_(value)
        return graph

    def note(self, members: int) -> str:
        """A line for the progress bar."""
        epoch = int(self.epoch)
        loss = float(self.record["validation_loss"][epoch].nanmedian())
        balance = float(self.record["train_balance"][epoch].nanmedian())
        text = f"{int(self.state.active.sum())} of {members} members training · loss {loss:.3f}"
        return text + ("" if np.isnan(balance) else f" · balance {balance:.1e}")

    def told(self, low: int, high: int, ids: np.ndarray, members: int) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Epochs from `low` to before `high`, for whoever follows the training."""
        rows = {NAMES.get(name, name): values[low:high].cpu().numpy() for name, values in self.record.items()}
        for epoch in range(low, high):
            whole = {name: np.full(members, np.nan) for name in rows}
            for name, values in rows.items():
                whole[name][ids] = values[epoch - low]
            yield epoch, whole

    def collect(self, history: dict[str, np.ndarray], ids: np.ndarray) -> None:
        """Write this segment's epochs into the history of the whole."""
        for name, values in self.record.items():
            rows = values.cpu().numpy()
            known = np.isfinite(self.times)
            history[name][np.ix_(known, ids)] = rows[known]
        trained = np.isfinite(history["learning_rate"][:, ids])
        seconds = np.where(trained & np.isfinite(self.times)[:, None], self.times[:, None], history["seconds"][:, ids])
        history["seconds"][:, ids] = seconds


def _rolled(codes: Tensor, rolls: int, group: int) -> Tensor:
    """Codes of the validation sets rolled within groups of rows, with shape `(S, R, N, E)` from `(S, N, E)`."""
    parts = codes.split(group, dim=1)
    return torch.stack([torch.cat([p.roll(r, 1) for p in parts], dim=1) for r in range(rolls)], dim=1)
