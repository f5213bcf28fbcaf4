"""The batch estimate of balance, and published numbers judged as the released code judges."""

from __future__ import annotations

__all__ = ["bnre_on_slcp", "judged_twice", "toy", "trained"]

import csv
from pathlib import Path

import numpy as np

from agreement import figure_name
from formats import signed, table
from reading import TASKS, Missing, figure_auc, opened, optional, published

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
    """BNRE on SLCP at every budget that was read off the figure, and with half the strength where it was computed."""
    ours, half = opened("released", folder), optional("strength", folder)
    budgets = sorted(b for t, m, b in published() if (t, m) == ("slcp", "bnre"))
    if ("slcp", "bnre", budgets[0]) not in ours.settings:
        raise Missing("`results/released.nc` has no BNRE on SLCP")
    rows: list[list[str]] = [["published"], ["here, λ = 100"], ["difference"], ["here, λ = 50"]]
    for b in budgets:
        theirs, s = published()["slcp", "bnre", b], ours.settings.get(("slcp", "bnre", b))
        mine = None if s is None else figure_auc(s, ours.ds["level"].values)
        less = None if half is None else half.settings.get(("slcp", "bnre[strength=50]", b))
        fifty = "–" if less is None or half is None else signed(figure_auc(less, half.ds["level"].values))
        values = [signed(theirs), *(["–", "–"] if mine is None else [signed(mine), signed(mine - theirs)]), fifty]
        for row, value in zip(rows, values, strict=True):
            row.append(value)
    return table(["BNRE, SLCP", *(f"{b:,}" for b in budgets)], rows)
