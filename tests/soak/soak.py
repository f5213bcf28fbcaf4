"""`make soak`: verdicts counted, processes killed, disks failing, inputs altered; one table at the end.

About an hour on two cores. `tests/soak/test_soak.py` runs the same with smaller numbers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import soak_verdicts

HERE = Path(__file__).parent


def counted(script: str, *arguments: str) -> dict[str, int]:
    """What a script counts, in a process of its own: its last line has names and numbers."""
    with subprocess.Popen([sys.executable, str(HERE / script), *arguments], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        lines = [print(line, end="", flush=True) or line for line in run.stdout]  # type: ignore[func-returns-value]
    words = lines[-1].split() if lines else []
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


def main(scale: float, kills: int, inputs: int) -> int:
    rows = []
    for table in soak_verdicts.TABLES:
        for row in table(scale):
            print(f"{row.table}; {row.name}: {row.count} of {row.runs}, {100 * row.rate:.1f}%", flush=True)
            rows.append(row)
    for world, tests in soak_verdicts.power(scale).items():
        print(world + ": " + ", ".join(f"{test} {100 * row.rate:.0f}%" for test, row in tests.items()), flush=True)
    struck = counted("soak_kills.py", str(kills))
    tried = counted("soak_fuzz.py", str(inputs))
    wrong = [row for row in rows if not row.holds]
    print(f"""
| | count | wrong |
|---|---|---|
| kills survived | {struck["kills"]:,} | {struck["wrong"]} |
| faults injected | {struck["faults"]:,} | |
| altered inputs | {tried["inputs"]:,} | {tried["wrong"]} |
| hung or crashed in HDF5, files of others | {tried["library"]} | |
| rates of verdicts, over {sum(row.runs for row in rows):,} data sets | {len(rows)} | {len(wrong)} |""")
    return struck["wrong"] + tried["wrong"] + len(wrong)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="of the numbers of simulated data sets")
    options.add_argument("--kills", type=int, default=60, help="disturbances of each operation")
    options.add_argument("--inputs", type=int, default=101_000, help="altered inputs, of all loaders together")
    given = options.parse_args()
    sys.exit(min(main(given.scale, given.kills, given.inputs), 1))
