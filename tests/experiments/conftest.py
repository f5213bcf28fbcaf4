from __future__ import annotations

from pathlib import Path

import pytest
from experiments_tiny import TINY, write_toml

from equipoise.experiments import load_grid, run_grid, write_results
from equipoise.experiments.folder import Folder


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny grid, computed in this process without any trouble."""
    path = tmp_path_factory.mktemp("undisturbed")
    state = run_grid(load_grid(TINY), path, threads=1, device="cpu")
    assert state.complete, state.failures
    write_results(Folder(path))
    return path


@pytest.fixture
def tiny_toml(tmp_path: Path) -> Path:
    return write_toml(tmp_path / "tiny.toml", TINY)
