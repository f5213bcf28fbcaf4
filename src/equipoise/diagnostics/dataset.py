"""The dataset that `diagnose` returns: a table of its variables, each computed from `Findings`.

A new diagnostic is a function of ranks, densities or log-ratios, and a row of `VARIABLES`.
"""

from __future__ import annotations

__all__ = ["VARIABLES", "ExactLogProb", "Findings", "Variable", "as_dataset", "exact_values"]

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from equipoise.support.words import STAYS, shown

from .bands import Array, calibration_band, pointwise_band, simultaneous_band
from .coverage import coverage_auc, coverage_curve, levels_covered
from .local_check import LOCAL_BINS, LOCAL_LEVELS, local_table
from .scores import information_kept, mean_and_error, signed_balance
from .uniformity import uniformity_p_value
from .verdicts import Verdicts, judge, too_low

if TYPE_CHECKING:
    from torch import Tensor

ExactLogProb = Callable[["Tensor", "Tensor"], Any]


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
        report_levels: of the intervals and regions that people report, with shape `(R,)`.
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
    report_levels: Array

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
        """Over all levels."""
        return self._judged(upper=False)

    @cached_property
    def upper_verdicts(self) -> Verdicts:
        """From level ½ upwards."""
        return self._judged(upper=True)

    def _judged(self, upper: bool) -> Verdicts:
        options: dict[str, Any] = {"share": None}
        if self.tolerance == "level":
            options = {"effective": np.nan_to_num(self.pairs["effective"])}
        return judge(self.rank, alpha=self.alpha, delta=self.delta, upper=upper, **options)

    @cached_property
    def intervals(self) -> Array:
        """Coverage of each parameter's central intervals at the report levels, with shape `(K, D, R)`.

        A parameter lies inside its central interval of level u where its SBC rank is within u/2 of ½.
        """
        return coverage_curve(2 * abs(self.sbc_rank - 0.5), self.report_levels)

    @cached_property
    def regions(self) -> Array:
        """Coverage of the joint highest-density regions at the report levels, with shape `(K, R)`."""
        return coverage_curve(self.rank, self.report_levels)

    def share_error(self, share: Array) -> Array:
        """The standard error of a share of the pairs, as if one pair more were inside and one more outside."""
        n = self.rank.shape[-1]
        smoothed = (share * n + 1) / (n + 2)
        return np.sqrt(smoothed * (1 - smoothed) / n)

    @cached_property
    def local(self) -> tuple[Array, Array, Array]:
        return local_table(self.rank, self.pairs["entropy"])

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
MR, MDR, MB, MBL = (
    ("member", "report_level"),
    (*MD, "report_level"),
    ("member", "bin"),
    ("member", "bin", "local_level"),
)
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
    Variable("verdict_upper", M, "verdict from level 0.5 upwards", lambda f: f.upper_verdicts.verdict.astype(object)),
    Variable("too_low", ML, "whether coverage is too low at the level, of all levels together",
             lambda f: too_low(f.rank, f.levels, f.alpha)),
    Variable("region_coverage", MR, "coverage of the joint highest-density region", lambda f: f.regions),
    Variable("region_coverage_se", MR, "standard error of the coverage of the joint region",
             lambda f: f.share_error(f.regions)),
    Variable("interval_coverage", MDR, "coverage of the central interval of a parameter", lambda f: f.intervals),
    Variable("interval_coverage_se", MDR, "standard error of the coverage of the central interval",
             lambda f: f.share_error(f.intervals)),
    Variable("local_coverage", MBL, "coverage in bins of entropy, lowest first", lambda f: f.local[0]),
    Variable("local_p_value", MBL, "p-value of: coverage ≥ level in the bin, corrected for bins and levels",
             lambda f: f.local[1]),
    Variable("local_entropy", MB, "median entropy in the bin", lambda f: f.local[2]),
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


def as_dataset(findings: Findings, members: list[str], names: Sequence[str] | None = None) -> xr.Dataset:
    """Every variable of `VARIABLES`, with its meaning as `long_name`; `names` are those of the parameters."""
    n, dim = findings.theta.shape
    coords: dict[str, Any] = {"member": members, "level": findings.levels}
    coords |= {"pair": np.arange(n), "parameter": np.arange(dim) if names is None else list(names)}
    coords |= {"report_level": findings.report_levels}
    coords |= {"bin": np.arange(LOCAL_BINS), "local_level": list(LOCAL_LEVELS)}
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
    try:
        values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, float)
    except (TypeError, ValueError) as error:
        what = f"should give one number for each of the {n} pairs, got {shown(values)}"
        raise TypeError(f"exact_log_prob {what}") from error
    if values.shape != (n,):
        raise ValueError(f"exact_log_prob should give one number for each of the {n} pairs, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"exact_log_prob is not finite for {int((~np.isfinite(values)).sum())} of the {n} pairs")
    return values
