"""Stacks: a member never feels its neighbours; optimiser, plateau and shuffles against torch's own."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import torch.distributions as td
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import equipoise as eq
from equipoise.losses import pairs_needed, rolls_needed
from equipoise.methods import METHODS, resolve
from equipoise.training import PAPER, RELEASED, Member, data, fit_many
from equipoise.training.data import Data
from equipoise.training.plateau import Control
from equipoise.training.settings import Settings
from equipoise.training.shuffle import permutations
from equipoise.training.step import State, _limit, _update

PRIOR = eq.BoxUniform(-torch.ones(2), torch.ones(2))
# An improvement has to be so large that learning rates fall within a few epochs.
SMALL = dataclasses.replace(PAPER, batch_size=32, epochs=10, patience=0, threshold=0.9)


def pairs(n: int = 160, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, torch.cat([theta, theta**2], 1) + 0.3 * torch.randn(n, 4, generator=g)


def train(members: list[Member], data: list[tuple[Tensor, Tensor]], **options: object) -> list[eq.Posterior]:
    settings = options.pop("settings", SMALL)
    return fit_many(
        members, data, prior=PRIOR, settings=settings, hidden=(16, 16), device="cpu", progress=False, **options
    )


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", list(METHODS))
def test_a_member_alone_and_in_a_stack_is_the_same_member(name: str) -> None:
    """To 1e-8 in float64, while learning rates fall, with neighbours of other methods, strengths and data."""
    data = [pairs(seed=0), pairs(seed=1)]
    me = Member(resolve(name), seed=5, data=1)
    family = [m for m in METHODS.values() if m.network == me.method.network]
    crowd = [Member(m, seed=i, data=i % 2) for i, m in enumerate(family)]
    crowd += [Member(resolve(name, strength=7.0) if me.method.balance != "none" else me.method, seed=99)]
    (alone,) = train([me], data)
    together = train([*crowd, me], data)[-1]
    for weight, value in alone.stack.items():
        torch.testing.assert_close(together.stack[weight], value, rtol=0, atol=1e-8)
    for variable in ("train_loss", "validation_loss", "learning_rate"):
        np.testing.assert_allclose(together.history[variable], alone.history[variable], atol=1e-8)
    assert alone.history.learning_rate.values.min() < 1e-3, "no learning-rate drop was provoked"


@pytest.mark.usefixtures("double")
def test_members_that_leave_do_not_disturb_those_that_stay() -> None:
    """With so little patience that members stop at different epochs, each is what it is alone."""
    settings = dataclasses.replace(SMALL, epochs=40, patience=0, threshold=1e-3)
    members = [Member(resolve("nre"), seed=i) for i in range(6)]
    together = train(members, [pairs()], settings=settings)
    lengths = [int(p.history.epochs.item()) for p in together]
    assert len(set(lengths)) > 1 and min(lengths) < 40
    for i in (0, 5):
        (alone,) = train([members[i]], [pairs()], settings=settings)
        assert int(alone.history.epochs.item()) == lengths[i]
        for weight, value in alone.stack.items():
            torch.testing.assert_close(together[i].stack[weight], value, rtol=0, atol=1e-8)


@pytest.mark.usefixtures("double")
def test_strength_zero_is_the_unbalanced_method() -> None:
    zero, plain = train([Member(resolve("bnre", strength=0.0), 3), Member(resolve("nre"), 3)], [pairs()])
    for weight, value in plain.stack.items():
        torch.testing.assert_close(zero.stack[weight], value, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_step_is_torchs_adam(weight_decay: float, clip: float | None) -> None:
    flat = torch.randn(3, 50)
    rates = torch.tensor([1e-3, 1e-2, 3e-4])
    state = State.fresh(flat.clone(), 1e-3)
    state.lr.copy_(rates)
    rows = [torch.nn.Parameter(row.clone()) for row in flat]
    optimisers = [
        torch.optim.AdamW([row], lr=float(lr), weight_decay=weight_decay) for row, lr in zip(rows, rates, strict=True)
    ]
    ones = torch.ones(1, 50)
    for step in range(20):
        gradient = torch.randn(3, 50, generator=torch.Generator().manual_seed(step))
        state.steps += 1
        _update(
            state.flat,
            gradient.clone() if clip is None else _limit(gradient, ones, clip),
            state.moment_1,
            state.moment_2,
            state.steps,
            state.lr,
            state.active,
            ones,
            weight_decay,
        )
        for m, (row, optimiser) in enumerate(zip(rows, optimisers, strict=True)):
            row.grad = gradient[m].clone()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([row], clip)
            optimiser.step()
    for m, row in enumerate(rows):
        torch.testing.assert_close(state.flat[m], row.detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("mode", ["relative", "absolute"])
def test_the_plateau_rule_is_torchs(mode: str) -> None:
    settings = Settings(patience=3, threshold=1e-2, early_stop=False, threshold_mode=mode)
    losses = 1 + torch.randn(60, 5, generator=torch.Generator().manual_seed(0)).cumsum(0).abs() * 0.05
    state = State.fresh(torch.zeros(5, 4), 1e-3)
    control = Control.fresh(state)
    absolute = torch.full((5,), mode == "absolute")
    kind = "abs" if mode == "absolute" else "rel"
    optimisers = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3) for _ in range(5)]
    schedulers = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=3, threshold=1e-2, threshold_mode=kind, min_lr=1e-5)
        for o in optimisers
    ]
    for epoch, row in enumerate(losses):
        state.flat.fill_(float(epoch))
        control.end_epoch(state, row, row, torch.tensor(epoch), absolute, settings)
        for m, scheduler in enumerate(schedulers):
            scheduler.step(float(row[m]))
        want = torch.tensor([o.param_groups[0]["lr"] for o in optimisers])
        torch.testing.assert_close(state.lr, want)
    torch.testing.assert_close(control.best_loss, losses.min(0).values)
    torch.testing.assert_close(control.best_flat[:, 0], losses.argmin(0).double())
    assert state.active.all()


def test_a_converged_member_stops_and_a_diverged_one_is_marked() -> None:
    settings = Settings(patience=0, learning_rate=1e-3, min_learning_rate=1e-3)
    state = State.fresh(torch.zeros(3, 1), 1e-3)
    control = Control.fresh(state)
    improving = torch.tensor([3.0, 2.0, 1.0, 0.5])
    for epoch in range(4):
        losses = torch.tensor([improving[epoch], 1.0, float("nan") if epoch == 2 else 1.0 - 0.1 * epoch])
        control.end_epoch(state, losses, losses, torch.tensor(epoch), torch.zeros(3, dtype=torch.bool), settings)
    assert state.active.tolist() == [True, False, False]
    assert control.diverged.tolist() == [False, False, True]
    assert control.best_epoch.tolist() == [3, 0, 1]


def test_absolute_thresholds_are_for_losses_that_can_be_negative() -> None:
    """A relative threshold would take slow worsening of a negative loss for improvement."""
    rising = torch.linspace(-3.0, -2.99, 30)
    rates = {}
    for absolute in (True, False):
        state = State.fresh(torch.zeros(1, 1), 1e-3)
        control = Control.fresh(state)
        for epoch, loss in enumerate(rising):
            flags = torch.tensor([absolute])
            control.end_epoch(
                state, loss[None], loss[None], torch.tensor(epoch), flags, dataclasses.replace(PAPER, threshold=1e-3)
            )
        rates[absolute] = float(state.lr)
    assert rates[True] < 1e-3 and rates[False] == pytest.approx(1e-3)
    assert resolve("npe").objective.can_be_negative and not resolve("bnre").objective.can_be_negative


def test_shuffles_are_uniform_permutations_that_differ_by_member_and_epoch() -> None:
    keys = torch.tensor([12345, 67890])
    first = permutations(keys, 0, 50)
    assert torch.equal(first.sort(1).values, torch.arange(50).expand(2, 50))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, permutations(keys, 1, 50))
    assert torch.equal(permutations(keys[1:], 0, 50)[0], first[1])
    # Every row is equally likely in every place: χ² over 20 places × 20 rows; 361 degrees of freedom, rejects at
    # about 1e-6.
    many = torch.cat([permutations(torch.arange(2000), epoch, 20) for epoch in range(5)])
    counts = torch.stack([torch.bincount(many[:, place], minlength=20) for place in range(20)]).double()
    statistic = ((counts - 500) ** 2 / 500).sum().item()
    assert 240 < statistic < 510


def test_the_loss_of_the_history_is_the_loss_of_the_posterior() -> None:
    """The best validation loss, balance included, recomputed from the posterior over the whole validation set."""
    theta, x = pairs(200)
    (p,) = train([Member(resolve("bnre"), 1)], [(theta, x)])
    rows = slice(180, 200)
    joint = p.log_ratios(theta[rows], x[rows])[0]
    marginal = p.log_ratios(theta[rows].roll(1, 0), x[rows])[0]
    want = eq.losses.nre(joint, marginal) + 100 * eq.losses.balance_chi2(joint, marginal)
    assert float(p.history.best_loss.item()) == pytest.approx(float(want), rel=1e-4)
    best = int(p.history.best_epoch.item())
    assert float(p.history.validation_loss[best, 0]) == pytest.approx(float(want), rel=1e-4)


def test_last_weights_are_the_last_epochs() -> None:
    settings = dataclasses.replace(RELEASED, batch_size=32, epochs=5)
    (p,) = train([Member(resolve("nre"), 1)], [pairs(170)], settings=settings)
    theta, x = (t[153:170] for t in pairs(170))
    joint, marginal = p.log_ratios(theta, x)[0], p.log_ratios(theta.roll(1, 0), x)[0]
    assert float(p.history.validation_loss[-1, 0]) == pytest.approx(float(eq.losses.nre(joint, marginal)), rel=1e-4)
    assert int(p.history.epochs.item()) == 5


def test_members_that_diverge_are_reported_and_the_others_go_on() -> None:
    """A member on data that overflow float32 diverges at once; its neighbour trains as if alone."""
    theta, x = pairs()
    members = [Member(resolve("nre"), seed, data=seed - 1, keep=keep) for keep in ("best", "last") for seed in (1, 2)]
    with pytest.warns(UserWarning, match=r"training nre: member\(s\) 0, 2 never had a finite loss"):
        lost, fine, lost_too, _ = train(members, [(theta, x.sign() * 3e38), (theta, x)])
    assert lost is None and lost_too is None
    (alone,) = train([Member(resolve("nre"), 2, data=0)], [(theta, x)])
    np.testing.assert_allclose(fine.history.validation_loss, alone.history.validation_loss, rtol=1e-3)


def test_streamed_batches_give_the_same_weights(tmp_path: Path) -> None:
    """x memory-mapped on disk and read batch by batch, against x in memory."""
    theta, x = pairs()
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=tuple(x.shape))
    file[:] = x.numpy()
    file.flush()
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    (a,), (b,) = train([Member(resolve("bnre"))], [(theta, x)]), train([Member(resolve("bnre"))], [(theta, on_disk)])
    for weight, value in a.stack.items():
        torch.testing.assert_close(b.stack[weight], value)


class OnDisk:
    """An array that is read by rows, as HDF5's: sorted ones without repetition. It counts what is asked of it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape = values, values.shape
        self.most, self.alive = 0, []

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
        assert isinstance(index, slice) or (np.diff(index) > 0).all()
        found = Held(self.values[index])
        self.most = max(self.most, len(found))
        self.alive.append(weakref.ref(found))
        return found


class Held(np.ndarray):
    """What was read, which can be asked whether it is still in memory."""

    def __new__(cls, values: np.ndarray) -> Held:
        held = super().__new__(cls, values.shape, values.dtype)  # it owns its memory, so all that shares it holds it
        held[...] = values
        return held


@pytest.mark.parametrize("split", ["shuffled", "prefix"])
def test_what_is_not_in_memory_is_read_a_batch_at_a_time(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs never ask for more rows than two batches of 32 among 400 pairs need, which is a stretch of twice as many
    at most; nothing that was read stays in memory; and the result is the same."""
    monkeypatch.setattr(data, "WHOLE", 0)
    theta, x = pairs(400)
    settings = dataclasses.replace(SMALL, epochs=3, split=split)
    for values in (x.numpy(), x.numpy().astype(np.float16)):
        on_disk, held = OnDisk(values), []

        def at_the_end(epoch: int, _: object, on_disk: OnDisk = on_disk, held: list[int] = held) -> None:
            held.append(sum(found() is not None for found in on_disk.alive))
            if epoch == 0:  # a look at the data before training may be longer
                on_disk.most = 0

        members = [Member(resolve("bnre"), seed) for seed in (1, 2)]
        streamed = train(members, [(theta, on_disk)], settings=settings, on_epoch=at_the_end)
        in_memory = train(members, [(theta, torch.from_numpy(values))], settings=settings)
        for a, b in zip(streamed, in_memory, strict=True):
            for weight, value in a.stack.items():
                assert torch.equal(value, b.stack[weight])
        assert 32 <= on_disk.most <= 128
        assert held == [0, 0, 0]


def test_hdf5_trains_as_memory_does(tmp_path: Path) -> None:
    theta, x = pairs()
    options = {"prior": PRIOR, "method": "nre", "members": 2, "epochs": 2, "hidden": (8,), "batch_size": 16}
    options |= {"device": "cpu", "progress": False}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = x.numpy()
        a = eq.fit(theta, file["x"], checkpoint=tmp_path, **options)
    b = eq.fit(theta, x, checkpoint=tmp_path / "other", **options)
    for weight, value in a.stack.items():
        assert torch.equal(value, b.stack[weight])


def test_memory_mapped_data_stay_on_disk(tmp_path: Path) -> None:
    """256 MB of x, split at random, raise the memory that is not the file's by less than a quarter of that."""
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is read from /proc, which this system does not have")

    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    n, width = 4096, 16384
    file = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(n, width))
    file[:] = 1  # on disk, and not only a hole in it
    file[:, 0] = np.arange(n)
    del file
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0)).sort().values[::2]
    rows = torch.cat([rows, torch.tensor([n - 1, 0])])
    before = anonymous()
    data = Data([torch.zeros(len(rows), 1)], [x], torch.device("cpu"), rows=rows)
    batch = data.x_batch(torch.zeros(1, dtype=torch.int64), torch.tensor([[len(rows) - 1, 5, 5, len(rows) - 2]]))
    assert data.stream and anonymous() - before < x.nbytes / 4
    assert batch[0, :, 0].tolist() == [0, rows[5], rows[5], n - 1]


def test_data_sets_are_put_in_place_one_after_the_other() -> None:
    """While one is read, no other is in memory a second time."""
    values = np.arange(3 * 50 * 4, dtype=np.float32).reshape(3, 50, 4)
    alive: list[weakref.ref[Held]] = []
    most = []

    class Watched(OnDisk):
        def __getitem__(self, index: slice | np.ndarray) -> np.ndarray:
            most.append(sum(len(found) for ref in alive if (found := ref()) is not None))
            found = super().__getitem__(index)
            alive.append(self.alive[-1])
            return found

    rows = torch.arange(0, 50, 4)
    codes = [torch.zeros(len(rows), 1)]
    sets = [Watched(v) for v in values]
    data = Data(codes, sets, torch.device("cpu"), stream=False, rows=rows)
    assert data.x is not None and np.array_equal(data.x.numpy(), values[:, ::4])
    assert max(most) <= len(sets)  # a row of each, to see what they hold
    mixed = Data(codes, [torch.ones(50, 4, dtype=torch.uint8), values[0]], torch.device("cpu"), False, rows)
    assert mixed.x is not None and mixed.x.dtype == torch.float32


def test_data_is_held_once_however_many_members_read_it() -> None:
    x = torch.randint(0, 2, (100, 3, 5, 5), dtype=torch.uint8)
    data = Data([torch.randn(100, 2)], [x], torch.device("cpu"))
    assert data.x is not None and data.x.dtype == torch.uint8
    assert data.x.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    which = torch.zeros(40, dtype=torch.int64)
    assert data.x_batch(which, torch.randint(100, (40, 8))).shape == (40, 8, 3, 5, 5)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 1.0])
def test_compiled_and_eager_training_agree(clip: float | None) -> None:
    settings = dataclasses.replace(SMALL, clip=clip)
    (eager,) = train([Member(resolve("bnre_c"), 1)], [pairs()], compile=False, settings=settings)
    (compiled,) = train([Member(resolve("bnre_c"), 1)], [pairs()], compile=True, settings=settings)
    assert compiled.history.attrs["compiled"] == 1 and eager.history.attrs["compiled"] == 0
    np.testing.assert_allclose(compiled.history.validation_loss, eager.history.validation_loss, rtol=2e-3, atol=2e-3)


def test_the_compiler_sees_every_network_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three problems in one process: none compiles twice, and nothing but the number of members is a symbol."""
    sizes: list[torch.Size] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> torch.fx.GraphModule:
        sizes.extend(v.shape for v in inputs if isinstance(v, Tensor))
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    theta, x = pairs()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for width in (2, 4, 7):
            trained = train(
                [Member(resolve("nre"), s) for s in (1, 2)], [(theta, x.repeat(1, 3)[:, :width])], compile=True
            )
            assert trained[0].history.attrs["compiled"] == 1
    assert len(sizes) > 3
    assert all(isinstance(n, int) for size in sizes for n in size[1:])


def test_a_compiler_that_fails_costs_speed_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(*_: object) -> None:
        raise ValueError("no such instruction")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    members, data = [Member(resolve("npe"), 1)], [pairs(seed=3)]
    with pytest.warns(UserWarning, match="could not compile the training step .*no such instruction"):
        (tried,) = train(members, data, compile=True)
    assert tried.history.attrs["compiled"] == 0
    (eager,) = train(members, data, compile=False)
    np.testing.assert_array_equal(tried.history.validation_loss, eager.history.validation_loss)


# --- checkpoints ------------------------------------------------------------------------------------------------------

SCRIPT = """
    import sys, torch, equipoise as eq
    import equipoise.training.checkpoint as checkpoint
    checkpoint.Checkpoint.__init__.__defaults__ = (0.0,)  # at every epoch
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    theta = 2 * torch.rand(300, 2, generator=g) - 1
    x = theta + 0.3 * torch.randn(300, 2, generator=g)
    prior = eq.BoxUniform(-torch.ones(2), torch.ones(2))
    p = eq.fit(theta, x, prior=prior, method="bnpe", members=2, epochs=60, patience=2, batch_size=32, hidden=(16, 16),
               progress=False, checkpoint=sys.argv[1], device="cpu")
    p.save(sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_training_ends_in_the_same_weights(tmp_path: Path) -> None:
    """kill -9 at three moments, then to the end; against a run that nobody killed."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def run(checkpoint: str, out: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, script, tmp_path / checkpoint, tmp_path / out], env=os.environ | {"OMP_NUM_THREADS": "1"}
        )

    assert run("undisturbed", "a").wait(300) == 0
    file = tmp_path / "killed" / "stack-0.safetensors"
    seen = 0
    for _ in range(3):
        process = run("killed", "b")
        before = file.stat().st_mtime_ns if file.exists() else 0
        while process.poll() is None and (not file.exists() or file.stat().st_mtime_ns == before):
            pass
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            seen += 1
        process.wait()
    assert seen >= 1, "the training was too fast to be killed"
    assert run("killed", "b").wait(300) == 0
    a, b = eq.load(tmp_path / "a"), eq.load(tmp_path / "b")
    for name, weight in a.stack.items():
        assert torch.equal(weight, b.stack[name]), name
    np.testing.assert_array_equal(a.history.validation_loss, b.history.validation_loss)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    theta, x = pairs()
    train([Member(resolve("nre"), 1)], [(theta, x)], checkpoint=tmp_path)
    assert (tmp_path / "stack-0.safetensors").exists()
    train([Member(resolve("nre"), 1)], [(theta, x)], checkpoint=tmp_path)  # the same: nothing left to do
    last = dataclasses.replace(SMALL, keep="last")
    train([Member(resolve("nre"), 1)], [(theta, x)], settings=last, checkpoint=tmp_path)  # other weights of the same
    with pytest.raises(ValueError, match="another training"):
        train([Member(resolve("nre"), 2)], [(theta, x)], checkpoint=tmp_path)
    tensors = load_file(tmp_path / "stack-0.safetensors")
    save_file(tensors, tmp_path / "stack-0.safetensors", metadata={"format": "1", "identity": "any"})
    with pytest.raises(ValueError, match="of another version of Equipoise; delete the file"):
        train([Member(resolve("nre"), 1)], [(theta, x)], checkpoint=tmp_path)
    (tmp_path / "stack-0.safetensors").write_bytes(b"cut short")
    with pytest.raises(ValueError, match="cannot be read"):
        train([Member(resolve("nre"), 1)], [(theta, x)], checkpoint=tmp_path)


class Mine:
    """A prior of one's own, printed with its address in memory."""

    def __init__(self, scale: float) -> None:
        self.normal = td.Independent(td.Normal(torch.zeros(2), scale * torch.ones(2)), 1)

    def sample(self, shape: tuple[int, ...]) -> Tensor:
        return self.normal.sample(shape)

    def log_prob(self, theta: Tensor) -> Tensor:
        return self.normal.log_prob(theta)


def test_a_training_with_a_prior_of_ones_own_goes_on(tmp_path: Path) -> None:
    first, again, wider = Mine(1.0), Mine(1.0), Mine(1.5)
    assert repr(first) != repr(again)
    theta, told = first.sample((100,)), []
    options = {"method": "nre", "members": 1, "epochs": 2, "hidden": (4,), "batch_size": 32, "standardize": False}
    options |= {"progress": False, "checkpoint": tmp_path, "device": "cpu", "on_epoch": lambda *_: told.append(1)}
    eq.fit(theta, theta, prior=first, **options)
    assert len(told) == 2
    eq.fit(theta, theta, prior=again, **options)
    assert len(told) == 2  # taken up where it was: at the end
    with pytest.raises(ValueError, match="another training"):
        eq.fit(theta, theta, prior=wider, **options)


def test_a_prior_that_takes_code_to_rebuild_is_known_by_its_densities(tmp_path: Path) -> None:
    def prior(low: float) -> eq.IndependentPrior:
        log_uniform = td.TransformedDistribution(td.Uniform(low, 1.0), [td.transforms.ExpTransform()])
        return eq.IndependentPrior([log_uniform, td.Normal(0.0, 1.0)])

    torch.manual_seed(0)
    theta = prior(-2.0).sample((100,))
    options = {"method": "npe", "members": 1, "epochs": 1, "hidden": (4,), "batch_size": 32, "standardize": False}
    options |= {"progress": False, "checkpoint": tmp_path, "device": "cpu"}
    for _ in range(2):
        eq.fit(theta, theta, prior=prior(-2.0), **options)
    with pytest.raises(ValueError, match="another training"):
        eq.fit(theta, theta, prior=prior(-3.0), **options)


class Given(torch.nn.Module):
    """An embedding without `reset_parameters`: training begins with the weights it has."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 3), value))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Buffered(torch.nn.Module):
    """A network with a constant that is no weight."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 2))
        self.register_buffer("value", torch.tensor(value))

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.value * (theta * (x @ self.weight)).sum(-1)


@pytest.mark.parametrize(
    ("name", "mine", "other"),
    [
        ("x_scale", 1.0, 100.0),
        ("embedding", Given(1.0), Given(-5.0)),
        ("network", Buffered(1.0), Buffered(0.5)),
    ],
)
def test_what_a_training_begins_with_is_part_of_what_it_is(
    name: str, mine: object, other: object, tmp_path: Path
) -> None:
    settings = dataclasses.replace(SMALL, epochs=1)
    for _ in range(2):
        train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path, **{name: mine})
    with pytest.raises(ValueError, match="another training"):
        train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path, **{name: other})


def test_a_checkpoint_that_cannot_be_written_is_told_first_and_costs_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    settings = dataclasses.replace(SMALL, epochs=1)
    with pytest.raises(ValueError, match="cannot be written to"):
        train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path / "file" / "ck")

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr("equipoise.training.checkpoint.save_file", full)
    with pytest.warns(UserWarning, match="could not be written .*No space left"):
        (trained,) = train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path / "ck")
    assert trained is not None


def test_a_training_is_known_by_numbers_however_they_are_held(tmp_path: Path) -> None:
    """x in a file that is only read, and settings that came out of an array."""
    theta, x = pairs()
    np.save(tmp_path / "x.npy", x.numpy())
    on_disk = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings = dataclasses.replace(SMALL, epochs=1)
    train([Member(resolve("nre"))], [(theta, x)], settings=settings, checkpoint=tmp_path)
    settings = dataclasses.replace(settings, epochs=np.int64(1), clip=None)
    train([Member(resolve("nre"))], [(theta, on_disk)], settings=settings, checkpoint=tmp_path)


@pytest.mark.parametrize(("n", "enough"), [(110, False), (120, True)])
def test_too_few_pairs_for_an_unbiased_balance_are_told_before_training(n: int, enough: bool) -> None:
    """The contrastive balance with K = 5 leaves out terms up to 5 apart: 12 pairs at least, for validation as well."""
    theta, x = pairs(n)
    member = Member(resolve("bnre_c", balance="multiclass"), objective=(("unbiased", True),))
    settings = dataclasses.replace(SMALL, epochs=1)
    if enough:
        (trained,) = train([member], [(theta, x)], settings=settings)
        assert np.isfinite(trained.history.validation_loss.values).all()
        return
    with pytest.raises(ValueError, match=r"leave 99 .* 11 for validation; this method needs at least 12 of each"):
        train([member], [(theta, x)], settings=settings)


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", list(METHODS))
def test_the_fewest_pairs_of_an_objective(name: str, unbiased: bool) -> None:
    row = resolve(name)
    objective = row.objective(unbiased=unbiased and row.balance in ("chi2", "multiclass"))
    least = pairs_needed(objective)
    bandwidth = objective.contrastive if objective.balance == "multiclass" else 1
    rule = 2 + 2 * bandwidth if objective.unbiased and objective.balanced else 2
    assert least == max(rule, rolls_needed(objective))
