"""Posteriors: densities and draws of trained members and of their mixture; saved as safetensors and JSON.

    posterior ──► shapes, training_range
              ──► flows
              ──► classifiers ──► engine ──► cells, proposals, particles ──► weighted
              ──► tempering ──► engine
    files, export, answers

`posterior` is the mixture; `flows` and `classifiers` are the two kinds of members. `engine` gives weighted points of a
density that is known by its log-ratio; `evaluation` evaluates networks in pieces. `tempering` moves a posterior
towards the prior, and `temperature` holds what is known about how far. `answers` holds what people report for one
observation.
"""

from __future__ import annotations

from .engine import draw_points, weighted_points
from .files import load
from .posterior import Posterior
from .temperature import Calibration
from .training_range import describe_training, warn_if_seen
from .weighted import WeightedPoints

__all__ = [
    "Calibration",
    "Posterior",
    "WeightedPoints",
    "describe_training",
    "draw_points",
    "load",
    "warn_if_seen",
    "weighted_points",
]
