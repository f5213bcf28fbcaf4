r"""Weinberg: 20 scattering angles of \(e^+e^-\to\mu^+\mu^-\) and Fermi's constant.

With \(A = 2\tanh(10(2E-90)/90)\,g_f\) and E = 40, so that A = -1.608910 g_f, the cosines are independent with density

.. math:: p(c) = \frac{1 + c^2 + A c}{Z}, \quad -1 \le c \le c_0, \qquad
          Z = (c_0+1) + \frac{c_0^3+1}{3} + A\,\frac{c_0^2-1}{2}.

Up to \(g_f = 1/\tanh(10/9)\) the parabola is positive and \(c_0 = 1\); beyond, it is cut at its first zero,
\(c_0 = (-A-\sqrt{A^2-4})/2\).

A draw inverts the CDF: with c = t - A/2 the equation F(c) = v is the cubic

.. math:: t^3 + 3P t + 2Q = 0, \qquad P = 1 - A^2/4, \quad 2Q = A^3/4 - 3A + 4 - 3vZ,

whose leftmost real root is the one inside [-1, c_0]. Cardano's formula gives it where \(Q^2 + P^3 \ge 0\), Viète's
where there are three.

The evidence is a one-dimensional integral of the likelihood, split where c_0 leaves 1 (a square root in Z) and cut
where c_0 reaches the largest cosine observed; it is accurate to 1e-8.
"""

from __future__ import annotations

__all__ = ["Weinberg"]

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import BoxUniform

from .abstract_task import Task, clustered
from .streams import compiled, start, uniform

#: A / g_f at E = 40.
SLOPE = 2 * math.tanh(10 * (2 * 40 - 90) / 90)
#: Where the parabola touches zero: |A| = 2.
CRITICAL = -2 / SLOPE
COSINES = 20
LOW, HIGH = 0.25, 2.0


@compiled
def _simulate(theta: Any, key: Any, first: Any, out: Any) -> None:
    state = np.empty(4, np.uint64)
    for i in range(theta.shape[0]):
        start(state, key, first + i)
        a = SLOPE * theta[i, 0]
        c0 = 1.0 if a >= -2.0 else (-a - math.sqrt(a * a - 4.0)) / 2.0
        z = (c0 + 1.0) + (c0**3 + 1.0) / 3.0 + a * (c0 * c0 - 1.0) / 2.0
        p = 1.0 - a * a / 4.0
        p3 = p * p * p
        constant = a * a * a / 4.0 - 3.0 * a + 4.0
        for k in range(out.shape[1]):
            q = (constant - 3.0 * z * uniform(state)) / 2.0
            discriminant = q * q + p3
            if discriminant >= 0.0:
                # The cube root of the larger of the two numbers: nothing cancels under it.
                big = abs(q) + math.sqrt(discriminant)
                root = big ** (1.0 / 3.0)
                t = root - p / root if root > 0.0 else 0.0
                t = -t if q > 0.0 else t
            else:
                radius = math.sqrt(-p)
                t = 2.0 * radius * math.cos((math.acos(-q / (radius * radius * radius)) + 2.0 * math.pi) / 3.0)
            out[i, k] = min(max(t - a / 2.0, -1.0), c0)


class Weinberg(Task):
    name = "weinberg"
    label = "Weinberg"
    parameters = ("g_f",)
    expectations = (({}, 400_000),)
    _width, _evidence_width = 4 * COSINES, 400 * COSINES
    _kernel = staticmethod(_simulate)

    def __init__(self) -> None:
        self.prior = BoxUniform([LOW], [HIGH])
        self.x_shape = (COSINES,)

    def _log_likelihood(self, theta: Tensor, statistics: Tensor) -> Tensor:
        a, c0, log_z = _shape(theta[..., 0])
        c = statistics
        parabola = 1 + c * (c + a[..., None])
        inside = ((c <= c0[..., None]) & (c.abs() <= 1)).all(-1)
        log_p = parabola.clamp(min=torch.finfo(torch.float64).tiny).log().sum(-1) - COSINES * log_z
        return torch.where(inside, log_p, -math.inf)

    def _log_evidence(self, statistics: Tensor) -> Tensor:
        c = statistics
        top = c.amax(-1).clamp(min=1e-6)  # (1 + c²)/c is the |A| at which c0 = c
        last = ((top + 1 / top) / -SLOPE).clamp(max=HIGH)
        node, weight = clustered(48, c.device)
        left, right = CRITICAL - LOW, last[..., None] - CRITICAL
        theta = torch.cat([(LOW + left * node).expand(*last.shape, -1), CRITICAL + right * node], -1)
        width = torch.cat([(left * weight).expand(*last.shape, -1), right * weight], -1)
        log_l = self._log_likelihood(theta[..., None], c[..., None, :])
        return (log_l + width.log()).logsumexp(-1) - math.log(HIGH - LOW)


def _shape(gf: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A, c0 and log Z."""
    a = SLOPE * gf
    cut = (-a - (a**2 - 4).clamp(min=0).sqrt()) / 2
    c0 = torch.where(a < -2, cut, 1.0)
    z = (c0 + 1) + (c0**3 + 1) / 3 + a * (c0**2 - 1) / 2
    return a, c0, z.log()
