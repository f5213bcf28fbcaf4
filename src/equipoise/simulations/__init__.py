"""Simulating, storing and reading pairs (θ, x).

- `simulate`: draw from a prior and simulate, in one process or several.
- `Simulations`: the pairs, in memory or on disk.
- `Store`: a directory of simulations that survives being killed, and grows.
- `read_simulations`: pairs that were simulated elsewhere.
"""

from __future__ import annotations

__all__ = [
    "CorruptBlockError",
    "InvalidSimulationsWarning",
    "SimulationError",
    "Simulations",
    "Store",
    "read_simulations",
    "simulate",
]

from equipoise.support.errors import InvalidSimulationsWarning

from .blocks import CorruptBlockError
from .readers import read_simulations
from .simulating import SimulationError, simulate
from .simulations import Simulations
from .store import Store
