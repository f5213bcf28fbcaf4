"""How results look: one colour, line and marker per method, one shade per budget, one colour per verdict.

Methods that share a network and a loss share a hue (Okabe and Ito's, darkened where thin lines need it). Dashed lines
are not balanced, solid ones are, dash-dotted ones start at the prior. Budgets go along viridis, the largest darkest.
"""

from __future__ import annotations

__all__ = ["CYCLE", "PRINT", "VERDICTS", "Look", "VerdictStyle", "budget_looks", "families", "method_looks", "printed"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.markers import MarkerStyle

from .labels import MethodRow
from .settings import CERTIFIED, INCONCLUSIVE, MISSING, OVERCONFIDENT, PARTLY

INK, PAPER, GREY, RULE = "#1a1d21", "#ffffff", "#565c64", "#d9dde1"
#: The hue of a density, and of the contour around its 95% region.
DENSITY, CONTOUR = "#2a7fbf", "#12588d"
#: For members and parameters: Okabe and Ito's colours without the yellow, which vanishes on white.
CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHED = (0, (4, 2))


class VerdictStyle(NamedTuple):
    symbol: str  # triangles point to where the curve lies
    css: str
    ink: str
    tint: str


VERDICTS = {
    OVERCONFIDENT: VerdictStyle("▼", "over", "#9c3900", "#fce9dd"),
    PARTLY: VerdictStyle("▽", "part", "#9c3900", "#fdf4ec"),
    CERTIFIED: VerdictStyle("▲", "safe", "#00558c", "#e1eff9"),
    INCONCLUSIVE: VerdictStyle("◇", "open", "#4f555d", "#eef0f2"),
    MISSING: VerdictStyle("–", "gone", GREY, PAPER),
}

#: matplotlib's settings for print: type of 7 points and more, and text as text in PDF and SVG.
PRINT: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "figure.labelsize": 8,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.3,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}

#: Hues by network and loss; those from the fifth on are for methods beyond the paper's.
HUES = ("#0072b2", "#00795a", "#c25200", "#9c3f86", "#7a6a00", "#4f6d7a", "#8c2d19")
FAMILIES = {("classifier", "nre"): 0, ("classifier", "nre_c"): 1, ("flow", "npe"): 2, ("flow", "nre"): 3}
UNBALANCED, BALANCED, FROM_PRIOR = (0, (4, 1.6)), "-", (0, (6, 1.5, 1.2, 1.5))
SVG_DASH = {"-": "none", str(UNBALANCED): "6 3", str(FROM_PRIOR): "9 3 2 3"}
#: Markers of the versions of a method, such as other strengths.
VERSIONS = "v^<>phXP"

#: Decorates functions that draw for print.
printed = mpl.rc_context(PRINT)


@dataclass(frozen=True)
class Look:
    """Colour, line and marker of a curve."""

    colour: str
    line: Any = "-"
    marker: str = "o"
    filled: bool = True

    @property
    def svg_dash(self) -> str:
        return SVG_DASH.get(str(self.line), "none")

    @property
    def svg_marker(self) -> str:
        """The outline of the marker in an HTML legend, 6.4 wide around (13, 5)."""
        style = MarkerStyle(self.marker)
        outline: Any = style.get_path().transformed(style.get_transform()).to_polygons()[0]
        return "M" + "L".join(f"{13 + 6.4 * x:.1f},{5 - 6.4 * y:.1f}" for x, y in outline) + "Z"

    @property
    def marking(self) -> dict[str, Any]:
        face = self.colour if self.filled else PAPER
        return {"marker": self.marker, "markerfacecolor": face, "markeredgecolor": self.colour}


def method_looks(rows: Mapping[str, MethodRow]) -> dict[str, Look]:
    """The look of each method, from its network, loss, balance term and start.

    Methods that agree in all of these, such as two strengths, share a hue in paler shades with different markers.
    """
    looks: dict[str, Look] = {}
    versions: dict[Any, int] = {}
    for name, row in rows.items():
        hue = FAMILIES.get((row.network, row.loss), 4)
        from_prior, balanced = row.start.startswith("prior"), row.balance != "none"
        kind = (hue, from_prior, balanced) if hue < 4 else hue
        version = versions[kind] = versions.get(kind, -1) + 1
        line = FROM_PRIOR if from_prior else BALANCED if balanced else UNBALANCED
        marker = VERSIONS[(version - 1) % 8] if version else "D" if from_prior else "o" if balanced else "s"
        colour = _paler(HUES[hue], version) if hue < 4 else _paler(HUES[4 + version % 3], version // 3)
        looks[name] = Look(colour, line, marker, balanced or from_prior)
    return looks


def families(rows: Mapping[str, MethodRow]) -> list[list[str]]:
    """Methods grouped by network and loss; methods beyond the paper's are one more group."""
    together: dict[int, list[str]] = {}
    for name, row in rows.items():
        together.setdefault(FAMILIES.get((row.network, row.loss), 4), []).append(name)
    return list(together.values())


def cycle_look(i: int) -> Look:
    """The i-th of things that are no methods: filled while colours last, then hollow."""
    return Look(CYCLE[i % len(CYCLE)], "-", "o", i < len(CYCLE))


def budget_looks(budgets: Sequence[int]) -> dict[int, Look]:
    """The look of each budget, the largest darkest."""
    ordered = sorted(budgets)
    share = np.linspace(0, 1, len(ordered)) if len(ordered) > 1 else [0.8]
    return {b: Look(to_hex(mpl.colormaps["viridis"](0.7 * (1 - share[ordered.index(b)])))) for b in budgets}


def darker(colour: str) -> tuple[float, float, float]:
    r, g, b = to_rgb(colour)
    return 0.45 * r, 0.45 * g, 0.45 * b


def _paler(colour: str, steps: int) -> str:
    share = 0.75 ** min(steps, 4)
    red, green, blue = (1 - share * (1 - c) for c in to_rgb(colour))
    return to_hex((red, green, blue))
