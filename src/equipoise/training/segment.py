"""A stack between two departures: fixed members and buffers, an epoch of steps and its end.

On a GPU a step and the end of an epoch are captured as graphs and replayed; what they write lies in the fixed buffers.
A graph reads from fixed places too: a batch that is streamed is put into one of them before the step, while the device
still computes the one before. Only where pairs that judge are streamed is the end of an epoch not captured.
"""

from __future__ import annotations

__all__ = ["HISTORY", "NAMES", "Segment"]

import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from equipoise.losses import objective_terms
from equipoise.support.errors import warn

from .data import Data
from .plateau import Control
from .settings import Settings
from .shuffle import permutations
from .step import Program, State

HISTORY = ("train_loss", "validation_loss", "train_balance", "validation_balance", "learning_rate", "seconds")
#: What they are called in a posterior's history, where that is something else.
NAMES = {"train_balance": "balance"}


class Segment:
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
        self.arrived = torch.empty(0)
        self._inboxes: dict[int, Tensor] = {}
        self._sent: deque[torch.cuda.Event] = deque()
        self._graphs: dict[str, torch.cuda.CUDAGraph] = {}
        self._can_capture = device.type == "cuda" and prog.network.capturable(device)

    # --- an epoch --------------------------------------------------------------------------------------------------

    def run_epoch(self, epoch: int) -> None:
        """Shuffle, step through the batches, and judge."""
        self.order.copy_(permutations(self.keys, epoch, self.train.n))
        if self.train.stream:
            self.reads = iter(self.order.cpu().split(self.batch, 1))
        self.cursor.zero_()
        self.epoch.fill_(epoch)
        for _ in range(self.full):
            self._receive()
            self._run("step", self._step)
        if self.rest:
            self._receive()
            self._run("rest", self._rest_step)
        self._run("end", self._end_epoch, capture=not self.validation.stream)
        now = time.monotonic()
        self.times[epoch], self.clock = now - self.clock, now

    def _receive(self) -> None:
        """Read the next batch of what is streamed and send it, to where a graph will look for it."""
        if not self.train.stream:
            return
        self.arrived = self.train.x_batch(self.which_read, next(self.reads))
        if self._can_capture:
            pairs = self.arrived.shape[1]
            if pairs not in self._inboxes:
                self._inboxes[pairs] = torch.empty_like(self.arrived)
            self.arrived = self._inboxes[pairs].copy_(self.arrived)
            # A replay returns at once. The host waits here for the batch before last, or it would fill its memory.
            sent = torch.cuda.Event()
            sent.record()
            self._sent.append(sent)
            if len(self._sent) > 2:
                self._sent.popleft().synchronize()

    def _take(self, index: Tensor) -> None:
        x = self.arrived if self.train.stream else self.train.x_batch(self.which_x, index)
        batch = self.train.code_batch(self.which_code, index), x
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
            if self.validation.stream:  # the host reads, and need not ask the device what
                which_x, wanted = self.which_read[: len(which_x)], torch.arange(lo, lo + self.batch) % n
            else:
                wanted = rows
            x = self.validation.x_batch(which_x, wanted.expand(len(which_x), -1))
            chunks.append(self.program.ratios(self.state.flat, self.validation_codes[which_code][:, :, rows], x))
        h = torch.cat(chunks, dim=2)[:, :, :n]
        if self.settings.validation == "whole":
            return objective_terms(h, self.program.kinds, self.kind, self.strength)
        parts = [p for p in h.split(self.batch, dim=2) if p.shape[2] >= self.least]
        terms = [objective_terms(p, self.program.kinds, self.kind, self.strength) for p in parts]
        return torch.stack([t[0] for t in terms]).mean(0), torch.stack([t[1] for t in terms]).mean(0)

    # --- running and recording -------------------------------------------------------------------------------------

    def _run(self, name: str, function: Callable[[], None], capture: bool = True) -> None:
        """Run a part of the epoch: replayed from a captured graph on a GPU, called elsewhere."""
        if not (capture and self._can_capture):
            function()
            return
        if name not in self._graphs:
            try:
                self._graphs[name] = self._capture(function)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                # A module of the user's own may do what no graph can hold: copy a constant to the device, say.
                self._can_capture = False
                reason = str(error).splitlines()[0]
                warn(f"a step cannot be captured as a CUDA graph and runs slower: {reason}")
                function()
                return
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
        try:
            with torch.cuda.graph(graph):
                function()
        finally:
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
