"""The suite of the interpreter is collected where the interpreter is on; `test_net_triton` starts it."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted_kernels.py"]
