r"""One step for all members of a stack.

The state of a stack is a handful of buffers with a leading member axis: the weights `flat` (M, P), Adam's two
moments, a learning rate a member. A step gathers each member's batch, evaluates the log-ratios of all rolls, sums
the members' losses (each depends on its own row of `flat` alone, so the gradient of the sum holds each member's
gradient in its row), and applies

.. math:: m ← β_1 m + (1-β_1) g,\quad v ← β_2 v + (1-β_2) g^2,\quad
    w ← w - η \frac{m/(1-β_1^t)}{\sqrt{v/(1-β_2^t)} + ε} - η d\, w

element-wise over the buffer: Adam, with weight decay d as in AdamW. Per-member means, learning rates and gradient
norms are all that a member ever sees, so it never feels its neighbours.

`torch.compile` makes few kernels of it where that pays back. Members are a symbolic dimension, and the size of the data
is none at all, so one compilation serves stacks that shrink and budgets that grow. On a GPU the whole step, gather
included, is captured in a CUDA graph: small networks otherwise spend their time waiting for launches.
"""

from __future__ import annotations

__all__ = ["Program", "State", "compiler_available", "program"]

import dataclasses
import importlib.util
import itertools
import json
import shutil
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.losses import Objective, objective_terms
from equipoise.networks import Network
from equipoise.support.errors import warn

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8


@dataclasses.dataclass
class State:
    """The buffers of a stack of M members that a step changes in place."""

    flat: Tensor  # (M, P) weights
    moment_1: Tensor  # (M, P)
    moment_2: Tensor  # (M, P)
    steps: Tensor  # () how many steps were taken
    lr: Tensor  # (M,)
    active: Tensor  # (M,) bool
    loss_sum: Tensor  # (M,) of the epoch so far
    balance_sum: Tensor  # (M,)

    @staticmethod
    def fresh(flat: Tensor, learning_rate: float) -> State:
        """The state before the first step."""
        members = flat.shape[0]
        row = flat.new_zeros(members)
        return State(
            flat=flat,
            moment_1=torch.zeros_like(flat),
            moment_2=torch.zeros_like(flat),
            steps=flat.new_zeros(()),
            lr=torch.full_like(row, learning_rate),
            active=torch.ones(members, dtype=torch.bool, device=flat.device),
            loss_sum=row.clone(),
            balance_sum=row.clone(),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The buffers by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def select(self, keep: Tensor) -> State:
        """The state of some of the members."""
        return State(**{n: t if t.ndim == 0 else t[keep].clone() for n, t in self.tensors().items()})


class Functions(NamedTuple):
    """What a stack computes, as it is or compiled."""

    gradients: Callable[..., tuple[Tensor, Tensor, Tensor]]
    ratios: Callable[..., Tensor]
    limit: Callable[..., Tensor]
    update: Callable[..., None]


@dataclasses.dataclass
class Program:
    """What a stack runs, for one network and one list of kinds of objectives; `fast` is compiled."""

    network: Network
    kinds: tuple[Objective, ...]
    rolls: int
    plain: Functions
    fast: Functions | None

    def step(
        self,
        state: State,
        batch: tuple[Tensor, Tensor],
        trainable: Tensor,
        kind: Tensor,
        strength: Tensor,
        weight_decay: float,
        clip: float | None,
    ) -> None:
        """Take one step in place; `trainable` has shape `(1, P)`, `kind` and `strength` shape `(M,)`."""
        gradient, loss, balance = self._run("gradients", state.flat, *batch, kind, strength)
        state.steps += 1
        if clip is not None:
            gradient = self._run("limit", gradient, trainable, clip)
        self._run(
            "update",
            state.flat,
            gradient,
            state.moment_1,
            state.moment_2,
            state.steps,
            state.lr,
            state.active,
            trainable,
            weight_decay,
        )
        state.loss_sum += loss
        state.balance_sum += balance

    def ratios(self, flat: Tensor, code: Tensor, x: Tensor) -> Tensor:
        """Log-ratios `(M, R, B)` of codes `(M or 1, R, B, E)` and observations `(M or 1, B, *x_shape)`."""
        return self._run("ratios", flat, code, x)

    def _run(self, name: str, *arguments: Any) -> Any:
        """A compiler that fails costs speed and not the training: the plain function then says what is wrong, if it is
        not the compiler."""
        plain = getattr(self.plain, name)
        if self.fast is None:
            return plain(*arguments)
        try:
            return getattr(self.fast, name)(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler may raise
            result = plain(*arguments)
            self.fast = None
            error = getattr(error, "inner_exception", error)
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            warn(
                f"PyTorch could not compile the training step ({type(error).__name__}: {reason}); it runs as it is, "
                "which is slower. compile=False does so from the start",
            )
            return result


def _limit(gradient: Tensor, trainable: Tensor, clip: float) -> Tensor:
    """Gradients whose norm, of each member's own, is at most `clip`.

    Apart from `_update`, because PyTorch 2.13 cannot compile the two together for a CPU.
    """
    norm = (gradient * trainable).square().sum(1, keepdim=True).sqrt()
    return gradient * (clip / (norm + 1e-6)).clamp(max=1.0)


def _update(
    flat: Tensor,
    gradient: Tensor,
    moment_1: Tensor,
    moment_2: Tensor,
    steps: Tensor,
    lr: Tensor,
    active: Tensor,
    trainable: Tensor,
    weight_decay: float,
) -> None:
    """Adam over the buffer, in place. A member that is not active gets the rate 0."""
    gradient.mul_(trainable)
    moment_1.lerp_(gradient, 1 - BETA_1)
    moment_2.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    size = (moment_2.sqrt() / (1 - BETA_2**steps).sqrt()).add_(EPS)
    rate = torch.where(active, lr, 0.0).unsqueeze(1)
    if weight_decay:
        flat.sub_(rate * weight_decay * trainable * flat)
    flat.addcdiv_(moment_1 * (rate / (1 - BETA_1**steps)), size, value=-1)


_PROGRAMS: dict[tuple[Any, ...], Program] = {}
_NUMBERS = itertools.count()


def program(
    network: Network, kinds: tuple[Objective, ...], rolls: int, compiled: bool, device: torch.device
) -> Program:
    """The program for a network and its objectives; made once a shape and kept, so that compiling is paid once.

    Not with a module of a user's in it, which may have changed since, in ways that no description tells.
    """
    layout = network.layout
    own = hasattr(network, "network") or hasattr(network.embedding, "module")
    key = (json.dumps(network.spec(), sort_keys=True), network.dim, kinds, rolls, compiled, device)
    if key in _PROGRAMS and not own:
        return _PROGRAMS[key]

    def ratios(flat: Tensor, code: Tensor, x: Tensor) -> Tensor:
        """Log-ratios `(M, R, B)` of codes `(M or 1, R, B, E)` and observations `(M or 1, B, *x_shape)`."""
        p = layout.cut(flat)
        return network.ratio(p, code, network.embed(p, x))

    def losses(flat: Tensor, code: Tensor, x: Tensor, kind: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rolled = torch.stack([code.roll(r, 1) for r in range(rolls)], dim=1)
        loss, balance = objective_terms(ratios(flat, rolled, x), kinds, kind, strength)
        return loss.sum(), loss, balance

    plain, fast = Functions(_gradients(losses), ratios, _limit, _update), None
    if compiled:
        number = next(_NUMBERS)
        quick = [_over_members(torch.compile(_copy(f, number))) for f in (losses, ratios, _limit, _update)]
        fast = Functions(_gradients(quick[0]), *quick[1:])
    made = Program(network, kinds, rolls, plain, fast)
    if not own:
        _PROGRAMS[key] = made
    return made


def _gradients(losses: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The gradient of the members' summed losses, their losses and their balance terms."""

    def gradients(flat: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = flat.detach().requires_grad_()
        total, loss, balance = losses(flat, *others)
        (gradient,) = torch.autograd.grad(total, flat)
        return gradient, loss.detach(), balance.detach()

    return gradients


def _copy(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The same function under another name. What the compiler knows of a function hangs on its code and its name: if
    networks of different sizes shared it, every size would become a symbol, and the ninth would not be compiled.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{number}")
    return types.FunctionType(code, function.__globals__, closure=function.__closure__)


def _over_members(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the compiler that the first dimension, the members, may change."""

    def call(*arguments: Any) -> Any:
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.ndim > 0 and argument.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(argument, 0)
        return function(*arguments)

    return call


def compiler_available(device: torch.device) -> bool:
    """Whether `torch.compile` can work here: a C++ compiler and Python's headers on the CPU, Triton on a GPU."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return False
    has_compiler = any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return has_compiler and headers.exists()
