"""Embeddings: from observations to the features that a classifier or a flow reads.

All take observations with shape `(M or 1, N, *x_shape)` (1 where the members share them) and give features with shape
`(M, N, C)`. Constants from the training data, such as the mean and scale of x, `x_loc` and `x_scale`, belong to the
embedding and are stored with the weights. Whole numbers (uint8 snapshots, counts) become floats here, so that data
stays small until it is used.

- `Flat`: the numbers as they are, flattened; heavy-tailed ones also as normal scores.
- `Convolutional`: the paper's. A 1×1 convolution to C channels without activation, then L times [3-convolution with
  padding 1, SELU, max-pooling of 3 with padding 1, of stride 2 on even layers and 1 on odd ones], flattened.
  One-dimensional for a series (T, channels), two-dimensional for an image (channels, H, W).
- `Module`: any `nn.Module` of a user's that maps a batch `(N, *x_shape)` to `(N, C)`.
"""

from __future__ import annotations

__all__ = ["Convolutional", "Embedding", "Flat", "Module", "choose_embedding", "embedding_from_spec"]

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.support.randomness import isolated

from .convolutions import PRECISIONS, embed, kernels_work
from .normal_scores import KNOTS, score_table, with_scores
from .stacked_weights import StackedWeights
from .user_modules import TRIAL, StackedModule, required, warn_of_differences


def _constants(p: StackedWeights) -> tuple[Tensor, Tensor]:
    """Mean and scale of x. Constants, although they lie among the weights."""
    return p["x_loc"].detach(), p["x_scale"].detach()


def _standardised(p: StackedWeights, x: Tensor) -> Tensor:
    """Observations with shape `(M, N, *x_shape)` from `(M or 1, N, *x_shape)`."""
    loc, scale = _constants(p)
    return (x.to(loc.dtype) - loc.unsqueeze(1)) / scale.unsqueeze(1)


class Embedding(ABC):
    """A map from observations to features, with parameters under the names that `shapes` gives."""

    x_shape: tuple[int, ...]
    #: Whether several threads may call it at once.
    in_threads = True

    @property
    @abstractmethod
    def features(self) -> int:
        """The number C of features."""

    @property
    @abstractmethod
    def statistics_shape(self) -> tuple[int, ...]:
        """The shape of `x_loc` and `x_scale`, which broadcasts to `x_shape`."""

    @abstractmethod
    def init(self, seed: int) -> dict[str, Tensor]:
        """The weights of one member."""

    @abstractmethod
    def __call__(self, p: StackedWeights, x: Tensor) -> Tensor:
        """Features with shape `(M, N, C)` from observations as they are, with shape `(M or 1, N, *x_shape)`."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """A JSON description."""

    def prepare(self, device: torch.device) -> None:  # noqa: B027
        """What has to run on a device before `torch.compile` or a CUDA graph records."""

    def capturable(self, device: torch.device) -> bool:
        """Whether a CUDA graph can record it; not a user's module that looks at its values."""
        return True

    def frozen(self) -> dict[str, Tensor]:
        """Masks of the weights that are not to be trained, by name."""
        return {}

    def constants(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of what `statistics` gives. It lies among the weights and is not trained."""
        return {"x_loc": self.statistics_shape, "x_scale": self.statistics_shape}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of everything of one member: the constants and the weights."""
        return self.constants() | {name: tuple(w.shape) for name, w in self.init(0).items()}

    def statistics(self, x: Tensor) -> tuple[Tensor, ...]:
        """The constants, from x with shape `(N, *x_shape)`: the mean and standard deviation that standardise it."""
        shape = (1, *self.statistics_shape)
        axes = [a for a, size in enumerate(shape) if size == 1 and (a == 0 or x.shape[a] != 1)]
        # In pieces: in double precision the whole would be many times as large as it is.
        pieces = x.split(max(1, (1 << 22) // max(1, x[0].numel())))
        count = len(x) * x[0].numel() / math.prod(shape)
        zero = torch.zeros((), dtype=torch.float64, device=x.device)
        mean = sum((piece.double().sum(axes, keepdim=True) for piece in pieces), zero) / count
        std = (sum(((piece.double() - mean).square().sum(axes, keepdim=True) for piece in pieces), zero) / count).sqrt()
        std = torch.where(std > 1e-12 * mean.abs(), std, 1.0)  # a constant feature carries nothing; leave its scale
        return mean[0], std[0]


@dataclasses.dataclass(frozen=True)
class Flat(Embedding):
    """Observations flattened to a vector.

    Arguments:
        x_shape: the shape of one observation.
        ranked: the heavy-tailed columns, which `normal_scores` reads in two ways: ascending indices into the flattened
            observation.
    """

    x_shape: tuple[int, ...]
    ranked: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        numbers = math.prod(self.x_shape)
        if list(self.ranked) != sorted({c for c in self.ranked if 0 <= c < numbers}):
            raise ValueError(f"ranked are ascending indices from 0 to {numbers - 1}, got {self.ranked}")

    @property
    def features(self) -> int:
        return math.prod(self.x_shape) + len(self.ranked)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        return self.x_shape

    def constants(self) -> dict[str, tuple[int, ...]]:
        return super().constants() | ({"x_scores": (3, len(self.ranked), KNOTS)} if self.ranked else {})

    def statistics(self, x: Tensor) -> tuple[Tensor, ...]:
        found = super().statistics(x)
        return (*found, score_table(x.flatten(1), self.ranked)) if self.ranked else found

    def init(self, seed: int) -> dict[str, Tensor]:
        return {}

    def __call__(self, p: StackedWeights, x: Tensor) -> Tensor:
        z = _standardised(p, x).flatten(2)
        return with_scores(p["x_scores"].detach(), z, x.flatten(2), self.ranked) if self.ranked else z

    def spec(self) -> dict[str, Any]:
        ranked = {"ranked": list(self.ranked)} if self.ranked else {}
        return {"kind": "flat", "x_shape": list(self.x_shape), **ranked}


@dataclasses.dataclass(frozen=True)
class Convolutional(Embedding):
    """The paper's convolutional embedding.

    Arguments:
        x_shape: (T, channels) of a series, or (channels, H, W) of an image.
        layers: L, the number of convolutions after the first 1×1 one.
        channels: C, the width of every layer.
        precision: on a GPU, "auto" (TF32 where PyTorch may use it, as in training, else float32), "float32", "tf32" or
            "bf16", which stores activations in 16 bits as well. Without effect on a CPU.
    """

    x_shape: tuple[int, ...]
    layers: int = 8
    channels: int = 16
    precision: str = "auto"

    def __post_init__(self) -> None:
        if len(self.x_shape) not in (2, 3):
            raise ValueError(
                f"convolutions read a series (T, channels) or an image (channels, H, W), got {self.x_shape}"
            )
        if self.layers < 1 or self.channels < 1:
            raise ValueError(
                f"convolutions need at least one layer and one channel, got {self.layers}, {self.channels}"
            )
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {self.precision!r}")

    @property
    def dims(self) -> int:
        """1 for a series, 2 for an image."""
        return len(self.x_shape) - 1

    @property
    def inputs(self) -> int:
        """How many channels come in."""
        return self.x_shape[-1] if self.dims == 1 else self.x_shape[0]

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        return (1, self.inputs) if self.dims == 1 else (self.inputs, 1, 1)

    @property
    def features(self) -> int:
        sides = [self.x_shape[0]] if self.dims == 1 else list(self.x_shape[1:])
        for layer in range(self.layers):
            if layer % 2 == 0:
                sides = [(side - 1) // 2 + 1 for side in sides]
        return self.channels * math.prod(sides)

    def init(self, seed: int) -> dict[str, Tensor]:
        conv: Any = nn.Conv1d if self.dims == 1 else nn.Conv2d
        weights = {}
        with isolated(seed):
            for i in range(self.layers + 1):
                layer = conv(self.inputs if i == 0 else self.channels, self.channels, 1 if i == 0 else 3)
                weights[f"conv.{i}.weight"], weights[f"conv.{i}.bias"] = layer.weight.detach(), layer.bias.detach()
        return weights

    def __call__(self, p: StackedWeights, x: Tensor) -> Tensor:
        weights, biases = ([p[f"conv.{i}.{kind}"] for i in range(self.layers + 1)] for kind in ("weight", "bias"))
        return embed(x, *_constants(p), weights, biases, self.precision)

    def prepare(self, device: torch.device) -> None:
        kernels_work(str(device))

    def spec(self) -> dict[str, Any]:
        return {"kind": "convolutional", **dataclasses.asdict(self), "x_shape": list(self.x_shape)}


class Module(Embedding):
    """A user's `nn.Module`: a private copy without dropout, see `user_modules`.

    Arguments:
        module: maps a batch with shape `(N, *x_shape)` to `(N, C)`. Every member starts from its own initialisation
            if the module's layers have `reset_parameters`, and from a copy of the given weights otherwise. Parameters
            with `requires_grad=False` stay as they are, and so do buffers.
        x_shape: the shape of one observation.
        stored: whether weights and buffers are about to be read from a file, so that those given do not matter.
    """

    in_threads = False  # the weights of a member stand in the one module while it is called

    def __init__(self, module: nn.Module, x_shape: tuple[int, ...], stored: bool = False) -> None:
        self.x_shape = tuple(x_shape)
        sizes = (TRIAL, *self.x_shape)
        self.stacked = StackedModule(module, "embedding", (torch.linspace(0, 1, math.prod(sizes)).view(sizes),), stored)
        self.module, self.switched_off = self.stacked.own, self.stacked.switched_off
        out = self.stacked.out
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != TRIAL:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(
                f"an embedding maps (N, {', '.join(map(str, self.x_shape))}) to (N, C); for N = {TRIAL} it gave {shape}"
            )
        self._features = out.shape[1]
        self.stacked.one_by_one(torch.device("cpu"))

    @property
    def features(self) -> int:
        return self._features

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        read_as = choose_embedding(self.x_shape) if len(self.x_shape) < 4 else Flat(self.x_shape)
        return read_as.statistics_shape

    def init(self, seed: int) -> dict[str, Tensor]:
        return self.stacked.init(seed)

    def frozen(self) -> dict[str, Tensor]:
        return self.stacked.frozen()

    def __call__(self, p: StackedWeights, x: Tensor) -> Tensor:
        return self.stacked(p, _standardised(p, x))

    def prepare(self, device: torch.device) -> None:
        self.stacked.one_by_one(device)

    def capturable(self, device: torch.device) -> bool:
        return not self.stacked.one_by_one(device)

    def spec(self) -> dict[str, Any]:
        return {"kind": "module", "x_shape": list(self.x_shape), "repr": repr(self.module)}


def choose_embedding(x_shape: tuple[int, ...]) -> Embedding:
    """The embedding for a shape: a vector as it is, (T, C) a series, (C, H, W) an image.

    Example:
        >>> choose_embedding((8,))
        Flat(x_shape=(8,), ranked=())
        >>> choose_embedding((3, 50, 50)).features
        256
    """
    if len(x_shape) <= 1:
        return Flat(tuple(x_shape))
    if len(x_shape) in (2, 3):
        return Convolutional(tuple(x_shape), layers=8, channels=8 if len(x_shape) == 2 else 16)
    raise ValueError(
        f"no default embedding for observations of shape {x_shape}: a vector, a series (T, C) or an image (C, H, W) "
        'has one. Pass embedding=, "flatten" or an nn.Module that maps (N, *x_shape) to (N, C).'
    )


def embedding_from_spec(spec: dict[str, Any], module: nn.Module | None = None) -> Embedding:
    """Rebuild an embedding from its `spec()`; a user's module has to be given again."""
    x_shape = tuple(spec["x_shape"])
    match spec["kind"]:
        case "flat":
            return Flat(x_shape, tuple(spec.get("ranked", ())))
        case "convolutional":
            return Convolutional(x_shape, spec["layers"], spec["channels"], spec.get("precision", "auto"))
        case "module":
            made = Module(required(module, spec, "embedding"), x_shape, stored=True)
            warn_of_differences(spec, made.spec(), "embedding")
            return made
    raise ValueError(f"unknown kind of embedding {spec['kind']!r}; was the file written by a newer Equipoise?")
