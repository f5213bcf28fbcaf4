"""`make soak`: verdicts counted, processes killed, power cut, disks failing, inputs altered; one table at the end.

The parts run side by side, one on each core, up to four. `tests/soak/test_soak.py` runs the same with smaller numbers.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
#: Loaders that are tried together, those that take long apart.
LOADERS = ("model,weights", "checkpoint,store,block,manifest", "stack,grid.json,heartbeat", "results,TOML,prior,exact",
           "pairs,observation")  # fmt: skip


def counted(script: str, *arguments: str) -> Counter[str]:
    """What a script counts, in a process of its own: its last line has names and numbers."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    lines = []
    with subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=env,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            print(f"{script.removeprefix('soak_').removesuffix('.py')}: {line}", end="", flush=True)
            lines.append(line)
    words = lines[-1].split() if lines else []
    try:
        return Counter(dict(zip(words[::2], map(int, words[1::2]), strict=True)))
    except ValueError:
        print(f"{script} did not come to its end", flush=True)
        return Counter(wrong=1)  # the other parts count all the same


def main(scale: float, kills: int, inputs: int, clusters: int, cuts: int) -> int:
    began = time.monotonic()
    parts = [("soak_kills.py", str(kills)), ("soak_verdicts.py", str(scale)), ("soak_clusters.py", str(clusters))]
    parts += [("soak_power.py", str(cuts)), *(("soak_fuzz.py", str(inputs), "--only", names) for names in LOADERS)]
    cores = min(len(os.sched_getaffinity(0)), 4)
    with ThreadPoolExecutor(cores) as pool:
        found = list(pool.map(lambda part: counted(*part), parts))
    struck, verdicts, clustered, cut, *tried = found
    fuzzed: Counter[str] = sum(tried, Counter())
    lost = struck["wrong"] + clustered["wrong"] + cut["wrong"]
    took = (time.monotonic() - began) / 60
    print(f"""
| {took:.0f} minutes, {cores} processes | count | wrong |
|---|---|---|
| kills survived, of operations | {struck["kills"]:,} | {struck["wrong"]} |
| kills survived, of workers, schedulers, jobs and runners of clusters | {clustered["kills"]:,} | {clustered["wrong"]} |
| power cuts survived | {cut["cuts"]:,} | {cut["wrong"]} |
| faults injected: full disks, input/output errors, files cut off | {struck["faults"]:,} | {struck["wrong"]} |
| altered inputs tried | {fuzzed["inputs"]:,} | {fuzzed["wrong"]} |
| of them files with a flipped bit, that gave other numbers | {fuzzed["flipped"]:,} | {fuzzed["silent"]} |
| of them hung or crashed in HDF5, files of others | {fuzzed["library"]} | |
| rates of false verdicts, over {verdicts["datasets"]:,} data sets | {verdicts["rates"]} | {verdicts["wrong"]} |
| **lost** | **{lost if lost else "nothing"}** | |""")
    return lost + fuzzed["wrong"] + verdicts["wrong"]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="of the numbers of simulated data sets")
    options.add_argument("--kills", type=int, default=60, help="disturbances of each operation")
    options.add_argument("--inputs", type=int, default=101_000, help="altered inputs, of all loaders together")
    options.add_argument("--clusters", type=int, default=9, help="kills on each cluster")
    options.add_argument("--cuts", type=int, default=12, help="power cuts of each operation")
    given = options.parse_args()
    sys.exit(min(main(given.scale, given.kills, given.inputs, given.clusters, given.cuts), 1))
