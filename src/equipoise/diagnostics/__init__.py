"""Is a posterior overconfident? Coverage, verdicts, balance, information, SBC and TARP, for all members at once.

`diagnose` is the one call; the rest is what it is made of.
"""

from .balance import signed_balance
from .bands import calibration_band, pointwise_band, simultaneous_band
from .coverage import coverage_auc, coverage_curve, levels_covered
from .diagnose import diagnose
from .information import information_kept
from .local import local_coverage
from .ranks import weighted_rank
from .summaries import summary
from .uniformity import uniformity_p_value
from .verdicts import holm, judge, judge_cells

__all__ = [
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
