"""The one call: everything about a posterior that pairs (θ*, x*) can tell."""

from __future__ import annotations

__all__ = ["diagnose"]

from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.networks import matmul_precision
from equipoise.posteriors import Posterior, warn_if_seen
from equipoise.priors.agreement import warn_unless_drawn_from
from equipoise.support.checks import one_of, seed_number, true_or_false, whole_number
from equipoise.support.devices import in_parallel
from equipoise.support.errors import warn
from equipoise.support.progress import Progress
from equipoise.support.randomness import generator
from equipoise.support.words import shown
from equipoise.version import __version__

from .bands import Array
from .certificates import check_options, uncertifiable
from .dataset import ExactLogProb, Findings, as_dataset, exact_values
from .input_checks import check_mixture, checked_pairs, unnormalised, warn_if_unlike_training
from .normalizers import FROM_FEW, FROM_MORE
from .packages import as_surrogate
from .pair_statistics import on_cells, pair_statistics, shares_points
from .point_statistics import Batch, PairStatistics
from .proposed_points import CELLS_UP_TO
from .recipes import RECIPES, RELEASED_BINS, TOLERANCES
from .surrogates import Surrogate, tarp_references

#: Bytes that one evaluation of one member is taken to need: a few activations of a layer of 256, or the knots of a
#: spline.
EVALUATION_BYTES = 8192
#: Bytes that are held of an evaluation of a flow on a CPU, once it is made: points, densities and what ranks need.
VALUE_BYTES = 1024
#: Evaluations of a classifier in one call on a CPU: as many as leave a network's activations in its cache. A flow cuts
#: its points itself.
AT_ONCE = 1 << 13
#: The cells of one posterior take as much memory as this many evaluations.
CELLS_AS_POINTS = 512
#: What an observation is taken to need beyond its own size while it is embedded (channels of a convolution).
EMBEDDING_FACTOR = 64
#: The default memory bound, in bytes, at most.
MEMORY = {"cpu": 1 << 28, "cuda": 1 << 34}
#: Batches that threads have at once, at most: a number, so that any number of threads cuts the same batches.
BATCHES = 8
#: Draws of a pair and member unless said otherwise, and points of a classifier: as few as cost little power, and as
#: many as interpolation takes.
DRAWS, POINTS = 256, 1000
#: Below this many effective points a rank is little better than a coin toss.
TRUSTED_POINTS = 10
#: More draws than this of a pair resolve nothing that the pairs do.
MOST_SAMPLES = 1_000_000
#: Bytes that a bound on memory may be: with less, each pair is cut to pieces for hours.
LEAST_MEMORY, MOST_MEMORY = 1 << 16, 1 << 50


def diagnose(
    posterior: Any,
    theta: Any,
    x: Any,
    prior: Any = None,
    exact_log_prob: ExactLogProb | ArrayLike | Tensor | None = None,
    seed: int = 0,
    *,
    samples: int | None = None,
    levels: ArrayLike | None = None,
    report_levels: ArrayLike = (0.68, 0.9, 0.95),
    alpha: float = 0.05,
    delta: float = 0.02,
    tolerance: str = "level",
    recipe: str = "equipoise",
    test: tuple[Any, Any] | None = None,
    mixture: bool = True,
    tf32: bool = True,
    memory: int | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Coverage with bands and a verdict, information, balance, SBC and TARP, for every member and their mixture.

    Arguments:
        posterior: an `equipoise.Posterior` (of a tempered one, the members are the networks as they were trained, and
            the mixture is what is tempered), or anything with `sample((n,), x)` and `log_prob(theta, x)` (sbi's), or a
            function from x to a distribution (zuko's and lampe's flows), or a function from (theta, x) to the
            log-ratio (lampe's NRE).
        theta: parameters drawn from the prior, with shape `(n, D)`, n ≥ 50; not those of training.
        x: what the simulator gave for them, with shape `(n, *x_shape)`.
        prior: for posteriors that do not know theirs. Without one, what needs it is NaN. For an `equipoise.Posterior`,
            which knows its own, another one is an error.
        exact_log_prob: the exact log p(θ*|x*) where known: a function of (theta, x), such as `task.log_posterior`, or
            its values with shape `(n,)`.
        seed: of everything random here.
        samples: draws (flows and others that can be drawn from) or final points (classifiers, about twice as many
            evaluations) for each pair; None for 256 draws or 1000 points. Flows and their mixture share the draws.
            Ranks are exactly uniform under
            calibration for any number; 64 leave the standard error of the coverage AUC within a few per cent of its
            floor, 1000 resolve levels to a thousandth. From 512 on, classifiers with one or two parameters are
            interpolated instead, from about 2,000 evaluations.
        levels: where the curves are read; 0, 0.01, …, 1 unless given.
        report_levels: of the central intervals of single parameters, and of the joint regions, whose coverage is
            given in the summary.
        alpha: the rate of false verdicts, and of curves that leave their bands.
        delta: how far below its level a certified coverage may lie, at most.
        tolerance: "level" for min(delta, (1 - level)/2), with an allowance for the effective number of points behind a
            rank; "constant" for `delta` at every level and ranks at face value, as stored experiments are judged.
        recipe: "equipoise", or "released" for ranks as the code of the paper computes them (strict inequality, leaked
            draws kept, a fixed grid of 100 cells a side for classifiers).
        test: a larger set (theta, x) over which the members' balancing error and raw nominal log posterior are taken;
            they need no ranks.
        mixture: False for the members alone: for networks that are to be compared, not averaged (other methods, other
            simulations). It is cheaper, and each classifier then has points of its own.
        tf32: on a GPU, multiply matrices in TF32, as training does; it moves a log density by about 0.001.
        memory: a bound in bytes on what is held at once; 256 MiB on a CPU, and a quarter of a GPU's memory up to 16
            GiB, unless given.
        progress: False for no progress bar.

    Returns:
        A dataset with the dimensions member ("0", "1", …, "mixture"), level, pair and parameter (by name, if the
        prior has names). `eq.summary` puts the essence into words, and `eq.plots.summary` into a figure;
        `ds[name].attrs["long_name"]` says what a variable is, and `ds.attrs["notes"]` what could not be computed and
        why.

    Example:
        >>> prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
        >>> def posterior(x):  # x = θ + N(0, 1): the exact posterior is N(x/2, 1/2)
        ...     return torch.distributions.MultivariateNormal(x / 2, torch.eye(2) / 2)
        >>> theta = prior.sample((300,))
        >>> ds = diagnose(posterior, theta, theta + torch.randn(300, 2), prior=prior, samples=100)
        >>> ds.coverage.dims, str(ds.verdict.sel(member="mixture").values)
        (('member', 'level'), 'inconclusive')
    """
    _check_options(seed, samples, alpha, delta, tolerance, recipe, memory, progress)
    true_or_false("mixture", mixture)
    true_or_false("tf32", tf32)
    grid = _levels(np.linspace(0, 1, 101) if levels is None else levels, "levels")
    reported = _levels(report_levels, "report_levels")
    surrogate = as_surrogate(posterior, prior)
    theta, x = checked_pairs(theta, x, surrogate)
    if test is not None:
        if not isinstance(test, tuple | list) or len(test) != 2:
            raise TypeError(f"test is a pair (theta, x), got {shown(test)}")
        test = checked_pairs(*test, surrogate, "test: ")
    if samples is None:
        samples = DRAWS if surrogate.kind != "classifier" and recipe == "equipoise" else POINTS
    known = getattr(posterior, "record", {}).get("memory")
    warned = (warn_if_unlike_training(x, surrogate), warn_if_seen(known, theta, x))
    notes = [note for note in (*warned, warn_unless_drawn_from(surrogate.prior, theta)) if note]

    exact = exact_values(exact_log_prob, theta, x)
    with matmul_precision(tf32):
        found = _over_pairs(surrogate, theta, x, samples, recipe, seed, mixture, memory, progress)
        ratios = [found[name] for name in ("joint", "marginal", "log_prob_raw")]
        if test is not None:
            ratios = _test_ratios(surrogate, *test, mixture, memory, progress, notes)
    if surrogate.prior is None:
        log_prior = np.full(len(theta), np.nan)
        notes.append("no prior was given: the gain over it, information kept, balance and leakage need one")
    else:
        log_prior = surrogate.prior.log_prob(theta.to(surrogate.prior.device)).double().cpu().numpy()
    if not (surrogate.normalised or surrogate.has_log_prob):
        # Ranks compare densities at one x; all else would be off by the unknown normaliser.
        found |= {name: np.full_like(found[name], np.nan) for name in ("log_prob", "entropy")}
        ratios = [np.full_like(values, np.nan) for values in ratios]
        notes.append(unnormalised(posterior))
    members = [*map(str, range(surrogate.n_members)), *(["mixture"] if mixture else [])]
    joint, marginal, raw = ratios
    all_theta = theta.double().cpu().numpy()
    findings = Findings(
        found, all_theta, grid, log_prior, exact, joint, marginal, raw, alpha, delta, tolerance, reported
    )
    ds = as_dataset(findings, members, None if surrogate.prior is None else surrogate.prior.names)
    _warn_about_numbers(found, members, samples, notes)
    few = uncertifiable(found["rank"], found["effective"], members, alpha=alpha, delta=delta)
    if few and tolerance == "level":
        notes.append(few)
    ds.attrs.update(
        recipe=recipe,
        ranks=_rank_description(surrogate, samples, recipe, mixture),
        samples=samples,
        pairs=len(theta),
        alpha=alpha,
        tolerance=tolerance,
        seed=seed,
        surrogate=type(posterior).__name__,
        method=str(getattr(posterior, "record", {}).get("method", {}).get("name", "")),
        equipoise=__version__,
        torch=str(torch.__version__),
        notes="\n".join(notes),
    )
    if mixture and isinstance(posterior, Posterior):
        posterior.verdict = str(ds["verdict"].values[-1]), len(theta)
    return ds


def _over_pairs(
    s: Surrogate,
    theta: Tensor,
    x: Tensor,
    samples: int,
    recipe: str,
    seed: int,
    mixture: bool,
    memory: int | None,
    progress: bool | None,
) -> dict[str, Array]:
    """`pair_statistics` of all pairs, in batches that respect the memory bound, as float64 arrays."""
    n = len(theta)
    points = RELEASED_BINS ** theta.shape[1] if recipe == "released" and s.kind == "classifier" else samples
    points = CELLS_AS_POINTS if on_cells(s, samples, recipe, mixture) else points
    size, limit, at_once = _batch_size(s, x, points, memory)
    dtype = s.dtype or (theta.dtype if theta.is_floating_point() else torch.float32)
    all_theta = theta.to(s.device, dtype)
    scale = all_theta.std(0).clamp_min(torch.finfo(dtype).tiny)
    before = all_theta.roll(1, 0)
    reference = tarp_references(all_theta, s.prior, generator(seed, "diagnose", "tarp", device=s.device))

    def observed(rows: slice) -> Tensor:
        here = x[rows].to(s.device)
        return here.to(dtype) if here.is_floating_point() else here

    @torch.no_grad()
    def judged(low: int) -> list[Array]:
        rows = slice(low, min(low + size, n))
        here, stream = observed(rows), generator(seed, "diagnose", low, device=s.device)
        batch = Batch(all_theta[rows], before[rows], s.embed(here), reference[rows], scale)
        if mixture and s.tempered is not None and not shares_points(s, recipe, mixture):
            mixed = batch._replace(x=s.tempered.embed(here))
            each = pair_statistics(s, batch, samples, recipe, stream, limit, False)
            whole = pair_statistics(s.tempered, mixed, samples, recipe, stream, limit, False)
            found = PairStatistics(*(torch.cat(both) for both in zip(each, whole, strict=True)))
        else:
            found = pair_statistics(s, batch, samples, recipe, stream, limit, mixture)
        return [f.double().cpu().numpy() for f in found]

    check_mixture(s, s.look(all_theta[:1], observed(slice(1))), mixture)
    values: list[Array] = []
    with Progress("diagnosing", total=n, show=progress) as bar:
        batches = range(0, n, size)
        found = in_parallel(judged, batches, at_once) if s.in_threads else map(judged, batches)
        for low, part in zip(batches, found, strict=True):
            # Small arrays that stay would keep the memory of what was large beside them.
            values = values or [np.empty((len(one), n, *one.shape[2:])) for one in part]
            for whole, one in zip(values, part, strict=True):
                whole[:, low : low + size] = one
            bar.advance(part[0].shape[1], "pairs")
    return dict(zip(PairStatistics._fields, values, strict=True))


def _batch_size(s: Surrogate, x: Tensor, points: int, memory: int | None) -> tuple[int, int, int]:
    """How many pairs go together, how many evaluations of a member one call may ask for, and how many batches there
    may be at once.
    """
    bound, on_cpu = memory or _bound(s.device), s.device.type == "cpu"
    limit = max(1, bound // EVALUATION_BYTES)
    if s.pairs_at_once is not None:
        return s.pairs_at_once, limit, 1
    flow = on_cpu and s.kind == "flow"
    each = VALUE_BYTES if flow else EVALUATION_BYTES
    embedding = s.n_members * x[0].numel() * 4 * EMBEDDING_FACTOR // each
    fit = max(1, bound // each // (s.n_members * points + embedding))
    size = max(1, min(len(x), fit // BATCHES if s.in_threads else fit))
    return size, limit if flow or not on_cpu else min(limit, AT_ONCE), min(BATCHES, max(1, fit // size))


def _bound(device: torch.device) -> int:
    """The default bound: of all memory and not of what is free, so that equal machines cut equal batches."""
    if device.type != "cuda":
        return MEMORY["cpu"]
    return min(MEMORY["cuda"], torch.cuda.mem_get_info(device)[1] // 4)


@torch.no_grad()
def _test_ratios(
    s: Surrogate, theta: Tensor, x: Tensor, mixture: bool, memory: int | None, progress: bool | None, notes: list[str]
) -> list[Array]:
    """Joint and marginal log-ratios and raw log densities over a larger set, with shape `(K, N)`.

    There are no normalisers, hence no mixture of several members and nothing tempered: it is NaN. A single member is
    its own mixture.
    """
    size, limit, _ = _batch_size(s, x, 2, memory)
    size = min(size, max(1, limit // (2 * s.n_members)))
    theta = theta.to(s.device, s.dtype or theta.dtype)
    before = theta.roll(1, 0)
    parts: list[tuple[Array, ...]] = []
    with Progress("testing", total=len(theta), show=progress) as bar:
        for low in range(0, len(theta), size):
            pair = torch.stack([theta[low : low + size], before[low : low + size]])
            here = x[low : low + size].to(s.device)
            here = here.to(theta.dtype) if here.is_floating_point() else here
            ratio = s.log_ratio(pair, s.embed(here))
            raw = ratio[:, 0] + s.log_prior(pair[0])
            parts.append(tuple(v.double().cpu().numpy() for v in (ratio[:, 0], ratio[:, 1], raw)))
            bar.advance(pair.shape[1], "pairs")
    found = [np.concatenate(values, 1) for values in zip(*parts, strict=True)]
    if not mixture:
        return found
    itself = s.n_members == 1 and s.tempered is None
    if not itself:
        notes.append("the mixture has no raw density: its balance over the larger test set is not computed")
    return [np.concatenate([v, v if itself else np.full_like(v[:1], np.nan)]) for v in found]


def _warn_about_numbers(found: dict[str, Array], members: list[str], samples: int, notes: list[str]) -> None:
    broken = [m for m, row in zip(members, found["rank"], strict=True) if np.isnan(row).any()]
    if broken:
        notes.append(f"log densities of {', '.join(broken)} are NaN for some pairs, and so is what depends on them")
        warn(notes[-1] + "; the network has probably diverged in training")
    judged = np.isfinite(found["rank"]).all(-1)
    thin = (found["effective"][judged] < TRUSTED_POINTS).mean(-1).max(initial=0.0)
    if thin > 0.1 and samples >= 5 * TRUSTED_POINTS:
        notes.append(
            f"up to {100 * thin:.0f}% of a member's ranks rest on fewer than {TRUSTED_POINTS} effective points: they "
            "remain uniform under calibration but see little else; more samples would help"
        )
        warn(notes[-1])
    sampled, few = ((found["source"][judged] == way).mean(-1).max(initial=0.0) for way in (FROM_MORE, FROM_FEW))
    if sampled >= 0.05:
        notes.append(
            f"for up to {_per_cent(sampled)} of a member's pairs the points of the rank were too few for the "
            "normaliser: log posterior and entropy are from points made for them"
        )
    if few >= 0.05:
        notes.append(
            f"for up to {_per_cent(few)} of a member's pairs log posterior and entropy rest on few effective points, "
            "and cannot be trusted if there are many of them; more samples would help"
        )


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 else "1%"


def _rank_description(s: Surrogate, samples: int, recipe: str, mixture: bool) -> str:
    """How the ranks were computed, in words."""
    if s.kind != "classifier":
        return f"ranks from {samples} samples" + (", strict inequality" if recipe == "released" else "")
    if recipe == "released":
        return f"ranks from a grid of {RELEASED_BINS} cells a side, strict inequality"
    if on_cells(s, samples, recipe, mixture):
        return "ranks from the posterior interpolated on adaptive cells"
    assert s.prior is not None
    if not s.prior.has_normal_map:
        return f"ranks from {samples} weighted prior draws"
    return f"ranks from {samples} weighted points in " + (
        "adaptive cells" if s.prior.dim <= CELLS_UP_TO else "an adaptive Gaussian"
    )


def _levels(values: ArrayLike, name: str) -> Array:
    try:
        grid = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} should be a list of numbers between 0 and 1, got {shown(values)}") from error
    if grid.ndim != 1 or len(grid) == 0 or not ((grid >= 0) & (grid <= 1)).all():
        raise ValueError(f"{name} should be a list of numbers between 0 and 1")
    return grid


def _check_options(
    seed: int, samples: int | None, alpha: float, delta: float, tolerance: str, recipe: str, memory: Any, progress: Any
) -> None:
    seed_number("seed", seed)
    if samples is not None:
        whole_number("samples", samples, 1, MOST_SAMPLES)
    check_options(alpha, delta)
    one_of("tolerance", tolerance, TOLERANCES)
    one_of("recipe", recipe, RECIPES)
    if memory is not None:
        whole_number("memory", memory, LEAST_MEMORY, MOST_MEMORY)
    if progress is not None:
        true_or_false("progress", progress)
