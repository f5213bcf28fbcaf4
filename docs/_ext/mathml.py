"""Formulas as MathML: browsers draw it themselves, so the site needs no JavaScript and no network for them."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

#: Between a function and its argument TeX has a thin space, and MathML has none.
FUNCTION = re.compile(r"<mi>(?:log|exp|min|max)</mi>")

logger = logging.getLogger(__name__)


def _mathml(self: Any, node: nodes.Element, display: str) -> str:
    try:
        return FUNCTION.sub(r'\g<0><mspace width="0.17em"/>', convert(node.astext(), display=display))
    except Exception as error:  # the converter has no common error class
        logger.warning("this formula cannot be converted: %s (%s)", node.astext(), error, location=node)
        return ""


def inline(self: Any, node: nodes.math) -> None:
    self.body.append(_mathml(self, node, "inline"))
    raise nodes.SkipNode


def block(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(_mathml(self, node, "block"))
    if node["number"]:
        number = f"({node['number']})"
        self.body.append(f'<span class="eqno">{number}')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
