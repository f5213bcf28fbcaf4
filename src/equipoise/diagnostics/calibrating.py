r"""Make a posterior conservative: the temperature that pairs nobody trained on certify.

`calibration` has the procedure, from ranks at every temperature; here are the points behind these ranks. For each pair
they come from a mixture g of known densities, whose weights serve every t (`tempered_ranks`):

- draws of q itself, where q can be drawn from and is normalised;
- draws of the prior;
- Gaussians on the way from one to the other. Where q and p are Gaussian with precisions Λ and I (in coordinates in
  which the prior is N(0, I); else with the prior's moments), q_s is Gaussian with the precision sΛ + (1 - s)I, and its
  mean follows. The moments of q are those of its draws, or of weighted points (`posteriors.engine`) where it has none.

g is known exactly whatever q is, so that the weights are right for posteriors that are not Gaussian as well. How good
they are is seen in their effective number, which enters the certificate.

Temperatures near 1 need none of the Gaussians: from draws of q in D dimensions, the effective share of a Gaussian q_t
is (√(2t - 1)/t)^D, 0.36 for t = 0.7 and D = 10. `calibrate_out_of_fold` looks there first, and at the others where
nothing is certified.
"""

from __future__ import annotations

__all__ = ["calibrate", "calibrate_out_of_fold"]

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.posteriors import Posterior, draw_points, warn_if_seen, weighted_points
from equipoise.posteriors.cells import fits_cells
from equipoise.posteriors.proposals import GaussianProposal
from equipoise.posteriors.tempering import Observed, Untempered
from equipoise.priors.agreement import warn_unless_drawn_from
from equipoise.support.checks import seed_number, true_or_false
from equipoise.support.devices import in_parallel
from equipoise.support.errors import warn
from equipoise.support.progress import Progress
from equipoise.support.randomness import generator, integer, sequence

from .bands import GRID
from .calibration import FEWEST_PAIRS, TEMPERATURES, Calibration, choose_temperature
from .certificates import CERTIFICATE_LEVELS, certificate_p_value, check_options
from .coverage import coverage_curve
from .input_checks import checked_pairs, warn_if_unlike_training
from .packages import as_surrogate
from .surrogates import Surrogate, seeded
from .tempered_posterior import TemperedPosterior, known_of, prior_of, untempered_of
from .tempered_ranks import TemperedRanks, tempered_ranks
from .verdicts import overconfidence_p_value


class Points(NamedTuple):
    """Points of a pair: draws of q, of the prior, and of each Gaussian on the way; where these are."""

    own: int
    prior: int
    each: int = 0
    ladder: tuple[float, ...] = ()

    @property
    def number(self) -> int:
        """Of all points."""
        return self.own + self.prior + self.each * len(self.ladder)


#: For every temperature, and for those from `NEAR_ONE` on.
EVERYWHERE, NEAR = Points(384, 128, 96, (0.02, 0.045, 0.1, 0.2, 0.4, 0.7, 1.0)), Points(256, 64)
NEAR_ONE = 0.5
#: So many out-of-fold pairs choose a temperature at most; more would not move it.
MOST_PAIRS = 8192
#: Points of all pairs that go together, on a CPU and on a GPU.
AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 20}


def calibrate(
    posterior: Any,
    theta: Any,
    x: Any,
    prior: Any = None,
    alpha: float = 0.05,
    delta: float = 0.02,
    seed: int = 0,
    *,
    progress: bool | None = None,
) -> Any:
    """Temper a posterior towards the prior until its coverage is certified, on pairs nobody trained on.

    With probability 1 - alpha over the pairs, the coverage of a certified result is at least level - min(delta,
    (1 - level)/2) at the levels 0.01, …, 0.99: on average over pairs of the prior and the simulator, not for each
    observation. If nothing is certified, a warning says so and how many pairs would do; the result then is the largest
    temperature that does not look overconfident (p ≥ ½), and its `calibration.certified` is False.

    Arguments:
        posterior: anything that `diagnose` accepts. A tempered `equipoise.Posterior` is calibrated anew, from its
            networks.
        theta: parameters drawn from the prior, with shape `(n, D)`, n ≥ 50, better 2,000; neither used in training, nor
            to choose between posteriors.
        x: what the simulator gave for them, with shape `(n, *x_shape)`.
        prior: for posteriors that do not know theirs, as in `diagnose`.
        alpha: the probability of a false certificate.
        delta: how far below its level the coverage may lie, at most.
        seed: of everything random here.
        progress: False for no progress bar.

    Returns:
        `posterior.tempered(t)` with its `calibration`; for posteriors of other packages an object with
        `sample((n,), x)`, `log_prob(theta, x)`, `prior`, `temperature` and `calibration`.
    """
    check_options(alpha, delta)
    seed_number("seed", seed)
    if progress is not None:
        true_or_false("progress", progress)
    ours = isinstance(posterior, Posterior)
    if ours:
        posterior = posterior._with(1.0, None)
    surrogate = as_surrogate(posterior, prior)
    prior_of(surrogate)
    theta, x = checked_pairs(theta, x, surrogate)
    warn_if_unlike_training(x, surrogate)
    warn_if_seen(getattr(posterior, "record", {}).get("memory"), theta, x)
    warn_unless_drawn_from(surrogate.prior, theta)
    rank, effective = _ranks(posterior, surrogate, theta, x, seed, progress)
    found = choose_temperature(rank, alpha=alpha, delta=delta, effective=effective)
    found = _never_the_prior(found, TEMPERATURES, rank, effective)
    if not found.certified:
        warn(f"the posterior is not certified conservative: {found.message}")
    if ours:
        return posterior._with(found.t, found)
    return TemperedPosterior(posterior, found.t, tuple(x.shape[1:]), surrogate.prior, found)


def calibrate_out_of_fold(
    posterior: Posterior,
    parts: Sequence[tuple[Posterior, Tensor, Tensor]],
    seed: int = 0,
    *,
    progress: bool | None = None,
) -> Posterior:
    """Temper a cross-fitted mixture by what pairs say of the members that never trained on them.

    The result is an observation and no guarantee: pairs judge mixtures of some members, and the posterior is that of
    all (`calibration`).

    Arguments:
        posterior: the mixture of all members.
        parts: members that share a fold, as a posterior, with the θ and x of that fold.
        seed: of everything random here.
        progress: False for no progress bar.

    Returns:
        The posterior at the largest temperature that passes certificate and p-value, with its `calibration`.
    """
    posterior = posterior._with(1.0, None)
    near = TEMPERATURES[TEMPERATURES >= NEAR_ONE - 1e-9]
    stages = [(near, NEAR), (TEMPERATURES, EVERYWHERE)] if posterior.kind == "flow" else [(TEMPERATURES, EVERYWHERE)]
    for temperatures, points in stages:
        ranks = []
        for k, (judged, theta, x) in enumerate(parts):
            label = f"calibrating, fold {k + 1} of {len(parts)}"
            stream = integer(seed, "fold", k)
            s = as_surrogate(judged, None)
            ranks.append(_ranks(judged, s, theta, x, stream, progress, temperatures, points, label))
        rank, effective = (np.concatenate(values, 1) for values in zip(*ranks, strict=True))
        first = float(temperatures[0])
        found = choose_temperature(rank, temperatures, rule="observed", starts=(first,), effective=effective)
        if found.t > first and (found.certified or rank.shape[1] < FEWEST_PAIRS):
            break
    found = _never_the_prior(found, temperatures, rank, effective)
    if posterior.log_weights is not None:
        found = dataclasses.replace(found, weights=tuple(posterior.log_weights.exp().tolist()))
    return posterior._with(found.t, found)


def _never_the_prior(
    found: Calibration, temperatures: np.ndarray, rank: np.ndarray, effective: np.ndarray
) -> Calibration:
    """A temperature above 0: the lowest, where the posterior looks overconfident at every one of them."""
    if found.t > 0:
        return found
    lowest = float(temperatures[0])
    return dataclasses.replace(
        found,
        t=lowest,
        p_over=float(overconfidence_p_value(coverage_curve(rank[:1], GRID), rank.shape[1])[0]),
        p_certificate=float(certificate_p_value(rank[:1], delta=found.delta, effective=effective[:1])[0]),
        after=tuple(coverage_curve(rank[0], CERTIFICATE_LEVELS).tolist()),
        message=found.message.replace("replaced by the prior (t = 0)", f"tempered to t = {lowest:g}")
        + ", and it looks overconfident at every temperature",
    )


@torch.no_grad()
def _ranks(
    posterior: Any,
    s: Surrogate,
    theta: Tensor,
    x: Tensor,
    seed: int,
    progress: bool | None,
    temperatures: np.ndarray = TEMPERATURES,
    numbers: Points = EVERYWHERE,
    label: str = "calibrating",
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks and effective numbers of points at some temperatures, each with shape `(T, n)`."""
    dtype = s.dtype or torch.float32
    theta = theta.to(s.device, dtype)
    ours = isinstance(posterior, Posterior)
    first = x[:1].to(s.device)
    s.look(theta[:1], first.to(dtype) if first.is_floating_point() else first)
    q = posterior.untempered() if ours else untempered_of(s)
    size = s.pairs_at_once or max(1, AT_ONCE.get(s.device.type, AT_ONCE["cpu"]) // numbers.number)

    @torch.no_grad()
    def judged(low: int) -> TemperedRanks:
        here = x[low : low + size].to(s.device)
        here = here.to(dtype) if here.is_floating_point() else here
        known = posterior.observed(here) if ours else known_of(s, here)
        stream = generator(seed, "calibrate", low, device=s.device)
        coins = np.random.default_rng(sequence(seed, "calibrate", "ties", low))
        return ranks_of(q, known, theta[low : low + size], stream, coins, None if ours else s, temperatures, numbers)

    parts: list[TemperedRanks] = []
    with Progress(label, total=len(theta), show=progress) as bar:
        batches = range(0, len(theta), size)
        for part in in_parallel(judged, batches) if s.in_threads else map(judged, batches):
            parts.append(part)
            bar.advance(part.rank.shape[1], "pairs")
    return np.concatenate([p.rank for p in parts], 1), np.concatenate([p.effective for p in parts], 1)


def ranks_of(
    q: Untempered,
    x: Observed,
    theta: Tensor,
    stream: torch.Generator,
    coins: np.random.Generator,
    s: Surrogate | None = None,
    temperatures: np.ndarray = TEMPERATURES,
    numbers: Points = EVERYWHERE,
) -> TemperedRanks:
    """Ranks of θ*, with shape `(B, D)`, at some temperatures.

    Arguments:
        q: the posterior.
        x: what it knows of the observations.
        theta: θ*.
        stream, coins: of the random numbers, torch's and NumPy's.
        s: where draws are taken from if q has none that are normalised.
        temperatures: with shape `(T,)`.
        numbers: of points.
    """
    prior, (batch, dim) = q.prior, theta.shape
    mapped = prior.has_normal_map
    with seeded(stream):
        broad = prior.sample((numbers.prior, batch)).to(theta)
    own, own_ratio, log_z, moments = _own(q, x, broad, stream, s, numbers)
    gaussians = []
    if moments is not None:
        gaussians = _ladder(*moments, prior.to_normal(broad) if mapped else broad, mapped, numbers.ladder)
    parts = [broad] if own is None else [own, broad]
    for k, gaussian in enumerate(gaussians):
        number = numbers.each + (numbers.own if own is None and k == len(gaussians) - 1 else 0)
        uniforms = torch.rand(number, batch, dim + 1, generator=stream, device=theta.device, dtype=torch.float64)
        z = gaussian.draw(uniforms)[0]
        if not mapped:  # the prior's part, of which the proposal knows the density alone
            with seeded(stream):
                fresh = prior.sample((number, batch)).to(z)
            z = torch.where(uniforms[..., dim:] < 0.9, z, fresh)
        parts.append((prior.from_normal(z.to(theta)) if mapped else z).to(theta))
    counts = [len(p) for p in parts]
    points = torch.cat([theta.unsqueeze(0), *parts])
    log_prior = prior.log_prob(points).to(theta)
    inside = log_prior.isfinite()
    at = torch.where(inside.unsqueeze(-1), points, broad[:1])
    if own_ratio is None:
        ratio = (q.at(at, x) - log_z).double()
    else:  # which need not be evaluated again
        new = torch.cat([at[:1], at[1 + len(own_ratio) :]])
        first, rest = (q.at(new, x) - log_z).double().split([1, len(new) - 1])
        ratio = torch.cat([first, own_ratio.double(), rest])
    terms = []
    if gaussians:
        z = prior.to_normal(at) if mapped else at
        density = -0.5 * z.double().square().sum(-1) if mapped else prior.log_prob(at).double()
        terms = [g.log_over_prior(z.unsqueeze(0), density.unsqueeze(0), mapped)[0] for g in gaussians]
    terms = [torch.zeros_like(ratio), *terms] if own is None else [ratio, torch.zeros_like(ratio), *terms]
    log_g = torch.stack([term + math.log(n) for term, n in zip(terms, counts, strict=True)]).logsumexp(0)
    log_p = log_prior.double()

    def arrays(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Of the points, `(B, L)`, and of θ*, `(B,)`."""
        values = torch.where(inside, values, -math.inf).cpu()
        return values[1:].T.numpy(), values[0].numpy()

    (q_draws, q_true), (p_draws, p_true), proposal = arrays(ratio + log_p), arrays(log_p), arrays(log_g + log_p)
    return tempered_ranks(q_draws, p_draws, q_true, p_true, temperatures, coins, log_proposal=proposal)


def _own(
    q: Untempered, x: Observed, broad: Tensor, stream: torch.Generator, s: Surrogate | None, numbers: Points
) -> tuple[Tensor | None, Tensor | None, Tensor, tuple[Tensor, Tensor] | None]:
    """Draws of q, or None; their normalised log-ratios, where they are known; what normalises q's, `(B,)`; its mean
    `(B, D)` and covariance `(B, D, D)`, or None where no Gaussians are wanted.
    """
    prior, log_z = q.prior, broad.new_zeros(broad.shape[1])
    own, own_ratio, rows, weights = None, None, None, None
    if q.draw is not None:
        # Draws of their own: proposals learnt from the points that they weight would flatten the largest weights.
        own, own_ratio = q.rated(numbers.own, x, stream)
        if not numbers.ladder:
            return own, own_ratio, log_z, None
        rows = q.draw(numbers.own, x, stream)
    elif s is not None and s.kind != "classifier":  # draws of a density that is not normalised: for its moments alone
        rows = s.draw(numbers.own, x.x, stream)[0].flatten(0, 1).to(broad)
    else:
        found = weighted_points(q.log_ratio, x, prior, broad, quick=True)
        rows, weights, log_z = found.theta[0], found.log_w[0].double().softmax(0), found.log_z[0]
        if fits_cells(prior):
            seed = int(torch.randint(2**62, (), device=stream.device, generator=stream))
            own = draw_points(q.log_ratio, x, prior, numbers.own, stream, seed, broad)[0][0]
    z = (prior.to_normal(rows) if prior.has_normal_map else rows).double()
    weights = torch.full(z.shape[:2], 1 / len(z), dtype=z.dtype, device=z.device) if weights is None else weights
    mean = torch.einsum("nb,nbi->bi", weights, z)
    centred = z - mean
    return own, own_ratio, log_z, (mean, torch.einsum("nb,nbi,nbj->bij", weights, centred, centred))


def _ladder(
    mean: Tensor, covariance: Tensor, z_prior: Tensor, mapped: bool, steps: Sequence[float]
) -> list[GaussianProposal]:
    """Gaussians from the prior to N(mean, covariance), in the coordinates z: one for each of `steps`."""
    if mapped:
        return [GaussianProposal.between(mean, covariance, s) for s in steps]
    flat = z_prior.double().flatten(0, 1)
    dim = mean.shape[-1]
    spread = torch.cov(flat.T).reshape(dim, dim) + 1e-18 * torch.eye(dim, dtype=flat.dtype, device=flat.device)
    return [GaussianProposal.between(mean, covariance, s, flat.mean(0), torch.linalg.inv(spread)) for s in steps]
