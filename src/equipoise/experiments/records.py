"""What is kept of a stack: a few hundred numbers per cell, and no weights.

A stack's file has the names and dimensions of `results.nc`, with one dimension `cell` in place of task, method, budget
and run. To keep another number of a diagnosis, say so in its row of `diagnostics.dataset.VARIABLES`.
"""

from __future__ import annotations

__all__ = [
    "CELL_VARIABLES",
    "HISTORY",
    "LEVELS",
    "SECOND",
    "TASK_VARIABLES",
    "UNTEMPERED",
    "coarse",
    "record",
    "thinned",
]

import json
import platform
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from equipoise.diagnostics.dataset import VARIABLES
from equipoise.version import __version__

from .cells import NUMERICS, Stack

if TYPE_CHECKING:
    import torch

    from equipoise.posteriors import Posterior
    from equipoise.tasks import Task

#: Epochs that are kept of a training history, at most.
EPOCHS = 100
#: Levels at which coverage is kept.
LEVELS = 101
#: Cells per side of a picture of a posterior.
SIDE = 100
Dims = tuple[str, ...]
#: Of a diagnosis, for the posterior of a run: names as `diagnose` has them, and dimensions besides those of the cell.
DIAGNOSTICS: dict[str, Dims] = {v.name: v.dims[1:] for v in VARIABLES if v.kept}
#: Those that are also kept for each network of a run, as `member_…`.
PER_MEMBER = tuple(v.name for v in VARIABLES if v.kept == "member")
#: Of a second diagnosis by the released recipe, where the grid asks for one.
SECOND: dict[str, Dims] = {"released_coverage": ("level",), "released_coverage_auc": ()}
#: Of a calibrated mixture: how it was tempered, and what it would be if it were not.
UNTEMPERED: dict[str, Dims] = {
    f"untempered_{name}": DIAGNOSTICS[name]
    for name in (
        "coverage", "coverage_auc", "verdict", "verdict_p_value", "certificate_p_value", "nominal_log_prob",
        "nominal_log_prob_se",
    )
}  # fmt: skip
TEMPERED: dict[str, Dims] = UNTEMPERED | dict.fromkeys(
    ("temperature", "calibration_p_over", "calibration_p_certificate", "calibration_certified", "calibrate_seconds"), ()
)
#: Of the training of a run; its steps are those of all its members together.
TRAINING = (
    "train_seconds", "diagnose_seconds", "epochs", "steps", "best_epoch", "best_validation_loss", "diverged_members",
)  # fmt: skip
#: Of training histories.
HISTORY = ("train_loss", "validation_loss", "balance")
#: Every variable of a cell, and its dimensions besides those of the cell.
CELL_VARIABLES: dict[str, Dims] = {
    **DIAGNOSTICS,
    **{f"member_{name}": ("member", *DIAGNOSTICS[name]) for name in PER_MEMBER},
    **SECOND,
    **TEMPERED,
    **dict.fromkeys(TRAINING, ()),
    **dict.fromkeys(HISTORY, ("epoch",)),
}
#: Every variable of a task, and its dimensions; pictures are there where they were drawn (see `gallery`).
TASK_VARIABLES: dict[str, Dims] = {
    **dict.fromkeys(("expected_log_prob", "expected_log_prob_se", "prior_log_prob", "gallery_x"), ()),
    **dict.fromkeys(("task_label", "task_parameters"), ()),
    **dict.fromkeys(("gallery_theta", "gallery_low", "gallery_high"), ("parameter",)),
    "gallery_exact": ("grid_0", "grid_1"),
}


def thinned(epochs: int) -> np.ndarray:
    """The epochs that are kept of a history.

    Example:
        >>> thinned(3).tolist(), len(thinned(500)), int(thinned(500)[-1])
        ([0, 1, 2], 100, 499)
    """
    return np.unique(np.rint(np.linspace(0, epochs - 1, min(epochs, EPOCHS))).astype(int))


def coarse(values: np.ndarray, bits: int) -> np.ndarray:
    """float32 values rounded to so many of their 23 bits after the first.

    Example:
        >>> coarse(np.array([3.14159, np.nan, -0.3, np.inf]), 8)
        array([ 3.140625 ,        nan, -0.2998047,        inf], dtype=float32)
    """
    drop = 23 - bits
    raw = values.astype(np.float32).view(np.uint32)
    kept = ((raw + np.uint32(1 << (drop - 1))) & ~np.uint32((1 << drop) - 1)).view(np.float32)  # NaN alone overflows
    return np.where(np.isfinite(values), kept, values).astype(np.float32)


def record(
    stack: Stack,
    task: Task,
    posteriors: list[list[Posterior | None]],
    mixtures: list[Posterior | None],
    judged: list[xr.Dataset | None],
    notes: list[str],
) -> xr.Dataset:
    """What is kept of a stack: of each cell its members and its diagnosis, and the warnings."""
    import torch  # here, since those who only read results do without

    cells, kept = stack.cells, thinned(stack.settings.epochs)
    sizes = {"level": LEVELS, "member": stack.members, "epoch": len(kept)}
    absent = {*(() if stack.rules.released_pairs else SECOND), *(() if stack.calibrate else TEMPERED)}
    names = {n: dims for n, dims in CELL_VARIABLES.items() if n not in absent}
    data = {name: _empty(name, (len(cells), *(sizes[d] for d in dims))) for name, dims in names.items()}
    for i, (mine, mixture, diagnosis) in enumerate(zip(posteriors, mixtures, judged, strict=True)):
        _history(data, i, mine, kept, stack.steps)
        if mixture is not None and diagnosis is not None:
            # Those of weight 0 are not in the mixture, and those of one architecture come together.
            seeds = [None if p is None else p.record["seeds"][0] for p in mine]
            _diagnosis(data, i, [seeds.index(seed) for seed in mixture.record["seeds"]], diagnosis)
    device = next((p.device for row in posteriors for p in row if p is not None), torch.device("cpu"))
    once = list({cell.training: i for i, cell in enumerate(cells)}.values())  # one cell of each training
    steps = data["steps"][once]
    about = {
        "task": cells[0].task,
        "task_options": json.dumps(task.options),
        "budget": stack.budget,
        "network": stack.network,
        "embedded": int(stack.embedded),
        "label": stack.label,
        "members": stack.members,
        "trained": stack.size,
        "steps": float(np.nansum(steps)) if np.isfinite(steps).any() else np.nan,
        "pairs": stack.rules.pairs,
        "test": stack.rules.test,
        "numerics": NUMERICS,
        "equipoise": __version__,
        "torch": str(torch.__version__),
        "hardware": hardware(device),
        "place": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else "",
        "notes": json.dumps(notes),
    }
    said: Any = next((ds for ds in judged if ds is not None), {})  # its attributes say what each variable means
    variables: dict[str, Any] = {
        name: (("cell", *dims), data[name], said[name].attrs if name in said else {}) for name, dims in names.items()
    }
    variables |= {name: ((), value) for name, value in _expected(task, judged[0]).items()}
    variables |= {"task_label": ((), task.label), "task_parameters": ((), json.dumps(task.parameters))}
    variables |= {"method": ("cell", [c.method for c in cells]), "run": ("cell", [c.run for c in cells])}
    coords = {"cell": [c.identity for c in cells], "level": np.linspace(0, 1, LEVELS), "epoch": kept}
    return xr.Dataset(variables, coords, about)


def _empty(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith("verdict"):
        return np.full(shape, "", dtype=object)
    # Curves have three digits; single numbers are kept whole.
    return np.full(shape, np.nan, np.float32 if {"level", "epoch"} & set(CELL_VARIABLES[name]) else np.float64)


def _history(
    data: dict[str, np.ndarray], i: int, members: list[Posterior | None], kept: np.ndarray, steps: int
) -> None:
    """The training of a cell: sums, means and histories over its members."""
    histories = [p.history for p in members if p is not None and p.history is not None]
    data["diverged_members"][i] = len(members) - len(histories)
    if not histories:
        return
    data["diverged_members"][i] += sum(bool(h["diverged"].values[0]) for h in histories)
    data["train_seconds"][i] = sum(h.attrs["stack_seconds"] / h.attrs["stack_members"] for h in histories)
    data["epochs"][i] = np.mean([h["epochs"].values[0] for h in histories])
    data["steps"][i] = steps * sum(h["epochs"].values[0] for h in histories)
    data["best_epoch"][i] = np.rint(np.median([h["best_epoch"].values[0] for h in histories]))  # an epoch, not 1.33
    data["best_validation_loss"][i] = np.mean([h["best_loss"].values[0] for h in histories])
    for name in HISTORY:
        padded = np.full((len(histories), int(kept[-1]) + 1), np.nan)
        for row, h in zip(padded, histories, strict=True):
            row[: h.sizes["epoch"]] = h[name].values[:, 0]
        known = np.isfinite(padded).any(0)
        mean = np.full(padded.shape[1], np.nan)
        mean[known] = np.nanmean(padded[:, known], 0)
        data[name][i] = mean[kept]


def _diagnosis(data: dict[str, np.ndarray], i: int, members: list[int], judged: xr.Dataset) -> None:
    """The diagnosis of a cell, and of the members that were judged, in their order."""
    data["diagnose_seconds"][i] = judged.attrs["seconds"]
    whole = judged.sel(member="mixture")
    for name in (*DIAGNOSTICS, *(n for n in (*SECOND, *TEMPERED) if n in whole)):
        data[name][i] = whole[name].values[()]
    for row, m in enumerate(members):
        one = judged.sel(member=str(row))
        for name in PER_MEMBER:
            data[f"member_{name}"][i, m] = one[name].values[()]


def _expected(task: Task, judged: xr.Dataset | None) -> dict[str, float]:
    """E log p(θ*|x*) of the exact posterior, as the task stores it or from the coverage pairs, and E log p(θ)."""
    measured = {} if judged is None else {n: float(judged[n]) for n in ("exact_log_prob", "exact_log_prob_se")}
    try:
        prior = -float(task.prior.entropy())
    except NotImplementedError:  # a user-defined prior
        prior = np.nan if judged is None else float(judged["prior_log_prob"])
    try:
        value, error = task.expected_log_posterior()
    except (ValueError, FileNotFoundError):
        value, error = measured.get("exact_log_prob", np.nan), measured.get("exact_log_prob_se", np.nan)
    return {"expected_log_prob": float(value), "expected_log_prob_se": float(error), "prior_log_prob": prior}


@lru_cache(maxsize=8)
def hardware(device: torch.device) -> str:
    """The name of the processor that was used."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
