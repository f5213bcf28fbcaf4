"""What can be said of how to judge: plain data, which plans and costs of experiments need without torch."""

from __future__ import annotations

__all__ = ["CELLS_FROM", "RECIPES", "RELEASED_BINS", "TOLERANCES"]

#: How coverage is computed, see `diagnose`.
RECIPES = ("equipoise", "released")
#: How far below its level a certified coverage may lie, see `diagnose`.
TOLERANCES = ("level", "constant")
#: From this many samples on, a classifier of one or two parameters is interpolated: it takes about 2,000 evaluations.
CELLS_FROM = 512
#: Cells a side of the released recipe's grid.
RELEASED_BINS = 100
