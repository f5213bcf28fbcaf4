"""Worker processes: what travels to them, how they share the cores, and how they end."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.simulations import SimulationError
from equipoise.support.devices import cores

PRIOR = eq.BoxUniform([-1.0, 0.5], [1.0, 2.0])


def test_workers_share_the_cores() -> None:
    """Each worker's libraries are told to use its share of them."""

    def threads(theta):
        import os

        return [float(os.environ[f"{name}_NUM_THREADS"]) for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")]

    pairs = eq.simulate(PRIOR, threads, 4, workers=2, batched=False, array="numpy")
    assert (pairs.x == max(1, cores() // 2)).all()


def test_workers_in_a_script_without_a_guard(tmp_path) -> None:
    """No `if __name__ == "__main__"`; a function of the script; a simulator that prints; torch's threads running."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import torch, equipoise as eq
        torch.randn(2000, 2000) @ torch.randn(2000, 2000)  # the threads of the parent exist before the workers do
        def simulator(theta):
            print("noise on standard output")
            return torch.randn(4).cumsum(0) + (torch.ones(300, 300) @ torch.ones(300, 300))[0, 0] * theta[0]
        pairs = eq.simulate(eq.BoxUniform([0.0], [1.0]), simulator, 20, workers=2)
        print("sum", float(pairs.x.sum()), tuple(pairs.x.shape))
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("sum")]
    assert len(printed) == 1 and printed[0].endswith("(20, 4)")


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_a_worker_that_dies(how: str) -> None:
    def simulator(theta):
        if theta[0] > 0.9:
            import os

            os.kill(os.getpid(), 9) if how == "killed" else os._exit(3)
        return theta

    with pytest.raises(SimulationError, match="worker process") as caught:
        eq.simulate(PRIOR, simulator, 200, workers=2, batched=False, array="torch")
    assert ("SIGKILL" if how == "killed" else "EXIT(3)") in str(caught.value)
    assert caught.value.simulations is None or len(caught.value.simulations) < 200


ENDLESS = """
import os, time
import equipoise as eq

def simulator(theta):
    open(f"{log}/{os.getpid()}", "w").close()
    time.sleep(600)

eq.simulate(eq.BoxUniform([0.0], [1.0]), simulator, 10, workers=2, batched=False, array="torch")
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(how: signal.Signals, tmp_path) -> None:
    """Ctrl-C reaches the parent and its workers alike; a parent that is killed can tell them nothing."""
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(f"log = {str(log)!r}\n{ENDLESS}")  # the workers have their own sys.argv
    log.mkdir()
    # A shell without job control has its background jobs ignore SIGINT, and they pass this on.
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    arguments = [sys.executable, str(script)]
    parent = subprocess.Popen(arguments, stderr=-1, text=True, start_new_session=True, preexec_fn=heard)

    def wait_for(condition) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    wait_for(lambda: len(list(log.iterdir())) == 2)
    workers = [int(file.name) for file in log.iterdir()]
    assert all(alive(pid) for pid in workers)
    os.killpg(parent.pid, how) if how == signal.SIGINT else parent.kill()
    _, errors = parent.communicate(timeout=120)
    assert how == signal.SIGKILL or "KeyboardInterrupt" in errors
    wait_for(lambda: not any(alive(pid) for pid in workers))


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent to notice does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
