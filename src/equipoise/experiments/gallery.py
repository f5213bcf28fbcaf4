"""Pictures of posteriors: the density of run 0 for one observation, where there are two parameters.

The observation is one draw of the task, the same for all methods and budgets. Densities are means over the
cells of a fixed grid over the prior's box, kept with eight significant bits, of which a picture shows fewer.
"""

from __future__ import annotations

__all__ = ["FINE", "gallery", "observation", "picture_points"]

import json
from collections.abc import Mapping

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from equipoise.posteriors import Posterior
from equipoise.simulations import simulate
from equipoise.tasks import Task

from .cells import Cell, Stack
from .records import SIDE, coarse

#: Points per side of a cell.
FINE = 2
#: Bits that are kept of a density.
BITS = 8
#: What is smaller than this share of the largest density is kept as 0.
FLOOR = 1e-6


def observation(task: Task, seed: int) -> tuple[Tensor, Tensor]:
    """θ*, with shape `(2,)`, and what was observed, with shape `x_shape`."""
    pairs = simulate(task.prior, task.simulator, 1, seed=seed)
    return pairs.theta[0], pairs.x[0]


def picture_points(task: Task) -> Tensor:
    """The points of the grid, with shape `(SIDE * FINE, SIDE * FINE, 2)`; the first axis is the first parameter."""
    ticks = (torch.arange(SIDE * FINE) + 0.5) / (SIDE * FINE)
    return task.prior.from_uniform(torch.stack(torch.meshgrid(ticks, ticks, indexing="ij"), -1))


def picture(log_density: Tensor) -> np.ndarray:
    """The mean density of each cell, with shape `(SIDE, SIDE)`, from the log density at the points.

    Two Moons is narrower than a cell: the density at its centre would show beads instead of crescents. It is rounded,
    and 0 where it is next to nothing, so that it compresses.
    """
    density = log_density.exp().cpu().numpy().reshape(SIDE, FINE, SIDE, FINE).mean((1, 3))
    return coarse(np.where(density < FLOOR * density.max(), 0.0, density), BITS)


def gallery(stack: Stack, task: Task, posteriors: Mapping[Cell, Posterior | None]) -> xr.Dataset:
    """What is kept with a stack: the densities of its cells of run 0, the observation, and the exact density.

    The coordinate `picture` of the densities is the identity of the cell.
    """
    chosen = {cell.identity: posteriors[cell] for cell in stack.cells if cell.gallery}
    if not chosen:
        return xr.Dataset()
    theta, x = observation(task, stack.stream("gallery"))
    points = picture_points(task).reshape(-1, 2)
    nothing = np.full((SIDE, SIDE), np.nan, np.float32)
    densities = [nothing if p is None else picture(p.log_prob(points, x)) for p in chosen.values()]
    exact = picture(task.log_posterior(points, x)) if task.has_exact_posterior else nothing
    corners = {"theta": theta, "low": task.prior.low, "high": task.prior.high}
    return xr.Dataset(
        {
            "gallery_density": (("picture", "grid_0", "grid_1"), np.stack(densities)),
            "gallery_exact": (("grid_0", "grid_1"), exact),
            **{f"gallery_{name}": ("parameter", values.double().cpu().numpy()) for name, values in corners.items()},
            "gallery_x": ((), json.dumps(np.round(x.double().numpy(), 6).tolist())),
        },
        {"picture": list(chosen)},
    )
