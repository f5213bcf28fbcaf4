"""Launches of the kernels of the convolutional embedding, forward and backward.

Activations have shape `(M, N, H, W, C)`, H = 1 for a series. A `step` is the stride of a pooling, `rows` the height of
a convolution's kernel (1 for a series, 3 for an image), an `index` holds the positions of maxima in their windows.
"""

from __future__ import annotations

__all__ = ["TILES", "Tile", "backward", "forward", "should_fuse", "standardise"]

import dataclasses
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from . import kernels
from .operators import padded_channels, pooled_side, stride


@dataclasses.dataclass(frozen=True)
class Tile:
    """The sizes of a launch."""

    block: int  # positions per tile
    warps: int  # per program
    stages: int = 1  # of a program's pipeline of reads
    splits: int = 64  # programs that share the positions of a member, for `weight_gradient`


#: The tile of each kernel, the best of those that `benchmarks/convolutions.py` tries on an H200; "…_8" for 8 outputs.
#: Fixed, not tuned when a kernel first runs: the order of sums, and so their rounding, would depend on the timing.
TILES: dict[str, Tile] = {
    "convolve": Tile(128, 4),
    "fused": Tile(128, 4),
    "pool": Tile(64, 4),
    "unpool": Tile(64, 4),
    "weight_gradient": Tile(32, 1, splits=64),
    "weight_gradient_8": Tile(64, 2, splits=128),
    "weight_gradient_first": Tile(32, 1, splits=256),
    "standardise": Tile(256, 4),
}


def standardise(x: Tensor, loc: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The input of the first layer, with shape `(M, N, H, W, C)`.

    x, with shape `(M or 1, N, I, H, W)` or `(M or 1, N, T, I)`, standardised by loc and scale, each `(M, I)`; then a
    channel of ones, then zeros up to a power of two (at least 4, so that reads are wide).
    """
    members, inputs = loc.shape
    x, loc, scale = x.contiguous(), _contiguous_per_member(loc), _contiguous_per_member(scale)
    x = x.view(torch.uint8) if x.dtype == torch.bool else x
    image = x.ndim == 5
    height, width = (x.shape[3], x.shape[4]) if image else (1, x.shape[2])
    images, area = x.shape[1], height * width
    out = torch.empty(members, images, height, width, padded_channels(inputs), dtype=dtype, device=x.device)
    tile = TILES["standardise"]
    strides = x.stride(0) if x.shape[0] > 1 else 0, x.stride(1), area if image else 1, 1 if image else inputs
    kernels.standardise[(triton.cdiv(images * area, tile.block), members)](
        *(x, loc, scale, out, images, area, *strides, loc.stride(0), scale.stride(0)),
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
        x: from `standardise`, with shape `(M, N, H, W, C)`.
        weights: of each layer, with shape `(M, O, I, KH, 3)`, KH 1 or 3; the first has I ≤ C.
        biases: of each layer, with shape `(M, O)`.
        precision: of the products, "tf32", "tf32x3" or "ieee"; without effect if x is in bfloat16.
        fuse: whether z stays out of memory; None for `should_fuse`.

    Returns:
        The output of each layer with shape `(M, N, HO, WO, O)`, and the positions of its maxima, as bytes.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        found.append(_layer(found[-1][0] if found else x, weight, bias, stride(i), precision, fuse))
    return [out for out, _ in found], [index for _, index in found]


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
        found = _weight_gradient(gradient, indices[i], below, weights[i], stride(i), precision, gather=i == 0)
        of_weights.insert(0, found[0])
        of_biases.insert(0, found[1])
        if i > 0:
            of_below = torch.empty_like(below)
            _convolve(gradient, weights[i], None, below, of_below, None, 1, precision)
            gradient = of_below
    return of_weights, of_biases


def should_fuse(step: int, rows: int, channels: int) -> bool:
    """Whether keeping z out of memory is worth computing it once for each window it belongs to.

    At stride 1 products are multiplied by 9 (3 for a series), at stride 2 by 9/4 (3/2). For a first layer of 4 channels
    and for any series at stride 2 that takes no longer than moving z through memory.
    """
    return step == 2 and (rows == 1 or channels <= 4)


def _layer(
    x: Tensor, weight: Tensor, bias: Tensor, step: int, precision: str, fuse: bool | None
) -> tuple[Tensor, Tensor]:
    """y and the index of its maxima."""
    outputs, rows = weight.shape[1], weight.shape[3]
    if should_fuse(step, rows, x.shape[-1]) if fuse is None else fuse:
        out, index = _empty_pooled(x, outputs, step, rows)
        _convolve(x, weight, bias, None, out, index, step, precision)
        return out, index
    z = x.new_empty(*x.shape[:-1], outputs)
    _convolve(x, weight, bias, None, z, None, 1, precision)
    return _pool(z, step, rows)


def _empty_pooled(x: Tensor, outputs: int, step: int, rows: int) -> tuple[Tensor, Tensor]:
    """Uninitialised y and index."""
    members, images, height, width, _ = x.shape
    shape = (members, images, pooled_side(height, step) if rows == 3 else height, pooled_side(width, step), outputs)
    return x.new_empty(shape), torch.empty(shape, dtype=torch.uint8, device=x.device)


def _pool(z: Tensor, step: int, rows: int) -> tuple[Tensor, Tensor]:
    """y and the index of its maxima, from z."""
    outputs = z.shape[-1]
    out, index = _empty_pooled(z, outputs, step, rows)
    tile = _tile("pool", outputs)
    tensors = z, out, index
    kernels.pool[_grid(out, tile)](*tensors, *_sizes(z, out, positions=out), **_windows(tile, outputs, rows, step))
    return out, index


def _unpool(gradient: Tensor, index: Tensor, below: Tensor, weight: Tensor, step: int) -> Tensor:
    """∂/∂z, with shape `(M, N, H, W, O)`."""
    outputs, rows = weight.shape[1], weight.shape[3]
    out = below.new_empty(*below.shape[:-1], outputs)
    tile = _tile("unpool", outputs)
    sizes = _sizes(below, index, positions=below)
    kernels.unpool[_grid(below, tile)](gradient, index, out, *sizes, **_windows(tile, outputs, rows, step))
    return out


def _weight_gradient(
    gradient: Tensor, index: Tensor, x: Tensor, weight: Tensor, step: int, precision: str, gather: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of a layer's weight and bias."""
    members, images, height, width, channels = x.shape
    _, outputs, inputs, rows, _ = weight.shape
    tile = _tile("weight_gradient_first" if gather else "weight_gradient", outputs)
    blocks = triton.cdiv(images * height * width, tile.block)
    splits = min(tile.splits, blocks)
    partial = torch.empty(members, splits, rows * 3 * channels + 1, outputs, dtype=torch.float32, device=x.device)
    taps = taps_per_product(channels)
    kernels.weight_gradient[(splits, members, rows if taps == 1 else 1)](
        *(x, gradient, index, partial, *_sizes(x, index, positions=x), triton.cdiv(blocks, splits)),
        CHANNELS=channels,
        OUTPUTS=outputs,
        KH=rows,
        TAPS=taps,
        GATHER=gather,
        STRIDE=step if gather else 1,  # one kernel for both where it makes no difference
        **_product(tile, taps * channels, outputs, precision),
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
    """Write z of x to `out`; with an `index`, y; with `below` instead of a bias, the gradient of the layer's input."""
    channels, weight, flip = x.shape[-1], _contiguous_per_member(weight), below is not None
    outputs, inputs = (weight.shape[2], weight.shape[1]) if flip else (weight.shape[1], weight.shape[2])
    bias = weight if bias is None else _contiguous_per_member(bias)
    taps = taps_per_product(channels)
    tile = _tile("convolve" if index is None else "fused", outputs)
    tensors = x, weight, bias, out if below is None else below, out, out if index is None else index
    kernels.convolve[_grid(out, tile)](
        *(*tensors, *_sizes(x, out, positions=out), weight.stride(0), bias.stride(0)),
        INPUTS=inputs,
        CHANNELS=channels,
        OUTPUTS=outputs,
        KH=weight.shape[3],
        TAPS=taps,
        STRIDE=step,
        POOL=index is not None,
        FLIP=flip,
        **_product(tile, taps * channels, outputs, precision),
    )


def _tile(name: str, outputs: int) -> Tile:
    return TILES.get(f"{name}_{outputs}", TILES[name])


def _grid(positions: Tensor, tile: Tile) -> tuple[int, int]:
    """One program per tile of positions and member."""
    members, images, height, width, _ = positions.shape
    return triton.cdiv(images * height * width, tile.block), members


def _sizes(before: Tensor, after: Tensor, positions: Tensor) -> tuple[int, ...]:
    """`kernels.SIZES`: images, the sides before and after pooling, and divisors of positions that run over a tensor."""
    height, width = positions.shape[2:4]
    return (before.shape[1], *before.shape[2:4], *after.shape[2:4], *divisor(height * width), *divisor(width))


def _windows(tile: Tile, outputs: int, rows: int, step: int) -> dict[str, int]:
    """What the pooling kernels take."""
    sides = {"BLOCK": tile.block, "BLOCK_O": triton.next_power_of_2(outputs)}
    return {**sides, "OUTPUTS": outputs, "KH": rows, "STRIDE": step, "num_warps": tile.warps}


def _product(tile: Tile, inner: int, outputs: int, precision: str) -> dict[str, int | str]:
    """What kernels with matrix products take."""
    sides = {"BLOCK": tile.block, "BLOCK_K": tile_side(inner), "BLOCK_O": tile_side(outputs)}
    return {**sides, "PRECISION": precision, "num_warps": tile.warps, "num_stages": tile.stages}


def _contiguous_per_member(parameter: Tensor) -> Tensor:
    """Members may be strided, as in the flat buffer; the numbers of one have to be contiguous."""
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


def taps_per_product(channels: int) -> int:
    """How many taps of a row share a product: three narrow ones fill it; a wide one does without padding."""
    return 1 if channels >= 16 else 3


def tile_side(size: int) -> int:
    """The side of a matrix product: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))
