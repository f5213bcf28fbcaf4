"""The gradient of spline flows by hand, in single precision, against zuko's densities and torch's gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zuko
from torch import Tensor

import equipoise as eq
from equipoise.networks import Flat, Flow
from equipoise.networks.flow_gradient import log_ratio_with_gradient

FEATURES, BATCH = 3, 150  # points that are no multiple of what a loop holds


def made(dim: int, start: str, bins: int, hidden: tuple[int, ...] = (24, 17)) -> tuple[Flow, Tensor, Tensor, Tensor]:
    """A flow, weights `(1, P)` that make its splines curved, codes `(B, E)` and features `(B, C)`."""
    prior = eq.BoxUniform(-2 * torch.ones(dim), 3 * torch.ones(dim))
    flow = Flow(
        prior, Flat((FEATURES,)), start, "standard", hidden=hidden, bins=bins, theta_scale=torch.full((1,), 0.3)
    )
    p = flow.init([(dim, 0)], [torch.zeros(FEATURES)], [torch.ones(FEATURES)])
    p = {name: 2 * w if name.startswith("flow.") and f".{len(hidden)}." in name else w for name, w in p.items()}
    g = torch.Generator().manual_seed(dim)
    theta = 5 * torch.rand(BATCH, dim, generator=g) - 2
    return flow, flow.layout.flatten(p), flow.encode(theta), torch.randn(BATCH, FEATURES, generator=g)


def by_hand(flow: Flow, flat: Tensor, code: Tensor, features: Tensor, weigh: Tensor) -> tuple[Tensor, Tensor]:
    ratio, gradient = log_ratio_with_gradient(flow.packing, flat[0], code[:, : flow.dim], features, weigh)
    return ratio + code[:, flow.dim], gradient


def by_torch(flow: Flow, flat: Tensor, code: Tensor, features: Tensor, weigh: Tensor) -> tuple[Tensor, Tensor]:
    flat = flat.detach().requires_grad_()
    ratio = flow.ratio(flow.layout.cut(flat), code[None, None], features[None])[0, 0]
    (gradient,) = torch.autograd.grad((ratio * weigh).sum(), flat)
    return ratio.detach(), (gradient * flow.layout.trainable)[0]


@pytest.mark.parametrize("start", ["prior", "prior_base", "random"])
@pytest.mark.parametrize("bins", [2, 4, 8])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_values_and_gradients_are_torchs_in_double_precision(dim: int, bins: int, start: str) -> None:
    """The random start has points outside the domain of the splines: |θ| up to 3, divided by 0.3."""
    flow, *inputs = made(dim, start, bins)
    inputs.append(torch.randn(BATCH, generator=torch.Generator().manual_seed(0)))
    wanted = by_torch(flow, *(t.double() for t in inputs))
    # Steep splines amplify rounding, whoever computes them.
    for one, other, truth in zip(by_hand(flow, *inputs), by_torch(flow, *inputs), wanted, strict=True):
        error, allowed = ((v - truth).norm() / truth.norm() for v in (one, other))
        assert one.dtype == torch.float32 and error < 2 * allowed + 1e-6 < 1e-3


@pytest.mark.parametrize(("dim", "hidden"), [(2, (64,)), (7, (5, 40, 6)), (40, (48, 48))])
def test_any_widths(dim: int, hidden: tuple[int, ...]) -> None:
    """Fewer units than coordinates, widths that are no multiple of a panel's, and many slopes."""
    flow, *inputs = made(dim, "prior", 3, hidden)
    inputs.append(torch.randn(BATCH, generator=torch.Generator().manual_seed(0)))
    for one, truth in zip(by_hand(flow, *inputs), by_torch(flow, *(t.double() for t in inputs)), strict=True):
        assert (one - truth).norm() < 1e-4 * truth.norm()


def test_the_density_is_zukos() -> None:
    flow, flat, code, features = made(4, "prior", 8)
    other = zuko.flows.NSF(4, FEATURES, bins=8, transforms=3, hidden_features=(24, 17), activation=torch.nn.SELU)
    p = flow.layout.cut(flat)
    for t, transform in enumerate(other.transform.transforms):
        for i, layer in enumerate(m for m in transform.hyper if hasattr(m, "weight")):
            layer.weight.data, layer.bias.data = p[f"flow.{t}.{i}.weight"][0], p[f"flow.{t}.{i}.bias"][0]
    found, _ = by_hand(flow, flat, code, features, torch.ones(BATCH))
    with torch.no_grad():
        right = other(features).log_prob(code[:, :4])
    torch.testing.assert_close(found - code[:, 4], right, rtol=1e-4, atol=1e-4)


def test_a_packing_has_every_weight_once_and_nothing_that_is_masked() -> None:
    flow, *_ = made(5, "prior", 4)
    used = flow.packing.entries[flow.packing.entries >= 0]
    assert len(np.unique(used)) == len(used)
    assert sorted(used) == flow.layout.trainable.nonzero().flatten().tolist()


def test_what_is_not_a_number_reaches_the_gradient() -> None:
    flow, flat, code, features = made(2, "prior", 4)
    features[3] = float("nan")
    ratio, gradient = by_hand(flow, flat, code, features, torch.ones(BATCH))
    others = torch.arange(BATCH) != 3
    assert ratio[3].isnan() and ratio[others].isfinite().all() and gradient.isnan().any()
