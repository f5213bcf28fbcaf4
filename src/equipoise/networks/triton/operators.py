"""The convolutional layers as operators that `torch.compile` and CUDA graphs take as they are, without Triton's import.

A layer is SELU(max-pool(weight ∗ x + bias)); pooling has stride 2 in the layers 0, 2, … and 1 in the others.
"""

from __future__ import annotations

__all__ = ["convolutions", "kernels_agree", "kernels_work", "padded_channels", "pooled_side", "standardised", "stride"]

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from equipoise.networks.stacked_weights import allows_tf32
from equipoise.support.errors import warn

#: How far from PyTorch's results the kernels may be in a first trial, relative to the largest value.
TOLERANCE = 1e-2


def stride(layer: int) -> int:
    """The stride of a layer's pooling."""
    return 2 - layer % 2


def pooled_side(side: int, stride: int) -> int:
    """The length of a side after a pooling of 3 with padding 1."""
    return (side - 1) // stride + 1


def padded_channels(inputs: int) -> int:
    """Channels of a standardised x: its own, one of ones, and zeros up to a power of two of at least 4."""
    return max(4, 1 << inputs.bit_length())


@functools.cache
def kernels_work(device: str) -> bool:
    """Whether Triton is there for a device; on a CPU that is its interpreter, which tests use."""
    if importlib.util.find_spec("triton") is None:
        return False
    if torch.device(device).type == "cuda":
        able = torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)
        return able and kernels_agree(device)
    return device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"


@torch.enable_grad()
def kernels_agree(device: str) -> bool:
    """Whether the kernels give what PyTorch gives, on a small stack; a warning if not, or if they do not compile.

    Triton compiles at run time, with the machine's C compiler and in the version that came with PyTorch.
    """
    from equipoise.networks.convolutions import compose, layers

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
        trouble = f"they are off by {found:.1e} of the largest value" if not found < TOLERANCE else ""
    except Exception as error:  # whatever a compiler may raise
        trouble = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if trouble:
        warn(f"our kernels for convolutions do not work on {device} ({trouble}); PyTorch's are used, which are slower")
    return not trouble


@torch.library.custom_op("equipoise::standardised", mutates_args=())
def standardised(x: Tensor, loc: Tensor, scale: Tensor, half: bool) -> Tensor:
    """x as the first layer reads it, with shape `(M, N, H, W, C)`; see `launch.standardise`."""
    from . import launch

    return launch.standardise(x, loc, scale, torch.bfloat16 if half else torch.float32)


@standardised.register_fake
def _(x: Tensor, loc: Tensor, scale: Tensor, half: bool) -> Tensor:
    sides = (x.shape[3], x.shape[4]) if x.ndim == 5 else (1, x.shape[2])
    shape = (loc.shape[0], x.shape[1], *sides, padded_channels(int(loc.shape[1])))
    return torch.empty(shape, dtype=torch.bfloat16 if half else torch.float32, device=x.device)


@torch.library.custom_op("equipoise::convolutions", mutates_args=())
def convolutions(x: Tensor, weights: list[Tensor], biases: list[Tensor], precision: str) -> list[Tensor]:
    """The outputs of all layers, then the positions of their maxima; see `launch.forward`."""
    from . import launch

    outs, indices = launch.forward(x, weights, biases, _products(precision))
    return [*outs, *indices]


@convolutions.register_fake
def _(x: Tensor, weights: list[Tensor], biases: list[Tensor], precision: str) -> list[Tensor]:
    members, images, height, width, _ = x.shape
    outs = []
    for i, weight in enumerate(weights):
        height = pooled_side(height, stride(i)) if weight.shape[3] == 3 else height
        width = pooled_side(width, stride(i))
        outs.append(x.new_empty(members, images, height, width, weight.shape[1]))
    return [*outs, *(torch.empty_like(out, dtype=torch.uint8) for out in outs)]


@torch.library.custom_op("equipoise::convolutions_backward", mutates_args=())
def convolutions_backward(
    gradient: Tensor, x: Tensor, weights: list[Tensor], outs: list[Tensor], indices: list[Tensor], precision: str
) -> list[Tensor]:
    """The gradients of all weights, then of all biases; see `launch.backward`."""
    from . import launch

    of_weights, of_biases = launch.backward(gradient, x, weights, outs, indices, _products(precision))
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


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    depth = ctx.depth
    x, *saved = ctx.saved_tensors
    weights, outs, indices = saved[:depth], saved[depth : 2 * depth], saved[2 * depth :]
    out = convolutions_backward(gradients[depth - 1], x, weights, outs, indices, ctx.precision)
    return None, out[:depth], out[depth:], None


convolutions.register_autograd(_backward, setup_context=_save)


def _products(precision: str) -> str:
    """How the tensor cores multiply: TF32, or float32 as three TF32 products."""
    if precision == "auto":
        allowed = allows_tf32(torch.backends.cuda.matmul)
        if allowed is None:
            allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
        precision = "tf32" if allowed else "float32"
    return "tf32x3" if precision == "float32" else "tf32"
