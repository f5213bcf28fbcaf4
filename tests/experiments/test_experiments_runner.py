"""Running: nothing is computed twice, a failure stops nobody else, what is killed goes on to the same result."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from blank_stacks import blank
from experiments_tiny import TINY, assert_same_cells, cells, environment, start, write_toml

from equipoise.experiments import (
    Folder,
    clusters,
    collect,
    load_grid,
    missing_stacks,
    run_grid,
    runner,
    stacks_of,
    state_of,
)  # fmt: skip
from equipoise.experiments.costs import cost
from equipoise.experiments.pipeline import compute_stack
from equipoise.experiments.runner import BUSY, DONE, FAILED, Execution, _expected_seconds, _outcome, attempt

PATIENCE = 240.0


def wait_for(condition, process=None):
    """Wait until a condition holds, or the process has ended."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            return
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.02)


def nothing(stack, folder, *how):
    """Computes a stack in no time."""
    folder.write_stack(stack.identity, blank(stack))


# --- one process ------------------------------------------------------------------------------------------------------


def test_running_again_computes_nothing(undisturbed):
    def refuse(*args):
        raise AssertionError("there was nothing to compute")

    state = run_grid(load_grid(TINY), undisturbed, compute=refuse)
    assert state.complete and state.count("done") == 8


def test_a_failure_keeps_its_traceback_stops_nobody_and_is_retried(tmp_path):
    def moody(stack, folder, *how):
        if stack.cells[0].method == "npe" and stack.budget == 128:
            raise RuntimeError("the third moon is missing")
        nothing(stack, folder)

    told = []
    grid = load_grid(TINY)
    state = run_grid(grid, tmp_path, compute=moody, tell=lambda stack, outcome: told.append(outcome))
    assert (state.count("done"), state.count("failed"), state.count("missing")) == (6, 2, 0)
    assert not state.complete and sorted(told) == ["done"] * 6 + ["failed"] * 2
    for label, text in state.failures.items():
        assert (
            label.startswith("slcp 128 flow")
            and "in moody" in text
            and text.strip().endswith("the third moon is missing")
        )
    again = run_grid(grid, tmp_path, compute=nothing)
    assert again.complete and not again.failures and not list((tmp_path / "failed").iterdir())


def test_a_grid_that_grows_keeps_its_cells(tmp_path):
    computed = []

    def note(stack, folder, *how):
        computed.append([(c.method, c.run) for c in stack.cells])
        nothing(stack, folder)

    small = TINY | {"methods": ["nre"], "budgets": [128], "runs": 1, "stack": None}
    run_grid(load_grid(small), tmp_path, compute=note)
    larger = load_grid(small | {"methods": ["nre", "bnre"], "runs": 2})
    assert run_grid(larger, tmp_path, compute=note).complete
    assert computed == [[("nre", 0)], [("bnre", 0), ("nre", 1), ("bnre", 1)]]
    assert not missing_stacks(larger, Folder(tmp_path))


ONE = TINY | {"methods": ["npe"], "budgets": [128], "runs": 1, "stack": None}


def results_of(folder, *grids):
    for grid in grids:
        assert run_grid(load_grid(grid), folder, device="cpu").complete
    return collect(Folder(folder))


def test_cells_of_other_settings_are_not_taken_for_this_grids(tmp_path):
    longer = {"training": {"epochs": 2, "batch_size": 32}, "budgets": [256]}
    mixed = results_of(tmp_path / "a", ONE, ONE | longer)
    assert mixed.budget.values.tolist() == [256] and mixed.attrs["notes"].startswith(
        "1 finished cells of other settings"
    )
    grown = results_of(tmp_path / "b", ONE, ONE | {"budgets": [256]})
    assert grown.budget.values.tolist() == [128, 256] and "other settings" not in grown.attrs["notes"]
    assert np.isfinite(grown.coverage_auc.values).all()


def test_a_cell_stands_where_its_grid_calls_it(tmp_path):
    """bnpe, and bnpe with the strength that it has anyway, are one cell."""
    ds = results_of(tmp_path, ONE | {"methods": ["bnpe"]}, ONE | {"methods": ["npe", "bnpe[strength=100]"]})
    assert ds.method.values.tolist() == ["npe", "bnpe[strength=100]"] and ds.attrs["cells_done"] == 2
    assert np.isfinite(ds.coverage_auc.values).all()


def test_a_batch_system_does_not_take_ctrl_c(tmp_path):
    """dask-jobqueue does when it is imported: a process of its own, where it is not yet."""
    (tmp_path / "slurm.yaml").write_text("slurm: {walltime: '1:00:00', memory: 4GB, cores: 1}")
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored in the background
        "from equipoise.experiments import check_cluster; check_cluster('slurm.yaml'); "
        "assert 'dask_jobqueue' in sys.modules and signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=PATIENCE)


def test_a_heartbeat_that_cannot_be_written_stops_nothing(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "running").write_text("in the way")
    folder.heartbeat("identity", "training", force=True)
    assert not folder.running()


def test_cheap_stacks_come_first_and_a_time_limit_is_kept(tmp_path, monkeypatch):
    order, clock = [], SimpleNamespace(now=0.0, time=lambda: clock.now)

    def slow(stack, folder, *how):
        order.append(stack.budget)
        clock.now += 0.05
        nothing(stack, folder)

    monkeypatch.setattr(runner, "time", clock)
    grid = load_grid(TINY | {"budgets": [256, 4096, 128], "methods": ["nre"], "runs": 1})
    state = run_grid(grid, tmp_path, compute=slow, stop_after=0.08, pace=0)
    assert order == [128, 256] and state.count("missing") == 1


def test_a_stack_that_would_not_end_in_time_is_not_begun(tmp_path):
    grid = load_grid(TINY | {"budgets": [128, 256, 65536], "methods": ["nre"], "runs": 1})
    small, middle, large = (cost(s).seconds for s in missing_stacks(grid, Folder(tmp_path)))
    told = []
    # Time for the two small stacks one after the other, but never for the large one.
    state = run_grid(
        grid,
        tmp_path,
        device="cpu",
        compute=nothing,
        stop_after=(middle + large) / 2,
        pace=1,
        tell=lambda s, o: told.append((s.budget, o)),
    )
    assert small < middle < large / 2 and told == [(128, "done"), (256, "done"), (65536, "late")]
    assert state.count("missing") == 1 and not state.failures and not Folder(tmp_path).failure("")
    run_grid(grid, tmp_path, device="cpu", compute=nothing, stop_after=(middle + large) / 2, pace=0.1)
    assert state_of(grid, Folder(tmp_path)).complete


def test_what_finished_stacks_took_says_what_others_will(tmp_path):
    """Without a pace of its own, a run learns it from the stacks that are there, of the same network and device."""
    grid = load_grid(TINY | {"budgets": [128, 65536], "methods": ["nre"], "runs": 1})
    first, second = missing_stacks(grid, Folder(tmp_path))
    folder, most = Folder(tmp_path), cost(second).seconds
    about = {"network": "classifier", "embedded": 0, "device": "cpu", "cost": 100.0, "seconds": 20.0}
    run = Execution("cpu")
    assert _expected_seconds(second, folder, run) == most
    other, gpu, old = stacks_of(load_grid(TINY | {"budgets": [256, 512, 1024], "methods": ["nre"], "runs": 1}))
    folder.write_stack(other.identity, blank(other, **about | {"network": "flow"}))
    folder.write_stack(gpu.identity, blank(gpu, **about | {"device": "cuda"}))
    folder.write_stack(old.identity, blank(old))  # of a version that did not keep them
    assert _expected_seconds(second, folder, run) == most
    folder.write_stack(first.identity, blank(first, **about))
    assert _expected_seconds(second, folder, run) == pytest.approx(0.25 * most)
    assert _expected_seconds(second, folder, Execution("cpu", pace=2.0)) == 2 * most


def test_stack_files_are_all_that_a_series_of_jobs_carries(undisturbed, tmp_path):
    """Each job starts from the stack files alone, somewhere else, and computes what is missing."""
    grid = load_grid(TINY)
    assert len(missing_stacks(grid, Folder(tmp_path))) == 8
    carried: list[Path] = []
    for job in range(3):
        out = tmp_path / f"job-{job}"
        (out / "stacks").mkdir(parents=True)
        for file in carried:
            shutil.copy(file, out / "stacks")
        begun = []

        def one(stack, folder, device, threads, checkpoint, compile, begun=begun):
            if len(begun) == 3:
                raise KeyboardInterrupt  # the machine is taken away in the middle of the fourth stack
            begun.append(stack)
            compute_stack(stack, folder, device, threads, checkpoint, compile)

        with contextlib.suppress(KeyboardInterrupt):
            run_grid(grid, out, threads=1, device="cpu", compute=one)
        carried = sorted((out / "stacks").glob("[!.]*.nc"))
        assert len(carried) == min(3 * (job + 1), 8)
    assert state_of(grid, Folder(out)).complete
    assert_same_cells(undisturbed, out)


def test_the_number_of_threads_is_that_of_the_first_run_and_compiling_is_chosen_in_each(tmp_path):
    seen = []

    def note(stack, folder, device, threads, checkpoint, compile):
        seen.append((threads, compile))
        nothing(stack, folder)

    run_grid(load_grid(TINY | {"budgets": [128]}), tmp_path, compute=note, threads=3)
    run_grid(load_grid(TINY), tmp_path, compute=note, compile=True)
    assert set(seen) == {(3, None), (3, True)}


def test_somebody_elses_stack_is_left_alone(tmp_path):
    folder, stack = Folder(tmp_path), stacks_of(load_grid(TINY))[0]
    with folder.claim(stack.identity) as mine:
        assert mine
        folder.heartbeat(stack.identity, "training", 3, 10, "fine")
        state = state_of(load_grid(TINY), folder)
        assert state.count("running") == 1 and state.running[0].note == "fine" and state.running[0].pid == os.getpid()
        assert attempt(stack, str(tmp_path), Execution(), nothing) == BUSY
    assert attempt(stack, str(tmp_path), Execution(), nothing) == DONE
    assert not list((tmp_path / "running").iterdir())


def test_a_process_that_is_gone_is_not_running(tmp_path):
    folder, stack = Folder(tmp_path), stacks_of(load_grid(TINY))[0]
    with folder.claim(stack.identity):
        folder.heartbeat(stack.identity, "training")
        file = tmp_path / "running" / f"{stack.identity}.json"
        right = json.loads(file.read_text())
        for wrong in ({"pid": 2**22 + 1}, {"identity": []}, {"pid": "1"}, {"done": None}):
            file.write_text(json.dumps(right | wrong))
            assert not folder.running()


def test_the_first_file_of_a_stack_stays(tmp_path):
    folder, stack = Folder(tmp_path), stacks_of(load_grid(TINY))[0]
    folder.write_stack(stack.identity, blank(stack))
    before = folder.stack_file(stack.identity).read_bytes()
    folder.write_stack(stack.identity, blank(stack, seconds=2.0))
    assert folder.stack_file(stack.identity).read_bytes() == before
    assert [p.stem for p in (tmp_path / "stacks").iterdir()] == [stack.identity]


def test_a_checkpoint_of_another_version_is_set_aside(tmp_path, undisturbed, monkeypatch):
    """A training whose checkpoint is of no use starts anew, to the same result."""
    stack = stacks_of(load_grid(TINY))[0]
    folder = Folder(tmp_path)
    folder.checkpoint(stack.identity).mkdir(parents=True)
    (folder.checkpoint(stack.identity) / "stack-0.safetensors").write_bytes(b"not a checkpoint")
    monkeypatch.setattr(runner, "CHECKPOINT_ABOVE", 0.0)
    outcome = attempt(stack, str(tmp_path), Execution("cpu"), compute_stack)
    assert outcome == DONE, folder.failure(stack.identity)
    assert not folder.checkpoint(stack.identity).exists()
    mine, theirs = cells(tmp_path), cells(undisturbed)
    for identity in mine:
        assert mine[identity]["nominal_log_prob"] == theirs[identity]["nominal_log_prob"]


def test_a_broken_stack_is_a_failure_and_not_the_end(tmp_path):
    def broken(*args):
        raise ValueError("nothing to do with a state that was kept")

    stack = stacks_of(load_grid(TINY))[0]
    assert attempt(stack, str(tmp_path), Execution(), broken) == FAILED


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_random_moments_the_results_are_the_same(undisturbed, tiny_toml, tmp_path):
    out, rng = tmp_path / "out", random.Random(0)
    stacks = out / "stacks"
    for kill in range(3):
        process = start(tiny_toml, out, "--quiet")
        before = len(list(stacks.glob("[!.]*.nc")))
        # Anywhere between the first sign of life of this process and half a second after its first stack.
        wait_for(
            lambda n=before + (kill > 0): (
                len(list(stacks.glob("[!.]*.nc"))) >= n and any((out / "running").glob("*.json"))
            ),
            process,
        )
        time.sleep(rng.uniform(0, 0.5))
        process.kill()
        process.communicate()
    done = len(cells(out))
    process = start(tiny_toml, out, "--quiet")
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert done < 8, "all was done before the last start: the kills came too late to test anything"
    assert_same_cells(undisturbed, out)
    assert not list(out.rglob("*.tmp*"))


@pytest.mark.slow
def test_workers_and_runners_of_a_cluster_can_be_killed(undisturbed, tiny_toml, tmp_path):
    out = tmp_path / "out"
    options = ("--cluster", "local", "--quiet", "--device", "cpu")
    running = lambda: list(Folder(out).running().values())  # noqa: E731

    process = start(tiny_toml, out, *options)
    wait_for(lambda: len(Folder(out).stacks()) >= 1 and running(), process)
    victims = [live.pid for live in running() if live.pid != process.pid]
    assert victims, "stacks are computed in workers, not in the runner"
    os.kill(victims[0], signal.SIGKILL)  # a worker: the nanny brings it back, the scheduler hands its stack to somebody
    wait_for(lambda: len(Folder(out).stacks()) >= 3, process)
    assert process.poll() is None or process.returncode == 0
    process.kill()  # the runner, and with it the scheduler
    process.communicate()
    process = start(tiny_toml, out, *options)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert_same_cells(undisturbed, out)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly(undisturbed, tiny_toml, tmp_path):
    out = tmp_path / "out"
    # the signal is sent while the first of eight stacks is computed, so that the run cannot have ended before it comes,
    # however late this process is woken; one finished stack is there from the beginning
    folder, done = Folder(out), Folder(undisturbed)
    identity = stacks_of(load_grid(TINY))[-1].identity
    folder.copy_stack(identity, done)
    process = start(tiny_toml, out)
    wait_for(folder.running, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert identity in folder.stacks()
    assert process.returncode == 130 and "stopped; what is finished is kept" in output and "Traceback" not in output
    assert not Folder(out).running()
    state = run_grid(load_grid(TINY), out, device="cpu")
    assert state.complete
    assert_same_cells(undisturbed, out)


# --- clusters --------------------------------------------------------------------------------------------------------


CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""


@pytest.mark.slow
def test_a_cluster_that_is_running_can_be_joined_again_and_again(undisturbed, tmp_path):
    grid = write_toml(tmp_path / "half.toml", TINY | {"budgets": [128], "runs": 1})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLUSTER], env=environment(), **pipes) as cluster:
        address = cluster.stdout.readline().strip()
        for out in ("one", "two"):  # the same stacks: a cluster that outlives a runner must not hand back old answers
            process = start(grid, tmp_path / out, "--cluster", address, "--device", "cpu", "--quiet")
            output, _ = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, output
        cluster.communicate("")
    assert_same_cells(tmp_path / "one", tmp_path / "two")
    theirs = cells(undisturbed)
    for identity, mine in cells(tmp_path / "one").items():
        assert mine["coverage_auc"] == theirs[identity]["coverage_auc"]


class Lost:
    """A future whose workers died one after the other."""

    status = "error"

    def exception(self):
        return MemoryError("worker died 4 times")


def test_a_stack_that_kills_its_workers_fails_unless_it_was_written(tmp_path):
    folder, stack = Folder(tmp_path), stacks_of(load_grid(TINY))[0]
    assert _outcome(Lost(), stack, folder) == FAILED
    assert "worker died 4 times" in (folder.failure(stack.identity) or "")
    nothing(stack, folder)
    assert _outcome(Lost(), stack, folder) == DONE


@pytest.mark.parametrize(("visible", "workers"), [("0,3", ["0", "3"]), (None, [])])
def test_there_is_one_worker_per_gpu(visible, workers, monkeypatch):
    made = {}
    monkeypatch.setattr(clusters, "_temporary_security", lambda: None)
    monkeypatch.setattr("distributed.SpecCluster", lambda **options: made.update(options))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    clusters._local(None, 1, stacks=5)
    options = [w["options"] for w in made["workers"].values()]
    assert all(o["nthreads"] == 1 for o in options)
    assert [v for o in options if (v := o["env"].get("CUDA_VISIBLE_DEVICES"))] == workers
    assert all(("resources" in o) == bool(workers) for o in options)
    clusters._local("cpu", 1, stacks=1)
    assert len(made["workers"]) == 1 and "CUDA_VISIBLE_DEVICES" not in made["workers"][0]["options"]["env"]


def test_local_workers_are_encrypted_where_that_is_possible(monkeypatch):
    made, certificates = {}, object()
    monkeypatch.setattr("distributed.SpecCluster", lambda **options: made.update(options))
    monkeypatch.setattr("distributed.Security.temporary", lambda: certificates)
    clusters._local("cpu", 1, stacks=1)
    for options in (made["scheduler"]["options"], made["workers"][0]["options"]):
        assert options["security"] is certificates and options["protocol"] == "tls://"
        assert options["host"] == "127.0.0.1" and options["dashboard"] is False
    assert made["security"] is certificates

    def missing():
        raise ImportError("no cryptography")

    monkeypatch.setattr("distributed.Security.temporary", missing)
    with pytest.warns(UserWarning, match="cryptography"):
        clusters._local("cpu", 1, stacks=1)
    assert made["security"] is None and made["scheduler"]["options"]["host"] == "127.0.0.1"


def test_nobody_else_can_join_a_local_cluster():
    """A client without the certificates of this run, over TLS or plain TCP, is turned away."""
    from distributed import Client, Security

    with clusters.connect("local", "cpu", 1, 1) as mine:
        address = mine.scheduler.address
        assert address.startswith("tls://127.0.0.1:") and mine.submit(abs, -1).result() == 1
        for theirs, security in ((address, Security.temporary()), (address.replace("tls", "tcp"), None)):
            with pytest.raises(OSError, match=r"[Tt]imed out|SSL|certificate|reset|closed"):
                Client(theirs, security=security, timeout="2s", set_as_default=False)


@pytest.mark.parametrize(("line", "safe"), [("", False), ("security: true", True), ("protocol: 'tls://'", True)])
def test_a_batch_system_without_encryption_is_warned_of(line, safe, tmp_path, monkeypatch):
    import dask_jobqueue

    made = {}

    class Recorder(dask_jobqueue.SLURMCluster):
        def __init__(self, **options):
            made.update(options)

        def adapt(self, **jobs):
            made.update(jobs)

        def close(self, *args, **kwargs):
            pass

        __del__ = close

    monkeypatch.setattr(dask_jobqueue, "SLURMCluster", Recorder)
    file = tmp_path / "slurm.yaml"
    file.write_text(f"slurm:\n  jobs: 2\n  {line}\n")
    if safe:
        clusters._batch_system(file, 1, stacks=5)
    else:
        with pytest.warns(UserWarning, match="security: true"):
            clusters._batch_system(file, 1, stacks=5)
    assert made["scheduler_options"]["dashboard_address"].startswith("127.0.0.1")
    file.write_text("slurm: {security: true, scheduler_options: {dashboard_address: ':8787'}}")
    clusters._batch_system(file, 1, stacks=5)
    assert made["scheduler_options"]["dashboard_address"] == ":8787"
