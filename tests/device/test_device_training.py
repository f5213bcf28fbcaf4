"""`fit` on the pretended GPU, graphs included, gives what it gives on the CPU, wherever its data are."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretend import pretended_gpu
from torch import Tensor, nn

import equipoise as eq
from equipoise.networks import Convolutional, Flat, matmul_precision
from equipoise.posteriors import Posterior
from equipoise.training import Settings, data, loop

PRIOR = eq.BoxUniform(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 3.0]))
SMALL: dict[str, Any] = {
    "members": 2,
    "epochs": 7,
    "batch_size": 32,
    "settings": Settings(compile=False),
    "progress": False,
}
METHODS = {name: method.but(hidden=(8, 8)) for name, method in eq.METHODS.items()}


def pairs(n: int = 160, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    theta = PRIOR.sample((n,))
    return theta, torch.cat([theta, theta.sum(-1, keepdim=True)], -1) + 0.3 * torch.randn(n, 3)


def agree(away: Posterior, here: Posterior, tolerance: float = 1e-5) -> None:
    for name, weight in here.stack.items():
        torch.testing.assert_close(away.stack[name].cpu(), weight, rtol=tolerance, atol=tolerance)
    assert here.history is not None and away.history is not None
    for name in ("train_loss", "validation_loss", "balance", "learning_rate", "best_epoch"):
        np.testing.assert_allclose(away.history[name], here.history[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "folds", "streamed"),
    [("bnpe_init", None, False), ("bnre_c", None, False), ("bnre", 2, False), ("bnre", 2, True)],
)
def test_methods(method: str, folds: int | None, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    theta, x = pairs()
    options = SMALL | {"prior": PRIOR, "method": METHODS[method], "folds": folds}
    here = eq.fit(theta, x, device="cpu", **options)
    monkeypatch.setattr(data, "STREAM_ABOVE", 0.0 if streamed else 1.0)
    with pretended_gpu():
        before = torch.cuda.get_rng_state()
        away = eq.fit(theta, x, device="cuda", **options)
        assert away.device.type == "cuda" and away.prior.device.type == "cuda"
        assert away.record["trained_on"] == "cuda"
        agree(away, here)
        assert torch.equal(torch.cuda.get_rng_state(), before), "the GPU's global generator was disturbed"


def test_graphs_are_recorded_again_when_steps_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    theta, x = pairs()
    options = SMALL | {"prior": PRIOR, "method": METHODS["bnre"], "epochs": 12}
    here = eq.fit(theta, x, device="cpu", **options)
    monkeypatch.setattr(loop, "compiler_available", lambda _: True)
    monkeypatch.setattr(loop, "COMPILING", {"cuda": (0.0, 1.0)})
    monkeypatch.setattr(torch, "compile", lambda function: function)
    with pretended_gpu():
        away = eq.fit(theta, x, device="cuda", **(options | {"settings": Settings()}))
        assert away.history is not None and away.history.attrs["compiled"] == 1
        agree(away, here)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_host_looks_at_epochs_and_not_at_batches(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the batches cost no further look and no copy to the host; nor to the device, if the data are there."""
    monkeypatch.setattr(data, "STREAM_ABOVE", 0.0 if streamed else 1.0)
    theta, x = pairs()
    waits = []
    for size in (48, 24):  # 3 and 6 batches of 144 pairs, and one of 16 to validate
        with pretended_gpu() as counts:
            eq.fit(theta, x, prior=PRIOR, method=METHODS["bnre"], device="cuda", **(SMALL | {"batch_size": size}))
        waits.append(counts)
    assert (waits[0].looks, waits[0].to_host) == (waits[1].looks, waits[1].to_host)
    assert waits[1].to_device - waits[0].to_device == (3 * SMALL["epochs"] if streamed else 0)


@pytest.mark.parametrize(("place", "device"), [("cuda", "cuda"), ("cuda", "cuda:0"), ("cuda", None), ("cpu", None)])
def test_data_from_either_device(place: str, device: str | None) -> None:
    theta, x = pairs()
    here = eq.fit(theta, x, prior=PRIOR, method=METHODS["bnre"], device="cpu", **SMALL)
    with pretended_gpu():
        away = eq.fit(theta.to(place), x.to(place), prior=PRIOR, method=METHODS["bnre"], device=device, **SMALL)
        assert away.device.type == ("cuda" if device is not None else place)
        agree(away, here)


def test_a_cpu_training_of_data_on_the_gpu() -> None:
    theta, x = pairs()
    here = eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cpu", **SMALL)
    with pretended_gpu():
        away = eq.fit(
            theta.to("cuda"), x.to("cuda"), prior=PRIOR.to("cuda"), method=METHODS["nre"], device="cpu", **SMALL
        )
        assert away.device.type == "cpu"
        agree(away, here)


@pytest.mark.parametrize("room", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "memory-mapped"])
@pytest.mark.parametrize("partial_batch", [False, True])
def test_data_that_are_streamed(
    kind: str, room: bool, partial_batch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch at a time where the GPU has no room, and once where it has; the training is the same."""
    theta, x = pairs()
    settings = Settings(epochs=6, batch_size=40, partial_batch=partial_batch, compile=False)
    members = [eq.Member(METHODS["bnre"], seed) for seed in range(2)]
    options: dict[str, Any] = {"prior": PRIOR, "settings": settings, "progress": False}
    here = eq.fit_many(members, [(theta, x)], device="cpu", **options)
    source: Any = x
    if kind == "memory-mapped":
        source = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=tuple(x.shape))
        source[:] = x.numpy()
    monkeypatch.setattr(data, "STREAM_ABOVE", 0.6 if room else 0.0)
    monkeypatch.setattr(data, "BLOCK_NUMBERS", 7 * x.shape[1])  # rows are not a multiple of a block's
    copies, replays, unpinned = [], [], []
    for epochs in (2, 6):
        options["settings"] = dataclasses.replace(settings, epochs=epochs)
        with pretended_gpu() as counts:
            away = eq.fit_many(members, [(theta, source)], device="cuda", **options)
            copies.append(counts.to_device)
            replays.append(counts.replays)
            unpinned.append(counts.unpinned)
            if epochs == settings.epochs:
                for a, b in zip(away, here, strict=True):
                    assert a is not None and b is not None
                    agree(a, b)
    steps = 3 + partial_batch  # 144 pairs train, and 16 judge
    assert copies[1] - copies[0] == (0 if room else 4 * (steps + 1))
    assert unpinned[1] == unpinned[0]
    assert replays[1] - replays[0] == 4 * (steps + room)  # pairs that are streamed are not judged in a graph


class Constant(nn.Module):
    """A module that vmap can evaluate and no graph can hold: it copies a constant to the device each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * torch.tensor([1.0, 2.0, 1.0]).to(x.device))


@pytest.mark.parametrize("room", [False, True])
def test_a_module_that_cannot_be_captured_trains_slower(room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    theta, x = pairs()
    torch.manual_seed(0)
    options: dict[str, Any] = {"prior": PRIOR, "method": METHODS["npe"], "embedding": Constant()} | SMALL
    here = eq.fit(theta, x, device="cpu", **options)
    monkeypatch.setattr(data, "STREAM_ABOVE", 0.6 if room else 0.0)
    with pretended_gpu() as counts, pytest.warns(UserWarning, match="cannot be captured as a CUDA graph.*slower"):
        away = eq.fit(theta, x, device="cuda", **options)
    assert counts.replays == 0
    agree(away, here)


def test_what_decides_is_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, of the kind of number that all data sets become; and a GPU that is full after all is streamed to."""
    theta = torch.zeros(10, 2)
    files = [np.zeros((10, 4), np.uint8), np.ones((10, 4), np.float32)]
    mapped = []
    for i, values in enumerate(files):
        np.save(tmp_path / f"{i}.npy", values)
        mapped.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    with pretended_gpu(), monkeypatch.context() as patch:
        for free, streamed in ((2 * 160, False), (2 * 160 - 1, True)):
            patch.setattr(torch.cuda, "mem_get_info", lambda device=None, free=free: (free, free))
            patch.setattr(data, "STREAM_ABOVE", 1.0)
            made = data.Data([theta.to("cuda")], mapped, torch.device("cuda"))
            assert made.stream is streamed and made.dtype == torch.float32
            which, index = torch.tensor([1, 0]), torch.tensor([[3, 4], [5, 5]])
            found = made.x_batch(which if streamed else which.to("cuda"), index if streamed else index.to("cuda"))
            assert found.cpu().mean((1, 2)).tolist() == [1, 0]
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 30, 1 << 30))

        def full(self: data.Data) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        patch.setattr(data.Data, "_held", full)
        assert data.Data([theta.to("cuda")], mapped, torch.device("cuda")).stream
        with pytest.raises(torch.OutOfMemoryError):
            data.Data([theta.to("cuda")], [torch.zeros(10, 4)], torch.device("cuda"))


def test_data_on_the_gpu_are_never_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little memory is free: they are there already."""
    monkeypatch.setattr(data, "STREAM_ABOVE", 0.0)
    x = torch.randn(8, 3)
    with pretended_gpu():
        for device in ("cuda", "cuda:0"):
            held = data.Data([x.to("cuda")], [x.to("cuda")], torch.device(device))
            assert not held.stream and data.Data([x.to("cuda")], [x], torch.device(device)).stream


HELD = """
from unittest import mock
import torch
from equipoise.training import data
from pretend import pretended_gpu

def streams(free, reserved, allocated):
    x, found = torch.randn(8, 3), {"mem_get_info": (free, 1 << 34), "memory_reserved": reserved}
    found |= {"memory_allocated": allocated}
    with pretended_gpu():
        fakes = {name: lambda device=None, value=value: value for name, value in found.items()}
        with mock.patch.multiple(torch.cuda, **fakes):
            return data.Data([x.to("cuda")], [x], torch.device("cuda")).stream

print(streams(0, 0, 0), streams(0, 1 << 30, 0), streams(0, 1 << 30, 1 << 30))
"""


def test_memory_that_is_held_and_not_used_is_free() -> None:
    """In a process of its own, which remembers nothing of other pretended GPUs."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    found = subprocess.run(
        [sys.executable, "-c", HELD], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == ["True", "False", "True"], found.stderr


def test_members_that_leave() -> None:
    """A stack that shrinks is captured anew; what a member becomes does not depend on when the host looks."""
    theta, x = pairs()
    settings = Settings(patience=0, learning_rate=0.1, compile=False)
    small = SMALL | {"members": 4, "epochs": 40, "settings": settings}
    here = eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cpu", **small)
    assert here.history is not None and len(set(here.history["epochs"].values.tolist())) > 2
    with pretended_gpu():
        agree(eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cuda", **small), here)


def test_a_gpu_that_is_not_there() -> None:
    theta, x = pairs()
    with pretended_gpu(), pytest.raises(ValueError, match="torch sees 1 GPU"):
        eq.fit(theta, x, prior=PRIOR, device="cuda:1", **SMALL)


def test_heavy_tailed_columns() -> None:
    theta, x = pairs()
    x = torch.cat([(10 * x).round(), torch.poisson(x[:, 1:].exp())], -1)
    options = SMALL | {"prior": PRIOR, "method": METHODS["npe"]}
    here = eq.fit(theta, x, device="cpu", **options)
    assert here.network.embedding == Flat((5,), (3, 4))
    with pretended_gpu():
        agree(eq.fit(theta, x.int(), device="cuda", **options), here)


def test_counts_in_images() -> None:
    theta, x = pairs(100)
    images = (x.abs() * 10).to(torch.uint8)[:, None, :, None] + torch.arange(4, dtype=torch.uint8)
    small = SMALL | {"epochs": 2, "embedding": Convolutional((1, 3, 4), 2, 2)}
    here = eq.fit(theta, images, prior=PRIOR, method=METHODS["bnpe_init"], device="cpu", **small)
    with pretended_gpu():
        agree(eq.fit(theta, images, prior=PRIOR, method=METHODS["bnpe_init"], device="cuda", **small), here, 1e-4)


class Ratio(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 1)
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.layer(torch.cat([theta / self.scale, x], -1)).squeeze(-1)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_modules_of_the_users_own(place: str) -> None:
    theta, x = pairs()
    small = SMALL | {"epochs": 2}
    embedding = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    here = eq.fit(theta, x, prior=PRIOR, method=METHODS["npe"], embedding=embedding, device="cpu", **small)
    ratio = eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], network=Ratio(), device="cpu", **small)
    with pretended_gpu():
        agree(
            eq.fit(theta, x, prior=PRIOR, method=METHODS["npe"], embedding=embedding.to(place), device="cuda", **small),
            here,
        )
        own = Ratio().to(place)
        agree(eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], network=own, device="cuda", **small), ratio)


def test_checkpoints_move_between_devices(tmp_path: Path) -> None:
    """A training that was begun on the GPU and is complete is read there and on the CPU alike."""
    theta, x = pairs()
    with pretended_gpu():
        away = eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cuda", checkpoint=tmp_path, **SMALL)
        again = eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cuda", checkpoint=tmp_path, **SMALL)
        agree(again, away.to("cpu"), 0)
    agree(
        eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cpu", checkpoint=tmp_path, **SMALL),
        again.to("cpu"),
        0,
    )


def test_the_switch_of_tf32_is_put_back_and_left_to_the_user() -> None:
    """PyTorch has two switches and raises where both are used: who has turned the newer one has chosen."""
    theta, x = pairs()
    small = SMALL | {"epochs": 1}
    switch, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = switch.allow_tf32, convolutions.allow_tf32
    for tf32 in (True, False):
        with matmul_precision(tf32):
            assert (switch.allow_tf32, convolutions.allow_tf32) == (tf32, tf32)
        assert (switch.allow_tf32, convolutions.allow_tf32) == before
    if not hasattr(switch, "fp32_precision"):
        pytest.skip("this PyTorch has the older switch alone")
    newer = switch.fp32_precision
    try:
        switch.fp32_precision = "tf32"
        q = eq.fit(theta, x, prior=PRIOR, method=METHODS["nre"], device="cpu", **small)
        eq.diagnose(q, *pairs(60, seed=1), samples=8, progress=False)
        assert switch.fp32_precision == "tf32"
    finally:
        switch.fp32_precision = newer
