"""The kernels in Triton's interpreter, on a CPU, against PyTorch's layers and their gradients in float64.

Run by `test_net_triton.py` in a process of its own, since the interpreter is chosen before Triton is imported:

    TRITON_INTERPRET=1 python -m pytest tests/networks/interpreted_kernels.py
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

import equipoise as eq
from equipoise.networks import Convolutional, Layout, apply_marks, convolutions
from equipoise.networks.triton import launch, operators

assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1: these tests have no GPU"

# members, images, height, width, input channels, width of the layers, layers
SIZES = [
    (1, 2, 5, 6, 4, 16, 1),
    (3, 2, 7, 5, 4, 16, 2),
    (2, 1, 8, 8, 2, 8, 3),
    (1, 3, 1, 1, 4, 16, 2),
    (1, 1, 9, 4, 3, 12, 3),
    (2, 3, 1, 21, 4, 8, 3),
    (3, 5, 1, 14, 4, 16, 2),
    (1, 150, 1, 3, 2, 8, 2),
]
#: Every size in both ways; and, for images and a series of several layers, in the way of `should_fuse`, which takes one
#: for the first layer and the other for the second.
CHOICES = [(size, fuse) for size in SIZES for fuse in (True, False)] + [(SIZES[i], None) for i in (1, 2, 5)]


def reference(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of all layers, channels last, and the flat indices of their maxima."""
    members, rows = x.shape[0], weights[0].shape[3]
    h = x.movedim(-1, 2).transpose(0, 1).flatten(1, 2)
    outs, indices = [], []
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        z = F.conv2d(h, weight.flatten(0, 1), bias.flatten(), padding=(rows // 2, 1), groups=members)
        step = 2 - i % 2
        steps = (step if rows == 3 else 1, step)
        h, index = F.max_pool2d(F.selu(z), (rows, 3), steps, (rows // 2, 1), return_indices=True)
        outs.append(h.unflatten(1, (members, -1)).transpose(0, 1).movedim(2, -1))
        indices.append(index.unflatten(1, (members, -1)).transpose(0, 1).movedim(2, -1))
    return outs, indices


def random_stack(size: tuple[int, ...], seed: int = 0) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    members, images, height, width, inputs, channels, depth = size
    generator = torch.Generator().manual_seed(seed)
    rows = 1 if height == 1 and width > 1 else 3

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    x = normal(members, images, height, width, inputs)
    weights = [
        normal(members, channels, before, rows, 3) / (3 * rows * before) ** 0.5
        for before in [inputs] + [channels] * (depth - 1)
    ]
    return x, weights, [normal(members, channels) for _ in range(depth)]


def run(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], cotangent: Tensor, fuse: bool | None = None
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    outs, indices = launch.forward(x, weights, biases, "ieee", fuse)
    of_weights, of_biases = launch.backward(cotangent, x, weights, outs, indices, "ieee")
    return outs, indices, [*of_weights, *of_biases]


def wanted(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], cotangent: Tensor
) -> tuple[list[Tensor], list[Tensor], tuple[Tensor, ...]]:
    x, cotangent = x.double(), cotangent.double()
    weights, biases = ([t.double().requires_grad_() for t in ts] for ts in (weights, biases))
    outs, indices = reference(x, weights, biases)
    return outs, indices, torch.autograd.grad(outs[-1], [*weights, *biases], cotangent)


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    """The largest error relative to the largest entry: what a sum in another order leaves."""
    assert got.shape == want.shape
    error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-3)).item()
    assert error < tolerance, error


@pytest.mark.parametrize(("size", "fuse"), CHOICES)
def test_layers_and_gradients_are_pytorchs(size: tuple[int, ...], fuse: bool | None) -> None:
    x, weights, biases = random_stack(size)
    cotangent = torch.randn(reference(x, weights, biases)[0][-1].shape, generator=torch.Generator().manual_seed(9))
    outs, _, gradients = run(x, weights, biases, cotangent, fuse)
    want_outs, _, want = wanted(x, weights, biases, cotangent)
    for a, b in zip(outs, want_outs, strict=True):
        assert_near(a, b, 3e-6)
    for a, b in zip(gradients, want, strict=True):
        assert_near(a, b, 1e-5)


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("size", [(2, 2, 6, 7, 4, 8, 1), (2, 3, 1, 15, 4, 8, 1)])
def test_of_equal_maxima_the_first_wins_as_in_pytorch(size: tuple[int, ...], fuse: bool) -> None:
    x, weights, biases = random_stack(size)
    # Small whole numbers, so that sums are exact and most windows have ties.
    x, weights, biases = x.round().clamp(-1, 1), [w.sign() for w in weights], [b.round() for b in biases]
    outs, indices = reference(x, weights, biases)
    cotangent = torch.randn(outs[0].shape, generator=torch.Generator().manual_seed(9))
    got, places, gradients = run(x, weights, biases, cotangent, fuse)
    high, wide = outs[0].shape[2:4]
    height, width = x.shape[2:4]
    rows = weights[0].shape[3]
    i, j = torch.arange(high).view(-1, 1, 1), torch.arange(wide).view(-1, 1)
    place = places[0].long()
    flat = (2 * i - 1 + place // 3) * width + 2 * j - 1 + place % 3 if rows == 3 else 2 * j - 1 + place
    windows = F.unfold(
        F.conv2d(x[0].movedim(-1, 1), weights[0][0], padding=(rows // 2, 1)), (rows, 3), padding=(rows // 2, 1)
    )
    assert len(windows.unique()) < 80 < windows.numel()  # ties there are
    assert torch.equal(flat, indices[0])
    torch.testing.assert_close(got[0], outs[0], rtol=1e-6, atol=1e-6)
    for a, b in zip(gradients, wanted(x, weights, biases, cotangent)[2], strict=True):
        assert_near(a, b, 1e-5)
    assert height * width > high * wide


def test_a_nan_is_not_lost_in_a_maximum() -> None:
    x, weights, biases = random_stack((2, 1, 6, 6, 4, 8, 2))
    x[0, 0, 3, 3, 0] = float("nan")
    for fuse in (True, False):
        outs, _ = launch.forward(x, weights, biases, "ieee", fuse)
        want = reference(x, weights, biases)[0]
        for a, b in zip(outs, want, strict=True):
            assert torch.equal(a.isnan(), b.isnan())
        assert outs[-1][0].isnan().any() and not outs[-1][1].isnan().any()


@pytest.fixture
def _sixteen_bit_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter holds bfloat16 as bits and does not yet convert them in `tl.dot`; do it for it."""
    from triton.runtime import interpreter

    def create_dot(self: object, a: Any, b: Any, d: Any, *_: object) -> Any:
        sides = []
        for operand in (a, b):
            data = operand.data
            if operand.dtype.scalar == tl.bfloat16:
                data = (data.astype(np.uint32) << 16).view(np.float32)
            sides.append(data)
        return interpreter.TensorHandle(np.matmul(*sides, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("_sixteen_bit_products")
@pytest.mark.parametrize("size", [(2, 2, 7, 6, 4, 16, 3), (2, 3, 1, 21, 4, 8, 3)])
def test_sixteen_bits_are_near(size: tuple[int, ...]) -> None:
    x, weights, biases = random_stack(size)
    cotangent = torch.randn(reference(x, weights, biases)[0][-1].shape, generator=torch.Generator().manual_seed(9))
    outs, _, gradients = run(x.bfloat16(), weights, biases, cotangent.bfloat16())
    want_outs, _, want = wanted(x, weights, biases, cotangent)
    assert outs[-1].dtype == torch.bfloat16 and gradients[0].dtype == torch.float32
    for a, b in zip(outs, want_outs, strict=True):
        assert_near(a, b, 0.02)
    for a, b in zip(gradients, want, strict=True):
        # A maximum that rounding moves to another place moves its gradient: means, not single entries, are near.
        assert ((a - b).square().mean() / b.square().mean()).sqrt() < 0.15


def test_the_same_inputs_give_the_same_bits_whatever_the_neighbours() -> None:
    x, weights, biases = random_stack((2, 3, 6, 5, 4, 8, 2))
    cotangent = torch.randn(reference(x, weights, biases)[0][-1].shape, generator=torch.Generator().manual_seed(9))
    _, _, together = run(x, weights, biases, cotangent)
    _, _, again = run(x, weights, biases, cotangent)
    _, _, alone = run(x[1:], [w[1:] for w in weights], [b[1:] for b in biases], cotangent[1:])
    for a, b, c in zip(together, again, alone, strict=True):
        assert torch.equal(a, b) and torch.equal(a[1:], c)


@pytest.mark.parametrize("block", [16, 32])
def test_a_tile_may_be_cut_otherwise(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    x, weights, biases = random_stack((2, 3, 6, 5, 4, 8, 2))
    cotangent = torch.randn(reference(x, weights, biases)[0][-1].shape, generator=torch.Generator().manual_seed(9))
    _, _, before = run(x, weights, biases, cotangent)
    monkeypatch.setattr(launch, "TILES", {name: launch.Tile(block, 2, 1, splits=3) for name in launch.TILES})
    _, _, after = run(x, weights, biases, cotangent)
    for a, b in zip(after, before, strict=True):
        assert_near(a, b, 1e-5)


# --- the embedding ----------------------------------------------------------------------------------------------------

OBSERVATIONS = [
    ((3, 6, 7), 3, 16, torch.uint8),
    ((1, 5, 5), 2, 8, torch.bool),
    ((13, 2), 4, 8, torch.int16),
    ((9, 5), 1, 7, torch.float32),
]


def embedding(
    x_shape: tuple[int, ...], layers: int, channels: int, dtype: torch.dtype, shared: bool
) -> tuple[Convolutional, Layout, Tensor, Tensor]:
    """An embedding, where its weights lie, the weights of two members in one buffer, and observations."""
    made = Convolutional(x_shape, layers, channels)
    layout = Layout(made.shapes())
    members = [made.init(seed) for seed in (0, 1)]
    constants = [torch.full(made.statistics_shape, v) for v in (0.3, 0.6)], [torch.full(made.statistics_shape, 2.0)] * 2
    stack = {name: torch.stack([m[name] for m in members]) for name in members[0]}
    flat = layout.flatten({"x_loc": torch.stack(constants[0]), "x_scale": torch.stack(constants[1]), **stack})
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, 2 if dtype == torch.bool else 9, (1 if shared else 2, 3, *x_shape), generator=generator)
    return made, layout, flat.requires_grad_(), x.to(dtype)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("x_shape", "layers", "channels", "dtype"), OBSERVATIONS)
def test_both_paths_embed_alike(
    x_shape: tuple[int, ...],
    layers: int,
    channels: int,
    dtype: torch.dtype,
    shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, layout, flat, x = embedding(x_shape, layers, channels, dtype, shared)
    taken = []
    forward = launch.forward
    monkeypatch.setattr(launch, "forward", lambda *a: taken.append(a) or forward(*a))
    results = []
    for kernels in (True, False):
        monkeypatch.setattr(convolutions, "KERNELS", kernels)
        features = made(layout.cut(flat), x)
        cotangent = torch.randn(features.shape, generator=torch.Generator().manual_seed(9))
        results.append((features, *torch.autograd.grad(features, flat, cotangent)))
    assert len(taken) == 1
    for a, b in zip(*results, strict=True):
        assert_near(a, b, 1e-5)


def test_the_operators_keep_the_rules_and_survive_a_compiler() -> None:
    made, layout, flat, x = embedding((3, 6, 7), 2, 8, torch.uint8, False)
    p = layout.cut(flat)
    first = convolutions.compose(p["conv.0.weight"], p["conv.0.bias"], p["conv.1.weight"]).detach().requires_grad_()
    bias = p["conv.1.bias"].detach().requires_grad_()
    constants = p["x_loc"].detach().flatten(1), p["x_scale"].detach().flatten(1)
    torch.library.opcheck(operators.standardised, (x, *constants, False))
    h = operators.standardised(x, *constants, False)
    torch.library.opcheck(operators.convolutions, (h, [first], [bias], "tf32"))
    eager = made(p, x)
    apply_marks()
    compiled = torch.compile(lambda flat: made(layout.cut(flat), x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(flat), eager)
    cotangent = torch.randn_like(eager)
    gradients = [torch.autograd.grad(out, flat, cotangent, retain_graph=True)[0] for out in (compiled(flat), eager)]
    torch.testing.assert_close(*gradients)


def test_kernels_that_are_wrong_or_do_not_run_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operators.kernels_agree("cpu")
    plain = launch.forward

    def wrong(*given: Any) -> Any:
        outs, indices = plain(*given)
        return [out * 1.05 for out in outs], indices

    def broken(*given: Any) -> Any:
        raise RuntimeError("no C compiler\nand more")

    for function, words in ((wrong, "they are off by"), (broken, "RuntimeError: no C compiler\\)")):
        monkeypatch.setattr(launch, "forward", function)
        with pytest.warns(UserWarning, match=words):
            assert not operators.kernels_agree("cpu")


def test_a_gradient_of_x_is_there_when_asked_for() -> None:
    made, layout, flat, x = embedding((3, 6, 7), 2, 8, torch.float32, False)
    x = x.double().float().requires_grad_()
    (gradient,) = torch.autograd.grad(made(layout.cut(flat), x).square().sum(), x)
    assert gradient.shape == x.shape and gradient.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:24 simulations leave")
@pytest.mark.parametrize("x_shape", [(1, 5, 5), (9, 2)])
def test_users_own_images_and_series_take_this_path(x_shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    theta, x = torch.rand(24, 2, generator=generator), torch.randn(24, *x_shape, generator=generator)
    prior = eq.BoxUniform(torch.zeros(2), torch.ones(2))
    taken = []
    forward = launch.forward
    monkeypatch.setattr(launch, "forward", lambda *a: taken.append(a) or forward(*a))
    losses = []
    for kernels in (True, False):
        monkeypatch.setattr(convolutions, "KERNELS", kernels)
        options: dict = {"members": 1, "epochs": 1, "batch_size": 21, "device": "cpu", "embedding": "convolution"}
        posterior = eq.fit(theta, x, prior=prior, method="nre", **options)
        losses.append(torch.as_tensor(posterior.history["validation_loss"].values))
    assert taken
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-4)
