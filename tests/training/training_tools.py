"""Small problems, and trainings of a second, for the tests of training."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

import equipoise as eq
from equipoise.methods import resolve
from equipoise.training import PAPER, Member, fit_many

#: Warnings point at the line that called `fit`, which is here.
CALLER = __file__
PRIOR = eq.BoxUniform(-torch.ones(2), torch.ones(2))
#: An improvement has to be so large that learning rates fall within a few epochs.
SMALL = dataclasses.replace(PAPER, batch_size=32, epochs=10, patience=0, threshold=0.9)
BY_THEMSELVES = ("epochs", "batch_size", "keep")
TRAINING = [f.name for f in dataclasses.fields(eq.Settings) if f.name not in BY_THEMSELVES]


def toy(n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    """θ and θ with noise, each with shape `(n, 2)`."""
    g = torch.Generator().manual_seed(seed)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, theta + 0.3 * torch.randn(n, 2, generator=g)


def pairs(n: int = 160, seed: int = 0) -> tuple[Tensor, Tensor]:
    """θ with shape `(n, 2)`, and θ and its squares with noise, with shape `(n, 4)`."""
    g = torch.Generator().manual_seed(seed)
    theta = 2 * torch.rand(n, 2, generator=g) - 1
    return theta, torch.cat([theta, theta**2], 1) + 0.3 * torch.randn(n, 4, generator=g)


def quick(
    theta: object, x: object, method: Any = "bnpe_init", hidden: tuple[int, ...] = (16, 16), **options: Any
) -> eq.Posterior:
    """`eq.fit` with a small network; names of `eq.Settings` are passed on in `settings`."""
    settings = eq.Settings(**{name: options.pop(name) for name in TRAINING if name in options})
    defaults: dict[str, Any] = {"prior": PRIOR, "members": 1, "epochs": 2, "batch_size": 32, "progress": False}
    return eq.fit(theta, x, method=resolve(method).but(hidden=hidden), settings=settings, **(defaults | options))


def train(members: list[Member], data: list[tuple[Any, Any]], **options: Any) -> list[eq.Posterior]:
    """`fit_many` with small networks."""
    small = [dataclasses.replace(m, method=m.method.but(hidden=(16, 16))) for m in members]
    options = {"prior": PRIOR, "settings": SMALL, "device": "cpu", "progress": False} | options
    return fit_many(small, data, **options)  # type: ignore[return-value]  # None where a member diverged


def same_weights(a: eq.Posterior, b: eq.Posterior) -> bool:
    """Whether two posteriors are the same to the last bit."""
    return a.stack.keys() == b.stack.keys() and all(torch.equal(w, b.stack[n]) for n, w in a.stack.items())
