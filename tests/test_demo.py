"""The demo draws and says what it drew."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise import demo
from equipoise.tasks import TASKS


@pytest.mark.slow
def test_demo_makes_the_figure_of_the_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    demo.main(str(tmp_path / "out"))
    picture = image.imread(tmp_path / "out" / "tasks.png")
    assert picture.shape[0] > 500 and picture.shape[1] > 1200
    # Ten panels, none of them blank: the middle of each has more than one colour.
    height, width = picture.shape[0] // 2, picture.shape[1] // 5
    for row in range(2):
        for column in range(5):
            cell = picture[row * height : (row + 1) * height, column * width : (column + 1) * width, :3]
            assert cell[height // 4 : -height // 4, width // 4 : -width // 4].std() > 0.005
    said = capsys.readouterr().out
    assert "tasks.png" in said and all(name in said for name in TASKS)
