"""What is remembered of the pretended GPU must not outlive it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from equipoise.experiments import records
from equipoise.networks import convolutions
from equipoise.simulations import simulators


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of our own need a GPU that is there; and whether there is one, and its name, are asked once only."""
    monkeypatch.setattr(convolutions, "KERNELS", False, raising=False)
    for question in (simulators._has_cuda, records.hardware):
        question.cache_clear()
    yield
    for question in (simulators._has_cuda, records.hardware):
        question.cache_clear()
