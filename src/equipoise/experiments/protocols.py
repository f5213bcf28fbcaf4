"""Protocols: how networks of the benchmark are trained and judged, and how large they are for each task.

A protocol chooses numbers; it never changes what a method's name means. `paper` is the text's; `released` is what the
published figures show; `default` is the paper's with fewer pairs, for a laptop. These do not standardise θ or x of the
paper's tasks; Lotka-Volterra's counts are divided by 100. A user's own task may have any scale and is standardised.
`fit` is what a user has: networks are trained as `eq.fit` trains them, and judged as `eq.diagnose` judges.
`released` also draws the contrastive sets of NRE-C as the released loss does, from 2K rolls of θ.

What a protocol chooses for a task is a row of `SIZES`, and nothing outside this file knows of it. The sizes of
`released` differ from the text's in three places: Two Moons's flow has 6 hidden layers of 256 where the text has 3,
Lotka-Volterra's series have 1001 steps and a larger embedding.
"""

from __future__ import annotations

__all__ = ["FIGURE_LABELS", "PAPER_TASKS", "PROTOCOLS", "Protocol", "Sizes", "sizes"]

import dataclasses
from typing import Any, NamedTuple

from equipoise.training.settings import DEFAULT, PAPER, RELEASED, Settings


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How members are trained and judged.

    Arguments:
        name: how it is called.
        settings: of the training.
        recipe: how coverage is computed, see `diagnose`.
        pairs: the size of the coverage set.
        test: the size of the test set, over which single networks' balancing error and raw log posterior are taken.
        samples: draws or points behind each rank.
        released_pairs: the first this many coverage pairs are judged by the released recipe as well.
        share_rolls: whether the contrastive sets of NRE-C share rolls of θ, see `losses.pairs`.
        tolerance: of the certificate, see `diagnose`.
    """

    name: str
    settings: Settings
    recipe: str = "equipoise"
    pairs: int = 10_000
    test: int = 100_000
    samples: int = 1000
    released_pairs: int = 0
    share_rolls: bool = True
    tolerance: str = "constant"


PROTOCOLS: dict[str, Protocol] = {
    p.name: p
    for p in (
        Protocol("default", PAPER, pairs=1000, test=10_000, samples=256),
        Protocol("paper", PAPER),
        Protocol("released", RELEASED, recipe="released", share_rolls=False),
        Protocol("fit", DEFAULT, samples=256, tolerance="level"),
    )
}
#: What figures call a method, where that is not the paper's name of it: the paper has one name for two methods, the
#: text's and the one behind the published figures.
FIGURE_LABELS: dict[str, str] = {"brnpe": "BRNPE", "brnpe_init": "BRNPE Init", "calibrated": "Calibrated"}


class PaperTask(NamedTuple):
    """What plans and results need to know of a task of the paper, as the task itself says; it takes torch to ask it.

    Arguments:
        label: what figures call it.
        x_dims: dimensions of an observation.
        planar: whether a density can be drawn: two parameters in a box.
        options: those that it has where none are given.
    """

    label: str
    x_dims: int
    planar: bool
    options: tuple[tuple[str, Any], ...] = ()


PAPER_TASKS = {
    "slcp": PaperTask("SLCP", 1, True),
    "weinberg": PaperTask("Weinberg", 1, False),
    "spatial_sir": PaperTask("Spatial SIR", 3, True),
    "lotka_volterra": PaperTask("Lotka-Volterra", 2, True, (("clock", "jump"), ("steps", 2001))),
    "two_moons": PaperTask("Two Moons", 1, True),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a protocol chooses for one task.

    Arguments:
        classifier: the hidden layers of a classifier.
        flow: the hidden layers of each transform of a flow.
        transforms: how many transforms a flow has.
        layers: of the convolutional embedding; 0 for none.
        channels: of the convolutional embedding.
        x_scale: what x is divided by.
        options: of the task.
        standardize: whether θ is scaled by the prior and x by the training pairs.
        as_fit: whether the embedding is the one that `eq.fit` chooses by the observations.
    """

    classifier: tuple[int, ...] = (256,) * 6
    flow: tuple[int, ...] = (256,) * 3
    transforms: int = 3
    layers: int = 0
    channels: int = 0
    x_scale: float = 1.0
    options: tuple[tuple[str, Any], ...] = ()
    standardize: bool = False
    as_fit: bool = False


_TEXT = {
    "lotka_volterra": Sizes(layers=8, channels=8, x_scale=100.0, options=(("steps", 2001),)),
    "spatial_sir": Sizes(layers=8, channels=16),
}
#: What differs from `Sizes()`, by protocol and task.
SIZES: dict[str, dict[str, Sizes]] = {
    "default": _TEXT,
    "paper": _TEXT,
    "released": {
        "lotka_volterra": Sizes(layers=10, channels=16, x_scale=100.0, options=(("steps", 1001),)),
        "spatial_sir": Sizes(layers=8, channels=16),
        "two_moons": Sizes(flow=(256,) * 6),
    },
}


def sizes(protocol: str, task: str) -> Sizes:
    """The row of a task.

    Example:
        >>> sizes("released", "lotka_volterra").channels, sizes("paper", "slcp").flow
        (16, (256, 256, 256))
    """
    if protocol == "fit":
        return Sizes(standardize=True, as_fit=True)
    return SIZES[protocol].get(task, Sizes(standardize=":" in task))
