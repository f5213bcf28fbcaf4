"""Posteriors on disk: safetensors and JSON, never pickle.

A directory with two files. `weights-<hash>.safetensors` holds the weights and the training history as arrays, under the
hash of its content. `model.json` says what they mean: the format's version, the network's shape, the prior, the record
of the training, the name, size and hash of the other file, and a digest of itself.

Writing `model.json`, whole, is the one step that makes a model the current one. The weights are in place before,
and those of an earlier model are removed after: a kill at any moment leaves the old model or the new one. Format 1 had
the weights in `model.safetensors`; it is still read.

What is read may be damaged, or altered by hand. Nothing is built from it before the sizes that it claims agree with the
arrays that are there.
"""

from __future__ import annotations

__all__ = ["FORMAT", "holds_model", "load", "save"]

import hashlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import nn

from equipoise.networks import LOG_WEIGHTS, network_from_spec
from equipoise.priors import Prior, as_prior, prior_from_spec
from equipoise.priors.agreement import same_description
from equipoise.priors.prior import dtype_name
from equipoise.support.checks import file_path
from equipoise.support.devices import as_device
from equipoise.support.errors import DamagedFile, MissingPart, PriorMismatch
from equipoise.support.files import Lock, digest, remove_leftovers, write_text, write_whole
from equipoise.support.words import shown
from equipoise.version import __version__

from .evaluation import some_weights
from .posterior import Posterior
from .temperature import Calibration
from .weighted import prior_points

if TYPE_CHECKING:
    import xarray as xr

#: The version of what is written here. A reader refuses newer ones: one that does not know of temperatures would take
#: a tempered posterior for the networks alone, so that only the others are written as format 2.
FORMAT, TEMPERED, UNTEMPERED = 4, 3, 2
#: Names of the two files; the second as it is now, and as it was in format 1.
MODEL, WEIGHTS = "model.json", re.compile(r"weights-[0-9a-f]{32}\.safetensors|model\.safetensors")
#: Seconds to wait for another process that saves to the same directory.
WAIT = 60
#: At so many θ the density of a prior that cannot be described is stored, to compare it when it is given again.
POINTS = 8
#: Densities of two priors may differ by rounding to single precision.
SAME_DENSITY = 1e-3

T = TypeVar("T")


def _acquired(lock: Lock, folder: Path) -> bool:
    """Whether a lock was taken; the first thing that is written to a folder, and so the first that may fail."""
    try:
        return lock.acquire()
    except OSError as error:
        raise OSError(
            error.errno, f"nothing can be written to {folder} ({error.strerror}): give another directory"
        ) from error


def save(posterior: Posterior, path: str | Path, overwrite: bool = False) -> None:
    """Write a posterior to the directory `path`, which is made if it does not exist.

    Another model that is there is replaced if `overwrite` is True, and else an error, as in the shell.
    """
    folder = file_path("path", path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a posterior is saved as a directory")
    arrays = {f"weights.{name}": w.detach().cpu().contiguous() for name, w in posterior.stack.items()}
    history = posterior.history
    if history is not None:
        arrays |= {f"history.{n}": torch.from_numpy(v.to_numpy().copy()) for n, v in history.data_vars.items()}
    content = to_bytes(arrays)
    name = hashlib.blake2b(content, digest_size=16).hexdigest()
    weights = folder / f"weights-{name}.safetensors"
    tempered = posterior.temperature != 1 or posterior.calibration is not None
    description = {
        "format": FORMAT if _is_new(posterior) else TEMPERED if tempered else UNTEMPERED,
        "equipoise": __version__,
        "weights": weights.name,
        "weights_bytes": len(content),
        "weights_blake2b": name,
        "members": posterior.n_members,
        "network": posterior.network.spec(),
        "prior": posterior.prior.spec(),
        "prior_densities": _densities(posterior),
        "history_dims": None if history is None else {str(n): list(v.dims) for n, v in history.data_vars.items()},
        "history_attrs": {} if history is None else history.attrs,
        "record": posterior.record | ({} if posterior.names is None else {"names": posterior.names}),
    }
    if tempered:
        known = posterior.calibration
        description |= {
            "temperature": posterior.temperature,
            "calibration": None if known is None else known.to_dict(),
        }
    # As it will be read: with tuples as lists, and NumPy's numbers as Python's.
    description = json.loads(json.dumps(description, default=_plain))
    text = json.dumps({**description, "digest": _digest(description)}, indent=1, ensure_ascii=False)
    lock, until = Lock(folder / "model.lock"), time.monotonic() + WAIT
    while not _acquired(lock, folder):
        if time.monotonic() > until:
            raise TimeoutError(f"another process has been saving to {folder} for {WAIT} s; give another directory")
        time.sleep(0.05)
    try:
        if not overwrite and _holds_another(folder, description):
            raise FileExistsError(f"{folder} holds another model; give another directory, or overwrite=True")
        with write_whole(weights) as temporary:
            temporary.write_bytes(content)
        write_text(folder / MODEL, text)
        remove_leftovers(folder / MODEL)
        for file in (*folder.glob("weights-*.safetensors"), *folder.glob(".weights-*.tmp.safetensors")):
            if file != weights:
                file.unlink(missing_ok=True)
        (folder / "model.safetensors").unlink(missing_ok=True)
    finally:
        lock.release()


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
    place, folder = as_device(device), file_path("path", path)
    for name, value in (("embedding", embedding), ("network", network)):
        if value is not None and not isinstance(value, nn.Module):
            raise TypeError(f"{name} is the nn.Module that the posterior was trained with, got {shown(value)}")
    if not folder.is_dir():
        what = "a file; give the folder that posterior.save has written" if folder.exists() else "not there"
        raise FileNotFoundError(f"there is no saved posterior at {folder}: it is {what}")
    description, weights = _described(folder)
    if digest(weights) != description.get("weights_blake2b", digest(weights)):  # older files have none
        raise DamagedFile(
            f"{weights} is not the file that {MODEL} describes: one of the two was replaced, or the file is damaged. "
            "Save the posterior again."
        )
    try:
        with safe_open(weights, framework="pt") as header:
            shapes = {n: tuple(header.get_slice(n).get_shape()) for n in header.keys()}  # noqa: SIM118 (no mapping)
        named = {n.removeprefix("weights."): s for n, s in shapes.items() if n.startswith("weights.")}
        _check_sizes(description["network"], description["members"], named)
        record = description["record"]
        if not isinstance(record, dict):
            raise TypeError(f"the record is {record!r}")
        the_prior = _prior(prior, description)
        the_prior = the_prior.named(record.get("names", the_prior.names))
        spec = description["network"]
        parts = spec.get("networks", [spec])
        missing = "network" if network is None and any(s["kind"] == "user" for s in parts) else None
        if embedding is None and any(s["embedding"]["kind"] == "module" for s in parts):
            missing = "embedding"
        architecture = _part(missing, lambda: network_from_spec(spec, the_prior, embedding, network))
        wanted = ({LOG_WEIGHTS: ()} if f"weights.{LOG_WEIGHTS}" in shapes else {}) | architecture.shapes
        _compare(wanted, shapes, weights)
        arrays = load_file(weights)
        history = _history(description, arrays)
        known = description.get("calibration")
        found = Posterior(
            architecture,
            {n: arrays[f"weights.{n}"] for n in wanted},
            history,
            record,
            temperature=description.get("temperature", 1.0),
            calibration=None if known is None else Calibration.from_dict(known),
        )
    except (DamagedFile, MissingPart, PriorMismatch, MemoryError):
        raise
    except SafetensorError as error:
        raise DamagedFile(f"{weights} is damaged or cut short ({error})") from error
    except Exception as error:
        if not (prior is None and embedding is None and network is None):
            raise  # of what was given
        raise DamagedFile(
            f"{folder / MODEL} does not describe a posterior ({type(error).__name__}: {error}): it is damaged, was "
            "altered, or is of a newer Equipoise"
        ) from error
    return found.to(place)


def _is_new(posterior: Posterior) -> bool:
    """Whether there is something in it that versions before format 4 do not know: other networks, or weights."""
    spec = json.dumps(posterior.network.spec())
    return LOG_WEIGHTS in posterior.stack or any(f'"{word}"' in spec for word in ("univariate", "ranked"))


def _holds_another(folder: Path, description: dict[str, Any]) -> bool:
    """Whether there is a whole saved posterior in a directory, and not this one."""
    try:
        there, _ = _described(folder)
    except (OSError, DamagedFile):
        return False
    return any(there.get(name) != value for name, value in description.items() if name != "equipoise")


def holds_model(path: str | os.PathLike[str]) -> bool:
    """Whether there is a whole saved posterior in a directory."""
    try:
        _described(Path(path))
    except (OSError, DamagedFile):
        return False
    return True


def _described(folder: Path) -> tuple[dict[str, Any], Path]:
    """The description of a model and the file of its weights, which has the size that it should have."""
    target = folder / MODEL
    if not target.is_file():
        raise FileNotFoundError(f"{folder} holds no saved posterior: {MODEL} is missing")
    try:
        description = json.loads(target.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{target} is damaged or cut short ({error})") from error
    if not isinstance(description, dict):
        raise DamagedFile(f"{target} does not describe a posterior: it is a {type(description).__name__}")
    version = description.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise DamagedFile(
            f"{target} was written in format {version} by Equipoise {description.get('equipoise', '?')}; this version "
            f"reads up to format {FORMAT}. Upgrade equipoise to read it."
        )
    if description.pop("digest", None) != _digest(description) and version > 1:  # older files have none
        raise DamagedFile(f"{target} was altered after it was written, or is damaged. Save the posterior again.")
    name = description.get("weights", "model.safetensors")
    if not isinstance(name, str) or not WEIGHTS.fullmatch(name):
        raise DamagedFile(f"{target} names {name!r} as the file of the weights, which is none")
    weights = folder / name
    if not weights.is_file():
        raise FileNotFoundError(f"{folder} holds no saved posterior: {name} is missing")
    size, wanted = weights.stat().st_size, description.get("weights_bytes")
    if size != wanted:
        raise DamagedFile(f"{weights} is damaged or cut short: {size} bytes instead of {wanted}")
    return description, weights


def _digest(description: dict[str, Any]) -> str:
    """Of the content of a description, however it is laid out."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _check_sizes(spec: dict[str, Any], members: int, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise unless the network that is described can have the weights that are there, by number and size.

    A network costs at least: a weight for each pair of neighbouring hidden units, in each transform; and some arrays
    for each layer and transform.
    """
    if spec["kind"] == "mixture":
        networks, sizes = spec["networks"], spec["sizes"]
        if not networks or len(networks) != len(sizes) or sum(sizes) != members or len(networks) > len(shapes):
            raise ValueError(f"the members of {len(networks)} architectures, {sizes}, are not {members} in all")
        for g, (one, size) in enumerate(zip(networks, sizes, strict=True)):
            start = f"{g}."
            own = {name.removeprefix(start): shape for name, shape in shapes.items() if name.startswith(start)}
            if one["kind"] == "mixture":
                raise ValueError("a mixture of mixtures")
            _check_sizes(one, size, own)
        shapes = {LOG_WEIGHTS: shapes.get(LOG_WEIGHTS, ())}
    if not shapes or any(shape[:1] != (members,) for shape in shapes.values()):
        raise ValueError(f"the weights are not those of {members} members")
    if spec["kind"] == "mixture":
        return
    arrays, numbers = len(shapes), sum(math.prod(shape[1:]) for shape in shapes.values())
    body = spec["embedding"]
    hidden = [_whole(width, "a hidden layer", numbers) for width in spec.get("hidden", [])]
    transforms = _whole(spec.get("transforms", 1), "transforms", arrays)
    for owner, name in ((spec, "bins"), (body, "channels")):
        _whole(owner.get(name, 1), name, numbers)
    for what, count in (("layers", body.get("layers", 0)), ("hidden layers", len(hidden))):
        _whole(count + 1, what, arrays + 1)
    pairs = sum(a * b for a, b in itertools.pairwise(hidden))
    _whole(1 + transforms * pairs, "weights", numbers + 1)
    x_shape = [_whole(size, "x_shape", 1 << 40) for size in body["x_shape"]]
    # Numbers of x that share a statistic do not show in the weights.
    if math.prod(x_shape) > (numbers if body["kind"] == "flat" and spec["kind"] != "user" else 1 << 32):
        raise ValueError(f"observations of shape {x_shape} are too large for these weights")


def _whole(value: Any, what: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{what}: {value!r} does not agree with the weights that are there")
    return value


def _compare(wanted: dict[str, tuple[int, ...]], shapes: dict[str, tuple[int, ...]], weights: Path) -> None:
    """Raise unless the arrays in the file are those that a network needs."""
    for name, shape in wanted.items():
        found = shapes.get(f"weights.{name}")
        if found is None:
            raise DamagedFile(
                f"{weights} lacks the weights {name!r}; do the embedding or network you gave match the saved ones?"
            )
        if found[1:] != tuple(shape):
            raise DamagedFile(
                f"the weights {name!r} in {weights} have shape {found[1:]}, but the network needs {tuple(shape)}; do "
                "the prior, embedding or network you gave match the saved ones?"
            )


def _part(missing: str | None, build: Callable[[], T]) -> T:
    """What `build` gives; its error is a `MissingPart` where it needs an argument of `load` that is missing."""
    try:
        return build()
    except ValueError as error:
        if missing is None:
            raise
        raise MissingPart(str(error), missing) from error


def _densities(posterior: Posterior) -> dict[str, Any] | None:
    """log p(θ) at a few draws of a prior that cannot be described; None for one that can."""
    prior = posterior.prior
    if prior.spec()["kind"] != "opaque":
        return None
    theta = prior_points(prior, POINTS, some_weights(posterior.stack))
    return {"theta": theta.tolist(), "log_prob": prior.log_prob(theta).tolist(), "dtype": dtype_name(theta.dtype)}


def _prior(given: Any, description: dict[str, Any]) -> Prior:
    """The stored prior; or the one that was given to `load`, if nothing that was stored speaks against it."""
    spec = description["prior"]
    if given is None:
        return _part("prior" if spec["kind"] == "opaque" else None, lambda: prior_from_spec(spec))
    prior = as_prior(given)
    if spec["kind"] != "opaque":
        stored = prior_from_spec(spec)
        if not same_description(prior.spec(), spec):
            raise PriorMismatch(
                f"the posterior was trained with {stored}, and prior= gives {prior}. A posterior keeps the prior it "
                "was trained with, and the file has it: leave prior= out. For another prior, train again",
                stored,
            )
        return prior
    if prior.dim != spec["dim"]:
        raise PriorMismatch(
            f"the posterior was trained with {spec['repr']}, of {spec['dim']} parameter(s), and prior= gives {prior}, "
            f"of {prior.dim}; bring the prior it was trained with"
        )
    known = description.get("prior_densities")  # older files have none
    if known is not None:
        theta = torch.tensor(known["theta"], dtype=getattr(torch, known["dtype"]), device=prior.device)
        with torch.no_grad():
            found = prior.log_prob(theta).double().cpu()
        then = torch.tensor(known["log_prob"], dtype=torch.float64)
        other = ~torch.isclose(found, then, rtol=SAME_DENSITY, atol=SAME_DENSITY, equal_nan=True)
        if bool(other.any()):
            row = int(other.nonzero()[0])
            raise PriorMismatch(
                f"the posterior was trained with {spec['repr']}, and prior= gives {prior}, which is another: at θ = "
                f"{known['theta'][row]} the logarithm of its density is {float(found[row]):.6g}, and was "
                f"{float(then[row]):.6g} when the posterior was saved. Bring the prior it was trained with"
            )
    return prior


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which is all that JSON knows."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} of type {type(value).__name__} cannot be saved as JSON")


def _history(description: dict[str, Any], arrays: dict[str, torch.Tensor]) -> xr.Dataset | None:
    dims = description["history_dims"]
    if dims is None:
        return None
    import xarray as xr

    found = {n.removeprefix("history."): a.numpy() for n, a in arrays.items() if n.startswith("history.")}
    data = xr.Dataset({n: (dims[n], a) for n, a in found.items()}, attrs=description["history_attrs"])
    return data.assign_coords(
        {d: [str(m) for m in range(s)] if d == "member" else range(s) for d, s in data.sizes.items()}
    )
