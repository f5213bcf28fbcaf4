"""Commands for data of your own: `fit`, `diagnose` and `sample`."""

from __future__ import annotations

__all__ = ["diagnose", "fit", "sample"]

import json
import math
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    METHOD_NAMES,
    AsJson,
    Device,
    OwnEmbedding,
    Quiet,
    StoredPrior,
    ThetaKey,
    XFile,
    XKey,
    XShape,
    app,
    name_completion,
)
from .shell import (
    BEGINS_ANEW,
    check_device,
    check_file,
    check_folder,
    check_no_model,
    errors,
    read_embedding,
    read_shape,
)

if TYPE_CHECKING:
    import numpy as np

    from equipoise.posteriors import Posterior
    from equipoise.priors import Prior
    from equipoise.simulations import Simulations


@app.command(epilog="Example:  equipoise fit pairs.h5 --prior 'uniform(-3,3)^2' --method bnpe_init --out model")
def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Pairs (theta, x): .h5, .npz, .csv, .parquet, a store, or theta.npy.")
    ],
    prior: Annotated[
        str,
        typer.Option(
            metavar="SPEC", help="'uniform(-3,3)^2', 'loguniform(1e-3,10),normal(0,1)', a JSON file, or FILE.py:NAME."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="The directory to save the posterior in.")],
    method: Annotated[str, typer.Option("--method", "-m", autocompletion=name_completion(METHOD_NAMES))] = "bnpe_init",
    x: XFile = None,
    theta_key: ThetaKey = None,
    x_key: XKey = None,
    x_shape: XShape = None,
    embedding: OwnEmbedding = None,
    members: Annotated[int, typer.Option(help="Networks; the posterior is their mixture.")] = 5,
    epochs: Annotated[int, typer.Option(help="At most this many.")] = 500,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Pairs in a batch; 256, or fewer for few simulations, unless given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Device = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model, or another unfinished training, that is in MODEL already.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a posterior on simulations of your own, and save it.

    After Ctrl-C or a crash the same command goes on: every half minute MODEL/checkpoint keeps the state.
    """
    kept = out / "checkpoint"
    with errors(lambda: _kept(kept)):
        check_folder(out)
        if not force:
            check_no_model(out)
        check_device(device)
        from equipoise.training import fit as train

        the_prior = _read_prior(prior)
        pairs = _read_pairs(data, x, theta_key, x_key, read_shape(x_shape))
        if kept.exists() and not quiet:
            print(f"{kept} keeps an unfinished training", file=sys.stderr)
        training = partial(
            train,
            pairs.theta,
            pairs.compact(),
            prior=the_prior,
            method=method,
            members=members,
            epochs=epochs,
            batch_size=batch_size,
            embedding=read_embedding(embedding, seed),
            seed=seed,
            device=device,
            checkpoint=kept,
            progress=False if quiet else None,
        )
        try:
            posterior: Posterior = training()
        except ValueError as error:
            if "start='random'" in str(error):
                raise ValueError(f"{error} In the shell, that is --method bnpe, npe or a classifier") from error
            if str(kept) not in str(error):
                raise
            if not force:
                raise ValueError(
                    f"{kept} keeps an unfinished training of other data or options, or of another version. Repeat its "
                    "command, give another --out, or --force to begin anew"
                ) from error
            shutil.rmtree(kept)
            posterior = training()
        posterior.save(out)
        shutil.rmtree(kept, ignore_errors=True)
        if not quiet:
            print(f"{posterior!r} from {len(pairs)} pairs is in {out}; judge it with `equipoise diagnose {out} DATA`")


@app.command(epilog="Example:  equipoise diagnose model fresh-pairs.h5 --out diagnosis.nc")
def diagnose(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A saved posterior.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Pairs that were not used in training.")],
    x: XFile = None,
    theta_key: ThetaKey = None,
    x_key: XKey = None,
    x_shape: XShape = None,
    embedding: OwnEmbedding = None,
    prior: StoredPrior = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.nc", help="Keep everything as NetCDF.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option("--figure", metavar="FILE.png", help="Draw the coverage curve: .png, .pdf or .svg."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(help="How many of the pairs to use; all unless given.")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Draws behind each rank; 256 of a flow, 1000 points of a classifier.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Device = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if the posterior is overconfident.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Judge a saved posterior on pairs it has not seen: is it overconfident?"""
    with errors():
        check_device(device)
        for file in (out, figure):
            if file is not None:
                check_file(file)
        if figure is not None and figure.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise ValueError(f"--figure is a .png, .pdf or .svg file, got {figure}")
        from equipoise.diagnostics import diagnose as judge
        from equipoise.diagnostics import summary
        from equipoise.simulations.readers import is_table

        posterior = _load(model, embedding, prior, device)
        # A table has rows of numbers, and the model knows the shape that it reads.
        shape = read_shape(x_shape) or (posterior.x_shape if is_table(data) else None)
        test = _read_pairs(data, x, theta_key, x_key, shape, pairs)
        ds = judge(posterior, test.theta, test.compact(), samples=samples, seed=seed, progress=False if quiet else None)
        verdict = str(ds["verdict"].sel(member="mixture").values)
        if as_json:
            names = (
                "coverage_auc",
                "coverage_auc_se",
                "verdict_p_value",
                "certificate_p_value",
                "pairs_to_settle",
                "nominal_log_prob",
                "gain",
                "gain_se",
                "balancing_error",
                "leakage",
            )
            values = {n: float(ds[n].sel(member="mixture")) for n in names}
            # JSON has neither NaN nor infinity: null is what is not known, or would never be settled.
            row = {n: v if math.isfinite(v) else None for n, v in values.items()}
            print(json.dumps({"verdict": verdict, **row}))
        elif not quiet:
            print(summary(ds))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            ds.to_netcdf(out, engine="h5netcdf")
        if figure is not None:
            from matplotlib.figure import Figure

            from equipoise.plots import coverage

            figure.parent.mkdir(parents=True, exist_ok=True)
            page = Figure(figsize=(4.6, 4.4))
            coverage(ds, ax=page.subplots())
            page.savefig(figure, dpi=300, bbox_inches="tight")
    raise typer.Exit(1 if strict and verdict == "overconfident" else 0)


@app.command(epilog="Example:  equipoise sample model observed.npy --number 5000 --out draws.csv")
def sample(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A saved posterior.")],
    observation: Annotated[
        Path, typer.Argument(metavar="X", help="The observation: .npy, .npz, .h5, or numbers in a .csv or .txt file.")
    ],
    number: Annotated[int, typer.Option("--number", "-n", metavar="N", help="How many draws.")] = 1000,
    x_key: XKey = None,
    embedding: OwnEmbedding = None,
    prior: StoredPrior = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A .csv or .npy file; CSV on the screen unless given."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Draw parameters from a saved posterior, for one observation."""
    with errors():
        check_device(device)
        if number < 1:
            raise ValueError(f"--number is at least 1, got {number}")
        if out is not None:
            check_file(out)
            if out.suffix.lower() not in (".csv", ".npy"):
                raise ValueError(f"--out is a .csv or .npy file, got {out}")
        import numpy as np

        posterior = _load(model, embedding, prior, device)
        x = _read_observation(observation, x_key, posterior.x_shape)
        theta = posterior.sample((number,), x, seed=seed).cpu().numpy()
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
        if out is not None and out.suffix.lower() == ".npy":
            np.save(out, theta)
        else:
            names = ",".join(f"theta_{i}" for i in range(theta.shape[1]))
            np.savetxt(sys.stdout if out is None else out, theta, "%.7g", ",", header=names, comments="")
        if not quiet and out is not None:
            low, middle, high = np.quantile(theta, [0.025, 0.5, 0.975], axis=0)
            for i in range(theta.shape[1]):
                print(f"theta_{i}: {middle[i]:.4g}, 95% between {low[i]:.4g} and {high[i]:.4g}")
            print(f"{len(theta)} draws are in {out}")


def _load(model: Path, embedding: str | None, prior: str | None, device: str | None) -> Posterior:
    """A saved posterior, with whatever of it is not stored."""
    from equipoise.posteriors import load

    own, given = read_embedding(embedding), None if prior is None else _read_prior(prior)
    try:
        try:
            posterior = load(model, embedding=own, device=device)
        except ValueError as error:
            if given is None or "prior=" not in str(error):
                raise
            return load(model, prior=given, embedding=own, device=device)
    except ValueError as error:
        if own is None and "embedding=" in str(error):
            raise ValueError(f"{error}; in the shell, --embedding FILE.py:NAME") from error
        if prior is None and "prior=" in str(error):
            raise ValueError(f"{error}; in the shell, --prior SPEC") from error
        raise
    if given is not None and given.spec() != posterior.prior.spec():
        raise ValueError(f"{model} stores its prior, {posterior.prior!r}, and --prior is another: leave it out")
    return posterior


def _read_prior(text: str) -> Prior:
    """The prior that `--prior` describes, or names: text, a JSON file, `FILE.py:NAME` or `MODULE:NAME`.

    The name is that of a prior, of a class of them without arguments, or of a function without arguments.
    """
    from equipoise.named import named_object
    from equipoise.priors import as_prior
    from equipoise.priors.text import parse_prior

    if ":" not in text or text.strip().endswith(".json"):
        return parse_prior(text)
    found = named_object(text, "--prior")
    try:
        if isinstance(found, type) or (callable(found) and not hasattr(found, "log_prob")):
            found = found()
        return as_prior(found)
    except Exception as error:  # whatever a user's code may raise
        raise ValueError(f"--prior {text}: {type(error).__name__}: {error}") from error


def _read_pairs(
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

    if not is_table(data):
        return read_simulations(data, x, theta_key=theta_key, x_key=x_key, x_shape=x_shape, n=n)
    columns = [None if key is None else [name.strip() for name in key.split(",")] for key in (theta_key, x_key)]
    return read_simulations(data, x, theta_columns=columns[0], x_columns=columns[1], x_shape=x_shape, n=n)


def _read_observation(path: Path, key: str | None, shape: tuple[int, ...]) -> np.ndarray:
    """One observation from a file, with the shape that a model reads."""
    import h5py
    import numpy as np

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    kind = path.suffix.lower()
    if kind in (".npz", ".h5", ".hdf5"):
        with np.load(path) if kind == ".npz" else h5py.File(path) as file:
            keys = list(file)
            chosen = key or next((k for k in ("x", "x_o", "x_obs") if k in keys), keys[0] if len(keys) == 1 else None)
            if chosen not in keys:
                raise ValueError(
                    f"{path} has no key {chosen or 'x'!r}; there are {', '.join(keys)}. Say which: --x-key"
                )
            x = np.asarray(file[chosen])
    elif kind == ".npy":
        x = np.load(path)
    else:
        lines = path.read_text(encoding="utf-8").replace(",", " ").splitlines()
        try:
            x = np.array([float(number) for line in lines if not line.startswith("#") for number in line.split()])
        except ValueError as error:
            raise ValueError(f"{path} is not numbers: {error}") from error
    if x.size != math.prod(shape):
        raise ValueError(f"{path} has {x.size} numbers of shape {x.shape}; the model reads one x of shape {shape}")
    return x.reshape(shape)


def _kept(checkpoint: Path) -> str:
    """What is kept of a training that was stopped."""
    written = [file.stat().st_mtime for file in checkpoint.glob("*.safetensors")]
    if not written:
        return BEGINS_ANEW
    from equipoise.progress import duration

    ago = duration(max(0.0, time.time() - max(written)))
    return f"stopped; {checkpoint} keeps the training as it was {ago} ago, and the same command goes on from there"
