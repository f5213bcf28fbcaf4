"""Embeddings and networks before training: chosen by the shape of x, or a user's own, tried on some pairs."""

from __future__ import annotations

__all__ = ["as_embedding", "try_out"]

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.networks import Embedding, Module, Network, UserNetwork, choose_embedding
from equipoise.support.errors import warn

from .data import take
from .inputs import Pairs

#: A vector of this length or more may well be a series.
LONG_VECTOR = 50
#: Pairs that a user's module is tried on.
TRIED_PAIRS = 64
#: Rows of x that are compared at a time.
COMPARED_ROWS = 1 << 12


def as_embedding(embedding: nn.Module | Embedding | None, x_shape: tuple[int, ...], progress: bool | None) -> Embedding:
    """The embedding that was given, checked against the shape of x; for None, what the shape suggests."""
    if isinstance(embedding, Embedding):
        if embedding.x_shape != x_shape:
            raise ValueError(f"the embedding reads observations of shape {embedding.x_shape}, but x has {x_shape}")
        return embedding
    if isinstance(embedding, nn.Module):
        return Module(embedding, x_shape)
    if embedding is not None:
        raise TypeError(f"embedding is an nn.Module, or None to choose by shape; got {embedding!r}")
    chosen, text = choose_embedding(x_shape), ""
    if len(x_shape) > 1:
        kind = "a series (time, channels)" if len(x_shape) == 2 else "an image (channels, height, width)"
        text = f"observations of shape {x_shape} are read as {kind}: {chosen}; pass embedding= for another"
    elif x_shape[0] >= LONG_VECTOR:
        text = (
            f"observations of shape {x_shape} are read as {x_shape[0]} numbers in no order, without an embedding; "
            "if they are a series, x[..., None] says so, to training and to the posterior"
        )
    if text and progress is not False:
        print(text, file=sys.stderr)
    if doubt := _shape_warning(x_shape):
        warn(doubt)
    return chosen


def _shape_warning(x_shape: tuple[int, ...]) -> str:
    """What to say of a shape whose channels are probably on another axis; "" where they are where they should be.

    Example:
        >>> _shape_warning((200, 1)), _shape_warning((3, 50, 50)), _shape_warning((3, 2, 2))
        ('', '', '')
        >>> _shape_warning((1, 200))[:61]
        'observations of shape (1, 200) are read as (time, channels). '
    """
    if len(x_shape) == 2:
        time, channels = x_shape
        here, there, swap = "(time, channels)", "(channels, time)", "x.swapaxes(1, 2)"
        doubtful, meant = channels > time, "embedding="
        if min(x_shape) >= 16 or (time == channels and time >= 8):
            there, swap, doubtful = "images of one channel", "x[:, None]", True
            meant = f"embedding=equipoise.networks.choose_embedding({x_shape})"
    elif len(x_shape) == 3:
        channels, height, width = x_shape
        here, there, meant = "(channels, height, width)", "(height, width, channels)", "embedding="
        swap = "x.permute(0, 3, 1, 2), or numpy.moveaxis(x, -1, 1),"
        # Few pixels either way, as in (3, 2, 2), say nothing.
        doubtful = (channels > max(height, width) or width < min(channels, height)) and min(channels, height) >= 4
    else:
        return ""
    if not doubtful:
        return ""
    return (
        f"observations of shape {x_shape} are read as {here}. If they are {there}, give {swap} to training and to the "
        f"posterior; if the shape is meant, {meant} says so"
    )


def try_out(net: Network, pairs: Sequence[Pairs], rows: Tensor, scales: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Warn of observations that do not vary and of dropout, and refuse a module whose numbers are not finite."""
    if any(_constant(x) for _, x in pairs):
        warn(
            "x is the same in all pairs: there is nothing to learn from it, and the posterior can only be the prior. "
            "Does the simulator use theta, and is x what it gave?",
        )
    own = net if isinstance(net, UserNetwork) else net.embedding
    if not isinstance(own, Module | UserNetwork):
        return
    what = "embedding" if isinstance(own, Module) else "network"
    if own.switched_off:
        warn(
            f"the dropout layers of the {what} are switched off: {', '.join(own.switched_off)}; early stopping and "
            "weight_decay regularise instead",
        )
    for (theta, x), scaling in zip(pairs, scales, strict=True):
        _refuse_not_finite(net, what, theta, x, rows[:TRIED_PAIRS], scaling)


def _constant(x: Any) -> bool:
    """Whether all observations are the same; rows are read until two differ."""
    blocks = torch.arange(len(x)).split(COMPARED_ROWS)
    first = take(x, blocks[0][:1])
    return all(bool((take(x, block) == first).all()) for block in blocks)


@torch.enable_grad()
def _refuse_not_finite(
    net: Network, what: str, theta: Tensor, x: Any, rows: Tensor, scaling: tuple[Tensor, Tensor]
) -> None:
    """Raise if a user's module, with first weights, gives values or gradients that are not finite."""
    device, (mean, std) = net.prior.device, scaling
    p = {name: w.to(device, theta.dtype).requires_grad_() for name, w in net.init([(0, 0)], [mean], [std]).items()}
    some, observed = theta[rows].to(device), torch.as_tensor(take(x, rows)).to(device)
    if what == "embedding":
        out, called = net.embed(p, observed.unsqueeze(0))[0], "features"
    else:
        out, called = net.log_ratio(p, some, observed)[0].unsqueeze(1), "log-ratios"
    bad = ~out.isfinite().all(1)
    if bool(bad.any()):
        scaled = what == "embedding" and bool((std != 1).any())
        raise ValueError(
            f"the {what} gives NaN or infinite {called} for {int(bad.sum())} of the first {len(rows)} training pairs, "
            f"before any training; the first is row {int(rows[bad.nonzero()[0]])}."
            + (" It is given standardised x; standardize=False gives it x as it is." if scaled else "")
        )
    if not out.requires_grad:
        return
    own = [name for name in p if name.startswith(("module.", "user."))]
    gradients = torch.autograd.grad(out.sum(), [p[name] for name in own], allow_unused=True)
    lost = [n.split(".", 1)[1] for n, g in zip(own, gradients, strict=True) if g is not None and not g.isfinite().all()]
    if lost:
        raise ValueError(
            f"the {called} of the {what} are finite, but not their gradient with respect to its weights "
            f"({', '.join(lost[:3])}): a square root or a logarithm at 0 does that. Add a small number inside it."
        )
