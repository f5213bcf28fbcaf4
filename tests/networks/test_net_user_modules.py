"""Modules of users': copied, without dropout, at once or one by one, and told apart when they are loaded."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import equipoise as eq
from equipoise.networks import Classifier, Module, UserNetwork, network_from_spec

BOX = eq.BoxUniform(-torch.ones(2), torch.ones(2))


class Recurrent(nn.Module):
    """A GRU over a series, the usual summary."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU, **options: object) -> None:
        super().__init__()
        self.rnn = kind(2, 5, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0][:, -1]


class Branching(nn.Module):
    """Looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(14, 4), nn.Linear(14, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.flatten(1)) if x.mean() > 0.5 else self.b(x.flatten(1))


class Attentive(nn.Module):
    """Attention, which PyTorch evaluates by other operations where no gradient is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(2, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).flatten(1)


class Dropping(nn.Module):
    """Dropout at an input and in a ratio."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.layer = nn.Dropout(0.5), nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.drop(x.flatten(1)))


OWN = {
    "gru": Recurrent,
    "lstm": lambda: Recurrent(nn.LSTM),
    "layers with dropout": lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.5),
    "branching": Branching,
    "attention": Attentive,
    "dropout": Dropping,
}


@pytest.mark.parametrize("name", list(OWN))
def test_a_stack_of_any_module_is_each_member_alone_with_its_gradient(name: str) -> None:
    module = OWN[name]().double()
    embedding = Module(module, (7, 2))
    assert embedding.stacked.one_by_one(torch.device("cpu")) == (name != "dropout")
    assert embedding.capturable(torch.device("cpu")) == (name == "dropout")
    net = Classifier(BOX, embedding, hidden=(8,))
    constants = [torch.full(embedding.statistics_shape, v, dtype=torch.float64) for v in (0.3, 2.0)]
    p = net.init([(0, 1), (0, 2), (0, 3)], *([c] * 3 for c in constants))
    p = {n: w.double().requires_grad_() for n, w in p.items()}
    x = torch.randn(3, 5, 7, 2, dtype=torch.float64)
    own = [n for n in p if n.startswith("module.")]
    with warnings.catch_warnings():  # what PyTorch says of a slow way is an error of ours
        warnings.simplefilter("error")
        got = net.embed(p, x)
        gradients = torch.autograd.grad(got.square().sum(), [p[n] for n in own], materialize_grads=True)
        with torch.no_grad():
            torch.testing.assert_close(net.embed(p, x), got.detach(), rtol=0, atol=1e-10)
    if name != "attention":  # which has no `reset_parameters`
        assert not torch.equal(p[own[0]][0], p[own[0]][1])  # each member starts differently
    reference = OWN[name]().double().eval()
    for m in range(3):
        weights = {n.removeprefix("module."): p[n].detach()[m].clone().requires_grad_() for n in own}
        want = functional_call(reference, weights, ((x[m] - 0.3) / 2,))
        torch.testing.assert_close(got[m], want, rtol=0, atol=1e-10)
        theirs = torch.autograd.grad(want.square().sum(), list(weights.values()), materialize_grads=True)
        for ours, other in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(ours[m], other, rtol=0, atol=1e-10)


def test_a_users_object_is_left_as_it_was_and_later_changes_do_not_reach_us() -> None:
    module = Dropping()
    before = {n: w.detach().clone() for n, w in module.state_dict().items()}
    embedding = Module(module, (7, 2))
    p = {"x_loc": torch.zeros(1, 1, 2), "x_scale": torch.ones(1, 1, 2)}
    p |= {n: w.unsqueeze(0) for n, w in embedding.init(1).items()}
    x = torch.randn(1, 4, 7, 2)
    first = embedding(p, x)
    assert module.training and module.drop.training and not embedding.module.training
    assert all(torch.equal(w, before[n]) for n, w in module.state_dict().items())
    module.drop.p, module.forward = 1.0, lambda x: x.flatten(1) * 0  # type: ignore[method-assign]
    assert torch.equal(embedding(p, x), first)


def test_what_is_random_in_spite_of_evaluation_mode_is_refused() -> None:
    class Always(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(14, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.layer(x.flatten(1)), 0.5)

        def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
            return self(x).sum(-1) + theta.sum(-1)

    one, two = Always(), Always()
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"the embedding is random even in evaluation mode.*training=self\.training"):
        Module(one, (7, 2))
    with pytest.raises(ValueError, match="the network is random"):
        UserNetwork(two, BOX, (7, 2))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            Recurrent,
            TypeError,
            r"embedding= is a torch.nn.Module, and Recurrent is a class; make one: .*Recurrent\(…\)",
        ),
        (lambda x: x, TypeError, "got an object of type function; put it into the forward of a module"),
        ("gru", TypeError, "got an object of type str$"),
        (nn.Conv2d(3, 4, 3), ValueError, r"fails on observations of shape \(N, 7, 2\).*to have 3 channels, but got"),
        (nn.GRU(2, 3), ValueError, r"for N = 5 it gave tuple"),
        (nn.Identity(), ValueError, r"to \(N, C\)"),
    ],
)
def test_what_is_no_embedding_is_said_so(given: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Module(given, (7, 2))  # type: ignore[arg-type]


class Ratio(nn.Module):
    """A ratio with a recurrent layer, dropout and a constant."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = Recurrent(), nn.Dropout(0.3), nn.Linear(7, 1)
        self.register_buffer("scale", torch.tensor(2.0))

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.scale * self.head(self.drop(torch.cat([self.body(x), theta], -1))).squeeze(-1)


def test_a_network_of_a_users_own_is_treated_alike() -> None:
    module = Ratio()
    net = UserNetwork(module, BOX, (7, 2))
    assert net.switched_off == ["drop (Dropout, p=0.3)"] and module.training and not net.capturable(torch.device("cpu"))
    p = net.init([(1, 0), (2, 0)], [torch.zeros(7, 2)] * 2, [torch.ones(7, 2)] * 2)
    theta, x = BOX.sample((4, 5)), torch.randn(5, 7, 2)
    got = net.log_ratio(p, theta, x)
    assert torch.equal(got, net.log_ratio(p, theta, x))
    for m in range(2):
        plain = Ratio().eval()
        plain.load_state_dict(
            {n.removeprefix("user.network."): w[m] for n, w in p.items() if "user." in n}, strict=False
        )
        torch.testing.assert_close(got[m], torch.stack([plain.log_ratio(t, x) for t in theta]))
    with pytest.raises(TypeError, match=r"and Ratio is a class; make one: network=Ratio\(…\)"):
        UserNetwork(Ratio, BOX, (7, 2))
    with pytest.raises(TypeError, match="got an object of type function"):
        UserNetwork(lambda theta, x: theta, BOX, (7, 2))
    with pytest.raises(TypeError, match="log_ratio"):
        UserNetwork(nn.Linear(2, 2), BOX, (7, 2))
    with pytest.raises(ValueError, match=r"fails on theta of shape \(N, 2\) and x of shape \(N, 7, 3\)"):
        UserNetwork(Ratio(), BOX, (7, 3))
    normed = Ratio()
    normed.head = nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 1))  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"running statistics \(head.0.running_mean…\)"):
        UserNetwork(normed, BOX, (7, 2))


class Encoded(nn.Module):
    """Buffers of three kinds: numbers, indices and a mask."""

    encoding: Tensor
    order: Tensor
    keep: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.register_buffer("encoding", torch.linspace(-1, 1, 14).view(7, 2))
        self.register_buffer("order", torch.arange(6, -1, -1))
        self.register_buffer("keep", torch.arange(7) != 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.where(self.keep[:, None], x, 0.0)[:, self.order]
        out: Tensor = self.layer(x + self.encoding).tanh().mean(1)
        return out


def pretrained() -> nn.Module:
    """A part that somebody has trained, with statistics that say so, and a head to be trained."""
    torch.manual_seed(0)
    part = nn.Sequential(nn.Flatten(), nn.Linear(14, 6), nn.BatchNorm1d(6), nn.Tanh())
    for _ in range(20):
        part(torch.randn(64, 7, 2) * 3 + 1)
    return nn.Sequential(part.requires_grad_(False), nn.Linear(6, 4))


@pytest.mark.parametrize("make", [Encoded, pretrained])
def test_buffers_of_an_embedding_are_constants(make: Callable[[], nn.Module]) -> None:
    module, x = make(), torch.randn(5, 7, 2)
    body = Module(module, (7, 2))
    net = Classifier(BOX, body, hidden=(8,))
    p = net.init([(1, 1), (2, 2)], [torch.zeros(1, 2)] * 2, [torch.ones(1, 2)] * 2)
    numbers = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
    trained = net.layout.cut(net.layout.trainable[None])
    assert numbers and not body.stacked.one_by_one(torch.device("cpu"))
    for name, value in numbers.items():
        assert torch.equal(p[f"module.{name}"][1], value) and not trained[f"module.{name}"].any()
    got = net.embed(p, x.expand(2, -1, -1, -1))
    for m in range(2):
        plain = make().eval()
        plain.load_state_dict({n[len("module.") :]: w[m] for n, w in p.items() if "module." in n}, strict=False)
        torch.testing.assert_close(got[m], plain(x))
    # the numbers come from the file, whatever is given to load it with
    blank = copy.deepcopy(module)
    for buffer in (b for b in blank.buffers() if b.is_floating_point()):
        buffer.fill_(1.0)
    again = network_from_spec(net.spec(), BOX, blank)
    torch.testing.assert_close(again.embed(p, x.expand(2, -1, -1, -1)), got)


def test_statistics_that_would_have_to_follow_the_training_are_refused() -> None:
    thawed = pretrained().requires_grad_(True)
    with pytest.raises(ValueError, match=r"running statistics \(0.2.running_mean…\).*part.requires_grad_\(False\)"):
        Module(thawed, (7, 2))
    never = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(14, affine=False), nn.Linear(14, 3))
    with pytest.raises(ValueError, match="running statistics"):
        Module(never, (7, 2))


class Centred(nn.Module):
    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta[:, 0] * (x - x.mean(0)).sum((1, 2))


def test_what_mixes_the_observations_of_a_batch_is_refused() -> None:
    by_batch = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(14, track_running_stats=False), nn.Linear(14, 3))
    with pytest.raises(ValueError, match="embedding mixes the observations of a batch"):
        Module(by_batch, (7, 2))
    with pytest.raises(ValueError, match="network mixes the observations of a batch"):
        UserNetwork(Centred(), BOX, (7, 2))
    Module(nn.Sequential(nn.LayerNorm((7, 2)), nn.Flatten(), nn.Linear(14, 3)), (7, 2))


def test_a_module_that_is_given_again_is_compared_with_the_stored_one() -> None:
    def body(activation: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(14, 3), activation)

    spec = Classifier(BOX, Module(body(nn.ReLU()), (7, 2)), hidden=(8,)).spec()
    with pytest.warns(UserWarning, match=r"embedding given is not the one.*- \(2\): ReLU\(\); \+ \(2\): Tanh\(\)"):
        network_from_spec(spec, BOX, embedding=body(nn.Tanh()))
    network_from_spec(spec, BOX, embedding=body(nn.ReLU()))  # a warning would be an error
    with pytest.raises(ValueError, match="an embedding of your own, Sequential, whose code is not stored"):
        network_from_spec(spec, BOX)
    spec = UserNetwork(Ratio(), BOX, (7, 2)).spec()
    other = Ratio()
    other.drop = nn.Dropout(0.4)
    with pytest.warns(UserWarning, match=r"network given is not the one.*p=0\.4"):
        network_from_spec(spec, BOX, network=other)
    with pytest.raises(ValueError, match="a network of your own, Ratio, whose code is not stored"):
        network_from_spec(spec, BOX)


def test_observations_of_four_axes_have_a_scale_with_an_embedding_of_ones_own() -> None:
    embedding = Module(nn.Sequential(nn.Flatten(), nn.Linear(24, 3)), (2, 3, 2, 2))
    mean, std = embedding.statistics(torch.randn(50, 2, 3, 2, 2))
    assert mean.shape == std.shape == (2, 3, 2, 2)
