"""Numbers and tables as the documents have them."""

from __future__ import annotations

__all__ = ["counted", "options_of", "ranged", "signed", "table"]

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from equipoise.plots.settings import CERTIFIED, OVERCONFIDENT
from reading import Setting


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign; zero has none."""
    if not np.isfinite(value):
        return "–"
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else ("−" if value < 0 else "+") + text


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others numbers."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def ranged(setting: Setting, name: str, digits: int = 3) -> str:
    """The median over runs, and below it the smallest and the largest."""
    low, high = setting.ends(name)
    return f"{signed(setting.median(name), digits)}<br><sub>{signed(low, digits)} … {signed(high, digits)}</sub>"


def counted(verdicts: Iterable[str]) -> str:
    """How many are found overconfident (▼), certified conservative (▲) and inconclusive (◇).

    Example:
        >>> counted(["overconfident", "inconclusive", "overconfident"])
        '2 ▼  0 ▲  1 ◇'
    """
    found = Counter(verdicts)
    low, high = found[OVERCONFIDENT], found[CERTIFIED]
    return f"{low} ▼  {high} ▲  {found.total() - low - high} ◇"


def options_of(label: str) -> tuple[str, dict[str, str]]:
    """A label such as `bnpe[balance=kl,strength=10]` taken apart."""
    name, _, inside = label.partition("[")
    return name, dict(part.split("=", 1) for part in inside.removesuffix("]").split(",") if part)
