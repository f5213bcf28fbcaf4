"""Posteriors: densities and draws of trained members and of their mixture; saved as safetensors and JSON.

    posterior ──► inputs ──► ratios ──► flows
    files, export                       classifiers ──► cells, tempered

`posterior` is the mixture; `flows` and `classifiers` are the two kinds of members; `memory` is what is known of the
training pairs.
"""

from __future__ import annotations

from .cells import Cells, fits_cells, make_cells
from .files import load
from .memory import remember, warn_if_seen
from .posterior import Posterior

__all__ = ["Cells", "Posterior", "fits_cells", "load", "make_cells", "remember", "warn_if_seen"]
