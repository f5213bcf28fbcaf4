"""The batch estimate of balance, and published numbers judged as the released code judges."""

from __future__ import annotations

__all__ = ["bnre_on_slcp", "judged_twice", "rolls", "toy", "trained"]

import csv
import math
from pathlib import Path

import numpy as np

from agreement import figure_name
from formats import signed, table
from reading import LABELS, TASKS, Missing, figure_auc, opened, optional, published

#: Grids in which the same networks were judged by both recipes.
TWICE = ("artefact", "leakage")
#: What of the toy is shown: λ, and the columns are batch sizes.
STRENGTHS, BATCHES = (10, 100, 1000), (64, 256, 1024, 4096)


def _rows(name: str, folder: Path) -> list[dict[str, str]]:
    file = folder / f"{name}.csv"
    if not file.exists():
        raise Missing(f"`results/{name}.csv` is not there")
    with open(file, encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def toy(folder: Path) -> str:
    """The exponent of the best tempered log-ratio in the conjugate Gaussian problem, and what is expected."""
    found = {(r["information"], float(r["strength"]), int(r["batch"])): r for r in _rows("estimate-toy", folder)}
    rows = []
    for strength in STRENGTHS:
        expected = [next(r for k, r in found.items() if k[1:] == (strength, n))["t_expected"] for n in BATCHES]
        rows.append([f"λ = {strength:,}", "1/(1 + λ/n)", *(f"{float(t):.2f}" for t in expected)])
        for nats in dict.fromkeys(k[0] for k in found):
            cells = [f"{float(found[nats, strength, n]['t_plain']):.2f}" for n in BATCHES]
            rows.append(["", f"{float(nats):.3g} nats", *cells])
    free = {f"{float(r['t_unbiased']):.2f}" for r in found.values()}
    note = f"*The unbiased estimate gives t = {', '.join(sorted(free))} everywhere.*"
    return table(["t with the plain estimate", "", *(f"n = {n:,}" for n in BATCHES)], rows) + f"\n\n{note}"


def trained(folder: Path) -> str:
    """Small classifiers with both estimates: medians over runs."""
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in _rows("estimate-train", folder):
        groups.setdefault((row["task"], row["batch"], row["objective"]), []).append(row)
    rows = []
    for (task, batch, objective), runs in groups.items():
        middle = {n: np.median([float(r[n]) for r in runs]) for n in ("slope", "coverage_auc", "nominal_log_prob")}
        numbers = [f"{middle['slope']:.2f}", signed(middle["coverage_auc"]), signed(middle["nominal_log_prob"], 2)]
        rows.append([f"{TASKS[task]}, {objective.replace('nre', 'NRE').replace('bNRE', 'BNRE')}", batch, *numbers])
    return table(["", "n", "slope", "coverage AUC", "nominal log posterior"], rows)


def judged_twice(folder: Path) -> str:
    """Published numbers beside the same networks, judged by our ranks and by the released recipe."""
    rows = []
    for grid in TWICE:
        results = optional(grid, folder)
        if results is None:
            continue
        levels = results.ds["level"].values
        for (task, method, budget), theirs in published().items():
            names = [f"{method}[recipe={recipe}]" for recipe in ("equipoise", "released")]
            both = [results.settings.get((task, name, budget)) for name in names]
            if both[0] is not None and both[1] is not None:
                ours = [figure_auc(s, levels) for s in both if s is not None]
                label = f"{figure_name(method)}, {TASKS[task]}"
                rows.append([label, f"{budget:,}", signed(theirs), *map(signed, ours)])
    if not rows:
        raise Missing("no published setting was judged by both recipes")
    return table(["", "budget", "published", "our ranks", "released recipe"], rows)


def bnre_on_slcp(folder: Path) -> str:
    """BNRE on SLCP at every budget that was read off the figure: strength × precision."""
    grids = {name: optional(name, folder) for name in ("released", "bnre_slcp")}
    budgets = sorted(b for t, m, b in published() if (t, m) == ("slcp", "bnre"))
    kinds = {"λ = 100, TF32, as in `released`": ("released", "bnre")} | {
        f"λ = {strength}, {words}": ("bnre_slcp", f"bnre[strength={strength},tf32={tf32}]")
        for strength in (100, 50)
        for tf32, words in (("true", "TF32"), ("false", "float32"))
    }
    rows = [["published", *(signed(published()["slcp", "bnre", b]) for b in budgets)]]
    for words, (grid, method) in kinds.items():
        there = grids[grid]
        found = [None if there is None else there.settings.get(("slcp", method, b)) for b in budgets]
        if there is not None and any(found):
            levels = there.ds["level"].values
            rows.append([words, *("–" if s is None else signed(figure_auc(s, levels)) for s in found)])
    if len(rows) == 1:
        raise Missing("neither `results/released.nc` nor `results/bnre_slcp.nc` has BNRE on SLCP")
    return table(["BNRE, SLCP", *(f"{b:,}" for b in budgets)], rows)


def rolls(folder: Path) -> str:
    """NRE-C and BNRE-C with shared rolls of θ and with rolls of their own, on the same simulations and first weights.

    The standard error is that of the mean of the runs' differences.
    """
    results, rows = opened("rolls", folder), []
    for task in results.tasks:
        for method in ("nre_c", "bnre_c"):
            for budget in results.budgets:
                both = [results.settings.get((task, f"{method}[share_rolls={v}]", budget)) for v in ("true", "false")]
                if None in both:
                    continue
                shared, apart = (s.numbers["coverage_auc"] for s in both if s is not None)
                gap = apart - shared
                error = float(gap.std(ddof=1)) / math.sqrt(len(gap))
                theirs = published().get((task, method, budget))
                medians = [signed(float(np.median(v))) for v in (shared, apart)]
                name = f"{LABELS[method]}, {TASKS[task]}"
                known = "–" if theirs is None else signed(theirs)
                rows.append([name, f"{budget:,}", known, *medians, f"{signed(float(gap.mean()))} ± {error:.3f}"])
    if not rows:
        raise Missing("`results/rolls.nc` has no setting with both kinds of rolls")
    return table(["", "budget", "published", "shared rolls", "rolls of their own", "difference"], rows)
