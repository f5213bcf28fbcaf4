"""Embeddings and networks: chosen by shape, or a user's own."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from training_tools import CALLER, quick, toy, train

import equipoise as eq
from equipoise.methods import resolve
from equipoise.networks import Convolutional, Flat, choose_embedding
from equipoise.training import PAPER, Member
from equipoise.training import step as training_step
from equipoise.training.modules import MOST_RANKED, SHORT, as_embedding, ranked_columns

FIVE = dataclasses.replace(PAPER, batch_size=32, epochs=5)


def series(n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """θ and a series of six steps of two channels about it."""
    g = torch.Generator().manual_seed(seed)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, theta.unsqueeze(1) + 0.5 * torch.randn(n, 6, 2, generator=g)


class Recurrent(nn.Module):
    """A GRU over a series; with a ratio on top of it."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(2, 5, batch_first=True, **options), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0][:, -1]

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.head(torch.cat([self(x), theta], -1)).squeeze(-1)


class Branching(nn.Module):
    """Looks at its values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1) if x.mean() > 1 else -x.flatten(1))


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("given", ["embedding", "network"])
def test_a_member_with_a_recurrent_module_is_the_same_alone_and_in_a_stack(given: str) -> None:
    data = [series(seed=0), series(seed=1)]
    me = Member(resolve("bnre"), seed=5, data=1)
    crowd = [Member(resolve("nre"), seed=1), Member(resolve("bnre", strength=7.0), seed=2, data=1)]
    (alone,) = train([me], data, settings=FIVE, **{given: Recurrent()})
    together = train([*crowd, me], data, settings=FIVE, **{given: Recurrent()})[-1]
    for name, weight in alone.stack.items():
        torch.testing.assert_close(together.stack[name], weight, rtol=0, atol=1e-8)
    np.testing.assert_allclose(together.history.validation_loss, alone.history.validation_loss, atol=1e-8)
    assert alone.history.train_loss[-1] < alone.history.train_loss[0]


def test_a_module_that_looks_at_its_values_trains() -> None:
    theta, x = series()
    p = quick(theta, x, embedding=Branching(), method="bnpe_init", members=2)
    assert p.log_prob(theta, x).isfinite().all() and not torch.equal(*p.stack["module.layer.weight"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at all
def test_a_recurrent_module_trains_beside_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler traces, forwards and backwards, is run as it is: `test_training_step` writes it in C++."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(training_step, "_PROGRAMS", {})
    theta, x = series()
    own = Recurrent()
    fixed: dict = {"embedding": own, "method": "nre", "members": 2, "clip": None}
    plain, compiled = (quick(theta, x, compile=c, **fixed) for c in (False, True))
    assert compiled.history.attrs["compiled"] == 1
    torch.testing.assert_close(plain.log_prob(theta, x), compiled.log_prob(theta, x), rtol=0, atol=1e-4)


def test_dropout_is_switched_off_with_a_warning_and_the_posterior_is_a_function(tmp_path: Path) -> None:
    theta, x = series()
    own = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.5), nn.ReLU())
    said = r"dropout layers of the embedding are switched off: 2 \(Dropout, p=0.5\); early stopping and weight_decay"
    with pytest.warns(UserWarning, match=said) as told:
        p = quick(theta, x, embedding=own, members=2)
    assert len(told) == 1 and told[0].filename == CALLER
    assert torch.equal(p.log_prob(theta, x), p.log_prob(theta, x))
    assert torch.equal(p.sample((20,), x=x[0], seed=1), p.sample((20,), x=x[0], seed=1))
    assert all(layer.training for layer in own.modules())
    without = quick(theta, x, embedding=nn.Sequential(*own[:2], own[3]), members=2)
    assert torch.equal(p.log_prob(theta, x), without.log_prob(theta, x))
    p.save(tmp_path)
    q = eq.load(tmp_path, embedding=own)
    assert torch.equal(q.log_prob(theta, x), p.log_prob(theta, x))
    assert torch.equal(q.log_prob(theta, x), q.log_prob(theta, x)) and own.training


def test_dropout_of_a_network_of_ones_own_is_told_once() -> None:
    theta, x = series()
    with pytest.warns(UserWarning, match=r"layers of the network are switched off: rnn \(GRU, dropout=0.2\)") as told:
        p = quick(theta, x, network=Recurrent(num_layers=2, dropout=0.2), method="nre", members=3)
    assert len(told) == 1 and told[0].filename == CALLER
    assert torch.equal(p.log_prob(theta[:3], x[:3]), p.log_prob(theta[:3], x[:3]))


class Formula(nn.Module):
    """A layer after a formula."""

    def __init__(self, formula: object) -> None:
        super().__init__()
        self.layer, self.formula = nn.Linear(12, 4), formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(self.layer, x.flatten(1))  # type: ignore[operator]

    def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
        return self(x).sum(-1) + theta.sum(-1)


def test_an_embedding_whose_features_are_not_finite_is_blamed_before_training() -> None:
    theta, x = series()
    logarithm = Formula(lambda layer, x: layer(x.log()))
    with pytest.raises(
        ValueError, match=r"the embedding gives NaN or infinite features for \d+ of the first 64.*row \d"
    ):
        quick(theta, x, embedding=logarithm)
    with pytest.raises(ValueError, match="standardize=False gives it x as it is"):
        quick(theta, x.abs() + 1, embedding=logarithm)
    quick(theta, x.abs() + 1, embedding=logarithm, standardize=False)
    with pytest.raises(ValueError, match="the network gives NaN or infinite log-ratios"):
        quick(theta, x, network=logarithm, method="nre")
    root = Formula(lambda layer, x: (layer(x) - layer(x)).sqrt())
    with pytest.raises(
        ValueError, match=r"features of the embedding are finite, but not their gradient.*layer\.weight"
    ):
        quick(theta, x, embedding=root)


@pytest.mark.parametrize("x_shape", [(24, 24), (17, 17), (16, 40), (40, 16)])
def test_images_without_a_channel_are_doubted(x_shape: tuple[int, int]) -> None:
    theta, _ = series(48)
    options: dict = {"epochs": 1, "validation_fraction": 0.25, "method": "nre"}
    with pytest.warns(UserWarning, match=r"images of one channel, give x\[:, None\] to training") as told:
        quick(theta, torch.randn(48, *x_shape), **options)
    assert len(told) == 1 and told[0].filename == CALLER
    advice = str(told[0].message)
    meant = advice[advice.index("embedding=") + len("embedding=") : advice.index(" says so")]
    quick(theta, torch.randn(48, *x_shape), embedding=eval(meant), **options)  # a warning would be an error
    quick(theta, torch.randn(48, 1, *x_shape), **options)


@pytest.mark.parametrize("x_shape", [(3, 2, 2), (16, 3, 3), (2001, 2), (15, 9), (7, 7), (3, 50, 50), (8,), (20,)])
def test_shapes_that_are_not_doubted(x_shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_embedding(None, x_shape, False).x_shape == x_shape


def test_a_long_vector_may_be_a_series(capsys) -> None:
    theta, _ = series(100)
    for length, said in ((SHORT, False), (SHORT + 1, True)):
        quick(theta, torch.randn(100, length), epochs=1, method="nre", progress=None)
        assert ("if they are a series, x[..., None] says so" in capsys.readouterr().err) == said
    quick(theta, torch.randn(100, SHORT + 1), epochs=1, method="nre")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_observations_that_do_not_vary_are_told(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.training.modules.COMPARED_ROWS", 50)
    theta, _ = series()
    x = torch.full((120, 3), 4, dtype=kind)
    with pytest.warns(UserWarning, match="x is the same in all pairs") as told:
        quick(theta, x, epochs=1, method="nre")
    assert len(told) == 1 and told[0].filename == CALLER
    with pytest.warns(UserWarning, match="x is the same in all pairs"):
        quick(theta, x.numpy(), epochs=1, method="nre")
    x[-1, 0] = 5
    p = quick(theta, x, epochs=1, method="nre")  # a warning would be an error
    assert math.isfinite(float(p.history.validation_loss[0, 0]))


@pytest.mark.parametrize("method", ["bnre", "npe"])
def test_what_asks_for_no_gradient_stays_as_it_is(method: str) -> None:
    """A pre-trained part keeps its weights in every member; the rest is drawn anew and trained."""
    theta, x = series()
    module = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 6), nn.SELU(), nn.Linear(6, 4))
    module[1].requires_grad_(False)
    p = quick(theta, x, epochs=2, method=method, members=2, embedding=module, weight_decay=0.1)
    for m in range(2):
        assert torch.equal(p.stack["module.1.weight"][m], module[1].weight)
        assert not torch.equal(p.stack["module.3.weight"][m], module[3].weight)


def test_an_own_embedding_and_an_own_network_are_trained() -> None:
    theta, x = toy()
    body = nn.Sequential(nn.Linear(2, 5), nn.Tanh())
    p = quick(theta, x, embedding=body, method="bnpe_init")
    assert p.log_prob(theta[:4], x[:4]).isfinite().all()
    assert any(name.startswith("module.") for name in p.stack)

    class Ratio(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

        def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
            return self.net(torch.cat([theta, x], -1)).squeeze(-1)

    theta, x = toy(2000)
    q = quick(theta, x, network=Ratio(), method="bnre", members=2, epochs=15)
    loss = q.history.validation_loss
    assert (loss[-1] < loss[0]).all()
    assert q.sample((10,), x=x[0]).shape == (10, 2)


def test_how_x_is_read_goes_to_standard_error(capsys) -> None:
    theta, x = toy(100)
    for steps, said in ((10, "flattened"), (150, "are read as a series (time, channels)")):
        quick(theta, x.repeat(1, steps).view(100, steps, 2), epochs=1, progress=None)
        shown = capsys.readouterr()
        assert shown.out == "" and said in shown.err and "embedding=" in shown.err
        quick(theta, x.repeat(1, steps).view(100, steps, 2), epochs=1)
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("x_shape", [(SHORT // 2, 2), (1, 8, 8), (2, 2, 2, 5), (9,)])
def test_few_numbers_are_flattened_in_fit_whatever_their_shape(x_shape: tuple[int, ...]) -> None:
    theta, _ = toy(48)
    p = quick(theta, torch.rand(48, *x_shape), epochs=1, validation_fraction=0.25)
    assert p.network.embedding == Flat(x_shape)
    if len(x_shape) in (2, 3):
        [q] = train([Member(eq.METHODS["nre"])], [(theta, torch.rand(48, *x_shape))])  # as in the paper
        assert q.network.embedding == choose_embedding(x_shape)


def test_the_embedding_may_be_a_word() -> None:
    theta, x = series()
    assert quick(theta, x, epochs=1, embedding="convolution").network.embedding == choose_embedding((6, 2))
    long = x.repeat(1, 50, 1)
    assert isinstance(quick(theta, long, epochs=1).network.embedding, Convolutional)
    assert quick(theta, long, epochs=1, embedding="flatten").network.embedding == Flat((300, 2))
    with pytest.raises(ValueError, match="did you mean 'flatten'"):
        quick(theta, x, embedding="flat")
    with pytest.raises(ValueError, match="x has shape"):
        quick(*toy(), embedding="convolution")
    with pytest.raises(TypeError, match="embedding"):
        quick(theta, x, embedding=3)


def test_heavy_tailed_columns_are_read_as_normal_scores_too(tmp_path: Path, capsys) -> None:
    """In `fit` with standardised x; the scores are those of the training data, are not trained, and are saved."""
    theta, x = toy(400)
    x = torch.cat([x, torch.poisson((3 * x).exp())], 1)
    p = quick(theta, x, members=2, epochs=2, weight_decay=0.1, progress=None)
    assert "2 of 4 numbers of x are heavy-tailed" in capsys.readouterr().err
    assert p.network.embedding == Flat((4,), (2, 3))
    for table in p.stack["x_scores"]:
        for c, column in enumerate(x[:, 2:].T):
            known = column.unique()
            assert set(table[0, c].tolist()) <= set(known.tolist())
            assert (table[1, c].diff() >= 0).all() and table[1, c].abs().max() < 3.5
    p.save(tmp_path / "model")
    again = eq.load(tmp_path / "model")
    torch.testing.assert_close(again.log_prob(theta[:8], x[:8]), p.log_prob(theta[:8], x[:8]))
    assert quick(theta, x, epochs=1, standardize=False).network.embedding == Flat((4,))
    assert quick(theta, x, epochs=1, embedding=Flat((4,))).network.embedding == Flat((4,))
    own = quick(theta, x, epochs=1, embedding=Flat((4,), (3,)), standardize=False)
    assert own.stack["x_scores"].shape[:3] == (1, 3, 1) and not own.stack["x_loc"].any()
    [q] = train([Member(eq.METHODS["nre"])], [(theta, x)], standardize=True)
    assert q.network.embedding == Flat((4,))


def test_which_columns_are_heavy_tailed() -> None:
    """Against the skewness and kurtosis of scipy."""
    torch.manual_seed(0)
    normal, uniform = torch.randn(4000), torch.rand(4000)
    x = {
        "normal": normal,
        "uniform": uniform,
        "constant": torch.full((4000,), 3.0),
        "rare": (uniform < 0.01).float(),
        "exponential": -uniform.log(),
        "log-normal": (2 * normal).exp(),
        "student": torch.distributions.StudentT(3.0).sample((4000,)),
        "cauchy": torch.tan(torch.pi * (uniform - 0.5)),
        "sentinel": torch.where(uniform < 0.01, -9999.0, normal),
        "counts": torch.poisson(30 * uniform),
        "small": 1e-30 * normal.exp(),
        "large": 1e30 * normal,
    }
    both = torch.stack(list(x.values()), 1).view(4000, 4, 3)
    expected = [
        i for i, v in enumerate(x.values())
        if len(v.unique()) > 2
        and (abs(stats.skew(v.double().numpy())) > 1 or stats.kurtosis(v.double().numpy(), fisher=False) > 6)
    ]  # fmt: skip
    assert ranked_columns(both) == ranked_columns(both.numpy()) == tuple(expected)
    assert [list(x)[i] for i in expected] == [
        "exponential", "log-normal", "student", "cauchy", "sentinel", "small"
    ]  # fmt: skip
    many = torch.stack([(0.7 * normal).exp(), (2 * normal).exp()], 1).repeat(1, MOST_RANKED)
    assert ranked_columns(many) == tuple(range(1, 2 * MOST_RANKED, 2))


@pytest.mark.parametrize(
    ("x_shape", "here", "there", "swap"),
    [
        ((1, 300), "(time, channels)", "(channels, time)", "swapaxes"),
        ((3, 100), "(time, channels)", "(channels, time)", "swapaxes"),
        ((40, 8, 1), "(channels, height, width)", "(height, width, channels)", "permute"),
        ((12, 12, 3), "(channels, height, width)", "(height, width, channels)", "permute"),
        ((10, 12, 3), "(channels, height, width)", "(height, width, channels)", "moveaxis"),
        ((9, 8, 8), "(channels, height, width)", "(height, width, channels)", "moveaxis"),
    ],
)
def test_channels_that_are_probably_elsewhere_are_doubted(x_shape, here, there, swap) -> None:
    theta, _ = toy(48)
    with pytest.warns(UserWarning, match=r"are read as") as told:
        quick(theta, torch.randn(48, *x_shape), epochs=1, validation_fraction=0.25)
    text = str(told[0].message)
    assert len(told) == 1 and text.index(here) < text.index(there) < text.index(swap) and told[0].filename == CALLER


@pytest.mark.parametrize("x_shape", [(300, 1), (4, 4), (1, 17, 17), (3, 10, 9), (8, 8, 8), (1, 300, 1), (3, 4)])
def test_channels_that_are_where_they_should_be_are_not_doubted(x_shape) -> None:
    theta, _ = toy(48)
    quick(theta, torch.randn(48, *x_shape), epochs=1, validation_fraction=0.25)  # a warning would be an error


def test_a_network_of_your_own_may_read_any_shape(capsys) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2 + 24, 1)

        def log_ratio(self, theta: Tensor, x: Tensor) -> Tensor:
            return self.layer(torch.cat([theta, x.flatten(-4)], -1)).squeeze(-1)

    theta, _ = toy(100)
    x = torch.randn(100, 4, 3, 2, 1)
    p = quick(theta, x, method="nre", network=Own(), epochs=1, progress=None)
    assert p.log_prob(theta[:3], x[:3]).shape == (3,) and "read as" not in capsys.readouterr().err
