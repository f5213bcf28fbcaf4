"""The gradient of spline flows by hand, in single precision, against zuko's densities and torch's gradients."""

from __future__ import annotations

import pytest
import torch
import zuko
from torch import Tensor

import equipoise as eq
from equipoise.networks import Flat, Flow

FEATURES, MEMBERS, BATCH = 3, 3, 150  # points that are no multiple of what a loop holds


def made(dim: int, start: str, bins: int, hidden: tuple[int, ...] = (24, 16)) -> tuple[Flow, Tensor, Tensor, Tensor]:
    """A flow, weights `(M, P)` that make its splines curved, codes `(M, 1, B, E)` and features `(M, B, C)`."""
    prior = eq.BoxUniform(-2 * torch.ones(dim), 3 * torch.ones(dim))
    flow = Flow(
        prior, Flat((FEATURES,)), start, "standard", hidden=hidden, bins=bins, theta_scale=torch.full((1,), 0.3)
    )
    constants = [torch.zeros(FEATURES)] * MEMBERS, [torch.ones(FEATURES)] * MEMBERS
    p = flow.init([(m, 0) for m in range(MEMBERS)], *constants)
    p = {name: 2 * w if name.startswith("flow.") and f".{len(hidden)}." in name else w for name, w in p.items()}
    g = torch.Generator().manual_seed(dim)
    theta = 5 * torch.rand(MEMBERS, 1, BATCH, dim, generator=g) - 2
    return flow, flow.layout.flatten(p), flow.encode(theta), torch.randn(MEMBERS, BATCH, FEATURES, generator=g)


def by_torch(flow: Flow, flat: Tensor, code: Tensor, features: Tensor) -> Tensor:
    return flow.ratio(flow.layout.cut(flat), code, features)


@pytest.mark.parametrize("start", ["prior", "prior_base", "random"])
@pytest.mark.parametrize("bins", [2, 4, 8])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_values_and_gradients_are_torchs_in_double_precision(dim: int, bins: int, start: str) -> None:
    """The random start has points outside the domain of the splines: |θ| up to 3, divided by 0.3."""
    flow, flat, code, features = made(dim, start, bins)
    weigh = torch.randn(MEMBERS, 1, BATCH)
    flat.requires_grad_()
    found = flow.stack_ratio(flat, code, features, embedded=True)
    assert type(found.grad_fn).__name__ == "UnsqueezeBackward0" and found.dtype == torch.float32
    (gradient,) = torch.autograd.grad((found * weigh).sum(), flat)
    exact = flat.detach().double().requires_grad_()
    wanted = by_torch(flow, exact, code.double(), features.double())
    (right,) = torch.autograd.grad((wanted * weigh).sum(), exact)
    usual = by_torch(flow, flat, code, features)
    (usual_gradient,) = torch.autograd.grad((usual * weigh).sum(), flat)
    # Steep splines amplify rounding, whoever computes them.
    for one, other, truth in ((found, usual, wanted), (gradient, usual_gradient, right)):
        error, allowed = ((v - truth).detach().norm() / truth.detach().norm() for v in (one, other))
        assert error < 2 * allowed + 1e-6 < 1e-3


def test_the_density_is_zukos() -> None:
    flow, flat, code, features = made(4, "prior", 8)
    other = zuko.flows.NSF(4, FEATURES, bins=8, transforms=3, hidden_features=(24, 16), activation=torch.nn.SELU)
    p = flow.layout.cut(flat)
    for t, transform in enumerate(other.transform.transforms):
        for i, layer in enumerate(m for m in transform.hyper if hasattr(m, "weight")):
            layer.weight.data, layer.bias.data = p[f"flow.{t}.{i}.weight"][1], p[f"flow.{t}.{i}.bias"][1]
    u = code[1, 0, :, :4]
    with torch.no_grad():
        found = flow.stack_ratio(flat, code, features, embedded=True)[1, 0] - code[1, 0, :, 4]
        torch.testing.assert_close(found, other(features[1]).log_prob(u), rtol=1e-4, atol=1e-4)


def test_steps_do_not_disturb_each_other() -> None:
    """Two evaluations before the first gradient; each member alone; and features that all members share."""
    flow, flat, code, features = made(3, "prior", 4)
    flat.requires_grad_()
    first = flow.stack_ratio(flat, code, features, embedded=True)
    second = flow.stack_ratio(flat, code.flip(2), features, embedded=True)
    with torch.no_grad():
        flow.stack_ratio(flat, code, features.flip(1), embedded=True)
    found = [torch.autograd.grad(r.sum(), flat)[0] for r in (first, second)]
    for gradient, codes in zip(found, (code, code.flip(2)), strict=True):
        wanted = torch.autograd.grad(by_torch(flow, flat, codes, features).sum(), flat)[0]
        assert (gradient - wanted).norm() < 1e-3 * wanted.norm()
    for m in range(MEMBERS):
        alone = flow.stack_ratio(flat[m : m + 1], code[m : m + 1], features[m : m + 1], embedded=True)
        torch.testing.assert_close(alone, first[m : m + 1], rtol=1e-6, atol=1e-6)
    shared = flow.stack_ratio(flat, code[:1], features[:1], embedded=True)
    torch.testing.assert_close(shared[0], first[0], rtol=1e-6, atol=1e-6)


def test_a_gradient_is_computed_once() -> None:
    flow, flat, code, features = made(2, "prior", 4)
    found = flow.stack_ratio(flat.requires_grad_(), code, features, embedded=True).sum()
    found.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="evaluate the log-ratios again"):
        found.backward()


def test_what_is_not_a_number_stays_with_its_member() -> None:
    flow, flat, code, features = made(2, "prior", 4)
    flat[1] = float("nan")
    flat.requires_grad_()
    found = flow.stack_ratio(flat, code, features, embedded=True)
    (gradient,) = torch.autograd.grad(found.sum(), flat)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all() and gradient[[0, 2]].isfinite().all()
