"""The compiled loops of the spline against its formulation in tensors, zuko and numerical derivatives."""

from __future__ import annotations

import pytest
import torch
import zuko
from torch import Tensor

from equipoise.networks import spline
from equipoise.networks.spline import spline_forward, spline_inverse

PAIRS = ((spline_forward, spline.forward_of_tensors), (spline_inverse, spline.inverse_of_tensors))


def points(n: int, bins: int, dtype: torch.dtype = torch.float64, spread: float = 2.0) -> tuple[Tensor, Tensor]:
    """Points within and without the domain, and knots that are far from even."""
    g = torch.Generator().manual_seed(bins)
    return (3 * torch.randn(n, generator=g)).to(dtype), (spread * torch.randn(n, 3 * bins - 1, generator=g)).to(dtype)


def gradients(function: object, x: Tensor, phi: Tensor, bins: int, weigh: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    x, phi = x.clone().requires_grad_(), phi.clone().requires_grad_()
    return torch.autograd.grad(function(x, phi, bins, 1e-3), (x, phi), weigh)


@pytest.mark.parametrize("bins", [1, 2, 4, 8])
def test_values_and_gradients_are_those_of_the_tensors(bins: int) -> None:
    x, phi = points(4000, bins)
    x[:4] = torch.tensor([-5.0, 5.0, float("nan"), float("inf")])
    for loops, tensors in PAIRS:
        torch.testing.assert_close(loops(x, phi, bins), tensors(x, phi, bins, 1e-3), rtol=0, atol=1e-11, equal_nan=True)
    weigh, (x, phi) = (torch.randn(4000).double(), torch.randn(4000).double()), points(4000, bins)
    found, want = (gradients(f, x, phi, bins, weigh) for f in PAIRS[0])
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


def test_single_precision_is_at_least_as_exact_as_the_tensors() -> None:
    x, phi = points(4000, 8, torch.float32, spread=1.0)
    weigh = (torch.randn(4000), torch.randn(4000))
    for loops, tensors in PAIRS:
        found, rounded, exact = loops(x, phi, 8), tensors(x, phi, 8, 1e-3), tensors(x.double(), phi.double(), 8, 1e-3)
        for a, b, c in zip(found, rounded, exact, strict=True):
            assert a.dtype == torch.float32 and (a - c).abs().mean() <= (b - c).abs().mean()
    found, rounded = (gradients(f, x, phi, 8, weigh) for f in PAIRS[0])
    exact = gradients(spline.forward_of_tensors, x.double(), phi.double(), 8, tuple(w.double() for w in weigh))
    for a, b, c in zip(found, rounded, exact, strict=True):
        assert a.dtype == torch.float32 and (a - c).abs().mean() <= (b - c).abs().mean()


@pytest.mark.parametrize("bins", [4, 8])
def test_at_knots_and_outside_it_is_zukos(bins: int) -> None:
    _, phi = points(50, bins)
    knots, heights, _ = spline._knots(phi, bins, 1e-3)
    x = torch.cat([knots, torch.full((50, 1), 5.5), torch.full((50, 1), -7.0)], 1)
    reference = zuko.transforms.MonotonicRQSTransform(*phi[:, None].split([bins, bins, bins - 1], -1))
    y, log_slope = spline_forward(x, phi[:, None], bins)
    want_y, want_slope = reference.call_and_ladj(x)
    torch.testing.assert_close(y, want_y, rtol=0, atol=1e-11)
    torch.testing.assert_close(y[:, :-2], heights, rtol=0, atol=1e-11)
    torch.testing.assert_close(log_slope, want_slope, rtol=0, atol=1e-9)
    torch.testing.assert_close(spline_inverse(y, phi[:, None], bins), (x, log_slope), rtol=0, atol=1e-7)


def test_gradients_of_first_and_second_order_are_right() -> None:
    x, phi = points(6, 3)
    x, phi = x.requires_grad_(), phi.requires_grad_()
    assert torch.autograd.gradcheck(lambda *a: spline_forward(*a, bins=3), (x, phi))
    assert torch.autograd.gradcheck(lambda *a: spline_inverse(*a, bins=3), (x, phi))
    assert torch.autograd.gradgradcheck(lambda *a: spline_forward(*a, bins=3), (x, phi))
    assert torch.autograd.gradgradcheck(lambda p: spline_forward(x.detach(), p, bins=3), (phi,))


@pytest.mark.parametrize(
    ("of_x", "of_phi"),
    [
        ((2, 5, 3), (2, 1, 3)),
        ((2, 5, 4, 3), (2, 1, 1, 3)),
        ((2, 5, 3), (1, 5, 1)),
        ((4, 3), (3,)),
        ((3,), (4, 3)),
        ((0, 3), (3,)),
    ],
)
def test_points_and_knots_broadcast(of_x: tuple[int, ...], of_phi: tuple[int, ...]) -> None:
    x, phi = torch.randn(of_x).double(), torch.randn(*of_phi, 11).double()
    every_other = torch.randn(*of_x[:-1], 2 * of_x[-1]).double()[..., ::2]  # not contiguous
    for value in (x, every_other):
        for loops, tensors in PAIRS:
            torch.testing.assert_close(loops(value, phi, 4), tensors(value, phi, 4, 1e-3))
    shape = torch.broadcast_shapes(of_x, of_phi)
    weigh = torch.randn(shape).double(), torch.randn(shape).double().mT.contiguous().mT
    for values, knots in ((x, phi), (every_other, phi.mT.contiguous().mT)):
        torch.testing.assert_close(*(gradients(f, values, knots, 4, weigh) for f in PAIRS[0]), rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # forward mode uses it
def test_transforms_of_functions_and_other_precisions_see_tensors() -> None:
    x, phi = points(20, 4)
    one = torch.func.vmap(lambda x, phi: spline_forward(x, phi, 4)[0])(x, phi)
    torch.testing.assert_close(one, spline_forward(x, phi, 4)[0])
    slope = torch.func.vmap(torch.func.grad(lambda x, phi: spline_forward(x, phi, 4)[0]))(x, phi)
    torch.testing.assert_close(slope.log(), spline_forward(x, phi, 4)[1])
    _, tangent = torch.func.jvp(lambda x: spline_forward(x, phi, 4)[0], (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, slope)
    with torch.autograd.forward_ad.dual_level():
        dual = spline_forward(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)), phi, 4)[0]
        torch.testing.assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, slope)
    assert spline_forward(x.bfloat16(), phi.bfloat16(), 4)[0].dtype == torch.bfloat16
    torch.testing.assert_close(spline_forward(x.float(), phi, 4)[0], one, rtol=1e-4, atol=1e-4)
    traced = torch.compile(lambda x, phi: spline_forward(x, phi, 4)[0], backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(x, phi), one)
