r"""One step for all members of a stack.

The weights of M members lie in one buffer of shape (M, P). A step gathers each member's batch, evaluates the
log-ratios of all rolls, sums the members' losses (each depends on its own row of weights alone, so the gradient of the
sum holds each member's gradient in its row), and applies

.. math:: m ← β_1 m + (1-β_1) g,\quad v ← β_2 v + (1-β_2) g^2,\quad
    w ← w - η \frac{m/(1-β_1^t)}{\sqrt{v/(1-β_2^t)} + ε} - η d\, w

element-wise over the buffer: Adam, with weight decay d as in AdamW. Per-member means, learning rates and gradient
norms are all that enters, so a member is the same alone and in a stack.

`torch.compile` fuses it into a few kernels where that pays back. Members are a symbolic dimension, and the size of the
data does not enter, so one compilation serves stacks that shrink and budgets that grow. On a GPU the whole step, gather
included, is captured in a CUDA graph (`graphs`).
"""

from __future__ import annotations

__all__ = ["Plan", "Program", "compiler_available", "log_ratios", "program_for", "step", "update"]

import dataclasses
import importlib.util
import itertools
import json
import math
import shutil
import sysconfig
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.losses import Objective, objective_terms
from equipoise.networks import Network, apply_marks
from equipoise.support.errors import warn

from .batches import Batches
from .settings import Settings
from .state import MemberState

BETA_1, BETA_2, EPS = 0.9, 0.999, 1e-8
#: The share of a cycle in which the learning rate rises.
WARM_UP = 0.15


class Functions(NamedTuple):
    """What a stack computes, as it is or compiled."""

    losses: Callable[..., tuple[Tensor, Tensor, Tensor]]
    ratios: Callable[..., Tensor]
    update: Callable[..., None]


@dataclasses.dataclass
class Program:
    """The functions for one network and some kinds of objectives; `fast` are compiled."""

    kinds: tuple[Objective, ...]
    plain: Functions
    fast: Functions | None

    @property
    def functions(self) -> Functions:
        """The compiled ones, if there are any."""
        return self.fast or self.plain

    def retry_uncompiled(self, error: Exception, again: Callable[[], Any]) -> Any:
        """Retry without compiling. An error that the compiler did not cause is raised again."""
        if self.fast is None or isinstance(error, torch.OutOfMemoryError):
            raise error
        self.fast = None
        result = again()
        error = getattr(error, "inner_exception", error)
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        warn(
            f"PyTorch could not compile the training step ({type(error).__name__}: {reason}); it runs slower. "
            "settings=eq.Settings(compile=False) does so from the start",
        )
        return result


@dataclasses.dataclass(frozen=True)
class Plan:
    """What stays the same while a stack trains."""

    program: Program
    settings: Settings
    trainable: Tensor  # (1, P), 1 for weights that are trained and 0 for constants
    batch: int  # pairs in a batch
    sizes: tuple[int, ...]  # of the batches of an epoch
    least: int  # the fewest pairs that all objectives can be computed of
    piece: int  # pairs that are validated at once
    rolled: Tensor  # (R, V), which validation pair's θ stands in each place, for all rolls


def step(
    plan: Plan, state: MemberState, batches: Batches, size: int, taken: tuple[Tensor, Tensor] | None = None
) -> None:
    """Train all members on their next `size` pairs, or on a batch that was taken earlier, in place."""
    code, x = taken or batches.take(size)
    run, settings = plan.program.functions, plan.settings
    if settings.schedule == "cycle":
        part = (state.steps + 0.5) / (settings.epochs * len(plan.sizes))
        state.learning_rate.copy_((settings.learning_rate * cycle(part)).expand_as(state.learning_rate))
    try:
        weights = state.weights.detach().requires_grad_()
        total, loss, balance = run.losses(weights, code, x, state.kind, state.strength)
        (gradient,) = torch.autograd.grad(total, weights)
        run.update(
            state.weights,
            gradient,
            state.moment_1,
            state.moment_2,
            state.steps + 1,
            state.learning_rate,
            state.active,
            plan.trainable,
            settings.weight_decay,
            settings.clip,
        )
    except Exception as error:  # whatever a compiler may raise, before anything has changed
        plan.program.retry_uncompiled(error, partial(step, plan, state, batches, size, (code, x)))
        return
    state.steps += 1
    if settings.average:  # over fewer steps while there are few
        kept = ((1 + state.steps) / (10 + state.steps)).clamp(max=settings.average)
        state.average.lerp_(state.weights, 1 - kept)
    state.loss_sum += loss.detach()
    state.balance_sum += balance.detach()


def cycle(part: Tensor) -> Tensor:
    """The learning rate relative to its peak after a part of a training: linear up, then half a cosine down to 0.

    Large steps in the middle reach a flat region quickly, and the long way down settles there. With a peak four times
    as high as a constant rate could be, 60 epochs give what 120 did on plateaus.

    Example:
        >>> cycle(torch.tensor([0.0, 0.15, 1.0]))
        tensor([0., 1., 0.])
    """
    down = 0.5 + 0.5 * (math.pi * ((part - WARM_UP) / (1 - WARM_UP)).clamp(0, 1)).cos()
    return torch.minimum(part / WARM_UP, down)


def log_ratios(program: Program, weights: Tensor, code: Tensor, x: Tensor) -> Tensor:
    """Log-ratios `(M, R, B)` of codes `(M or 1, R, B, E)` and observations `(M or 1, B, *x_shape)`."""
    try:
        return program.functions.ratios(weights, code, x)
    except Exception as error:  # whatever a compiler may raise
        return program.retry_uncompiled(error, partial(log_ratios, program, weights, code, x))


def update(
    weights: Tensor,
    gradient: Tensor,
    moment_1: Tensor,
    moment_2: Tensor,
    steps: Tensor,
    learning_rate: Tensor,
    active: Tensor,
    trainable: Tensor,
    weight_decay: float,
    clip: float | None,
) -> None:
    """Limit gradients and apply Adam over all weights `(M, P)`, in place; `steps` counts this one."""
    arrays = (weights, gradient, moment_1, moment_2, trainable)
    if in_memory(arrays):
        from . import adam_loop  # compiles

        largest = math.inf if clip is None else clip
        adam_loop.update(arrays, learning_rate * active, (weight_decay, largest, BETA_1, BETA_2, EPS), int(steps))
        return
    if clip is not None:
        gradient = limit(gradient, trainable, clip)
    adam(weights, gradient, moment_1, moment_2, steps, learning_rate, active, trainable, weight_decay)


def in_memory(arrays: Sequence[Tensor]) -> bool:
    """Whether all are plain arrays of a CPU, as a compiled loop needs them."""
    return all(type(t) is Tensor and t.device.type == "cpu" and t.is_contiguous() for t in arrays)


def limit(gradient: Tensor, trainable: Tensor, clip: float) -> Tensor:
    """Gradients whose norm, of each member's own, is at most `clip`.

    Apart from `adam`, because PyTorch 2.13 cannot compile the two together for a CPU.
    """
    norm = (gradient * trainable).square().sum(1, keepdim=True).sqrt()
    return gradient * (clip / (norm + 1e-6)).clamp(max=1.0)


def adam(
    weights: Tensor,
    gradient: Tensor,
    moment_1: Tensor,
    moment_2: Tensor,
    steps: Tensor,
    learning_rate: Tensor,
    active: Tensor,
    trainable: Tensor,
    weight_decay: float,
) -> None:
    """Adam, with arguments as in `update`. Members that are not active get the rate 0."""
    gradient.mul_(trainable)
    moment_1.lerp_(gradient, 1 - BETA_1)
    moment_2.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
    size = (moment_2.sqrt() / (1 - BETA_2**steps).sqrt()).add_(EPS)
    rate = torch.where(active, learning_rate, 0.0).unsqueeze(1)
    if weight_decay:
        weights.sub_(rate * weight_decay * trainable * weights)
    weights.addcdiv_(moment_1 * (rate / (1 - BETA_1**steps)), size, value=-1)


_PROGRAMS: dict[tuple[Any, ...], Program] = {}
_NUMBERS = itertools.count()


def program_for(
    network: Network,
    kinds: tuple[Objective, ...],
    rolls: int,
    compiled: bool | None,
    device: torch.device,
    embedded: bool = False,
) -> Program:
    """The program for a network and its objectives; made once per shape and kept, so that compiling is paid once.

    `embedded` says that it is given features in the place of x.

    `compiled` is None for what this process compiled before, if it did. (From one process to the next PyTorch keeps
    compiled code on disk, unless told otherwise: its FX graph cache.) A program with a user's module in it is not kept:
    the module may change in ways that its description does not show.
    """
    own = hasattr(network, "network") or hasattr(network.embedding, "module")
    known = (json.dumps(network.spec(), sort_keys=True), network.dim, kinds, rolls, device, embedded)
    if compiled is None:
        compiled = (*known, True) in _PROGRAMS
    key = (*known, compiled)
    if key in _PROGRAMS and not own:
        return _PROGRAMS[key]

    def ratios(weights: Tensor, code: Tensor, x: Tensor) -> Tensor:
        return network.stack_ratio(weights, code, x, embedded)

    def losses(
        weights: Tensor, code: Tensor, x: Tensor, kind: Tensor, strength: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sum of the members' losses, the losses and the balance terms."""
        rolled = code.unsqueeze(1) if rolls == 1 else torch.stack([code.roll(r, 1) for r in range(rolls)], dim=1)
        loss, balance = objective_terms(ratios(weights, rolled, x), kinds, kind, strength)
        return loss.sum(), loss, balance

    plain, fast = Functions(losses, ratios, update), None
    if compiled:
        apply_marks()
        number = next(_NUMBERS)
        fast_losses, fast_ratios, fast_limit, fast_adam = (
            _over_members(torch.compile(_copy(f, number))) for f in (losses, ratios, limit, adam)
        )

        def fast_update(weights: Tensor, gradient: Tensor, *rest: Any) -> None:
            *state, trainable, weight_decay, clip = rest
            if clip is not None:
                gradient = fast_limit(gradient, trainable, clip)
            fast_adam(weights, gradient, *state, trainable, weight_decay)

        fast = Functions(fast_losses, fast_ratios, fast_update)
    made = Program(kinds, plain, fast)
    if not own:
        _PROGRAMS[key] = made
    return made


def _copy(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The same function under another name. The compiler's cache is keyed by a function's code and name: if
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
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return headers.exists() and any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))
