"""What the results cost, from their ledgers, beside the authors' loop; and what they were made with."""

from __future__ import annotations

__all__ = ["cost", "state"]

from pathlib import Path

import numpy as np

from reading import FILES, Missing, Results, opened
from words import options_of, table

#: Microseconds of a step of the authors' loop for one network on one H200 (docs/training.md). What was not measured
#: takes the time of the method with the same evaluations: BNRE that of NRE, flows that see two pairs that of BNPE.
LOOP_US = {"nre": 3392, "bnre": 3392, "nre_c": 3708, "bnre_c": 3708, "npe": 18933} | dict.fromkeys(
    ("bnpe", "rnpe", "brnpe", "bnpe_init", "brnpe_init"), 20251
)
LOOP_EPOCHS, LOOP_BATCH = 500, 256


def cost(folder: Path) -> str:
    """Seconds of the stacks of each grid and network, and hours of the authors' loop for the same cells."""
    rows: list[list[str]] = []
    hardware: set[str] = set()
    for name in FILES:
        try:
            results = opened(name, folder)
        except Missing:
            continue
        ds = results.ds
        hardware |= set(map(str, ds["ledger_hardware"].values))
        devices = set(map(str, ds["ledger_device"].values))
        totals = np.zeros(3)
        for network in ("classifier", "flow"):
            mine = ds["ledger_network"].values == network
            if not mine.any():
                continue
            trained, judged, whole = (
                float(ds[f"ledger_{n}"].values[mine].sum()) for n in ("train_seconds", "diagnose_seconds", "seconds")
            )
            loop = _loop_seconds(results, network)
            totals += trained, whole, loop
            members = int(ds["ledger_members"].values[mine].sum())
            steps = float(ds["ledger_steps"].values[mine].sum())
            row = [f"`{name}`, {network}s", f"{int(mine.sum())}", f"{members:,}", f"{steps / 1e6:.2f}"]
            rows.append([*row, *(f"{v:,.0f}" for v in (trained, judged, whole)), *_compared(loop, trained, devices)])
        if len(set(ds["ledger_network"].values)) > 1:
            row = [f"`{name}`, all", f"{ds.sizes['ledger']}", "", "", f"{totals[0]:,.0f}", "", f"{totals[1]:,.0f}"]
            rows.append([f"**{cell}**" if cell else "" for cell in (*row, *_compared(totals[2], totals[0], devices))])
    if not rows:
        raise Missing("none of the results are there")
    head = ["", "stacks", "networks", "10⁶ steps", "training, s", "diagnosis, s", "all, s", "authors' loop, h", "ratio"]
    return f"{table(head, rows)}\n\n*Computed on {', '.join(sorted(hardware))}.*"


def _compared(loop: float, trained: float, devices: set[str]) -> list[str]:
    """Hours of the authors' loop, which was timed on a GPU, and how many times longer they are than ours on one."""
    return [f"{loop / 3600:,.1f}", f"{loop / trained:,.0f}×" if devices == {"cuda"} else "–"]


def _loop_seconds(results: Results, network: str) -> float:
    """What the authors' loop would take for the same cells: 500 epochs, one network after the other."""
    seconds = 0.0
    for s in results.settings.values():
        name = options_of(s.method)[0]
        if (network == "classifier") == (name in ("nre", "bnre", "nre_c", "bnre_c")):
            steps = LOOP_EPOCHS * -(-int(0.9 * s.budget) // LOOP_BATCH)
            seconds += len(s.verdicts) * steps * LOOP_US[name] * 1e-6
    return seconds


def state(folder: Path) -> str:
    """How much of each grid is there, and what made it."""
    lines = []
    for name in FILES:
        try:
            ds = opened(name, folder).ds
        except Missing:
            lines.append(f"- `{name}`: not computed yet.")
            continue
        lines.append(
            f"- `{name}`: {int(ds.attrs['cells_done']):,} of {int(ds.attrs['cells_wanted']):,} cells, "
            f"{int(ds['pairs']):,} coverage pairs; {ds.attrs['hardware']}, torch {ds.attrs['torch']}, "
            f"equipoise {ds.attrs['equipoise']}. `{ds.attrs['command']}`"
        )
    return "\n".join(lines)
