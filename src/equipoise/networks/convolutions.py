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

On a GPU with Triton the layers are our own kernels, in `triton`; everywhere else they are PyTorch's. Both compute the
same numbers up to rounding.
"""

from __future__ import annotations

__all__ = ["PRECISIONS", "compose", "embed", "kernels_work", "layers"]

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .compiler_marks import when_compiling
from .triton.operators import convolutions, kernels_work, standardised, stride

#: How a GPU multiplies in the convolutions. "auto": in TF32 where PyTorch may, else in float32. "bf16" also stores
#: activations in 16 bits.
PRECISIONS = ("auto", "float32", "tf32", "bf16")
#: The kernels serve layers of up to this many channels; wider ones are large enough for PyTorch's.
WIDEST = 32
#: They serve observations of up to this many numbers per member, where their integer arithmetic is exact.
MOST_POSITIONS = 1 << 29
#: Whether the kernels are used where they can be.
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
    """The weight of the one convolution that a 1×1 convolution and the next one are; its last channel is one of ones.

    Shape `(M, O, I + 1, *taps)` from the 1×1 convolution's weight `(M, C, I, 1, 1)` and bias `(M, C)`, and the next
    one's weight `(M, O, C, *taps)`.
    """
    members, outputs, _, *taps = second.shape
    affine = torch.cat([first.flatten(2), bias.unsqueeze(2)], dim=2)
    # (M, I+1, C) times (M, C, O·K), so that a stack is one batched product.
    weight = torch.bmm(affine.mT, second.flatten(3).transpose(1, 2).flatten(2))
    return weight.view(members, -1, outputs, *taps).transpose(1, 2)


def layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """What the last pooling gives, with shape `(M, N, C, H, W)`, by PyTorch's convolutions.

    Arguments:
        x: standardised observations with shape `(M, N, I, H, W)`, H = 1 for a series.
        weights: as in `embed`, those of a series with shape `(M, C, *, 1, 3)`.
        biases: as in `embed`.
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


@when_compiling(torch.compiler.disable)
def _one_by_one(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """What `layers` gives, one member after the other: on a CPU grouped convolutions and compiling are slower."""
    parts = zip(x.split(1), *(w.split(1) for w in (*weights, *biases)), strict=True)
    return torch.cat([layers(part, both[: len(weights)], both[len(weights) :]) for part, *both in parts])


def _use_kernels(x: Tensor, first: Tensor) -> bool:
    """Whether the kernels apply: no gradient with respect to x, plain tensors, single precision, narrow layers."""
    narrow = first.shape[1] <= WIDEST and first.shape[2] < WIDEST
    plain = type(x) is Tensor and not x.requires_grad and first.dtype == torch.float32
    return KERNELS and plain and narrow and x[0].numel() < MOST_POSITIONS and _constant(str(x.device))


@when_compiling(torch.compiler.assume_constant_result)
def _constant(device: str) -> bool:
    return kernels_work(device)
