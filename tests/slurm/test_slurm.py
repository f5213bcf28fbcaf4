"""A small grid through a real Slurm: one node on loopback, jobs from `--cluster slurm.yaml`, the same results."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from experiments_tiny import TINY, assert_same_cells, command, environment, write_toml

from equipoise.experiments import load_grid, run_grid

SCRIPT = Path(__file__).with_name("cluster.sh")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
YAML = """
slurm:
  jobs: 2
  interface: lo
  memory: 1GB
  walltime: "00:10:00"
  log_directory: {logs}
"""


def why_not() -> str:
    """Why Slurm cannot be run here; empty where it can."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name, path=PATH) is None]
    if missing:
        return f"Slurm is not installed here ({', '.join(missing)} missing): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "the test's Slurm daemons need root"


@pytest.fixture
def slurm():
    """The environment in which Slurm's commands find a cluster of one node."""
    if reason := why_not():
        print(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="equipoise-slurm-"))
    env = environment() | {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    try:
        started = subprocess.run([SCRIPT, "start", folder], env=env, capture_output=True, text=True, timeout=60)
        if started.returncode:
            logs = "\n".join(f.read_text()[-2000:] for f in folder.glob("*.log"))
            raise RuntimeError(f"the cluster did not start: {started.stderr}\n{logs}")
        yield env
    finally:
        subprocess.run([SCRIPT, "stop", folder], env=env, timeout=60, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_grid_through_slurm_gives_the_same_cells(slurm, tmp_path):
    change = {"budgets": [128]}
    grid = write_toml(tmp_path / "tiny.toml", TINY | change)
    (tmp_path / "slurm.yaml").write_text(YAML.format(logs=tmp_path / "logs"))
    out = tmp_path / "out"
    options = ("--cluster", str(tmp_path / "slurm.yaml"), "--device", "cpu", "--no-report")
    with subprocess.Popen(
        command(grid, out, *options), env=slurm, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            output, _ = process.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate()
            output += subprocess.run(["squeue"], env=slurm, capture_output=True, text=True).stdout
    logs = "\n".join(f.read_text() for f in (tmp_path / "logs").glob("*"))
    assert process.returncode == 0, f"{output}\n{logs[-6000:]}"
    assert "distributed.worker" in logs, "the stacks were to be computed by jobs"
    run_grid(load_grid(TINY | change), tmp_path / "here", threads=1, device="cpu")
    assert_same_cells(tmp_path / "here", out)
    left = subprocess.run(
        ["squeue", "--noheader", "--states=PENDING,RUNNING"], env=slurm, capture_output=True, text=True
    )
    assert left.stdout.strip() == "", "no job is left behind"
