"""Posteriors on disk: safetensors and JSON, never pickle.

A directory with two files. `model.safetensors` holds the weights and the training history as arrays. `model.json`
holds what they mean: the format's version, the network's shape, the prior, the training record, and the size and hash
of the other file, so that a file cut short, or one of another model, is noticed. Both are written whole under temporary
names before either is put in place, the JSON last: what cannot be written leaves an earlier model as it was, and a kill
between the two is noticed by the hash.
"""

from __future__ import annotations

__all__ = ["FORMAT", "load", "save"]

import hashlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from equipoise.networks import network_from_spec
from equipoise.priors import Prior, as_prior, prior_from_spec
from equipoise.priors.base import dtype_name
from equipoise.support.devices import as_device
from equipoise.version import __version__

from .evaluation import some_weights
from .posterior import Posterior
from .weighted import prior_points

if TYPE_CHECKING:
    import xarray as xr

#: The version of what is written here. A reader refuses newer ones.
FORMAT = 1
#: At so many θ the density of a prior that cannot be described is stored, to know it by when it is brought again.
POINTS = 8
#: Numbers of two descriptions, and densities of two priors, may differ by rounding to single precision.
SAME_NUMBER, SAME_DENSITY = 2e-7, 1e-3


def save(posterior: Posterior, path: str | Path) -> None:
    """Write a posterior to the directory `path`, which is made if it does not exist."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a posterior is saved as a directory")
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"weights.{name}": w.detach().cpu().contiguous() for name, w in posterior.stack.items()}
    history = posterior.history
    if history is not None:
        arrays |= {f"history.{n}": torch.from_numpy(v.to_numpy().copy()) for n, v in history.data_vars.items()}
    description = {
        "format": FORMAT,
        "equipoise": __version__,
        "members": posterior.n_members,
        "network": posterior.network.spec(),
        "prior": posterior.prior.spec(),
        "prior_densities": _densities(posterior),
        "history_dims": None if history is None else {str(n): list(v.dims) for n, v in history.data_vars.items()},
        "history_attrs": {} if history is None else history.attrs,
        "record": posterior.record,
    }
    final = _files(folder)
    text, weights = (file.with_name(f".{file.name}.{os.getpid()}.tmp") for file in final)
    try:
        save_file(arrays, weights)
        description |= {"weights_bytes": weights.stat().st_size, "weights_blake2b": _hash(weights)}
        text.write_text(json.dumps(description, indent=1, ensure_ascii=False, default=_plain), encoding="utf-8")
        os.replace(weights, final[1])
        os.replace(text, final[0])
    finally:
        for file in (text, weights):
            file.unlink(missing_ok=True)


def load(
    path: str | Path,
    *,
    prior: Any = None,
    embedding: nn.Module | None = None,
    network: nn.Module | None = None,
    device: str | torch.device | None = "cpu",
) -> Posterior:
    """Read a posterior that `Posterior.save` wrote.

    Arguments:
        path: the directory.
        prior: needed only where the prior was an object of your own; one that is not the saved posterior's is refused.
        embedding: needed only where the embedding was.
        network: needed only where the network was.
        device: where to put it; None takes a GPU where there is one.
    """
    place = as_device(device)
    folder = Path(path)
    target, weights = _files(folder)
    if not folder.is_dir():
        what = "a file; give the folder that posterior.save has written" if folder.exists() else "not there"
        raise FileNotFoundError(f"there is no saved posterior at {folder}: it is {what}")
    for file in (target, weights):
        if not file.exists():
            raise FileNotFoundError(f"{folder} holds no saved posterior: {file.name} is missing")
    try:
        description = json.loads(target.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{target} is damaged or cut short ({error})") from error
    version = description.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise ValueError(
            f"{folder} was written in format {version} by Equipoise {description.get('equipoise', '?')}; this version "
            "reads up to format "
            f"{FORMAT}. Upgrade equipoise to read it."
        )
    size = weights.stat().st_size
    if size != description["weights_bytes"]:
        raise ValueError(f"{weights} is damaged or cut short: {size} bytes instead of {description['weights_bytes']}")
    digest = description.get("weights_blake2b")  # older files have none
    if digest is not None and digest != _hash(weights):
        raise ValueError(
            f"{weights} is not the file that {target.name} describes: the last save was interrupted, one of the two "
            "was replaced, or the file is damaged. Save the posterior again."
        )
    try:
        arrays = load_file(weights)
    except SafetensorError as error:
        raise ValueError(f"{weights} is damaged or cut short ({error})") from error

    the_prior = _agreed(prior, description) if prior is not None else prior_from_spec(description["prior"])
    architecture = network_from_spec(description["network"], the_prior, embedding, network)
    stack = {n[len("weights.") :]: w for n, w in arrays.items() if n.startswith("weights.")}
    wanted = architecture.layout.shapes
    for name, shape in wanted.items():
        if name not in stack:
            raise ValueError(
                f"{weights} lacks the weights {name!r}; do the embedding or network you gave match the saved ones?"
            )
        if tuple(stack[name].shape[1:]) != shape:
            raise ValueError(
                f"the weights {name!r} in {weights} have shape {tuple(stack[name].shape[1:])}, but the network needs "
                f"{shape}; do the prior, "
                "embedding or network you gave match the saved ones?"
            )
    history = _history(description, {n[len("history.") :]: w for n, w in arrays.items() if n.startswith("history.")})
    return Posterior(architecture, {n: stack[n] for n in wanted}, history, description["record"]).to(place)


def holds_model(path: str | os.PathLike[str]) -> bool:
    """Whether there is a saved posterior, or a part of one, in a directory."""
    return any(file.exists() for file in _files(Path(path)))


def _files(folder: Path) -> tuple[Path, Path]:
    """The description and the weights."""
    return folder / "model.json", folder / "model.safetensors"


def _hash(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _densities(posterior: Posterior) -> dict[str, Any] | None:
    """log p(θ) at a few draws of a prior that cannot be described; None for one that can."""
    prior = posterior.prior
    if prior.spec()["kind"] != "opaque":
        return None
    theta = prior_points(prior, POINTS, some_weights(posterior.stack))
    return {"theta": theta.tolist(), "log_prob": prior.log_prob(theta).tolist(), "dtype": dtype_name(theta.dtype)}


def _agreed(given: Any, description: dict[str, Any]) -> Prior:
    """The prior that was given to `load`, if nothing that was stored speaks against it."""
    prior, spec = as_prior(given), description["prior"]
    if spec["kind"] != "opaque":
        if not _same(prior.spec(), spec):
            raise ValueError(
                f"the posterior was trained with {prior_from_spec(spec)}, and prior= gives {prior}. A posterior keeps "
                "the prior it was trained with, and the file has it: leave prior= out. For another prior, train again"
            )
        return prior
    if prior.dim != spec["dim"]:
        raise ValueError(
            f"the posterior was trained with {spec['repr']}, of {spec['dim']} parameter(s), and prior= gives {prior}, "
            f"of {prior.dim}; bring the prior it was trained with"
        )
    stored = description.get("prior_densities")  # older files have none
    if stored is not None:
        theta = torch.tensor(stored["theta"], dtype=getattr(torch, stored["dtype"]), device=prior.device)
        with torch.no_grad():
            found = prior.log_prob(theta).double().cpu()
        then = torch.tensor(stored["log_prob"], dtype=torch.float64)
        other = ~torch.isclose(found, then, rtol=SAME_DENSITY, atol=SAME_DENSITY, equal_nan=True)
        if bool(other.any()):
            row = int(other.nonzero()[0])
            raise ValueError(
                f"the posterior was trained with {spec['repr']}, and prior= gives {prior}, which is another: at θ = "
                f"{stored['theta'][row]} the logarithm of its density is {float(found[row]):.6g}, and was "
                f"{float(then[row]):.6g} when the posterior was saved. Bring the prior it was trained with"
            )
    return prior


def _same(a: Any, b: Any) -> bool:
    """Whether two descriptions are the same, whatever their precision."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = a.keys() - {"dtype"}
        return names == b.keys() - {"dtype"} and all(_same(a[n], b[n]) for n in names)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(*pair) for pair in zip(a, b, strict=True))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=SAME_NUMBER)
    return bool(a == b)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which is all that JSON knows."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be saved as JSON")


def _history(description: dict[str, Any], arrays: dict[str, torch.Tensor]) -> xr.Dataset | None:
    if description["history_dims"] is None:
        return None
    import xarray as xr

    variables = {n: (description["history_dims"][n], a.numpy()) for n, a in arrays.items()}
    data = xr.Dataset(variables, attrs=description["history_attrs"])
    return data.assign_coords(
        {d: [str(m) for m in range(s)] if d == "member" else range(s) for d, s in data.sizes.items()}
    )
