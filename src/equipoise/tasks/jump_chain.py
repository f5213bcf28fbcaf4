r"""The exact posterior of Lotka–Volterra's jump chain.

**The likelihood.** A step from (x, y) with both above zero has event k with probability (rate k)/(sum of rates); a
step with x = 0 or y = 0 has one possible event and says nothing. With n_k events of kind k among the steps that say
something, S = e^φ1 + e^φ4, a = φ2 - log S, b = φ3 - log S and w = φ4 - φ1,

.. math:: \log L = C + B(w) + H(a, b), \qquad B(w) = n_1 \log\sigma(-w) + n_4 \log\sigma(w),

.. math:: H(a, b) = n_2 a + n_3 b - \sum_t \log(x_t y_t + e^a x_t + e^b y_t),

where C = Σ log(x_t y_t, x_t or y_t) does not depend on φ. Adding a constant to all four φ changes nothing. B and H
are concave.

**The nuisances.** At given φ1 and φ2, dφ3 dφ4 = db dw with λ = log(1 + e^w), a = φ2 - φ1 - λ, φ3 = b + φ1 + λ, so

.. math:: p(x|\theta) = \frac{e^C}{25} \int_{-4-\varphi_1}^{1-\varphi_1}\!\! dw\; e^{B(w)}
          \int_{-4-\varphi_1-\lambda}^{1-\varphi_1-\lambda}\!\! db\; e^{H(\varphi_2-\varphi_1-\lambda,\,b)}.

**The evidence.** The box allows φ1 an interval of length ℓ = 5 - [max(0, p, q, w) - min(0, p, q, w)], p = a + λ, q =
b + λ, so

.. math:: p(x) = \frac{e^C}{625} \iiint \max(\ell, 0)\; e^{B(w) + H(a, b)}\; da\, db\, dw.

**Numbers.** a and b lie in [-5 - log 2, 5 - log 2]. The sum over steps is analytic in (a, b) for |Im| < π, so its
Chebyshev interpolant of degree 39 in each is accurate to 1e-7; it is the only thing that touches the series. From it
come rows of H along b, and of the logarithm of the integral of e^H up to, and from, each b, on a grid of spacing
10/512 at 2001 steps (finer for longer series: the peak is never narrower than 2/√steps). They are made when first
asked for. The integral over w is Simpson's rule on the same spacing, where the integrand counts. The log likelihood
and the log evidence are accurate to 1e-4 where the likelihood is within 20 nats of its peak. Further out the integrands
are steep at the ends of their ranges: errors of 0.004 were found 64 nats below the peak, and of 1 nat 400 below.
"""

from __future__ import annotations

__all__ = ["log_terms"]

import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from .streams import compiled

LOW, HIGH = -4.0, 1.0
WIDTH = 2 * (HIGH - LOW)
FIRST = -(HIGH - LOW) - math.log(2.0)
DEGREE = 40
#: Log density below the peak at which an integrand stops to count.
DEPTH = 40.0


def log_terms(
    theta: np.ndarray,
    path: np.ndarray,
    which_theta: np.ndarray,
    which_path: np.ndarray,
    origin: tuple[int, int],
    evidence: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """log p(x|θ) of chosen pairs, with shape `(P,)`, and log p(x) of each series, with shape `(M,)`.

    Arguments:
        theta: with shape `(N, 2)`; rows outside the prior get -inf.
        path: the series, with shape `(M, T, 2)`, integers.
        which_theta: the row of `theta` of each pair, with shape `(P,)`; `which_path` likewise.
        origin: the state before the first of the series.
        evidence: whether log p(x) is wanted; zeros where it is not.
    """
    order = np.argsort(which_path, kind="stable")
    ends = np.searchsorted(which_path[order], np.arange(len(path) + 1))
    likelihood, log_evidence = np.empty(len(order)), np.zeros(len(path))
    nodes, panels = chebyshev_nodes(), panels_for(path.shape[1])
    coarse, fine = cardinals(panels), np.ascontiguousarray(cardinals(2 * panels).T)

    def one(m: int) -> bool:
        mine = order[ends[m] : ends[m + 1]]
        wanted = np.ascontiguousarray(theta[which_theta[mine]])
        values = np.empty(len(mine))
        ok, log_p = _one_series(path[m], origin[0], origin[1], wanted, nodes, coarse, fine, evidence, values)
        likelihood[mine], log_evidence[m] = values, log_p
        return bool(ok)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        legal = list(pool.map(one, range(len(path))))
    if not all(legal):
        raise ValueError(
            f"series {legal.index(False)} is no path of the jump chain: each step is one birth or one death, starting "
            f"from {origin[0]} predators and {origin[1]} prey"
        )
    return likelihood, log_evidence


def panels_for(steps: int) -> int:
    """Panels of the grid in a and b: 512, or more where a panel would exceed 0.44 of the narrowest possible peak."""
    return 64 * max(8, math.ceil(8 * math.sqrt(steps / 2001)))


@lru_cache
def chebyshev_nodes() -> np.ndarray:
    return np.asarray(FIRST + WIDTH * (1 - np.cos(math.pi * (np.arange(DEGREE) + 0.5) / DEGREE)) / 2)


@lru_cache
def cardinals(panels: int) -> np.ndarray:
    """The matrix that takes values at the Chebyshev nodes to the grid; shape `(panels + 1, DEGREE)`."""
    t = np.linspace(-1, 1, panels + 1)
    s = -np.cos(math.pi * (np.arange(DEGREE) + 0.5) / DEGREE)
    transform = np.polynomial.chebyshev.chebvander(s, DEGREE - 1).T * 2 / DEGREE
    transform[0] /= 2
    return np.ascontiguousarray(np.polynomial.chebyshev.chebvander(t, DEGREE - 1) @ transform)


@compiled
def _read(path: Any, x: Any, y: Any, xs: Any, ys: Any, counts: Any) -> Any:
    """Collect the steps that say something. Returns whether the path is legal, their number, and C."""
    n, constant = 0, 0.0
    for t in range(path.shape[0]):
        dx, dy = path[t, 0] - x, path[t, 1] - y
        if x == 0 or y == 0:
            forced = (dx == 0 and dy == (1 if y > 0 else 0)) if x == 0 else (dx == -1 and dy == 0)
            if not forced:
                return False, n, constant
        else:
            if abs(dx) + abs(dy) != 1:
                return False, n, constant
            kind = (0 if dx == 1 else 1) if dx != 0 else (2 if dy == 1 else 3)
            counts[kind] += 1.0
            constant += math.log(float(x)) * (kind != 2) + math.log(float(y)) * (kind != 1)
            xs[n], ys[n] = x, y
            n += 1
        x, y = path[t, 0], path[t, 1]
    return True, n, constant


@compiled
def _sums(xs: Any, ys: Any, n: Any, nodes: Any, out: Any) -> None:
    """Σ_t log(x_t y_t + e^a x_t + e^b y_t) at the Chebyshev nodes, one logarithm to 32 factors."""
    m = nodes.shape[0]
    beta, product = np.exp(nodes), np.empty(m)
    for i in range(m):
        alpha = math.exp(nodes[i])
        product[:] = 1.0
        out[i, :] = 0.0
        for t in range(n):
            y = ys[t]
            base = xs[t] * (y + alpha)
            for j in range(m):
                product[j] *= base + beta[j] * y
            if t % 32 == 31 or t == n - 1:
                for j in range(m):
                    out[i, j] += math.log(product[j])
                    product[j] = 1.0


@compiled
def _fill(i: Any, work: Any) -> None:
    """Row i, once: H at half the spacing, and the log of the integral of e^H up to, and from, each grid point."""
    table, cumulative, peak, filled, mixed, coarse, counts = work
    if filled[i]:
        return
    filled[i] = True
    columns = table.shape[1]
    panels = (columns - 1) // 2
    half = WIDTH / (columns - 1)
    row = table[i]
    for j in range(columns):
        row[j] = counts[1] * (FIRST + i * 2.0 * half) + counts[2] * (FIRST + j * half)
    for k in range(DEGREE):
        weight = coarse[i, k]
        for j in range(columns):
            row[j] -= weight * mixed[k, j]
    best = 0
    for j in range(columns):
        if row[j] > row[best]:
            best = j
    top = row[best]
    peak[i] = FIRST + best * half
    # An arbitrary constant, a quarter of the first density, keeps the logarithms finite; it cancels in differences.
    panel = np.empty(panels)
    before = math.exp(row[0] - top)
    left = max(0.25 * before, 1e-300)
    for j in range(panels):
        middle, after = math.exp(row[2 * j + 1] - top), math.exp(row[2 * j + 2] - top)
        panel[j] = half / 3.0 * (before + 4.0 * middle + after)
        before = after
    right = max(0.25 * before, 1e-300)
    cumulative[i, 0, 0] = math.log(left) + top
    cumulative[i, 1, panels] = math.log(right) + top
    for j in range(panels):
        left += panel[j]
        cumulative[i, 0, j + 1] = math.log(left) + top
        right += panel[panels - 1 - j]
        cumulative[i, 1, panels - 1 - j] = math.log(right) + top


@compiled
def _weights(position: Any, last: Any) -> Any:
    """The first of four grid points around a position, and their weights in cubic interpolation."""
    first = min(max(int(position) - 1, 0), last - 3)
    t = position - first
    w0 = -(t - 1.0) * (t - 2.0) * (t - 3.0) / 6.0
    w1 = t * (t - 2.0) * (t - 3.0) / 2.0
    w2 = -t * (t - 1.0) * (t - 3.0) / 2.0
    w3 = t * (t - 1.0) * (t - 2.0) / 6.0
    return first, (w0, w1, w2, w3)


@compiled
def _log_inner(a: Any, low: Any, high: Any, work: Any) -> Any:
    """log ∫ e^{H(a, b)} db from low to high, from the side that has the peak outside or between."""
    table, cumulative, peak, filled = work[:4]
    panels = (table.shape[1] - 1) // 2
    scale = panels / WIDTH
    i, wa = _weights((a - FIRST) * scale, panels)
    jl, wl = _weights((low - FIRST) * scale, panels)
    jh, wh = _weights((high - FIRST) * scale, panels)
    for k in range(4):
        if not filled[i + k]:  # asked here too: the call would take as long as the sum below
            _fill(i + k, work)
    side = 0 if low < peak[i + 1] else 1
    at_low = at_high = 0.0
    for k in range(4):
        for m in range(4):
            at_low += wa[k] * wl[m] * cumulative[i + k, side, jl + m]
            at_high += wa[k] * wh[m] * cumulative[i + k, side, jh + m]
    big, small = (at_high, at_low) if side == 0 else (at_low, at_high)
    if small >= big:
        return -math.inf
    return big + math.log1p(-math.exp(small - big))


@compiled
def _binomial(w: Any, counts: Any) -> Any:
    """B(w)."""
    soft = math.log1p(math.exp(-abs(w)))
    return -counts[0] * (soft + max(w, 0.0)) - counts[3] * (soft + max(-w, 0.0))


@compiled
def _integrand(w: Any, phi1: Any, phi2: Any, counts: Any, work: Any) -> Any:
    lam = math.log1p(math.exp(-abs(w))) + max(w, 0.0)
    shift = phi1 + lam
    return _binomial(w, counts) + _log_inner(phi2 - shift, LOW - shift, HIGH - shift, work)


@compiled
def _log_outer(phi1: Any, phi2: Any, counts: Any, work: Any, values: Any) -> Any:
    """The log of the double integral, by Simpson's rule over w where a coarse look says that it counts."""
    n = values.shape[0] - 1
    step, stride = (HIGH - LOW) / n, 8
    top = -math.inf
    for k in range(0, n + 1, stride):
        values[k] = _integrand(LOW - phi1 + k * step, phi1, phi2, counts, work)
        top = max(top, values[k])
    total = 0.0
    for block in range(0, n, stride):
        if max(values[block], values[block + stride]) < top - DEPTH:
            continue
        for k in range(block + 1, block + stride):
            values[k] = _integrand(LOW - phi1 + k * step, phi1, phi2, counts, work)
        for k in range(block, block + stride + 1):
            weight = 1.0 if k == block or k == block + stride else (4.0 if (k - block) % 2 == 1 else 2.0)
            total += weight * math.exp(values[k] - top)
    return top + math.log(total * step / 3.0)


@compiled
def _log_evidence(counts: Any, work: Any) -> Any:
    """The log of the triple integral, on the points of the grid within DEPTH of the peak."""
    table = work[0]
    rows, columns = table.shape
    half = WIDTH / (columns - 1)
    best = np.full(rows, -math.inf)
    top, top_w = -math.inf, -math.inf
    for k in range(0, rows, 8):  # H is concave: the rows that count are the neighbours of the best of every eighth
        _fill(k, work)
        best[k] = table[k].max()
        top = max(top, best[k])
    for k in range(0, rows, 8):
        if best[k] > top - 2.0 * DEPTH:
            for i in range(max(0, k - 7), min(rows, k + 8)):
                _fill(i, work)
                best[i] = table[i].max()
                top = max(top, best[i])
    for k in range(rows):
        top_w = max(top_w, _binomial(-WIDTH / 2 + k * 2.0 * half, counts))
    cells, nodes = 0, 0
    for i in range(rows):
        if best[i] > top - DEPTH:
            for j in range(0, columns, 2):
                cells += table[i, j] > top - DEPTH
        nodes += _binomial(-WIDTH / 2 + i * 2.0 * half, counts) > top_w - DEPTH
    stride = 1  # where the likelihood is flat the grid may be coarser
    while cells * nodes / stride**3 > 1e6 and stride < 8:
        stride *= 2
    spacing = 2.0 * half * stride
    # The points of (a, b) that count, row by row, each with its density.
    a_at, b_at, density = np.empty(cells), np.empty(cells), np.empty(cells)
    n = 0
    for i in range(0, rows, stride):
        if best[i] > top - DEPTH:
            for j in range(0, columns, 2 * stride):
                if table[i, j] > top - DEPTH:
                    a_at[n], b_at[n] = FIRST + i * 2.0 * half, FIRST + j * half
                    density[n] = math.exp(table[i, j] - top)
                    n += 1
    total = 0.0
    for k in range(0, rows, stride):
        w = -WIDTH / 2 + k * 2.0 * half
        log_b = _binomial(w, counts) - top_w
        if log_b < -DEPTH:
            continue
        lam = math.log1p(math.exp(-abs(w))) + max(w, 0.0)
        low_w, high_w = min(0.0, w) - lam, max(0.0, w) - lam
        part = 0.0
        for m in range(n):
            high = max(high_w, max(a_at[m], b_at[m]))
            low = min(low_w, min(a_at[m], b_at[m]))
            part += max((HIGH - LOW) - (high - low), 0.0) * density[m]
        total += part * math.exp(log_b)
    return top + top_w + math.log(total) + 3.0 * math.log(spacing)


@compiled
def _one_series(
    path: Any, x: Any, y: Any, theta: Any, nodes: Any, coarse: Any, fine: Any, evidence: Any, values: Any
) -> Any:
    """log p(x|θ) of all `theta` into `values`; returns whether the path is legal, and log p(x)."""
    xs, ys = np.empty(path.shape[0]), np.empty(path.shape[0])
    counts = np.zeros(4)
    legal, n, constant = _read(path, x, y, xs, ys, counts)
    if not legal:
        return False, 0.0
    sums = np.empty((DEGREE, DEGREE))
    _sums(xs, ys, n, nodes, sums)
    rows, columns = coarse.shape[0], fine.shape[1]
    mixed = np.zeros((DEGREE, columns))
    for k in range(DEGREE):
        for m in range(DEGREE):
            for j in range(columns):
                mixed[k, j] += sums[k, m] * fine[m, j]
    table, cumulative = np.empty((rows, columns)), np.empty((rows, 2, rows))
    work = (table, cumulative, np.empty(rows), np.zeros(rows, np.bool_), mixed, coarse, counts)
    grid = np.empty((rows - 1) // 2 + 1)
    side = HIGH - LOW
    for i in range(theta.shape[0]):
        phi1, phi2 = theta[i, 0], theta[i, 1]
        if LOW <= phi1 <= HIGH and LOW <= phi2 <= HIGH:
            values[i] = constant - 2.0 * math.log(side) + _log_outer(phi1, phi2, counts, work, grid)
        else:
            values[i] = -math.inf
    if not evidence:
        return True, 0.0
    return True, constant - 4.0 * math.log(side) + _log_evidence(counts, work)
