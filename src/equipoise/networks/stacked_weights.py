"""The weights of a stack of members: tensors with a leading member axis, in one flat buffer.

A stack of M networks of one shape is a dictionary of tensors with shape `(M, *shape)`. Training keeps it as one
buffer with shape `(M, P)`, so that an optimiser step is a handful of element-wise operations over everything, with a
learning rate per row. `Layout` says where each parameter lies in a row. Views are cut with one `split`, whose gradient
is one concatenation; cutting with slices would make the gradient of each view as large as the whole buffer.

Some entries are not trained: the constants that standardise x, and weights that an autoregressive mask holds at
zero. They lie in the same buffer, and `Layout.trainable` is 0 there. Each parameter is padded to a multiple of 128
bytes, since a matrix product reads aligned rows up to twice as fast.
"""

from __future__ import annotations

__all__ = ["Layout", "StackedWeights", "allows_tf32", "dense", "matmul_precision", "selu", "stack_members"]

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

#: Parameters begin at multiples of this many entries.
ALIGN = 32

#: The parameters of M networks: name -> tensor with shape `(M, *shape)`.
StackedWeights = dict[str, Tensor]


class Layout:
    """Where each named parameter lies in a row of the flat buffer.

    Arguments:
        shapes: the shape of each parameter of one member.
        masks: for parameters that are not trained everywhere, a tensor of zeros and ones that broadcasts to the shape.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int]], masks: Mapping[str, Tensor] | None = None) -> None:
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.padded = [-(-size // ALIGN) * ALIGN for size in self.sizes]
        self.size = sum(self.padded)
        everywhere = dict.fromkeys(self.shapes, torch.ones(())) | dict(masks or {})
        self.trainable = self.flatten({n: everywhere[n].float().expand(1, *s) for n, s in self.shapes.items()})[0]
        self.constant = {name for name, mask in everywhere.items() if not bool(mask.any())}

    def cut(self, flat: Tensor) -> StackedWeights:
        """The parameters in a buffer with shape `(M, P)`, as views; without a gradient where nothing is trained."""
        members = flat.shape[0]
        parts = zip(self.shapes.items(), self.sizes, flat.split(self.padded, dim=1), strict=True)
        views = {}
        for (name, shape), size, part in parts:
            # Most sizes are multiples of the alignment, and a slice of everything would still copy its gradient.
            view = (part if part.shape[1] == size else part[:, :size]).view(members, *shape)
            views[name] = view.detach() if name in self.constant else view
        return views

    def flatten(self, stack: Mapping[str, Tensor]) -> Tensor:
        """The buffer with shape `(M, P)` from parameters with shape `(M, *shape)`."""
        parts = zip(self.shapes, self.sizes, self.padded, strict=True)
        return torch.cat([F.pad(stack[name].reshape(-1, n), (0, padded - n)) for name, n, padded in parts], dim=1)


def stack_members(members: Sequence[Mapping[str, Tensor]]) -> StackedWeights:
    """A stack from the parameters of each member."""
    return {name: torch.stack([m[name] for m in members]) for name in members[0]}


@contextmanager
def matmul_precision(tf32: bool) -> Iterator[None]:
    """Whether a GPU's matrix products and convolutions are in TF32, inside this block."""
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    changed = [s for s in switches if allows_tf32(s) == (not tf32)]
    for switch in changed:
        switch.allow_tf32 = tf32
    try:
        yield
    finally:
        for switch in changed:
            switch.allow_tf32 = not tf32


def allows_tf32(switch: Any) -> bool | None:
    """Whether a part of PyTorch may use TF32; None where the user has chosen by the newer `fp32_precision`."""
    try:
        return bool(switch.allow_tf32)
    except RuntimeError:  # PyTorch forbids mixing the two
        return None


def selu(h: Tensor) -> Tensor:
    """SELU, in the place of h where no gradient is asked for; h must not be used afterwards."""
    return F.selu(h, inplace=not torch.is_grad_enabled())


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer for each member.

    Arguments:
        x: inputs with shape `(M, *, I)`.
        weight: with shape `(M, O, I)`.
        bias: with shape `(M, O)`.

    Returns:
        Outputs with shape `(M, *, O)`.
    """
    rows = x.flatten(1, -2)
    if len(rows) == len(weight) == 1 and not torch.is_grad_enabled():
        # A batched product would be slower, and start from a copy of the bias to every row.
        one = rows[0], weight[0].mT
        out = (torch.mm(*one) if bias is None else torch.addmm(bias[0], *one)).unsqueeze(0)
    elif bias is None:
        out = torch.bmm(rows, weight.mT)
    elif torch.compiler.is_compiling():  # a compiler fuses the sum with the activation that follows
        out = torch.bmm(rows, weight.mT) + bias.unsqueeze(1)
    else:
        out = torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return out.unflatten(1, x.shape[1:-1])
