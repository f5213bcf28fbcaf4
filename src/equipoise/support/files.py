"""Files that are written whole or not at all, and locks that a killed process releases.

A file is written under a temporary name in the same directory, flushed to disk, and renamed: whoever reads the name
finds the old file or the new one, also after a kill or a power cut. The directory is flushed too, since the rename
is an entry of it.
"""

from __future__ import annotations

__all__ = ["Lock", "append_digest", "digest", "is_intact", "remove_leftovers", "write_text", "write_whole"]

import contextlib
import hashlib
import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows has no flock: every lock is granted there
    fcntl = None  # type: ignore[assignment]

#: Bytes of the digest that `append_digest` adds.
DIGEST = 16
_READING_UMASK = threading.Lock()


@contextmanager
def write_whole(path: str | Path, *, durable: bool = True, replace: bool = True) -> Iterator[Path]:
    """A temporary path to write to; the file has its name when the block ends, and is gone if the block raises.

    Arguments:
        path: the final name. Its directory is made if it does not exist.
        durable: flush file and directory to disk; False for what is written every second and may be lost.
        replace: False keeps a file that has the name already, and drops the new one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with write_whole(Path(folder) / "a" / "numbers.txt") as temporary:
        ...         _ = temporary.write_text("1 2 3")
        ...     [p.name for p in (Path(folder) / "a").iterdir()]
        ['numbers.txt']
    """
    path = Path(path)
    _make_directory(path.parent, durable)
    # The suffix stays last: writers choose a format by it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # some writers make private files
        if replace or not path.exists():
            os.replace(temporary, path)
            if durable:
                _flush_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str, *, durable: bool = True) -> None:
    """Write a text file whole or not at all."""
    with write_whole(path, durable=durable) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(path: str | Path) -> None:
    """Remove the temporary files that killed writers of this path left. Only its lock's holder may do so."""
    path = Path(path)
    for leftover in path.parent.glob(f".{path.stem}.*.tmp{path.suffix}"):
        leftover.unlink(missing_ok=True)


def digest(path: str | Path, size: int = 16) -> str:
    """The BLAKE2b digest of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=size)).hexdigest()


class Lock:
    """An advisory lock on a file, held until `release`, the end of a `with` block, or the end of the process.

    The kernel releases it however the process ends, so a lock is never stale. On a file system without locks every
    lock is granted: work that it guards must be safe to do twice.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = Lock(Path(folder) / "a.lock"), Lock(Path(folder) / "a.lock")
        ...     first.acquire(), second.acquire(), first.release(), second.acquire(), second.release()
        (True, False, None, True, None)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._handle: int | None = None

    def acquire(self) -> bool:
        """Take the lock; False if another process, or another `Lock` of this one, has it."""
        if fcntl is None or self._handle is not None:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            except OSError:  # a file system without locks
                os.close(handle)
                return True
            # Whoever held it before may have removed the file between our two calls: this would lock nothing.
            if self._still_named(handle):
                self._handle = handle
                return True
            os.close(handle)

    def release(self) -> None:
        """Give it back, and remove its file."""
        if self._handle is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _still_named(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False


def _make_directory(folder: Path, durable: bool) -> None:
    """Make a directory and those it lies in; each is an entry of the one above, which is flushed too."""
    above = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    if durable:
        for made in reversed(above):
            _flush_directory(made.parent)


def _flush_directory(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows, and some network file systems, cannot
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The process's umask, which can be read only by setting it: by one thread at a time, or it would stay so."""
    with _READING_UMASK:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


def append_digest(path: str | Path) -> None:
    """Append the digest of a file to it, so that `is_intact` can tell whether it was altered or cut short since.

    NetCDF, HDF5 and npy readers ignore the added bytes.
    """
    with open(path, "rb+") as file:
        found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST)).digest()
        file.seek(0, os.SEEK_END)
        file.write(found)


def is_intact(path: str | Path) -> bool:
    """Whether a file ends with the digest of what comes before; False for an empty, altered, cut or foreign file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "numbers"
        ...     _ = path.write_text("1 2 3")
        ...     before, _ = is_intact(path), append_digest(path)
        ...     before, is_intact(path)
        (False, True)
    """
    contents = Path(path).read_bytes()
    return hashlib.blake2b(contents[:-DIGEST], digest_size=DIGEST).digest() == contents[-DIGEST:]
