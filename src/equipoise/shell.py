"""What surrounds every command: mistakes told in a line, and outputs that are looked at before hours are spent."""

from __future__ import annotations

__all__ = ["check_device", "check_file", "check_folder", "check_no_model", "errors"]

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer


@contextmanager
def errors() -> Iterator[None]:
    """Errors that a user can mend are told in a line; Ctrl-C, or a batch system's end of time, stops cleanly.

    So are warnings: Python would show them with a line of source, which here is one of typer's.
    """

    def stop(number: int, frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    def show(message: Warning | str, *where: Any, **other: Any) -> None:
        print(f"equipoise: warning: {' '.join(str(message).split())}", file=sys.stderr)

    before, show_before = signal.signal(signal.SIGTERM, stop), warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError, RuntimeError, OSError) as error:
        if os.environ.get("EQUIPOISE_DEBUG"):
            raise
        print(f"equipoise: {error} (EQUIPOISE_DEBUG=1 shows where)", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ValueError | TypeError | FileNotFoundError) else 1) from error
    except KeyboardInterrupt:
        print("stopped; what is finished is kept, and the same command goes on from there", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
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
    from equipoise.devices import unusable  # here, since it needs torch

    if device is not None and (why := unusable(device)):
        raise ValueError(f"--device {device} {why}, or leave it out for a GPU where there is one")


def _try_to_write(path: Path) -> None:
    """Write where the folder is or would be made. Permissions alone do not tell: root has all, /proc takes nothing."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    with tempfile.TemporaryDirectory(prefix=".equipoise-", dir=there):
        return
