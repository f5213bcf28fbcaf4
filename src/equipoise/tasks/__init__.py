"""The five tasks of the paper, one file each, and tasks of your own.

>>> t = task("two_moons")
>>> x = t.simulate(t.prior.sample((1000,)), seed=0)
>>> x.shape
torch.Size([1000, 2])
"""

from __future__ import annotations

__all__ = ["TASKS", "Task", "task"]

from typing import Any

from equipoise.support.words import did_you_mean

from .abstract_task import Task
from .lotka_volterra import LotkaVolterra
from .slcp import SLCP
from .spatial_sir import SpatialSIR
from .two_moons import TwoMoons
from .user_task import UserTask
from .weinberg import Weinberg

#: Name to class, whose keywords are the options of the task. A new task is a file, and its class in this list.
TASKS: dict[str, type[Task]] = {cls.name: cls for cls in (SLCP, Weinberg, SpatialSIR, LotkaVolterra, TwoMoons)}


def task(name: str, **options: Any) -> Task:
    """The task of that name, with its options by keyword; `FILE.py:NAME` for one of your own.

    Example:
        >>> task("slcp").prior
        BoxUniform(low=[-3.0, -3.0], high=[3.0, 3.0])
    """
    if ":" in str(name):
        return UserTask(name, **options)
    if name not in TASKS:
        raise ValueError(f"{did_you_mean(name, TASKS, 'task')} One of your own is FILE.py:NAME.")
    try:
        return TASKS[name](**options)
    except TypeError as error:
        raise TypeError(f"task({name!r}) does not take these options: {error}") from None
