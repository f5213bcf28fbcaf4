"""One random stream per simulation, for compiled simulators.

Row i of a batch draws from its own xoshiro256++ generator (Blackman & Vigna), whose 256 bits of state are hashed from a
128-bit key of the seed and from i. So a row depends on the seed and its index alone: not on how many rows come with it,
and not on how many threads share the work. A smaller batch is a prefix of a larger one.

The kernels are compiled without the interpreter lock and called on blocks of rows from ordinary threads. That needs no
threading layer of numba's, which neither survives a fork nor allows calls from two threads at once.
"""

from __future__ import annotations

__all__ = ["compiled", "key_of", "next_word", "normal", "run_rows", "start", "uniform"]

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from equipoise.support import randomness
from equipoise.support.devices import compiled

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


@compiled
def _mix(z: Any) -> Any:
    """The finaliser of splitmix64: a bijection of 64 bits that leaves no pattern."""
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


@compiled
def start(state: Any, key: Any, row: Any) -> None:
    """Set `state`, four words, to the beginning of the stream of `row` under `key`, two words."""
    for half in range(2):
        base = _mix(key[half] + np.uint64(row) * _GAMMA)
        state[2 * half] = _mix(base + _GAMMA)
        state[2 * half + 1] = _mix(base + _GAMMA + _GAMMA)


@compiled
def next_word(state: Any) -> Any:
    """64 random bits."""
    total = state[0] + state[3]
    result = ((total << np.uint64(23)) | (total >> np.uint64(41))) + state[0]
    shifted = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = (state[3] << np.uint64(45)) | (state[3] >> np.uint64(19))
    return result


@compiled
def uniform(state: Any) -> Any:
    """Uniform on [0, 1), with 53 bits."""
    return float(next_word(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


def _layers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """256 layers of equal area under exp(-x²/2): where each is safe, its width by 2⁵², the density at its edge."""
    edge, scale = _TAIL, 2.0**52
    area = edge * math.exp(-(edge**2) / 2) + math.sqrt(math.pi / 2) * math.erfc(edge / math.sqrt(2))
    safe, width, height = np.empty(256), np.empty(256), np.empty(256)
    base = area / math.exp(-(edge**2) / 2)
    safe[0], safe[1], width[0], width[255] = edge / base * scale, 0.0, base / scale, edge / scale
    height[0], height[255] = 1.0, math.exp(-(edge**2) / 2)
    for i in range(254, 0, -1):
        inner = math.sqrt(-2 * math.log(area / edge + math.exp(-(edge**2) / 2)))
        safe[i + 1], width[i], height[i] = inner / edge * scale, inner / scale, math.exp(-(inner**2) / 2)
        edge = inner
    return safe.astype(np.uint64), width, height


#: Where the tail of the ziggurat begins.
_TAIL = 3.6541528853610088
_SAFE, _WIDTH, _HEIGHT = _layers()


@compiled
def normal(state: Any) -> Any:
    """A standard normal, by the ziggurat of Marsaglia and Tsang: one word and one product, 99 times in 100."""
    while True:
        word = next_word(state)
        layer = int(word & np.uint64(255))
        size = (word >> np.uint64(9)) & np.uint64(0xFFFFFFFFFFFFF)
        sign = 1.0 - 2.0 * float((word >> np.uint64(8)) & np.uint64(1))
        x = float(size) * _WIDTH[layer]
        if size < _SAFE[layer]:
            return sign * x
        if layer == 0:
            while True:
                beyond = -math.log(1.0 - uniform(state)) / _TAIL
                if -2.0 * math.log(1.0 - uniform(state)) > beyond * beyond:
                    return sign * (_TAIL + beyond)
        if _HEIGHT[layer] + uniform(state) * (_HEIGHT[layer - 1] - _HEIGHT[layer]) < math.exp(-x * x / 2.0):
            return sign * x


def key_of(seed: int, *path: str | int) -> np.ndarray:
    """The 128-bit key of a stream of randomness, as two words."""
    return randomness.sequence(seed, *path).generate_state(2, np.uint64)


def run_rows(kernel: Any, theta: np.ndarray, key: np.ndarray, out: np.ndarray, *options: Any) -> None:
    """Fill `out` with `kernel(theta, key, first_row, out, *options)`, block by block, on torch's number of threads."""
    threads, rows = torch.get_num_threads(), theta.shape[0]
    # Eight blocks per thread even out what rows cost; a block's θ, cast to float64, should fit a processor's cache.
    block = min(max(1, math.ceil(rows / (8 * threads))), 1 << 14)

    def fill(i: int) -> None:
        kernel(theta[i : i + block].astype(np.float64), key, i, out[i : i + block], *options)

    if threads == 1 or rows <= block:
        for i in range(0, rows, block):
            fill(i)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(fill, range(0, rows, block)):  # so that an error is raised here
            continue
