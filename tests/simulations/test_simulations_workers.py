"""Worker processes: what travels to them, how they share the cores, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.simulations import SimulationError
from equipoise.support.devices import cores

PRIOR = eq.BoxUniform([-1.0, 0.5], [1.0, 2.0])


def test_workers_take_lambdas_and_closures() -> None:
    shift = 5.0
    one, two = (
        eq.simulate(PRIOR, lambda theta: theta + shift + torch.randn_like(theta), 20, workers=w, block_size=8)
        for w in (1, 2)
    )
    assert torch.equal(one.x, two.x)


def test_workers_share_the_cores() -> None:
    """Each worker's libraries are told to use its share of them."""

    def threads(theta):
        import os

        return [float(os.environ[f"{name}_NUM_THREADS"]) for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")]

    pairs = eq.simulate(PRIOR, threads, 4, workers=2, batched=False, array="numpy")
    assert (pairs.x == max(1, cores() // 2)).all()


INTERRUPTED = """
import os, sys, time
import equipoise as eq

def simulator(theta):
    open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
    time.sleep(600)

try:
    eq.simulate(eq.BoxUniform([0.0], [1.0]), simulator, 10, workers=2, batched=False, array="torch")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_ends_the_workers(tmp_path) -> None:
    """Ctrl-C reaches the parent and its workers alike, in the middle of simulations that would take ten minutes."""
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(INTERRUPTED)
    log.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(log)], stdout=-1, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(log.iterdir())) < 2:
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    printed, _ = parent.communicate(timeout=120)
    assert "interrupted" in printed
    assert not any(Path(f"/proc/{worker.name}").exists() for worker in log.iterdir())


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


ORPHANS = """
import os, sys, time
import equipoise as eq

def simulator(theta):
    with open(sys.argv[1], "a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(600)

prior = eq.BoxUniform([0.0, 0.0], [1.0, 1.0])
eq.simulate(prior, simulator, 10, workers=2, batched=False, array="torch")
"""


def test_no_worker_survives_a_killed_parent(tmp_path) -> None:
    script, log = tmp_path / "orphans.py", tmp_path / "log"
    # The workers have their own sys.argv, so that the name of the file goes into the source.
    script.write_text(ORPHANS.replace("sys.argv[1]", repr(str(log))))
    parent = subprocess.Popen([sys.executable, str(script)])

    def wait_for(condition) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    wait_for(lambda: log.exists() and len(log.read_text().split()) == 2)
    workers = [int(pid) for pid in log.read_text().split()]
    assert all(alive(pid) for pid in workers)
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers))


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent to notice does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
