"""Commands for data of your own: `fit` and `diagnose`."""

from __future__ import annotations

__all__ = ["diagnose", "fit"]

import json
import math
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .options import (
    METHOD_NAMES,
    AsJson,
    Device,
    OwnEmbedding,
    Quiet,
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


@app.command(epilog="Example:  equipoise fit pairs.h5 --prior 'uniform(-3,3)^2' --method bnpe_init --out model")
def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Pairs (theta, x): .h5, .npz, .csv, .parquet, a store, or theta.npy.")
    ],
    prior: Annotated[
        str, typer.Option(metavar="SPEC", help="'uniform(-3,3)^2', 'normal(0,1),uniform(0,5)', or a JSON file.")
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
        from equipoise.posteriors import Posterior
        from equipoise.priors.text import parse_prior
        from equipoise.simulations import read_simulations
        from equipoise.training import fit as train

        the_prior = parse_prior(prior)
        pairs = read_simulations(data, x, theta_key=theta_key, x_key=x_key, x_shape=read_shape(x_shape))
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
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.nc", help="Keep everything as NetCDF.")
    ] = None,
    pairs: Annotated[int | None, typer.Option(help="How many of the pairs to use; all unless given.")] = None,
    samples: Annotated[int, typer.Option(help="Draws behind each rank.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Device = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if the posterior is overconfident.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Judge a saved posterior on pairs it has not seen: is it overconfident?"""
    with errors():
        check_device(device)
        if out is not None:
            check_file(out)
        from equipoise.diagnostics import diagnose as judge
        from equipoise.diagnostics import summary
        from equipoise.posteriors import load
        from equipoise.simulations import read_simulations
        from equipoise.simulations.readers import is_table

        own = read_embedding(embedding)
        try:
            posterior = load(model, embedding=own, device=device)
        except ValueError as error:
            if own is None and "embedding=" in str(error):
                raise ValueError(f"{error}; in the shell, --embedding FILE.py:NAME") from error
            raise
        # A table has rows of numbers, and the model knows the shape that it reads.
        shape = read_shape(x_shape) or (posterior.x_shape if is_table(data) else None)
        test = read_simulations(data, x, theta_key=theta_key, x_key=x_key, x_shape=shape, n=pairs)
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
    raise typer.Exit(1 if strict and verdict == "overconfident" else 0)


def _kept(checkpoint: Path) -> str:
    """What is kept of a training that was stopped."""
    written = [file.stat().st_mtime for file in checkpoint.glob("*.safetensors")]
    if not written:
        return BEGINS_ANEW
    from equipoise.progress import duration

    ago = duration(max(0.0, time.time() - max(written)))
    return f"stopped; {checkpoint} keeps the training as it was {ago} ago, and the same command goes on from there"
