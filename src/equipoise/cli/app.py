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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Argument, Option

Directory = Annotated[Path, Argument(metavar="DIR", help="The directory of an experiment.", show_default=False)]
AsJson = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]
Device = Annotated[str | None, Option(metavar="cpu|cuda", help="A GPU where there is one, unless given.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors.")]

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


def _completion(pattern: str, files: str) -> Callable[[str], list[str]]:
    """Completes names in the package's source, as shell completion cannot wait for torch to be imported."""

    def complete(incomplete: str) -> list[str]:
        texts = (file.read_text("utf-8") for file in sorted(Path(__file__).parents[1].glob(files)))
        return [n for text in texts for n in re.findall(pattern, text, re.M) if n.startswith(incomplete)]

    return complete


complete_tasks = _completion(r'^    name(?:: \S+)? = "(\w+)"', "tasks/*.py")
complete_methods = _completion(r'(?:^ +Method\(|^MIXTURES.*\{)"(\w+)"', "methods.py")
complete_protocols = _completion(r'^        Protocol\("(\w+)"', "experiments/protocols.py")


@contextmanager
def _stops_are_kept() -> Iterator[None]:
    """Ctrl-C stops even where Python would drop it.

    An exception that arises in a destructor or in a callback from C has nobody to go to: Python prints it and goes on,
    and with it the wish to stop is lost. Loading a compiled simulator is full of both. The signal is sent again a
    moment later, from another thread, so that it meets the main one outside of the callback.
    """
    before, timers = sys.unraisablehook, list[threading.Timer]()

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        timers.append(threading.Timer(0.05, _thread.interrupt_main))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        sys.unraisablehook = before


@contextmanager
def errors(stopped: Callable[[], str] = lambda: BEGINS_ANEW) -> Iterator[None]:
    """Print errors and warnings in one line; at Ctrl-C, or a batch system's end of time, say `stopped` and exit."""

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
    except (ValueError, TypeError, RuntimeError, OSError) as error:
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
    """Raise unless `--out` names a folder, or one that can be made if it is to be written; nothing is left behind."""
    try:
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path} is a file; give a folder")
        if write:
            _try_to_write(path)
    except OSError as error:
        raise ValueError(f"--out {path}: no folder can be written there ({error.strerror})") from error


def check_file(path: Path, option: str = "--out", kinds: Sequence[str] = ()) -> None:
    """Raise unless an option names a file of one of some kinds that can be written; nothing is left behind."""
    try:
        if path.is_dir():
            raise ValueError(f"{option} {path} is a folder; give a file")
        if path.exists() and not os.access(path, os.W_OK):
            raise ValueError(f"{option} {path} is there and may not be written")
        if kinds and path.suffix.lower() not in kinds:
            raise ValueError(f"{option} is a {' or '.join(kinds)} file, got {path}")
        _try_to_write(path.parent)
    except OSError as error:
        raise ValueError(f"{option} {path}: no file can be written there ({error.strerror})") from error


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
