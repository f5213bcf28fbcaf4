"""Modules of the user's: copied, in evaluation mode, and evaluated for a stack of members.

**A private copy in evaluation mode.** A member must be the same alone and in a stack, a resumed training must end in
the same weights, and a posterior is a function. Layers that draw random numbers break all three, so dropout is switched
off, in training too. The user's object is never changed, and later changes of it do not reach the copy. Recurrent
layers stay in training mode, with their dropout set to 0, since cuDNN gives no gradients in evaluation mode.

**Buffers are constants.** Those of real numbers (positional encodings, the statistics of a trained normalisation) lie
beside the weights, frozen: they are stored with the model and belong to the fingerprint of a training. Others (indices,
masks) are taken to belong to the code. A normalisation whose statistics would have to follow the training is refused:
they would keep their initial values.

**Members at once, or one after the other.** `vmap` evaluates a module for all members at once where PyTorch can: not
for recurrent layers, nor where the module looks at its values (`if x.mean() > 1`). For some operations it falls back to
a loop and warns. `StackedModule` tries it once per kind of device, forward and backward, with and without gradients
(PyTorch's attention takes another path without). Where that fails or warns, members are evaluated in turn.
"""

from __future__ import annotations

__all__ = ["TRIAL", "StackedModule", "required", "warn_of_differences"]

import contextlib
import copy
import difflib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from equipoise.support.errors import MissingPart, warn
from equipoise.support.randomness import isolated

from .compiler_marks import when_compiling
from .stacked_weights import StackedWeights

#: Pairs in a trial. Not 1 or 3: a layer for images of so many channels would take the batch for one image.
TRIAL = 5

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def _private_copy(module: Any, what: str, method: str) -> nn.Module:
    """A copy of a user's module that draws no random numbers; an error where something else was given."""
    called = f" with a method {method}(theta, x) -> (N,)" if method != "forward" else ""
    wanted = f"{what}= is a torch.nn.Module{called}"
    if isinstance(module, type):
        raise TypeError(f"{wanted}, and {module.__name__} is a class; make one: {what}={module.__name__}(…)")
    if not isinstance(module, nn.Module):
        advice = "; put it into the forward of a module, which also holds what is trained" if callable(module) else ""
        raise TypeError(f"{wanted}, got an object of type {type(module).__name__}{advice}")
    if not callable(getattr(module, method, None)):
        raise TypeError(f"{wanted}, and {type(module).__name__} has none")
    try:
        module = copy.deepcopy(module)
    except Exception as error:  # whatever a user's object may raise
        raise ValueError(f"{what}={type(module).__name__} cannot be copied: {_first_line(error)}") from error
    module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            layer.train()
            layer.dropout = 0.0
    return module


def _dropout_layers(module: nn.Module) -> list[str]:
    """The dropout layers of a user's module, each with its name.

    Example:
        >>> _dropout_layers(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.2), nn.GRU(2, 2, 2, dropout=0.1)))
        ['1 (Dropout, p=0.2)', '2 (GRU, dropout=0.1)']
    """
    found = []
    for name, layer in module.named_modules():
        rate = "p" if isinstance(layer, DROPOUT) else "dropout"
        value = getattr(layer, rate, None)
        if isinstance(value, int | float) and value > 0:
            found.append(f"{name or 'the module'} ({type(layer).__name__}, {rate}={value:g})")
    return found


def _refuse_running_statistics(module: nn.Module, what: str) -> None:
    """Raise where the statistics of a normalisation would have to follow the training, or have their initial values."""
    found = []
    for name, layer in module.named_modules():
        mean, variance = getattr(layer, "running_mean", None), getattr(layer, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor):
            trained = any(w.requires_grad for w in layer.parameters(recurse=False))
            if trained or bool((mean == 0).all() and (variance == 1).all()):
                found.append(f"{name}.running_mean" if name else "running_mean")
    if found:
        raise ValueError(
            f"the {what} has running statistics ({', '.join(found[:3])}…), which training would have to change in "
            "place; use LayerNorm or GroupNorm instead of BatchNorm. A part that is trained already keeps its own: "
            "part.requires_grad_(False)"
        )


def required(module: nn.Module | None, spec: dict[str, Any], what: str) -> nn.Module:
    """The module that a user gives again to load a model; an error where it is missing.

    Arguments:
        module: what was given.
        spec: the stored description of the module.
        what: "embedding" or "network".
    """
    if module is None:
        own = f"{'an' if what == 'embedding' else 'a'} {what} of your own, {spec['repr'].split('(', 1)[0].strip()}"
        raise MissingPart(
            f"the model was trained with {own}, whose code is not stored; pass it again: eq.load(path, {what}=…)", what
        )
    return module


def warn_of_differences(stored: dict[str, Any], given: dict[str, Any], what: str) -> None:
    """Warn where a module that is given again is not described as the one a model was trained with."""
    before, after = (re.sub(r"0x[0-9a-fA-F]+", "0x…", spec["repr"]).splitlines() for spec in (stored, given))
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "-+"]
    if changed:
        warn(
            f"the {what} given is not the one the model was trained with (-: trained with, +: given): "
            f"{'; '.join(f'{line[0]} {line[2:].strip()}' for line in changed)}. Weights that fit another module do not "
            "make it the same",
        )


def _differ(a: Any, b: Any) -> bool:
    """Whether two outputs of a module differ by more than rounding."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point()):
        return False
    return a.shape != b.shape or not torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)


def _first_line(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"


class _Call(nn.Module):
    """Makes `log_ratio` the forward of a module, which is what `functional_call` calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, theta: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.network.log_ratio(theta, x)  # type: ignore[operator]
        return out


class StackedModule:
    """A private copy of a user's module, evaluated for a stack of members.

    Arguments:
        given: the user's module.
        what: "embedding", whose `forward` is called, or "network", whose `log_ratio` is called.
        trial: one batch of its arguments, with shape `(TRIAL, *)`, on the CPU.
        stored: whether weights and buffers are about to be read from a file, so that those given do not matter.
    """

    def __init__(self, given: Any, what: str, trial: tuple[Tensor, ...], stored: bool) -> None:
        #: The copy, as it is described in files.
        self.own = _private_copy(given, what, "forward" if what == "embedding" else "log_ratio")
        #: The dropout layers, which are switched off.
        self.switched_off = _dropout_layers(given)
        if not stored:
            _refuse_running_statistics(self.own, what)
        module = self.own if what == "embedding" else _Call(self.own)
        #: What the names of its weights begin with.
        self.prefix = "module." if what == "embedding" else "user."
        self.module = module
        self._loops: dict[str, bool] = {}
        self._others: dict[torch.device, dict[str, Tensor]] = {}
        #: The buffers that lie beside the weights.
        self._buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
        #: Everything that is not trained.
        self._constants = {n: w for n, w in module.named_parameters() if not w.requires_grad} | self._buffers
        parameter = next(module.parameters(), trial[0])
        self.trial = tuple(t.to(parameter.dtype) for t in trial)
        inputs = [t.to(parameter.device) for t in self.trial]
        outs = []
        for seed, first in ((0, TRIAL), (1, TRIAL), (0, 2)):
            try:
                with isolated(seed), torch.no_grad():
                    outs.append(module(*(t[:first] for t in inputs)))
            except Exception as error:  # whatever a user's code may raise
                shapes = [f"shape (N, {', '.join(map(str, t.shape[1:]))})" for t in trial]
                reads = "observations of {}" if what == "embedding" else "theta of {} and x of {}"
                tried = f"{reads.format(*shapes)}, tried with N = {TRIAL}"
                raise ValueError(f"the {what} fails on {tried}: {_first_line(error)}") from error
        self.out = outs[0]
        if _differ(*outs[:2]):
            raise ValueError(
                f"the {what} is random even in evaluation mode: called twice with the same it gives different numbers. "
                "Functional dropout needs training=self.training"
            )
        if isinstance(self.out, Tensor) and self.out.ndim and len(self.out) == TRIAL and _differ(self.out[:2], outs[2]):
            raise ValueError(
                f"the {what} mixes the observations of a batch: two of them alone give other numbers than among "
                f"{TRIAL}. Normalise each observation (LayerNorm, GroupNorm), not the batch"
            )

    def init(self, seed: int) -> dict[str, Tensor]:
        """Weights of one member: drawn anew where layers have `reset_parameters`, a copy of the module's elsewhere.

        Parameters that ask for no gradient stay as they are: they are trained already. So do buffers.
        """
        module = copy.deepcopy(self.module)
        with isolated(seed):
            for layer in module.modules():
                reset: Any = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        weights = dict(module.named_parameters()) | self._constants
        return {f"{self.prefix}{name}": w.detach().clone().cpu() for name, w in weights.items()}

    def frozen(self) -> dict[str, Tensor]:
        """Masks of zeros for what is not trained: buffers, and parameters that ask for no gradient."""
        return {f"{self.prefix}{name}": torch.zeros(()) for name in self._constants}

    def one_by_one(self, device: torch.device) -> bool:
        """Whether members are evaluated in turn on such a device; tried the first time."""
        if device.type not in self._loops:
            self._loops[device.type] = not self._vmap_works(device)
        return self._loops[device.type]

    def _vmap_works(self, device: torch.device) -> bool:
        given = dict(self.module.named_parameters()) | self._buffers
        weights = {n: torch.stack([w.detach().to(device)] * 2).requires_grad_() for n, w in given.items()}
        inputs = [torch.stack([t.to(device)] * 2) for t in self.trial]
        with isolated(0), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                with torch.no_grad():
                    self._at_once(self._detached(weights), inputs)
                with torch.enable_grad():
                    out = self._at_once(self._detached(weights), inputs)
                    if out.requires_grad:
                        torch.autograd.grad(out.sum(), list(weights.values()), allow_unused=True)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # whatever PyTorch may raise; the module itself is known to work
                return False
        return not any("performance drop" in str(w.message) for w in caught)

    def __call__(self, p: StackedWeights, *inputs: Tensor) -> Tensor:
        """Outputs with shape `(M, N, *)` from arguments with shape `(M, N, *)`; p are all weights of a network."""
        weights = {name.removeprefix(self.prefix): w for name, w in p.items() if name.startswith(self.prefix)}
        evaluate = self._in_turn if self.one_by_one(inputs[0].device) else self._at_once
        return evaluate(self._detached(weights), list(inputs))

    def _detached(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Buffers without gradients: PyTorch's normalisations give none for their statistics."""
        return {name: w.detach() if name in self._buffers else w for name, w in weights.items()}

    def _other_buffers(self, device: torch.device) -> dict[str, Tensor]:
        """The buffers that are not real numbers, the same for all members; copied to each device once."""
        if device not in self._others:
            others = {n: b for n, b in self.module.named_buffers() if n not in self._buffers}
            self._others[device] = {name: b.to(device) for name, b in others.items()}
        return self._others[device]

    def _at_once(self, weights: dict[str, Tensor], inputs: list[Tensor]) -> Tensor:
        others = self._other_buffers(inputs[0].device)

        def one(w: dict[str, Tensor], *arguments: Tensor) -> Tensor:
            out: Tensor = functional_call(self.module, w | others, arguments)
            return out

        out: Tensor = vmap(one, randomness="different")(weights, *inputs)
        return out

    @when_compiling(torch.compiler.disable)
    def _in_turn(self, weights: dict[str, Tensor], inputs: list[Tensor]) -> Tensor:
        # `unbind`, not an index: the gradient of each index would be as large as the stack.
        cut = {name: w.unbind() for name, w in weights.items()}
        outs, others = [], self._other_buffers(inputs[0].device)
        with _quiet(self.module, inputs[0].device):
            for m, arguments in enumerate(zip(*inputs, strict=True)):
                mine = {name: w[m] for name, w in cut.items()}
                outs.append(functional_call(self.module, mine | others, arguments))
        return torch.stack(outs)


@contextlib.contextmanager
def _quiet(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Without cuDNN's warning that weights of recurrent layers are not contiguous: those of a stack never are."""
    if device.type != "cuda" or not any(isinstance(layer, nn.RNNBase) for layer in module.modules()):
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield
