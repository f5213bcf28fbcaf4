"""Commands for your own data: `fit`, `diagnose`, `calibrate` and `sample`."""

from __future__ import annotations

__all__ = ["calibrate", "diagnose", "fit", "sample"]

import json
import math
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from equipoise.support.files import write_whole
from equipoise.support.words import duration

from .app import (
    BEGINS_ANEW,
    AsJson,
    Device,
    Quiet,
    app,
    check_device,
    check_file,
    check_folder,
    complete_methods,
    errors,
)
from .user_data import load_model, read_embedding, read_observations, read_pairs, read_prior, read_shape

if TYPE_CHECKING:
    import numpy as np

XFile = Annotated[Path | None, Option("--x", metavar="FILE", help="x.npy, where DATA is theta.npy.")]
ThetaKey = Annotated[
    str | None, Option(metavar="KEY", help="The key of theta in a file, or columns of a table: 'mass,age'.")
]
XKey = Annotated[str | None, Option(metavar="KEY", help="The key of x in a file, or columns of a table: 'flux_*'.")]
XShape = Annotated[str | None, Option(metavar="T,C", help="The shape of one x, where a file has it flat: tables do.")]
OwnEmbedding = Annotated[
    str | None,
    Option(
        "--embedding", metavar="FILE.py:NAME", help="An nn.Module of your own, its class, or a function that makes it."
    ),
]
StoredPrior = Annotated[
    str | None, Option("--prior", metavar="SPEC", help="The prior, where MODEL does not hold it; as for `fit`.")
]
#: What `diagnose --json` prints, besides the verdict.
NUMBERS = (
    "coverage_auc", "coverage_auc_se", "verdict_p_value", "certificate_p_value", "pairs_to_settle", "nominal_log_prob",
    "gain", "gain_se", "balancing_error", "leakage",
)  # fmt: skip


@app.command(epilog="Example:  equipoise fit pairs.h5 --prior 'uniform(-3,3)^2' --out model")
def fit(
    data: Annotated[
        Path, Argument(metavar="DATA", help="Pairs (theta, x): .h5, .npz, .csv, .parquet, a store, or theta.npy.")
    ],
    prior: Annotated[
        str,
        Option(
            metavar="SPEC", help="'uniform(-3,3)^2', 'loguniform(1e-3,10),normal(0,1)', a JSON file, or FILE.py:NAME."
        ),
    ],
    out: Annotated[Path, Option("--out", "-o", metavar="MODEL", help="The directory to save the posterior in.")],
    method: Annotated[
        str,
        Option(
            "--method",
            "-m",
            autocompletion=complete_methods,
            help="'calibrated', or a name that `equipoise methods` lists.",
        ),
    ] = "calibrated",
    x: XFile = None,
    theta_key: ThetaKey = None,
    x_key: XKey = None,
    x_shape: XShape = None,
    names: Annotated[
        str | None, Option(metavar="A,B", help="Names of the parameters; those that DATA has unless given.")
    ] = None,
    embedding: Annotated[
        str | None, Option(metavar="HOW", help="'flatten', 'convolution', or FILE.py:NAME, an nn.Module of your own.")
    ] = None,
    members: Annotated[
        int | None,
        Option(metavar="N", help="Networks, whose mixture is the posterior; 10 if calibrated, else 5, unless given."),
    ] = None,
    folds: Annotated[
        int | None, Option(metavar="F", help="Cross-fit in so many folds; 5 if calibrated, else none, unless given.")
    ] = None,
    calibrate: Annotated[
        bool | None,
        Option("--calibrate/--no-calibrate", help="Temper by the out-of-fold pairs; yes if the method is calibrated."),
    ] = None,
    epochs: Annotated[int, Option(help="At most this many.")] = 500,
    batch_size: Annotated[
        int | None, Option(metavar="N", help="Pairs in a batch; 256, or fewer for few simulations, unless given.")
    ] = None,
    seed: Annotated[int, Option(help="Of everything random.")] = 0,
    device: Device = None,
    force: Annotated[
        bool, Option("--force", help="Replace a model, or another unfinished training, that is in MODEL already.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train a posterior on simulations of your own, and save it.

    After Ctrl-C or a crash the same command goes on: every half minute MODEL/checkpoint keeps the state.
    """
    kept = out / "checkpoint"
    with errors(lambda: _kept(kept)):
        check_folder(out)
        from equipoise.posteriors.files import holds_model

        if not force and holds_model(out):
            raise ValueError(f"--out {out} holds a model already; give another folder, or --force to replace it")
        check_device(device)
        from equipoise.support.errors import CheckpointMismatch, DamagedFile, NoPriorMap
        from equipoise.training import fit as train
        from equipoise.training.modules import EMBEDDINGS

        the_prior = read_prior(prior)
        pairs = read_pairs(data, x, theta_key, x_key, read_shape(x_shape))
        if kept.exists() and not quiet:
            print(f"{kept} keeps an unfinished training", file=sys.stderr)
        training = partial(
            train,
            pairs.theta,
            pairs.compact(),
            prior=the_prior,
            method=method,
            members=members,
            folds="auto" if folds is None else folds,
            calibrate=calibrate,
            epochs=epochs,
            batch_size=batch_size,
            embedding=embedding if embedding in EMBEDDINGS else read_embedding(embedding, seed),
            seed=seed,
            device=device,
            checkpoint=kept,
            progress=False if quiet else None,
            names=pairs.names if names is None else [name.strip() for name in names.split(",")],
        )
        try:
            posterior = training()
        except NoPriorMap as error:
            raise ValueError(f"{error} In the shell, that is --method bnpe, npe or a classifier") from error
        except (CheckpointMismatch, DamagedFile) as error:
            if not force:
                raise ValueError(
                    f"{kept} keeps an unfinished training of other data or options, or of another version, or is "
                    "damaged. Repeat its command, give another --out, or --force to begin anew"
                ) from error
            shutil.rmtree(kept)
            posterior = training()
        posterior.save(out, overwrite=force)
        shutil.rmtree(kept, ignore_errors=True)
        if not quiet:
            print(f"{posterior!r} from {len(pairs)} pairs is in {out}; judge it with `equipoise diagnose {out} DATA`")


@app.command(epilog="Example:  equipoise diagnose model fresh-pairs.h5 --out diagnosis.nc")
def diagnose(
    model: Annotated[Path, Argument(metavar="MODEL", help="A saved posterior.")],
    data: Annotated[Path, Argument(metavar="DATA", help="Pairs that were not used in training.")],
    x: XFile = None,
    theta_key: ThetaKey = None,
    x_key: XKey = None,
    x_shape: XShape = None,
    embedding: OwnEmbedding = None,
    prior: StoredPrior = None,
    out: Annotated[Path | None, Option("--out", "-o", metavar="FILE.nc", help="Keep everything as NetCDF.")] = None,
    figure: Annotated[
        Path | None, Option("--figure", metavar="FILE.png", help="Draw the coverage curve: .png, .pdf or .svg.")
    ] = None,
    pairs: Annotated[int | None, Option(min=1, help="How many of the pairs to use; all unless given.")] = None,
    samples: Annotated[
        int | None, Option(help="Draws behind each rank; 256 of a flow, 1000 points of a classifier.")
    ] = None,
    seed: Annotated[int, Option(help="Of everything random.")] = 0,
    device: Device = None,
    strict: Annotated[bool, Option("--strict", help="Exit with 1 if the posterior is overconfident.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Judge a saved posterior on pairs it has not seen: is it overconfident?"""
    with errors():
        check_device(device)
        if out is not None:
            check_file(out)
        if figure is not None:
            check_file(figure, "--figure", (".png", ".pdf", ".svg"))
        from equipoise.diagnostics import diagnose as judge
        from equipoise.diagnostics import summary
        from equipoise.simulations.readers import is_table

        posterior = load_model(model, embedding, prior, device)
        # A table has rows of numbers, and the model knows the shape that it reads.
        shape = read_shape(x_shape) or (posterior.x_shape if is_table(data) else None)
        test = read_pairs(data, x, theta_key, x_key, shape, pairs)
        ds = judge(posterior, test.theta, test.compact(), samples=samples, seed=seed, progress=False if quiet else None)
        verdict = str(ds["verdict"].sel(member="mixture").values)
        if as_json:
            values = {n: float(ds[n].sel(member="mixture")) for n in NUMBERS}
            # JSON has neither NaN nor infinity: null is what is not known, or would never be settled.
            row = {n: v if math.isfinite(v) else None for n, v in values.items()}
            print(json.dumps({"verdict": verdict, **row}))
        elif not quiet:
            print(summary(ds))
        if out is not None:
            from equipoise.support.hdf5 import write_netcdf

            write_netcdf(ds, out)
        if figure is not None:
            from matplotlib.figure import Figure

            from equipoise.plots import coverage

            page = Figure(figsize=(4.6, 4.4))
            coverage(ds, ax=page.subplots())
            with write_whole(figure) as temporary:
                page.savefig(temporary, dpi=300, bbox_inches="tight")
    raise typer.Exit(1 if strict and verdict == "overconfident" else 0)


@app.command(epilog="Example:  equipoise calibrate model fresh-pairs.h5 --out conservative-model")
def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A saved posterior.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Pairs that were not used in training.")],
    x: XFile = None,
    theta_key: ThetaKey = None,
    x_key: XKey = None,
    x_shape: XShape = None,
    embedding: OwnEmbedding = None,
    prior: StoredPrior = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="MODEL2", help="Where to save the result; MODEL-calibrated unless given."),
    ] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="How many of the pairs to use; all unless given.")] = None,
    alpha: Annotated[float, typer.Option(help="The probability of a false certificate.")] = 0.05,
    delta: Annotated[float, typer.Option(help="How far below its level coverage may lie, at most.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Device = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in MODEL2 already.")] = False,
    quiet: Quiet = False,
) -> None:
    """Make a saved posterior conservative: temper it until pairs it has not seen certify its coverage."""
    with errors():
        target = model.with_name(f"{model.name}-calibrated") if out is None else out
        check_folder(target)
        from equipoise.posteriors.files import holds_model

        if not force and holds_model(target):
            raise ValueError(f"{target} holds a model already; give another --out, or --force to replace it")
        check_device(device)
        from equipoise.diagnostics import calibrate as temper
        from equipoise.simulations.readers import is_table

        posterior = load_model(model, embedding, prior, device)
        shape = read_shape(x_shape) or (posterior.x_shape if is_table(data) else None)
        fresh = read_pairs(data, x, theta_key, x_key, shape, pairs)
        show = False if quiet else None
        found = temper(posterior, fresh.theta, fresh.compact(), alpha=alpha, delta=delta, seed=seed, progress=show)
        found.save(target, overwrite=force)
        if not quiet:
            print(f"{found.calibration}; saved in {target}")


@app.command(epilog="Example:  equipoise sample model observed.npy --number 5000 --out draws.csv")
def sample(
    model: Annotated[Path, Argument(metavar="MODEL", help="A saved posterior.")],
    observation: Annotated[
        Path,
        Argument(
            metavar="X", help="One observation or several, in rows: .npy, .npz, .h5, or numbers in a .csv or .txt file."
        ),
    ],
    number: Annotated[
        int, Option("--number", "-n", metavar="N", min=1, max=10**9, help="How many draws of each.")
    ] = 1000,
    x_key: XKey = None,
    embedding: OwnEmbedding = None,
    prior: StoredPrior = None,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="A .csv or .npy file; CSV on the screen unless given.")
    ] = None,
    seed: Annotated[int, Option(help="Of the draws.")] = 0,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Draw parameters from a saved posterior, for one observation or for each of several.

    Draws of several are a table with a first column `row`, the number of the observation from 0, or an array (N, rows,
    parameters).
    """
    with errors():
        check_device(device)
        if out is not None:
            check_file(out, kinds=(".csv", ".npy"))
        from equipoise.posteriors.answers import labels

        posterior = load_model(model, embedding, prior, device)
        x = read_observations(observation, x_key, posterior.x_shape)
        theta = posterior.sample_batched((number,), x, seed=seed).cpu().numpy()
        _write_draws(theta, labels(posterior), out)
        if not quiet and out is not None:
            _say_intervals(theta, labels(posterior))
            each = "" if len(x) == 1 else f" for each of {len(x)} observations"
            print(f"{number} draws{each} are in {out}")


def _write_draws(theta: np.ndarray, names: Sequence[str], out: Path | None) -> None:
    """Draws with shape `(n, B, D)` as a file, or as CSV on the screen; of one observation without its number."""
    import numpy as np

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    n, rows, dim = theta.shape
    if out is not None and out.suffix.lower() == ".npy":
        np.save(out, theta[:, 0] if rows == 1 else theta)
        return
    table, form, header = theta.transpose(1, 0, 2).reshape(-1, dim), ["%.7g"] * dim, list(names)
    if rows > 1:
        table = np.column_stack([np.repeat(np.arange(rows), n), table])
        form, header = ["%d", *form], ["row", *header]
    np.savetxt(sys.stdout if out is None else out, table, form, ",", header=",".join(header), comments="")


def _say_intervals(theta: np.ndarray, names: Sequence[str]) -> None:
    """Print median and 95% interval of each parameter, for each observation."""
    import numpy as np

    low, middle, high = np.quantile(theta, [0.025, 0.5, 0.975], axis=0)
    for row in range(theta.shape[1]):
        begin = "" if theta.shape[1] == 1 else f"row {row}, "
        for j, name in enumerate(names):
            ends = f"95% between {low[row, j]:.4g} and {high[row, j]:.4g}"
            print(f"{begin}{name}: {middle[row, j]:.4g}, {ends}")


def _kept(checkpoint: Path) -> str:
    """What is kept of a training that was stopped."""
    written = [file.stat().st_mtime for file in checkpoint.glob("*.safetensors")]
    if not written:
        return BEGINS_ANEW
    ago = duration(max(0.0, time.time() - max(written)))
    return f"stopped; {checkpoint} keeps the training as it was {ago} ago, and the same command goes on from there"
