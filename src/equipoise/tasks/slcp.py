r"""SLCP: simple likelihood, complex posterior, with two of the five parameters inferred.

With \(s_i = \theta_i^2\), a nuisance u ~ U(-3, 3) drawn once per simulation, ρ = tanh u and z ~ N(0, I), four points

.. math:: (0.7 + s_1 z_1,\; -2.9 + s_2(\rho z_1 + \sqrt{1-\rho^2}\,z_2)).

The likelihood given ρ is Gaussian. With \(a = \sum (x-0.7)^2\), \(b = \sum (y+2.9)^2\), \(c = \sum (x-0.7)(y+2.9)\),

.. math:: \log L(\rho) = -4\log 2\pi - 4\log s_1 s_2 - 2\log(1-\rho^2)
          - \frac{a/s_1^2 - 2\rho c/(s_1 s_2) + b/s_2^2}{2(1-\rho^2)},

and the marginal likelihood is \(\tfrac16\int_{-3}^3 L(\tanh u)\,du\), by Gauss–Legendre.

**The evidence** is four times the integral over one quadrant. Write \(w_i = 1/s_i > 1/9\), so that
\(d\theta_i = \tfrac12 w_i^{-3/2} dw_i\), scale \(g = (\sqrt a\,w_1, \sqrt b\,w_2)\), put
\(\kappa = c/\sqrt{ab}\), and go to polar coordinates \(g = R(\cos\varphi, \sin\varphi)\). The integral over R is an
incomplete gamma function:

.. math:: p(x) = \frac{2^{5/2}(ab)^{-7/4}}{36\,(2\pi)^4} \cdot \frac16\!\int_{-3}^{3}\!\frac{du}{(1-\rho^2)^2}
          \int_0^{\pi/2}\!(\cos\varphi\sin\varphi)^{5/2} q^{-7/2}\, \Gamma\big(\tfrac72, \tfrac12 R_0^2 q\big)\,
          d\varphi,

with \(q = (1 - \rho\kappa\sin 2\varphi)/(1-\rho^2)\) and
\(R_0 = \max(\sqrt a/(9\cos\varphi), \sqrt b/(9\sin\varphi))\), whose kink splits the inner integral in two. Both
integrals together are accurate to 1e-4 (1e-8 for all but a few x).

**Rounding.** x is float32 by definition. For \(|\theta_i| < 3\cdot10^{-4}\) the spread of the points is below the
spacing of float32, and a density that knows nothing of it would call the θ that made x impossible: the mean of
log p(θ*|x*) over float32 pairs would be ruled by one pair in 10,000. So for float32 x the likelihood carries the
variance of rounding, \(s_i^2 + \delta_i^2/12\). For \(|\theta_i| > 0.01\) this changes it by less than 1e-4.
"""

from __future__ import annotations

__all__ = ["SLCP"]

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import BoxUniform

from .abstract_task import Task, legendre
from .streams import compiled, normal, start, uniform

MEAN_X, MEAN_Y = 0.7, -2.9
#: Nodes over the nuisance in the likelihood, and over each half of the angle in the evidence.
NODES, ANGLES = 64, 128
#: Nodes over the nuisance in the evidence, where it is integrated against something smoother.
EVIDENCE_NODES = 40
#: The spacing of float32 at the two means.
SPACING_X, SPACING_Y = 2.0**-24, 2.0**-22


@compiled
def _simulate(theta: Any, key: Any, first: Any, out: Any) -> None:
    state = np.empty(4, np.uint64)
    for i in range(theta.shape[0]):
        start(state, key, first + i)
        rho = math.tanh(6.0 * uniform(state) - 3.0)
        other = math.sqrt(1.0 - rho * rho)
        s1, s2 = theta[i, 0] ** 2, theta[i, 1] ** 2
        for k in range(4):
            z1, z2 = normal(state), normal(state)
            out[i, 2 * k] = MEAN_X + s1 * z1
            out[i, 2 * k + 1] = MEAN_Y + s2 * (rho * z1 + other * z2)


class SLCP(Task):
    name = "slcp"
    label = "SLCP"
    parameters = ("θ₁", "θ₂")
    expectations = (({}, 40_000),)
    _width, _evidence_width = 4 * NODES, 4 * EVIDENCE_NODES * ANGLES
    _kernel = staticmethod(_simulate)

    def __init__(self) -> None:
        self.prior = BoxUniform([-3.0, -3.0], [3.0, 3.0])
        self.x_shape = (8,)

    def _statistics(self, x: Tensor) -> Tensor:
        """a, b, c and the two variances of rounding."""
        dx, dy = x[..., 0::2].double() - MEAN_X, x[..., 1::2].double() - MEAN_Y
        a, b, c = (dx * dx).sum(-1), (dy * dy).sum(-1), (dx * dy).sum(-1)
        rounded = float(x.dtype == torch.float32) / 12
        noise = [torch.full_like(a, rounded * spacing**2) for spacing in (SPACING_X, SPACING_Y)]
        return torch.stack([a, b, c, *noise], -1)

    def _log_likelihood(self, theta: Tensor, statistics: Tensor) -> Tensor:
        a, b, c, noise_x, noise_y = statistics.unbind(-1)
        s1, s2 = (theta**2).unbind(-1)
        v1, v2 = s1**2 + noise_x, s2**2 + noise_y
        scale = (v1 * v2).sqrt()
        rho, weight = _correlations(NODES, theta.device)
        r = rho * (s1 * s2 / scale).unsqueeze(-1)
        rest = 1 - r**2
        form = (a / v1 + b / v2).unsqueeze(-1) - 2 * r * (c / scale).unsqueeze(-1)
        log_l = weight.log() - 2 * rest.log() - form / (2 * rest)
        return log_l.logsumexp(-1) - 4 * scale.log() - 4 * math.log(2 * math.pi)

    def _log_evidence(self, statistics: Tensor) -> Tensor:
        a, b, c = (t[..., None, None] for t in statistics[..., :3].unbind(-1))
        node, weight = legendre(ANGLES, a.device)
        kink = torch.atan2(b.sqrt(), a.sqrt())
        phi = torch.cat([kink * node, kink + (math.pi / 2 - kink) * node], -1)
        width = torch.cat([kink * weight, (math.pi / 2 - kink) * weight], -1)
        sin, cos = phi.sin(), phi.cos()
        rho, weight = (t[:, None] for t in _correlations(EVIDENCE_NODES, a.device))
        q = (1 - rho * (c / (a * b).sqrt()) * 2 * sin * cos) / (1 - rho**2)
        edge = torch.maximum(a.sqrt() / cos, b.sqrt() / sin) / 9
        log_f = width.log() + 2.5 * (sin * cos).log() + weight.log() - 2 * (1 - rho**2).log()
        log_f = log_f - 3.5 * q.log() + _log_upper_gamma(edge**2 * q / 2)
        constant = 2.5 * math.log(2) - math.log(36) - 4 * math.log(2 * math.pi)
        return log_f.flatten(-2).logsumexp(-1) - 1.75 * (a * b).log().squeeze(-1).squeeze(-1) + constant


def _correlations(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """n nodes of ρ = tanh u, u ~ U(-3, 3), and their weights, which sum to one."""
    u, weight = legendre(n, device)
    return torch.tanh(6 * u - 3), weight


def _log_upper_gamma(t: Tensor) -> Tensor:
    """log Γ(7/2, t), from the recurrence down to Γ(1/2, t) = √π erfc(√t)."""
    root = t.sqrt()
    return -t + (15 / 8 * math.sqrt(math.pi) * torch.special.erfcx(root) + root * (t**2 + 2.5 * t + 3.75)).log()
