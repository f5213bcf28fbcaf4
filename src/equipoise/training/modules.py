"""Embeddings and networks before training: chosen by x, or a user's own, tried on some pairs."""

from __future__ import annotations

__all__ = ["EMBEDDINGS", "SHORT", "as_embedding", "ranked_columns", "try_out"]

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.networks import Convolutional, Embedding, Flat, Module, Network, UserNetwork, choose_embedding
from equipoise.support.errors import warn
from equipoise.support.words import did_you_mean

from .data import take
from .inputs import Pairs
from .standardize import rows_to_read

#: Observations of at most this many numbers are flattened in `eq.fit`, whatever their shape.
SHORT = 64
#: At most this many columns are carried as normal scores too: those of the largest kurtosis.
MOST_RANKED = 64
#: Columns whose tails are measured at a time.
BLOCK = 64
#: The embeddings that have a name.
EMBEDDINGS = FLATTEN, CONVOLUTION = "flatten", "convolution"
#: Pairs that a user's module is tried on.
TRIED_PAIRS = 64
#: Rows of x that are compared at a time.
COMPARED_ROWS = 1 << 12


def as_embedding(
    embedding: nn.Module | Embedding | str | None,
    x_shape: tuple[int, ...],
    progress: bool | None,
    short: int = 0,
    x: Any = None,
) -> Embedding:
    """The embedding that was given, checked against the shape of x, or the one that suits x.

    Arguments:
        embedding: a module or an embedding; "flatten", "convolution", or None to choose between them.
        x_shape: the shape of one observation.
        progress: False to print nothing about the choice.
        short: series and images of at most this many numbers are flattened.
        x: observations with shape `(N, *x_shape)`, of which at most 65,536 decide which columns are read as normal
            scores too, if they are flattened; None for no such columns.
    """
    if isinstance(embedding, Embedding):
        if embedding.x_shape != x_shape:
            raise ValueError(f"the embedding reads observations of shape {embedding.x_shape}, but x has {x_shape}")
        return embedding
    if isinstance(embedding, nn.Module):
        return Module(embedding, x_shape)
    if embedding is not None and not isinstance(embedding, str):
        raise TypeError(f"embedding is an nn.Module, a word, or None to choose by shape; got {embedding!r}")
    if embedding not in (None, *EMBEDDINGS):
        raise ValueError(did_you_mean(embedding, EMBEDDINGS, "embedding"))
    if embedding == CONVOLUTION and len(x_shape) == 1:
        raise ValueError(f"convolutions read a series or an image, and x has shape {x_shape}; x[..., None] is a series")
    numbers = math.prod(x_shape)
    if len(x_shape) == 1 or embedding == FLATTEN or (embedding is None and numbers <= short):
        chosen: Embedding = Flat(x_shape, () if x is None else ranked_columns(x))
    else:
        chosen = choose_embedding(x_shape)
    if progress is not False:
        for line in _description(chosen, given=embedding is not None):
            print(line, file=sys.stderr)
    if isinstance(chosen, Convolutional) and embedding is None and (doubt := _shape_warning(x_shape)):
        warn(doubt)
    return chosen


def _description(chosen: Embedding, given: bool) -> Iterator[str]:
    """What to print about an embedding: how it reads x, unless that was `given`, and which columns are ranked."""
    x_shape, numbers = chosen.x_shape, math.prod(chosen.x_shape)
    if given:
        pass
    elif isinstance(chosen, Convolutional):
        kind = "a series (time, channels)" if len(x_shape) == 2 else "an image (channels, height, width)"
        other = f'embedding="{FLATTEN}" reads {numbers:,} numbers in no order'
        yield f"observations of shape {x_shape} are read as {kind}: {chosen}; {other}"
    elif len(x_shape) > 1:
        other = (
            f'embedding="{CONVOLUTION}" reads them by convolutions' if len(x_shape) < 4 else "embedding= for another"
        )
        yield f"observations of shape {x_shape} are few numbers and are flattened; {other}"
    elif numbers > SHORT:
        yield (
            f"observations of shape {x_shape} are read as {numbers:,} numbers in no order, without an embedding; "
            "if they are a series, x[..., None] says so, to training and to the posterior"
        )
    if isinstance(chosen, Flat) and chosen.ranked:
        yield f"{len(chosen.ranked):,} of {numbers:,} numbers of x are heavy-tailed, and are read as normal scores too"


def ranked_columns(x: Any) -> tuple[int, ...]:
    """The heavy-tailed columns of x, flattened: |skewness| > 1 or kurtosis > 6 (3 for a normal) and more than two
    distinct values, in at most 65,536 rows; at most `MOST_RANKED`, those with the largest kurtosis.

    Example:
        >>> x = torch.linspace(-2, 2, 100)[:, None]
        >>> ranked_columns(torch.cat([x, x.exp(), (x > 1.9).float(), (8 * x).sinh()], 1))
        (1, 3)
    """
    rows = take(x, torch.arange(min(len(x), rows_to_read(1 << 16, x.shape[1:]))))
    heavy: dict[int, float] = {}
    for block, values in enumerate(rows.flatten(1).split(BLOCK, 1)):
        z = values.double()  # in double precision the whole would be large
        several = ((z > z.amin(0)) & (z < z.amax(0))).any(0)
        z = z - z.mean(0)
        z = z / torch.where(several, z.square().mean(0).sqrt(), 1.0)
        skewness, kurtosis = z.pow(3).mean(0), z.pow(4).mean(0)
        found = several & ((skewness.abs() > 1) | (kurtosis > 6))
        columns = enumerate(zip(found.tolist(), kurtosis.tolist(), strict=True), BLOCK * block)
        heavy |= {column: size for column, (is_heavy, size) in columns if is_heavy}
    return tuple(sorted(sorted(heavy, key=heavy.__getitem__, reverse=True)[:MOST_RANKED]))


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
        doubtful = channels > time
        if min(x_shape) >= 16 or (time == channels and time >= 8):
            there, swap, doubtful = "images of one channel", "x[:, None]", True
    elif len(x_shape) == 3:
        channels, height, width = x_shape
        here, there = "(channels, height, width)", "(height, width, channels)"
        swap = "x.permute(0, 3, 1, 2), or numpy.moveaxis(x, -1, 1),"
        # Few pixels either way, as in (3, 2, 2), say nothing.
        doubtful = (channels > max(height, width) or width < min(channels, height)) and min(channels, height) >= 4
    else:
        return ""
    if not doubtful:
        return ""
    return (
        f"observations of shape {x_shape} are read as {here}. If they are {there}, give {swap} to training and to the "
        f'posterior; if the shape is meant, embedding="{CONVOLUTION}" says so'
    )


def try_out(net: Network, pairs: Sequence[Pairs], rows: Tensor, scales: Sequence[tuple[Tensor, ...]]) -> None:
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
    net: Network, what: str, theta: Tensor, x: Any, rows: Tensor, scaling: tuple[Tensor, ...]
) -> None:
    """Raise if a user's module, with first weights, gives values or gradients that are not finite."""
    device, first = net.prior.device, net.init([(0, 0)], *([c] for c in scaling))
    p = {name: w.to(device, theta.dtype).requires_grad_() for name, w in first.items()}
    some, observed = theta[rows].to(device), torch.as_tensor(take(x, rows)).to(device)
    if what == "embedding":
        out, called = net.embed(p, observed.unsqueeze(0))[0], "features"
    else:
        out, called = net.log_ratio(p, some, observed)[0].unsqueeze(1), "log-ratios"
    bad = ~out.isfinite().all(1)
    if bool(bad.any()):
        scaled = what == "embedding" and bool((scaling[1] != 1).any())
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
