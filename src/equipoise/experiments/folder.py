"""The folder of an experiment on disk.

    DIR/
      grid.json           the grid, resolved
      stacks/ID.nc        a finished stack as NetCDF: see `records`; no weights
      failed/ID.txt       the traceback of a stack that failed; removed once it succeeds
      running/ID.json     the heartbeat of a stack: who computes it, and how far along; ID.claim is the lock
      checkpoints/ID/     the state of a training that was not finished
      exact/              exact log posteriors of the coverage pairs, computed once per task
      simulations/        simulations that cost more to make than to read
      results.nc, figures/, report.html

Nothing needs a server or a database. Files are written whole or not at all (`support.files`), and a stack's file
ends with a digest of itself. A file that is not what was written, or holds no stack (`stored`), counts as missing:
it is named in a warning, and `run` computes its stack again. A claim is a lock that the kernel releases when its
owner ends, so that processes that share a folder do not compute the same stack at the same time, and a killed one
leaves nothing to clean up. Where a file system has no locks a stack may be computed twice, to the same result: the
first file stays.
"""

from __future__ import annotations

__all__ = ["Folder", "Heartbeat"]

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import xarray as xr

from equipoise.support.errors import DamagedFile, warn
from equipoise.support.files import DIGEST, Lock, is_intact, remove_leftovers, write_text, write_whole
from equipoise.support.hdf5 import MARK, check_dataset, open_hdf5, write_netcdf
from equipoise.support.words import listed

from .packed import pack, unpack
from .stored import check_stored

#: The version of what is written here. A reader refuses newer ones.
FORMAT = 3
#: What grids of earlier formats mean by what they do not say: seeds were keyed by task and run alone, and the
#: contrastive sets of NRE-C always shared rolls of θ.
EARLIER = {"streams": "", "share_rolls": True}
#: Seconds between two heartbeats of a stack.
HEARTBEAT_INTERVAL = 1.0
#: A stack on another machine without a heartbeat for this many seconds counts as lost.
LOST_AFTER = 600.0
#: Variables with more numbers than this are compressed.
COMPRESSED_ABOVE = 4096
#: So many stacks are copied at once: what takes the time is waiting for the disk, which flushes many files as fast.
COPIED_AT_ONCE = 32


class NewerFormat(ValueError):
    """A file of a newer version than this."""


class Heartbeat(NamedTuple):
    """A stack that is being computed: where, what it is doing, and how far along."""

    identity: str
    host: str
    pid: int
    stage: str
    done: int
    total: int
    note: str


class Folder:
    """An experiment's folder, which need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._last_heartbeat: dict[str, float] = {}

    # --- the grid --------------------------------------------------------------------------------------------------

    def write_grid(self, config: Mapping[str, Any], **about: Any) -> None:
        """Write grid.json: the grid, and what else is said of the experiment."""
        write_text(self.path / "grid.json", json.dumps({"format": FORMAT, "grid": config, **about}, indent=1))

    def read_grid(self) -> dict[str, Any]:
        """The contents of grid.json: `grid`, and what else was said."""
        file = self.path / "grid.json"
        if not file.exists():
            what = "there is no grid.json in it" if self.path.is_dir() else "there is no such directory"
            raise FileNotFoundError(f"{self.path} is not an experiment: {what}. `equipoise run --out DIR` makes one.")
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise DamagedFile(f"{file} is damaged ({str(error)[:300]}): {REPAIR}") from error
        match found:
            case {"grid": dict(), "format": int(number)}:
                _check_format(file, number)
                return found if number >= FORMAT else found | {"grid": EARLIER | found["grid"]}
        raise DamagedFile(f"{file} does not describe a grid: {REPAIR}")

    def stored_tasks(self) -> dict[str, Any]:
        """What an earlier run stored of user-defined tasks, by their label."""
        found = self.read_grid()["grid"].get("user_tasks") if (self.path / "grid.json").exists() else None
        return found if isinstance(found, dict) else {}

    # --- stacks ----------------------------------------------------------------------------------------------------

    def stack_file(self, identity: str) -> Path:
        return self.path / "stacks" / f"{identity}.nc"

    def has(self, identity: str) -> bool:
        """Whether a stack is finished, and its file intact and well formed."""
        return _is_finished(self.stack_file(identity))

    def stacks(self) -> list[str]:
        """The identities of the stacks that are finished."""
        return [p.stem for p in self._files() if _is_finished(p)]

    def _files(self) -> list[Path]:
        return sorted((self.path / "stacks").glob("[!.]*.nc"))

    def warn_of_unusable_files(self) -> None:
        """Warn of files among the stacks that count as missing: damaged ones, and those of an earlier version."""
        if damaged := [str(p) for p in self._files() if not _is_finished(p)]:
            warn(f"damaged or no stacks, counted as missing: {listed(damaged, 5)}. `equipoise run` computes them again")
        if any((self.path / "stacks").glob("[!.]*.npz")):
            warn(f"the .npz files in {self.path / 'stacks'} are of an earlier version, and count as missing")

    def write_stack(self, identity: str, ds: xr.Dataset) -> None:
        """Write a finished stack unless it is there already; remove earlier failures and its checkpoint."""
        large = {"zlib": True, "shuffle": True}
        encoding = {n: large for n, v in ds.data_vars.items() if v.size > COMPRESSED_ABOVE and v.dtype.kind == "f"}
        ds = ds.assign_attrs(format=FORMAT)
        write_netcdf(ds, self.stack_file(identity), encoding, replace=not self.has(identity), after=pack(ds))
        self._forget(identity)

    def copy_stacks(self, source: Folder, link: bool = False) -> None:
        """Copy all finished stacks of another folder, unless they are here already.

        Arguments:
            source: the other folder.
            link: whether links to its files do, as for a folder that is soon removed.
        """
        with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
            list(pool.map(lambda identity: self.copy_stack(identity, source, link), source.stacks()))

    def copy_stack(self, identity: str, source: Folder, link: bool = False) -> None:
        """Copy a finished stack of another folder, or link to it, unless it is here already."""
        if link and not self.has(identity):
            self.stack_file(identity).parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):  # where there are no links
                self.stack_file(identity).symlink_to(source.stack_file(identity).resolve())
        if not self.has(identity):
            with write_whole(self.stack_file(identity)) as temporary:
                shutil.copyfile(source.stack_file(identity), temporary)
        self._forget(identity)

    def _forget(self, identity: str) -> None:
        """Remove the earlier failure and the checkpoint of a stack that is finished."""
        self._failure_file(identity).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoint(identity), ignore_errors=True)

    def remove_remains(self) -> None:
        """Remove what a process that was killed left of stacks that are finished: failures, checkpoints, heartbeats."""
        left = [p.stem for name in ("failed/*.txt", "checkpoints/*", "running/*.json") for p in self.path.glob(name)]
        for identity in filter(self.has, left):
            self._forget(identity)
            self._heartbeat_file(identity).unlink(missing_ok=True)

    def read_stack(self, identity: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The attributes and the variables of a finished stack, which are not to be written to."""
        file = self.stack_file(identity)
        return _read_stack(file, checked=_is_finished(file))

    def attributes(self, identity: str) -> dict[str, Any]:
        """The attributes of a finished stack."""
        return self.read_stack(identity)[0]

    def cells(self, besides: Iterable[str] = ()) -> set[str]:
        """The identities of all finished cells in stacks other than `besides`."""
        found: set[str] = set()
        for identity in set(self.stacks()) - set(besides):
            found |= set(self.read_stack(identity)[1]["cell"])
        return found

    def checkpoint(self, identity: str) -> Path:
        """Where the state of an unfinished training is kept."""
        return self.path / "checkpoints" / identity

    # --- failures --------------------------------------------------------------------------------------------------

    def _failure_file(self, identity: str) -> Path:
        return self.path / "failed" / f"{identity}.txt"

    def write_failure(self, identity: str, text: str) -> None:
        """Keep a traceback."""
        write_text(self._failure_file(identity), text)

    def failure(self, identity: str) -> str | None:
        """The traceback of the last failure, or None."""
        file = self._failure_file(identity)
        return (file.read_text("utf-8", "replace").strip() or "nothing is said") if file.exists() else None

    # --- what is being computed ------------------------------------------------------------------------------------

    @contextmanager
    def claim(self, identity: str) -> Iterator[bool]:
        """Hold a stack while computing it; False if another process does."""
        with Lock(self.path / "running" / f"{identity}.claim") as mine:
            if mine:
                remove_leftovers(self.stack_file(identity))
            try:
                yield mine
            finally:
                if mine:
                    self._heartbeat_file(identity).unlink(missing_ok=True)

    def _heartbeat_file(self, identity: str) -> Path:
        return self.path / "running" / f"{identity}.json"

    def heartbeat(
        self, identity: str, stage: str, done: int = 0, total: int = 1, note: str = "", force: bool = False
    ) -> None:
        """Write how far along a claimed stack is; at most once a second unless `force`."""
        now = time.monotonic()
        if not force and now - self._last_heartbeat.get(identity, -HEARTBEAT_INTERVAL) < HEARTBEAT_INTERVAL:
            return
        self._last_heartbeat[identity] = now
        beat = Heartbeat(identity, socket.gethostname(), os.getpid(), stage, done, total, note)
        with contextlib.suppress(OSError):  # a full disk may be emptied before there is a result to write
            write_text(self._heartbeat_file(identity), json.dumps(beat._asdict()), durable=False)

    def running(self) -> dict[str, Heartbeat]:
        """The stacks that are being computed, as far as can be told."""
        found = {}
        for file in sorted((self.path / "running").glob("[!.]*.json")):
            try:
                beat = Heartbeat(**json.loads(file.read_text(encoding="utf-8")))
                age = time.time() - file.stat().st_mtime
            except (OSError, ValueError, TypeError, RecursionError):  # it has just ended
                continue
            numbers, words = (beat.pid, beat.done, beat.total), (beat.identity, beat.host, beat.stage, beat.note)
            right = all(type(n) is int and 0 <= n < 1 << 31 for n in numbers) and beat.pid > 0 < beat.total
            right = right and all(isinstance(w, str) for w in words)
            if right and _is_alive(beat, age):
                found[beat.identity] = beat
        return found


REPAIR = "repeat the `equipoise run` command that made the folder, which writes it again and keeps what is finished"


def _is_finished(file: Path) -> bool:
    """Whether a stack's file is there and intact."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return _is_intact(file, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1 << 17)
def _is_intact(file: Path, modified: int, size: int) -> bool:
    """Whether a file is what was written, and a stack; once for each version of it."""
    try:
        if not is_intact(file):
            return False
        _read_stack(file)
    except (OSError, DamagedFile):  # unreadable, or a directory, or somebody else's
        return False
    except NewerFormat:  # its reader refuses it; it must not be replaced
        return True
    return True


def _is_alive(beat: Heartbeat, age: float) -> bool:
    """Whether the writer of a heartbeat still runs: its process exists here, or was heard of lately elsewhere."""
    if beat.host != socket.gethostname():
        return age < LOST_AFTER
    try:
        os.kill(beat.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A stack's file is intact, but somebody else may have made it: whatever is wrong with it, it is named."""
    try:
        yield
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedFile(f"{path} is no stack ({why}): remove it, and `equipoise run` computes it again") from error


def _read_stack(file: Path, checked: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The attributes and the variables of a stack's file; whether they are a stack's is checked unless it is known."""
    with _named(file):
        found = unpack(file.read_bytes()[: -len(MARK) - DIGEST]) or _read_netcdf(file)
        number = int(found[0]["format"])
    _check_format(file, number)
    if checked:
        return found
    with _named(file):
        check_stored(file.stem, *found, complete=number == FORMAT)
    return found


def _read_netcdf(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `unpack` gives, of a file of an earlier version; xarray would take twenty times as long."""
    with open_hdf5(path) as file:
        return _attributes(file), {n.decode(): _values(file, n, kind) for n, kind in _links(file).items()}


def _attributes(file: h5py.File) -> dict[str, Any]:
    return {k: v.item() if isinstance(v, np.ndarray) else v for k, v in file.attrs.items() if k[0] != "_"}


def _links(file: h5py.File) -> dict[bytes, int]:
    """The names in a file, and what kind of link each is."""
    found: dict[bytes, int] = {}
    file.id.links.iterate(lambda name, info: found.__setitem__(name, info.type), info=True)
    return found


def _values(file: h5py.File, name: bytes, kind: int) -> np.ndarray:
    """A variable of this very file; h5py's own objects would take twice as long."""
    if kind != h5py.h5l.TYPE_HARD:
        raise OSError(f"{name.decode()} is a link to somewhere else")
    variable = h5py.h5d.open(file.id, name)
    values = np.empty(*check_dataset(variable, name.decode(), file.id.get_filesize()))
    variable.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    if values.dtype.kind == "O":  # text
        values = np.array([v.decode() for v in values.ravel()], dtype=object).reshape(values.shape)
    return values


def _check_format(file: Path, number: int) -> None:
    if number > FORMAT:
        raise NewerFormat(f"{file} was written by a newer Equipoise (format {number})")
