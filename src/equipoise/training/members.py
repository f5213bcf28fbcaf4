"""Members: what one network to train is, and the network itself."""

from __future__ import annotations

__all__ = ["Member", "network_of"]

import dataclasses
from typing import Any

from torch import Tensor, nn

from equipoise.methods import Method
from equipoise.networks import Classifier, Embedding, Network, SplineFlow, UserNetwork
from equipoise.priors import Prior


def network_of(
    member: Member,
    prior: Prior,
    body: Embedding,
    loc: Tensor,
    scale: Tensor,
    own: nn.Module | None = None,
) -> Network:
    """The architecture of a member.

    Arguments:
        member: what to train.
        prior: the prior, on the device of training.
        body: what turns x into features.
        loc: what standardises θ: its mean, with shape `(D,)`.
        scale: its deviation, with shape `(D,)`.
        own: a user's module with `log_ratio(theta, x)`, which takes the place of everything else.
    """
    if own is not None:
        return UserNetwork(own, prior, body.x_shape)
    method = member.method
    widths: dict[str, Any] = {} if method.hidden is None else {"hidden": method.hidden}
    if method.network == "classifier":
        return Classifier(prior, body, theta_loc=loc, theta_scale=scale, **widths)
    init = method.init or ("standard" if method.start == "random" else "scaled")
    return SplineFlow(
        prior, body, method.start, init, transforms=method.transforms, theta_loc=loc, theta_scale=scale, **widths
    )


@dataclasses.dataclass(frozen=True)
class Member:
    """One network to train.

    Arguments:
        method: its row of the table, possibly changed with `methods.resolve`.
        seed: of its weights and shuffles.
        data: which of the data sets it reads.
        keep: which of its weights make its posterior, "best" or "last"; None for the settings'. Members that differ in
            this alone are one training.
    """

    method: Method
    seed: int = 0
    data: int = 0
    keep: str | None = None

    def __post_init__(self) -> None:
        if self.keep not in (None, "best", "last"):
            raise ValueError(f"keep is one of best, last, or None for the settings'; got {self.keep!r}")

    @property
    def training(self) -> Member:
        """The member that is trained for it, whatever weights are kept."""
        return dataclasses.replace(self, keep=None)
