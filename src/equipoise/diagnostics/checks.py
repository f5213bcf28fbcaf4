"""What `diagnose` refuses and what it warns about, with the reason and the remedy."""

from __future__ import annotations

__all__ = ["checked_pairs", "warn_if_unlike_training"]

import warnings
from typing import Any

import torch
from torch import Tensor

from .adapters import Surrogate

#: Fewer pairs than this support no statement about coverage.
MIN_PAIRS = 50


def checked_pairs(theta: Any, x: Any, surrogate: Surrogate) -> tuple[Tensor, Tensor]:
    """θ with shape `(n, D)` and x with shape `(n, *x_shape)`, on the CPU or where they were, or a ValueError."""
    theta, x = _tensor(theta, "theta"), _tensor(x, "x")
    if theta.ndim != 2:
        raise ValueError(f"theta should have shape (n, D), one row a pair, got {tuple(theta.shape)}")
    n = len(theta)
    if x.ndim == 0 or len(x) != n:
        raise ValueError(
            f"theta has {n} rows and x has shape {tuple(x.shape)}: each theta needs the x simulated from it"
        )
    if surrogate.dim is not None and theta.shape[1] != surrogate.dim:
        raise ValueError(f"theta has {theta.shape[1]} parameter(s), but the posterior has {surrogate.dim}")
    if surrogate.x_shape is not None and tuple(x.shape[1:]) != surrogate.x_shape:
        raise ValueError(
            f"one observation here has shape {tuple(x.shape[1:])}, but the posterior was trained on {surrogate.x_shape}"
        )
    if n < MIN_PAIRS:
        raise ValueError(
            f"{n} pairs are too few to judge coverage: at least {MIN_PAIRS}, better 1000. Simulate more: "
            "pairs = eq.simulate(prior, simulator, 1000, seed=1)"
        )
    for name, values in (("theta", theta), ("x", x)):
        bad = ~values.isfinite().flatten(1).all(1) if values.is_floating_point() else torch.zeros(n, dtype=torch.bool)
        if bool(bad.any()):
            rows = bad.nonzero().squeeze(1)
            raise ValueError(
                f"{len(rows)} of the {n} pairs have NaN or infinite {name} (the first is pair {int(rows[0])}). Leave "
                "them out, if the posterior is never to be used on such data, or simulate again"
            )
    if surrogate.prior is not None:
        inside = surrogate.prior.contains(theta.to(surrogate.prior.device)).to(theta.device)
        if not bool(inside.all()):
            rows = (~inside).nonzero().squeeze(1)
            raise ValueError(
                f"{len(rows)} of the {n} theta lie outside the prior (the first is pair {int(rows[0])}, "
                f"{theta[rows[0]].tolist()}; the prior is {surrogate.prior}). Coverage is over pairs drawn from the "
                "prior and the simulator"
            )
    return theta, x


def warn_if_unlike_training(x: Tensor, surrogate: Surrogate) -> str:
    """Compare the observations with those of training, by mean and spread; the warning's text, or nothing."""
    if surrogate.x_reference is None:
        return ""
    loc, scale = (t.double() for t in surrogate.x_reference)
    z = ((x.double().cpu() - loc) / scale).flatten(1)
    # A feature that never varied in training has scale 1 by convention and cannot be compared by its spread.
    shift, spread = z.mean(0), z.std(0)
    varies = spread > 0
    # Heavy tails make single features jump; a mean off by a standard deviation, or a spread off by a factor 4, does
    # not come from them.
    far = ((shift.abs() > 1) | (varies & (spread > 4)) | (varies & (spread < 0.25))).double().mean()
    if float(far) <= 0.05:
        return ""
    text = (
        f"the observations do not look like those the posterior was trained on: {100 * float(far):.0f}% of the "
        "features have a mean more than one standard deviation away, or a spread more than 4 times larger or smaller. "
        "Check that they come from the same simulator and prior; coverage says nothing about data of another kind"
    )
    warnings.warn(text, stacklevel=3)
    return text


def _tensor(value: Any, name: str) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} should be a tensor or an array of numbers, got {type(value).__name__}") from error
    return tensor.detach()
