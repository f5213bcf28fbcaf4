"""The classifier and the embeddings against plain modules, one member at a time, and the flat buffer."""

from __future__ import annotations

import pytest
import torch
import zuko
from torch import Tensor, nn

import equipoise as eq
from equipoise.networks import Classifier, Convolutional, Flat, Layout, choose_embedding

BOX = eq.BoxUniform(-torch.ones(2), torch.ones(2))


def constants(embedding: object, members: int) -> tuple[list[Tensor], list[Tensor]]:
    shape = embedding.statistics_shape
    return [torch.full(shape, 0.3)] * members, [torch.full(shape, 2.0)] * members


def test_classifier_is_a_plain_mlp() -> None:
    net = Classifier(BOX, Flat((8,)))
    p = net.init([(3, 0), (4, 0)], *constants(net.embedding, 2))
    theta, x = BOX.sample((20,)), torch.randn(20, 8)
    got = net.log_ratio(p, theta, x)
    for m in range(2):
        mlp = zuko.nn.MLP(10, 1, [256] * 6, activation=nn.SELU)
        mlp.load_state_dict({f"{2 * i}.{w}": p[f"mlp.{i}.{w}"][m] for i in range(7) for w in ("weight", "bias")})
        want = mlp(torch.cat([theta, (x - 0.3) / 2], -1)).squeeze(-1)
        torch.testing.assert_close(got[m], want, rtol=1e-4, atol=1e-5)
    assert not torch.equal(got[0], got[1])


def test_many_theta_for_each_x_equal_one_at_a_time() -> None:
    net = Classifier(BOX, Flat((8,)), hidden=(16, 16))
    p = net.init([(3, 0), (4, 0)], *constants(net.embedding, 2))
    theta, x = BOX.sample((7, 5)), torch.randn(5, 8)
    together = net.log_ratio(p, theta, x)
    assert together.shape == (2, 7, 5)
    alone = torch.stack([net.log_ratio(p, theta[i], x) for i in range(7)], 1)
    torch.testing.assert_close(together, alone)


def test_the_published_sizes() -> None:
    assert choose_embedding((3, 50, 50)).features == 256
    assert Convolutional((1001, 2), layers=10, channels=16).features == 512


def test_whole_numbers_are_standardised_like_floats() -> None:
    embedding = choose_embedding((3, 12, 12))
    x = (torch.rand(50, 3, 12, 12) < 0.2).to(torch.uint8)
    mean, std = embedding.statistics(x)
    assert mean.shape == std.shape == (3, 1, 1)
    torch.testing.assert_close(mean[:, 0, 0].float(), x.float().mean((0, 2, 3)))
    torch.testing.assert_close(std[:, 0, 0].float(), x.float().std((0, 2, 3), correction=0))
    constant, scale = Flat((4,)).statistics(torch.full((10, 4), 7.0))
    assert (constant == 7).all() and (scale == 1).all()


def test_a_shape_without_a_default_embedding_is_refused() -> None:
    with pytest.raises(ValueError, match="no default embedding"):
        choose_embedding((2, 3, 4, 5))


def test_layout_is_a_round_trip_and_masks_are_kept() -> None:
    layout = Layout({"a": (3, 5), "b": (), "c": (7,)}, {"a": torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])})
    stack = {"a": torch.randn(4, 3, 5), "b": torch.randn(4), "c": torch.randn(4, 7)}
    flat = layout.flatten(stack)
    assert flat.shape == (4, layout.size) and layout.size % 32 == 0
    for name, value in layout.cut(flat).items():
        torch.testing.assert_close(value, stack[name])
    assert layout.trainable.sum() == 3 * 3 + 1 + 7
