"""Is a posterior overconfident? Coverage, verdicts, balance, information, SBC and TARP, for all members at once.

`diagnose` is the one call. It takes a posterior as a surrogate (`surrogates`, `packages`), batches of pairs to their
statistics (`pair_statistics`, with `ranks` and `normalizers`), and these to a dataset (`dataset`, a table of variables,
with `coverage`, `bands`, `verdicts`, `uniformity` and `scores`). `summary` puts the dataset into words.

`calibrate` tempers a posterior until its coverage is certified: `tempered_ranks` to `calibration` to a posterior.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.support.imports import lazy

from .bands import calibration_band, pointwise_band, simultaneous_band
from .coverage import coverage_auc, coverage_curve, levels_covered
from .dataset import VARIABLES
from .local import local_coverage
from .scores import information_kept, signed_balance
from .summary import summary
from .uniformity import uniformity_p_value
from .verdicts import holm, judge, judge_cells

if TYPE_CHECKING:
    from .calibrating import calibrate as calibrate
    from .diagnosing import diagnose as diagnose
    from .ranks import weighted_rank as weighted_rank

# What needs torch, which those who only read results do not.
__getattr__ = lazy(__name__, {"calibrate": "calibrating", "diagnose": "diagnosing", "weighted_rank": "ranks"})

__all__ = [
    "VARIABLES",
    "calibrate",
    "calibration_band",
    "coverage_auc",
    "coverage_curve",
    "diagnose",
    "holm",
    "information_kept",
    "judge",
    "judge_cells",
    "levels_covered",
    "local_coverage",
    "pointwise_band",
    "signed_balance",
    "simultaneous_band",
    "summary",
    "uniformity_p_value",
    "weighted_rank",
]
