"""Results to draw: a dataset with the variables of results.nc, made from ranks whose true coverage is known.

Ranks U^k with U uniform have coverage u^(1/k) and coverage AUC ½ - 1/(k + 1); each method gets an AUC and a log
posterior that move with the budget about as they do in the paper. Curves, bands and verdicts come from
`equipoise.diagnostics`, so that they fit together as real ones do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from equipoise.diagnostics import coverage_auc, coverage_curve, judge, judge_cells, levels_covered, simultaneous_band

#: Coverage AUC at budget 1024 and in the limit, and how much of the information is kept at budget 1024.
NATURE = {
    "nre": (-0.10, -0.02, 0.55),
    "bnre": (0.09, 0.02, 0.25),
    "nre_c": (-0.16, -0.03, 0.50),
    "bnre_c": (0.08, 0.00, 0.28),
    "npe": (-0.14, -0.03, 0.45),
    "bnpe": (-0.035, 0.00, 0.42),
    "rnpe": (-0.13, -0.02, 0.48),
    "brnpe": (0.005, 0.005, 0.36),
    "bnpe_init": (-0.01, 0.01, 0.47),
    "brnpe_init": (0.05, 0.015, 0.38),
}
PRIOR = {"slcp": -3.58, "weinberg": -0.56, "spatial_sir": 0.0, "lotka_volterra": -3.22, "two_moons": -1.39}
EXACT = {"slcp": -0.15, "weinberg": 0.55, "lotka_volterra": 0.60, "two_moons": 3.90}
BOX = {"slcp": (-3.0, 3.0), "two_moons": (-1.0, 1.0), "lotka_volterra": (-4.0, 1.0)}


def synthetic_results(
    tasks: Sequence[str] = ("slcp",),
    methods: Sequence[str] = ("npe", "bnpe", "nre", "bnre"),
    budgets: Sequence[int] = (1024, 4096),
    runs: int = 3,
    members: int = 1,
    pairs: int = 1000,
    protocol: str = "paper",
    missing: Iterable[tuple[str, str, int, int]] = (),
    gallery: bool = True,
    epochs: int = 100,
    seed: int = 0,
) -> xr.Dataset:
    """The dataset of a grid; `missing` names cells (task, method, budget, run) that were never computed."""
    levels = np.linspace(0, 1, 101)
    shape = (len(tasks), len(methods), len(budgets), runs)
    rng = np.random.default_rng(seed)
    absent = set(missing)
    cells: dict[tuple[int, ...], dict[str, Any]] = {}
    for index in np.ndindex(shape):
        t, m, b, r = index
        if (tasks[t], methods[m], budgets[b], r) not in absent:
            cells[index] = _cell(tasks[t], methods[m], budgets[b], members, pairs, levels, epochs, rng)
    first = next(iter(cells.values()))
    axis = {len(levels): "level", epochs: "epoch"}
    dims = ("task", "method", "budget", "run")
    ds = xr.Dataset(
        coords={
            "task": list(tasks),
            "method": list(methods),
            "budget": list(budgets),
            "run": np.arange(runs),
            "level": levels,
            "member": np.arange(members),
            "epoch": np.arange(1, epochs + 1),
        }
    )
    for name, value in first.items():
        words = isinstance(value, str) or np.asarray(value).dtype.kind in "UO"
        extra = np.shape(value)
        whole = np.full((*shape, *extra), "" if words else np.nan, dtype=object if words else float)
        for index, cell in cells.items():
            whole[index] = cell[name]
        member = name.startswith("member_")
        tail = ("member",) * member + tuple(axis[n] for n in (extra[1:] if member else extra))
        ds[name] = ((*dims, *tail), whole)
    words = judge_cells(ds["verdict_p_value"].values, ds["certificate_p_value"].values).astype(object)
    ds["verdict_holm"] = (dims, np.where(ds["verdict"].values == "", "", words))
    ds["expected_log_prob"] = ("task", [EXACT.get(t, np.nan) for t in tasks])
    ds["prior_log_prob"] = ("task", [PRIOR[t] for t in tasks])
    ds["pairs"] = ((), pairs)
    if gallery:
        _add_gallery(ds, rng)
    ds.attrs.update(
        config=json.dumps({"tasks": list(tasks), "methods": list(methods), "runs": runs, "protocol": protocol}),
        protocol=protocol,
        equipoise="0.1.0",
        torch="2.13.0",
        numerics="1",
        command="equipoise run --grid grids/demo.toml --out demo",
        created="2025-01-31T12:00:00+00:00",
        hardware="2 CPU cores",
        wall_seconds=183.4,
    )
    return ds


def _cell(
    task: str, method: str, budget: int, members: int, pairs: int, levels: Any, epochs: int, rng: np.random.Generator
) -> dict[str, Any]:
    start, end, kept = NATURE[method]
    fade = (1024 / budget) ** 0.45
    prior = PRIOR[task]
    exact = EXACT.get(task, prior + 2.5)
    area = end + (start - end) * fade + rng.normal(0, 0.012)
    information = 1 - (1 - kept) * fade + rng.normal(0, 0.02)
    single = area - (0.03 if members > 1 else 0) + rng.normal(0, 0.01, members)
    single_information = information - (0.06 if members > 1 else 0) + rng.normal(0, 0.02, members)
    power = 1 / (0.5 - np.append(single, area)) - 1
    ranks = rng.random((members + 1, pairs)) ** power[:, None]
    curves = coverage_curve(ranks, levels)
    areas, errors = coverage_auc(ranks)
    verdicts = judge(ranks)
    low, high = simultaneous_band(curves, pairs)
    logs = prior + (exact - prior) * np.append(single_information, information)
    g = 1.3 * np.append(single, area) + rng.normal(0, 0.004, members + 1)
    if members == 1:  # a single network is its own mixture
        curves[0], areas[0], logs[0], g[0] = curves[1], areas[1], logs[1], g[1]
        verdicts.verdict[0] = verdicts.verdict[1]
    stop = int(epochs * rng.uniform(0.6, 1.0))
    epoch = np.arange(1, epochs + 1)
    decay = np.exp(-epoch / (0.15 * epochs))
    overfit = max(0.0, -area) * 2 * epoch / epochs
    history = {
        "train_loss": -logs[-1] + 1.2 * decay - overfit + rng.normal(0, 0.01, epochs),
        "validation_loss": -logs[-1] + 1.4 * decay + overfit + rng.normal(0, 0.02, epochs),
        "balance": np.abs(g[-1]) ** 2 + 0.02 * decay + rng.normal(0, 2e-4, epochs) ** 2,
    }
    for curve in history.values():
        curve[stop:] = np.nan
    seconds = 0.004 * budget * members + rng.uniform(1, 2)
    return {
        "coverage": curves[-1],
        "coverage_lower": low[-1],
        "coverage_upper": high[-1],
        "coverage_auc": areas[-1],
        "coverage_auc_se": errors[-1],
        "verdict": str(verdicts.verdict[-1]),
        "verdict_p_value": verdicts.p_value[-1],
        "certificate_p_value": verdicts.certificate_p_value[-1],
        "pairs_to_settle": verdicts.pairs_to_settle[-1],
        "levels_covered": float(levels_covered(curves, levels)[-1]),
        "nominal_log_prob": logs[-1],
        "information_kept": (logs[-1] - prior) / (exact - prior) if task in EXACT else np.nan,
        "entropy": -logs[-1] + area,
        "leakage": 0.02 * fade if "npe" in method and "init" not in method else 0.0,
        "balancing_error": abs(g[-1]),
        "balance_signed": g[-1],
        "train_seconds": seconds,
        "diagnose_seconds": 1.5,
        "best_epoch": float(stop // 2),
        "diverged_members": 0.0,
        "member_coverage_auc": areas[:-1],
        "member_nominal_log_prob": logs[:-1],
        "member_verdict": verdicts.verdict[:-1].astype(object),
        **history,
    }


def _add_gallery(ds: xr.Dataset, rng: np.random.Generator, side: int = 64) -> None:
    """Densities of one observation: four blobs for SLCP, two crescents for Two Moons, one ridge for Lotka-Volterra."""
    tasks = [str(t) for t in ds["task"].values]
    cells = (len(tasks), ds.sizes["method"], ds.sizes["budget"])
    density, exact = np.full((*cells, side, side), np.nan), np.full((len(tasks), side, side), np.nan)
    theta, low, high = (np.full((len(tasks), 2), np.nan) for _ in range(3))
    truth = {"slcp": (1.4, -1.1), "two_moons": (-0.35, 0.42), "lotka_volterra": (-1.5, -1.0)}
    for t, task in enumerate(tasks):
        if task not in BOX:
            continue
        low[t], high[t] = BOX[task]
        theta[t] = truth[task]
        edge = np.linspace(*BOX[task], side + 1)
        a, b = np.meshgrid(*[(edge[1:] + edge[:-1]) / 2] * 2, indexing="ij")
        cell = (edge[1] - edge[0]) ** 2

        def energy(a: np.ndarray, b: np.ndarray, task: str = task) -> np.ndarray:
            if task == "slcp":
                return ((a**2 - 1.7) / 0.55) ** 2 + ((b**2 - 1.3) / 0.45) ** 2
            if task == "two_moons":
                u = np.abs(a + b) / np.sqrt(2) - 0.18
                v = (b - a) / np.sqrt(2) - 0.45
                return ((np.hypot(u, v) - 0.1) / 0.02) ** 2 + np.where(u > 0, 0, 40)
            return ((a - b + 0.6) / 0.25) ** 2 + ((a + b + 2.3) / 0.8) ** 2

        def normalised(potential: np.ndarray, cell: float = cell) -> np.ndarray:
            p = np.exp(-0.5 * (potential - potential.min()))
            return p / (p.sum() * cell)

        if task in EXACT:
            exact[t] = normalised(energy(a, b))
        for m, b_ in np.ndindex(cells[1:]):
            value = ds["coverage_auc"].values[t, m, b_, 0]
            if np.isfinite(value):
                blur = 1 + 6 * max(0.0, value) * 10 + 3 / (1 + b_)
                shift = 0.15 * rng.normal(size=2) * max(0.0, -value) * 10
                density[t, m, b_] = normalised(energy(a - shift[0], b - shift[1]) / blur)
    ds["gallery_density"] = (("task", "method", "budget", "grid_0", "grid_1"), density)
    ds["gallery_exact"] = (("task", "grid_0", "grid_1"), exact)
    for name, value in (("theta", theta), ("low", low), ("high", high)):
        ds[f"gallery_{name}"] = (("task", "parameter"), value)
