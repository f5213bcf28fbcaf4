"""Figures of posteriors and diagnostics: results in, matplotlib Axes out.

Two kinds of results are drawn. What `equipoise.diagnose` returns, for one posterior: `coverage`, `sbc`, `tarp`,
`local_coverage`. And the `results.nc` of an experiment, with the dimensions task, method, budget, run (and level):
`coverage_grid`, `nominal_log_prob`, `balancing_error`, `plane`. Posteriors themselves are drawn from arrays:
`posterior_1d`, `posterior_2d`, `corner`.

Every function takes `ax` (or makes a figure) and returns the Axes it drew on. Torch is not needed.
"""

from .diagnosed import coverage, local_coverage, sbc, tarp
from .experiments import balancing_error, coverage_grid, nominal_log_prob, plane
from .posteriors import corner, posterior_1d, posterior_2d

__all__ = [
    "balancing_error",
    "corner",
    "coverage",
    "coverage_grid",
    "local_coverage",
    "nominal_log_prob",
    "plane",
    "posterior_1d",
    "posterior_2d",
    "sbc",
    "tarp",
]
