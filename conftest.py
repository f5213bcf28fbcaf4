"""For all tests: the same random numbers whatever ran before, and nothing that cannot be imported without Triton."""

from __future__ import annotations

import importlib.util
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: threads of their own would wait for each other
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start, too

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # whoever imported it first

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    print("triton is not installed: the doctests of networks/triton are not collected")
    collect_ignore = [f"src/equipoise/networks/triton/{name}.py" for name in ("kernels", "launch")]


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """A test that draws from a global generator must not depend on the tests before it."""
    torch.manual_seed(2023)


@pytest.fixture
def still():
    """A clock that stands still unless it is moved, to put in the place of a module's `time`."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    return Clock()
