"""The five tasks of the paper, one file each, and tasks of your own.

>>> t = task("two_moons")
>>> x = t.simulate(t.prior.sample((1000,)), seed=0)
>>> x.shape
torch.Size([1000, 2])
"""

from __future__ import annotations

__all__ = ["TASKS", "Task", "task"]

import difflib
from typing import Any

from .base import Task
from .lotka_volterra import LotkaVolterra
from .own import OwnTask
from .slcp import SLCP
from .spatial_sir import SpatialSIR
from .two_moons import TwoMoons
from .weinberg import Weinberg

#: Name to class. A class takes the task's options as keywords.
TASKS: dict[str, type[Task]] = {cls.name: cls for cls in (SLCP, Weinberg, SpatialSIR, LotkaVolterra, TwoMoons)}


def task(name: str, **options: Any) -> Task:
    """The task of that name, with its options by keyword; `FILE.py:NAME` for one of your own.

    Example:
        >>> task("slcp").prior
        BoxUniform(low=[-3.0, -3.0], high=[3.0, 3.0])
    """
    if ":" in str(name):
        return OwnTask(name, **options)
    if name not in TASKS:
        close = difflib.get_close_matches(str(name), TASKS, n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"there is no task {name!r}{hint} The tasks are {', '.join(TASKS)}; one of your own is FILE.py:NAME."
        )
    try:
        return TASKS[name](**options)
    except TypeError as error:
        raise TypeError(f"task({name!r}) does not take these options: {error}") from None
