"""The tables and figures of docs/conservative.md: verdicts, rules for the temperature, and the plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import integrate, stats

import conservative
import conservative_figures
import figures
import reading
from equipoise.plots.settings import CERTIFIED, INCONCLUSIVE, OVERCONFIDENT

T = np.array([0.5, 0.75, 1.0])


def study(**values: list[float]) -> xr.Dataset:
    """One fit, with what fresh and out-of-fold pairs say of it at three temperatures."""
    given = {
        "fresh_p_over": [0.9, 0.5, 0.01],
        "fresh_p_cert": [0.001, 0.2, 0.001],
        "fold_p_over": [0.6, 0.3, 0.01],
        "fold_p_cert": [0.001, 0.02, 0.3],
        "fresh_auc": [0.2, 0.1, 0.0],
        "fresh_dip": [0.0, 0.005, 0.03],
        "fresh_log_prob": [1.0, 1.5, 1.6],
    } | values
    data = {name: (("line", "t"), np.array([row])) for name, row in given.items()}
    facts = {"problem": "slcp", "budget": 1024, "run": 0, "way": "calibrated", "prior_log_prob": -1.0, "chosen": 0.75}
    return xr.Dataset(data | {n: ("line", [v]) for n, v in (facts | {"pairs": 100}).items()}, {"t": T})


@pytest.mark.parametrize(("t", "verdict"), [(1.0, OVERCONFIDENT), (0.75, INCONCLUSIVE), (0.5, CERTIFIED)])
def test_overconfident_takes_precedence_over_certified(t, verdict) -> None:
    (fit,) = conservative.used(study(), "calibrated", lambda _: t)
    assert fit.verdict == verdict and fit.t == t
    assert fit.lost == pytest.approx(1.6 - (fit.nats - 1.0))


def test_rules_take_the_largest_temperature_that_passes() -> None:
    def chosen(*rule) -> float:
        return conservative.used(study(), "calibrated", conservative.rule(*rule))[0].t

    assert chosen(True, 0.25) == 0.75 and chosen(True, 0.5) == 0.5 and chosen(False, 0.0) == 1.0
    assert chosen(True, 0.99) == 0.5  # none passes: the smallest


def test_the_rule_of_the_study_is_the_one_that_was_stored() -> None:
    ds = conservative.read()
    stored, again = (
        conservative.used(ds, "calibrated", c) for c in (conservative.chosen, conservative.rule(True, 0.25))
    )
    assert [f.t for f in stored] == [f.t for f in again]


def test_readme_counts_the_fits_of_the_default() -> None:
    before, after = conservative.default_fits()
    counts = [sum(f.verdict == CERTIFIED for f in fits) for fits in (before, after)]
    words = f"of {len(after)} fits, {counts[0]} were certified before and {counts[1]} after"
    assert words in " ".join((reading.HERE.parent / "README.md").read_text(encoding="utf-8").split())


def test_the_goals_of_the_default_are_met() -> None:
    before, after = conservative.default_fits()
    assert np.mean([f.verdict == CERTIFIED for f in after]) >= 0.95
    assert max(f.dip for f in after) < 0.02 and np.median([f.lost for f in after]) < 0.1
    assert all(f.lost == 0 and f.t == 1 for f in before)
    untuned = [f for f in after if f.problem in ("survey", "switch", "linear", "curved")]
    assert len(untuned) == 40 and all(f.verdict == CERTIFIED for f in untuned)


def test_coverage_and_score_of_the_gaussian_example_are_those_of_numbers() -> None:
    s, c, t = conservative_figures.SPREAD, conservative_figures.TIGHT, 0.4
    k, precision, variance = (float(v) for v in conservative_figures.tempered_gaussian(t))
    mu, z = np.random.default_rng(0).standard_normal((2, 200_000)) * [[np.sqrt(1 - s**2)], [s]]
    assert np.var(mu + z - k * mu) == pytest.approx(variance, rel=0.02)

    def unnormalised(theta: float, at: float = 0.7) -> float:
        return stats.norm.pdf(theta) ** (1 - t) * stats.norm.pdf(theta, at, c * s) ** t

    total, mean = (integrate.quad(lambda v, n=n: v**n * unnormalised(v), -3, 3)[0] for n in (0, 1))
    assert mean / total == pytest.approx(0.7 * k, rel=1e-6)
    assert unnormalised(0.6) / total == pytest.approx(stats.norm.pdf(0.6, 0.7 * k, precision**-0.5), rel=1e-6)


@pytest.mark.slow
def test_figures_are_drawn_from_stored_results(tmp_path: Path, capsys) -> None:
    drawn = figures.draw(reading.HERE, tmp_path, list(figures.OTHERS))
    assert {file.name for file in drawn} == {f"{name}.png" for name in figures.OTHERS}
    assert figures.draw(tmp_path, tmp_path, ["frontier"]) == [] and "frontier.nc" in capsys.readouterr().out
