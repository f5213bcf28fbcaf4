"""Links to lines of the source: the role {source}`equipoise.losses.nre`, and [source] beside the names of the API.

The lines are those of the build. A role's name that does not exist is a warning, and so fails the build. The sources
that are linked become pages of the site.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

SRC = Path(__file__).parents[2] / "src"


def find(name: str) -> Any:
    """The object of a dotted name; a name of a package before a module of the same name."""
    parts = name.split(".")
    found: Any = importlib.import_module(parts[0])
    for n, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:n]))
        found = getattr(found, part)
    return found


def line_of(name: str) -> tuple[str, int]:
    """File below src/, and line, of a function, method, property or class."""
    found = find(name)
    found = inspect.unwrap(found.fget if isinstance(found, property) else found)
    file = Path(inspect.getsourcefile(found) or "").resolve()
    return file.relative_to(SRC.resolve()).as_posix(), inspect.getsourcelines(found)[1]


def page_of(file: str) -> str:
    """The page of the site that shows a file below src/."""
    return "source/" + file.removesuffix(".py")


def link_to(name: str, env: Any, text: str = "") -> nodes.reference:
    """A link from the page that is being read; file and line are its text unless another is given."""
    file, line = line_of(name)
    linked: dict[str, set[str]] = env.__dict__.setdefault("linked_sources", {})
    linked.setdefault(env.docname, set()).add(file)
    target = os.path.relpath(page_of(file), os.path.dirname(env.docname) or ".")
    link = nodes.reference("", text or f"{file.removeprefix('equipoise/')}:{line}", internal=True)
    link["refuri"] = f"{target}.html#line-{line}"
    return link


class Source(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            link = link_to(self.text, self.env)
        except (ImportError, AttributeError, TypeError, ValueError, OSError) as error:
            message = self.inliner.reporter.warning(f"no source of {self.text}: {error}", line=self.lineno)
            return [nodes.literal(self.text, self.text)], [message]
        name = self.text.split(".")
        name = name[-2:] if name[-2][0].isupper() else name[-1:]
        return [nodes.literal("", ".".join(name)), nodes.Text(", "), link], []


def beside_names(app: Sphinx, doctree: nodes.document) -> None:
    """[source] at the end of every signature whose object has a line; tables and inherited names have none."""
    for signature in doctree.findall(addnodes.desc_signature):
        try:
            link = link_to(f"{signature['module']}.{signature['fullname']}", app.env, "[source]")
        except (ImportError, AttributeError, KeyError, TypeError, ValueError, OSError):
            continue
        signature += nodes.inline("", "", link, classes=["viewcode-link"])


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """One page per linked file, with an anchor at every line."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="line", anchorlinenos=True, wrapcode=True)
    for file in sorted(set().union(*getattr(app.env, "linked_sources", {}).values())):
        code = highlight((SRC / file).read_text(encoding="utf-8"), PythonLexer(), formatter)
        yield page_of(file), {"title": file, "body": f"<h1>{file}</h1>\n{code}"}, "page.html"


def forget(app: Sphinx, env: Any, docname: str) -> None:
    getattr(env, "linked_sources", {}).pop(docname, None)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role("source", Source())
    app.connect("doctree-read", beside_names)
    app.connect("html-collect-pages", pages)
    app.connect("env-purge-doc", forget)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
