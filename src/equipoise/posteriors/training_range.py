"""What a posterior keeps of its training pairs: the range of x, and hashes of a few pairs.

A network answers for any x, and far from its training data often with a very narrow posterior. And pairs that it has
been trained on say nothing about its coverage. Numbers alone show neither mistake, so both give a warning.
"""

from __future__ import annotations

__all__ = ["describe_training", "warn_if_far", "warn_if_seen"]

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.support.errors import warn

#: How far outside the range of its training data an observation may lie, in units of that range: where the tails of x
#: are short, and where they are heavy, so that the next simulations go beyond by chance.
FAR, FAR_HEAVY = 0.5, 9.0
#: Tails are heavy if the range is so many times as wide as the middle nine tenths: 2 to 2.5 of a Gaussian, 3 of an
#: exponential.
HEAVY = 3.5
#: Of many observations so large a share may lie beyond `FAR`: up to 1.2% of new simulations do, of counts and
#: populations, where 500 trained. Those beyond `FAR_HEAVY` are told, however few they are.
BY_CHANCE = 0.02
#: How many numbers are looked at for it.
LOOKED_AT = 1 << 22
#: How many observations of a call are compared.
COMPARED = 4096
#: How many training pairs are kept, as hashes.
PAIRS = 64


def describe_training(theta: Tensor, x: Tensor, shape: tuple[int, ...]) -> dict[str, Any]:
    """The range of x and hashes of a few pairs, as plain data for a posterior's record.

    Arguments:
        theta: training parameters with shape `(N, D)`.
        x: their observations with shape `(N, *x_shape)`.
        shape: of the range: `x_shape` with 1 along the axes that share one.
    """
    axes = [0, *(a + 1 for a, size in enumerate(shape) if size == 1)]
    low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
    chosen = torch.linspace(0, len(theta) - 1, min(PAIRS, len(theta))).long()
    return {
        "shape": list(shape),
        "low": low.double().flatten().tolist(),
        "high": high.double().flatten().tolist(),
        "heavy": _heavy_tails(x, axes, high - low).flatten().tolist(),
        "pairs": [_fingerprint(theta[i], x[i]) for i in chosen.tolist()],
    }


def _heavy_tails(x: Tensor, axes: list[int], width: Tensor) -> Tensor:
    """Where tails are heavy, with the shape of `width`, the range over `axes`."""
    rows = torch.linspace(0, len(x) - 1, min(len(x), max(64, LOOKED_AT // x[0].numel()))).long()
    low, high = np.quantile(x[rows.to(x.device)].double().cpu().numpy(), [0.05, 0.95], axis=tuple(axes), keepdims=True)
    return width.cpu().double() > HEAVY * torch.from_numpy(np.asarray(high - low))


def warn_if_far(known: dict[str, Any] | None, x: Tensor) -> None:
    """Warn if an observation `(B, *x_shape)` lies far outside the range that x had in training."""
    if not known or not len(x):
        return
    x = x[:COMPARED].to(torch.get_default_dtype())
    low, high = (torch.tensor(known[n], dtype=x.dtype, device=x.device).view(known["shape"]) for n in ("low", "high"))
    # What never varied in training may differ by rounding.
    unit = torch.where(high > low, high - low, 1e-3 * high.abs()).clamp(min=torch.finfo(x.dtype).tiny)
    outside = torch.maximum(low - x, x - high) / unit
    very_far = outside.flatten(1).amax(1) > FAR_HEAVY
    if "heavy" in known:  # older files do not say
        heavy = torch.tensor(known["heavy"], device=x.device).view(known["shape"])
        outside = torch.where(heavy, outside * FAR / FAR_HEAVY, outside)
    worst, place = outside.flatten(1).max(1)
    far = worst > FAR
    if int(far.sum()) <= BY_CHANCE * len(x):
        far = very_far
    if not bool(far.any()):
        return
    row = int(worst.argmax())
    index = torch.unravel_index(place[row], x.shape[1:])
    element = ", ".join(str(int(i)) for i in index)
    limits = (float(t.expand(x.shape[1:])[index]) for t in (low, high))
    which = "the observation lies" if len(x) == 1 else f"{int(far.sum())} of {len(x)} observations lie"
    warn(
        f"{which} far outside the data the posterior was trained on: x[{element}] is {float(x[row][index]):g}, and was "
        "between {:g} and {:g} in training. There a network only guesses, however narrow its answer; check units and "
        "preprocessing, and whether the simulator can produce such data".format(*limits),
    )


def warn_if_seen(known: dict[str, Any] | None, theta: Tensor, x: Tensor) -> str:
    """Warn if pairs that are to judge a posterior have trained it; the warning's text, or ""."""
    if not known:
        return ""
    parameters = {word[:16] for word in known["pairs"]}
    rows = [i for i, row in enumerate(theta) if _hash(row) in parameters]
    whole = set(known["pairs"])
    seen = sum(_fingerprint(theta[i], x[i]) in whole for i in rows)
    if not seen:
        return ""
    text = (
        f"the posterior was trained on some of these pairs ({seen} of the {len(whole)} training pairs that it "
        "keeps are among them). Coverage on pairs that it was trained on says nothing; simulate new ones"
    )
    warn(text)
    return text


def _fingerprint(theta: Tensor, x: Tensor) -> str:
    return _hash(theta) + _hash(x)


def _hash(values: Tensor) -> str:
    """16 characters that tell a row of numbers, in single precision, from any other."""
    content = values.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()
