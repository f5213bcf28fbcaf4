"""What surrounds every command: mistakes told in a line, inputs and outputs looked at before hours are spent."""

from __future__ import annotations

__all__ = [
    "BEGINS_ANEW",
    "GOES_ON",
    "check_device",
    "check_file",
    "check_folder",
    "check_no_model",
    "errors",
    "read_embedding",
    "read_shape",
]

import _thread
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from torch import nn

#: What commands say when they are stopped.
BEGINS_ANEW = "stopped; nothing was kept, and the same command begins anew"
GOES_ON = "stopped; what is finished is kept, and the same command goes on from there"


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
    """Errors that a user can mend are told in a line; Ctrl-C, or a batch system's end of time, stops cleanly.

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


def check_no_model(path: Path) -> None:
    """Raise where a folder holds a saved posterior."""
    from equipoise.posteriors.files import holds_model  # here, since it needs torch

    if holds_model(path):
        raise ValueError(f"--out {path} holds a model already; give another folder, or --force to replace it")


def check_device(device: str | None) -> None:
    """Raise unless `--device` names a device that is there, or none."""
    from equipoise.support.devices import unusable  # here, since it needs torch

    if device is not None and (why := unusable(device)):
        raise ValueError(f"--device {device} {why}, or leave it out for a GPU where there is one")


def read_shape(text: str | None) -> tuple[int, ...] | None:
    """The shape that `--x-shape` means.

    Example:
        >>> read_shape("150,2"), read_shape("1 x 24 x 24"), read_shape(None)
        ((150, 2), (1, 24, 24), None)
    """
    if text is None:
        return None
    try:
        shape = tuple(int(part) for part in text.strip(" ()[],").replace("x", ",").split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise ValueError(f"--x-shape is the shape of one x, such as 150,2 or 1,24,24, got {text!r}")
    return shape


def read_embedding(text: str | None, seed: int = 0) -> nn.Module | None:
    """The embedding that `--embedding` names: `FILE.py:NAME` or `MODULE:NAME`.

    Arguments:
        text: where it is. The name is that of an `nn.Module`, of a class of them without arguments, or of a function
            without arguments that returns one.
        seed: of the weights that it is made with.
    """
    if text is None:
        return None
    from torch import nn

    from equipoise.support.imports import named_object
    from equipoise.support.randomness import isolated

    found, name = named_object(text, "--embedding"), text.rpartition(":")[2]
    if callable(found) and not isinstance(found, nn.Module):
        try:
            with isolated(seed):
                found = found()
        except Exception as error:
            raise ValueError(
                f"--embedding {text}: {name}() failed ({type(error).__name__}: {error}); it is called without arguments"
            ) from error
    if not isinstance(found, nn.Module):
        raise ValueError(f"--embedding {text}: {name} gives {type(found).__name__}, not an nn.Module")
    return found


def _try_to_write(path: Path) -> None:
    """Write where the folder is or would be made. Permissions alone do not tell: root has all, /proc takes nothing."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    with tempfile.TemporaryDirectory(prefix=".equipoise-", dir=there):
        return
