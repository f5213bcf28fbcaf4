"""Posteriors: densities and draws of trained members and of their mixture; saved as safetensors and JSON."""

from __future__ import annotations

from .files import load
from .posterior import Posterior

__all__ = ["Posterior", "load"]
