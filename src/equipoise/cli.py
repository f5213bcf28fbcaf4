"""The command line: `equipoise run`, and what looks at its results; `fit` and `diagnose` for data of your own.

Exit codes: 0 where everything asked for is there, 1 where something is missing or failed, 2 for a command that cannot
be understood, 130 after Ctrl-C.
"""

from __future__ import annotations

__all__ = ["app"]

import json
import math
import os
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
except ImportError as missing:  # the core does not need them
    raise SystemExit("the command line needs typer and rich: pip install 'equipoise[cli]'") from missing

from equipoise.shell import (
    BEGINS_ANEW,
    GOES_ON,
    check_device,
    check_file,
    check_folder,
    check_no_model,
    errors,
    read_embedding,
    read_shape,
)

# Threads that wait for each other by spinning take five times as long as one thread where another process wants a core
# (a balanced flow's step: 69 ms against 14; 12 where they sleep). It has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

#: For shell completion, which cannot wait for torch to be imported. A test compares them with the tables.
TASK_NAMES = ("slcp", "weinberg", "spatial_sir", "lotka_volterra", "two_moons")
METHOD_NAMES = ("nre", "bnre", "nre_c", "bnre_c", "npe", "bnpe", "rnpe", "brnpe", "bnpe_init", "brnpe_init")

app = typer.Typer(
    name="equipoise",
    help="Conservative simulation-based inference: train, judge, compare.\n\nStart with: equipoise run",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of an experiment.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
XFile = Annotated[Path | None, typer.Option("--x", metavar="FILE", help="x.npy, where DATA is theta.npy.")]
ThetaKey = Annotated[str | None, typer.Option(metavar="KEY", help="The key of theta in an HDF5 or .npz file.")]
XKey = Annotated[str | None, typer.Option(metavar="KEY", help="The key of x in an HDF5 or .npz file.")]
XShape = Annotated[
    str | None, typer.Option(metavar="T,C", help="The shape of one x, where a file has it flat: tables do.")
]
OwnEmbedding = Annotated[
    str | None,
    typer.Option(
        "--embedding", metavar="FILE.py:NAME", help="An nn.Module of your own, its class, or a function that makes it."
    ),
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="A GPU where there is one, unless given.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def _names(names: tuple[str, ...]) -> Any:
    return lambda incomplete: [n for n in names if n.startswith(incomplete)]


@app.command(epilog="Examples:  equipoise run  |  equipoise run --task two_moons --method bnpe --budget 4096 --runs 3")
def run(
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", metavar="T", help="A task; may be repeated.", autocompletion=_names(TASK_NAMES)),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="M",
            help="A method; may be repeated. Options in brackets: 'bnpe[balance=kl,strength=10]'.",
            autocompletion=_names(METHOD_NAMES),
        ),
    ] = None,
    budget: Annotated[
        list[int] | None, typer.Option("--budget", "-b", metavar="N", help="Simulations; may be repeated.")
    ] = None,
    runs: Annotated[int | None, typer.Option(help="Repetitions, each with its own simulations.")] = None,
    members: Annotated[int | None, typer.Option(help="Networks a run; its posterior is their mixture.")] = None,
    grid: Annotated[
        str | None,
        typer.Option("--grid", "-g", metavar="FILE.toml", help="A grid: a TOML file, or demo, paper, released, …."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            metavar="paper|released", help="How to train and judge.", autocompletion=_names(("paper", "released"))
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Train for at most this many epochs.")] = None,
    pairs: Annotated[int | None, typer.Option(help="Coverage pairs: 1000, or 10000 in the protocols.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Where to put everything.")] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="local|tcp://…|slurm.yaml", help="Dask workers; this process unless given.")
    ] = None,
    device: Device = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads for each stack.")] = None,
    stack: Annotated[int | None, typer.Option(help="Train at most this many members together.")] = None,
    stop_after: Annotated[
        float | None, typer.Option(metavar="MINUTES", help="Begin no stack that would not end within this time.")
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option(
            help="What stacks take, as a share of the times of --dry-run; 0 begins them until the time is over. "
            "What finished stacks took, unless given."
        ),
    ] = None,
    checkpoint: Annotated[bool, typer.Option(help="Keep the state of long trainings.")] = True,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", show_default=False, help="Compile steps; where it pays back, unless given."
        ),
    ] = None,
    report: Annotated[bool, typer.Option(help="Write figures and the report.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be computed and what it would cost.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid of task × method × budget × run; without arguments, a demonstration of a few minutes.

    Computes what is missing in DIR, and nothing else: run the same command again after Ctrl-C, a crash or a failure.
    What is not said follows the grid, which follows its protocol.
    """
    with errors(lambda: GOES_ON):
        from equipoise.experiments import Folder, check_cluster
        from equipoise.launch import choose_grid, compute, conclude, show_plan

        changes: dict[str, Any] = {
            "tasks": task or None,
            "methods": method or None,
            "budgets": budget or None,
            "runs": runs,
            "members": members,
            "pairs": pairs,
            "seed": seed,
            "stack": stack,
        }
        chosen = choose_grid(grid, protocol, epochs, changes)
        demo = grid is None and protocol is None and not any(v is not None for v in (*changes.values(), epochs))
        folder = Folder(out or (Path("demo") if demo else Path("runs") / chosen.name))
        check_folder(folder.path, write=not dry_run)
        if device not in (None, "cpu", "cuda"):
            raise ValueError(f"--device is cpu or cuda, got {device!r}")
        if threads is not None and threads < 1:
            raise ValueError(f"--threads is at least 1, got {threads}")
        if pace is not None and pace < 0:
            raise ValueError(f"--pace is at least 0, got {pace}")
        check_cluster(cluster)
        if dry_run:  # of a GPU that is elsewhere, too
            show_plan(chosen, folder, device, as_json)
            return
        if cluster in (None, "local"):  # what other machines have is theirs to say
            check_device(device)
        state = compute(
            chosen, folder, cluster, device, threads, checkpoint, stop_after, pace, compile, quiet or as_json
        )
        conclude(chosen, folder, state, report, quiet, as_json)
    raise typer.Exit(0 if state.complete else 1)


@app.command(epilog="Examples:  equipoise status demo  |  equipoise status demo --csv > cells.csv")
def status(
    directory: Directory,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the finished cells as a tidy table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which cells of an experiment are done, running, failed or missing."""
    with errors():
        from equipoise.experiments import Folder
        from equipoise.launch import show_status

        state = show_status(Folder(directory), as_csv, as_json)
    raise typer.Exit(0 if state.complete else 1)


@app.command(epilog="Example:  equipoise merge job-1 job-2 job-3 --out all  |  … --out results/paper.nc")
def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Experiments of one grid.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR|FILE.nc", help="A directory, or only a results file.")
    ],
    quiet: Quiet = False,
) -> None:
    """Bring the finished cells of several directories together: separate runs of one grid, or of parts of it."""
    with errors():
        import tempfile

        from equipoise.experiments import load_grid, state_of, write_results
        from equipoise.experiments import merge as merge_folders

        with tempfile.TemporaryDirectory() as temporary:
            only_file = out.suffix == ".nc"
            folder = merge_folders(directories, temporary if only_file else out)
            file = write_results(folder, file=out if only_file else None)
            state = state_of(load_grid(folder.read_grid()["grid"]), folder)
        if not quiet:
            print(f"{state.count('done')} of {len(state.cells)} cells are in {file}")


@app.command(epilog="Example:  equipoise report demo")
def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="An experiment, or a results file.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.html", help="DIR/report.html unless given.")
    ] = None,
) -> None:
    """Write the report again from the results: one HTML file that needs no network."""
    with errors():
        _gather(directory)
        from equipoise.report import write_report

        target = out or _beside(directory) / "report.html"
        write_report(directory, target)
        print(target)


@app.command(epilog="Example:  equipoise figures demo")
def figures(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="An experiment, or a results file.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="DIR/figures unless given.")] = None,
) -> None:
    """Draw the figures again from the results, as PNG and PDF."""
    with errors():
        _gather(directory)
        from equipoise.report import write_figures

        target = out or _beside(directory) / "figures"
        write_figures(directory, target)
        print(target)


@app.command(epilog="Example:  equipoise fit pairs.h5 --prior 'uniform(-3,3)^2' --method bnpe_init --out model")
def fit(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Pairs (theta, x): .h5, .npz, .csv, .parquet, a store, or theta.npy.")
    ],
    prior: Annotated[
        str, typer.Option(metavar="SPEC", help="'uniform(-3,3)^2', 'normal(0,1),uniform(0,5)', or a JSON file.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="The directory to save the posterior in.")],
    method: Annotated[str, typer.Option("--method", "-m", autocompletion=_names(METHOD_NAMES))] = "bnpe_init",
    x: XFile = None,
    theta_key: ThetaKey = None,
    x_key: XKey = None,
    x_shape: XShape = None,
    embedding: OwnEmbedding = None,
    members: Annotated[int, typer.Option(help="Networks; the posterior is their mixture.")] = 5,
    epochs: Annotated[int, typer.Option(help="At most this many.")] = 500,
    batch_size: Annotated[int, typer.Option(metavar="N", help="Pairs in a batch; fewer for few simulations.")] = 256,
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


@app.command(epilog="Example:  equipoise tasks --json")
def tasks(as_json: AsJson = False) -> None:
    """List the tasks."""
    with errors():
        from equipoise.catalogue import task_rows, tasks_table

        if as_json:
            print(json.dumps(task_rows()))
        else:
            Console().print(tasks_table())


@app.command(epilog="Example:  equipoise methods --json")
def methods(as_json: AsJson = False) -> None:
    """List the methods: rows of a table, each a network, a loss, a balance term and a start."""
    with errors():
        from equipoise.catalogue import method_rows, methods_table

        if as_json:
            print(json.dumps(method_rows()))
        else:
            Console().print(methods_table())


def _gather(path: Path) -> None:
    """Bring `results.nc` of an experiment's directory up to date with its stacks; a results file needs no torch."""
    if path.is_dir() and (path / "grid.json").exists():
        from equipoise.experiments import Folder, write_results

        write_results(Folder(path))


def _kept(checkpoint: Path) -> str:
    """What is kept of a training that was stopped."""
    written = [file.stat().st_mtime for file in checkpoint.glob("*.safetensors")]
    if not written:
        return BEGINS_ANEW
    from equipoise.progress import duration

    ago = duration(max(0.0, time.time() - max(written)))
    return f"stopped; {checkpoint} keeps the training as it was {ago} ago, and the same command goes on from there"


def _beside(path: Path) -> Path:
    return path if path.is_dir() else path.parent
