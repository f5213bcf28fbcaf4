r"""Autoregressive flows, spline or affine, and their three starts.

An autoregressive flow maps coordinates u of θ to base coordinates through T transforms, each a monotonic map per
coordinate (`univariate`) whose numbers come from a masked network of the earlier coordinates and of the features of x;
the order of the coordinates alternates. Hypernetworks, masks and initialisation are zuko's (`zuko.flows.NSF`, `MAF`);
they are walked here by hand, for a stack of members, without lazy distributions, so that `torch.compile` sees one
graph. A masked weight is set to zero once and never trained, instead of being multiplied by its mask in every step.

What the coordinates and the base are is the *start*:

| start | u | base | log q(θ|x) - log p(θ) |
|---|---|---|---|
| random | (θ - loc)/scale | N(0, I) | log φ(T(u)) + log\|T'(u)\| - Σ log scale - log p(θ) |
| prior | Φ⁻¹(F(θ)) | N(0, I) | log φ(T(u)) + log\|T'(u)\| - log φ(u) |
| prior_base | 10 F(θ) - 5 | U(-5, 5) | log\|T'(u)\| |

The last two are the two schemes of the paper's appendix: with T the identity, q is the prior, and no T can carry
mass out of the prior's support, because u covers exactly the support. (For a box prior, 10 F(θ) - 5 is the affine
map to [-5, 5], the domain of the splines; an affine map would leave it.) In the first, everything outside the support
is leakage.

Near the identity means that the hypernetworks give zeros. The paper's recipe (`init="scaled"`) sets biases to 0 and
divides weights by 5; `init="identity"` sets the last layer to zero, which is the identity exactly: log-ratio 0
everywhere, balance 0.
"""

from __future__ import annotations

__all__ = ["Flow"]

import dataclasses
import math
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from equipoise.choices import INITS, STARTS
from equipoise.priors import Prior
from equipoise.support.errors import NoPriorMap
from equipoise.support.randomness import isolated, undisturbed

from .embeddings import Embedding
from .network import Network
from .spline import BOUND, plain_on_cpu
from .stacked_weights import StackedWeights, dense, selu
from .univariate import UNIVARIATE

#: From this many θ per x on, what a hypernetwork computes from x alone is computed once.
FEW = 4
#: And from this many on, a CPU does it with compiled loops over the θ of an x.
MANY = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Flow(Network):
    """An autoregressive flow q(θ|x).

    Arguments:
        prior: the prior p(θ).
        embedding: what turns x into features.
        start: "random", "prior" or "prior_base" (see the module).
        init: "standard" (zuko's), "scaled" (the paper's recipe) or "identity".
        transforms: T, the number of autoregressive transforms.
        hidden: the widths of each hypernetwork's hidden layers.
        bins: K, the number of bins of a spline.
        univariate: the map of each coordinate: "spline" or "affine".
        theta_loc: for the random start, what is subtracted from θ, with shape `(D,)`.
        theta_scale: for the random start, what θ is then divided by, with shape `(D,)`.
    """

    prior: Prior
    embedding: Embedding
    start: str = "random"
    init_scheme: str = "standard"
    transforms: int = 3
    hidden: tuple[int, ...] = (256,) * 3
    bins: int = 8
    univariate: str = "spline"
    theta_loc: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(1))
    theta_scale: Tensor = dataclasses.field(default_factory=lambda: torch.ones(1))

    kind = "flow"

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise ValueError(f"start is one of {', '.join(STARTS)}, got {self.start!r}")
        if self.init_scheme not in INITS:
            raise ValueError(f"init is one of {', '.join(INITS)}, got {self.init_scheme!r}")
        if self.univariate not in UNIVARIATE:
            raise ValueError(f"univariate is one of {', '.join(UNIVARIATE)}, got {self.univariate!r}")
        if self.start == "prior_base" and self.univariate != "spline":
            raise ValueError("start='prior_base' needs splines, which stay inside [-5, 5]; take start='prior'")
        if self.start != "random" and not self.prior.has_normal_map:
            raise NoPriorMap(
                f"start={self.start!r} needs a prior with cumulative distribution functions, and {self.prior!r} has "
                "none. Use eq.BoxUniform, eq.IndependentPrior or eq.GaussianPrior, or start='random'."
            )

    @property
    def can_leak(self) -> bool:
        """Whether the flow may have mass outside the prior's support."""
        return self.start == "random"

    @cached_property
    def _layers(self) -> list[list[Any]]:
        """The linear layers of zuko's hypernetworks, by transform; for their masks and their initialisation."""
        shape = {"bins": self.bins, "transforms": self.transforms, "hidden_features": self.hidden}
        with undisturbed():
            make = UNIVARIATE[self.univariate].hypernetworks
            flow: Any = make(self.dim, self.embedding.features, **shape, activation=nn.SELU)
        return [[m for m in t.hyper if hasattr(m, "weight")] for t in flow.transform.transforms]

    def init_head(self, seed: int) -> dict[str, Tensor]:
        weights = {}
        with isolated(seed):
            for t, layers in enumerate(self._layers):
                for i, layer in enumerate(layers):
                    layer.reset_parameters()
                    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
                    if hasattr(layer, "mask"):
                        weight = weight * layer.mask
                    if self.init_scheme == "scaled":
                        weight, bias = weight / 5, torch.zeros_like(bias)
                    elif self.init_scheme == "identity" and i == len(layers) - 1:
                        weight, bias = torch.zeros_like(weight), torch.zeros_like(bias)
                    weights[f"flow.{t}.{i}.weight"], weights[f"flow.{t}.{i}.bias"] = weight, bias
        return weights

    def masks(self) -> dict[str, Tensor]:
        layers = {f"flow.{t}.{i}.weight": m for t, hyper in enumerate(self._layers) for i, m in enumerate(hyper)}
        return {name: layer.mask for name, layer in layers.items() if hasattr(layer, "mask")}

    def encode(self, theta: Tensor) -> Tensor:
        """The coordinates u and, last, what to add to log base(T(u)) + log|T'(u)| to get the log-ratio."""
        if self.start == "prior":
            u = self.prior.to_normal(theta).to(theta.dtype)
        elif self.start == "prior_base":
            u = BOUND * (2 * self.prior.to_uniform(theta).to(theta.dtype) - 1)
        else:
            u = (theta - self.theta_loc.to(theta)) / self.theta_scale.to(theta)
        return torch.cat([u, self._offset(u, theta).unsqueeze(-1)], dim=-1)

    def _offset(self, u: Tensor, theta: Tensor) -> Tensor:
        """What to add to log base(T(u)) + log|T'(u)|, with shape `(*,)`, from θ and its coordinates."""
        if self.start == "prior":
            return -_log_normal(u)
        if self.start == "prior_base":
            return torch.zeros_like(u[..., 0])
        log_prior = self.prior.log_prob(theta).to(theta)
        # Outside the support the ratio is not defined; callers who may ask there look at the support first.
        log_prior = torch.where(log_prior.isfinite(), log_prior, 0.0)
        return -self.theta_scale.to(theta).log().expand(self.dim).sum() - log_prior

    def decode(self, u: Tensor) -> Tensor:
        """θ from its coordinates: the inverse of `encode`'s first part."""
        if self.start == "prior":
            return self.prior.from_normal(u)
        if self.start == "prior_base":
            return self.prior.from_uniform((u / BOUND + 1) / 2)
        return u * self.theta_scale.to(u) + self.theta_loc.to(u)

    def _log_base(self, v: Tensor) -> Tensor:
        return v.new_zeros(v.shape[:-1]) if self.start == "prior_base" else _log_normal(v)

    def _shared(self, p: StackedWeights, features: Tensor) -> list[tuple[Tensor | None, Tensor]]:
        """For each transform, the first layer's weights of u and its pre-activation from the features of x."""
        parts: list[tuple[Tensor | None, Tensor]] = []
        for t in range(self.transforms):
            weight, bias = p[f"flow.{t}.0.weight"], p[f"flow.{t}.0.bias"]
            if self.dim == 1:  # one coordinate has no earlier one: its hypernetwork reads x alone
                parts.append((None, dense(features, weight, bias)))
            else:
                w_u, w_x = weight.split([self.dim, self.embedding.features], dim=2)
                parts.append((w_u, dense(features, w_x, bias)))
        return parts

    @property
    def _size(self) -> int:
        """How many numbers describe the map of one coordinate."""
        return UNIVARIATE[self.univariate].size(self.bins)

    def _numbers(self, p: StackedWeights, t: int, u: Tensor, shared: tuple[Tensor | None, Tensor]) -> Tensor:
        """What describes the maps of transform t, `(M, *S, N, D, size)`, at u with shape `(M, *S, N, D)`."""
        w_u, from_x = shared
        h = from_x.view(from_x.shape[0], *[1] * (u.ndim - 3), *from_x.shape[1:])
        if w_u is not None:
            h = h + dense(u, w_u)
        for i in range(1, len(self.hidden) + 1):
            h = dense(F.selu(h), p[f"flow.{t}.{i}.weight"], p[f"flow.{t}.{i}.bias"])
        return h.unflatten(-1, (self.dim, self._size))

    def ratio(self, p: StackedWeights, code: Tensor, features: Tensor) -> Tensor:
        u, offset = code[..., : self.dim], code[..., self.dim]
        u = u.expand(features.shape[0], *u.shape[1:])
        if u[0, ..., 0].numel() >= FEW * features.shape[1] and not torch.is_grad_enabled():
            u, log_slope = self._carried(p, u, features)
            return offset + log_slope + self._log_base(u)
        for t, shared in enumerate(self._shared(p, features)):
            u, log_slopes = UNIVARIATE[self.univariate].forward(u, self._numbers(p, t, u, shared), self.bins)
            offset = offset + log_slopes.sum(-1)
        return offset + self._log_base(u)

    @cached_property
    def packing(self) -> Any:
        """Where the weights of splines lie, as `flow_gradient` needs it."""
        from .flow_gradient import Packing

        starts = dict(zip(self.layout.shapes, accumulate(self.layout.padded, initial=0), strict=False))
        names = [[f"flow.{t}.{i}" for i in range(len(self.hidden) + 1)] for t in range(self.transforms)]
        places = [
            [(starts[f"{n}.weight"], starts[f"{n}.bias"], *self.layout.shapes[f"{n}.weight"]) for n in hyper]
            for hyper in names
        ]
        sizes = self.dim, self.embedding.features, self.bins, self.start != "prior_base"
        return Packing.of(sizes, places, self._stages(torch.device("cpu")), self.layout.trainable.numpy())

    def sample(self, p: StackedWeights, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """θ and its log-ratio from base noise.

        Arguments:
            p: the weights.
            features: of x, with shape `(M, N, C)`.
            noise: from `base_noise`, with shape `(M, *S, N, D)`.

        Returns:
            θ with shape `(M, *S, N, D)` and log q(θ|x) - log p(θ) with shape `(M, *S, N)`; for a flow that can leak
            the ratio is taken as if log p were 0 outside the support.
        """
        v, log_slopes = self._carried(p, noise, features, inverse=True)
        theta = self.decode(v)
        return theta, self._log_base(noise) + log_slopes + self._offset(v, theta)

    def _carried(self, p: StackedWeights, v: Tensor, features: Tensor, inverse: bool = False) -> tuple[Tensor, Tensor]:
        """All transforms, or their inverses, at v with shape `(M, *S, N, D)`; and the log|T'| in all, `(M, *S, N)`."""
        steps = list(enumerate(self._shared(p, features)))
        steps = steps[::-1] if inverse else steps
        plain = plain_on_cpu(v, features) and v.dtype == torch.float32 and not torch.is_grad_enabled()
        if self.univariate == "spline" and plain and v[0, ..., 0].numel() >= MANY * features.shape[1]:
            from .flow_kernels import SortedTransforms, carried

            stages, names = self._stages(v.device), [f"flow.{t}" for t, _ in steps]
            of_each = [stages[t] for t, _ in steps], [shared for _, shared in steps]
            return carried(SortedTransforms.of(p, names, *of_each, self._size), v, self.bins, inverse=inverse)
        log_slopes = v.new_zeros(v.shape[:-1])
        for t, shared in steps:
            v, log_slope = self._walked(p, t, v, shared, inverse)
            log_slopes = log_slopes + log_slope
        return v, log_slopes

    @cached_property
    def _stages_by_device(self) -> dict[torch.device, list[tuple[list[int], list[list[Tensor]]]]]:
        return {}

    def _stages(self, device: torch.device) -> list[tuple[list[int], list[list[Tensor]]]]:
        """For each transform, the order of its coordinates, and the units of each hidden layer by what they see.

        The masks are nested: a unit sees the first k coordinates of the order for some k < D, and x. The k-th
        coordinate's numbers are read from the units that see at most k. So the coordinates can be solved one after the
        other while every unit is computed once, and those with k = 0 once for all draws of an x.
        """
        if device in self._stages_by_device:
            return self._stages_by_device[device]
        stages = []
        for layers in self._layers:
            sees = torch.eye(self.dim, dtype=torch.float32)
            counts: list[Tensor] = []
            for layer in layers:
                mask = getattr(layer, "mask", None)
                if mask is None:  # one coordinate has no earlier one to see
                    sees = torch.zeros(layer.out_features, self.dim)
                else:
                    mask = mask if counts else mask[:, : self.dim]
                    sees = (mask.float() @ sees > 0).float()
                counts.append(sees.sum(1))
            order = counts.pop()[:: self._size]
            groups = [[(count == k).nonzero().squeeze(1).to(device) for k in range(self.dim)] for count in counts]
            stages.append((order.argsort().tolist(), groups))
        self._stages_by_device[device] = stages
        return stages

    def _walked(
        self, p: StackedWeights, t: int, v: Tensor, shared: tuple[Tensor | None, Tensor], inverse: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Transform t or its inverse at v with shape `(M, *S, N, D)`; and log|T'|, `(M, *S, N)`.

        Coordinate by coordinate, as `_stages` says. `fixed` are the activations of the units that see x alone, with
        shape `(M, N, ·)`; `moving` of those that see coordinates as well, with shape `(M, *S, N, ·)`. With D = 2 and
        many draws per x this is a quarter of the arithmetic of a masked network, and an eighth of two passes of one.
        """
        (order, groups), (w_u, from_x), size = self._stages(v.device)[t], shared, self._size
        row = UNIVARIATE[self.univariate]
        apply = row.inverse if inverse else row.forward
        depth = len(self.hidden)
        fixed: list[Tensor] = []
        moving = [v.new_zeros(*v.shape[:-1], 0)] * depth
        seen: list[Tensor] = []  # coordinates of u, which is the transform's input or what its inverse solves for
        solved: list[Tensor] = []
        log_slopes = v.new_zeros(v.shape[:-1])

        def spread(h: Tensor) -> Tensor:
            return h.view(h.shape[0], *[1] * (v.ndim - 3), *h.shape[1:])

        def added(h: Tensor, more: Tensor) -> Tensor:
            return h + more if torch.is_grad_enabled() else h.add_(more)

        for k, coordinate in enumerate(order):
            rows = groups[0][k]
            h = from_x[..., rows]
            if k > 0:
                assert w_u is not None
                first = torch.stack([w_u[:, rows, j] for j in order[:k]], -1)
                h = added(dense(torch.stack(seen, -1), first), spread(h))
            for i in range(1, depth + 1):
                units = torch.cat(groups[i - 1][1 : k + 1]) if k else groups[i - 1][0]
                a = selu(h)
                if k == 0:
                    fixed.append(a)
                else:
                    moving[i - 1] = torch.cat([moving[i - 1], a], -1) if k > 1 else a
                rows = groups[i][k] if i < depth else torch.arange(size, device=v.device) + coordinate * size
                weight, bias = p[f"flow.{t}.{i}.weight"][:, rows], p[f"flow.{t}.{i}.bias"][:, rows]
                h = dense(fixed[i - 1], weight[..., groups[i - 1][0]], bias)
                if k > 0:
                    h = added(dense(moving[i - 1], weight[..., units]), spread(h))
            found, log_slope = apply(v[..., coordinate], spread(h) if k == 0 else h, self.bins)
            seen.append(found if inverse else v[..., coordinate])
            solved.append(found)
            log_slopes = log_slopes + log_slope
        return torch.stack([solved[order.index(j)] for j in range(self.dim)], -1), log_slopes

    def base_noise(self, uniform: Tensor) -> Tensor:
        """Draws of the base distribution from draws of U(0, 1)^D."""
        if self.start == "prior_base":
            return BOUND * (2 * uniform - 1)
        tiny = torch.finfo(uniform.dtype).eps / 2
        return torch.special.ndtri(uniform.clamp(tiny, 1 - tiny))

    def spec(self) -> dict[str, Any]:
        shape: dict[str, Any] = {"transforms": self.transforms, "hidden": list(self.hidden), "bins": self.bins}
        if self.univariate != "spline":  # which is what files without this entry mean
            shape["univariate"] = self.univariate
        return self._spec(start=self.start, init=self.init_scheme, **shape)


def _log_normal(z: Tensor) -> Tensor:
    """log φ(z) of a standard normal vector with shape `(*, D)`; shape `(*,)`."""
    return -0.5 * z.square().sum(-1) - 0.5 * z.shape[-1] * math.log(2 * math.pi)
