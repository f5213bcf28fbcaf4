"""The command line: `equipoise run`, and what looks at its results; `simulate`, `fit`, `diagnose` for your own data.

Exit codes: 0 where everything asked for is there, 1 where something is missing or failed, 2 for a command that cannot
be understood, 130 after Ctrl-C.
"""

from __future__ import annotations

__all__ = ["app"]

import os

# Threads that wait for each other by spinning take five times as long as one thread where another process wants a core
# (a balanced flow's step: 69 ms against 14; 12 where they sleep). It has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as missing:  # the core does not need them
    raise SystemExit("the command line needs typer and rich: pip install 'equipoise[cli]'") from missing

# In the order in which --help lists them.
from . import experiment, simulating, posterior, catalogue  # noqa: F401, I001
from .app import app
