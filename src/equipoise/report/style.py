"""How results look: one colour and line for each method, one shade for each budget, on paper and on a dark screen.

Methods that share a network and a loss share a hue (Okabe and Ito's, darkened where thin lines need it); dashes tell
the unbalanced from the balanced, dash-dots those started at the prior. Budgets go along viridis, so that a larger one
stands out more from the background, light or dark.
"""

from __future__ import annotations

__all__ = [
    "CONTOUR",
    "DENSITY",
    "GREY",
    "INK",
    "PAPER",
    "PRINT",
    "RULE",
    "VERDICTS",
    "Look",
    "budget_looks",
    "method_looks",
    "theme",
]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.markers import MarkerStyle

from .results import CERTIFIED, INCONCLUSIVE, MISSING, OVERCONFIDENT, PARTLY

#: What the page replaces by its own ink, background and quiet grey; unlike any other colour, so that replacing is safe.
INK, PAPER, GREY, RULE = "#1a1d21", "#fffffe", "#565c64", "#d9dde1"
#: The hue of a density, and of the line around most of its mass.
DENSITY, CONTOUR = "#2a7fbf", "#12588d"

#: matplotlib's settings for print: type of 7 points and more, and real text in PDF and SVG.
PRINT: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "figure.titlesize": 9,
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
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.facecolor": PAPER,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "equipoise",
    "axes.unicode_minus": True,
    "figure.constrained_layout.use": True,
}

#: Symbol, CSS class, ink and tint of each state. The triangles point to where the curve lies.
VERDICTS = {
    OVERCONFIDENT: ("▼", "over", "#9c3900", "#fce9dd"),
    PARTLY: ("▽", "part", "#9c3900", "#fdf4ec"),
    CERTIFIED: ("▲", "safe", "#00558c", "#e1eff9"),
    INCONCLUSIVE: ("◇", "open", "#4f555d", "#eef0f2"),
    MISSING: ("–", "gone", GREY, PAPER),
}

# Hue in print and on a light screen, and on a dark one.
HUES = [
    ("#0072b2", "#5db8f0"),
    ("#00795a", "#45cfa4"),
    ("#c25200", "#ff9b57"),
    ("#9c3f86", "#e59bd4"),
    ("#7a6a00", "#dccb52"),
]
FAMILY = {"nre": 0, "nre_c": 1, "npe": 2, "rnpe": 3}
PLAIN, BALANCED, INIT = (0, (4, 1.6)), "-", (0, (6, 1.5, 1.2, 1.5))
OTHERS = "v^<>phXP"
SVG_DASH = {"-": "none", str(PLAIN): "6 3", str(INIT): "9 3 2 3"}


@dataclass(frozen=True)
class Look:
    """How a line is drawn: colour in print, colour on a dark screen, the name of its CSS variable, dashes, marker."""

    colour: str
    dark: str
    variable: str
    line: Any = "-"
    marker: str = "o"
    filled: bool = True

    @property
    def svg_dash(self) -> str:
        return SVG_DASH[str(self.line)]

    @property
    def svg_marker(self) -> str:
        """The outline of the marker in the swatch of a legend, 6.4 wide around (13, 5)."""
        style = MarkerStyle(self.marker)
        outline: Any = style.get_path().transformed(style.get_transform()).to_polygons()[0]
        return "M" + "L".join(f"{13 + 6.4 * x:.1f},{5 - 6.4 * y:.1f}" for x, y in outline) + "Z"

    @property
    def marking(self) -> dict[str, Any]:
        return {
            "marker": self.marker,
            "markerfacecolor": self.colour if self.filled else PAPER,
            "markeredgecolor": self.colour,
        }


def method_looks(methods: Sequence[str]) -> dict[str, Look]:
    """The look of each method.

    Versions of one method (`bnre`, `bnre[strength=10]`) share its hue in paler shades, with markers of their own.
    Methods beyond the paper's take the fifth hue.
    """
    looks: dict[str, Look] = {}
    versions: dict[str, int] = {}
    for i, label in enumerate(methods):
        name = label.partition("[")[0]
        init, balanced, family = name.endswith("_init"), name.startswith("b"), _family(label)
        known = "other" if family is None else name
        version = versions[known] = versions.get(known, -1) + 1
        light, dark = HUES[4 if family is None else FAMILY[family]]
        line = INIT if init else BALANCED if balanced else PLAIN
        marker = OTHERS[(version - 1) % len(OTHERS)] if version else "D" if init else "o" if balanced else "s"
        looks[label] = Look(_paler(light, version), _paler(dark, version), f"m{i}", line, marker, balanced or init)
    return looks


def _family(label: str) -> str | None:
    """The method without balance that a method of the paper comes from."""
    root = label.partition("[")[0].removesuffix("_init").removeprefix("b")
    return root if root in FAMILY else None


def families(methods: Sequence[str]) -> list[list[str]]:
    """Methods by what they come from; those beyond the paper's are one more family.

    Example:
        >>> families(["nre", "npe", "bnre", "bnpe_init", "mine"])
        [['nre', 'bnre'], ['npe', 'bnpe_init'], ['mine']]
    """
    together: dict[str | None, list[str]] = {}
    for label in methods:
        together.setdefault(_family(label), []).append(label)
    return list(together.values())


def _paler(colour: str, steps: int) -> str:
    share = 0.75 ** min(steps, 4)
    red, green, blue = (1 - share * (1 - c) for c in mpl.colors.to_rgb(colour))
    return mpl.colors.to_hex((red, green, blue))


def budget_looks(budgets: Sequence[int]) -> dict[int, Look]:
    """The look of each budget, the largest the strongest."""
    viridis = mpl.colormaps["viridis"]
    n = len(budgets)
    share = np.linspace(0, 1, n) if n > 1 else np.array([0.8])
    rank = np.argsort(np.argsort(np.asarray(budgets)))
    return {
        b: Look(
            mpl.colors.to_hex(viridis(0.7 * (1 - share[rank[i]]))),
            mpl.colors.to_hex(viridis(0.44 + 0.54 * share[rank[i]])),
            f"b{i}",
        )
        for i, b in enumerate(budgets)
    }


def theme(methods: Sequence[str], budgets: Sequence[int]) -> list[tuple[str, str, str]]:
    """The CSS variables of the looks: (name, on light, on dark)."""
    looks = [*method_looks(methods).values(), *budget_looks(budgets).values()]
    return [(look.variable, look.colour, look.dark) for look in looks] + [("density", CONTOUR, "#7cc0f5")]
