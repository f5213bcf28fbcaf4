"""A user's task: a prior and a simulator in a Python file, called `FILE.py:NAME`.

The name is that of an object with `prior` and `simulate(theta)` or `simulate(theta, seed)`, from `(N, D)` to
`(N, *x_shape)`, and, where it is known, `log_posterior(theta, x)`; or of a class or function that makes one, whose
arguments are the task's options. It is identified by the source of its file: results of an experiment belong to one
version of it. A `label`, where the object has one, is its name in plots and reports, and the names of the prior's
parameters are theirs.
"""

from __future__ import annotations

__all__ = ["UserTask"]

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import Prior, as_prior
from equipoise.support.imports import named_object, source_of
from equipoise.support.randomness import isolated

from .abstract_task import Task


class UserTask(Task):
    """An object of a user's file as a task.

    Arguments:
        name: `FILE.py:NAME` or `MODULE:NAME`.
        code: the digest of the file that is meant; None for the file as it is.
        options: arguments of the class or function of that name.
    """

    prior: Prior  # type: ignore[assignment]

    def __init__(self, name: str, code: str | None = None, **options: Any) -> None:
        self.name = name  # type: ignore[misc]
        found = named_object(name, "a task")
        self._code = hashlib.blake2b(source_of(name, "a task"), digest_size=8).hexdigest()
        if code not in (None, self._code):
            raise ValueError(
                f"the file of {name} has changed since this was planned; begin again with the same command"
            )
        made = callable(found) and not hasattr(found, "prior")
        if inspect.isclass(found) or made:
            found = found(**options)
        elif options:
            raise TypeError(f"{name} is an object and takes no options; a class or a function would")
        for part in ("prior", "simulate"):
            if not hasattr(found, part):
                raise TypeError(f"{name} has no {part}; a task has prior and simulate(theta), perhaps log_posterior")
        self._found, self._given = found, options
        self.label = str(getattr(found, "label", name))  # type: ignore[misc]
        self.prior = as_prior(found.prior)
        self.has_exact_posterior = hasattr(found, "log_posterior")
        self.parameters = self.prior.names or ()  # type: ignore[misc]
        with isolated(0):
            theta = self.prior.sample((2,))
        x = self.simulate(theta)
        if x.ndim < 2 or len(x) != 2:
            raise ValueError(
                f"{name}.simulate takes a batch of parameters with shape (N, {self.prior.dim}) and returns N "
                f"observations; for N = 2 it returned shape {tuple(x.shape)}"
            )
        self.x_shape = tuple(x.shape[1:])

    @property
    def options(self) -> dict[str, Any]:
        return {**self._given, "code": self._code}

    @property
    def simulator(self) -> Callable[..., Any]:
        simulate: Callable[..., Any] = self._found.simulate
        return simulate

    @property
    def kept(self) -> bool:
        return True

    def simulate(self, theta: Any, seed: int = 0) -> Tensor:
        seeded = {"seed": seed} if "seed" in inspect.signature(self.simulator).parameters else {}
        with isolated(seed):
            x = self.simulator(torch.as_tensor(theta), **seeded)
        return torch.as_tensor(np.asarray(x) if not isinstance(x, Tensor) else x).float()

    def log_posterior(self, theta: Any, x: Any) -> Tensor:
        self._need_posterior()
        theta, x = torch.as_tensor(theta), torch.as_tensor(x)
        lead = torch.broadcast_shapes(theta.shape[:-1], x.shape[: x.ndim - len(self.x_shape)])
        theta, x = theta.expand(*lead, theta.shape[-1]), x.expand(*lead, *self.x_shape)
        rows = self._found.log_posterior(theta.reshape(-1, theta.shape[-1]), x.reshape(-1, *self.x_shape))
        return torch.as_tensor(rows).reshape(lead)

    def _draw(self, theta: np.ndarray, key: np.ndarray, dtype: Any) -> np.ndarray:
        return self.simulate(theta, int(key[0])).numpy().astype(dtype)
