# mypy: disable-error-code="no-untyped-def"
r"""Triton kernels of a convolutional layer for a stack of members. Imported on a GPU only; `launch` launches them.

A layer is z = W ∗ x + b, y = SELU(max-pool z). Activations have shape `(M, N, H, W, C)`, channels last; a series is an
image of height 1 whose kernel has one row. Weights keep PyTorch's order `(M, O, I, taps)`. A program serves a tile of
positions of one member. The patch around a position is read tap by tap (from the first-level cache: neighbours read
the same rows), and each group of taps is one small matrix product, positions × (taps·C) by (taps·C) × O, on the
tensor cores. Products need sides of at least 16; narrower ones are padded with zeros.

*Forward.* `convolve` gives z, or, fused, y and which of the 3 (9) places of its window is the maximum, one byte per
output, the first of equals as in PyTorch. Fused, z never reaches memory, but is computed once for each window it
belongs to (9/4 times for an image, 3/2 for a series, at stride 2). `pool` does the second half alone.

*Backward.* With y = SELU(z*) the slope is a function of the output: λ where y > 0, y + λα elsewhere. So gradients are
passed on as g = ∂/∂y · SELU'(y), and

.. math:: \frac{∂}{∂z(s)} = \sum_{w ∋ s} 1[s \text{ is the maximum of } w]\; g(w),

a sum over at most 4 windows of an image at stride 2 and 9 at stride 1, gathered in a fixed order. The g of the layer
below is `convolve` of that with flipped, transposed weights, times the slope at the layer's input. ∂/∂W sums x-patch ×
∂/∂z over all positions: each of a fixed number of programs sums a stretch of them, and the partial sums are added
afterwards. No atomic operations, so the same inputs give the same bits. The first layer passes
nothing on; there `weight_gradient` gathers ∂/∂z itself, and it is never stored.

A maximum over values with a NaN is NaN, so that a member that diverges is noticed.
"""

from __future__ import annotations

__all__ = ["convolve", "pool", "standardise", "unpool", "weight_gradient"]

import triton
import triton.language as tl
from triton.language import constexpr

#: Sizes that change from layer to layer. Triton would compile a kernel anew for each pattern of ones and multiples of
#: 16 among them, and gain nothing: what makes reads wide is the number of channels, which it knows.
SIZES = ["images", "height", "width", "out_height", "out_width", "by_area", "area_shift", "by_width", "width_shift"]
SIZES_AND_STRIDES = [*SIZES, "weight_member", "bias_member"]
LAMBDA = constexpr(1.0507009873554804934193349852946)
LAMBDA_ALPHA = constexpr(1.0507009873554804934193349852946 * 1.6732632423543772848170429916717)


@triton.jit
def image_row_column(position, area, width, by_area, area_shift, by_width, width_shift):
    """The image, row and column of a position. Divisions are multiplications, see `launch.divisor`."""
    n = ((position.to(tl.int64) * by_area) >> area_shift).to(tl.int32)
    rest = position - n * area
    row = ((rest.to(tl.int64) * by_width) >> width_shift).to(tl.int32)
    return n, row, rest - row * width


@triton.jit
def selu(z):
    """λ z where z > 0, λα (exp z - 1) elsewhere; the exponential of what is not used must not overflow."""
    return tl.where(z > 0, LAMBDA * z, LAMBDA_ALPHA * (tl.exp(tl.where(z > 0, 0.0, z)) - 1.0))


@triton.jit
def patch(x, image, y, w, keep, tap, height, width, CHANNELS: constexpr, TAPS: constexpr, BLOCK_K: constexpr):
    """x at `TAPS` neighbours in row y from w + tap - 1 on: a tile (positions, BLOCK_K), zero outside the image.

    With channels last the neighbours of a row are one contiguous stretch of memory.
    """
    j = tl.arange(0, BLOCK_K)
    column = w[:, None] + (tap - 1 + j // CHANNELS)[None, :]
    inside = (keep & (y >= 0) & (y < height))[:, None] & (column >= 0) & (column < width)
    start = (image + y * width + w + (tap - 1)) * CHANNELS
    return tl.load(x + start[:, None] + j[None, :], mask=inside & (j < TAPS * CHANNELS)[None, :], other=0.0)


# fmt: off
@triton.jit
def tap_weights(weight, row, tap, INPUTS: constexpr, CHANNELS: constexpr, OUTPUTS: constexpr, KH: constexpr,
                TAPS: constexpr, BLOCK_K: constexpr, BLOCK_O: constexpr, FLIP: constexpr):
    """The weights (BLOCK_K, BLOCK_O) of `TAPS` taps from (row, tap) on; flipped, those of the gradient.

    CHANNELS is how many the patch has; the first INPUTS of them have weights.
    """
    j, o = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_O)[None, :]
    c, t = j % CHANNELS, row * 3 + tap + j // CHANNELS
    if FLIP:
        where = (c * OUTPUTS + o) * (KH * 3) + (KH * 3 - 1 - t)
    else:
        where = (o * INPUTS + c) * (KH * 3) + t
    return tl.load(weight + where, mask=(j < TAPS * CHANNELS) & (c < INPUTS) & (o < OUTPUTS), other=0.0)


@triton.jit
def convolved(x, weight, image, h, w, keep, height, width, INPUTS: constexpr, CHANNELS: constexpr, OUTPUTS: constexpr,
              KH: constexpr, TAPS: constexpr, FLIP: constexpr, BLOCK: constexpr, BLOCK_K: constexpr,
              BLOCK_O: constexpr, PRECISION: constexpr):
    """Σ over taps of weights × x around (h, w): a tile (BLOCK, BLOCK_O) in float32."""
    z = tl.zeros((BLOCK, BLOCK_O), tl.float32)
    for row in tl.static_range(KH):
        for group in tl.static_range(3 // TAPS):
            a = patch(x, image, h + (row - KH // 2), w, keep, group * TAPS, height, width, CHANNELS, TAPS, BLOCK_K)
            b = tap_weights(weight, row, group * TAPS, INPUTS, CHANNELS, OUTPUTS, KH, TAPS, BLOCK_K, BLOCK_O, FLIP)
            z = tl.dot(a, b.to(a.dtype), z, input_precision=PRECISION)
    return z


@triton.jit(do_not_specialize=SIZES_AND_STRIDES)
def convolve(x, weight, bias, below, out, index, images, height, width, out_height, out_width, by_area, area_shift,
             by_width, width_shift, weight_member, bias_member, INPUTS: constexpr, CHANNELS: constexpr,
             OUTPUTS: constexpr, KH: constexpr, TAPS: constexpr, STRIDE: constexpr, POOL: constexpr, FLIP: constexpr,
             BLOCK: constexpr, BLOCK_K: constexpr, BLOCK_O: constexpr, PRECISION: constexpr):
    """A convolution at a tile of output positions.

    With POOL, the SELU of its maxima and their positions. With FLIP, the gradient of the layer's input, which is
    `below`.
    """
    member = tl.program_id(1)
    weight += member.to(tl.int64) * weight_member
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = out_height * out_width
    keep = position < images * area
    n, i, j = image_row_column(position, area, out_width, by_area, area_shift, by_width, width_shift)
    image = (member * images + n).to(tl.int64) * (height * width)
    o = tl.arange(0, BLOCK_O)
    target = ((member.to(tl.int64) * (images * area) + position) * OUTPUTS)[:, None] + o[None, :]
    stored = keep[:, None] & (o < OUTPUTS)[None, :]
    if POOL:
        best = tl.full((BLOCK, BLOCK_O), float("-inf"), tl.float32)
        place = tl.zeros((BLOCK, BLOCK_O), tl.float32)
        for d in range(KH * 3):
            h, w = i * STRIDE + (d // 3 - KH // 2), j * STRIDE + (d % 3 - 1)
            inside = keep & (h >= 0) & (h < height) & (w >= 0) & (w < width)
            z = convolved(x, weight, image, h, w, inside, height, width, INPUTS, CHANNELS, OUTPUTS, KH, TAPS, FLIP,
                          BLOCK, BLOCK_K, BLOCK_O, PRECISION)
            z = tl.where(inside[:, None], z, float("-inf"))
            place = tl.where(z > best, d * 1.0, place)
            best = tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL)
        # The bias is the same at every place of a window.
        best += tl.load(bias + member.to(tl.int64) * bias_member + o, mask=o < OUTPUTS, other=0.0)[None, :]
        tl.store(out + target, selu(best).to(out.dtype.element_ty), mask=stored)
        tl.store(index + target, place.to(tl.int32).to(tl.uint8), mask=stored)
    else:
        z = convolved(x, weight, image, i, j, keep, height, width, INPUTS, CHANNELS, OUTPUTS, KH, TAPS, FLIP, BLOCK,
                      BLOCK_K, BLOCK_O, PRECISION)
        if FLIP:
            y = tl.load(below + target, mask=stored, other=0.0).to(tl.float32)
            z *= tl.where(y > 0, LAMBDA, y + LAMBDA_ALPHA)
        else:
            z += tl.load(bias + member.to(tl.int64) * bias_member + o, mask=o < OUTPUTS, other=0.0)[None, :]
        tl.store(out + target, z.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=SIZES)
def pool(z, out, index, images, height, width, out_height, out_width, by_area, area_shift, by_width, width_shift,
         OUTPUTS: constexpr, KH: constexpr, STRIDE: constexpr, BLOCK: constexpr, BLOCK_O: constexpr):
    """The SELU of the maxima of z over windows of 3 (3 × 3), and which place of the window each has."""
    member = tl.program_id(1)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = out_height * out_width
    keep = position < images * area
    n, i, j = image_row_column(position, area, out_width, by_area, area_shift, by_width, width_shift)
    image = (member * images + n).to(tl.int64) * (height * width)
    o = tl.arange(0, BLOCK_O)
    best = tl.full((BLOCK, BLOCK_O), float("-inf"), tl.float32)
    place = tl.zeros((BLOCK, BLOCK_O), tl.float32)  # a float until it is stored: bytes would be packed and unpacked
    for d in tl.static_range(KH * 3):
        h, w = i * STRIDE + (d // 3 - KH // 2), j * STRIDE + (d % 3 - 1)
        inside = (keep & (h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None] & (o < OUTPUTS)[None, :]
        where = ((image + h * width + w) * OUTPUTS)[:, None] + o[None, :]
        value = tl.load(z + where, mask=inside, other=float("-inf")).to(tl.float32)
        place = tl.where(value > best, d * 1.0, place)
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    target = ((member.to(tl.int64) * (images * area) + position) * OUTPUTS)[:, None] + o[None, :]
    stored = keep[:, None] & (o < OUTPUTS)[None, :]
    tl.store(out + target, selu(best).to(out.dtype.element_ty), mask=stored)
    tl.store(index + target, place.to(tl.int32).to(tl.uint8), mask=stored)


@triton.jit
def unpooled(gradient, index, image, h, w, keep, out_height, out_width, OUTPUTS: constexpr, KH: constexpr,
             STRIDE: constexpr, BLOCK: constexpr, BLOCK_O: constexpr):
    """∂/∂z at (h, w): the sum over the windows whose maximum it is, a tile (BLOCK, BLOCK_O).

    h lies in window i at place h + 1 - STRIDE·i, if that is 0, 1 or 2: at most two windows at stride 2, three at 1.
    """
    o = tl.arange(0, BLOCK_O)
    total = tl.zeros((BLOCK, BLOCK_O), tl.float32)
    for a in tl.static_range((4 - STRIDE) if KH == 3 else 1):
        for b in tl.static_range(4 - STRIDE):
            j = (w + 1) // STRIDE - b
            place = w + 1 - j * STRIDE
            valid = keep & (j >= 0) & (j < out_width) & (place < 3)
            i = h  # 0 for a series
            if KH == 3:
                i = (h + 1) // STRIDE - a
                down = h + 1 - i * STRIDE
                valid = valid & (i >= 0) & (i < out_height) & (down < 3)
                place += 3 * down
            where = ((image + i * out_width + j) * OUTPUTS)[:, None] + o[None, :]
            inside = valid[:, None] & (o < OUTPUTS)[None, :]
            won = tl.load(index + where, mask=inside, other=255).to(tl.int32) == place[:, None]
            # Losers are read as well: a mask that changes from entry to entry would make the reads narrow.
            total += tl.where(won, tl.load(gradient + where, mask=inside, other=0.0).to(tl.float32), 0.0)
    return total


@triton.jit(do_not_specialize=SIZES)
def unpool(gradient, index, out, images, height, width, out_height, out_width, by_area, area_shift, by_width,
           width_shift, OUTPUTS: constexpr, KH: constexpr, STRIDE: constexpr, BLOCK: constexpr, BLOCK_O: constexpr):
    """∂/∂z everywhere, stored."""
    member = tl.program_id(1)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    keep = position < images * area
    n, h, w = image_row_column(position, area, width, by_area, area_shift, by_width, width_shift)
    image = (member * images + n).to(tl.int64) * (out_height * out_width)
    total = unpooled(gradient, index, image, h, w, keep, out_height, out_width, OUTPUTS, KH, STRIDE, BLOCK, BLOCK_O)
    o = tl.arange(0, BLOCK_O)
    target = ((member.to(tl.int64) * (images * area) + position) * OUTPUTS)[:, None] + o[None, :]
    tl.store(out + target, total.to(out.dtype.element_ty), mask=keep[:, None] & (o < OUTPUTS)[None, :])


@triton.jit(do_not_specialize=[*SIZES, "tiles"])
def weight_gradient(x, gradient, index, partial, images, height, width, out_height, out_width, by_area, area_shift,
                    by_width, width_shift, tiles, CHANNELS: constexpr, OUTPUTS: constexpr, KH: constexpr,
                    TAPS: constexpr, STRIDE: constexpr, GATHER: constexpr, BLOCK: constexpr, BLOCK_K: constexpr,
                    BLOCK_O: constexpr, PRECISION: constexpr):
    """The sums of x-patch × ∂/∂z, and of ∂/∂z alone for the bias, over one stretch of a member's positions.

    A program keeps three sums. With TAPS = 3 each belongs to a row of the kernel; with TAPS = 1, where the channels
    of one tap fill a product, to a tap of the row that the program's last index names. With GATHER ∂/∂z is gathered
    from the pooled gradient here; without, `gradient` is ∂/∂z itself.
    """
    split, member, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    area = height * width
    o, k = tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_K)
    first = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    second = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    third = tl.zeros((BLOCK_K, BLOCK_O), tl.float32)
    alone = tl.zeros((BLOCK_O,), tl.float32)
    for tile in range(split * tiles, (split + 1) * tiles):
        position = tile * BLOCK + tl.arange(0, BLOCK)
        keep = position < images * area
        n, h, w = image_row_column(position, area, width, by_area, area_shift, by_width, width_shift)
        n = (member * images + n).to(tl.int64)
        image = n * area
        if GATHER:
            g = unpooled(gradient, index, n * (out_height * out_width), h, w, keep, out_height, out_width, OUTPUTS, KH,
                         STRIDE, BLOCK, BLOCK_O)
        else:
            where = ((image + h * width + w) * OUTPUTS)[:, None] + o[None, :]
            g = tl.load(gradient + where, mask=keep[:, None] & (o < OUTPUTS)[None, :], other=0.0).to(tl.float32)
        alone += tl.sum(g, axis=0)
        g = g.to(x.dtype.element_ty)
        if TAPS == 1:
            y = h + row - KH // 2
            a = patch(x, image, y, w, keep, 0, height, width, CHANNELS, 1, BLOCK_K)
            first = tl.dot(tl.trans(a), g, first, input_precision=PRECISION)
            a = patch(x, image, y, w, keep, 1, height, width, CHANNELS, 1, BLOCK_K)
            second = tl.dot(tl.trans(a), g, second, input_precision=PRECISION)
            a = patch(x, image, y, w, keep, 2, height, width, CHANNELS, 1, BLOCK_K)
            third = tl.dot(tl.trans(a), g, third, input_precision=PRECISION)
        else:
            a = patch(x, image, h - KH // 2, w, keep, 0, height, width, CHANNELS, 3, BLOCK_K)
            first = tl.dot(tl.trans(a), g, first, input_precision=PRECISION)
            if KH == 3:
                a = patch(x, image, h, w, keep, 0, height, width, CHANNELS, 3, BLOCK_K)
                second = tl.dot(tl.trans(a), g, second, input_precision=PRECISION)
                a = patch(x, image, h + 1, w, keep, 0, height, width, CHANNELS, 3, BLOCK_K)
                third = tl.dot(tl.trans(a), g, third, input_precision=PRECISION)
    partial += (member.to(tl.int64) * tl.num_programs(0) + split) * ((KH * 3 * CHANNELS + 1) * OUTPUTS)
    inside = (k < TAPS * CHANNELS)[:, None] & (o < OUTPUTS)[None, :]
    where = row * (3 * CHANNELS * OUTPUTS) + k[:, None] * OUTPUTS + o[None, :]
    tl.store(partial + where, first, mask=inside)
    if (TAPS == 1) | (KH == 3):
        tl.store(partial + TAPS * CHANNELS * OUTPUTS + where, second, mask=inside)
        tl.store(partial + 2 * TAPS * CHANNELS * OUTPUTS + where, third, mask=inside)
    if row == 0:
        tl.store(partial + KH * 3 * CHANNELS * OUTPUTS + o, alone, mask=o < OUTPUTS)


@triton.jit
def standardise(x, loc, scale, out, images, area, x_member, x_image, x_channel, x_place, loc_member, scale_member,
                INPUTS: constexpr, CHANNELS: constexpr, BLOCK: constexpr):
    """(x - loc) / scale with channels last, a channel of ones behind those of x, and zeros up to CHANNELS."""
    member = tl.program_id(1)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = (position < images * area)[:, None]
    c = tl.arange(0, CHANNELS)[None, :]
    n, place = (position // area).to(tl.int64), position % area
    source = x + member.to(tl.int64) * x_member + (n * x_image + place * x_place)[:, None] + c * x_channel
    value = tl.load(source, mask=keep & (c < INPUTS), other=0).to(tl.float32)
    mean = tl.load(loc + member.to(tl.int64) * loc_member + c, mask=c < INPUTS, other=0.0)
    spread = tl.load(scale + member.to(tl.int64) * scale_member + c, mask=c < INPUTS, other=1.0)
    value = tl.where(c < INPUTS, (value - mean) / spread, tl.where(c == INPUTS, 1.0, 0.0))
    target = ((member.to(tl.int64) * (images * area) + position) * CHANNELS)[:, None] + c
    tl.store(out + target, value.to(out.dtype.element_ty), mask=keep)
# fmt: on
