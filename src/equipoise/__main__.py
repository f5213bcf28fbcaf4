"""`python -m equipoise` is the command `equipoise`."""

from __future__ import annotations

from equipoise.cli import app

if __name__ == "__main__":
    app(prog_name="equipoise")
