"""A trial before the training: observations that say nothing, and what a user's own module makes of real ones."""

from __future__ import annotations

__all__ = ["try_out"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.networks import Module, Network, UserNetwork
from equipoise.support.errors import warn

from .data import take

#: Pairs that a user's module is tried on.
PAIRS = 64
#: Rows that are compared at a time.
CHUNK = 1 << 12


def try_out(
    net: Network, pairs: Sequence[tuple[Tensor, Any]], rows: Tensor, constants: Sequence[tuple[Tensor, Tensor]]
) -> None:
    """Warn of observations that do not vary and of dropout, and refuse a module whose numbers are not finite.

    Arguments:
        net: the first network.
        pairs: the data sets, `(N, D)` and `(N, *x_shape)`.
        rows: those that train.
        constants: what standardises x, mean and deviation of each data set.
    """
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
            "weight_decay= regularise instead",
        )
    for (theta, x), scaling in zip(pairs, constants, strict=True):
        _refuse_trouble(net, what, theta, x, rows[:PAIRS], scaling)


def _constant(x: Any) -> bool:
    """Whether all observations are the same; rows are read until two differ."""
    first = _array(x[:1])
    return all(bool((_array(x[low : low + CHUNK]) == first).all()) for low in range(0, len(x), CHUNK))


def _array(rows: Any) -> Any:
    return rows if isinstance(rows, Tensor) else np.asarray(rows)


@torch.enable_grad()
def _refuse_trouble(
    net: Network, what: str, theta: Tensor, x: Any, rows: Tensor, scaling: tuple[Tensor, Tensor]
) -> None:
    """An error where a user's module, with weights as a member begins with them, gives what no training survives."""
    device, (mean, std) = net.prior.device, scaling
    p = {name: w.to(device, theta.dtype).requires_grad_() for name, w in net.init([(0, 0)], [mean], [std]).items()}
    some, observed = theta[rows].to(device), torch.as_tensor(take(x, rows)).to(device)
    if what == "embedding":
        out, called = net.embed(p, observed.unsqueeze(0))[0], "features"
    else:
        out, called = net.log_ratio(p, some, observed)[0].unsqueeze(1), "log-ratios"
    bad = ~out.isfinite().all(1)
    if bool(bad.any()):
        scaled = what == "embedding" and not (bool((mean == 0).all()) and bool((std == 1).all()))
        raise ValueError(
            f"the {what} gives NaN or infinite {called} for {int(bad.sum())} of the first {len(rows)} training pairs, "
            f"before any training; the first is row {int(rows[bad.nonzero()[0]])}."
            + (
                " It is given x minus its mean, over its deviation, so that some numbers are negative; "
                "standardize=False gives it x as it is."
                if scaled
                else ""
            )
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
