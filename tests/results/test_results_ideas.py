"""The Gaussian examples of docs/ideas.md, against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import idea_figures


def simulated(n: int = 400_000) -> tuple[np.ndarray, np.ndarray]:
    """True parameters, and means of the exact posterior."""
    theta, noise = np.random.default_rng(0).standard_normal((2, n))
    return theta, (1 - idea_figures.SPREAD**2) * (theta + idea_figures.NOISE * noise)


@pytest.mark.parametrize("c", [idea_figures.NARROW, 1.0, idea_figures.WIDE])
def test_coverage_is_that_of_simulated_pairs(c):
    theta, mean = simulated()
    half = c * idea_figures.SPREAD * stats.norm.ppf(0.95)
    # Five standard errors of 400,000 pairs.
    assert np.mean(abs(theta - mean) < half) == pytest.approx(float(idea_figures.covered(0.9, c)), abs=5 * 0.0008)


@pytest.mark.parametrize("c", [idea_figures.NARROW, 1.0, idea_figures.WIDE])
def test_balance_is_that_of_simulated_pairs(c):
    theta, mean = simulated()

    def classified(theta: np.ndarray) -> float:
        h = stats.norm.logpdf(theta, mean, c * idea_figures.SPREAD) - stats.norm.logpdf(theta)
        return float(expit(h).mean())

    joint, marginal = idea_figures.gap(c)
    assert classified(theta) == pytest.approx(joint, abs=0.003)
    assert classified(np.roll(theta, 1)) == pytest.approx(marginal, abs=0.003)


def test_the_exact_posterior_is_balanced_and_a_narrow_one_is_not():
    assert sum(idea_figures.gap(1.0)) == pytest.approx(1, abs=1e-6)
    assert sum(idea_figures.gap(idea_figures.NARROW)) < 0.9
