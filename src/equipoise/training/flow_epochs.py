"""An epoch of a stack of small spline flows on a CPU, one compiled call for each member.

What `step` and the end of an epoch compute for any network is here one loop: batches are gathered, the gradient is by
hand (`networks.flow_gradient`), and Adam and the average work on the packed weights, which leave out what is masked.
A member's call needs nothing of its neighbours and lets other threads run, so that all of torch's threads take
members. A member is the same to the last bit in any stack and on any number of threads.
"""

from __future__ import annotations

__all__ = ["FlowEpochs"]

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.networks import Flow, Network
from equipoise.networks.flow_gradient import Packing, Room, backward, forward, new_room, read_points
from equipoise.support.devices import compiled, workers

from .adam_loop import adam_row
from .batches import Batches
from .state import MemberState
from .step import BETA_1, BETA_2, EPS, Plan, cycle


class FlowEpochs:
    """The epochs of the members that are in a stack now, trained by maximum likelihood.

    Arguments:
        flow: the network.
        plan: of the training.
        state: of the members.
        batches: their pairs, with features in the place of x.
        threads: how many members train at once.
    """

    def __init__(self, flow: Network, plan: Plan, state: MemberState, batches: Batches, threads: int) -> None:
        assert isinstance(flow, Flow) and batches.data.x is not None
        self.plan, self.state, self.batches, self.threads = plan, state, batches, threads
        self.packing: Packing = flow.packing
        self.ends = np.cumsum([0, *plan.sizes])
        self.validation = batches.validation_rows.numpy()
        self.codes, self.features = batches.data.codes.numpy(), batches.data.x.numpy()
        self.rooms: list[Room] = []

    def run(self) -> Tensor:
        """Train on the batches of an epoch that was shuffled; the losses of the validation pairs, with shape `(M,)`."""
        state, settings, steps = self.state, self.plan.settings, len(self.plan.sizes)
        done = state.steps + torch.arange(1, steps + 1)
        if settings.schedule == "cycle":
            rates = settings.learning_rate * cycle((done - 0.5) / (settings.epochs * steps)).expand(
                len(state.weights), -1
            )
            state.learning_rate.copy_(rates[:, -1])
        else:
            rates = state.learning_rate.unsqueeze(1).expand(-1, steps)
        shares = ((1 + done) / (10 + done)).clamp(max=settings.average)
        self.rates, self.shares = (rates * state.active.unsqueeze(1)).numpy(), (1 - shares).numpy()
        members = range(len(state.weights))
        if min(self.threads, len(members)) > 1:
            losses = list(workers(self.threads).map(self._member, members))
        else:
            losses = [self._member(m) for m in members]
        state.steps += steps
        found = torch.tensor(losses, dtype=state.loss_sum.dtype)
        state.loss_sum += found[:, 0]
        state.balance_sum += float("nan")
        return found[:, 1]

    def _member(self, m: int) -> tuple[float, float]:
        """Train one member; the sum of its batches' losses, and its validation loss."""
        plan, state, settings = self.plan, self.state, self.plan.settings
        try:
            room = self.rooms.pop()
        except IndexError:
            room = new_room(self.packing, plan.batch)
        clip = math.inf if settings.clip is None else settings.clip
        by_batches = settings.validation == "batches"
        losses: tuple[float, float] = _epoch(
            self.packing,
            room,
            tuple(t[m].numpy() for t in (state.weights, state.moment_1, state.moment_2, state.average)),
            (self.codes[int(state.code_set[m])], self.features[int(state.data_set[m])]),
            (self.batches.order[m].numpy(), self.validation[int(state.fold[m])]),
            self.ends,
            np.stack([self.rates[m], self.shares]),
            np.array([settings.weight_decay, clip, BETA_1, BETA_2, EPS], np.float32),
            (int(state.steps), plan.batch, plan.least if by_batches else 0),
        )
        self.rooms.append(room)
        return losses


@compiled(fastmath={"contract"})
def _epoch(
    packing: Any, room: Any, buffers: Any, pairs: Any, rows: Any, ends: Any, rates: Any, numbers: Any, counts: Any
) -> Any:
    """Train one member, in place.

    Arguments:
        packing: of the flow.
        room: for a batch.
        buffers: weights, both moments and the average, each with shape `(P,)`; an average of length 0 for none.
        pairs: codes `(N, D + 1)` and features `(N, C)`.
        rows: those that train, in order, and those that validate.
        ends: where the batches begin and end.
        rates: of each step, the learning rate and by how much the average moves.
        numbers: weight decay, the largest norm of a gradient, β₁, β₂ and ε.
        counts: steps before this epoch, pairs in a batch, and, if the validation loss is the mean over batches, the
            fewest pairs of one, else 0.

    Returns:
        The sum of the batches' losses, and the validation loss.
    """
    codes, features = pairs
    taught, judging = rows
    done, batch, least = counts
    index, dim, averaged = packing.entries, packing.sizes[0], len(buffers[3]) > 0
    packed = np.zeros((5, len(index)), np.float32)
    kept, gradient = np.zeros(len(index), np.float32), np.zeros(len(index), np.float32)
    w, moment_1, moment_2, average = packed[0], packed[1], packed[2], packed[3]
    for j in range(len(index)):
        if index[j] >= 0:
            kept[j] = 1
            w[j], moment_1[j], moment_2[j] = buffers[0][index[j]], buffers[1][index[j]], buffers[2][index[j]]
            if averaged:
                average[j] = buffers[3][index[j]]
    steps = len(ends) - 1
    pieces = -(-len(judging) // batch)
    train, validation, judged = 0.0, 0.0, 0.0
    for piece in range(steps + pieces):
        if piece < steps:
            here = taught[ends[piece] : ends[piece + 1]]
        else:
            here = judging[(piece - steps) * batch : (piece - steps + 1) * batch]
        size = len(here)
        read_points(packing, room, codes, features, here)
        forward(packing, room, average if averaged and piece >= steps else w, size)
        total = 0.0
        for b in range(size):
            total += room.ratio[b] + codes[here[b], dim]
        if piece >= steps:
            if size >= least:
                part = 1.0 if least > 0 else float(size)
                validation -= total / size * part
                judged += part
            continue
        train -= total / size
        room.cotangents[:size] = -1 / size
        room.cotangents[size:] = 0
        backward(packing, room, w, gradient, size)
        t = done + piece + 1
        adam_row(w, gradient, moment_1, moment_2, kept, rates[0, piece], numbers, t)
        if averaged:
            share = rates[1, piece]
            for j in range(len(w)):
                average[j] += share * (w[j] - average[j])
    for j in range(len(index)):
        if index[j] >= 0:
            buffers[0][index[j]], buffers[1][index[j]], buffers[2][index[j]] = w[j], moment_1[j], moment_2[j]
            if averaged:
                buffers[3][index[j]] = average[j]
    return train, validation / judged
