"""Processes that tests start in order to stop or kill them.

To import torch and the package takes seconds, and some tests start five processes. These are forked from one that has
imported both, once for all tests of a run, and has done nothing else.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import weakref
from pathlib import Path

_FROM = multiprocessing.get_context("forkserver")
_FROM.set_forkserver_preload(
    ["equipoise.cli.run", "equipoise.experiments", "equipoise.training", "equipoise.diagnostics"]
)

#: A script that is the command `equipoise`.
COMMAND = "from equipoise.cli import app; app(prog_name='equipoise')"


def _begin(script: str, arguments: list[str], output: str, errors: str) -> None:
    """What the child does, in a session of its own, with one thread."""
    import torch

    os.setsid()
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    torch.set_num_threads(1)
    for number, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.argv = ["equipoise", *arguments]
    try:
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # which `multiprocessing` leaves out


class Forked:
    """A script with its arguments in a process, used like `subprocess.Popen`; what it says goes to two files."""

    def __init__(self, script: str, *arguments: object, together: bool = False) -> None:
        folder = Path(tempfile.mkdtemp(prefix="forked-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._output = folder / "output"
        self._errors = self._output if together else folder / "errors"
        given = (script, [str(a) for a in arguments], str(self._output), str(self._errors))
        self._process = _FROM.Process(target=_begin, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            said = [f.read_text(encoding="utf-8") for f in {self._output, self._errors} if f.exists()]
            raise TimeoutError(f"it has not ended in {timeout} s; it said {said}")
        return self._process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; all that it said, and all that it complained of unless that is `together` with the rest."""
        self.wait(timeout)
        files = (self._output,) if self._errors == self._output else (self._output, self._errors)
        said = [file.read_text(encoding="utf-8") if file.exists() else "" for file in files]
        return said[0], said[1] if len(said) > 1 else ""
