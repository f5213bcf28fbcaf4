"""Pairs of parameters and observations, checked before training."""

from __future__ import annotations

__all__ = ["Pairs", "check_pairs", "named_prior", "refuse_invalid", "split_rows", "warn_about_few"]

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.priors import Prior
from equipoise.support.arrays import TOO_LARGE, as_tensor, plain
from equipoise.support.checks import column_names, parameter_names
from equipoise.support.errors import warn
from equipoise.support.randomness import generator

from .settings import Settings

#: How many numbers are checked for what single precision makes of them.
CHECKED_FOR_ROUNDING = 1 << 22
#: Fewer pairs than this cannot validate a training. A loss over n pairs has a standard error of about σ/√n, and σ of a
#: log posterior is a nat or so: 0.3 nats with 10 pairs, which is what many simulations tell of a parameter.
FEWEST_VALIDATION = 10


class Pairs(NamedTuple):
    """Pairs that have been checked."""

    theta: Tensor  # (N, D)
    x: Any  # a tensor with shape `(N, *x_shape)`, or what reads rows of such an array by index


def named_prior(prior: Prior, names: Sequence[str] | None, theta: Any, x: Any) -> Prior:
    """The prior with names of its parameters: the given ones, or those of the simulations or of a table's columns, or
    its own.

    Arguments:
        prior: of D parameters.
        names: as a user gave them.
        theta: an array, a table, or simulations.
        x: likewise.
    """
    if names is None:
        kept = [getattr(v, "names", None) for v in (theta, x) if hasattr(v, "lazy_x")]  # tensors have other names
        names = next((found for found in kept if found is not None), column_names(theta))
        if names is None or len(names) != prior.dim:
            return prior
    names = parameter_names(names, prior.dim)
    if prior.names is not None and set(prior.names) == set(names) and prior.names != names:
        raise ValueError(
            f"theta has the parameters {', '.join(names)}, and the prior {', '.join(prior.names)}: bring both into the "
            "same order"
        )
    return prior.named(names)


def check_pairs(theta: Any, x: Any, prior: Prior, dtype: torch.dtype) -> Pairs:
    """θ as a float tensor with shape `(N, D)` and x as it will be held, or an error that says what is wrong."""
    theta = as_tensor(theta, "theta").detach()
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
        which = prior.outside(theta[row].to(prior.device))
        raise ValueError(
            f"{int((~inside).sum())} of {len(theta)} rows of theta lie outside the prior's support, the first is row "
            f"{row}: {theta[row].tolist()}{which and f' ({which})'}. Was theta drawn from another prior, or scaled?"
        )
    return Pairs(theta, x)


def _observations(x: Any) -> Any:
    """x as a tensor, or as it is where it is not in memory: anything with a shape and rows by index."""
    x = getattr(x, "lazy_x", x)  # of simulations and stores
    x = x if _stays_where_it_is(x) else plain(x)
    kind = getattr(getattr(x, "dtype", None), "kind", "f")  # of NumPy's and h5py's; torch's has none
    if kind not in "biuf":
        raise TypeError(f"x should be an array of real numbers, and is of dtype {x.dtype}")
    if isinstance(x, np.ndarray) and not isinstance(x, np.memmap):
        return torch.from_numpy(np.ascontiguousarray(x))
    if isinstance(x, list | tuple | Tensor):
        return as_tensor(x, "x").detach()
    if not _stays_where_it_is(x):
        raise TypeError(
            f"x should be an array or a tensor, and is of type {type(x).__name__}. Give simulations as pairs or "
            "pairs.x; of files a numpy.memmap or an h5py dataset"
        )
    return x


def _stays_where_it_is(x: Any) -> bool:
    """Whether this is an array on disk, or of another library, whose rows are read when they are wanted."""
    if isinstance(x, np.memmap):
        return True
    known = isinstance(x, np.ndarray | Tensor | list | tuple) or hasattr(x, "to_numpy") or hasattr(x, "__dlpack__")
    return not known and all(hasattr(x, name) for name in ("shape", "__len__", "__getitem__"))


def refuse_invalid(values: Tensor, name: str, given: Tensor | None = None, rows: Tensor | None = None) -> None:
    """An error where values, with shape `(N, …)`, are not finite; `given` are those before they were brought to the
    networks' precision, `rows` the numbers of these rows, where they are some of many.
    """
    if not values.is_floating_point():
        return
    bad = ~values.flatten(1).isfinite().all(1)
    if not bool(bad.any()):
        return
    count, first = f"{int(bad.sum())} of {len(values)} rows of {name}", int(bad.nonzero()[0])
    if rows is not None:
        count, first = f"{count} that were checked", int(rows[first])
    if given is not None and bool(given[bad].isfinite().all()):
        raise ValueError(f"{count} have values {TOO_LARGE}. The first is row {first}.")
    raise ValueError(
        f"{count} have NaN or infinite values, the first is row {first}. "
        "Leave those simulations out (eq.simulate does so and says how many), or replace the values."
    )


def warn_about_few(n: int, fraction: float) -> None:
    """Warn if too few pairs are left for validation."""
    left = int(round(n * fraction, 9))
    if 2 <= left < FEWEST_VALIDATION:  # fewer are refused
        warn(
            f"{n} simulations leave {left} pairs for validation, which decide when training stops: with fewer than "
            f"{FEWEST_VALIDATION} that is mostly chance. Simulate more, or raise validation_fraction (use fewer folds)",
        )


def _warn_about_rounding(x: Tensor, dtype: torch.dtype) -> None:
    """Warn if single precision cannot resolve how much x varies, as of Julian dates."""
    if dtype == torch.float64 or x.dtype not in (torch.float32, torch.float64, torch.int32, torch.int64):
        return
    rows = x[: max(2, CHECKED_FOR_ROUNDING // x[0].numel())].flatten(1).double()
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
            f"{float(spread[worst]):.2g} only. Subtract an offset from x where it is computed, in double precision",
        )


def split_rows(n: int, fraction: float, settings: Settings, least: int, seed: int) -> tuple[Tensor, Tensor]:
    """The rows that train and those that validate: floor((1 - fraction) n) and floor(fraction n) of them."""
    # Rounded first: 0.1 * 1000 must give 100 although 0.1 is no binary fraction.
    validation, train = int(round(n * fraction, 9)), int(round(n * (1 - fraction), 9))
    if validation < least or train < least:
        raise ValueError(
            f"{n} pairs with validation_fraction={fraction} leave {train} for training and {validation} for "
            f"validation; this method needs at least {least} of each. Use more pairs, or another validation_fraction"
        )
    rows = torch.arange(n) if settings.split == "prefix" else torch.randperm(n, generator=generator(seed, "split"))
    return rows[:train].sort().values, rows[train : train + validation].sort().values
