"""From a trained stack to one posterior per member, with warnings for members that diverged or learnt nothing."""

from __future__ import annotations

__all__ = ["posterior_of", "warn_of_divergence", "warn_of_idle_members"]

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from equipoise.losses import Objective, prior_loss
from equipoise.networks import Network
from equipoise.posteriors import Posterior
from equipoise.support.errors import warn

from .loop import Trained
from .members import Member
from .settings import Settings
from .state import HISTORY

#: A member whose best loss is less than this many nats below the prior's has learnt nothing.
LEAST_GAIN = 0.02


def posterior_of(
    member: Member,
    net: Network,
    trained: Trained,
    k: int,
    settings: Settings,
    device: torch.device,
    data: dict[str, Any],
) -> Posterior | None:
    """The posterior of member k of a trained stack, or None where it never had a finite loss; `data` is what its record
    keeps of the pairs.
    """
    state = trained.state
    if state.best_epoch[k] < 0:
        return None
    keep = member.keep or settings.keep
    weights = state.judged if keep == "last" and not state.diverged[k] else state.best_weights
    stack = net.layout.cut(weights[k : k + 1].to(device))
    record = {
        "method": dataclasses.asdict(member.method),
        "seeds": [member.seed],
        "settings": dataclasses.asdict(settings) | {"keep": keep},
        "torch": torch.__version__,
        "trained_on": str(device),
        **data,
    }
    if member.fold is not None:
        record["fold"] = [member.fold]
    return Posterior(net, {name: w.clone() for name, w in stack.items()}, _history(trained, k), record)


def _history(trained: Trained, k: int) -> xr.Dataset:
    """What happened to member k of a stack, over `epoch` and a `member` axis of one."""
    state = trained.state
    recorded = dict(zip(HISTORY, state.history[k].double().numpy(), strict=True))
    epochs = int(np.isfinite(recorded["learning_rate"]).sum())
    per_epoch = recorded | {"seconds": trained.epoch_seconds.numpy()}
    per_member = {"best_epoch": state.best_epoch, "best_loss": state.best_loss.double(), "diverged": state.diverged}
    history = xr.Dataset(
        {name: (("epoch", "member"), values[:epochs, None].copy()) for name, values in per_epoch.items()}
        | {name: ("member", value[k : k + 1].numpy()) for name, value in per_member.items()}
        | {"epochs": ("member", [epochs])},
        coords={"epoch": range(epochs), "member": ["0"]},
    )
    history.attrs |= {
        "compiled": int(trained.compiled),
        "stack_seconds": trained.seconds,
        "stack_members": len(state.weights),
    }
    return history


def warn_of_divergence(trained: Trained, members: Sequence[Member], wanted: Sequence[Member]) -> None:
    """Warn which members diverged, by their place among those that were asked for."""
    state = trained.state
    lost = {members[k]: bool(state.best_epoch[k] < 0) for k in state.diverged.nonzero().flatten().tolist()}
    if not lost:
        return
    gone, saved = (
        ", ".join(str(i) for i, m in enumerate(wanted) if lost.get(m.training) is which) for which in (True, False)
    )
    parts = [f"member(s) {saved} met a loss that was not finite and keep their best weights before it"] * bool(saved)
    parts += [f"member(s) {gone} never had a finite loss and are left out"] * bool(gone)
    warn(f"training {'/'.join(sorted({m.method.name for m in lost}))}: {'; '.join(parts)}")


def warn_of_idle_members(posteriors: Sequence[Posterior], objective: Objective, settings: Settings) -> None:
    """Warn if members stopped at the prior, which is conservative and useless.

    Members that were cut short by the number of epochs do not count.
    """
    prior, idle = prior_loss(objective), 0
    for history in (p.history for p in posteriors):
        assert history is not None
        stopped = int(history["epochs"][0]) < settings.epochs and not bool(history["diverged"][0])
        idle += stopped and float(history["best_loss"][0]) > prior - LEAST_GAIN
    if idle:
        weaker = "a smaller balance_strength, " if objective.balanced else ""
        warn(
            f"{idle} of {len(posteriors)} members stopped having learnt next to nothing: the best validation loss is "
            f"within {LEAST_GAIN} of the prior's, {prior:.3f}. If x says anything about theta, try "
            f"settings=eq.Settings(early_stop=False) or a larger patience, {weaker}more simulations, or another "
            "embedding",
        )
