"""Checkpoints: a training that was stopped goes on, and another is refused."""

from __future__ import annotations

import dataclasses
import signal
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributions as td
from forked import Forked
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from training_tools import SMALL, pairs, quick, same_weights, train

import equipoise as eq
from equipoise.methods import resolve
from equipoise.support.errors import CheckpointMismatch, DamagedFile
from equipoise.training import Member
from equipoise.training.batches import Batches

SCRIPT = """
    import sys, torch, equipoise as eq
    import equipoise.training.checkpoint as checkpoint
    checkpoint.Checkpoint.__init__.__defaults__ = (0.0,)  # at every epoch
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    theta = 2 * torch.rand(300, 2, generator=g) - 1
    x = theta + 0.3 * torch.randn(300, 2, generator=g)
    prior = eq.BoxUniform(-torch.ones(2), torch.ones(2))
    p = eq.fit(theta, x, prior=prior, method=eq.METHODS["bnpe"].but(hidden=(16, 16)), members=2, epochs=60,
               batch_size=32, settings=eq.Settings(patience=2), progress=False, checkpoint=sys.argv[1], device="cpu")
    p.save(sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_training_ends_in_the_same_weights(tmp_path: Path) -> None:
    """kill -9 at three moments, then to the end; against a run that nobody killed."""

    def run(checkpoint: str, out: str) -> Forked:
        return Forked(textwrap.dedent(SCRIPT), tmp_path / checkpoint, tmp_path / out)

    assert run("undisturbed", "a").wait(300) == 0
    file = tmp_path / "killed" / "stack-0.safetensors"
    seen = 0
    for _ in range(3):
        process = run("killed", "b")
        before = file.stat().st_mtime_ns if file.exists() else 0
        while process.poll() is None and (not file.exists() or file.stat().st_mtime_ns == before):
            time.sleep(0.001)
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
    with pytest.raises(CheckpointMismatch, match="another training"):
        train([Member(resolve("nre"), 2)], [(theta, x)], checkpoint=tmp_path)
    tensors = load_file(tmp_path / "stack-0.safetensors")
    save_file(tensors, tmp_path / "stack-0.safetensors", metadata={"format": "1", "identity": "any"})
    with pytest.raises(CheckpointMismatch, match="another version"):
        train([Member(resolve("nre"), 1)], [(theta, x)], checkpoint=tmp_path)
    (tmp_path / "stack-0.safetensors").write_bytes(b"cut short")
    with pytest.raises(DamagedFile, match=r"stack-0\.safetensors"):
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
    options = {"method": "nre", "standardize": False, "checkpoint": tmp_path, "on_epoch": lambda *_: told.append(1)}
    quick(theta, theta, prior=first, **options)
    assert len(told) == 2
    quick(theta, theta, prior=again, **options)
    assert len(told) == 2  # taken up where it was: at the end
    with pytest.raises(CheckpointMismatch, match="another training"):
        quick(theta, theta, prior=wider, **options)


def test_a_prior_that_takes_code_to_rebuild_is_known_by_its_densities(tmp_path: Path) -> None:
    def prior(low: float) -> eq.IndependentPrior:
        log_uniform = td.TransformedDistribution(td.Uniform(low, 1.0), [td.transforms.ExpTransform()])
        return eq.IndependentPrior([log_uniform, td.Normal(0.0, 1.0)])

    torch.manual_seed(0)
    theta = prior(-2.0).sample((100,))
    options = {"method": "npe", "epochs": 1, "standardize": False, "checkpoint": tmp_path}
    for _ in range(2):
        quick(theta, theta, prior=prior(-2.0), **options)
    with pytest.raises(CheckpointMismatch, match="another training"):
        quick(theta, theta, prior=prior(-3.0), **options)


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
    with pytest.raises(CheckpointMismatch, match="another training"):
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


@pytest.mark.parametrize("where", ["theta", "x", "file"])
def test_every_number_of_the_data_identifies_a_training(where: str, tmp_path: Path) -> None:
    """Of 9,000 rows, one that no sample of every second row would meet."""
    theta, x = pairs(9000)
    settings = dataclasses.replace(SMALL, epochs=1, batch_size=1024)

    def given() -> list[tuple[object, object]]:
        if where != "file":
            return [(theta, x)]
        np.save(tmp_path / "x.npy", x.numpy())
        return [(theta, np.load(tmp_path / "x.npy", mmap_mode="r"))]

    train([Member(resolve("nre"))], given(), settings=settings, checkpoint=tmp_path)
    train([Member(resolve("nre"))], given(), settings=settings, checkpoint=tmp_path)
    (theta if where == "theta" else x)[4321, 1] *= 0.5
    with pytest.raises(CheckpointMismatch):
        train([Member(resolve("nre"))], given(), settings=settings, checkpoint=tmp_path)


def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    settings = dataclasses.replace(SMALL, epochs=1)
    train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path)
    file = tmp_path / "stack-0.safetensors"
    written = file.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.integers(0, len(written), 40).tolist():
        damaged = bytearray(written)
        damaged[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        with pytest.raises((DamagedFile, CheckpointMismatch), match=r"stack-0\.safetensors"):
            train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path)
    file.write_bytes(written)
    train([Member(resolve("nre"))], [pairs()], settings=settings, checkpoint=tmp_path)


def test_a_checkpoint_can_be_read_by_whoever_may_read_new_files(tmp_path: Path) -> None:
    train([Member(resolve("nre"))], [pairs()], settings=dataclasses.replace(SMALL, epochs=1), checkpoint=tmp_path)
    (tmp_path / "new").touch()
    assert (tmp_path / "stack-0.safetensors").stat().st_mode == (tmp_path / "new").stat().st_mode
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "stack-0.safetensors"]


@pytest.mark.parametrize("when", ["epoch", "step"])
def test_an_interrupted_training_goes_on_from_there(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two epochs, or in the middle of one; against a training that nobody interrupted."""
    members = [Member(resolve("bnre"), seed) for seed in (1, 2)]
    settings = dataclasses.replace(SMALL, epochs=8, early_stop=False)
    expected = train(members, [pairs()], settings=settings)
    heard: list[int] = []

    def interrupt(epoch: int, _: object) -> None:
        heard.append(epoch)
        if when == "epoch" and epoch == 4:
            raise KeyboardInterrupt

    taken, take = [], Batches.take

    def interrupted(self: Batches, size: int) -> tuple[Tensor, Tensor]:
        taken.append(size)
        if when == "step" and len(taken) == 4 * 4 + 3:  # the third of four steps of the fifth epoch
            raise KeyboardInterrupt
        return take(self, size)

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(members, [pairs()], settings=settings, checkpoint=tmp_path, on_epoch=interrupt)
    assert heard[-1] >= 3
    resumed: list[int] = []
    found = train(
        members, [pairs()], settings=settings, checkpoint=tmp_path, on_epoch=lambda epoch, _: resumed.append(epoch)
    )
    assert resumed == ([5, 6, 7] if when == "epoch" else [4, 5, 6, 7])
    for a, b in zip(found, expected, strict=True):
        assert same_weights(a, b)
        np.testing.assert_array_equal(a.history.validation_loss, b.history.validation_loss)
