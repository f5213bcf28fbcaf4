"""What pytest leaves alone: kernels that cannot be imported without Triton."""

from __future__ import annotations

import importlib.util

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    print("triton is not installed: the doctests of networks/fused.py and networks/kernels.py are not collected")
    collect_ignore = ["src/equipoise/networks/fused.py", "src/equipoise/networks/kernels.py"]
