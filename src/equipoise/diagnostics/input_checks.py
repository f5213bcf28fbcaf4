"""What `diagnose` refuses and what it warns about, with the reason and the remedy."""

from __future__ import annotations

__all__ = ["check_mixture", "checked_pairs", "unnormalised", "warn_if_unlike_training"]

from typing import Any

import torch
from torch import Tensor

from equipoise.support.arrays import as_tensor
from equipoise.support.errors import warn

from .surrogates import Surrogate

#: Fewer pairs than this support no statement about coverage.
MIN_PAIRS = 50
#: Numbers of the observations that are compared with those of training at once.
PIECE = 1 << 20


def checked_pairs(theta: Any, x: Any, surrogate: Surrogate, what: str = "") -> tuple[Tensor, Tensor]:
    """θ with shape `(n, D)` and x with shape `(n, *x_shape)`, on the CPU or where they were, or a ValueError.

    `what` stands before their names in it.
    """
    theta, x = as_tensor(theta, f"{what}theta").detach(), as_tensor(x, f"{what}x").detach()
    if theta.ndim != 2:
        raise ValueError(f"{what}theta should have shape (n, D), one row per pair, got {tuple(theta.shape)}")
    n = len(theta)
    if x.ndim == 0 or len(x) != n:
        raise ValueError(
            f"{what}theta has {n} rows and x has shape {tuple(x.shape)}: each theta needs the x simulated from it"
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
            which = surrogate.prior.outside(theta[rows[0]].to(surrogate.prior.device))
            raise ValueError(
                f"{len(rows)} of the {n} theta lie outside the prior (the first is pair {int(rows[0])}, "
                f"{theta[rows[0]].tolist()}{which and f' with {which}'}; the prior is {surrogate.prior}). "
                "Coverage is over pairs drawn from the prior and the simulator: "
                "eq.simulate(prior, simulator, 1000, seed=1)"
            )
    return theta, x


def warn_if_unlike_training(x: Tensor, surrogate: Surrogate) -> str:
    """Compare the observations with those of training, by mean and spread; the warning's text, or nothing."""
    if surrogate.x_reference is None:
        return ""
    shift, spread = _moments(x, *surrogate.x_reference)
    # A feature that never varied in training has scale 1 by convention and cannot be compared by its spread.
    varies = spread > 0
    # Heavy tails make single features jump in their spread, by a factor 4 as well, but not a fifth of all features; a
    # mean off by a standard deviation does not come from them.
    shifted, scaled = shift.abs() > 1, varies & ((spread > 4) | (spread < 0.25))
    if float(shifted.double().mean()) <= 0.05 and float(scaled.double().mean()) <= 0.2:
        return ""
    far = (shifted | scaled).double().mean()
    text = (
        f"the observations do not look like those the posterior was trained on: {100 * float(far):.0f}% of the "
        "features have a mean more than one standard deviation away, or a spread more than 4 times larger or smaller. "
        "Check that they come from the same simulator and prior; coverage says nothing about data of another kind"
    )
    warn(text)
    return text


def check_mixture(s: Surrogate, normalised: bool, mixture: bool) -> None:
    """Only normalised densities can be mixed."""
    if mixture and s.n_members > 1 and not normalised:
        raise ValueError(
            "the posteriors of this ensemble have no normalised density, so that their mixture has none at all: "
            "judge each of them, eq.diagnose(posterior.posteriors[0], ...), or all without it, "
            "eq.diagnose(posterior, ..., mixture=False)"
        )


def unnormalised(posterior: Any) -> str:
    """What is not known of a posterior whose density is not normalised."""
    return (
        f"the log_prob of this {type(posterior).__name__} is not normalised, it is off by a constant that differs from "
        "x to x: log posterior, gain over the prior, information, balance and entropy are not known. Coverage, SBC and "
        "TARP compare parameters at one x and do not need it"
    )


def _moments(x: Tensor, loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and spread of z = (x - loc) / scale over pairs and over the axes that the reference does not tell apart.

    A reference by channel holds for a channel as a whole: at a single position of a series with a trend, or of an
    image with a border, mean and spread are others. The observations are converted a piece at a time.
    """
    shape = x.shape[1:]
    reference = torch.Size([1] * (len(shape) - loc.ndim) + list(loc.shape))
    loc, scale = loc.double().reshape(reference), scale.double().reshape(reference)
    axes = [0, *(1 + i for i, size in enumerate(reference) if size == 1)]
    total, squares = (torch.zeros(reference, dtype=torch.float64) for _ in range(2))
    least, most = torch.full_like(total, torch.inf), torch.full_like(total, -torch.inf)
    for piece in x.split(max(1, PIECE // max(1, shape.numel()))):
        z = (piece.cpu().double() - loc).div_(scale)
        least = torch.minimum(least, z.amin(axes, keepdim=True)[0])
        most = torch.maximum(most, z.amax(axes, keepdim=True)[0])
        total += z.sum(axes, keepdim=True)[0]
        squares += z.square_().sum(axes, keepdim=True)[0]
    count = len(x) * shape.numel() / reference.numel()
    mean = total / count
    # What is constant has a spread of 0, whatever rounding makes of the squares.
    spread = (squares / count - mean.square()).clamp_min(1e-300).sqrt()
    return mean.flatten(), torch.where(most > least, spread, 0.0).flatten()
