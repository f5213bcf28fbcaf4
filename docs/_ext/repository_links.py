"""Links that work on the code host work on the site, too.

Pages of the site link to files at the root of the repository by relative path. Three of these files are pages here.
"""

from __future__ import annotations

import os
import re

from sphinx.application import Sphinx

#: Files at the root, and the page of the site that includes each.
PAGES = {"ARCHITECTURE.md": "architecture", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
LINK = re.compile(r"\]\((?:\.\./)+(" + "|".join(map(re.escape, PAGES)) + r")(#[^)]*)?\)")


def to_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    def page(found: re.Match[str]) -> str:
        path = os.path.relpath(PAGES[found[1]], os.path.dirname(docname) or ".")
        return f"]({path}.md{found[2] or ''})"

    source[0] = LINK.sub(page, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", to_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
