"""What tasks, methods and budgets are called, and what each method is.

Results carry this along the dimensions `method` (`method_label`, `method_network`, `method_loss`, `method_balance`,
`method_strength`, `method_start`) and `task` (`task_label`, and `task_parameters` as JSON). For results without these
variables, the tables below give the same for the methods and tasks of the paper. `equipoise.METHODS` would need torch.
"""

from __future__ import annotations

__all__ = ["METHODS", "PARAMETERS", "TASKS", "Labels", "MethodRow", "labels_of"]

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import xarray as xr


class MethodRow(NamedTuple):
    """What a method is called and what it is: the columns of `equipoise.METHODS`, as far as figures need them."""

    label: str
    network: str = ""
    loss: str = ""
    balance: str = "none"
    start: str = "random"


METHODS = {
    "nre": MethodRow("NRE", "classifier", "nre"),
    "bnre": MethodRow("BNRE", "classifier", "nre", "chi2"),
    "nre_c": MethodRow("NRE-C", "classifier", "nre_c"),
    "bnre_c": MethodRow("BNRE-C", "classifier", "nre_c", "chi2"),
    "npe": MethodRow("NPE", "flow", "npe"),
    "bnpe": MethodRow("BNPE", "flow", "npe", "chi2"),
    "rnpe": MethodRow("RNPE", "flow", "nre"),
    "brnpe": MethodRow("BRNPE", "flow", "nre", "chi2"),
    "bnpe_init": MethodRow("BNPE Init", "flow", "npe", "chi2", "prior"),
    "brnpe_init": MethodRow("BRNPE Init", "flow", "nre", "chi2", "prior"),
    "calibrated": MethodRow("Calibrated", "flow", "npe", start="prior"),
}
TASKS = {
    "slcp": "SLCP",
    "weinberg": "Weinberg",
    "spatial_sir": "Spatial SIR",
    "lotka_volterra": "Lotka-Volterra",
    "two_moons": "Two Moons",
}
#: What the parameters of the paper's tasks are called, where that is not θ₁, θ₂.
PARAMETERS = {
    "spatial_sir": ("β", "γ"),
    "lotka_volterra": ("log predator birth rate", "log predator death rate"),
}
#: What the paper's figures call these methods, in either of its protocols.
IN_THE_FIGURES = {"brnpe": "BNPE", "brnpe_init": "BNPE Init"}


@dataclass(frozen=True)
class Labels:
    """The tasks (name to label), methods (name to row) and budgets of results, in their order.

    Names of parameters are there for the tasks whose parameters have names.
    """

    tasks: dict[str, str]
    methods: dict[str, MethodRow]
    budgets: list[int]
    parameters: dict[str, list[str]]

    def task(self, name: str) -> str:
        return self.tasks[name]

    def method(self, name: str) -> str:
        return self.methods[name].label

    def parameter(self, task: str, j: int) -> str:
        names = self.parameters.get(task) or PARAMETERS.get(task.partition("[")[0])
        return names[j] if names else f"θ{chr(ord('₁') + j)}"

    def budget(self, budget: int) -> str:
        return f"{budget:,}"


def labels_of(ds: xr.Dataset) -> Labels:
    """The labels of results.

    Example:
        >>> ds = xr.Dataset(coords={"method": ["brnpe", "bnpe[strength=10,unbiased=true]", "mine"]})
        >>> [row.label for row in labels_of(ds).methods.values()]
        ['BRNPE', 'BNPE (strength 10, unbiased)', 'mine']
        >>> [labels_of(ds.assign_attrs(protocol=p)).method("brnpe") for p in ("paper", "released")]
        ['BRNPE (paper: BNPE)', 'BRNPE (paper: BNPE)']
    """
    tasks, rows = _column(ds, "task", "label"), _rows(ds)
    if ds.attrs.get("protocol") in ("paper", "released"):
        for name, paper in IN_THE_FIGURES.items():
            if name in rows and paper not in rows[name].label:
                rows[name] = rows[name]._replace(label=f"{rows[name].label} (paper: {paper})")
    return Labels(
        {t: tasks.get(t) or _with_options(t, TASKS.get(t.partition("[")[0])) for t in _values(ds, "task")},
        rows,
        [int(b) for b in _values(ds, "budget")],
        {t: _names(text) for t, text in _column(ds, "task", "parameters").items()},
    )


def _names(text: str) -> list[str]:
    """The names of a task's parameters, from JSON; none where it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def _rows(ds: xr.Dataset) -> dict[str, MethodRow]:
    """Each method as the results describe it, else as its name does, such as `bnre[strength=10]`."""
    stored = {field: _column(ds, "method", field) for field in MethodRow._fields}
    repeated = Counter(stored["label"].values())
    rows = {}
    for name in _values(ds, "method"):
        base, _, inside = name.partition("[")
        row = METHODS.get(base, MethodRow(base))
        options = dict(part.partition("=")[::2] for part in inside.removesuffix("]").split(",") if part)
        values = {field: options[field] for field in ("balance", "start") if field in options}
        values |= {"label": _with_options(name, row.label)}
        values |= {field: column[name] for field, column in stored.items() if name in column}
        if repeated[values["label"]] > 1:  # the options tell them apart
            values["label"] = _with_options(name, values["label"])
        rows[name] = row._replace(**values)
    return rows


def _with_options(name: str, label: str | None) -> str:
    base, _, options = name.partition("[")
    words = options.removesuffix("]").replace("=true", "").replace("=", " ").replace("_", " ").replace(",", ", ")
    return (label or base) + (f" ({words})" if words else "")


def _values(ds: xr.Dataset, dim: str) -> list[Any]:
    values = ds[dim].values.tolist() if dim in ds.coords else []
    return values if dim == "budget" else [str(v) for v in values]


def _column(ds: xr.Dataset, dim: str, field: str) -> dict[str, str]:
    """The stored text along a dimension, by name; empty where the results have none."""
    stored = ds.variables.get(f"{dim}_{field}")
    if stored is None or stored.dims != (dim,):
        return {}
    texts = [v.decode() if isinstance(v, bytes) else v for v in stored.values.tolist()]
    return {n: v for n, v in zip(_values(ds, dim), texts, strict=True) if isinstance(v, str) and v}
