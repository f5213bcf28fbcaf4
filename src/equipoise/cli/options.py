"""The application, and the options that several commands share."""

from __future__ import annotations

__all__ = [
    "METHOD_NAMES",
    "TASK_NAMES",
    "AsJson",
    "Device",
    "Directory",
    "OwnEmbedding",
    "Quiet",
    "StoredPrior",
    "ThetaKey",
    "XFile",
    "XKey",
    "XShape",
    "app",
    "name_completion",
]

from pathlib import Path
from typing import Annotated, Any

import typer

#: For shell completion, which cannot wait for torch to be imported. A test compares them with the tables.
TASK_NAMES = ("slcp", "weinberg", "spatial_sir", "lotka_volterra", "two_moons")
METHOD_NAMES = ("nre", "bnre", "nre_c", "bnre_c", "npe", "bnpe", "rnpe", "brnpe", "bnpe_init", "brnpe_init")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of an experiment.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
XFile = Annotated[Path | None, typer.Option("--x", metavar="FILE", help="x.npy, where DATA is theta.npy.")]
ThetaKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="The key of theta in a file, or columns of a table: 'mass,age'.")
]
XKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="The key of x in a file, or columns of a table: 'flux_*'.")
]
XShape = Annotated[
    str | None, typer.Option(metavar="T,C", help="The shape of one x, where a file has it flat: tables do.")
]
OwnEmbedding = Annotated[
    str | None,
    typer.Option(
        "--embedding", metavar="FILE.py:NAME", help="An nn.Module of your own, its class, or a function that makes it."
    ),
]
StoredPrior = Annotated[
    str | None, typer.Option("--prior", metavar="SPEC", help="The prior, where MODEL does not hold it; as for `fit`.")
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="A GPU where there is one, unless given.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]

app = typer.Typer(
    name="equipoise",
    help="Conservative simulation-based inference: train, judge, compare.\n\nStart with: equipoise run",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def name_completion(names: tuple[str, ...]) -> Any:
    """For shell completion: those of the names that begin as what is typed."""
    return lambda incomplete: [n for n in names if n.startswith(incomplete)]
