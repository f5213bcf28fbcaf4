"""The dataset that `diagnose` returns: every variable with its dimensions and its meaning."""

from __future__ import annotations

__all__ = ["add_balance", "add_information", "assemble"]

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from torch import Tensor

from equipoise.support.words import STAYS

from .balance import signed_balance
from .bands import Array, calibration_band, pointwise_band, simultaneous_band
from .coverage import coverage_auc, coverage_curve, levels_covered
from .information import information_kept, mean_and_error
from .surrogates import Surrogate
from .uniformity import uniformity_p_value
from .verdicts import judge

ExactLogProb = Callable[[Tensor, Tensor], Any]


def assemble(
    found: dict[str, Array],
    grid: Array,
    members: list[str],
    theta: Tensor,
    alpha: float,
    delta: float,
    constant: bool = False,
) -> xr.Dataset:
    rank, n, dim = found["rank"], found["rank"].shape[1], theta.shape[1]
    curve, (area, area_se) = coverage_curve(rank, grid), coverage_auc(rank)
    low, high = simultaneous_band(curve, n, 1 - alpha)
    low_one, high_one = pointwise_band(curve, n, 1 - alpha)
    band_low, band_high = calibration_band(grid, n, 1 - alpha)
    options: dict[str, Any] = {"share": None} if constant else {"effective": np.nan_to_num(found["effective"])}
    found_verdicts = judge(rank, alpha=alpha, delta=delta, **options)
    nominal, nominal_se = mean_and_error(found["log_prob"])
    sbc = np.moveaxis(found["sbc_rank"], -1, 1)
    by_level, by_pair = ("member", "level"), ("member", "pair")
    variables: dict[str, tuple[Any, Any, str]] = {
        "rank": (by_pair, rank, "HPD rank"),
        "coverage": (by_level, curve, "expected coverage"),
        "coverage_lower": (by_level, low, "simultaneous band of the coverage, lower end"),
        "coverage_upper": (by_level, high, "simultaneous band of the coverage, upper end"),
        "coverage_lower_pointwise": (by_level, low_one, "interval of the coverage at each level alone, lower end"),
        "coverage_upper_pointwise": (by_level, high_one, "interval of the coverage at each level alone, upper end"),
        "calibration_lower": ("level", band_low, "where the whole curve of a calibrated posterior lies, lower end"),
        "calibration_upper": ("level", band_high, "where the whole curve of a calibrated posterior lies, upper end"),
        "coverage_auc": ("member", area, "area between coverage and the diagonal"),
        "coverage_auc_se": ("member", area_se, "standard error of the coverage AUC"),
        "levels_covered": (
            "member",
            levels_covered(curve, grid),
            "levels strictly between 0 and 1 with coverage ≥ level",
        ),
        "verdict": ("member", found_verdicts.verdict.astype(object), "verdict"),
        "verdict_p_value": ("member", found_verdicts.p_value, "p-value of: coverage ≥ level everywhere"),
        "certificate_p_value": (
            "member",
            found_verdicts.certificate_p_value,
            "p-value of: coverage < level - tolerance somewhere",
        ),
        "pairs_to_settle": (
            "member",
            found_verdicts.pairs_to_settle,
            f"about how many further pairs would settle the verdict {STAYS}",
        ),
        "delta": ((), delta, "largest tolerance of the certificate"),
        "log_prob": (by_pair, found["log_prob"], "log posterior of the true parameters"),
        "nominal_log_prob": ("member", nominal, "nominal log posterior"),
        "nominal_log_prob_se": ("member", nominal_se, "standard error of the nominal log posterior"),
        "entropy": ("member", found["entropy"].mean(-1), "mean entropy of the posterior"),
        "leakage": ("member", found["leakage"].mean(-1), "mean mass outside the prior's support"),
        "effective_samples": ("member", np.median(found["effective"], -1), "median effective number of points a rank"),
        "effective_samples_min": ("member", found["effective"].min(-1), "smallest effective number of points a rank"),
        "sbc_rank": (("member", "parameter", "pair"), sbc, "SBC rank"),
        "sbc": (("member", "parameter", "level"), coverage_curve(sbc, grid), "share of SBC ranks up to the level"),
        "sbc_p_value": (("member", "parameter"), uniformity_p_value(sbc), "p-value of: SBC ranks are uniform"),
        "tarp_rank": (by_pair, found["tarp_rank"], "TARP rank"),
        "tarp": (by_level, coverage_curve(found["tarp_rank"], grid), "TARP expected coverage"),
        "tarp_p_value": ("member", uniformity_p_value(found["tarp_rank"]), "p-value of: TARP ranks are uniform"),
        "theta": (("pair", "parameter"), theta.double().cpu().numpy(), "true parameters"),
    }
    ds = xr.Dataset(coords={"member": members, "level": grid, "pair": np.arange(n), "parameter": np.arange(dim)})
    for name, (dims, values, meaning) in variables.items():
        ds[name] = xr.DataArray(values, dims=dims, attrs={"long_name": meaning})
    return ds


def add_information(
    ds: xr.Dataset,
    s: Surrogate,
    theta: Tensor,
    x: Tensor,
    exact: ExactLogProb | ArrayLike | Tensor | None,
    found: dict[str, Array],
    notes: list[str],
) -> None:
    n, nan = len(theta), np.full(len(ds["member"]), np.nan)
    kept, kept_se = nan, nan
    exact_mean, exact_se = np.array(np.nan), np.array(np.nan)
    log_prior = np.full(n, np.nan)
    if s.prior is not None:
        log_prior = s.prior.log_prob(theta.to(s.prior.device)).double().cpu().numpy()
    else:
        notes.append("no prior was given: the gain over it, information kept, balance and leakage need one")
    if exact is not None:
        values = exact(theta, x) if callable(exact) else exact
        values = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, float)
        if values.shape != (n,):
            raise ValueError(
                f"exact_log_prob should give one number for each of the {n} pairs, got shape {values.shape}"
            )
        if not np.isfinite(values).all():
            raise ValueError(f"exact_log_prob is not finite for {int((~np.isfinite(values)).sum())} of the {n} pairs")
        (exact_mean, exact_se), (kept, kept_se) = (
            mean_and_error(values),
            information_kept(found["log_prob"], log_prior, values),
        )
    gain, gain_se = mean_and_error(found["log_prob"] - log_prior)  # of the same pairs: what they share cancels
    for name, dims, value, meaning in (
        ("gain", "member", gain, "gain over the prior in nats: nominal log posterior minus mean log prior"),
        ("gain_se", "member", gain_se, "standard error of the gain over the prior"),
        ("information_kept", "member", kept, "information kept: 0 for the prior, 1 for the exact posterior"),
        ("information_kept_se", "member", kept_se, "standard error of the information kept"),
        ("prior_log_prob", (), log_prior.mean(), "mean log prior of the true parameters"),
        ("exact_log_prob", (), exact_mean, "nominal log posterior of the exact posterior"),
        ("exact_log_prob_se", (), exact_se, "standard error of the exact nominal log posterior"),
    ):
        ds[name] = xr.DataArray(value, dims=dims, attrs={"long_name": meaning})


def add_balance(
    ds: xr.Dataset, joint: Array, marginal: Array, raw: Array, members: list[str], s: Surrogate, notes: list[str]
) -> None:
    g, g_se = signed_balance(joint, marginal)
    nominal, nominal_se = mean_and_error(raw)
    if len(g) < len(members):
        # A larger test set has no normalisers, hence no mixture; a single member is its own.
        pad = [g, g_se, nominal, nominal_se]
        g, g_se, nominal, nominal_se = (np.append(v, v[0] if s.n_members == 1 else np.nan) for v in pad)
        if s.n_members > 1:
            notes.append("the mixture has no raw density: its balance over the larger test set is not computed")
    for name, value, meaning in (
        ("balancing_error", abs(g), "balancing error"),
        ("balance_signed", g, "balance g, negative where too narrow"),
        ("balance_signed_se", g_se, "standard error of the balance"),
        ("nominal_log_prob_raw", nominal, "nominal log posterior, not normalised"),
        ("nominal_log_prob_raw_se", nominal_se, "standard error of the nominal log posterior, not normalised"),
    ):
        ds[name] = xr.DataArray(value, dims="member", attrs={"long_name": meaning})
