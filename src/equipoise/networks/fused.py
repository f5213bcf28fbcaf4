r"""The convolutional embedding on a GPU: launches of the kernels, forward and backward.

What it should cost, for one Spatial SIR member and a batch of 256 in float32: bytes at 4 TB/s, products at 70 TFLOP/s
(a seventh of the TF32 peak, since 16 outputs starve the tensor cores), in microseconds.

| layer | positions | sum over (padded) | MB forward / backward | GFLOP, padded | predicted |
|---|---|---|---|---|---|
| x to float, channels last | 640 k | – | 12 | – | 3 |
| 1, fused | 640 k → 160 k | 36 (48) | 23 / 23 | 2.2 / 1.0 | 37 + 20 + about 25 for gathering |
| 2 | 160 k | 144 (192 for weights) | 33 / 75 | 0.7 / 1.7 | 20 + 43 |
| 3 | 160 k → 43 k | 144 (192) | 24 / 55 | 0.7 / 1.7 | 17 + 38 |
| 4 to 8 | 115 k in all | 144 (192) | 20 / 50 | 0.5 / 1.2 | 13 + 30 |

About 250 µs, and 40 for the perceptron behind it. Storing z of the first layer would move 82 MB more (20 µs) and save
1.2 GFLOP (17 µs): equal in time, so memory decides, and it is fused. At stride 1 fusing would multiply the products by
9, and at stride 2 with 16 input channels it would cost 13 µs to save 5: there z is stored. A series at stride 2 is
fused always, since only half as much again is computed. Lotka-Volterra (2001 × 2, 8 channels): 150 MB and 2.5 GFLOP,
padded, in all, about 75 µs, 20 for gathering and 50 for the perceptron.

Neither bytes nor products are the whole story for tiles this narrow: instructions are issued for every address, mask
and shuffle. Counted in the machine code for compute capability 9.0, times the number of tiles, at four instructions a
clock on each of 132 multiprocessors at 1.7 GHz, a member's step is at least

| | first layer, forward + backward | 2 | 3 | the rest | in all |
|---|---|---|---|---|---|
| Spatial SIR | 15 + 17 | 30 | 22 | 19 | 103 |
| Lotka-Volterra | 10 + 10 | 22 | 22 | 36 | 100 |

microseconds. That is why divisions are multiplications, slopes are applied once, and places of maxima are floats until
they are stored.

Measured on an H200 in a stack of 10, forward + backward (`benchmarks/convolutions.py`):

| | first layer | 2 | 3 | the rest | in all | predicted |
|---|---|---|---|---|---|---|
| Spatial SIR | 44 + 47 | 27 + 49 | 21 + 44 | 22 + 43 | 297 | 250 |
| Lotka-Volterra | 13 + 21 | 12 + 27 | 12 + 26 | 21 + 48 | 183 | 95 |

The first layer of Spatial SIR and weights everywhere are as predicted or a quarter slower. Lotka-Volterra takes twice
the bytes' time: with 8 outputs the instructions decide, as their count said.
"""

from __future__ import annotations

__all__ = ["TILES", "Tile", "backward", "forward", "prepare"]

import dataclasses
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from . import kernels
from .convolutions import padded, pooled, stride


@dataclasses.dataclass(frozen=True)
class Tile:
    """How a kernel is cut.

    Arguments:
        block: how many positions a program takes at a time.
        warps: of a program.
        stages: of its pipeline of reads.
        splits: for `weigh`, how many programs share the positions of a member.
    """

    block: int
    warps: int
    stages: int = 1
    splits: int = 64


#: How each kernel is cut; "weigh_8" would be for 8 outputs, "weigh" for all others. Fixed, rather than tuned when a
#: kernel first runs: the order of sums would depend on the timing. The best of those that `benchmarks/convolutions.py`
#: tries on an H200.
TILES: dict[str, Tile] = {
    "convolve": Tile(128, 4),
    "fused": Tile(128, 4),
    "pool": Tile(64, 4),
    "unpool": Tile(64, 4),
    "weigh": Tile(32, 1, splits=64),
    "weigh_8": Tile(64, 2, splits=128),
    "weigh_first": Tile(32, 1, splits=256),
    "standardise": Tile(256, 4),
}


def cut(name: str, outputs: int) -> Tile:
    """How a kernel is cut for so many outputs."""
    return TILES.get(f"{name}_{outputs}", TILES[name])


def prepare(x: Tensor, loc: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """What the first layer reads.

    Arguments:
        x: observations of any dtype, with shape `(M or 1, N, I, H, W)` or `(M or 1, N, T, I)`.
        loc: with shape `(M, I)`.
        scale: with shape `(M, I)`.
        dtype: of the result.

    Returns:
        Shape `(M, N, H, W, C)`, H = 1 for a series: standardised, then a channel of ones, then zeros up to a power of
        two (at least 4, so that reads are wide).
    """
    members, inputs = loc.shape
    x, loc, scale = x.contiguous(), _rows_together(loc), _rows_together(scale)
    x = x.view(torch.uint8) if x.dtype == torch.bool else x
    image = x.ndim == 5
    height, width = (x.shape[3], x.shape[4]) if image else (1, x.shape[2])
    images, area = x.shape[1], height * width
    out = torch.empty(members, images, height, width, padded(inputs), dtype=dtype, device=x.device)
    tile = TILES["standardise"]
    kernels.standardise[(triton.cdiv(images * area, tile.block), members)](
        x,
        loc,
        scale,
        out,
        images,
        area,
        x.stride(0) if x.shape[0] > 1 else 0,
        x.stride(1),
        area if image else 1,
        1 if image else inputs,
        loc.stride(0),
        scale.stride(0),
        INPUTS=inputs,
        CHANNELS=out.shape[-1],
        BLOCK=tile.block,
        num_warps=tile.warps,
    )
    return out


def forward(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], precision: str, fuse: bool | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """All layers: each SELU(max-pool(weight ∗ x + bias)), of stride 2, 1, 2, ….

    Arguments:
        x: from `prepare`, with shape `(M, N, H, W, C)`.
        weights: of each layer, with shape `(M, O, I, KH, 3)`, KH 1 or 3; the first has I ≤ C.
        biases: of each layer, with shape `(M, O)`.
        precision: of the products, "tf32", "tf32x3" or "ieee"; without effect if x is in bfloat16.
        fuse: whether z stays out of memory; None decides by the predictions above.

    Returns:
        The output of each layer with shape `(M, N, HO, WO, O)`, and the places of its maxima, in bytes.
    """
    outs, indices = [], []
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        out, index = _layer(x, weight, bias, stride(i), precision, fuse)
        outs.append(out)
        indices.append(index)
        x = out
    return outs, indices


def backward(
    gradient: Tensor,
    x: Tensor,
    weights: Sequence[Tensor],
    outs: Sequence[Tensor],
    indices: Sequence[Tensor],
    precision: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of all weights and biases from that of the last output; see `forward` for the arguments."""
    last = outs[-1]
    gradient = (gradient * torch.where(last > 0, kernels.LAMBDA.value, last + kernels.LAMBDA_ALPHA.value)).to(x.dtype)
    gradient = gradient.contiguous()
    of_weights: list[Tensor] = []
    of_biases: list[Tensor] = []
    for i in reversed(range(len(weights))):
        below = x if i == 0 else outs[i - 1]
        if i > 0:
            gradient = _unpool(gradient, indices[i], below, weights[i], stride(i))
        of_weight, of_bias = _weigh(gradient, indices[i], below, weights[i], stride(i), precision, gather=i == 0)
        of_weights.insert(0, of_weight)
        of_biases.insert(0, of_bias)
        if i > 0:
            handed = torch.empty_like(below)
            _convolve(gradient, weights[i], None, below, handed, None, 1, precision)
            gradient = handed
    return of_weights, of_biases


def pays(step: int, rows: int, channels: int) -> bool:
    """Whether keeping z out of memory is worth computing it several times; see the predictions above."""
    return step == 2 and (rows == 1 or channels <= 4)


def _layer(
    x: Tensor, weight: Tensor, bias: Tensor, step: int, precision: str, fuse: bool | None
) -> tuple[Tensor, Tensor]:
    """y and the places of the maxima."""
    members, images, height, width, channels = x.shape
    outputs, rows = weight.shape[1], weight.shape[3]
    if pays(step, rows, channels) if fuse is None else fuse:
        out, index = _pooled_like(x, outputs, step, rows)
        _convolve(x, weight, bias, None, out, index, step, precision)
        return out, index
    z = x.new_empty(members, images, height, width, outputs)
    _convolve(x, weight, bias, None, z, None, 1, precision)
    return _pool(z, step, rows)


def _pool(z: Tensor, step: int, rows: int) -> tuple[Tensor, Tensor]:
    """y and the places of the maxima of z."""
    members, images, height, width, outputs = z.shape
    out, index = _pooled_like(z, outputs, step, rows)
    high, wide = out.shape[2:4]
    tile = cut("pool", outputs)
    kernels.pool[(triton.cdiv(images * high * wide, tile.block), members)](
        z,
        out,
        index,
        images,
        height,
        width,
        high,
        wide,
        *divisor(high * wide),
        *divisor(wide),
        OUTPUTS=outputs,
        KH=rows,
        STRIDE=step,
        BLOCK=tile.block,
        BLOCK_O=triton.next_power_of_2(outputs),
        num_warps=tile.warps,
    )
    return out, index


def _pooled_like(x: Tensor, outputs: int, step: int, rows: int) -> tuple[Tensor, Tensor]:
    """Room for y and for the places of the maxima."""
    members, images, height, width, _ = x.shape
    shape = (members, images, pooled(height, step) if rows == 3 else height, pooled(width, step), outputs)
    return x.new_empty(shape), torch.empty(shape, dtype=torch.uint8, device=x.device)


def _unpool(gradient: Tensor, index: Tensor, below: Tensor, weight: Tensor, step: int) -> Tensor:
    """∂/∂z, with shape `(M, N, H, W, O)`."""
    members, images, height, width, _ = below.shape
    outputs, rows = weight.shape[1], weight.shape[3]
    out = below.new_empty(members, images, height, width, outputs)
    tile = cut("unpool", outputs)
    kernels.unpool[(triton.cdiv(images * height * width, tile.block), members)](
        gradient,
        index,
        out,
        images,
        height,
        width,
        index.shape[2],
        index.shape[3],
        *divisor(height * width),
        *divisor(width),
        OUTPUTS=outputs,
        KH=rows,
        STRIDE=step,
        BLOCK=tile.block,
        BLOCK_O=triton.next_power_of_2(outputs),
        num_warps=tile.warps,
    )
    return out


def _weigh(
    gradient: Tensor, index: Tensor, x: Tensor, weight: Tensor, step: int, precision: str, gather: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of a layer's weight and bias."""
    members, images, height, width, channels = x.shape
    _, outputs, inputs, rows, _ = weight.shape
    tile = cut("weigh_first" if gather else "weigh", outputs)
    blocks = triton.cdiv(images * height * width, tile.block)
    splits = min(tile.splits, blocks)
    partial = torch.empty(members, splits, rows * 3 * channels + 1, outputs, dtype=torch.float32, device=x.device)
    taps = together(channels)
    kernels.weigh[(splits, members, rows if taps == 1 else 1)](
        x,
        gradient,
        index,
        partial,
        images,
        height,
        width,
        index.shape[2],
        index.shape[3],
        *divisor(height * width),
        *divisor(width),
        triton.cdiv(blocks, splits),
        CHANNELS=channels,
        OUTPUTS=outputs,
        KH=rows,
        TAPS=taps,
        STRIDE=step if gather else 1,  # one kernel for both where it makes no difference
        GATHER=gather,
        BLOCK=tile.block,
        BLOCK_K=side(taps * channels),
        BLOCK_O=side(outputs),
        PRECISION=precision,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    total = partial.sum(1)
    of_weight = total[:, :-1].view(members, rows, 3, channels, outputs)[:, :, :, :inputs].permute(0, 4, 3, 1, 2)
    return of_weight.contiguous(), total[:, -1].contiguous()


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    below: Tensor | None,
    out: Tensor,
    index: Tensor | None,
    step: int,
    precision: str,
) -> None:
    """z of x; with an `index`, y and places; with what is `below` instead of a bias, the gradient handed down."""
    members, images, height, width, channels = x.shape
    weight = _rows_together(weight)
    flip = below is not None
    outputs, inputs = (weight.shape[2], weight.shape[1]) if flip else (weight.shape[1], weight.shape[2])
    bias = weight if bias is None else _rows_together(bias)
    taps = together(channels)
    tile = cut("convolve" if index is None else "fused", outputs)
    kernels.convolve[(triton.cdiv(images * out.shape[2] * out.shape[3], tile.block), members)](
        x,
        weight,
        bias,
        out if below is None else below,
        out,
        out if index is None else index,
        images,
        height,
        width,
        out.shape[2],
        out.shape[3],
        *divisor(out.shape[2] * out.shape[3]),
        *divisor(out.shape[3]),
        weight.stride(0),
        bias.stride(0),
        INPUTS=inputs,
        CHANNELS=channels,
        OUTPUTS=outputs,
        KH=weight.shape[3],
        TAPS=taps,
        STRIDE=step,
        POOL=index is not None,
        FLIP=flip,
        BLOCK=tile.block,
        BLOCK_K=side(taps * channels),
        BLOCK_O=side(outputs),
        PRECISION=precision,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _rows_together(parameter: Tensor) -> Tensor:
    """Members may lie apart, as in the flat buffer; what belongs to one has to lie together."""
    return parameter if parameter[0].is_contiguous() else parameter.contiguous()


def divisor(number: int) -> tuple[int, int]:
    """m and s with p // number = p · m >> s for all 0 ≤ p < 2²⁹.

    With 2ᵏ ≤ number < 2ᵏ⁺¹, s = 30 + k and m = ⌈2ˢ / number⌉ = (2ˢ + e) / number, 0 ≤ e < number, so that p · m / 2ˢ
    exceeds p / number by p e / (number 2ˢ) < 2²⁹ / 2ˢ ≤ 1 / number, which no floor notices.

    Example:
        >>> m, s = divisor(2500)
        >>> all(p * m >> s == p // 2500 for p in (0, 2499, 2500, 536_869_999, 536_870_000, 2**29 - 1))
        True
    """
    shift = 29 + number.bit_length()
    return -(-(1 << shift) // number), shift


def together(channels: int) -> int:
    """How many taps of a row go into one product: three narrow ones fill it; wide ones do without the padding."""
    return 1 if channels >= 16 else 3


def side(size: int) -> int:
    """The side of a product: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))
