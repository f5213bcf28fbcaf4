"""Commands of experiments: `run`, `status`, `merge`, and `report` and `figures` of their results."""

from __future__ import annotations

__all__ = ["figures", "merge", "report", "run", "status"]

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from equipoise.support.checks import finite_number

from .app import (
    GOES_ON,
    AsJson,
    Device,
    Directory,
    Quiet,
    app,
    check_device,
    check_folder,
    complete_methods,
    complete_protocols,
    complete_tasks,
    errors,
)


@app.command(epilog="Examples:  equipoise run  |  equipoise run --task two_moons --method bnpe --budget 4096 --runs 3")
def run(
    task: Annotated[
        list[str] | None,
        Option(
            "--task", "-t", metavar="T", help="A task, or FILE.py:NAME; may be repeated.", autocompletion=complete_tasks
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        Option(
            "--method",
            "-m",
            metavar="M",
            help="A method, or calibrated; may be repeated. Options in brackets: 'bnpe[balance=kl,strength=10]'.",
            autocompletion=complete_methods,
        ),
    ] = None,
    budget: Annotated[
        list[int] | None, Option("--budget", "-b", metavar="N", help="Simulations; may be repeated.")
    ] = None,
    runs: Annotated[int | None, Option(help="Repetitions, each with its own simulations.")] = None,
    members: Annotated[
        int | None, Option(help="Networks per run; its posterior is their mixture. Of 'calibrated' an option.")
    ] = None,
    grid: Annotated[
        str | None,
        Option("--grid", "-g", metavar="FILE.toml", help="A grid: a TOML file, or demo, paper, released, …."),
    ] = None,
    protocol: Annotated[
        str | None,
        Option(
            metavar="paper|released|fit",
            help="How to train and judge; fit: as eq.fit.",
            autocompletion=complete_protocols,
        ),
    ] = None,
    epochs: Annotated[int | None, Option(help="Train for at most this many epochs. Of 'calibrated' an option.")] = None,
    pairs: Annotated[int | None, Option(help="Coverage pairs: 1000, or 10000 in the protocols.")] = None,
    seed: Annotated[int | None, Option(help="Of everything random.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR", help="Where to put everything.")] = None,
    cluster: Annotated[
        str | None, Option(metavar="local|tcp://…|slurm.yaml", help="Dask workers; this process unless given.")
    ] = None,
    device: Device = None,
    threads: Annotated[int | None, Option(min=1, max=1024, help="CPU threads for each stack.")] = None,
    stack: Annotated[int | None, Option(help="Train at most this many members together.")] = None,
    stop_after: Annotated[
        float | None, Option(metavar="MINUTES", help="Begin no stack that would not end within this time.")
    ] = None,
    pace: Annotated[
        float | None,
        Option(
            min=0,
            help="What stacks take, as a share of the times of --dry-run; 0 begins them until the time is over. "
            "What finished stacks took, unless given.",
        ),
    ] = None,
    checkpoint: Annotated[bool, Option(help="Keep the state of long trainings.")] = True,
    compile: Annotated[
        bool | None,
        Option("--compile/--no-compile", show_default=False, help="Compile steps; where it pays back, unless given."),
    ] = None,
    report: Annotated[bool, Option(help="Write figures and the report.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be computed and what it would cost.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a grid of task × method × budget × run; without arguments, a demonstration of a few minutes.

    Computes what is missing in DIR, and nothing else: run the same command again after Ctrl-C, a crash or a failure.
    What is not said follows the grid, which follows its protocol.
    """
    with errors(lambda: GOES_ON):
        from equipoise.experiments import Folder, check_cluster

        from .run import choose_grid, compute, conclude, show_plan

        for option, value in (("--stop-after", stop_after), ("--pace", pace)):
            if value is not None:
                finite_number(option, value, least=0)
        changes: dict[str, Any] = {"tasks": task or None, "methods": method or None, "budgets": budget or None}
        changes |= {"runs": runs, "members": members, "pairs": pairs, "seed": seed, "stack": stack}
        demo = grid is None and protocol is None and not any(v is not None for v in (*changes.values(), epochs))
        choose = partial(choose_grid, grid, protocol, epochs, changes)
        named = choose()
        folder = Folder(out or (Path("demo") if demo else Path("runs") / named.name))
        check_folder(folder.path, write=not dry_run)
        users = [entry.name for entry in named.tasks if ":" in entry.name]
        if users and not (dry_run or quiet or as_json):
            print(f"importing {', '.join(users)}", file=sys.stderr)
        chosen = choose(known=folder.stored_tasks()) if dry_run else choose(import_tasks=True)
        if device not in (None, "cpu", "cuda"):
            raise ValueError(f"--device is cpu or cuda, got {device!r}")
        check_cluster(cluster)
        if dry_run:  # of a GPU that is elsewhere, too
            show_plan(chosen, folder, device, as_json)
            return
        if cluster in (None, "local"):  # what other machines have is theirs to say
            check_device(device)
        how: dict[str, Any] = {"cluster": cluster, "threads": threads, "checkpoint": checkpoint, "compile": compile}
        how |= {"stop_after": None if stop_after is None else 60 * stop_after, "pace": pace}
        state = compute(chosen, folder, device, quiet or as_json, **how)
        conclude(chosen, folder, state, report, quiet, as_json)
    raise typer.Exit(0 if state.complete else 1)


@app.command(epilog="Examples:  equipoise status demo  |  equipoise status demo --csv > cells.csv")
def status(
    directory: Directory,
    as_csv: Annotated[bool, Option("--csv", help="Print the finished cells as a tidy table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which cells of an experiment are done, running, failed or missing."""
    with errors():
        from equipoise.experiments import Folder

        from .run import show_status

        state = show_status(Folder(directory), as_csv, as_json)
    raise typer.Exit(0 if state.complete else 1)


@app.command(epilog="Example:  equipoise merge job-1 job-2 job-3 --out all  |  … --out results/paper.nc")
def merge(
    directories: Annotated[list[Path], Argument(metavar="DIR...", help="Experiments of one grid.", show_default=False)],
    out: Annotated[Path, Option("--out", "-o", metavar="DIR|FILE.nc", help="A directory, or only a results file.")],
    quiet: Quiet = False,
) -> None:
    """Bring the finished cells of several directories together: separate runs of one grid, or of parts of it."""
    with errors():
        from equipoise.experiments import merge as merge_folders
        from equipoise.experiments import state_of, write_results
        from equipoise.experiments.grids import stored_grid

        with tempfile.TemporaryDirectory() as temporary:
            only_file = out.suffix == ".nc"
            folder = merge_folders(directories, temporary if only_file else out, link=only_file)
            file = write_results(folder, file=out if only_file else None)
            state = state_of(stored_grid(folder), folder)
        if not quiet:
            print(f"{state.count('done')} of {len(state.cells)} cells are in {file}")


Results = Annotated[Path, Argument(metavar="DIR", help="An experiment, or a results file.", show_default=False)]


@app.command(epilog="Example:  equipoise report demo")
def report(
    directory: Results,
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE.html", help="DIR/report.html unless given.")
    ] = None,
) -> None:
    """Write the report again from the results: one HTML file that needs no network."""
    with errors():
        from equipoise.report import write_report

        with _up_to_date(directory, out, "report.html") as (results, target):
            write_report(results, target)
        print(target)


@app.command(epilog="Example:  equipoise figures demo")
def figures(
    directory: Results,
    out: Annotated[Path | None, Option("--out", "-o", metavar="FOLDER", help="DIR/figures unless given.")] = None,
) -> None:
    """Draw the figures again from the results, as PNG and PDF."""
    with errors():
        from equipoise.report import write_figures

        with _up_to_date(directory, out, "figures") as (results, target):
            write_figures(results, target)
        print(target)


@contextmanager
def _up_to_date(path: Path, out: Path | None, name: str) -> Iterator[tuple[Path, Path]]:
    """The results of an experiment's directory, from its stacks, and where to write what is made of them.

    A results file needs no torch, and stays as it is. Where the output goes elsewhere the directory is only read.
    """
    target = out or (path if path.is_dir() else path.parent) / name
    if not (path.is_dir() and (path / "grid.json").exists()):
        yield path, target
        return
    from equipoise.experiments import Folder, write_results

    with tempfile.TemporaryDirectory() as temporary:
        yield write_results(Folder(path), file=None if out is None else Path(temporary) / "results.nc"), target
