r"""One-dimensional marginals of a prior, and the map between each of them and the standard normal.

For a continuous CDF F the map is \(z = \Phi^{-1}(F(\theta))\), with \(dz/d\theta = p(\theta)/\varphi(z)\). Written like
that it loses the upper tail, because 1 - 2⁻²⁴ is the largest float32 below 1. So:

- a uniform measures its distance from the nearer end, which keeps both tails and makes the map antisymmetric;
- normal and log-normal marginals are affine in z (or in log θ) and never see a probability;
- a log-uniform is a uniform in log θ, which is taken in float64;
- any other CDF is evaluated in float64, where 1 - F resolves \(|z| \le 8.2\), and clamped at 8.

Where torch knows no CDF, SciPy may (`scipy_marginals`).

Where torch knows no `icdf` the quantile is solved for. Let T be torch's map from the real line to the support.
Newton's method on \(h(y) = \Phi^{-1}(F(T(y))) - z\), whose slope is \(p(\theta)\,T'(y)/\varphi(h + z)\), needs a
handful of steps because h is nearly straight; a bracket catches it where it is not.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.distributions as td
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.special import ndtri

from . import scipy_marginals
from .closed_forms import Z_MAX, LogUniform, uniform_from_normal, uniform_to_normal
from .prior import log_phi, ndtr, normal_cdf


def to_normal(marginal: Distribution, theta: Tensor) -> Tensor:
    """z with z ~ N(0, 1) when θ follows the marginal; any shape, the dtype of θ."""
    match marginal:
        case td.Uniform():
            return uniform_to_normal(theta, marginal.low.to(theta.dtype), marginal.high.to(theta.dtype))
        case LogUniform():
            low, high = _ends(marginal, theta)
            z = uniform_to_normal(theta.double().clamp(low, high).log(), low.log(), high.log())
            return z.to(theta.dtype)
        case td.Normal():
            return (theta - marginal.loc) / marginal.scale
        case td.LogNormal():
            return (theta.clamp(min=torch.finfo(theta.dtype).tiny).log() - marginal.loc) / marginal.scale
    return _normal_score(marginal, theta.double()).to(theta.dtype)


def from_normal(marginal: Distribution, z: Tensor) -> Tensor:
    """θ from z: the inverse of `to_normal`, inside the support."""
    match marginal:
        case td.Uniform():
            return uniform_from_normal(z, marginal.low.to(z.dtype), marginal.high.to(z.dtype))
        case LogUniform():
            low, high = _ends(marginal, z)
            theta = uniform_from_normal(z.double(), low.log(), high.log()).exp()
            return theta.clamp(low, high).to(z.dtype)
        case td.Normal():
            return marginal.loc + marginal.scale * z
        case td.LogNormal():
            limits = torch.finfo(z.dtype)  # beyond which exp gives 0 or infinity, outside the support
            return (marginal.loc + marginal.scale * z).exp().clamp(limits.tiny, limits.max)
    wide = z.double().clamp(0.1 - Z_MAX, Z_MAX - 0.1)  # the solver must see a crossing: short of where z saturates
    try:
        if scipy_marginals.has_scipy_cdf(marginal):
            theta = _with_slope(marginal, scipy_marginals.quantile(marginal, wide), wide)
        else:
            theta = marginal.icdf(ndtr(wide))
    except NotImplementedError:
        theta = _solve(marginal, wide)
    return _into_support(marginal, theta.to(z.dtype))


def to_uniform(marginal: Distribution, theta: Tensor) -> Tensor:
    """u = F(θ), uniform on [0, 1] when θ follows the marginal."""
    match marginal:
        case td.Uniform():
            return ((theta - marginal.low) / (marginal.high - marginal.low)).clamp(0, 1)
        case LogUniform():
            return marginal.cdf(theta.double()).to(theta.dtype)
        case td.Normal() | td.LogNormal():
            return ndtr(to_normal(marginal, theta))
    return _tails(marginal, theta.double())[0].to(theta.dtype)


def from_uniform(marginal: Distribution, u: Tensor) -> Tensor:
    """θ from u: the inverse of `to_uniform`. Finite also at u = 0 and u = 1 of an unbounded marginal."""
    if isinstance(marginal, td.Uniform):
        return torch.lerp(marginal.low.to(u.dtype), marginal.high.to(u.dtype), u)
    if isinstance(marginal, LogUniform):
        low, high = _ends(marginal, u)
        return marginal.icdf(u.double()).clamp(low, high).to(u.dtype)
    limit = normal_cdf(-Z_MAX)
    return from_normal(marginal, ndtri(u.double().clamp(limit, 1 - limit)).to(u.dtype))


def contains(marginal: Distribution, theta: Tensor) -> Tensor:
    """Whether θ lies in the support, both ends of a uniform or log-uniform included; False for NaN and infinities."""
    if isinstance(marginal, td.Uniform | LogUniform):
        return (theta >= marginal.low.to(theta.dtype)) & (theta <= marginal.high.to(theta.dtype))
    return _support(marginal).check(theta) & theta.isfinite()


def log_prob(marginal: Distribution, theta: Tensor) -> Tensor:
    """log p(θ), -inf outside the support, where torch's own raises or extrapolates."""
    inside = contains(marginal, theta)
    if isinstance(marginal, td.Uniform):  # torch counts the upper end as outside
        return torch.where(inside, -(marginal.high - marginal.low).log(), -math.inf)
    safe = torch.where(inside, theta, _interior(marginal, theta))
    match marginal:
        case td.Normal():  # torch squares the scale, which overflows from 1.8e19 on
            density = log_phi((safe - marginal.loc) / marginal.scale) - marginal.scale.log()
        case td.HalfNormal():
            density = log_phi(safe / marginal.scale) - marginal.scale.log() + math.log(2)
        case _:
            density = marginal.log_prob(safe)
    return torch.where(inside, density, -math.inf)


def has_cdf(distribution: Distribution) -> bool:
    """Whether the distribution is continuous and its CDF is known, to torch or to SciPy."""
    if scipy_marginals.has_scipy_cdf(distribution):
        return True
    try:
        distribution.cdf(_interior(distribution, torch.zeros((), device=device_of(distribution))))
        return not is_discrete(distribution)
    except NotImplementedError:
        return False


def device_of(distribution: Distribution) -> torch.device:
    """The device of the tensors in a distribution; the CPU where there are none."""
    parts = vars(distribution).values()
    own = (v.device for v in parts if isinstance(v, Tensor))
    inside = (device_of(v) for v in parts if isinstance(v, Distribution))
    return next(itertools.chain(own, inside), torch.device("cpu"))


def is_discrete(distribution: Distribution) -> bool:
    """Whether the distribution is over whole numbers."""
    try:
        return bool(_support(distribution).is_discrete)
    except NotImplementedError:
        return False


# --- the general CDF -----------------------------------------------------------------------------------------------


def _tails(marginal: Distribution, theta: Tensor) -> tuple[Tensor, Tensor]:
    """F(θ) and 1 - F(θ): 0 and 1 below the support, 1 and 0 above it, NaN for NaN."""
    inside = contains(marginal, theta)
    middle = _interior(marginal, theta)
    safe = torch.where(inside, theta, middle)
    if scipy_marginals.has_scipy_cdf(marginal):
        lower, upper = scipy_marginals.tails(marginal, safe)
    else:
        lower = marginal.cdf(safe)
        upper = 1 - lower
    outside = torch.where(theta.isnan(), theta, (theta > middle).to(theta.dtype))
    return torch.where(inside, lower, outside), torch.where(inside, upper, 1 - outside)


def _normal_score(marginal: Distribution, theta: Tensor) -> Tensor:
    lower, upper = _tails(marginal, theta)
    below = lower <= 0.5
    # One `ndtri` of the smaller tail: the branch not taken would have an infinite derivative at the edge.
    z = ndtri(torch.where(below, lower, upper).clamp(min=normal_cdf(-Z_MAX)))
    return torch.where(below, z, -z)


def _support(distribution: Distribution) -> Any:
    if isinstance(distribution, td.VonMises):  # its draws; torch says the whole line, on which its mass is infinite
        return constraints.interval(-math.pi, math.pi)
    if type(distribution) is td.TransformedDistribution:
        base = _support(distribution.base_dist)
        low, high = getattr(base, "lower_bound", None), getattr(base, "upper_bound", None)
        if low is not None and high is not None:  # torch gives the codomain of the transform
            ends = torch.stack([torch.as_tensor(low), torch.as_tensor(high)])
            for transform in distribution.transforms:
                ends = transform(ends)
            if bool(ends.isfinite().all()):
                return constraints.interval(ends.amin(), ends.amax())
    return distribution.support


def _ends(marginal: LogUniform, like: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of a log-uniform, rounded as θ is, in float64."""
    return marginal.low.to(like.dtype).double(), marginal.high.to(like.dtype).double()


def _line(distribution: Distribution) -> tuple[td.Transform, float]:
    """A monotone map from the real line to the support, and how far out it can be evaluated without overflow."""
    support = _support(distribution)
    try:
        transform = td.biject_to(getattr(support, "base_constraint", support))
    except NotImplementedError:  # a support torch has no map for: take the line itself
        transform = td.transforms.identity_transform
    return transform, 2.0**60 if transform is td.transforms.identity_transform else 2.0**9


def _interior(distribution: Distribution, like: Tensor) -> Tensor:
    """A point of the support, in the dtype and on the device of `like`."""
    return _line(distribution)[0](like.new_zeros(()))


def _solve(marginal: Distribution, z: Tensor) -> Tensor:
    """θ with Φ⁻¹(F(θ)) = z, by Newton's method inside a bracket. Its derivative is φ(z)/p(θ)."""
    transform, limit = _line(marginal)
    with torch.no_grad():
        # A support that is bounded above has a falling map.
        sign = (transform(z.new_ones(())) - transform(z.new_zeros(()))).sign()
        lo, hi = -torch.ones_like(z), torch.ones_like(z)
        while bool((short := _normal_score(marginal, transform(sign * lo)) > z).any()) and float(lo.min()) > -limit:
            lo = torch.where(short, 2 * lo, lo)
        while bool((short := _normal_score(marginal, transform(sign * hi)) < z).any()) and float(hi.max()) < limit:
            hi = torch.where(short, 2 * hi, hi)
        y = (lo + hi) / 2
        for _ in range(200):
            theta = transform(sign * y)
            score = _normal_score(marginal, theta)
            lo, hi = torch.where(score < z, y, lo), torch.where(score < z, hi, y)
            log_slope = marginal.log_prob(theta) + transform.log_abs_det_jacobian(sign * y, theta) - log_phi(score)
            newton = y - (score - z) * (-log_slope).exp()
            after = torch.where((newton > lo) & (newton < hi), newton, (lo + hi) / 2)
            done = bool((after - y).abs().le(4e-16 * (1 + y.abs())).all())
            y = after
            if done:
                break
    return _with_slope(marginal, transform(sign * y), z)


def _with_slope(marginal: Distribution, theta: Tensor, z: Tensor) -> Tensor:
    """θ, which was found without a derivative, with dθ/dz = φ(z)/p(θ)."""
    if not z.requires_grad:
        return theta
    with torch.no_grad():
        slope = (log_phi(z) - marginal.log_prob(theta)).exp()
    return theta + (z - z.detach()) * slope


def _into_support(marginal: Distribution, theta: Tensor) -> Tensor:
    """θ, moved by one rounding where casting it has put it on or over an end of the support."""
    low, high = (getattr(_support(marginal), f"{end}_bound", None) for end in ("lower", "upper"))
    tiny = torch.finfo(theta.dtype).tiny  # beside 0, where the next number is a denormal that some devices flush
    if low is not None:
        low = _beside(low, theta)
        theta = torch.maximum(theta, torch.maximum(low + tiny, torch.nextafter(low, _beside(math.inf, theta))))
    if high is not None:
        high = _beside(high, theta)
        theta = torch.minimum(theta, torch.minimum(high - tiny, torch.nextafter(high, _beside(-math.inf, theta))))
    return theta


def _beside(value: Any, theta: Tensor) -> Tensor:
    """A number as a tensor on the device of θ, created there: a GPU waits for every copy."""
    return value.to(theta) if isinstance(value, Tensor) else theta.new_full((), value)
