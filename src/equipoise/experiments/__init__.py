"""Experiments: grids of task × method × budget × run, computed as stacks, on one machine or many.

grid ──► cells ──► stacks ──► pipeline ──► folder ──► results.nc
TOML     hashes    runner     simulate, train, judge, draw, write
"""

from __future__ import annotations

from .cells import Cell, Stack, cells_of, stacks_of
from .clusters import check_cluster
from .entries import GridError
from .folder import Folder
from .grids import Grid, load_grid
from .results import collect, merge, read_results, table, write_results
from .runner import State, missing_stacks, run_grid, state_of

__all__ = [
    "Cell",
    "Folder",
    "Grid",
    "GridError",
    "Stack",
    "State",
    "cells_of",
    "check_cluster",
    "collect",
    "load_grid",
    "merge",
    "missing_stacks",
    "read_results",
    "run_grid",
    "stacks_of",
    "state_of",
    "table",
    "write_results",
]
