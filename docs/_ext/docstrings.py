r"""The notation of the docstrings as reStructuredText: \(…\) is a formula, W_> is no hyperlink, |g| no substitution."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

INLINE = re.compile(r"\\\((.+?)\\\)", re.DOTALL)
REFERENCE = re.compile(r"(?<=\w)_(?=[\s'\")\]}>/:.,;!?-])(?=[^`]*(?:`[^`]*`[^`]*)*$)")  # outside of backticks
SUBSTITUTION = re.compile(r"(?<=\s)\|(?=[^|\s][^|\n]*\|)|(?<=·)\|")
LITERAL = re.compile(r"(?<=\w):(\n\n    (?! *\.\.))")  # an indented block after a colon


def to_rst(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    text = INLINE.sub(lambda found: f":math:`{' '.join(found[1].split())}`", "\n".join(lines))
    text = SUBSTITUTION.sub(r"\\|", REFERENCE.sub(_escaped, text))
    if what == "module":
        text = LITERAL.sub(r"::\1", text)
    lines[:] = text.split("\n")


def _escaped(found: re.Match[str]) -> str:
    before = found.string[: found.start()].rpartition("\n")[2]
    return "_" if ".. math::" in before else r"\_"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", to_rst, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
