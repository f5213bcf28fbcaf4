"""Training speed: members in a stack against the authors' loop, in one run.

    python benchmarks/training.py [--device cpu|cuda] [--stacks 10,40] [--cases NRE,NPE,...] [--seconds 3]

The authors' loop is written out below: one network at a time, eager PyTorch, zuko's networks, a batch of 256, Adam,
the loss checked for being finite after every step, as in the published code. Ours is the step that `eq.fit` runs, on
the same data and network sizes. Each is timed in steady state, several times, and the median is given in
microseconds a member and step; no claim rests on more than the ratio within one run.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
import zuko
from torch import Tensor, nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.losses import objective_kinds, pairs_needed, rolls_needed
from equipoise.methods import resolve
from equipoise.networks import Convolutional, Embedding, choose_embedding
from equipoise.training import PAPER, Member
from equipoise.training.batches import Batches
from equipoise.training.data import Data
from equipoise.training.graphs import Graphs
from equipoise.training.members import network_of
from equipoise.training.state import MemberState
from equipoise.training.step import Plan, compiler_available, program_for
from equipoise.training.step import step as take_step

BATCH = 256
CASES = {
    "NRE": ("nre", (8,)),
    "NPE": ("npe", (8,)),
    "BNPE": ("bnpe", (8,)),
    "BNRE-C": ("bnre_c", (8,)),
    "BNRE Spatial SIR": ("bnre", (3, 50, 50)),
    "BNRE Lotka-Volterra": ("bnre", (2001, 2)),
}


# --- the authors' loop ------------------------------------------------------------------------------------------------


def convolutional(x_shape: tuple[int, ...], body: Convolutional | None = None) -> nn.Module:
    """The paper's embedding as a plain module, of the default size or of another's."""
    ours = body or choose_embedding(x_shape)
    assert isinstance(ours, Convolutional)
    series = ours.dims == 1
    conv, pool = (nn.Conv1d, nn.MaxPool1d) if series else (nn.Conv2d, nn.MaxPool2d)
    layers: list[nn.Module] = [conv(ours.inputs, ours.channels, 1)]
    for i in range(ours.layers):
        layers += [conv(ours.channels, ours.channels, 3, padding=1), nn.SELU(), pool(3, stride=2 - i % 2, padding=1)]
    return nn.Sequential(*([Swap()] if series else []), *layers, nn.Flatten())


class Swap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(-1, -2) / 100


class Ratio(nn.Module):
    """A classifier or a flow as the published code evaluates it: θ and rolled θ stacked, x embedded once."""

    def __init__(
        self, method: str, x_shape: tuple[int, ...], low: Tensor, high: Tensor, body: Convolutional | None = None
    ) -> None:
        super().__init__()
        self.flow = "npe" in method
        self.embedding = convolutional(x_shape, body) if len(x_shape) > 1 else nn.Identity()
        features = (body or choose_embedding(x_shape)).features
        self.prior = zuko.distributions.BoxUniform(low, high)
        if self.flow:
            self.net = zuko.flows.NSF(len(low), features, hidden_features=[256] * 3, activation=nn.SELU)
        else:
            self.net = zuko.nn.MLP(len(low) + features, 1, [256] * 6, activation=nn.SELU)

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        features = self.embedding(x)
        if self.flow:
            return self.net(features).log_prob(theta) - self.prior.log_prob(theta)
        features = features.expand(*theta.shape[:-1], features.shape[-1])
        return self.net(torch.cat((theta, features), -1)).squeeze(-1)


def authors_step(
    method: str, x_shape: tuple[int, ...], theta: Tensor, x: Tensor, body: Convolutional | None = None
) -> Callable[[], None]:
    """One step of the published loop."""
    low, high = -3 * torch.ones(2, device=theta.device), 3 * torch.ones(2, device=theta.device)
    model = Ratio(method, x_shape, low, high, body).to(theta.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[float] = []

    def loss_of(theta: Tensor, x: Tensor) -> Tensor:
        if method == "npe":
            return -model(theta, x).mean()
        if method in ("nre_c", "bnre_c"):
            K = 5
            sets = torch.cat((theta, theta[: K - 1])).unfold(0, K, 1).movedim(-1, 0)
            log_r, log_r_prime = model(torch.stack((sets, sets.roll(K, 1))), x)
            shift = -torch.tensor(float(K)).log().item()
            joint, marginal = log_r.logsumexp(0) + shift, log_r_prime.logsumexp(0) + shift
            loss = (F.softplus(-joint).mean() + F.softplus(marginal).mean()) / 2
            balance = (log_r[0].sigmoid() + log_r_prime[0].sigmoid() - 1).mean().square()
            return loss + 100 * balance
        log_r, log_r_prime = model(torch.stack((theta, theta.roll(1, 0))), x)
        balance = (log_r.sigmoid() + log_r_prime.sigmoid() - 1).mean().square()
        if method == "bnpe":
            return -log_r.mean() + 100 * balance
        loss = (F.softplus(-log_r).mean() + F.softplus(log_r_prime).mean()) / 2
        return loss + (100 * balance if method.startswith("b") else 0)

    def step() -> None:
        rows = torch.randint(len(theta), (BATCH,), device=theta.device)
        loss = loss_of(theta[rows], x[rows].float())
        if loss.isfinite():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()))

    return step


# --- ours -------------------------------------------------------------------------------------------------------------


def our_step(
    method: str,
    x_shape: tuple[int, ...],
    theta: Tensor,
    x: Tensor,
    members: int,
    compiled: bool,
    body: Embedding | None = None,
) -> Callable[[], None]:
    """One step of a stack, as `eq.fit` takes it, with the default embedding or another."""
    device = theta.device
    prior = eq.BoxUniform(-3 * torch.ones(2, device=device), 3 * torch.ones(2, device=device))
    row = resolve(method)
    body = body or choose_embedding(x_shape)
    net = network_of(Member(row), prior, body, torch.zeros(2), torch.ones(2))
    constants = torch.zeros(body.statistics_shape), torch.ones(body.statistics_shape)
    flat = torch.cat([net.layout.flatten(net.init([(m, m)], [constants[0]], [constants[1]])) for m in range(members)])
    kinds, _ = objective_kinds([row.objective])
    rolls, least = rolls_needed(row.objective), pairs_needed(row.objective)
    state = MemberState.fresh(
        flat.to(device),
        1e-3,
        epochs=1,
        strength=torch.full((members,), row.strength, device=device),
        shuffle_key=torch.arange(members, device=device),
    )
    data = Data([net.encode(theta)], [x], device)
    program = program_for(net, tuple(kinds), rolls, compiled, device)
    trainable = net.layout.trainable.to(device, flat.dtype).unsqueeze(0)
    sizes = (BATCH,) * (data.n // BATCH)
    rows = torch.arange(data.n, device=device).unsqueeze(0)
    plan = Plan(program, PAPER, trainable, BATCH, sizes, least, piece=BATCH, rolled=rows)
    net.embedding.prepare(device)
    batches = Batches(data, (rows, rows), state, BATCH)
    batches.shuffle(0)
    graphs = Graphs(device.type == "cuda" and net.capturable(device), [*state.tensors().values(), batches.cursor])
    replay = graphs.captured(partial(take_step, plan, state, batches, BATCH))
    taken = 0

    def step() -> None:
        nonlocal taken
        if taken % len(sizes) == 0:
            batches.cursor.zero_()
        taken += 1
        batches.receive(graphs.possible)
        replay()

    return step


# --- sbi --------------------------------------------------------------------------------------------------------------


def sbi_microseconds(theta: Tensor, x: Tensor) -> float:
    """What a step of sbi's `NPE.train` takes, with a spline flow of the same size: epochs but the first, over steps."""
    from sbi.inference import NPE
    from sbi.neural_nets import posterior_nn
    from torch.distributions import Independent, Uniform

    prior = Independent(Uniform(-3 * torch.ones(2), 3 * torch.ones(2)), 1)

    def seconds(epochs: int) -> float:
        build = posterior_nn("zuko_nsf", hidden_features=(256, 256, 256), num_transforms=3, num_bins=8)
        trainer = NPE(prior=prior, density_estimator=build, show_progress_bars=False)
        trainer.append_simulations(theta, x)
        begin = time.perf_counter()
        trainer.train(training_batch_size=BATCH, max_num_epochs=epochs, stop_after_epochs=1000)
        return time.perf_counter() - begin

    steps = int(0.9 * len(theta)) // BATCH
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return 1e6 * (seconds(4) - seconds(1)) / (3 * steps)


# --- timing -----------------------------------------------------------------------------------------------------------


def microseconds(step: Callable[[], None], device: torch.device, seconds: float) -> float:
    """The median over five stretches of the time a step takes, in microseconds."""
    sync = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    step()
    sync()
    begin = time.perf_counter()
    step()
    sync()
    count = max(2, int(seconds / 5 / max(time.perf_counter() - begin, 1e-6)))
    stretches = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            step()
        sync()
        stretches.append((time.perf_counter() - begin) / count)
    return 1e6 * statistics.median(stretches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--stacks", default="10,40" if torch.cuda.is_available() else "1,5")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--no-tf32", dest="tf32", action="store_false", help="float32 matrix products, for both")
    parser.add_argument("--eager", action="store_true", help="do not compile our step")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = arguments.tf32
    stacks = [int(s) for s in arguments.stacks.split(",")]
    compiled = not arguments.eager and compiler_available(device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(
        f"torch {torch.__version__} on {name}; batch {BATCH}; µs per member-step, medians; our step "
        f"{'compiled' if compiled else 'eager'}"
        + (f"; TF32 {'on' if arguments.tf32 else 'off'}" if device.type == "cuda" else "")
    )
    print(
        f"{'case':22}{'authors':>10}" + "".join(f"{f'stack of {m}':>14}{'ratio':>8}{'warm-up s':>11}" for m in stacks),
        flush=True,
    )
    for case in arguments.cases.split(","):
        method, x_shape = CASES[case]
        generator = torch.Generator().manual_seed(0)
        theta = (6 * torch.rand(4096, 2, generator=generator) - 3).to(device)
        if len(x_shape) == 3:
            x = (torch.rand(4096, *x_shape, generator=generator) < 0.3).to(torch.uint8).to(device)
        else:
            x = torch.randn(4096, *x_shape, generator=generator).to(device)
        reference = microseconds(authors_step(method, x_shape, theta, x), device, arguments.seconds)
        line = f"{case:22}{reference:10.0f}"
        for members in stacks:
            begin = time.perf_counter()
            step = our_step(method, x_shape, theta, x, members, compiled)
            warm = time.perf_counter() - begin
            mine = microseconds(step, device, arguments.seconds) / members
            line += f"{mine:14.1f}{reference / mine:8.1f}{warm:11.1f}"
        print(line, flush=True)
        if case == "NPE" and device.type == "cpu" and importlib.util.find_spec("sbi"):
            peer = sbi_microseconds(theta, x)
            print(f"{'  sbi, NPE.train':22}{peer:10.0f}  ({peer / mine:.1f} times the last stack's)", flush=True)


if __name__ == "__main__":
    main()
