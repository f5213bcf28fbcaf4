"""What is kept of a stack: a few hundred numbers a cell, and no weights."""

from __future__ import annotations

__all__ = ["HISTORY", "LEVELS", "PER_CELL", "PER_MEMBER", "TRAINING", "Judged", "record", "thinned"]

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from equipoise.posteriors import Posterior
from equipoise.priors import BoxUniform
from equipoise.tasks import Task
from equipoise.version import __version__

from .cells import NUMERICS, Stack
from .ledger import total

#: Epochs that are kept of a training history, at most.
EPOCHS = 100
#: Levels at which coverage is kept.
LEVELS = 101
#: Numbers kept for the posterior of a run, called as `diagnose` calls them.
PER_CELL = (
    "coverage_auc",
    "coverage_auc_se",
    "verdict_p_value",
    "certificate_p_value",
    "pairs_to_settle",
    "levels_covered",
    "nominal_log_prob",
    "nominal_log_prob_se",
    "nominal_log_prob_raw",
    "information_kept",
    "entropy",
    "leakage",
    "balancing_error",
    "balance_signed",
    "balance_signed_se",
)
#: Curves kept for the posterior of a run.
CURVES = ("coverage", "coverage_lower", "coverage_upper")
#: Numbers kept for each network of a run.
PER_MEMBER = ("coverage_auc", "nominal_log_prob", "balancing_error")
#: Numbers of the training of a run; its steps are those of all its members together.
TRAINING = ("train_seconds", "diagnose_seconds", "epochs", "steps", "best_epoch", "best_validation_loss")
#: What is kept of training histories.
HISTORY = ("train_loss", "validation_loss", "balance")


class Judged(NamedTuple):
    """A diagnosis, and the seconds it took."""

    ds: xr.Dataset
    seconds: float


def thinned(epochs: int) -> np.ndarray:
    """The epochs that are kept of a history.

    Example:
        >>> thinned(3).tolist(), len(thinned(500)), int(thinned(500)[-1])
        ([0, 1, 2], 100, 499)
    """
    return np.unique(np.rint(np.linspace(0, epochs - 1, min(epochs, EPOCHS))).astype(int))


def record(
    stack: Stack, task: Task, posteriors: list[list[Posterior | None]], judged: list[Judged | None], notes: list[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a stack's file.

    Arguments:
        stack: what was computed.
        task: its task.
        posteriors: for each cell, its members.
        judged: for each cell, its diagnosis.
        notes: warnings.
    """
    cells, members = len(stack.cells), stack.members
    kept = thinned(stack.settings.epochs)
    arrays: dict[str, np.ndarray] = {"epoch": kept}
    for name in (*PER_CELL, *TRAINING):
        arrays[name] = np.full(cells, np.nan)
    arrays["diverged_members"] = np.zeros(cells, int)
    arrays["verdict"] = np.full(cells, "", dtype="<U24")
    arrays["member_verdict"] = np.full((cells, members), "", dtype="<U24")
    arrays |= {name: np.full((cells, LEVELS), np.nan, np.float32) for name in CURVES}
    arrays |= {name: np.full((cells, len(kept)), np.nan, np.float32) for name in HISTORY}
    arrays |= {f"member_{name}": np.full((cells, members), np.nan) for name in PER_MEMBER}
    arrays["member_coverage"] = np.full((cells, members, LEVELS), np.nan, np.float32)
    for i, (mine, verdict) in enumerate(zip(posteriors, judged, strict=True)):
        _history(arrays, i, mine, kept, stack.steps)
        if verdict is not None:
            _diagnosis(arrays, i, [m for m, p in enumerate(mine) if p is not None], verdict)
    if judged[0] is not None:
        exact = {n: float(judged[0].ds[n]) for n in ("exact_log_prob", "exact_log_prob_se", "prior_log_prob")}
    else:
        exact = {}
    device = next((p.device for row in posteriors for p in row if p is not None), torch.device("cpu"))
    header = {
        "cells": [
            {"task": c.task, "budget": c.budget, "method": c.method, "run": c.run, "identity": c.identity}
            for c in stack.cells
        ],
        "task": task.name,
        "task_options": task.options,
        "network": stack.network,
        "embedded": stack.sizes.layers > 0,
        "label": stack.label,
        "members": members,
        "trained": stack.size,
        "steps": total([arrays["steps"][i] for i in _once(stack)]),
        "pairs": stack.rules.pairs,
        "test": stack.rules.test,
        "expected": _expected(task, exact),
        "numerics": NUMERICS,
        "equipoise": __version__,
        "torch": torch.__version__,
        "hardware": hardware(device),
        "place": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else "",
        "notes": notes,
    }
    if task.prior.dim == 2 and isinstance(task.prior, BoxUniform):
        header["box"] = [task.prior.low.tolist(), task.prior.high.tolist()]
    return header, arrays


def _once(stack: Stack) -> list[int]:
    """One cell of each training."""
    return list({cell.training: i for i, cell in enumerate(stack.cells)}.values())


def _history(
    arrays: dict[str, np.ndarray], i: int, members: list[Posterior | None], kept: np.ndarray, steps: int
) -> None:
    histories = [p.history for p in members if p is not None and p.history is not None]
    arrays["diverged_members"][i] = len(members) - len(histories)
    if not histories:
        return
    arrays["diverged_members"][i] += sum(bool(h["diverged"].values[0]) for h in histories)
    arrays["train_seconds"][i] = sum(h.attrs["stack_seconds"] / h.attrs["stack_members"] for h in histories)
    arrays["epochs"][i] = np.mean([h["epochs"].values[0] for h in histories])
    arrays["steps"][i] = steps * sum(h["epochs"].values[0] for h in histories)
    arrays["best_epoch"][i] = np.rint(np.median([h["best_epoch"].values[0] for h in histories]))  # an epoch, not 1.33
    arrays["best_validation_loss"][i] = np.mean([h["best_loss"].values[0] for h in histories])
    for name in HISTORY:
        padded = np.full((len(histories), int(kept[-1]) + 1), np.nan)
        for row, h in zip(padded, histories, strict=True):
            row[: h.sizes["epoch"]] = h[name].values[:, 0]
        known = np.isfinite(padded).any(0)
        mean = np.full(padded.shape[1], np.nan)
        mean[known] = np.nanmean(padded[:, known], 0)
        arrays[name][i] = mean[kept]


def _diagnosis(arrays: dict[str, np.ndarray], i: int, alive: list[int], judged: Judged) -> None:
    whole = judged.ds.sel(member="mixture")
    for name in PER_CELL:
        arrays[name][i] = float(whole[name])
    for name in CURVES:
        arrays[name][i] = whole[name].values
    arrays["verdict"][i] = str(whole["verdict"].values)
    arrays["diagnose_seconds"][i] = judged.seconds
    for row, m in enumerate(alive):
        one = judged.ds.sel(member=str(row))
        for name in PER_MEMBER:
            arrays[f"member_{name}"][i, m] = float(one[name])
        arrays["member_coverage"][i, m] = one["coverage"].values
        arrays["member_verdict"][i, m] = str(one["verdict"].values)


def _expected(task: Task, measured: dict[str, float]) -> dict[str, float]:
    """E log p(θ*|x*) of the exact posterior, as the task keeps it or from the coverage pairs, and E log p(θ)."""
    try:
        prior = -float(task.prior.entropy())
    except NotImplementedError:  # of an object of a user's own
        prior = measured.get("prior_log_prob", np.nan)
    try:
        value, error = task.expected_log_posterior()
    except (ValueError, FileNotFoundError):
        value, error = measured.get("exact_log_prob", np.nan), measured.get("exact_log_prob_se", np.nan)
    return {"expected_log_prob": float(value), "expected_log_prob_se": float(error), "prior_log_prob": prior}


@lru_cache(maxsize=8)
def hardware(device: torch.device) -> str:
    """The name of the processor that was used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
