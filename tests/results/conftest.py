from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The scripts of results/ import each other; made-up results are those of the report's tests.
sys.path[:0] = [str(ROOT / "results"), str(ROOT / "tests" / "report")]
