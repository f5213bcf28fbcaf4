"""Embeddings and networks of users' own in a training, and words about observations that look wrong."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equipoise
import equipoise as eq
from equipoise.methods import resolve
from equipoise.training import PAPER, Member, fit_many
from equipoise.training.inputs import as_embedding

PRIOR = eq.BoxUniform(-torch.ones(2), torch.ones(2))
SMALL = dataclasses.replace(PAPER, batch_size=32, epochs=5)


def series(n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """θ and a series of six steps of two channels about it."""
    g = torch.Generator().manual_seed(seed)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, theta.unsqueeze(1) + 0.5 * torch.randn(n, 6, 2, generator=g)


def quick(theta: object, x: object, **options: object) -> eq.Posterior:
    defaults: dict = {"members": 1, "epochs": 2, "batch_size": 32, "hidden": (16, 16), "progress": False}
    return eq.fit(theta, x, prior=PRIOR, **(defaults | options))


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


# --- modules that vmap cannot stack -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("given", ["embedding", "network"])
def test_a_member_with_a_recurrent_module_is_the_same_alone_and_in_a_stack(given: str) -> None:
    data = [series(seed=0), series(seed=1)]
    me = Member(resolve("bnre"), seed=5, data=1)
    crowd = [Member(resolve("nre"), seed=1), Member(resolve("bnre", strength=7.0), seed=2, data=1)]
    fixed: dict = {"prior": PRIOR, "settings": SMALL, "hidden": (8,), "device": "cpu", "progress": False}
    (alone,) = fit_many([me], data, **fixed, **{given: Recurrent()})
    together = fit_many([*crowd, me], data, **fixed, **{given: Recurrent()})[-1]
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
def test_a_recurrent_module_trains_beside_a_compiler() -> None:
    theta, x = series()
    own = Recurrent()
    fixed: dict = {"embedding": own, "method": "nre", "members": 2, "clip": None}
    plain, compiled = (quick(theta, x, compile=c, **fixed) for c in (False, True))
    assert compiled.history.attrs["compiled"] == 1
    torch.testing.assert_close(plain.log_prob(theta, x), compiled.log_prob(theta, x), rtol=0, atol=1e-4)


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_dropout_is_switched_off_with_a_warning_and_the_posterior_is_a_function(tmp_path: Path) -> None:
    theta, x = series()
    own = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.5), nn.ReLU())
    said = (
        r"dropout layers of the embedding are switched off: 2 \(Dropout, p=0.5\); early stopping and weight_decay= reg"
    )
    with pytest.warns(UserWarning, match=said) as told:
        p = quick(theta, x, embedding=own, members=2)
    assert len(told) == 1 and told[0].filename == __file__
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
    assert len(told) == 1 and told[0].filename == __file__
    assert torch.equal(p.log_prob(theta[:3], x[:3]), p.log_prob(theta[:3], x[:3]))


# --- what is not finite -----------------------------------------------------------------------------------------------


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


def test_words_about_divergence_name_what_there_is() -> None:
    theta, x = series()
    huge = x.flatten(1).sign() * 3e38
    for members, clip, words in (
        (1, None, r"the member diverged.*learning_rate \(now 0.001\), and check"),
        (2, 5.0, r"all 2 members diverged.*learning_rate \(now 0.001\) or clip \(now 5.0\), and check"),
    ):
        said = pytest.warns(UserWarning, match="never had a finite loss and are left out.$")
        with said, pytest.raises(RuntimeError, match=words):
            quick(theta, huge, standardize=False, members=members, clip=clip, method="nre")


# --- observations that look wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize("x_shape", [(24, 24), (8, 8), (16, 40), (40, 16)])
def test_images_without_a_channel_are_doubted(x_shape: tuple[int, int]) -> None:
    theta, _ = series(48)
    options: dict = {"epochs": 1, "validation_fraction": 0.25, "method": "nre"}
    with pytest.warns(UserWarning, match=r"images of one channel, give x\[:, None\] to training") as told:
        quick(theta, torch.randn(48, *x_shape), **options)
    assert len(told) == 1 and told[0].filename == __file__
    advice = str(told[0].message)
    meant = advice[advice.index("embedding=") + len("embedding=") : advice.index(" says so")]
    body = eval(meant, {"equipoise": equipoise})
    quick(theta, torch.randn(48, *x_shape), embedding=body, **options)  # a warning would be an error
    quick(theta, torch.randn(48, 1, *x_shape), **options)


@pytest.mark.parametrize("x_shape", [(3, 2, 2), (16, 3, 3), (2001, 2), (15, 9), (7, 7), (3, 50, 50), (8,), (20,)])
def test_shapes_that_are_not_doubted(x_shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_embedding(None, x_shape, False).x_shape == x_shape


def test_a_long_vector_may_be_a_series(capsys) -> None:
    theta, _ = series(100)
    for length, said in ((49, False), (50, True)):
        quick(theta, torch.randn(100, length), epochs=1, method="nre", progress=None)
        assert ("if they are a series, x[..., None] says so" in capsys.readouterr().err) == said
    quick(theta, torch.randn(100, 50), epochs=1, method="nre")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [torch.float32, torch.uint8])
def test_observations_that_do_not_vary_are_told(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.training.trial.CHUNK", 50)
    theta, _ = series()
    x = torch.full((120, 3), 4, dtype=kind)
    with pytest.warns(UserWarning, match="x is the same in all pairs") as told:
        quick(theta, x, epochs=1, method="nre")
    assert len(told) == 1 and told[0].filename == __file__
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
