"""`python -m equipoise.demo`: the tasks in one figure, what they make and what can be known from it."""

from __future__ import annotations

__all__ = ["main", "tasks_figure"]

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from equipoise.tasks import TASKS, Task, task

#: One colour per θ, and one for the θ that made the observation below.
COLOURS = ("#0b7a75", "#d1495b", "#edae49")
TRUTH, PRIOR, DENSITY = "#d1495b", "#8a949e", "Blues"
SUSCEPTIBLE, INFECTED, RECOVERED = "#eef1f4", "#d1495b", "#30638e"
#: A θ and a seed of lotka_volterra whose series oscillates and stays alive to the end.
OSCILLATING, LONG_SERIES = (-3.8, 0.0), 53


def tasks_figure(seed: int = 0) -> Any:
    """A matplotlib figure: one column per task, observations above, the exact posterior of one of them below."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {"font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(3.8 * len(TASKS), 8))
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.05, hspace=0.0)
        axes = figure.subplots(2, len(TASKS))
        for (above, below), name in zip(axes.T, TASKS, strict=True):
            made, example = task(name), EXAMPLES.get(name, Example())
            above.set_title(made.label, fontsize=16, fontweight="bold", pad=10)
            example.observations(above, made, seed)
            if made.has_exact_posterior:
                _posterior(below, made, seed, example)
            elif example.instead is not None:
                example.instead(below, made, seed)
            for ax in (above, below):
                ax.set_box_aspect(1)
                if len(ax.get_xticks()):  # few enough that their labels do not meet
                    ax.locator_params(nbins=5)
    return figure


# --- observations --------------------------------------------------------------------------------------------------


def _histogram(ax: Any, made: Task, seed: int) -> None:
    """The numbers of x for three draws of the prior, whatever the task."""
    for theta, colour in zip(
        made.prior.from_uniform(torch.tensor([[0.2], [0.5], [0.8]]).expand(3, made.prior.dim)), COLOURS, strict=True
    ):
        x = made.simulate(theta.expand(200, made.prior.dim), seed=seed)
        ax.hist(x.flatten().numpy(), bins=40, density=True, color=colour, histtype="step")
    ax.set(xlabel="x", ylabel="density")


def _scatter(ax: Any, made: Task, thetas: list[list[float]], seed: int, n: int, legend: str, **style: Any) -> None:
    for theta, colour in zip(thetas, COLOURS, strict=True):
        x = made.simulate(torch.tensor([theta]).expand(n, 2), seed=seed).reshape(-1, 2)
        label = f"θ = ({theta[0]:g}, {theta[1]:g})".replace("-", "−")
        ax.scatter(*x.T.numpy(), color=colour, linewidths=0, label=label, **style)
    ax.legend(loc=legend, fontsize=9, handletextpad=0.1, markerscale=2, framealpha=0.9)


def _slcp(ax: Any, made: Task, seed: int) -> None:
    _scatter(ax, made, [[1.8, 1.8], [1.3, 0.9], [0.7, 1.3]], seed, 60, "upper right", s=9, alpha=0.75)
    ax.set(xlabel="x", ylabel="y", xlim=(-9, 10), ylim=(-12, 9))


def _two_moons(ax: Any, made: Task, seed: int) -> None:
    _scatter(ax, made, [[0.0, 0.0], [0.5, 0.3], [-0.4, 0.4]], seed, 250, "lower right", s=8, alpha=0.7)
    ax.set(xlabel="$x_1$", ylabel="$x_2$", xlim=(-0.55, 0.85), ylim=(-0.5, 0.9))


def _weinberg(ax: Any, made: Task, seed: int) -> None:
    centres = torch.linspace(-0.9875, 0.9875, 80, dtype=torch.float64)
    for gf, colour in zip((0.3, 1.0, 2.0), COLOURS, strict=True):
        x = made.simulate(torch.full((2000, 1), gf), seed=seed)
        ax.hist(x.flatten().numpy(), bins=40, range=(-1, 1), density=True, color=colour, alpha=0.6, histtype="step")
        one = made.log_likelihood(torch.tensor([gf], dtype=torch.float64), centres[:, None].expand(-1, 20))
        ax.plot(centres.numpy(), (one / 20).exp().numpy(), color=colour, lw=2.2, label=f"$G_f$ = {gf:g}")
    ax.set(xlabel="scattering cosine", ylabel="density", xlim=(-1, 1))
    ax.legend(fontsize=9)


def _snapshot(x: np.ndarray) -> np.ndarray:
    """The three channels of a snapshot as one image; a cell that is both infected and recovered shows as infected."""
    from matplotlib.colors import to_rgb

    image = np.empty((*x.shape[1:], 3))
    image[:] = to_rgb(SUSCEPTIBLE)
    image[x[2] > 0] = to_rgb(RECOVERED)
    image[x[1] > 0] = to_rgb(INFECTED)
    return image


def _spatial_sir(ax: Any, made: Task, seed: int) -> None:
    thetas = [[0.25, 0.08], [0.5, 0.15], [0.9, 0.25], [0.9, 0.02]]
    x = made.simulate_compact(torch.tensor(thetas), seed=seed + 3)
    gap = np.ones((50, 3, 3))
    rows = [np.concatenate([_snapshot(x[i]), gap, _snapshot(x[i + 1])], 1) for i in (0, 2)]
    ax.imshow(np.concatenate([rows[0], np.ones((3, 103, 3)), rows[1]], 0), interpolation="nearest")
    box = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5}
    for i, (beta, gamma) in enumerate(thetas):
        row, column = divmod(i, 2)
        ax.text(2 + 53 * column, 3 + 53 * row, f"β={beta:g}, γ={gamma:g}", fontsize=8.5, va="top", bbox=box)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    words = (("susceptible", PRIOR, 0.0, "left"), ("infected", INFECTED, 0.5, "center"))
    for word, colour, place, align in (*words, ("recovered", RECOVERED, 1.0, "right")):
        ax.text(place, -0.03, word, color=colour, transform=ax.transAxes, ha=align, va="top")


def _lotka_volterra(ax: Any, made: Task, seed: int) -> None:
    x = made.simulate(torch.tensor(OSCILLATING), seed=LONG_SERIES + seed)[0].numpy()
    ax.plot(x[:, 0], color=COLOURS[1], lw=1.6, label="predators")
    ax.plot(x[:, 1], color=COLOURS[0], lw=1.6, label="prey")
    ax.set(xlabel="event", ylabel="count", xlim=(0, len(x)), ylim=(0, None))
    ax.legend(fontsize=9, loc="upper left")


# --- posteriors ----------------------------------------------------------------------------------------------------


def _posterior(ax: Any, made: Task, seed: int, example: Example) -> None:
    """The exact posterior of one observation, of one parameter or two."""
    truth = torch.tensor(example.truth or made.prior.from_uniform(torch.full((made.prior.dim,), 0.5)).tolist())
    x = made.simulate(truth, seed=seed + example.seed)[0].double()
    ticks = (torch.arange(example.side, dtype=torch.float64) + 0.5) / example.side
    low, high = made.prior.low.double(), made.prior.high.double()
    names = example.names or made.parameters
    ax.set_title("exact posterior")
    star = {"color": TRUTH, "ms": 15, "mec": "white", "mew": 1.0, "label": "truth"}
    if made.prior.dim == 1:
        grid = low + (high - low) * ticks[:, None]
        curve, line, flat = made.log_posterior(grid, x).exp().numpy(), grid[:, 0].numpy(), 1 / float(high - low)
        ax.fill_between(line, curve, color=RECOVERED, alpha=0.25, lw=0)
        ax.plot(line, curve, color=RECOVERED, lw=2.2)
        ax.axhline(flat, color=PRIOR, lw=1.2, ls="--")
        ax.text(line[0], flat, " prior", color=PRIOR, va="bottom", fontsize=9)
        ax.plot(float(truth[0]), 0, "*", clip_on=False, zorder=5, **star)
        ax.set(xlabel=names[0], ylabel="density", xlim=(float(low), float(high)), ylim=(0, None))
    elif made.prior.dim == 2:
        grid = low + (high - low) * torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
        density = made.log_posterior(grid.reshape(-1, 2), x).exp().reshape(example.side, example.side)
        extent = [float(v) for pair in zip(low, high, strict=True) for v in pair]
        # The square root of the density: thin modes stay visible.
        how = {"cmap": DENSITY, "aspect": "auto", "interpolation": "bilinear"}
        ax.imshow(density.sqrt().numpy(), origin="lower", extent=extent, **how)
        ax.plot(*truth.tolist(), "*", **star)
        ax.set(xlabel=names[0], ylabel=names[1], xlim=extent[:2], ylim=extent[2:])
        ax.set(**example.limits)
    ax.legend(loc="upper right", fontsize=9, framealpha=0.9, handletextpad=0.1)


def _reach(ax: Any, made: Task, seed: int) -> None:
    """Spatial SIR has no closed-form posterior: the mean share of cells that are reached, for each θ."""
    side, repeats = 40, 8
    centres = (torch.arange(side) + 0.5) / side
    grid = torch.stack(torch.meshgrid(centres, centres, indexing="xy"), -1).reshape(-1, 1, 2)
    x = made.simulate_compact(grid.expand(-1, repeats, 2).reshape(-1, 2), seed=seed)
    share = 1 - x[:, 0].mean((1, 2)).reshape(side, side, repeats).mean(-1)
    picture = ax.imshow(share, origin="lower", extent=(0, 1, 0, 1), cmap=DENSITY, vmin=0, vmax=1, aspect="auto")
    bar = ax.inset_axes((0.57, 0.9, 0.38, 0.035))
    ax.figure.colorbar(picture, cax=bar, orientation="horizontal", ticks=[0, 1])
    bar.tick_params(labelsize=9, length=0)
    ax.text(0.55, 0.917, "share of cells reached", transform=ax.transAxes, ha="right", va="center", fontsize=9)
    ax.set(xlabel="β", ylabel="γ")
    ax.set_title("no closed-form posterior")


class Example(NamedTuple):
    """How a task is drawn; what is not said suits any task.

    Arguments:
        observations: draws observations.
        truth: the θ whose observation has its posterior drawn; the prior's median unless given.
        seed: of that observation.
        side: points along each parameter.
        limits: of the axes.
        instead: draws something else where there is no exact posterior.
        names: of the parameters along the axes; the task's unless given.
    """

    observations: Callable[[Any, Task, int], None] = _histogram
    truth: tuple[float, ...] = ()
    seed: int = 0
    side: int = 200
    limits: dict[str, tuple[float, float]] = {}  # noqa: RUF012 (never changed)
    instead: Callable[[Any, Task, int], None] | None = None
    names: tuple[str, ...] = ()


EXAMPLES = {
    "slcp": Example(_slcp, (1.3, 1.8), 2, 300),
    "weinberg": Example(_weinberg, (1.0,), 0, 800, names=("$G_f$",)),
    "spatial_sir": Example(_spatial_sir, instead=_reach),
    "lotka_volterra": Example(_lotka_volterra, OSCILLATING, LONG_SERIES, 160),
    "two_moons": Example(_two_moons, (0.2, 0.15), 5, 900, {"xlim": (-0.6, 0.6), "ylim": (-0.6, 0.6)}),
}


def main(folder: str = "demo") -> None:
    """Make the figure, say where it is and what is in it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit("the demo draws with matplotlib: pip install 'equipoise[plots]'")
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "tasks.png"
    tasks_figure().savefig(path, dpi=90)
    print(f"{path}: draws of the tasks and, where they are known, exact posteriors\n")
    print(f"{'task':16} {'parameters':>10} {'x':>14}   E log p(θ|x), the most a posterior can score")
    for name in TASKS:
        made = task(name)
        best = "no closed form"
        if made.has_exact_posterior:
            value, error = made.expected_log_posterior()
            prior = -float(made.prior.entropy())
            best = f"{value:6.3f} ± {error:.3f} (prior {prior:.3f}): {(value - prior) / math.log(2):.2f} bits to learn"
        print(f"{name:16} {made.prior.dim:10} {'×'.join(map(str, made.x_shape)):>14}   {best}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
