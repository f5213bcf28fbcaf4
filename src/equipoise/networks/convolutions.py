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

*Members that look at the same x share its convolution*: their first layers are more output channels of one.
"""

from __future__ import annotations

__all__ = ["compose", "layers"]

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def compose(first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
    """The weight of the one convolution that a 1×1 convolution and the next one are.

    Arguments:
        first: the weight of the 1×1 convolution, with shape `(M, C, I, 1)` or `(M, C, I, 1, 1)`.
        bias: its bias, with shape `(M, C)`.
        second: the weight of the next, with shape `(M, O, C, 3)` or `(M, O, C, 3, 3)`.

    Returns:
        A weight with shape `(M, O, I + 1, 3)` or `(M, O, I + 1, 3, 3)`; the last input channel is one of ones.
    """
    members, outputs, _, *taps = second.shape
    affine = torch.cat([first.flatten(2), bias.unsqueeze(2)], dim=2)
    # (M, I+1, C) times (M, C, O·K), so that a stack is one batched product.
    weight = torch.bmm(affine.mT, second.flatten(3).transpose(1, 2).flatten(2))
    return weight.view(members, -1, outputs, *taps).transpose(1, 2)


def layers(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """The embedding's output.

    Arguments:
        x: standardised observations with shape `(M or 1, N, I, *sides)`.
        weights: of all convolutions, the 1×1 one first.
        biases: of all convolutions, each with shape `(M, C)`.

    Returns:
        What the last pooling gives, with shape `(M, N, C, *sides)`.
    """
    members, dims = weights[0].shape[0], x.ndim - 3
    conv, pool = (F.conv1d, F.max_pool1d) if dims == 1 else (F.conv2d, F.max_pool2d)
    groups = x.shape[0]  # members side by side, as groups of channels; one group where they share x
    x = F.pad(x, [0, 0] * dims + [0, 1], value=1.0).transpose(0, 1).flatten(1, 2)
    last = dims == 2 and x.is_cuda  # a GPU's kernels read images with channels last
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    for i, (weight, bias) in enumerate(zip(weights[1:], biases[1:], strict=True)):
        weight = (compose(weights[0], biases[0], weight) if i == 0 else weight).flatten(0, 1)
        weight = weight.contiguous(memory_format=torch.channels_last) if last else weight
        x = conv(x, weight, bias.flatten(), padding=1, groups=groups if i == 0 else members)
        x = F.selu(pool(x, 3, stride=2 if i % 2 == 0 else 1, padding=1))
    return x.unflatten(1, (members, -1)).transpose(0, 1)
