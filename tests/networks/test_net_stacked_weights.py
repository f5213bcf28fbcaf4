"""The classifier, the embeddings and users' own networks against plain modules, one member at a time."""

from __future__ import annotations

import pytest
import torch
import zuko
from torch import Tensor, nn
from torch.nn import functional as F

import equipoise as eq
from equipoise.networks import Classifier, Convolutional, Flat, Layout, Module, UserNetwork, choose_embedding

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


@pytest.mark.parametrize("x_shape", [(3, 50, 50), (41, 2), (1, 9, 14)])
def test_convolutions_of_a_stack_equal_each_members_own(x_shape: tuple[int, ...]) -> None:
    embedding = choose_embedding(x_shape)
    assert isinstance(embedding, Convolutional)
    net = Classifier(BOX, embedding, hidden=(16,))
    p = net.init([(0, 1), (0, 2), (0, 3)], *constants(embedding, 3))
    x = torch.rand(3, 4, *x_shape)
    got = net.embed(p, x)
    assert got.shape == (3, 4, embedding.features)
    series = len(x_shape) == 2
    conv, pool = (F.conv1d, F.max_pool1d) if series else (F.conv2d, F.max_pool2d)
    for m in range(3):
        h = (x[m] - 0.3) / 2
        h = h.movedim(-1, 1) if series else h
        h = conv(h, p["conv.0.weight"][m], p["conv.0.bias"][m])
        for layer in range(embedding.layers):
            h = F.selu(conv(h, p[f"conv.{layer + 1}.weight"][m], p[f"conv.{layer + 1}.bias"][m], padding=1))
            h = pool(h, 3, stride=2 if layer % 2 == 0 else 1, padding=1)
        torch.testing.assert_close(got[m], h.flatten(1), rtol=1e-4, atol=1e-5)
    shared = net.embed(p, x[:1])
    torch.testing.assert_close(shared[0], got[0])


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


class Summary(nn.Module):
    """An embedding as users write them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.LayerNorm(6), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_users_embedding_is_stacked_and_each_member_starts_differently() -> None:
    module = Summary()
    embedding = Module(module, (3, 4))
    net = Classifier(BOX, embedding, hidden=(8,))
    p = net.init([(0, 1), (0, 2)], *constants(embedding, 2))
    x = torch.randn(2, 5, 3, 4)
    got = net.embed(p, x)
    for m in range(2):
        weights = {n[len("module.") :]: w[m] for n, w in p.items() if n.startswith("module.")}
        want = torch.func.functional_call(module, weights, ((x[m] - 0.3) / 2,))
        torch.testing.assert_close(got[m], want)
    assert not torch.equal(p["module.layer.1.weight"][0], p["module.layer.1.weight"][1])


def test_an_embedding_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(ValueError, match="running statistics"):
        Module(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12)), (3, 4))
    with pytest.raises(ValueError, match=r"to \(N, C\)"):
        Module(nn.Identity(), (3, 4))
    with pytest.raises(ValueError, match="no default embedding"):
        choose_embedding((2, 3, 4, 5))


class Bilinear(nn.Module):
    """A ratio of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Linear(3, 2)

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return (theta * self.form(x)).sum(-1)


def test_a_users_network_is_stacked() -> None:
    net = UserNetwork(Bilinear(), BOX, (3,))
    p = net.init([(1, 0), (2, 0)], [torch.zeros(3)] * 2, [torch.ones(3)] * 2)
    theta, x = BOX.sample((4, 5)), torch.randn(5, 3)
    got = net.log_ratio(p, theta, x)
    for m in range(2):
        module = Bilinear()
        module.form.weight.data, module.form.bias.data = (
            p["user.network.form.weight"][m],
            p["user.network.form.bias"][m],
        )
        want = torch.stack([module.log_ratio(theta[i], x) for i in range(4)])
        torch.testing.assert_close(got[m], want)
    with pytest.raises(TypeError, match="log_ratio"):
        UserNetwork(nn.Linear(2, 2), BOX, (3,))


def test_layout_is_a_round_trip_and_masks_are_kept() -> None:
    layout = Layout({"a": (3, 5), "b": (), "c": (7,)}, {"a": torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])})
    stack = {"a": torch.randn(4, 3, 5), "b": torch.randn(4), "c": torch.randn(4, 7)}
    flat = layout.flatten(stack)
    assert flat.shape == (4, layout.size) and layout.size % 32 == 0
    for name, value in layout.cut(flat).items():
        torch.testing.assert_close(value, stack[name])
    assert layout.trainable.sum() == 3 * 3 + 1 + 7
