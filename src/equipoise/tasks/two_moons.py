r"""Two Moons: a noisy half circle whose place says where θ is, up to one reflection.

With a ~ U(-π/2, π/2) and r ~ N(0.1, 0.01²),

.. math:: x = \Big(0.25 + r \cos a - \tfrac{|\theta_0+\theta_1|}{\sqrt 2},\;
          r \sin a + \tfrac{\theta_1-\theta_0}{\sqrt 2}\Big).

Let \((u, v) = (r\cos a, r\sin a)\) be the point on the half circle, read off x and θ. In polar coordinates its density
is \(1[u > 0]\,N(\rho; 0.1, 0.01^2)/(\pi\rho)\), which is p(x|θ).

The evidence. Put \(q_0 = |\theta_0+\theta_1|/\sqrt2\) and \(q_1 = (\theta_1-\theta_0)/\sqrt2\). A rotation sends the
box to the diamond \(|q_0| + |q_1| \le \sqrt2\), two θ to each q, so \(p(x) = P(x)/2\), with P(x) the probability that
\(q = C + r(\cos a, -\sin a)\), \(C = (0.25 - x_0, x_1)\), falls into the triangle
\(0 \le q_0 \le \sqrt2 - |q_1|\). For a given r the angles that do are a few arcs, known in closed form; the integral
over r is split at every radius where an arc appears, ends or meets another (the distances from C to the sides and
corners, and where the ends of the half circle cross a side), and is accurate to 1e-7.
"""

from __future__ import annotations

__all__ = ["TwoMoons"]

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import BoxUniform

from .abstract_task import Task, clustered
from .streams import compiled, normal, start, uniform

RADIUS, SPREAD = 0.1, 0.01
SQRT2 = math.sqrt(2)


@compiled
def _simulate(theta: Any, key: Any, first: Any, out: Any) -> None:
    state = np.empty(4, np.uint64)
    for i in range(theta.shape[0]):
        start(state, key, first + i)
        angle = math.pi * (uniform(state) - 0.5)
        radius = RADIUS + SPREAD * normal(state)
        out[i, 0] = 0.25 + radius * math.cos(angle) - abs(theta[i, 0] + theta[i, 1]) / SQRT2
        out[i, 1] = radius * math.sin(angle) + (theta[i, 1] - theta[i, 0]) / SQRT2


class TwoMoons(Task):
    name = "two_moons"
    label = "Two Moons"
    parameters = ("θ₁", "θ₂")
    expectations = (({}, 400_000),)
    _evidence_width = 256
    _kernel = staticmethod(_simulate)

    def __init__(self) -> None:
        self.prior = BoxUniform([-1.0, -1.0], [1.0, 1.0])
        self.x_shape = (2,)

    def _statistics(self, x: Tensor) -> Tensor:
        # The last entry is what rounding x to its dtype can move u by: a point at the very end of the half circle must
        # not be impossible under the θ that made it.
        return torch.cat([x.double(), torch.full_like(x[..., :1], torch.finfo(x.dtype).eps, dtype=torch.float64)], -1)

    def _log_likelihood(self, theta: Tensor, statistics: Tensor) -> Tensor:
        x0, x1, rounding = statistics.unbind(-1)
        u = x0 - 0.25 + theta.sum(-1).abs() / SQRT2
        v = x1 - (theta[..., 1] - theta[..., 0]) / SQRT2
        rho = torch.hypot(u, v)
        gauss = -(((rho - RADIUS) / SPREAD) ** 2) / 2 - math.log(SPREAD * math.sqrt(2 * math.pi))
        return torch.where(u > -rounding, gauss - rho.log() - math.log(math.pi), -math.inf)

    def _log_evidence(self, statistics: Tensor) -> Tensor:
        return _inside(statistics).log() - math.log(2)


def _inside(statistics: Tensor) -> Tensor:
    """P(x): the probability that a random half-circle point, seen from x, lies in the triangle of possible q."""
    centre, height = 0.25 - statistics[..., 0], statistics[..., 1]
    plus, minus = SQRT2 - centre - height, SQRT2 - centre + height  # q0 ± q1 ≤ √2, as r(cos a ∓ sin a) ≤ plus, minus
    corners = [torch.hypot(centre, height - s * SQRT2) for s in (1, -1)] + [torch.hypot(centre - SQRT2, height)]
    knots = torch.stack([-centre, plus / SQRT2, minus / SQRT2, plus.abs(), minus.abs(), *corners], -1)
    low, high = RADIUS - 9 * SPREAD, RADIUS + 9 * SPREAD
    # Panels of 3σ at most.
    bell = torch.arange(low, high + SPREAD, 3 * SPREAD, dtype=torch.float64, device=knots.device)
    knots = torch.cat([knots, bell.expand(*knots.shape[:-1], -1)], -1).clamp(low, high).sort(-1).values
    node, weight = clustered(16, statistics.device)
    width = knots.diff(dim=-1).unsqueeze(-1)
    r = knots[..., :-1, None] + width * node
    gauss = (-(((r - RADIUS) / SPREAD) ** 2) / 2).exp() / (SPREAD * math.sqrt(2 * math.pi))
    total = (width * weight * gauss * _arcs(r, centre, plus, minus)).sum((-1, -2))
    return total.clamp(min=torch.finfo(torch.float64).tiny)


def _arcs(r: Tensor, centre: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
    """The share of the half circle of radius r inside the triangle; shape of `r`, `(*, panels, nodes)`."""
    centre, plus, minus = (t[..., None, None] for t in (centre, plus, minus))
    reach = (-centre / r).clamp(0, 1).acos()  # |a| ≤ reach keeps q0 ≥ 0
    inside = 2 * reach
    # cos(a ± π/4) > edge/(r√2) is outside: an arc of half-width `cut` around ∓π/4.
    ends = []
    for edge, middle in ((plus, -math.pi / 4), (minus, math.pi / 4)):
        cut = (edge / (r * SQRT2)).clamp(-1, 1).acos()
        lo, hi = torch.maximum(middle - cut, -reach), torch.minimum(middle + cut, reach)
        ends.append((lo, torch.maximum(hi, lo)))
        inside = inside - (ends[-1][1] - lo)
    overlap = torch.minimum(ends[0][1], ends[1][1]) - torch.maximum(ends[0][0], ends[1][0])
    return (inside + overlap.clamp(min=0)).clamp(min=0) / math.pi
