"""Whether a stack's file holds a stack: what `records` writes, and nothing that its readers would stumble over.

A digest says that a file is whole, not who made it, nor that they made it right. So everything that readers rely on is
checked: the attributes, the names, shapes and kinds of the variables, the grid of levels, and that the cells are those
that the file is named by. Variables that nobody asks for are let through; they are not read.
"""

from __future__ import annotations

__all__ = ["check_stored"]

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from equipoise.diagnostics.verdicts import CERTIFIED, INCONCLUSIVE, OVERCONFIDENT
from equipoise.support.words import shown
from equipoise.training.settings import MOST_MEMBERS

from .cells import stack_identity
from .records import CELL_VARIABLES, EPOCHS, LEVELS, SECOND, SIDE, TASK_VARIABLES, TEMPERED

WORDS = (OVERCONFIDENT, INCONCLUSIVE, CERTIFIED)
#: Variables that every stack has, and those that stacks of earlier versions have too; others a grid may not ask for.
ALWAYS = tuple(name for name in CELL_VARIABLES if name not in SECOND and name not in TEMPERED)
EARLIER = (
    "coverage", "coverage_auc", "coverage_auc_se", "verdict", "verdict_p_value", "certificate_p_value",
    "nominal_log_prob", "information_kept", "balancing_error",
)  # fmt: skip
#: The dimensions of each variable, and the levels.
DIMS: dict[str, tuple[str, ...]] = {
    **{name: ("cell", *dims) for name, dims in CELL_VARIABLES.items()},
    **TASK_VARIABLES,
    "method": ("cell",),
    "run": ("cell",),
    "picture": ("picture",),
    "gallery_density": ("picture", "grid_0", "grid_1"),
}
GRID = np.linspace(0, 1, LEVELS)


def check_stored(identity: str, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], complete: bool) -> None:
    """Raise ValueError unless these are the attributes and variables of a stack.

    Arguments:
        identity: the stack's, which its file is called by.
        header: the attributes.
        arrays: the variables.
        complete: whether every variable of this version has to be there; False for files of earlier versions.
    """
    if missing := [name for name in ATTRIBUTES if name not in header]:
        raise ValueError(f"the attribute {missing[0]!r} is missing")
    for name, value in header.items():
        is_right = ATTRIBUTES.get(name) or LATER.get(name)
        if is_right is not None and not is_right(value):
            raise ValueError(f"the attribute {name} is {shown(value)}")
    for name in ("cell", "method", "run", "epoch", "level"):
        if name not in arrays or arrays[name].ndim != 1:
            raise ValueError(f"{name!r} is missing, or is no list")
    cells = arrays["cell"].tolist()
    if stack_identity([str(cell) for cell in cells]) != identity:
        raise ValueError(f"its {len(cells)} cell(s) are not those of the stack that it is named by")
    epochs = arrays["epoch"]
    if not 0 < len(epochs) <= EPOCHS or epochs.dtype.kind != "i" or epochs[0] < 0 or (np.diff(epochs) <= 0).any():
        raise ValueError("epoch is no ascending list of epochs")
    if not np.array_equal(arrays["level"], GRID):
        raise ValueError(f"level is not the {LEVELS} levels from 0 to 1")
    sizes = {"cell": len(cells), "member": header["members"], "level": LEVELS, "epoch": len(epochs)}
    sizes |= {"parameter": 2, "grid_0": SIDE, "grid_1": SIDE, "picture": arrays.get("picture", np.empty(0)).size}
    if missing := [name for name in (ALWAYS if complete else EARLIER) if name not in arrays]:
        raise ValueError(f"the variable {missing[0]!r} is missing")
    for name, values in arrays.items():
        if name in DIMS:
            _check_variable(name, values, tuple(sizes[d] for d in DIMS[name]))


def _check_variable(name: str, values: np.ndarray, shape: tuple[int, ...]) -> None:
    kind = "O" if name in TEXTS else "i" if name == "run" else "f"
    if values.shape != shape or values.dtype.kind != kind:
        raise ValueError(f"{name} has shape {values.shape} and dtype {values.dtype}, not {shape} of kind {kind!r}")
    if name.endswith("verdict") and not set(values.ravel().tolist()) <= {"", *WORDS}:
        raise ValueError(f"{name} is none of {', '.join(WORDS)}")
    if name.endswith(("coverage", "p_value")) and bool(((values < 0) | (values > 1)).any()):
        raise ValueError(f"{name} is not between 0 and 1")
    if name == "run" and int(values.min()) < 0:
        raise ValueError("run is negative")
    if name == "task_parameters" and not _is_list_of_texts(values.item()):
        raise ValueError("task_parameters is no list of names")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= most


def _is_list_of_texts(value: Any) -> bool:
    try:
        found = json.loads(value)
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(found, list) and all(isinstance(text, str) for text in found)


#: Attributes that have to be there, and what they may be.
ATTRIBUTES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("task", "network", "label", "torch", "hardware"), _is_text),
    "budget": _is_count(1 << 53),
    "members": _is_count(MOST_MEMBERS),
    "trained": _is_count(1 << 53),
    "seconds": _is_number,
    "notes": _is_list_of_texts,
}
#: Those that stacks of earlier versions may lack.
LATER: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("device", "place", "equipoise"), _is_text),
    **dict.fromkeys(("began", "train_seconds", "diagnose_seconds"), _is_number),
    "cost": lambda value: _is_number(value) and value > 0,
    "steps": lambda value: (type(value) is float and math.isnan(value)) or _is_number(value),  # NaN: all were lost
}
#: Variables that are texts.
TEXTS = frozenset({
    "method", "picture", "task_label", "task_parameters", "gallery_x",
    *(name for name in CELL_VARIABLES if name.endswith("verdict")),
})  # fmt: skip
