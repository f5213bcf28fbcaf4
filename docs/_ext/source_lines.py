"""The role {source}`equipoise.losses.nre`: the function, its file and its line now, with a link to its source."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

SRC = Path(__file__).parents[2] / "src"


def find(name: str) -> Any:
    """The object of a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AttributeError(f"there is no {name}")


def line_of(name: str) -> tuple[str, int]:
    """File below src/, and line, of a function or class."""
    found = inspect.unwrap(find(name))
    file = Path(inspect.getsourcefile(found) or "").resolve()
    return str(file.relative_to(SRC)), inspect.getsourcelines(found)[1]


class Source(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            file, line = line_of(self.text)
        except (AttributeError, TypeError, ValueError, OSError) as error:
            message = self.inliner.reporter.warning(f"no source for {self.text}: {error}", line=self.lineno)
            return [nodes.literal(self.text, self.text)], [message]
        short = self.text.rsplit(".", 1)[-1]
        text = f"{file.removeprefix('equipoise/')}:{line}"
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        page = self._page(module)
        return [
            nodes.literal(short, short),
            nodes.Text(" "),
            nodes.reference("", "", nodes.inline(text, text, classes=["source-line"]), refuri=page, internal=True),
        ], []

    def _page(self, module: str) -> str:
        up = "../" * self.env.docname.count("/")
        found = find(self.text)
        qualified = getattr(found, "__qualname__", self.text.rsplit(".", 1)[-1])
        return f"{up}_modules/{module.replace('.', '/')}.html#{qualified}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("source", Source())
    return {"parallel_read_safe": True, "parallel_write_safe": True}
