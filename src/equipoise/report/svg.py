"""Figures as SVG inside the page, in the page's own colours and type."""

from __future__ import annotations

__all__ = ["inline_svg"]

import base64
import io
import re
from collections.abc import Mapping
from html import escape

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from .style import GREY, INK, PAPER, RULE

#: A figure's points become this many CSS pixels, so that 8-point type reads as 13 pixels.
PIXELS_A_POINT = 1.6


def inline_svg(figure: Figure, name: str, alt: str, colours: Mapping[str, str] | None = None) -> str:
    """The figure as an `<svg>` element to put into a page.

    Arguments:
        figure: the figure; it is left as it was.
        name: unique in the page; the ids inside start with it.
        alt: what a reader who cannot see it should know.
        colours: hexadecimal colour to CSS variable, beside ink, paper and grey.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}, dpi=150)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: _lighter(tag[0]), text)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(
        r"font(-family)?: ([\d.]+px )?'DejaVu Sans'[^;\"]*",
        lambda m: f"font-size: {m[2].strip()}" if m[2] else "",
        text,
    )
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for colour, variable in {INK: "ink", PAPER: "paper", GREY: "quiet", RULE: "rule", **dict(colours or {})}.items():
        text = re.sub(re.escape(colour), f"var(--{variable})", text, flags=re.IGNORECASE)
    width, height = (72 * float(v) * PIXELS_A_POINT for v in figure.get_size_inches())
    opening = re.match(r"<svg[^>]*>", text)
    assert opening is not None
    view = re.search(r'viewBox="[^"]*"', opening[0])
    assert view is not None
    start = (
        f'<svg {view[0]} width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(alt, quote=True)}">'
    )
    return re.sub(r"\s*\n\s*", " ", start + text[opening.end() :]).replace("> <", "><")


def _lighter(tag: str) -> str:
    """A tag with paths to a tenth of a point (markers to a hundredth) and pictures in few colours: nobody sees it."""
    digits = 2 if ' id="' in tag else 1
    tag = re.sub(
        r'(?<= d=")[^"]*', lambda path: re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.{digits}f}", path[0]), tag
    )
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r'(?<= [xy]=")-?\d+\.\d+', lambda n: f"{float(n[0]):.2f}", tag)
    tag = tag.replace("; stroke-linecap: square", "").replace(" stroke-dashoffset: 0;", "").replace("; ;", ";")
    return re.sub(r'data:image/png;base64,[^"]*', lambda uri: _quantised(uri[0]), tag)


def _quantised(uri: str) -> str:
    """A picture in one hue, transparent to opaque in 40 steps: an index and a palette instead of four channels."""
    head, _, body = uri.partition(",")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(re.sub(r"\s", "", body)))).convert("RGBA"))
    alpha = pixels[..., 3]
    hue = [int(v) for v in pixels.reshape(-1, 4)[alpha.argmax(), :3]]
    picture = Image.fromarray(np.rint(alpha * (39 / 255)).astype(np.uint8)).convert("P")
    picture.putpalette(hue * 40)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True, transparency=bytes(round(i * 255 / 39) for i in range(40)))
    return f"{head},{base64.b64encode(buffer.getvalue()).decode()}"
