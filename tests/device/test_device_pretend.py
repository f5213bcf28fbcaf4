"""The pretended GPU itself: it catches each kind of mistake, and lets pass what a GPU lets pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from pretend import Counts, OnGpu, pretended_gpu
from torch import Tensor, nn
from torch.func import functional_call, vmap

MIXED, CAPTURING = "same device", "not permitted when stream is capturing"


@pytest.fixture
def gpu() -> Iterator[Counts]:
    with pretended_gpu() as counts:
        yield counts


def there(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device="cuda")


MISTAKES: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "a CPU vector in a sum": (RuntimeError, MIXED, lambda: there(1, 2) + torch.ones(2)),
    "a CPU vector of one number": (RuntimeError, MIXED, lambda: there(1, 2) * torch.ones(1)),
    "a CPU matrix in a product": (RuntimeError, MIXED, lambda: there(1, 2) @ torch.eye(2)),
    "arange without a device": (RuntimeError, MIXED, lambda: there(1, 2) + torch.arange(2)),
    "zeros without a device": (RuntimeError, MIXED, lambda: torch.cat([there(1), torch.zeros(1)])),
    "a CPU number in a stack": (RuntimeError, MIXED, lambda: torch.stack([there(1, 2).sum(), torch.tensor(1.0)])),
    "a result into a CPU number": (RuntimeError, MIXED, lambda: torch.zeros(()).add_(there(1).sum())),
    "where with a CPU condition": (RuntimeError, MIXED, lambda: torch.where(torch.ones(2) > 0, there(1, 2), 0.0)),
    "gather with CPU indices": (RuntimeError, MIXED, lambda: there(1, 2).gather(0, torch.tensor([0]))),
    "index_select with CPU indices": (RuntimeError, MIXED, lambda: there(1, 2).index_select(0, torch.tensor([0]))),
    "scatter of CPU values": (
        RuntimeError,
        MIXED,
        lambda: there(1, 2).scatter(0, torch.zeros(1, dtype=torch.int64, device="cuda"), torch.ones(1)),
    ),
    "a CPU tensor indexed from the GPU": (
        RuntimeError,
        "indices should be",
        lambda: torch.ones(3)[torch.tensor([0], device="cuda")],
    ),
    "CPU values for GPU rows": (
        RuntimeError,
        MIXED,
        lambda: there(1, 2).index_put_([torch.tensor([0])], torch.ones(1)),
    ),
    "searchsorted across devices": (RuntimeError, MIXED, lambda: torch.searchsorted(there(1, 2), torch.ones(2))),
    "a Sobol set": (
        RuntimeError,
        MIXED,
        lambda: torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(2) + torch.zeros(2, 2, device="cuda"),
    ),
    "a prior that was not moved": (
        RuntimeError,
        MIXED,
        lambda: torch.distributions.Normal(torch.zeros(2), torch.ones(2)).log_prob(there(1, 2)),
    ),
    "numpy of a GPU tensor": (TypeError, "numpy", lambda: there(1, 2).numpy()),
    "an array of a GPU tensor": (TypeError, "numpy", lambda: np.asarray(there(1, 2))),
    "a CPU generator for a GPU draw": (
        RuntimeError,
        "generator",
        lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
    ),
    "a GPU generator for a CPU draw": (
        RuntimeError,
        "generator",
        lambda: torch.randperm(2, generator=torch.Generator(device="cuda")),
    ),
    "a CPU generator for a draw in place": (
        RuntimeError,
        "generator",
        lambda: there(1, 2).normal_(generator=torch.Generator()),
    ),
    "a product of whole numbers": (
        NotImplementedError,
        "whole numbers",
        lambda: torch.ones(2, 2, dtype=torch.int64, device="cuda") @ torch.arange(2, device="cuda"),
    ),
    "pinning a GPU tensor": (RuntimeError, "pin", lambda: there(1, 2).pin_memory()),
    "a loss on the CPU": (
        RuntimeError,
        MIXED,
        lambda: (there(1, 2).requires_grad_() * 2 - torch.zeros(2)).sum().backward(),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_caught(name: str, gpu: Counts) -> None:
    error, words, mistake = MISTAKES[name]
    with pytest.raises(error, match=words):
        mistake()


def test_what_a_gpu_allows_is_allowed(gpu: Counts) -> None:
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")
    assert a.device == torch.device("cuda:0") and a.is_cuda and isinstance(a, OnGpu)
    assert a.cpu().device.type == "cpu" and a.to("cpu").tolist() == a.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert a.sum().item() == 10 and bool((a > 0).all()) and int(a[1, 1]) == 4
    assert (a * torch.tensor(2.0)).tolist() == [[2.0, 4.0], [6.0, 8.0]]  # a number on the CPU beside GPU tensors
    assert torch.where(a > 2, a, 0.0).tolist() == [[0.0, 0.0], [3.0, 4.0]]
    assert a[torch.tensor([1])].tolist() == a[[1]].tolist() == [[3.0, 4.0]]  # indices on the CPU
    a[0] = torch.tensor([7.0, 8.0])  # a copy
    a[:, 1] = 0
    assert a.tolist() == [[7.0, 0.0], [3.0, 0.0]]
    assert torch.zeros(2).copy_(a[0]).tolist() == [7.0, 0.0] and a.new_ones(2).device.type == "cuda"
    assert torch.ones(3).pin_memory().to("cuda", non_blocking=True).sum().item() == 3
    assert copy.deepcopy(a).device.type == "cuda" and torch.ones(1).cuda().is_cuda and torch.zeros_like(a).is_cuda
    assert torch.as_tensor(np.ones(2), device="cuda").is_cuda and torch.full((2,), 1.0).to(a).is_cuda


def test_gradients_are_those_of_the_cpu(gpu: Counts) -> None:
    """A convolution, in-place operations, views and a module of the user's through `vmap`."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 1))
    x = torch.randn(3, 2, 1, 6, 6)

    def gradients(device: str) -> list[Tensor]:
        weights = {
            n: w.detach().to(device).expand(3, *w.shape).clone().requires_grad_() for n, w in module.named_parameters()
        }
        out = vmap(lambda w, row: functional_call(module, w, (row,)))(weights, x.to(device))
        assert out.device.type == device
        total = out.clone().mul_(2).view(-1)[1:].square().sum()
        return list(torch.autograd.grad(total, list(weights.values())))

    for here, away in zip(gradients("cpu"), gradients("cuda"), strict=True):
        assert away.is_cuda
        torch.testing.assert_close(away.cpu(), here, rtol=0, atol=0)


def test_generators_are_two(gpu: Counts) -> None:
    seeded = torch.rand(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(5))
    assert seeded.tolist() == torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()
    before, there = torch.get_rng_state(), torch.cuda.get_rng_state()
    torch.rand(3, device="cuda")
    assert torch.equal(torch.get_rng_state(), before) and not torch.equal(torch.cuda.get_rng_state(), there)
    there = torch.cuda.get_rng_state()
    torch.rand(3)
    assert torch.equal(torch.cuda.get_rng_state(), there)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # seeds the GPU too, which was not forked
    assert not torch.equal(torch.cuda.get_rng_state(), there)
    there = torch.cuda.get_rng_state()
    with torch.random.fork_rng(devices=[0]):
        torch.manual_seed(2)
    assert torch.equal(torch.cuda.get_rng_state(), there)


def test_a_graph_repeats_operations_and_not_python(gpu: Counts) -> None:
    weight, total, shift = torch.ones(2, device="cuda"), torch.zeros((), device="cuda"), 1.0

    def step() -> None:
        leaf = weight.detach().requires_grad_()
        loss = (leaf * leaf).sum() + shift
        (gradient,) = torch.autograd.grad(loss, leaf)
        weight.sub_(0.25 * gradient)
        total.add_(loss.detach())

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    assert weight.tolist() == [1.0, 1.0] and total.item() == 0.0  # capturing computes nothing
    shift = 100.0
    graph.replay()
    graph.replay()
    assert weight.tolist() == [0.25, 0.25] and total.item() == (2 + 1) + (0.5 + 1)


@pytest.mark.parametrize(
    "look",
    [
        lambda a: a.sum().item(),
        lambda a: bool(a.any()),
        lambda a: a[a > 0],
        lambda a: a.nonzero(),
        lambda a: a.cpu(),
        lambda a: a + torch.ones(2).to("cuda"),
        lambda a: torch.rand(2, device="cuda", generator=torch.Generator(device="cuda")),
    ],
)
def test_a_graph_allows_no_look_from_the_host(look: Callable[[Tensor], object], gpu: Counts) -> None:
    a = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match=f"{CAPTURING}|registered"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        look(a)


def test_waits_are_counted(gpu: Counts) -> None:
    a = torch.ones(3).to("cuda")
    assert (gpu.looks, gpu.to_host, gpu.to_device) == (0, 0, 1)
    a.sum().item()
    a[a > 0]
    assert (gpu.looks, gpu.to_host, gpu.to_device) == (2, 0, 1)
    a.cpu()
    torch.zeros(3).copy_(a)
    assert (gpu.looks, gpu.to_host, gpu.to_device) == (2, 2, 1)


def test_nothing_is_left_behind() -> None:
    available, generator = torch.cuda.is_available(), torch.Generator
    with pretended_gpu():
        kept = torch.ones(2, device="cuda")
        assert torch.cuda.is_available()
    assert torch.cuda.is_available() is available and torch.Generator is generator
    assert type(torch.ones(2)) is Tensor and kept.sum().item() == 2
