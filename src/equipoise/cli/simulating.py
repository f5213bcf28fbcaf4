"""The command `simulate`: a simulator of your own, from the command line to files that `fit` and `diagnose` read."""

from __future__ import annotations

__all__ = ["simulate"]

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from .app import GOES_ON, Quiet, app, check_file, check_folder, errors
from .user_data import read_prior

#: Suffixes of `--out` that mean one file.
FILES = (".h5", ".hdf5")


@app.command(epilog="Example:  equipoise simulate mine.py:simulator --prior 'uniform(0,1)^2' -n 5000 --out pairs")
def simulate(
    simulator: Annotated[
        str,
        Argument(
            metavar="FILE.py:FUNCTION|MODULE:FUNCTION",
            help="Your simulator, simulator(theta) or simulator(theta, seed); the file is run. "
            "Only what stands here is imported.",
        ),
    ],
    prior: Annotated[
        str,
        Option(
            metavar="SPEC", help="'uniform(-3,3)^2', 'loguniform(1e-3,10),normal(0,1)', a JSON file, or FILE.py:NAME."
        ),
    ],
    number: Annotated[int, Option("--number", "-n", metavar="N", min=1, help="How many simulations, in all.")],
    out: Annotated[
        Path,
        Option("--out", "-o", metavar="DIR|FILE.h5", help="A folder, which a larger N extends; or one HDF5 file."),
    ],
    names: Annotated[
        str | None, Option(metavar="A,B", help="Names of the parameters; the prior's, where it has some, unless given.")
    ] = None,
    seed: Annotated[int, Option(help="Of everything random.")] = 0,
    workers: Annotated[int, Option("--workers", "-w", help="Processes; -1 for one per core.")] = 1,
    batched: Annotated[
        bool | None,
        Option(
            "--batched/--one-by-one", show_default=False, help="Many theta per call, or one; it is tried unless given."
        ),
    ] = None,
    array: Annotated[
        str | None, Option(metavar="torch|numpy", help="What the simulator is given; it is tried unless given.")
    ] = None,
    version: Annotated[
        str | None, Option(help="Of the simulator; a folder then compares it instead of the source.")
    ] = None,
    same_simulator: Annotated[
        bool, Option("--same-simulator", help="Go on although the simulator's source or version has changed.")
    ] = False,
    force: Annotated[bool, Option("--force", help="Replace FILE.h5, where it is there already.")] = False,
    quiet: Quiet = False,
) -> None:
    """Draw parameters from a prior and simulate them, for `fit` and `diagnose`.

    After Ctrl-C or a crash the same command goes on. A folder that is there already is extended to N simulations; use
    another --seed for pairs that have nothing in common, to judge a posterior with.
    """
    with errors(lambda: GOES_ON):
        one_file = out.suffix.lower() in FILES
        if one_file:
            check_file(out)
            if out.exists() and not force:
                raise ValueError(f"--out {out} is there already; give another file, or --force to replace it")
        else:
            check_folder(out)
        from equipoise.simulations import simulate as run

        # Finished blocks of one file lie beside it until it is written.
        store = out.with_name(f"{out.name}.unfinished") if one_file else out
        if not quiet:
            print(f"importing {simulator}", file=sys.stderr)
        with _imported(simulator) as function:
            options: dict[str, Any] = {"workers": workers, "batched": batched, "array": array, "version": version}
            options |= {"same_simulator": same_simulator, "progress": False if quiet else None}
            named = None if names is None else [name.strip() for name in names.split(",")]
            pairs = run(read_prior(prior), function, number, seed, store=store, names=named, **options)
        if one_file:
            pairs.save(out)
            shutil.rmtree(store)
        if not quiet:
            known = "" if pairs.names is None else f" of {', '.join(pairs.names)}"
            print(f"{len(pairs)} simulations{known} are in {out}; train with `equipoise fit {out} --prior …`")


@contextmanager
def _imported(text: str) -> Iterator[Any]:
    """The simulator of a name; while it is in use, what lies beside it can be imported, also in worker processes."""
    from equipoise.support.imports import named_object

    found = named_object(text, "SIMULATOR")
    if isinstance(found, type) or not callable(found):
        raise ValueError(f"SIMULATOR {text} is {type(found).__name__}, not a function of theta")
    where = Path(text.rpartition(":")[0])
    sys.path.insert(0, folder := str((where.parent if where.suffix == ".py" else Path()).resolve()))
    try:
        yield found
    finally:
        sys.path.remove(folder)
