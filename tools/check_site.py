"""Check every link of a built site: files exist, anchors exist, addresses of other sites are well formed.

    python tools/check_site.py build/docs

Other sites are not contacted. Exits with 1 and names the page if a link is broken.
"""

from __future__ import annotations

__all__ = ["Page", "broken", "main"]

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Pages that the theme makes without a page of ours.
GENERATED = {"genindex.html", "search.html", "py-modindex.html"}


class Page(HTMLParser):
    """The links of a page and the anchors that it has."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {"", "top"}
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value is not None and tag != "link":
                self.links.append(value)


@cache
def page(file: Path) -> Page:
    return Page(file)


def broken(link: str, at: Path, root: Path) -> str:
    """Why a link of a page does not work; nothing if it does."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return "" if parts.hostname and "." in parts.hostname and " " not in link else "not an address"
    if parts.scheme:
        return ""
    file = (at.parent / unquote(parts.path)).resolve() if parts.path else at
    file = file / "index.html" if file.is_dir() else file
    if not file.is_relative_to(root):
        return "leads out of the site"
    if not file.exists():
        return "there is no such file"
    if parts.fragment and file.suffix == ".html" and unquote(parts.fragment) not in page(file).anchors:
        return "there is no such anchor"
    return ""


def main(folder: str) -> int:
    root = Path(folder).resolve()
    files = [file for file in sorted(root.rglob("*.html")) if file.name not in GENERATED]
    links = {(file, link) for file in files for link in page(file).links}
    wrong = [(file, link, why) for file, link in sorted(links) if (why := broken(link, file, root))]
    for file, link, why in wrong:
        print(f"{file.relative_to(root)}: {link}: {why}")
    elsewhere = {link for _, link in links if link.startswith("http")}
    print(f"{len(links):,} links of {len(files)} pages checked, {len(wrong)} broken")
    print(f"{len(elsewhere)} addresses of other sites not followed: builds need no network")
    return int(bool(wrong) or not files)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or ["build/docs"]))
