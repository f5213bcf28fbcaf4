"""The application: shared options, errors in one line, and outputs that are checked before hours are spent."""

from __future__ import annotations

__all__ = [
    "BEGINS_ANEW",
    "GOES_ON",
    "AsJson",
    "Device",
    "Directory",
    "Quiet",
    "app",
    "check_device",
    "check_file",
    "check_folder",
    "complete_methods",
    "complete_protocols",
    "complete_tasks",
    "errors",
]

import _thread
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of an experiment.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
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

#: What commands say when they are stopped.
BEGINS_ANEW = "stopped; nothing was kept, and the same command begins anew"
GOES_ON = "stopped; what is finished is kept, and the same command goes on from there"


def _declared(pattern: str, files: str) -> list[str]:
    """Names in the package's source: shell completion cannot wait for torch to be imported."""
    package = Path(__file__).parents[1]
    return [name for file in sorted(package.glob(files)) for name in re.findall(pattern, file.read_text("utf-8"), re.M)]


def complete_tasks(incomplete: str) -> list[str]:
    """The tasks whose names begin so."""
    return [n for n in _declared(r'^    name(?:: \S+)? = "(\w+)"', "tasks/*.py") if n.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """The methods whose names begin so."""
    return [n for n in _declared(r'^ +Method\("(\w+)"', "methods.py") if n.startswith(incomplete)]


def complete_protocols(incomplete: str) -> list[str]:
    """The protocols of the paper whose names begin so."""
    return [n for n in ("paper", "released") if n.startswith(incomplete)]


@contextmanager
def _stops_are_kept() -> Iterator[None]:
    """Ctrl-C stops even where Python would drop it.

    An exception that arises in a destructor or in a callback from C has nobody to go to: Python prints it and goes on,
    and with it the wish to stop is lost. Loading a compiled simulator is full of both. The signal is sent again a
    moment later, from another thread, so that it meets the main one outside of the callback.
    """
    before, again = sys.unraisablehook, threading.Timer(0.0, _thread.interrupt_main)

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        nonlocal again
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            again = threading.Timer(0.05, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        again.cancel()
        sys.unraisablehook = before


@contextmanager
def errors(stopped: Callable[[], str] = lambda: BEGINS_ANEW) -> Iterator[None]:
    """Errors that a user can fix are printed in one line; Ctrl-C, or a batch system's end of time, stops cleanly.

    So are warnings: Python would show them with a line of source, which here is one of typer's.

    Arguments:
        stopped: what to say after Ctrl-C.
    """

    def stop(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    def show(message: Warning | str, *where: Any, **other: Any) -> None:
        print(f"equipoise: warning: {' '.join(str(message).split())}", file=sys.stderr)

    # SIGINT too: a library that was used before may have left a handler of its own.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    show_before = warnings.showwarning
    warnings.showwarning = show
    try:
        with _stops_are_kept():
            yield
    except (ValueError, TypeError, FileNotFoundError, RuntimeError, OSError) as error:
        if os.environ.get("EQUIPOISE_DEBUG"):
            raise
        print(f"equipoise: {error} (EQUIPOISE_DEBUG=1 shows where)", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ValueError | TypeError | FileNotFoundError) else 1) from error
    except KeyboardInterrupt:
        print(stopped(), file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        warnings.showwarning = show_before


def check_folder(path: Path, write: bool = True) -> None:
    """Raise unless `--out` names a folder, or one that can be made; nothing is left behind.

    Arguments:
        path: the folder.
        write: whether something is to be written there.
    """
    try:
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path} is a file; give a folder")
        if write:
            _try_to_write(path)
    except OSError as error:
        raise ValueError(f"--out {path}: no folder can be written there ({error.strerror})") from error


def check_file(path: Path) -> None:
    """Raise unless `--out` names a file that can be written; nothing is left behind."""
    try:
        if path.is_dir():
            raise ValueError(f"--out {path} is a folder; give a file")
        if path.exists() and not os.access(path, os.W_OK):
            raise ValueError(f"--out {path} is there and may not be written")
        _try_to_write(path.parent)
    except OSError as error:
        raise ValueError(f"--out {path}: no file can be written there ({error.strerror})") from error


def check_device(device: str | None) -> None:
    """Raise unless `--device` names a device that is there, or none."""
    from equipoise.support.devices import unusable  # here, since it needs torch

    if device is not None and (why := unusable(device)):
        raise ValueError(f"--device {device} {why}, or leave it out for a GPU where there is one")


def _try_to_write(path: Path) -> None:
    """Write where the folder is or would be made. Permissions alone do not tell: root has all, /proc takes nothing."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    with tempfile.TemporaryDirectory(prefix=".equipoise-", dir=there):
        return
