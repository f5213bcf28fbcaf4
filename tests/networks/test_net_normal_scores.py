"""Normal scores of heavy-tailed columns, against scipy's ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from equipoise.networks import Flat, StackedWeights, embedding_from_spec, stack_members
from equipoise.networks.normal_scores import KNOTS, normal_scores, score_table

N = 2000


def column(kind: str, seed: int = 0) -> Tensor:
    """Values of a column, with shape `(N,)`."""
    g = torch.Generator().manual_seed(seed)
    normal, uniform = torch.randn(N, generator=g), torch.rand(N, generator=g)
    return {
        "constant": torch.full((N,), 7.0),
        "binary": (uniform < 0.1).float(),
        "counts": torch.poisson((2 * normal).exp(), generator=g),
        "mostly zero": torch.where(uniform < 0.9, 0.0, normal.exp()),
        "log-normal": (2 * normal).exp(),
        "cauchy": torch.tan(torch.pi * (uniform - 0.5)),
        "sentinel": torch.where(uniform < 0.02, -9999.0, normal),
        "minute": 1e-30 * (4 * normal).exp(),
        "huge": 1e30 * normal,
    }[kind]


KINDS = ["constant", "binary", "counts", "mostly zero", "log-normal", "cauchy", "sentinel", "minute", "huge"]


def scored(values: Tensor, x: Tensor) -> Tensor:
    """Scores of x, with shape `(B,)`, under the table of a column."""
    return normal_scores(score_table(values[:, None], [0]).float()[None], x[None, :, None])[0, :, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_normal_quantiles_of_mid_ranks(kind: str) -> None:
    """Exact at the knots, and between two knots nowhere further off than the next knot."""
    values = column(kind)
    expected = stats.norm.ppf((stats.rankdata(values.numpy()) - 0.5) / N)
    found = scored(values, values).numpy()
    spacing = (expected.max() - expected.min()) / (KNOTS - 1)
    few = len(values.unique()) <= KNOTS
    np.testing.assert_allclose(found, expected, atol=1e-5 if few else 2 * spacing)
    ends = [int(values.argmin()), int(values.argmax())]
    np.testing.assert_allclose(found[ends], expected[ends], atol=1e-5)
    assert (np.diff(found[values.argsort().numpy()]) > -1e-5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_finite_monotone_and_bounded_far_outside_the_training_data(kind: str) -> None:
    values = column(kind)
    size = torch.logspace(-35, 38, 500)
    x = torch.cat([-size.flip(0), torch.zeros(1), size, values, values.amin() - size, values.amax() + size]).sort()[0]
    found = scored(values, x)
    assert found.isfinite().all() and (found.diff() >= -1e-5).all()
    seen = scored(values, values)
    assert found.min() >= seen.min() - 1 and found.max() <= seen.max() + 1
    if kind != "constant":
        assert found.min() < seen.min() - 0.9 and found.max() > seen.max() + 0.9


def members(body: Flat, kinds: list[str]) -> StackedWeights:
    """Constants of one member per kind of its last column; its first is normal."""
    made = []
    for seed, kind in enumerate(kinds):
        x = torch.stack([torch.randn(N), column(kind, seed), column("cauchy", seed)], 1).view(N, *body.x_shape)
        made.append({n: c.float() for n, c in zip(body.constants(), body.statistics(x), strict=True)})
    return stack_members(made)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("ranked", [(1, 2), (0, 2), (2,)])
def test_features_of_a_stack_are_those_of_its_members(shared: bool, ranked: tuple[int, ...]) -> None:
    body = Flat((1, 3), ranked)
    p = members(body, ["counts", "log-normal", "sentinel"])
    x = 100 * torch.randn(1 if shared else 3, 50, 1, 3)
    found = body(p, x)
    assert found.shape == (3, 50, body.features) == (3, 50, 3 + len(ranked))
    z = (x.flatten(2) - p["x_loc"].view(3, 1, 3)) / p["x_scale"].view(3, 1, 3)
    others = [c for c in range(3) if c not in ranked]
    torch.testing.assert_close(found[..., : len(others)], z[..., others])
    torch.testing.assert_close(found[..., len(others) : 3], 5 * (z[..., list(ranked)] / 5).tanh())
    for m in range(3):
        alone = body({n: c[m : m + 1] for n, c in p.items()}, x[:1] if shared else x[m : m + 1])
        torch.testing.assert_close(found[m], alone[0])


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int64])
def test_whole_numbers_have_the_features_of_floats(kind: torch.dtype) -> None:
    x = torch.poisson(torch.rand(500, 2) * 100).clamp(max=255)
    body = Flat((2,), (0, 1))
    both = [body.statistics(values) for values in (x, x.to(kind))]
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b)
    p = {n: c.float().unsqueeze(0) for n, c in zip(body.constants(), both[0], strict=True)}
    torch.testing.assert_close(body(p, x.to(kind).unsqueeze(0)), body(p, x.unsqueeze(0)))


def test_a_flat_embedding_comes_back_from_its_description() -> None:
    assert embedding_from_spec(Flat((4, 2), (1, 7)).spec()) == Flat((4, 2), (1, 7))
    assert Flat((4,)).spec() == {"kind": "flat", "x_shape": [4]}  # as in files that know no ranked columns
    for ranked in ((2, 1), (0, 0), (4,), (-1,)):
        with pytest.raises(ValueError, match="ranked"):
            Flat((4,), ranked)
