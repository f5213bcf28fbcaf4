r"""The layers of the convolutional embedding, for a stack of members.

The embedding is a 1×1 convolution, then L times [3-convolution with padding 1, SELU, max-pooling of 3 with padding 1].
Three identities make it cheap without changing what it computes.

*The first two convolutions are one.* With no activation between them, u = W₁ x + b₁ at every pixel and

.. math:: z_o(s) = b_{2,o} + \sum_k \sum_c W_{2,ock}\, u_c(s + k)\, 1[s + k \text{ inside}]
    = b_{2,o} + \sum_k \sum_{i=0}^{I} W_{oik}\, x_i(s + k)\, 1[s + k \text{ inside}]

where :math:`x_I ≡ 1` is one more channel, :math:`W_{oik} = \sum_c W_{2,ock} W_{1,ci}` and
:math:`W_{oIk} = \sum_c W_{2,ock} b_{1,c}`. Padding puts zeros around u, bias included, and a channel of ones that is
padded with zeros does exactly that, at the borders too. For Spatial SIR a pixel's sum falls from 9·16 to 9·4 products,
at the layer that has three fifths of all pixels, and nothing is carried back to x. The gradients of W₁, b₁ and W₂ come
from that of W through a product of a few hundred numbers.

*Pooling goes first.* SELU increases, so the maximum of SELU is SELU of the maximum: a quarter of the exponentials after
a pooling of stride 2.

On a GPU with Triton the layers are kernels of our own, in `fused`, behind two operators that `torch.compile` and CUDA
graphs take as they are; everywhere else they are PyTorch's. Both compute the same numbers up to rounding.
"""

from __future__ import annotations

__all__ = ["PRECISIONS", "compose", "embed", "kernels_work", "layers"]

import functools
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from equipoise.support.errors import warn

#: How a GPU multiplies in the convolutions. "auto": in TF32 where PyTorch may, else in float32. "bf16" also stores
#: activations in 16 bits.
PRECISIONS = ("auto", "float32", "tf32", "bf16")
#: Kernels of our own serve up to so many channels; wider layers are large enough for PyTorch's.
WIDEST = 32
#: And up to so many places of a member's observations, which their arithmetic counts exactly.
MOST_POSITIONS = 1 << 29
#: How far from PyTorch's results the kernels may be in a first trial, relative to the largest value.
TRIAL = 1e-2
#: Whether kernels of our own are used where they can be.
KERNELS = True


def embed(
    x: Tensor, loc: Tensor, scale: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], precision: str = "auto"
) -> Tensor:
    """Features with shape `(M, N, C)` from observations as they are.

    Arguments:
        x: with shape `(M or 1, N, T, I)` or `(M or 1, N, I, H, W)`, of any dtype.
        loc: what is subtracted from x, with shape `(M, 1, I)` or `(M, I, 1, 1)`.
        scale: what x is then divided by, of the same shape.
        weights: of all convolutions, the 1×1 one first, each with shape `(M, C, *, 3)` or `(M, C, *, 3, 3)`.
        biases: of all convolutions, each with shape `(M, C)`.
        precision: one of `PRECISIONS`, for a GPU.
    """
    if x.ndim == 4:  # a series is an image of height 1
        weights = [w.unsqueeze(3) for w in weights]
    if _use_kernels(x, weights[0]):
        h = standardised(x, loc.flatten(1), scale.flatten(1), precision == "bf16")
        stack = [compose(weights[0], biases[0], weights[1]), *weights[2:]]
        h = convolutions(h, stack, list(biases[1:]), precision)[len(stack) - 1]
        return h.movedim(-1, 2).flatten(2).to(weights[0].dtype)
    h = (x.to(loc.dtype) - loc.unsqueeze(1)) / scale.unsqueeze(1)
    h = h.movedim(-1, 2).unsqueeze(3) if x.ndim == 4 else h
    return (layers if x.is_cuda else _one_by_one)(h, weights, biases).flatten(2)


def compose(first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    """The weight of the one convolution that a 1×1 convolution and the next one are.

    Arguments:
        first: the weight of the 1×1 convolution, with shape `(M, C, I, 1, 1)`.
        bias: its bias, with shape `(M, C)`.
        second: the weight of the next, with shape `(M, O, C, *taps)`.

    Returns:
        A weight with shape `(M, O, I + 1, *taps)`; the last input channel is one of ones.
    """
    members, outputs, _, *taps = second.shape
    affine = torch.cat([first.flatten(2), bias.unsqueeze(2)], dim=2)
    # (M, I+1, C) times (M, C, O·K), so that a stack is one batched product.
    weight = torch.bmm(affine.mT, second.flatten(3).transpose(1, 2).flatten(2))
    return weight.view(members, -1, outputs, *taps).transpose(1, 2)


def layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """The embedding's output, by PyTorch's convolutions.

    Arguments:
        x: standardised observations with shape `(M, N, I, H, W)`, H = 1 for a series.
        weights: of all convolutions, the 1×1 one first, with shape `(M, C, *, 3, 3)`; of a series, `(M, C, *, 1, 3)`.
        biases: of all convolutions, each with shape `(M, C)`.

    Returns:
        What the last pooling gives, with shape `(M, N, C, H, W)`.
    """
    members, rows = weights[0].shape[0], weights[1].shape[3]
    x = F.pad(x, [0, 0, 0, 0, 0, 1], value=1.0)
    # Members side by side, as groups of channels; channels last, which convolutions and poolings read in vectors.
    x = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
    for i, (weight, bias) in enumerate(zip(weights[1:], biases[1:], strict=True)):
        weight = (compose(weights[0], biases[0], weight) if i == 0 else weight).flatten(0, 1)
        weight = weight.contiguous(memory_format=torch.channels_last)
        x = F.conv2d(x, weight, bias.flatten(), padding=(rows // 2, 1), groups=members)
        x = F.max_pool2d(x, (rows, 3), (stride(i) if rows == 3 else 1, stride(i)), (rows // 2, 1))
        x = F.selu(x)
    return x.unflatten(1, (members, -1)).transpose(0, 1)


@torch.compiler.disable
def _one_by_one(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """What `layers` gives, one member after the other: on a CPU a grouped convolution takes half as long again.

    A compiler would make it slower still (Spatial SIR 338 ms a step instead of 184), so it is left out of this.
    """
    parts = zip(x.split(1), *(w.split(1) for w in (*weights, *biases)), strict=True)
    return torch.cat([layers(part, both[: len(weights)], both[len(weights) :]) for part, *both in parts])


def stride(layer: int) -> int:
    """Of the pooling: 2 in the layers 0, 2, …, 1 in the others."""
    return 2 - layer % 2


def pooled(side: int, stride: int) -> int:
    """How long a side is after a pooling of 3 with padding 1."""
    return (side - 1) // stride + 1


def padded(inputs: int) -> int:
    """Channels of a standardised x: its own, one of ones, zeros up to a power of two of at least 4, for wide reads."""
    return max(4, 1 << inputs.bit_length())


# --- operators --------------------------------------------------------------------------------------------------------


def _use_kernels(x: Tensor, first: Tensor) -> bool:
    """Kernels carry no gradient back to x, and know plain tensors, single precision and narrow layers only."""
    narrow = first.shape[1] <= WIDEST and first.shape[2] < WIDEST
    plain = type(x) is Tensor and not x.requires_grad and first.dtype == torch.float32
    return KERNELS and plain and narrow and x[0].numel() < MOST_POSITIONS and _constant(str(x.device))


@torch.compiler.assume_constant_result
def _constant(device: str) -> bool:
    return kernels_work(device)


@functools.cache
def kernels_work(device: str) -> bool:
    """Whether Triton is there for a device; on a CPU that is its interpreter, which tests use."""
    if importlib.util.find_spec("triton") is None:
        return False
    if torch.device(device).type == "cuda":
        able = torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)
        return able and agree(device)
    return device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


@torch.enable_grad()
def agree(device: str) -> bool:
    """Whether the kernels give what PyTorch gives, on a small stack; if not, or if they do not compile, a warning.

    Triton compiles at run time, with the machine's own C compiler and in whatever version came with PyTorch: better
    slow than wrong or not at all.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 8, 2, 1, 1), (2, 8, 8, 3, 3), (2, 8, 8, 3, 3)]
    weights = [torch.randn(s, generator=generator).div(3).to(device).requires_grad_() for s in shapes]
    biases = [torch.randn(2, 8, generator=generator).to(device).requires_grad_() for _ in shapes]
    x = torch.randn(2, 5, 2, 9, 11, generator=generator).to(device)
    try:
        zero, one = torch.zeros(2, 2, device=device), torch.ones(2, 2, device=device)
        stack = [compose(weights[0], biases[0], weights[1]), weights[2]]
        ours = convolutions(standardised(x, zero, one, False), stack, biases[1:], "float32")[1].movedim(-1, 2)
        theirs = layers(x, weights, biases)
        both = [[out.detach(), *torch.autograd.grad(out.square().sum(), [*weights, *biases])] for out in (ours, theirs)]
        found = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*both, strict=True))
        trouble = f"they are off by {found:.1e} of the largest value" if not found < TRIAL else ""
    except Exception as error:  # whatever a compiler may raise
        trouble = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if trouble:
        warn(
            f"our kernels for convolutions do not work on {device} ({trouble}); PyTorch's are used, which are slower",
        )
    return not trouble


@torch.library.custom_op("equipoise::standardised", mutates_args=())
def standardised(x: Tensor, loc: Tensor, scale: Tensor, half: bool) -> Tensor:
    """x as the first layer reads it, with shape `(M, N, H, W, C)`; see `fused.prepare`."""
    from . import fused

    return fused.prepare(x, loc, scale, torch.bfloat16 if half else torch.float32)


@standardised.register_fake
def _(x: Tensor, loc: Tensor, scale: Tensor, half: bool) -> Tensor:
    sides = (x.shape[3], x.shape[4]) if x.ndim == 5 else (1, x.shape[2])
    shape = (loc.shape[0], x.shape[1], *sides, padded(int(loc.shape[1])))
    return torch.empty(shape, dtype=torch.bfloat16 if half else torch.float32, device=x.device)


@torch.library.custom_op("equipoise::convolutions", mutates_args=())
def convolutions(x: Tensor, weights: list[Tensor], biases: list[Tensor], precision: str) -> list[Tensor]:
    """The outputs of all layers, then the places of their maxima; see `fused.forward`."""
    from . import fused

    outs, indices = fused.forward(x, weights, biases, _products(precision))
    return [*outs, *indices]


@convolutions.register_fake
def _(x: Tensor, weights: list[Tensor], biases: list[Tensor], precision: str) -> list[Tensor]:
    members, images, height, width, _ = x.shape
    outs = []
    for i, weight in enumerate(weights):
        height = pooled(height, stride(i)) if weight.shape[3] == 3 else height
        width = pooled(width, stride(i))
        outs.append(x.new_empty(members, images, height, width, weight.shape[1]))
    return [*outs, *(torch.empty_like(out, dtype=torch.uint8) for out in outs)]


@torch.library.custom_op("equipoise::convolutions_backward", mutates_args=())
def convolutions_backward(
    gradient: Tensor, x: Tensor, weights: list[Tensor], outs: list[Tensor], indices: list[Tensor], precision: str
) -> list[Tensor]:
    """The gradients of all weights, then of all biases; see `fused.backward`."""
    from . import fused

    of_weights, of_biases = fused.backward(gradient, x, weights, outs, indices, _products(precision))
    return [*of_weights, *of_biases]


@convolutions_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weights: list[Tensor], outs: list[Tensor], indices: list[Tensor], precision: str
) -> list[Tensor]:
    of_weights = [w.new_empty(w.shape) for w in weights]
    return [*of_weights, *(w.new_empty(w.shape[:2]) for w in weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, _, ctx.precision = inputs
    ctx.depth = len(weights)
    ctx.save_for_backward(x, *weights, *output)
    ctx.set_materialize_grads(False)  # only the last layer's output is used


def _carry_back(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    depth = ctx.depth
    x, *saved = ctx.saved_tensors
    weights, outs, indices = saved[:depth], saved[depth : 2 * depth], saved[2 * depth :]
    out = convolutions_backward(gradients[depth - 1], x, weights, outs, indices, ctx.precision)
    return None, out[:depth], out[depth:], None


convolutions.register_autograd(_carry_back, setup_context=_save)


def _products(precision: str) -> str:
    """How the tensor cores multiply: TF32, or float32 as three TF32 products."""
    if precision == "auto":
        try:
            allowed = torch.backends.cuda.matmul.allow_tf32
        except RuntimeError:  # chosen by the newer `fp32_precision`, and PyTorch forbids mixing the two
            allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
        precision = "tf32" if allowed else "float32"
    return "tf32x3" if precision == "float32" else "tf32"
