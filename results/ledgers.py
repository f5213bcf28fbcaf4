"""The cost of the results from their ledgers, compared with the authors' loop, and what they were made with."""

from __future__ import annotations

__all__ = ["cost", "cost_of_stacks", "device_seconds", "state"]

import itertools
from pathlib import Path

import numpy as np
import xarray as xr

from ablations import CLASSIFIERS
from formats import options_of, table
from reading import FILES, TASKS, Missing, Results

#: Microseconds of a step of the authors' loop for one network on one H200 (docs/speed.md). What was not measured
#: takes the time of the method with the same evaluations: BNRE that of NRE, flows that see two pairs that of BNPE.
LOOP_US = {"nre": 3392, "bnre": 3392, "nre_c": 3708, "bnre_c": 3708, "npe": 18933} | dict.fromkeys(
    ("bnpe", "rnpe", "brnpe", "bnpe_init", "brnpe_init"), 20251
)
#: The same with a convolutional embedding, by task: classifiers that of BNRE, flows that of BNPE; NPE, which sees half
#: as many pairs, at least what it takes without an embedding.
EMBEDDED_US = {"spatial_sir": (7622, 28948), "lotka_volterra": (7982, 29155)}
LOOP_EPOCHS, LOOP_BATCH = 500, 256
#: The budgets of the paper, and the grids that go through them.
BUDGETS, GRIDS = tuple(2**k for k in range(10, 18)), ("paper", "released")


def cost(folder: Path) -> str:
    """Seconds of the stacks of each grid and network, and hours of the authors' loop for the same networks."""
    rows: list[list[str]] = []
    hardware: set[str] = set()
    everything = _opened(folder)
    if not everything:
        raise Missing("none of the results are there")
    seconds = device_seconds(*(results.ds for results in everything.values()))
    for (name, results), busy in zip(everything.items(), seconds, strict=True):
        ds = results.ds
        hardware |= set(map(str, ds["ledger_hardware"].values))
        there = [n for n in ("classifier", "flow") if (ds["ledger_network"].values == n).any()]
        parts = {f"{n}s": [n] for n in there} | ({"all": there} if len(there) > 1 else {})
        for words, networks in parts.items():
            mine = np.isin(ds["ledger_network"].values, networks)
            trained, judged = (float(ds[f"ledger_{n}_seconds"].values[mine].sum()) for n in ("train", "diagnose"))
            members = int(ds["ledger_members"].values[mine].sum())
            steps = float(ds["ledger_steps"].values[mine].sum())
            loop = sum(_loop_seconds(results, n) for n in networks)
            row = [f"`{name}`, {words}", f"{int(mine.sum())}", f"{members:,}", f"{steps / 1e6:.2f}"]
            row += [f"{trained:,.0f}", f"{judged:,.0f}", *_compared(loop, busy[mine].sum())]
            rows.append([f"**{cell}**" for cell in row] if words == "all" else row)
    head = ["", "stacks", "networks", "10⁶ steps", "training, s", "diagnosis, s", "GPU, s", "authors' loop, h", "ratio"]
    return f"{table(head, rows)}\n\n*Computed on {', '.join(sorted(hardware))}.*"


def cost_of_stacks(folder: Path) -> str:
    """Seconds of every stack of the two large grids, what those that are missing would take, and the authors' loop.

    A stack has all methods of a network and all runs. Twice the simulations are twice the steps of an epoch, so a
    stack that is missing is taken to be twice the one before: too much where compiling or diagnosis, which do not
    grow, are a large part of it.
    """
    everything = _opened(folder)
    if not any(name in everything for name in GRIDS):
        raise Missing("neither of the large grids is there")
    seconds = dict(zip(everything, device_seconds(*(r.ds for r in everything.values())), strict=True))
    rows = []
    for name in (n for n in GRIDS if n in everything):
        results, busy = everything[name], seconds[name]
        ds, whole, loop = results.ds, 0.0, 0.0
        for task, network in itertools.product(results.tasks, ("classifier", "flow")):
            mine = (ds["ledger_task"].values == task) & (ds["ledger_network"].values == network) & np.isfinite(busy)
            if not mine.any():
                continue
            cells, took = [], []
            for budget in BUDGETS:
                found = busy[mine & (ds["ledger_budget"].values == budget)]
                took.append(float(found.sum()) if found.size else 2 * took[-1] if took else float("nan"))
                cells.append(f"{took[-1]:,.0f}" if found.size else f"*{took[-1]:,.0f}*")
            methods = {s.method for s in results.settings.values() if s.task == task}
            methods = {m for m in methods if (m in CLASSIFIERS) == (network == "classifier")}
            theirs = sum(_training(task, m, b) for m in methods for b in BUDGETS) * ds.sizes["run"]
            rows.append([f"`{name}`, {TASKS[task]}, {network}s", *cells, *_compared(theirs, sum(took))])
            whole, loop = whole + sum(took), loop + theirs
        rows.append([f"**`{name}`, whole**", *[""] * len(BUDGETS), *(f"**{c}**" for c in _compared(loop, whole))])
    return table(["", *(f"{b:,}" for b in BUDGETS), "sum, s", "authors' loop, h", "ratio"], rows)


def device_seconds(*ledgers: xr.Dataset) -> list[np.ndarray]:
    """Seconds of a GPU that each stack of each ledger used; NaN for one that was computed without.

    Processes that share a GPU overlap in time, those of different grids too. A second during which k stacks were under
    way on it counts 1/k for each of them, so that the sum is the time during which the GPU was in use, however many
    shared it.
    """
    begin, took, device, places = (
        np.concatenate([ds[f"ledger_{n}"].values for ds in ledgers]) for n in ("began", "seconds", "device", "place")
    )
    used = np.where(device == "cuda", 0.0, np.nan)
    for place in set(places):
        here = (places == place) & np.isfinite(used)
        edges = np.unique(np.concatenate([begin[here], (begin + took)[here]]))
        for low, high in itertools.pairwise(edges):
            active = here & (begin <= low) & (begin + took >= high)
            used[active] += (high - low) / max(active.sum(), 1)
    return np.split(used, np.cumsum([ds.sizes["ledger"] for ds in ledgers])[:-1])


def _opened(folder: Path) -> dict[str, Results]:
    """The results files that exist, each by itself."""
    return {name: Results(name, folder) for name in FILES if (folder / f"{name}.nc").exists()}


def _compared(loop: float, busy: float) -> list[str]:
    """Seconds of a GPU, hours of the authors' loop, which was timed on one, and their ratio."""
    known = np.isfinite(busy)
    return [f"{busy:,.0f}" if known else "–", f"{loop / 3600:,.1f}", f"{loop / busy:,.0f}×" if known else "–"]


def _loop_seconds(results: Results, network: str) -> float:
    """What the authors' loop would take for the same networks: 500 epochs, one after the other.

    Cells that differ in the weights kept or in how they are judged are one training; a mixture is several.
    """
    members = results.ds.sizes.get("member", 1)
    trainings: dict[tuple[object, ...], float] = {}
    for s in results.settings.values():
        name, options = options_of(s.method)
        if (network == "classifier") == (name in CLASSIFIERS):
            own = tuple((k, v) for k, v in options.items() if k not in ("keep", "recipe"))
            seconds = len(s.verdicts) * members * _training(s.task, name, s.budget)
            key = s.task, s.budget, name, own
            trainings[key] = max(trainings.get(key, 0.0), seconds)
    return sum(trainings.values())


def _training(task: str, method: str, budget: int) -> float:
    """Seconds of one network in the authors' loop."""
    return LOOP_EPOCHS * -(-int(0.9 * budget) // LOOP_BATCH) * _step(task, method) * 1e-6


def _step(task: str, method: str) -> int:
    """Microseconds of a step of the authors' loop."""
    if task not in EMBEDDED_US or method == "npe":
        return LOOP_US[method]
    classifier, flow = EMBEDDED_US[task]
    return flow if method.endswith(("npe", "init")) else classifier


def state(folder: Path) -> str:
    """How much of each grid was computed, and with what."""
    rows, found = [], _opened(folder)
    for name in FILES:
        if name not in found:
            rows.append([f"`{name}`", "not computed yet", "–", "–", "–", "–"])
            continue
        ds = found[name].ds
        cells = f"{int(ds.attrs['cells_done']):,} of {int(ds.attrs['cells_wanted']):,}"
        made = [ds.attrs["hardware"], f"torch {ds.attrs['torch']}"]
        tasks = ", ".join(TASKS[t] for t in found[name].tasks)
        rows.append([f"`{name}`", tasks, cells, f"{int(ds['pairs']):,}", *made])
    return table(["grid", "tasks", "cells", "coverage pairs", "hardware", "software"], rows)
