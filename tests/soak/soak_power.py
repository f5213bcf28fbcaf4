"""Power cuts at random moments of everything that writes, on a file system of their own.

An ext4 image is mounted, and an operation of `soak_kills` runs on it. After a random time, at a call to the file
system, or when the operation has ended, the file system is shut down without writing its journal: what was not flushed
is gone, as if the power had been cut. Then the image is mounted again. Every file that was said to be safe is there,
with its content; nothing half-written reads as whole; the operation goes on to the same result.

Needs root and loop devices. It mounts in a namespace of its own, so that nothing stays mounted whatever happens.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import soak_kills
from soak_kills import OPERATIONS, Operation, Outcome

from equipoise.support import files

#: The call that ends a file system (FS_IOC_SHUTDOWN), and the flag that its journal is not written before.
SHUTDOWN, NO_JOURNAL = 0x8004587D, struct.pack("I", 2)
#: Nothing is written by itself between two flushes, as far as ext4 can be told so.
OPTIONS = "loop,noauto_da_alloc,commit=300"
NAMESPACE = "EQUIPOISE_POWER_CUTS"


def why_not() -> str:
    """Why a power cut cannot be tried here; empty where it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "power cuts need Linux and root, for an image on a loop device"
    if missing := [name for name in ("mkfs.ext4", "mount", "unshare") if shutil.which(name) is None]:
        return f"power cuts need {', '.join(missing)}"
    with tempfile.TemporaryDirectory() as place:
        image = _image(Path(place))
        found = subprocess.run(
            ["unshare", "--mount", "mount", "-o", OPTIONS, image, place], capture_output=True, text=True
        )
    return f"no image can be mounted here: {found.stderr.strip()}" if found.returncode else ""


def _image(place: Path) -> Path:
    image = place / "image"
    with open(image, "wb") as file:
        file.truncate(48 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    return image


class Disk:
    """A mounted image, of which the power can be cut."""

    def __init__(self, place: Path) -> None:
        self.path, self._image = place / "disk", _image(place)
        self.path.mkdir()

    def up(self) -> None:
        subprocess.run(["mount", "-o", OPTIONS, self._image, self.path], check=True)

    def down(self) -> None:
        subprocess.run(["umount", self.path], check=True)

    def cut(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, NO_JOURNAL)
        finally:
            os.close(handle)


# --- what was said to be safe -----------------------------------------------------------------------------------------


def _record(log: Path) -> None:
    """Note which files are safe once a directory was flushed, and which are being replaced; for this process's life."""
    flush, out = files._flush_directory, open(log, "a")  # noqa: SIM115

    def note(path: str | Path, digest: str | None) -> None:
        out.write(json.dumps([str(path), digest]) + "\n")
        out.flush()

    def flushed(folder: Path) -> None:
        flush(folder)
        for path in folder.iterdir():
            if path.is_file() and not path.name.startswith("."):
                note(path, files.digest(path))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename":
            note(os.fspath(arguments[1]), None)
        elif event in ("os.remove", "shutil.rmtree") and os.path.isabs(os.fspath(arguments[0])):
            note(os.fspath(arguments[0]), None)

    files._flush_directory = flushed
    sys.addaudithook(hook)


def _lost(log: Path) -> str:
    """What was said to be safe and is not; "" for nothing."""
    safe: dict[str, str] = {}
    for path, digest in map(json.loads, log.read_text().splitlines() if log.exists() else ()):
        if digest is None:  # it is being replaced or removed, with everything in it
            safe = {p: d for p, d in safe.items() if p != path and not p.startswith(path + os.sep)}
        else:
            safe[path] = digest
    gone = [path for path in safe if not Path(path).is_file()]
    other = [path for path in safe if path not in gone and files.digest(path) != safe[path]]
    return "".join(f"{what}: {found}\n" for what, found in (("lost", gone), ("altered", other)) if found)


# --- cutting ----------------------------------------------------------------------------------------------------------


def cut(name: str, times: int, flush: bool = True, seed: int = 0) -> Iterator[Outcome]:
    """Cut the power of an operation so many times, and say what was wrong after each."""
    operation, rng = OPERATIONS[name], random.Random(f"{name} power {seed}")
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as end:
        root = Path(place)
        disk = Disk(root)
        disk.up()
        end.callback(disk.down)
        (disk.path / "first").mkdir()
        wanted, seconds, calls = soak_kills._undisturbed(operation, disk.path / "first")
        shutil.rmtree(disk.path / "first")
        done = 0
        while done < times:
            folder = disk.path / "work"
            folder.mkdir()
            operation.prepare(folder)
            os.sync()
            wrong, status = "", -1
            while done < times and status != 0 and not wrong:
                before = operation.kept(folder)
                (root / "safe").unlink(missing_ok=True)
                kind = ("end", "call", "time")[done % 3]
                moment, status = _strike(operation, folder, disk, root, rng, seconds, calls, flush, kind)
                disk.down()
                disk.up()
                try:
                    wrong = _lost(root / "safe")
                    after = operation.kept(folder)
                    wrong = wrong or ("" if soak_kills._no_less(before, after) else f"{before} became {after}")
                except Exception as error:
                    wrong = wrong or "".join(traceback.format_exception(error))
                done += 1
                yield Outcome(name, moment, True, wrong)
                if rng.random() < 0.5:
                    break
            if not wrong:
                yield from _to_the_end(name, operation, folder, root, wanted)
            shutil.rmtree(folder)


def _strike(
    operation: Operation, folder: Path, disk: Disk, root: Path, rng: random.Random, seconds: float, calls: int,
    flush: bool, kind: str,
) -> tuple[str, int]:  # fmt: skip
    """Run an operation until the power is cut: after a time, at a call to the file system, or when it has ended."""
    at = rng.randint(1, max(calls, 1)) if kind == "call" else -1
    after = rng.uniform(0, seconds) if kind == "time" else None

    def strike() -> None:
        disk.cut()
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        if not flush:
            os.fsync = lambda handle: None  # type: ignore[assignment]
        _record(root / "safe")
        soak_kills._watch(folder, at, strike, [0])
        operation.act(folder)

    status = soak_kills._forked(work, root / "log", after)
    disk.cut()
    how = {"call": f"at call {at} of {calls}", "time": f"after {after or 0:.3f} s", "end": "when it had ended"}[kind]
    return f"power cut {how}", status


def _to_the_end(name: str, operation: Operation, folder: Path, root: Path, wanted: Any) -> Iterator[Outcome]:
    status = soak_kills._forked(lambda: operation.act(folder), root / "log")
    wrong = "" if status == 0 else f"cannot go on: status {status}: {(root / 'log').read_text()[-3000:]}"
    try:
        wrong = wrong or ("" if operation.final(folder) == wanted else "another result")
    except Exception as error:
        wrong = "".join(traceback.format_exception(error))
    if wrong:
        yield Outcome(name, "to the end", False, wrong)


def main(times: int, quick: bool = False, only: str = "", flush: bool = True) -> dict[str, int]:
    """Cut the power of every operation so many times, print a line for each, and count."""
    counts = {"cuts": 0, "wrong": 0}
    with soak_kills.prepared(quick):
        for name in OPERATIONS:
            if only not in name or (quick and name in soak_kills.NEED_STACKS):
                continue
            began, found = time.monotonic(), list(cut(name, times, flush))
            cuts, wrong = sum(o.struck for o in found), [o for o in found if o.wrong]
            print(f"{name}: {cuts} power cuts, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
            for outcome in wrong[:3]:
                print(f"  {outcome.moment}\n{outcome.wrong}", flush=True)
            counts["cuts"] += cuts
            counts["wrong"] += len(wrong)
    return counts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("times", type=int)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--only", default="")
    options.add_argument("--without-flush", action="store_true", help="what would be lost if nothing were flushed")
    given = options.parse_args()
    if not os.environ.get(NAMESPACE):
        if reason := why_not():
            print(f"no power was cut: {reason}\ncuts 0 wrong 0")
            sys.exit(0)
        os.environ[NAMESPACE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    total = main(given.times, given.quick, given.only, not given.without_flush)
    print(" ".join(f"{key} {value}" for key, value in total.items()))
    sys.exit(min(total["wrong"], 1))
