"""What commands for your own data read: models, priors, embeddings, pairs and observations, from files or by name."""

from __future__ import annotations

__all__ = ["load_model", "read_embedding", "read_observations", "read_pairs", "read_prior", "read_shape"]

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from equipoise.posteriors import Posterior
    from equipoise.priors import Prior
    from equipoise.simulations import Simulations


def load_model(model: Path, embedding: str | None, prior: str | None, device: str | None) -> Posterior:
    """A saved posterior, with whatever of it is not stored."""
    from equipoise.posteriors import load
    from equipoise.support.errors import MissingPart, PriorMismatch

    own, given = read_embedding(embedding), None if prior is None else read_prior(prior)
    try:
        return load(model, prior=given, embedding=own, device=device)
    except MissingPart as error:
        options = {"embedding": "--embedding FILE.py:NAME", "prior": "--prior SPEC"}
        if error.argument not in options:
            raise
        raise ValueError(f"{error}; in the shell, {options[error.argument]}") from error
    except PriorMismatch as error:
        if error.stored is None:
            raise
        raise ValueError(f"{model} stores its prior, {error.stored!r}, and --prior is another: leave it out") from error


def read_prior(text: str) -> Prior:
    """The prior that `--prior` describes, as text or a JSON file, or names, as `read_embedding` has it."""
    from equipoise.priors import as_prior
    from equipoise.priors.text import parse_prior
    from equipoise.support.imports import named_object

    if ":" not in text or text.strip().endswith(".json"):
        return parse_prior(text)
    found = named_object(text, "--prior")
    try:
        if isinstance(found, type) or (callable(found) and not hasattr(found, "log_prob")):
            found = found()
        return as_prior(found)
    except Exception as error:  # whatever a user's code may raise
        raise ValueError(f"--prior {text}: {type(error).__name__}: {error}") from error


def read_pairs(
    data: Path,
    x: Path | None,
    theta_key: str | None,
    x_key: str | None,
    x_shape: tuple[int, ...] | None,
    n: int | None = None,
) -> Simulations:
    """Pairs from a file. Of a table the two keys are lists of columns, `mass,age` or `flux_*`."""
    from equipoise.simulations import read_simulations
    from equipoise.simulations.readers import is_table

    keys: dict[str, Any] = {"theta_key": theta_key, "x_key": x_key}
    if is_table(data):
        keys = {"theta_columns": _columns(theta_key), "x_columns": _columns(x_key)}
    return read_simulations(data, x, **keys, x_shape=x_shape, n=n)


def _columns(key: str | None) -> list[str] | None:
    """The columns that a key names."""
    return None if key is None else [name.strip() for name in key.split(",")]


def _has_names(path: Path) -> bool:
    """Whether the first line of a table is not numbers."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = next((line for line in file if line.strip() and not line.startswith("#")), "")
    try:
        return not [float(word) for word in first.replace(",", " ").split()]
    except ValueError:
        return True


def read_observations(path: Path, key: str | None, shape: tuple[int, ...]) -> np.ndarray:
    """Observations from a file, with shape `(B, *shape)`, shape being that of one x that a model reads.

    A file holds one observation, in any shape of as many numbers, or several: along the first axis of an array, or one
    in each row of a table or line of text.
    """
    import numpy as np

    from equipoise.simulations.readers import is_table, read_array, read_observed

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    kind, size = path.suffix.lower(), math.prod(shape)
    if key is not None and kind not in (".npz", ".h5", ".hdf5") and not is_table(path):
        raise ValueError(f"--x-key is for .npz, HDF5 and tables; {path} has no keys")
    if kind in (".npz", ".npy", ".h5", ".hdf5"):
        x = read_array(path, key)
    elif is_table(path) and (key is not None or kind != ".csv" or _has_names(path)):
        x = read_observed(path, _columns(key), size)
    else:
        x = _text_numbers(path)
    if x.size == size:
        return x.reshape(1, *shape)
    if x.ndim == 0 or x.size != len(x) * size or not len(x):
        raise ValueError(
            f"{path} has {x.size} numbers of shape {x.shape}; the model reads x of shape {shape}, one or several along "
            "the first axis (in text, one per line)"
        )
    return np.asarray(x.reshape(-1, *shape))


def _text_numbers(path: Path) -> np.ndarray:
    """The numbers of a text file, with shape `(lines, numbers)` where all lines have as many, else `(numbers,)`."""
    import numpy as np

    try:
        lines = path.read_text(encoding="utf-8").replace(",", " ").splitlines()
        rows = [[float(word) for word in line.split()] for line in lines if not line.startswith("#")]
    except ValueError as error:
        raise ValueError(f"{path} is not numbers: {str(error)[:200]}") from error
    rows = [row for row in rows if row]
    return np.array(rows if len({len(row) for row in rows}) == 1 else [v for row in rows for v in row])


def read_shape(text: str | None) -> tuple[int, ...] | None:
    """The shape that `--x-shape` means.

    Example:
        >>> read_shape("150,2"), read_shape("1 x 24 x 24"), read_shape(None)
        ((150, 2), (1, 24, 24), None)
    """
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.strip(" ()[],").replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(f"--x-shape is the shape of one x, such as 150,2 or 1,24,24, got {text!r}")
    return shape


def read_embedding(text: str | None, seed: int = 0) -> nn.Module | None:
    """The embedding that `--embedding` names, `FILE.py:NAME` or `MODULE:NAME`, with weights of a seed.

    The name is that of an `nn.Module`, or of a class or function that makes one without arguments.
    """
    if text is None:
        return None
    from torch import nn

    from equipoise.support.imports import named_object
    from equipoise.support.randomness import isolated

    found, name = named_object(text, "--embedding"), text.rpartition(":")[2]
    if callable(found) and not isinstance(found, nn.Module):
        try:
            with isolated(seed):
                found = found()
        except Exception as error:
            raise ValueError(
                f"--embedding {text}: {name}() failed ({type(error).__name__}: {error}); it is called without arguments"
            ) from error
    if not isinstance(found, nn.Module):
        raise ValueError(f"--embedding {text}: {name} gives {type(found).__name__}, not an nn.Module")
    return found
