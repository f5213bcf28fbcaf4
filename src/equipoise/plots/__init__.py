"""Figures of posteriors and diagnostics: results in, matplotlib Axes out.

Two kinds of results are drawn. What `equipoise.diagnose` returns, for one posterior: `summary`, `coverage`, `sbc`,
`tarp`, `local_coverage`. And the `results.nc` of an experiment, with the dimensions task, method, budget and run (and
level): `coverage_grid`, `nominal_log_prob`, `balancing_error`, `plane`, `planes`, `members`, `training`,
`verdict_table` and `posterior_gallery`. Posteriors themselves are drawn from arrays: `posterior_1d`, `posterior_2d`,
`corner`, `predictive`.

Every function takes `ax` or `figure` (or makes a figure) and returns the Axes it drew on. Torch is not needed.

    panels      one Axes: coverage curves, a number against the budget, losses, verdicts
    grids       panels in rows and columns, with legends; plane, gallery: the same for these two
    style       colours, lines and markers; labels: names of tasks and methods
    settings    medians, ranges and counts of verdicts over runs
"""

from .diagnosed import coverage, local_coverage, sbc, summary, tarp
from .gallery import posterior_gallery
from .grids import balancing_error, coverage_grid, members, nominal_log_prob, training, verdict_table
from .plane import plane, planes
from .posteriors import corner, posterior_1d, posterior_2d, predictive

__all__ = [
    "balancing_error",
    "corner",
    "coverage",
    "coverage_grid",
    "local_coverage",
    "members",
    "nominal_log_prob",
    "plane",
    "planes",
    "posterior_1d",
    "posterior_2d",
    "posterior_gallery",
    "predictive",
    "sbc",
    "summary",
    "tarp",
    "training",
    "verdict_table",
]
