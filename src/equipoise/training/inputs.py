"""What training is given, looked at before hours are spent on it."""

from __future__ import annotations

__all__ = [
    "Pairs",
    "as_device",
    "as_embedding",
    "batch_for",
    "check_pairs",
    "refuse_invalid",
    "split_rows",
    "warn_about_few",
]

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.networks import Embedding, Module, choose_embedding
from equipoise.priors import Prior
from equipoise.support.arrays import TOO_LARGE, plain
from equipoise.support.devices import as_device
from equipoise.support.errors import warn
from equipoise.support.randomness import generator

from .settings import Settings

#: How many numbers are looked at for what rounding does to them.
ROUNDED = 1 << 22
#: How many steps an epoch has at least, if nobody says otherwise.
STEPS = 4
#: Fewer pairs than this certainly cannot judge a training. A loss over n pairs has a standard error of about σ/√n, and
#: σ of a log posterior is a nat or so: 0.3 nats with 10 pairs, which is what many simulations tell of a parameter.
JUDGES = 10

#: A vector of this length or more may well be a series.
LONG = 50


class Pairs(NamedTuple):
    """Pairs that have been looked at."""

    #: With shape `(N, D)`.
    theta: Tensor
    #: A tensor with shape `(N, *x_shape)`, or what reads rows of such an array by index.
    x: Any


def check_pairs(theta: Any, x: Any, prior: Prior, dtype: torch.dtype) -> Pairs:
    """θ as a float tensor with shape `(N, D)` and x as it is to be held, or an error that says what is wrong."""
    theta = _tensor(theta, "theta")
    if theta.ndim != 2 or theta.shape[1] != prior.dim:
        raise ValueError(
            f"theta should have shape (N, {prior.dim}) for this prior, got {tuple(theta.shape)}"
            + (" (use theta[:, None] for one parameter)" if theta.ndim == 1 and prior.dim == 1 else "")
        )
    theta = theta.to(dtype)
    x = _observations(x)
    if len(x) != len(theta):
        raise ValueError(f"theta has {len(theta)} rows and x has {len(x)}; they should be pairs")
    if len(x.shape) < 2:
        raise ValueError(
            f"x should have shape (N, *x_shape), got {tuple(x.shape)} (use x[:, None] for one number a simulation)"
        )
    if 0 in x.shape:
        raise ValueError(f"x has shape {tuple(x.shape)}, which holds nothing")
    if isinstance(x, Tensor):
        if x.is_complex():
            raise TypeError(
                "x should be an array of real numbers, and is complex: give real and imaginary parts as channels"
            )
        given = x
        if x.dtype == torch.bool:
            x = x.to(torch.uint8)
        elif x.is_floating_point() and x.dtype != torch.float16:
            x = x.to(dtype)
        refuse_invalid(x, "x", given)
        _warn_about_rounding(given, dtype)
    refuse_invalid(theta, "theta")
    inside = prior.contains(theta.to(prior.device)).cpu()
    if not bool(inside.all()):
        row = int((~inside).nonzero()[0])
        raise ValueError(
            f"{int((~inside).sum())} of {len(theta)} rows of theta lie outside the prior's support, the first is row "
            f"{row}: "
            f"{theta[row].tolist()}. Was theta drawn from another prior, or scaled?"
        )
    return Pairs(theta, x)


def _tensor(value: Any, name: str) -> Tensor:
    try:
        return torch.as_tensor(plain(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} should be a tensor or an array of numbers, got {type(value).__name__} ({error})"
        ) from error


def _observations(x: Any) -> Any:
    """x as a tensor, or as it is where it is not in memory: memory-mapped, or anything with a shape and rows by index.

    Simulations and stores (whatever has a `lazy_x`) are asked for theirs.
    """
    x = getattr(x, "lazy_x", x)
    x = x if _stays_where_it_is(x) else plain(x)
    kind = getattr(getattr(x, "dtype", None), "kind", "f")  # of NumPy's and h5py's; torch's has none
    if kind not in "biuf":
        what = "complex: give real and imaginary parts as channels" if kind == "c" else f"of dtype {x.dtype}"
        raise TypeError(f"x should be an array of real numbers, and is {what}")
    if isinstance(x, np.ndarray) and not isinstance(x, np.memmap):
        return torch.from_numpy(np.ascontiguousarray(x))
    if isinstance(x, list | tuple):
        return _tensor(x, "x")
    if not isinstance(x, Tensor) and not _stays_where_it_is(x):
        raise TypeError(
            f"x should be an array or a tensor, and is of type {type(x).__name__}. Give simulations of eq.simulate or "
            "eq.read_simulations as pairs.x, or as pairs where they are larger than memory; of other files a "
            "numpy.memmap or an h5py dataset"
        )
    return x


def _stays_where_it_is(x: Any) -> bool:
    """Whether this is an array on disk, or of another library, whose rows are read when they are wanted."""
    if isinstance(x, np.memmap):
        return True
    known = isinstance(x, np.ndarray | Tensor | list | tuple) or hasattr(x, "to_numpy") or hasattr(x, "__dlpack__")
    return not known and all(hasattr(x, name) for name in ("shape", "__len__", "__getitem__"))


def refuse_invalid(values: Tensor, name: str, given: Tensor | None = None, rows: Tensor | None = None) -> None:
    """An error where values are not finite.

    Arguments:
        values: in the networks' precision, with shape `(N, …)`.
        name: what they are.
        given: those before they were brought to that precision.
        rows: the numbers of these rows, where they are some of many.
    """
    if not values.is_floating_point():
        return
    bad = ~values.flatten(1).isfinite().all(1)
    if not bool(bad.any()):
        return
    count, first = f"{int(bad.sum())} of {len(values)} rows of {name}", int(bad.nonzero()[0])
    if rows is not None:
        count, first = f"{count} that were looked at", int(rows[first])
    if given is not None and bool(given[bad].isfinite().all()):
        raise ValueError(f"{count} have values {TOO_LARGE}. The first is row {first}.")
    raise ValueError(
        f"{count} have NaN or infinite values, the first is row {first}. "
        "Leave those simulations out (eq.simulate does so and says how many), or replace the values."
    )


def warn_about_few(n: int, fraction: float) -> None:
    """Say so if a training is judged by too few pairs to be judged at all."""
    judges = int(round(n * fraction, 9))
    if 2 <= judges < JUDGES:  # fewer are refused
        warn(
            f"{n} simulations leave {judges} pairs for validation, which decide when training stops and which "
            f"weights are kept: with fewer than {JUDGES} that is chance more than anything. Simulate more, or raise "
            "validation_fraction; and judge the result with eq.diagnose, on new simulations",
        )


def _warn_about_rounding(x: Tensor, dtype: torch.dtype) -> None:
    """Julian dates and the like: the networks' precision must resolve how much x varies."""
    if dtype == torch.float64 or x.dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
        return
    rows = x[: max(2, ROUNDED // x[0].numel())].flatten(1).double()
    if x.dtype == torch.float32:  # rounded already, by up to half a unit in the last place; whole numbers are exact
        error = rows.abs().amax(0) * 2.0**-24 * (rows != rows.round()).any(0)
    else:
        error = (rows.to(dtype).double() - rows).abs().amax(0)
    spread = rows.std(0)
    lost = (error > 0.01 * spread) & (spread > 0)
    if bool(lost.any()):
        worst = int((error / spread).nan_to_num(0, 0, 0).argmax())
        warn(
            f"single precision rounds element {worst} of x by up to {float(error[worst]):.2g}, and it varies by "
            f"{float(spread[worst]):.2g} only. Subtract an offset from x (its mean, say) where it is computed, in "
            "double precision",
        )


def batch_for(n: int, fraction: float) -> int:
    """Pairs in a batch, the paper's 256 where there are enough: a power of two that leaves an epoch 4 steps.

    A training ends by epochs (patience, learning rates that fall). If an epoch is a step or two, it ends before
    anything is learnt: with 512 simulations of SLCP a mixture of `bnpe_init` in batches of 256 is the prior (nominal
    log posterior -3.58); in batches of 64 it reaches -2.55, of 16 -2.83. On Two Moons it is 1.20, 2.31 and 2.61, but
    the last is overconfident. So no more steps than it takes.

    Example:
        >>> [batch_for(n, 0.1) for n in (100, 512, 1024, 2048)]
        [16, 64, 128, 256]
    """
    share = int(n * (1 - fraction)) // STEPS
    return min(256, max(16, 1 << max(share.bit_length() - 1, 0)))


def as_embedding(embedding: nn.Module | Embedding | None, x_shape: tuple[int, ...], progress: bool | None) -> Embedding:
    """What was given as an embedding of observations of this shape; for None, what the shape suggests."""
    if isinstance(embedding, Embedding):
        if embedding.x_shape != x_shape:
            raise ValueError(
                f"the embedding reads observations of shape {embedding.x_shape}, but x has shape {x_shape}"
            )
        return embedding
    if embedding is not None:
        return Module(embedding, x_shape)
    chosen = choose_embedding(x_shape)
    if progress is not False:
        if len(x_shape) > 1:
            kind = "a series (time, channels)" if len(x_shape) == 2 else "an image (channels, height, width)"
            text = f"observations of shape {x_shape} are read as {kind}: {chosen}; pass embedding= for another"
            print(text, file=sys.stderr)
        elif x_shape[0] >= LONG:
            print(
                f"observations of shape {x_shape} are read as {x_shape[0]} numbers in no order, without an embedding; "
                "if they are a series, x[..., None] says so, to training and to the posterior",
                file=sys.stderr,
            )
    doubt = _doubt(x_shape)
    if doubt:
        warn(doubt)
    return chosen


def _doubt(x_shape: tuple[int, ...]) -> str:
    """What to say of a shape whose channels are probably on another axis; "" where they are where they should be.

    Example:
        >>> _doubt((200, 1)), _doubt((3, 50, 50)), _doubt((3, 2, 2))
        ('', '', '')
        >>> _doubt((1, 200))[:70]
        'observations of shape (1, 200) are read as 1 time step of 200 channels'
    """
    if len(x_shape) == 2:
        time, channels = x_shape
        if min(x_shape) >= 16 or (time == channels and time >= 8):
            return (
                f"observations of shape {x_shape} are read as a series, {_counted(time, 'time step')} of "
                f"{_counted(channels, 'channel')}. If they are images of one channel, give x[:, None] to training and "
                "to the posterior; if a series is meant, "
                f"embedding=equipoise.networks.choose_embedding({x_shape}) says so"
            )
        doubtful = channels > time
        here = f"{_counted(time, 'time step')} of {_counted(channels, 'channel')}"
        there = f"{_counted(channels, 'time step')} of {_counted(time, 'channel')}"
        swap = "x.swapaxes(1, 2)"
    elif len(x_shape) == 3:
        channels, height, width = x_shape
        # Few pixels either way, as in (3, 2, 2), say nothing.
        doubtful = (channels > max(height, width) or width < min(channels, height)) and min(channels, height) >= 4
        here = f"{height} × {width} pixels of {_counted(channels, 'channel')}"
        there = f"{channels} × {height} pixels of {_counted(width, 'channel')}"
        swap = "x.permute(0, 3, 1, 2), or numpy.moveaxis(x, -1, 1),"
    else:
        return ""
    if not doubtful:
        return ""
    return (
        f"observations of shape {x_shape} are read as {here}. If they are {there}, give {swap} to training and to the "
        "posterior; if the shape is meant, embedding= says so"
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def split_rows(n: int, fraction: float, settings: Settings, least: int, seed: int) -> tuple[Tensor, Tensor]:
    """The rows that train and those that judge: floor((1 - fraction) n) and floor(fraction n) of them."""
    if not 0 < fraction < 1:
        raise ValueError(f"validation_fraction lies between 0 and 1, got {fraction}")
    # Rounded first: 0.1 * 1000 must give 100 although 0.1 is no binary fraction.
    validation, train = int(round(n * fraction, 9)), int(round(n * (1 - fraction), 9))
    if validation < least or train < least:
        raise ValueError(
            f"{n} pairs with validation_fraction={fraction} leave {train} for training and {validation} for "
            f"validation; this method needs at least {least} of each (an unbiased balance more than a plain one). Use "
            "more pairs, or another validation_fraction"
        )
    rows = torch.arange(n) if settings.split == "prefix" else torch.randperm(n, generator=generator(seed, "split"))
    return rows[:train].sort().values, rows[train : train + validation].sort().values
