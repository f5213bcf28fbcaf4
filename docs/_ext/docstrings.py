r"""The notation of the docstrings as reStructuredText: \(…\) is a formula, an indented diagram is a literal block."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

INLINE = re.compile(r"\\\((.+?)\\\)")


def to_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = INLINE.sub(lambda found: f":math:`{found[1]}`", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", to_rst, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
