"""Numbers and names as the page prints them."""

from __future__ import annotations

__all__ = ["alone", "file_name", "moment", "p_value", "range_text", "spelled", "unbroken"]

import re
from datetime import datetime

import numpy as np
from markupsafe import Markup, escape

from equipoise.plots.settings import MISSING, Range, Setting, signed


def range_text(values: Range, digits: int = 3, plus: bool = True, error: float = np.nan) -> Markup:
    """Median, with its standard error if given, and below it in brackets the range where runs differ.

    Example:
        >>> print(range_text(Range(-0.1, -0.12, -0.09)), range_text(Range(0.5, 0.5, 0.5), 2, False))
        −0.100<small>[−0.120, −0.090]</small> 0.50
    """

    def show(v: float) -> str:
        return signed(v, digits) if plus else signed(v, digits).removeprefix("+")

    if not values.known:
        return Markup("–")
    middle = show(values.median) + (f" ± {error:.{digits}f}" if np.isfinite(error) else "")
    if values.low == values.high:
        return Markup(middle)
    return Markup(f"{middle}<small>[{show(values.low)}, {show(values.high)}]</small>")


def p_value(values: Range) -> Markup:
    """
    Example:
        >>> print(p_value(Range(0.2, 0.0004, 0.5)), p_value(Range(0.2, 0.2, 0.2)))
        0.200<small>[&lt; 0.001, 0.500]</small> 0.200
    """

    def show(p: float) -> str:
        return "&lt; 0.001" if p < 0.001 else f"{p:.3f}"

    if not values.known:
        return Markup("–")
    if show(values.low) == show(values.high):
        return Markup(show(values.median))
    return Markup(show(values.median) + f"<small>[{show(values.low)}, {show(values.high)}]</small>")


def unbroken(text: str) -> Markup:
    """Text in which names with a hyphen stay on one line.

    Example:
        >>> print(unbroken("NRE-C is < 1"))
        <span class="name">NRE-C</span> is &lt; 1
    """
    return Markup(re.sub(r"\w+-\w+", r'<span class="name">\g<0></span>', str(escape(text))))


def moment(text: str) -> str:
    """
    Example:
        >>> moment("2025-01-31T12:00:00+00:00"), moment("yesterday")
        ('31 January 2025, 12:00 UTC', 'yesterday')
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def spelled(s: Setting) -> str:
    """The verdicts of a setting in words."""
    if s.state == MISSING:
        return "not computed"
    counts = [
        ("overconfident", s.overconfident),
        ("certified conservative", s.certified),
        ("inconclusive", s.inconclusive),
    ]
    some = [(word, n) for word, n in counts if n]
    if len(some) == 1:
        return some[0][0]
    return ", ".join(f"{n} {word.removesuffix(' conservative')}" for word, n in some)


def alone(s: Setting) -> str:
    """What Holm's correction took back: verdicts that hold for a run alone, but not for all runs together."""
    lost = {
        "overconfident": s.overconfident_alone - s.overconfident,
        "certified": s.certified_alone - s.certified,
    }
    some = [f"{n} more {word}" for word, n in lost.items() if n > 0]
    return ", ".join(some) + " before Holm" if some else ""


def file_name(label: str) -> str:
    """A label as part of a file name.

    Example:
        >>> file_name("lotka_volterra[steps=1001]")
        'lotka_volterra_steps_1001'
    """
    return re.sub(r"\W+", "_", label).strip("_")
