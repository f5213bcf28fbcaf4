"""The convolutions of a stack against the layers as the paper writes them, in float64: values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from equipoise.networks import Convolutional, choose_embedding, embedding_from_spec, matmul_precision, stack_members
from equipoise.networks.convolutions import compose, layers
from equipoise.networks.triton.operators import _products


def random_layers(
    members: int, inputs: int, channels: int, depth: int, dims: int, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases in float64 that ask for gradients."""
    generator = torch.Generator().manual_seed(seed)
    weights, biases = [], []
    for i in range(depth + 1):
        before, side = (inputs, 1) if i == 0 else (channels, 3)
        shape = (members, channels, before, *[side] * dims)
        weights.append(torch.randn(shape, dtype=torch.float64, generator=generator) / (before * side**dims) ** 0.5)
        biases.append(torch.randn(members, channels, dtype=torch.float64, generator=generator))
    return [w.requires_grad_() for w in weights], [b.requires_grad_() for b in biases]


def as_written(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """One member at a time, layer by layer."""
    dims = x.ndim - 3
    conv, pool = (F.conv1d, F.max_pool1d) if dims == 1 else (F.conv2d, F.max_pool2d)
    out = []
    for m in range(len(weights[0])):
        h = conv(x[m], weights[0][m], biases[0][m])
        for i, (weight, bias) in enumerate(zip(weights[1:], biases[1:], strict=True)):
            h = pool(F.selu(conv(h, weight[m], bias[m], padding=1)), 3, stride=2 - i % 2, padding=1)
        out.append(h)
    return torch.stack(out)


@given(
    members=st.sampled_from([1, 2, 3]),
    inputs=st.integers(1, 4),
    channels=st.integers(1, 9),
    depth=st.integers(1, 4),
    sides=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_are_those_of_the_plain_layers(
    members: int, inputs: int, channels: int, depth: int, sides: list[int], seed: int
) -> None:
    weights, biases = random_layers(members, inputs, channels, depth, len(sides), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn((members, 3, inputs, *sides), dtype=torch.float64, generator=generator).requires_grad_()
    want = as_written(x, weights, biases)
    if len(sides) == 1:  # an image of height 1
        got = layers(x.unsqueeze(3), [w.unsqueeze(3) for w in weights], biases).squeeze(3)
    else:
        got = layers(x, weights, biases)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    cotangent = torch.randn(want.shape, dtype=torch.float64, generator=generator)
    entries = [x, *weights, *biases]
    gradients = (torch.autograd.grad(out, entries, cotangent) for out in (got, want))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("x_shape", [(3, 50, 50), (41, 2), (1, 9, 14)])
def test_an_embedding_is_its_plain_layers_of_standardised_observations(x_shape: tuple[int, ...]) -> None:
    embedding = choose_embedding(x_shape)
    assert isinstance(embedding, Convolutional)
    constants = {
        "x_loc": torch.full(embedding.statistics_shape, 0.3),
        "x_scale": torch.full(embedding.statistics_shape, 2.0),
    }
    p = stack_members([{**constants, **embedding.init(seed)} for seed in (1, 2, 3)])
    x = torch.rand(3, 4, *x_shape)
    got = embedding(p, x)
    assert got.shape == (3, 4, embedding.features)
    weights, biases = ([p[f"conv.{i}.{w}"] for i in range(embedding.layers + 1)] for w in ("weight", "bias"))
    h = (x - 0.3) / 2
    want = as_written(h.movedim(-1, 2) if len(x_shape) == 2 else h, weights, biases).flatten(2)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(embedding(p, x[:1])[0], got[0])  # one observation for all members


@pytest.mark.parametrize("dims", [1, 2])
def test_the_borders_are_where_the_channel_of_ones_is_needed(dims: int) -> None:
    weights, biases = random_layers(1, 2, 4, 1, dims, 0)
    composed = compose(weights[0], biases[0], weights[1])
    assert composed.shape == (1, 4, 3, *[3] * dims)
    x = torch.randn(1, 2, *[6] * dims, dtype=torch.float64)
    conv = F.conv1d if dims == 1 else F.conv2d
    want = conv(conv(x, weights[0][0], biases[0][0]), weights[1][0], padding=1)
    ones = torch.ones_like(x[:, :1])
    torch.testing.assert_close(conv(torch.cat([x, ones], 1), composed[0], padding=1), want)
    # A bias instead of the channel is right inside and wrong at the borders.
    naive = conv(x, composed[0, :, :2], composed[0, :, 2].flatten(1).sum(1), padding=1)
    inside = (..., *[slice(1, -1)] * dims)
    torch.testing.assert_close(naive[inside], want[inside])
    assert (naive - want).abs().max() > 0.1


def test_precision_travels_with_the_embedding() -> None:
    embedding = Convolutional((3, 9, 9), 2, 4, precision="bf16")
    assert embedding_from_spec(embedding.spec()) == embedding
    older = {name: value for name, value in embedding.spec().items() if name != "precision"}
    assert embedding_from_spec(older) == Convolutional((3, 9, 9), 2, 4)
    with pytest.raises(ValueError, match="precision is one of"):
        Convolutional((3, 9, 9), precision="fp8")
    with pytest.raises(ValueError, match="at least one layer"):
        Convolutional((3, 9, 9), layers=0)


@pytest.mark.parametrize(("switch", "products"), [(True, "tf32"), (False, "tf32x3")])
def test_automatic_precision_follows_pytorchs_switch(switch: bool, products: str) -> None:
    with matmul_precision(switch):
        assert _products("auto") == products
        assert _products("tf32") == _products("bf16") == "tf32" and _products("float32") == "tf32x3"
