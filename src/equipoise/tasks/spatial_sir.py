r"""Spatial SIR: an epidemic on a 50×50 grid, seen once.

θ = (β, γ), the probabilities of infection and recovery per step. The epidemic starts from 1 + Poisson(3) infected cells
drawn with replacement and runs for 100 steps, or until no cell is infected. One step goes from the old I and R to

.. math:: I' = (I \lor N) \land \lnot R, \qquad R' = R \lor (I \land G), \qquad S' = \lnot I' \land \lnot R',

where n is the zero-padded 3×3 box sum of I, N ~ Bernoulli(βn/8) and G ~ Bernoulli(γ) in each cell. So a cell that
recovers stays infected, and infectious, for one more step, and a snapshot can show I and R together. That is the
published task.

**How it runs.** A row of the grid is one 64-bit word. Neighbours are counted for all cells of a row at once with full
adders on words. Random events are drawn for all cells of a row at once too, as words of coin flips:

- probability k/8, with the count k in bit-planes: three random words are a number r in 0…7 in each lane, and r < k is
  the carry of a bitwise comparison;
- probability p: compare p with a uniform number digit by digit, from the top. Half of the lanes are decided by each
  random word, so 64 lanes need about 8 words, and the result is exact to the 53 digits of p.

βn/8 is the conjunction of the two. The posterior has no closed form.
"""

from __future__ import annotations

__all__ = ["SpatialSIR"]

import math
from typing import Any

import numpy as np

from equipoise.priors import BoxUniform

from .abstract_task import Task
from .streams import compiled, next_word, start, uniform

SIDE, STEPS = 50, 100
_ROW = np.uint64((1 << SIDE) - 1)
_ONE, _ZERO = np.uint64(1), np.uint64(0)


@compiled
def _coins(state: Any, p: Any, lanes: Any) -> Any:
    """A word whose bits in `lanes` are 1 with probability p each, and 0 elsewhere."""
    if p >= 1.0:
        return lanes
    heads, rest = _ZERO, p
    while lanes and rest > 0.0:
        word = next_word(state)
        rest *= 2.0
        if rest >= 1.0:  # this digit of p is 1: a lane whose digit is 0 is below p
            rest -= 1.0
            heads |= lanes & ~word
            lanes &= word
        else:  # this digit of p is 0: a lane whose digit is 1 is above p
            lanes &= ~word
    return heads


@compiled
def _below(state: Any, k0: Any, k1: Any, k2: Any, k3: Any) -> Any:
    """A word whose bits are 1 with probability k/8, k = k0 + 2 k1 + 4 k2 + 8 k3 in each lane."""
    r0, r1, r2 = next_word(state), next_word(state), next_word(state)
    below = ~r0 & k0
    below = (~r1 & k1) | (~(r1 ^ k1) & below)
    below = (~r2 & k2) | (~(r2 ^ k2) & below)
    return below | k3


@compiled
def _simulate(theta: Any, key: Any, first: Any, out: Any) -> None:
    state = np.empty(4, np.uint64)
    infected, recovered = np.empty(SIDE + 2, np.uint64), np.empty(SIDE + 2, np.uint64)
    ones, twos = np.empty(SIDE + 2, np.uint64), np.empty(SIDE + 2, np.uint64)
    for i in range(theta.shape[0]):
        start(state, key, first + i)
        beta, gamma = theta[i, 0], theta[i, 1]
        infected[:] = _ZERO
        recovered[:] = _ZERO
        seeds, product = 0, uniform(state)  # 1 + Poisson(3): count uniforms until their product drops below e⁻³
        while product > math.exp(-3.0):
            seeds += 1
            product *= uniform(state)
        for _ in range(1 + seeds):
            cell = int(uniform(state) * (SIDE * SIDE))
            infected[1 + cell // SIDE] |= _ONE << np.uint64(cell % SIDE)
        for _ in range(STEPS):
            alive = _ZERO
            for j in range(1, SIDE + 1):
                alive |= infected[j]
            if alive == _ZERO:
                break
            # Each row's sum over three columns, 0…3 in two bit-planes. Rows 0 and SIDE + 1 are the padding.
            for j in range(SIDE + 2):
                centre = infected[j]
                left, right = (centre << _ONE) & _ROW, centre >> _ONE
                ones[j] = left ^ centre ^ right
                twos[j] = (left & centre) | (left & right) | (centre & right)
            for j in range(1, SIDE + 1):
                ill, immune = infected[j], recovered[j]
                open_ = ~(ill | immune) & _ROW
                new = _ZERO
                near = (ones[j - 1] | twos[j - 1] | ones[j] | twos[j] | ones[j + 1] | twos[j + 1]) & open_
                if near:
                    # Three numbers of two bits each, added: k = k0 + 2 k1 + 4 k2 + 8 k3.
                    a0, b0, c0 = ones[j - 1], ones[j], ones[j + 1]
                    a1, b1, c1 = twos[j - 1], twos[j], twos[j + 1]
                    k0 = a0 ^ b0 ^ c0
                    carry = (a0 & b0) | (a0 & c0) | (b0 & c0)
                    sum1, carry1 = a1 ^ b1 ^ c1, (a1 & b1) | (a1 & c1) | (b1 & c1)
                    k1, carry2 = sum1 ^ carry, sum1 & carry
                    k2, k3 = carry1 ^ carry2, carry1 & carry2
                    new = _coins(state, beta, _below(state, k0, k1, k2, k3) & near)
                if ill:
                    recovered[j] |= _coins(state, gamma, ill & ~immune)
                infected[j] = (ill | new) & ~immune
        for j in range(SIDE):
            ill, immune = infected[j + 1], recovered[j + 1]
            for k in range(SIDE):
                bit = np.uint64(k)
                sick, cured = (ill >> bit) & _ONE, (immune >> bit) & _ONE
                out[i, 1, j, k] = sick
                out[i, 2, j, k] = cured
                out[i, 0, j, k] = (sick | cured) ^ _ONE


class SpatialSIR(Task):
    name = "spatial_sir"
    label = "Spatial SIR"
    parameters = ("β", "γ")
    storage = "bits"
    _kernel = staticmethod(_simulate)

    def __init__(self) -> None:
        self.prior = BoxUniform([0.0, 0.0], [1.0, 1.0])
        self.x_shape = (3, SIDE, SIDE)
