"""Files are written whole or not at all, and locks are held by one process at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from equipoise.support.files import Lock, digest, remove_leftovers, write_text, write_whole


def test_an_error_leaves_the_earlier_file_and_nothing_else(tmp_path) -> None:
    file = tmp_path / "a.txt"
    write_text(file, "old")

    def write_half() -> None:
        with write_whole(file) as temporary:
            temporary.write_text("half of the n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_the_new_file_is_complete_on_disk_before_it_has_its_name(tmp_path, monkeypatch) -> None:
    """Flush the file, rename it, flush the directory: in this order."""
    calls = []
    fsync, replace = os.fsync, os.replace
    kind = {True: "directory", False: "file"}
    monkeypatch.setattr(os, "fsync", lambda h: (calls.append(kind[stat.S_ISDIR(os.fstat(h).st_mode)]), fsync(h)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b)))
    write_text(tmp_path / "a.txt", "new")
    assert calls == ["file", "rename", "directory"]
    calls.clear()
    write_text(tmp_path / "a.txt", "newer", durable=False)
    assert calls == ["rename"] and (tmp_path / "a.txt").read_text() == "newer"
    calls.clear()
    write_text(tmp_path / "one" / "two" / "a.txt", "new")  # new directories are entries of those above them
    assert calls == ["directory", "directory", "file", "rename", "directory"]


def test_files_have_the_usual_mode(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        with write_whole(tmp_path / "a") as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_threads_that_write_leave_the_umask_as_it_was(tmp_path, monkeypatch) -> None:
    """It can be read only by setting it; between the two calls another thread must not do so."""
    umask, before = os.umask, os.umask(0o027)
    monkeypatch.setattr(os, "umask", lambda mask: (umask(mask), time.sleep(1e-4))[0])
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: write_text(tmp_path / f"{n}", "text", durable=False), range(100)))
    finally:
        after = umask(before)
    assert after == 0o027 and {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {0o640}


def test_the_first_writer_wins_where_nothing_is_replaced(tmp_path) -> None:
    write_text(tmp_path / "a.txt", "first")
    with write_whole(tmp_path / "a.txt", replace=False) as temporary:
        temporary.write_text("second")
    assert (tmp_path / "a.txt").read_text() == "first" and len(os.listdir(tmp_path)) == 1


def test_what_a_killed_writer_left_is_removed(tmp_path) -> None:
    code = f"""
        import os
        from equipoise.support.files import write_whole
        with write_whole({str(tmp_path / "a.nc")!r}) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert len(os.listdir(tmp_path)) == 1 and not (tmp_path / "a.nc").exists()
    (tmp_path / ".other.tmp.nc").touch()
    remove_leftovers(tmp_path / "a.nc")
    assert os.listdir(tmp_path) == [".other.tmp.nc"]


def test_a_lock_is_released_with_its_process(tmp_path) -> None:
    code = f"""
        import os
        from equipoise.support.files import Lock
        print(Lock({str(tmp_path / "a.lock")!r}).acquire(), flush=True)
        input()
        os.kill(os.getpid(), 9)
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdin is not None
    with other:
        assert other.stdout.readline() == "True\n"
        lock = Lock(tmp_path / "a.lock")
        assert not lock.acquire()
        other.stdin.write("\n")
        other.stdin.close()
        other.wait()
        assert lock.acquire() and lock.acquire()
        lock.release()
    assert not (tmp_path / "a.lock").exists()


def test_a_lock_on_a_removed_file_is_no_lock(tmp_path, monkeypatch) -> None:
    """Between opening a file and locking it, its holder may remove it: the lock is then taken on the new file."""
    path, times = tmp_path / "a.lock", []
    import fcntl

    flock = fcntl.flock

    def remove_first(handle: int, how: int) -> None:
        if not times:
            path.unlink()
        times.append(handle)
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock = Lock(path)
    assert lock.acquire() and len(times) == 2 and path.exists()
    lock.release()


def test_a_digest_is_that_of_the_contents(tmp_path) -> None:
    import hashlib

    write_text(tmp_path / "a", "contents")
    assert digest(tmp_path / "a") == hashlib.blake2b(b"contents", digest_size=16).hexdigest()
