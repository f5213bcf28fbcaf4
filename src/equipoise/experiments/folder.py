"""The folder of an experiment on disk.

    DIR/
      grid.json           the grid, resolved
      stacks/ID.npz       a finished stack: arrays, and a JSON header; no weights
      failed/ID.txt       the traceback of a stack that failed; gone once it succeeds
      running/ID.json     who computes a stack, and how far along; ID.claim is the lock
      checkpoints/ID/     the state of a training that was not finished
      exact/              exact log posteriors of the coverage pairs, computed once a task
      simulations/        simulations that are dearer to make than to read
      results.nc, figures/, report.html

Nothing needs a server or a database, and nothing can be left half written: files are written under a temporary name
and renamed. A claim is a lock that the kernel releases when its owner ends, however that comes about, so that
processes that share a folder do not compute the same stack at the same time, and a killed one leaves nothing to clean
up. Where a file system has no locks a stack may be computed twice, to the same result: the first file stays.
"""

from __future__ import annotations

__all__ = ["Folder", "Live"]

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows has no flock: every claim succeeds there
    fcntl = None  # type: ignore[assignment]

#: The version of what is written here. A reader refuses newer ones.
FORMAT = 1
#: Seconds between two words from a stack that is being computed.
PULSE = 1.0
#: A stack on another machine that has not been heard of for this long counts as lost.
SILENCE = 600.0


@dataclasses.dataclass(frozen=True)
class Live:
    """A stack that is being computed: where, what it is doing, and how far along."""

    identity: str
    host: str
    pid: int
    stage: str
    done: int
    total: int
    note: str


class Folder:
    """An experiment's folder.

    Arguments:
        path: the directory; it need not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._last_pulse: dict[str, float] = {}

    # --- the grid --------------------------------------------------------------------------------------------------

    def write_grid(self, config: Mapping[str, Any], **about: Any) -> None:
        """Set down what the folder is for."""
        self.path.mkdir(parents=True, exist_ok=True)
        _write_text(self.path / "grid.json", json.dumps({"format": FORMAT, "grid": config, **about}, indent=1))

    def read_grid(self) -> dict[str, Any]:
        """What was set down: `grid`, and whatever else."""
        file = self.path / "grid.json"
        if not file.exists():
            what = "there is no grid.json in it" if self.path.is_dir() else "there is no such directory"
            raise FileNotFoundError(f"{self.path} is not an experiment: {what}. `equipoise run --out DIR` makes one.")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if found.get("format", 0) > FORMAT:
            raise ValueError(f"{self.path} was written by a newer Equipoise (format {found['format']})")
        return found

    def stored_tasks(self) -> dict[str, Any]:
        """What an earlier run stored of tasks of a user's own, by their label."""
        return dict(self.read_grid()["grid"].get("user_tasks", {})) if (self.path / "grid.json").exists() else {}

    # --- stacks ----------------------------------------------------------------------------------------------------

    def stack_file(self, identity: str) -> Path:
        return self.path / "stacks" / f"{identity}.npz"

    def has(self, identity: str) -> bool:
        """Whether a stack is finished."""
        return self.stack_file(identity).exists()

    def stacks(self) -> list[str]:
        """The stacks that are finished."""
        return sorted(p.stem for p in (self.path / "stacks").glob("*.npz"))

    def write_stack(self, identity: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Put a finished stack in place, unless it is there already; forget earlier failures and its checkpoint."""
        file = self.stack_file(identity)
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(file)
        text = np.frombuffer(json.dumps({"format": FORMAT, **header}).encode(), np.uint8)
        with open(temporary, "wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **{"header": text, **arrays})
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            temporary.unlink()
        else:
            os.replace(temporary, file)
        self.failure_file(identity).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoint(identity), ignore_errors=True)

    def header(self, identity: str) -> dict[str, Any]:
        """The header of a finished stack."""
        with np.load(self.stack_file(identity), allow_pickle=False) as file:
            return _header(file, self.stack_file(identity))

    def read_stack(self, identity: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The header and the arrays of a finished stack."""
        with np.load(self.stack_file(identity), allow_pickle=False) as file:
            return _header(file, self.stack_file(identity)), {n: file[n] for n in file.files if n != "header"}

    def cells(self, besides: Iterable[str] = ()) -> set[str]:
        """The identities of all finished cells in stacks other than `besides`."""
        others = set(self.stacks()) - set(besides)
        return {c["identity"] for s in others for c in self.header(s)["cells"]}

    def checkpoint(self, identity: str) -> Path:
        """Where the state of an unfinished training is kept."""
        return self.path / "checkpoints" / identity

    # --- failures --------------------------------------------------------------------------------------------------

    def failure_file(self, identity: str) -> Path:
        return self.path / "failed" / f"{identity}.txt"

    def write_failure(self, identity: str, text: str) -> None:
        """Keep a traceback."""
        self.failure_file(identity).parent.mkdir(parents=True, exist_ok=True)
        _write_text(self.failure_file(identity), text)

    def failure(self, identity: str) -> str | None:
        """The traceback of the last failure, or None."""
        file = self.failure_file(identity)
        return file.read_text(encoding="utf-8") if file.exists() else None

    # --- what is being computed ------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, identity: str) -> Iterator[bool]:
        """Hold a stack while computing it; False if somebody else does."""
        folder = self.path / "running"
        folder.mkdir(parents=True, exist_ok=True)
        lock, pulse = folder / f"{identity}.claim", folder / f"{identity}.json"
        handle = _lock(lock)
        if handle == BUSY:
            yield False
            return
        try:
            yield True
        finally:
            pulse.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            if handle is not None:
                os.close(handle)

    def pulse(
        self, identity: str, stage: str, done: int = 0, total: int = 1, note: str = "", force: bool = False
    ) -> None:
        """Say how far along a claimed stack is; at most once a second."""
        now = time.monotonic()
        if not force and now - self._last_pulse.get(identity, -PULSE) < PULSE:
            return
        self._last_pulse[identity] = now
        live = Live(identity, socket.gethostname(), os.getpid(), stage, done, total, note)
        with contextlib.suppress(OSError):  # a full disk may be emptied before there is a result to write
            _write_text(self.path / "running" / f"{identity}.json", json.dumps(dataclasses.asdict(live)), durable=False)

    def running(self) -> dict[str, Live]:
        """The stacks that are being computed, as far as can be told."""
        found = {}
        for file in sorted((self.path / "running").glob("[!.]*.json")):
            try:
                live = Live(**json.loads(file.read_text(encoding="utf-8")))
                age = time.time() - file.stat().st_mtime
            except (OSError, ValueError, TypeError):  # it has just ended
                continue
            if _alive(live, age):
                found[live.identity] = live
        return found


BUSY = -1


def _lock(file: Path) -> int | None:
    """A handle that holds the lock, BUSY if somebody else does, None where there are no locks."""
    if fcntl is None:
        return None
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return BUSY
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        # Whoever held it before may have removed the file between our two calls: then we hold a lock on nothing.
        if _names(file, handle):
            return handle
        os.close(handle)


def _names(file: Path, handle: int) -> bool:
    """Whether the name still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def _alive(live: Live, age: float) -> bool:
    """Whether whoever wrote this is still at it: its process exists here, or it was heard of lately elsewhere."""
    if live.host != socket.gethostname():
        return age < SILENCE
    try:
        os.kill(live.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _header(file: Any, path: Path) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(file["header"].tobytes())
    if header["format"] > FORMAT:
        raise ValueError(f"{path} was written by a newer Equipoise (format {header['format']})")
    return header


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")


def _write_text(file: Path, text: str, durable: bool = True) -> None:
    temporary = _temporary(file)
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    os.replace(temporary, file)
