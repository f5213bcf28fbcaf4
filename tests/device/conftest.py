"""What is remembered of the pretended GPU must not outlive it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from equipoise.diagnostics import diagnose
from equipoise.experiments import records
from equipoise.networks import convolutions
from equipoise.simulations import simulators
from equipoise.training import step


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of our own need a GPU that is there; and whether there is one, and its name, are asked once only.

    Both devices train by operations on tensors, which round alike, and judge as many pairs at once, with equal draws.
    """
    monkeypatch.setattr(convolutions, "KERNELS", False, raising=False)
    monkeypatch.setattr(step, "in_memory", lambda arrays: False)
    for name, value in (("VALUE_BYTES", 8192), ("BATCHES", 1)):  # a CPU cuts the batches of a GPU
        monkeypatch.setattr(sys.modules[diagnose.__module__], name, value)
    for question in (simulators._has_cuda, records.hardware):
        question.cache_clear()
    yield
    for question in (simulators._has_cuda, records.hardware):
        question.cache_clear()
