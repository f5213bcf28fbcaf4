"""For all tests: the same random numbers whatever ran before, long files first, nothing imported without Triton."""

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


#: The files that take longest, which come first: begun last, they would leave the other processes without work.
LONGEST = (
    "experiments/test_experiments_runner",
    "training/test_training_known_posteriors",
    "networks/test_net_triton",
    "test_benchmarks",
    "cli/test_cli",
    "training/test_training_step",
    "experiments/test_experiments_pipeline",
    "diagnostics/test_diag_ranks",
    "training/test_training_checkpoint",
    "soak/test_soak",
    "simulations/test_simulations_simulate",
    "test_docs",
    "diagnostics/test_diag_calibration",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort whole files. The order within a file, and that of all other files, stay."""

    def place(item: pytest.Item) -> int:
        file = item.nodeid.partition(".py")[0]
        return next((i for i, name in enumerate(LONGEST) if file == f"tests/{name}"), len(LONGEST))

    items.sort(key=place)


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
