"""The dataset that `diagnose` returns: a table of its variables, each computed from `Findings`.

A new diagnostic is a function of ranks, densities or log-ratios, and a row of `VARIABLES`.
"""

from __future__ import annotations

__all__ = ["VARIABLES", "ExactLogProb", "Findings", "Variable", "as_dataset", "exact_values"]

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.support.words import STAYS

from .bands import Array, calibration_band, pointwise_band, simultaneous_band
from .coverage import coverage_auc, coverage_curve, levels_covered
from .scores import information_kept, mean_and_error, signed_balance
from .uniformity import uniformity_p_value
from .verdicts import Verdicts, judge

ExactLogProb = Callable[[Tensor, Tensor], Any]


@dataclasses.dataclass
class Findings:
    """What was found for n pairs and K densities: the members, and their mixture if it was asked for.

    Arguments:
        pairs: the fields of `PairStatistics` as arrays with shape `(K, n)`, ranks of SBC with shape `(K, n, D)`.
        theta: θ*, with shape `(n, D)`.
        levels: where curves are read, with shape `(L,)`.
        log_prior: log p(θ*), with shape `(n,)`; NaN where no prior is known.
        exact: the exact log p(θ*|x*), with shape `(n,)`; NaN where it is not known.
        joint: log-ratios of joint pairs behind the balance, with shape `(K, N)`; NaN where they are not known.
        marginal: log-ratios of the pairs with θ rolled by one, with shape `(K, N)`.
        raw: raw log densities, with shape `(K, N)`.
        alpha: the rate of false verdicts, and of curves that leave their bands.
        delta: how far below its level a certified coverage may lie at most.
        tolerance: "level" or "constant", as in `diagnose`.
    """

    pairs: dict[str, Array]
    theta: Array
    levels: Array
    log_prior: Array
    exact: Array
    joint: Array
    marginal: Array
    raw: Array
    alpha: float
    delta: float
    tolerance: str

    @property
    def rank(self) -> Array:
        """HPD ranks, with shape `(K, n)`."""
        return self.pairs["rank"]

    @property
    def log_prob(self) -> Array:
        """Normalised log p̂(θ*|x*), with shape `(K, n)`."""
        return self.pairs["log_prob"]

    @cached_property
    def sbc_rank(self) -> Array:
        """With shape `(K, D, n)`."""
        return np.moveaxis(self.pairs["sbc_rank"], -1, 1)

    @cached_property
    def coverage(self) -> Array:
        """With shape `(K, L)`."""
        return coverage_curve(self.rank, self.levels)

    @cached_property
    def verdicts(self) -> Verdicts:
        options: dict[str, Any] = {"share": None}
        if self.tolerance == "level":
            options = {"effective": np.nan_to_num(self.pairs["effective"])}
        return judge(self.rank, alpha=self.alpha, delta=self.delta, **options)

    def band(self, of: Callable[[ArrayLike, int, float], tuple[Array, Array]], curve: Array, end: int) -> Array:
        """The lower (0) or upper (1) end of a band around a curve."""
        return of(curve, self.rank.shape[-1], 1 - self.alpha)[end]

    @cached_property
    def gain(self) -> tuple[Array, Array]:
        """Mean and error of log p̂ - log p over the same pairs: what they share cancels."""
        return mean_and_error(self.log_prob - self.log_prior)

    @cached_property
    def information(self) -> tuple[Array, Array]:
        if np.isnan(self.exact).any():
            return (np.full(len(self.rank), np.nan),) * 2
        return information_kept(self.log_prob, self.log_prior, self.exact)

    @cached_property
    def balance(self) -> tuple[Array, Array]:
        return signed_balance(self.joint, self.marginal)


class Variable(NamedTuple):
    """A variable of the dataset.

    Arguments:
        name: what it is called, in the dataset and in the results of experiments.
        dims: its dimensions.
        meaning: what it is, in words; `long_name` in the dataset.
        value: the function that computes it.
        kept: what experiments keep of it: "cell" for the posterior of a run, "member" also for each of its networks;
            None for nothing.
    """

    name: str
    dims: tuple[str, ...]
    meaning: str
    value: Callable[[Findings], Any]
    kept: Literal["cell", "member"] | None = None


L, M, ML, MP = ("level",), ("member",), ("member", "level"), ("member", "pair")
MD, MDL, MDP = ("member", "parameter"), ("member", "parameter", "level"), ("member", "parameter", "pair")
COVERAGE, BAND, ALONE = (
    "expected coverage",
    "simultaneous band of the coverage",
    "interval of the coverage at each level alone",
)
CALIBRATED = "where the whole curve of a calibrated posterior lies"
SETTLE = f"about how many further pairs would settle the verdict {STAYS}"
GAIN = "gain over the prior in nats: nominal log posterior minus mean log prior"

# fmt: off
#: One row for each variable.
VARIABLES = (
    Variable("rank", MP, "HPD rank", lambda f: f.rank),
    Variable("coverage", ML, COVERAGE, lambda f: f.coverage, "member"),
    Variable("coverage_lower", ML, f"{BAND}, lower end", lambda f: f.band(simultaneous_band, f.coverage, 0), "cell"),
    Variable("coverage_upper", ML, f"{BAND}, upper end", lambda f: f.band(simultaneous_band, f.coverage, 1), "cell"),
    Variable("coverage_lower_pointwise", ML, f"{ALONE}, lower end", lambda f: f.band(pointwise_band, f.coverage, 0)),
    Variable("coverage_upper_pointwise", ML, f"{ALONE}, upper end", lambda f: f.band(pointwise_band, f.coverage, 1)),
    Variable("calibration_lower", L, f"{CALIBRATED}, lower end", lambda f: f.band(calibration_band, f.levels, 0)),
    Variable("calibration_upper", L, f"{CALIBRATED}, upper end", lambda f: f.band(calibration_band, f.levels, 1)),
    Variable("coverage_auc", M, "area between coverage and the diagonal", lambda f: coverage_auc(f.rank)[0], "member"),
    Variable("coverage_auc_se", M, "standard error of the coverage AUC", lambda f: coverage_auc(f.rank)[1], "cell"),
    Variable("verdict", M, "verdict", lambda f: f.verdicts.verdict.astype(object), "member"),
    Variable("verdict_p_value", M, "p-value of: coverage ≥ level everywhere", lambda f: f.verdicts.p_value, "cell"),
    Variable("certificate_p_value", M, "p-value of: coverage < level - tolerance somewhere",
             lambda f: f.verdicts.certificate_p_value, "cell"),
    Variable("pairs_to_settle", M, SETTLE, lambda f: f.verdicts.pairs_to_settle, "cell"),
    Variable("delta", (), "largest tolerance of the certificate", lambda f: f.delta),
    Variable("levels_covered", M, "levels strictly between 0 and 1 with coverage ≥ level",
             lambda f: levels_covered(f.coverage, f.levels), "cell"),
    Variable("log_prob", MP, "log posterior of the true parameters", lambda f: f.log_prob),
    Variable("nominal_log_prob", M, "nominal log posterior", lambda f: mean_and_error(f.log_prob)[0], "member"),
    Variable("nominal_log_prob_se", M, "standard error of the nominal log posterior",
             lambda f: mean_and_error(f.log_prob)[1], "cell"),
    Variable("nominal_log_prob_raw", M, "nominal log posterior, not normalised",
             lambda f: mean_and_error(f.raw)[0], "cell"),
    Variable("nominal_log_prob_raw_se", M, "standard error of the nominal log posterior, not normalised",
             lambda f: mean_and_error(f.raw)[1]),
    Variable("gain", M, GAIN, lambda f: f.gain[0]),
    Variable("gain_se", M, "standard error of the gain over the prior", lambda f: f.gain[1]),
    Variable("information_kept", M, "information kept: 0 for the prior, 1 for the exact posterior",
             lambda f: f.information[0], "cell"),
    Variable("information_kept_se", M, "standard error of the information kept", lambda f: f.information[1]),
    Variable("prior_log_prob", (), "mean log prior of the true parameters", lambda f: f.log_prior.mean()),
    Variable("exact_log_prob", (), "nominal log posterior of the exact posterior",
             lambda f: mean_and_error(f.exact)[0]),
    Variable("exact_log_prob_se", (), "standard error of the exact nominal log posterior",
             lambda f: mean_and_error(f.exact)[1]),
    Variable("entropy", M, "mean entropy of the posterior", lambda f: f.pairs["entropy"].mean(-1), "cell"),
    Variable("leakage", M, "mean mass outside the prior's support", lambda f: f.pairs["leakage"].mean(-1), "cell"),
    Variable("balancing_error", M, "balancing error", lambda f: abs(f.balance[0]), "member"),
    Variable("balance_signed", M, "balance g, negative where too narrow", lambda f: f.balance[0], "cell"),
    Variable("balance_signed_se", M, "standard error of the balance", lambda f: f.balance[1], "cell"),
    Variable("effective_samples", M, "median effective number of points behind a rank",
             lambda f: np.median(f.pairs["effective"], -1)),
    Variable("effective_samples_min", M, "smallest effective number of points behind a rank",
             lambda f: f.pairs["effective"].min(-1)),
    Variable("sbc_rank", MDP, "SBC rank", lambda f: f.sbc_rank),
    Variable("sbc", MDL, "share of SBC ranks up to the level", lambda f: coverage_curve(f.sbc_rank, f.levels)),
    Variable("sbc_p_value", MD, "p-value of: SBC ranks are uniform", lambda f: uniformity_p_value(f.sbc_rank)),
    Variable("tarp_rank", MP, "TARP rank", lambda f: f.pairs["tarp_rank"]),
    Variable("tarp", ML, "TARP expected coverage", lambda f: coverage_curve(f.pairs["tarp_rank"], f.levels)),
    Variable("tarp_p_value", M, "p-value of: TARP ranks are uniform",
             lambda f: uniformity_p_value(f.pairs["tarp_rank"])),
    Variable("theta", ("pair", "parameter"), "true parameters", lambda f: f.theta),
)
# fmt: on


def as_dataset(findings: Findings, members: list[str]) -> xr.Dataset:
    """Every variable of `VARIABLES`, with its meaning as `long_name`."""
    n, dim = findings.theta.shape
    coords = {"member": members, "level": findings.levels, "pair": np.arange(n), "parameter": np.arange(dim)}
    ds = xr.Dataset(coords=coords)
    for v in VARIABLES:
        ds[v.name] = xr.DataArray(v.value(findings), dims=v.dims, attrs={"long_name": v.meaning})
    return ds


def exact_values(exact: ExactLogProb | ArrayLike | Tensor | None, theta: Tensor, x: Tensor) -> Array:
    """The exact log p(θ*|x*) with shape `(n,)`, from what `diagnose` was given; NaN where it is not known."""
    n = len(theta)
    if exact is None:
        return np.full(n, np.nan)
    values = exact(theta, x) if callable(exact) else exact
    values = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, float)
    if values.shape != (n,):
        raise ValueError(f"exact_log_prob should give one number for each of the {n} pairs, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"exact_log_prob is not finite for {int((~np.isfinite(values)).sum())} of the {n} pairs")
    return values
