"""Workers, schedulers, jobs and runners of clusters killed at random moments: what goes on ends in the same results.

A small grid is run on a cluster: `local` (workers are killed, and the runner, which is the scheduler too), a Dask
scheduler of its own (scheduler, workers, runner) and a Slurm of one node (jobs, their workers, runner). Trainings keep
their state after every epoch. Whatever ended is begun again, until the grid is complete, and its results have to be
those of a run in one process that nobody disturbed, to the last bit.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import soak_kills

from equipoise.experiments import Folder, load_grid, run_grid
from equipoise.experiments.pipeline import compute_stack
from equipoise.training import checkpoint

GRID = soak_kills.GRID | {"runs": 3, "training": {"epochs": 20, "batch_size": 64}}
SLURM = Path(__file__).parents[1] / "slurm" / "cluster.sh"
YAML = """
slurm:
  jobs: 2
  interface: lo
  memory: 1GB
  walltime: "00:10:00"
  log_directory: {folder}
  security: true
  shared_temp_directory: {folder}
"""
#: Seconds that anything may take before it counts as hung.
PATIENCE = 1200.0
HERE = str(Path(__file__).parent)


def compute(stack: Any, folder: Folder, device: str | None, threads: int, keep: bool, compile: bool | None) -> None:
    """Compute a stack, and keep the state of its training after every epoch."""
    checkpoint.Checkpoint.__init__.__defaults__ = (0.0,)  # type: ignore[misc]
    compute_stack(stack, folder, device, threads, True, compile)


def run(out: Path, cluster: str | None) -> bool:
    """A runner."""
    from soak_clusters import compute  # workers know it by this name, and not as a part of `__main__`

    return run_grid(load_grid(GRID), out, cluster=cluster, threads=1, device="cpu", compute=compute).complete


# --- places -----------------------------------------------------------------------------------------------------------


class Place:
    """Processes of a cluster, each in a session of its own, so that nothing outlives its end."""

    victims: tuple[str, ...] = ("worker", "runner")
    cluster = "local"

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder, dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}

    def start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log:
            self.parts[name] = subprocess.Popen(
                [sys.executable, *command], env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def up(self, out: Path) -> None:
        """Start what does not run."""
        if not self.runs("runner"):
            self.start("runner", __file__, "--out", str(out), "--cluster", self.cluster)

    def runs(self, name: str) -> bool:
        return name in self.parts and self.parts[name].poll() is None

    def kill(self, victim: str, worker: int) -> None:
        """Kill a process: the one that computes a stack, or the one of this name."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker if victim == "worker" else self.parts[victim].pid, signal.SIGKILL)
        if victim != "worker":
            self.parts[victim].wait()

    def end(self) -> None:
        for process in self.parts.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Scheduler(Place):
    """A Dask scheduler and its worker, which the runner joins."""

    victims = ("worker", "runner", "scheduler")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.cluster = f"tcp://127.0.0.1:{self.port}"

    def up(self, out: Path) -> None:
        if not self.runs("scheduler"):
            options = ("--host", "127.0.0.1", "--port", str(self.port), "--dashboard-address", "127.0.0.1:0")
            self.start("scheduler", "-m", "distributed.cli.dask_scheduler", *options)
        if not self.runs("nanny"):
            options = ("--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--death-timeout", "60")
            self.start("nanny", "-m", "distributed.cli.dask_worker", self.cluster, *options)
        super().up(out)


class Slurm(Place):
    """A Slurm of one node, with TLS between the runner and its jobs."""

    victims = ("worker", "runner", "job")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.env |= {"PATH": f"{os.environ['PATH']}:/usr/sbin", "SLURM_CONF": str(folder / "slurm" / "slurm.conf")}
        subprocess.run([SLURM, "start", folder / "slurm"], env=self.env, check=True, timeout=60, capture_output=True)
        (folder / "slurm.yaml").write_text(YAML.format(folder=folder))
        self.cluster = str(folder / "slurm.yaml")

    def kill(self, victim: str, worker: int) -> None:
        if victim != "job":
            super().kill(victim, worker)
            return
        listed = subprocess.run(["squeue", "--noheader", "--format=%i"], env=self.env, capture_output=True, text=True)
        for job in listed.stdout.split()[:1]:
            subprocess.run(["scancel", "--signal=KILL", "--full", job], env=self.env, check=True)

    def end(self) -> None:
        super().end()
        subprocess.run(["scancel", "--user=root"], env=self.env, capture_output=True)
        subprocess.run([SLURM, "stop", self.folder / "slurm"], env=self.env, timeout=60, capture_output=True)


PLACES: dict[str, type[Place]] = {"local": Place, "scheduler": Scheduler, "slurm": Slurm}


def why_not(name: str) -> str:
    """Why a cluster cannot be had here; empty where it can."""
    if name != "slurm":
        return ""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [tool for tool in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(tool, path=path) is None]
    return f"{', '.join(missing)} missing" if missing else "" if os.geteuid() == 0 else "its daemons need root"


# --- killing ----------------------------------------------------------------------------------------------------------


def wanted() -> dict[str, str]:
    """The results of a run that nobody disturbs."""
    with tempfile.TemporaryDirectory() as place:
        assert run(Path(place), None)
        return soak_kills.stacks(Path(place))


def _victim(place: Place, out: Path) -> int | None:
    """A process that computes a stack; None if the runner ended, or nothing began within the time there is."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        place.up(out)
        if beats := Folder(out).running():
            return next(iter(beats.values())).pid
        if not place.runs("runner") and Folder(out).stacks():
            return None
        time.sleep(0.05)
    raise TimeoutError(f"nothing began: {_tail(place)}")


def _tail(place: Place) -> str:
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in place.folder.glob("*.log"))


def disturb(name: str, kills: int, right: dict[str, str], seed: int = 0) -> Iterator[tuple[str, str]]:
    """Kill so many times; who was killed, and what was wrong after it ("" for nothing)."""
    rng, done = random.Random(f"{name} {seed}"), 0
    with tempfile.TemporaryDirectory(prefix="equipoise-cluster-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)  # Slurm's daemons look into it, and write until they have ended
        place, outs = PLACES[name](Path(folder)), (Path(folder) / f"out-{n}" for n in itertools.count())
        out = next(outs)
        try:
            while done < kills:
                before = soak_kills.stacks(out) if out.exists() else {}
                worker = _victim(place, out)
                if worker is not None:
                    time.sleep(rng.uniform(0, 0.6))
                    victim = place.victims[done % len(place.victims)]
                    place.kill(victim, worker)
                    done += 1
                    after = soak_kills.stacks(out)
                    yield victim, "" if before.items() <= after.items() else f"lost: {before} became {after}"
                if soak_kills.stacks(out).keys() == right.keys() or done == kills:
                    yield "to the end", _end(place, out, right)
                    out = next(outs)  # another: workers whose runner is gone may still write to this one
        finally:
            place.end()


def _end(place: Place, out: Path, right: dict[str, str]) -> str:
    """Let a run come to its end, beginning it again if it has to be; what was wrong."""
    until, found = time.monotonic() + PATIENCE, {}
    while (found := soak_kills.stacks(out)).keys() != right.keys():
        if time.monotonic() > until:
            return f"not complete: {len(found)} of {len(right)} stacks\n{_tail(place)}"
        place.up(out)
        time.sleep(0.2)
    with contextlib.suppress(subprocess.TimeoutExpired):
        place.parts["runner"].wait(PATIENCE)
    if place.runs("runner"):
        return f"the runner does not end\n{_tail(place)}"
    return "" if found == right else "another result"


def main(kills: int, only: str = "") -> dict[str, int]:
    """Kill so many times on each cluster, print a line for each, and count."""
    counts, right = {"kills": 0, "wrong": 0}, wanted()
    for name in PLACES:
        if only not in name:
            continue
        if reason := why_not(name):
            print(f"{name}: nothing was killed: {reason}", flush=True)
            continue
        began = time.monotonic()
        found = list(disturb(name, kills, right))
        killed, wrong = [v for v, _ in found if v != "to the end"], [(v, w) for v, w in found if w]
        each = ", ".join(f"{killed.count(v)} of a {v}" for v in PLACES[name].victims)
        took = time.monotonic() - began
        print(f"{name}: {len(killed)} kills ({each}), {len(wrong)} wrong, {took:.0f} s", flush=True)
        for victim, why in wrong[:3]:
            print(f"  {victim}\n{why}", flush=True)
        counts["kills"] += len(killed)
        counts["wrong"] += len(wrong)
    return counts


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kills", type=int, nargs="?", default=9)
    options.add_argument("--only", default="")
    options.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--cluster", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.out:
        sys.exit(0 if run(given.out, given.cluster) else 1)
    total = main(given.kills, given.only)
    print(" ".join(f"{key} {value}" for key, value in total.items()))
    sys.exit(min(total["wrong"], 1))
