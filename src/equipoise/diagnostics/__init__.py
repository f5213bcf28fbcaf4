"""Is a posterior overconfident? Coverage, verdicts, balance, information, SBC and TARP, for all members at once.

`diagnose` is the one call. It takes a posterior as a surrogate (`surrogates`, `packages`), batches of pairs to their
statistics (`pair_statistics`, with `ranks` and `normalizers`), and these to a dataset (`dataset`, a table of variables,
with `coverage`, `bands`, `verdicts`, `uniformity` and `scores`). `summary` puts the dataset into words.

`calibrate` tempers a posterior until its coverage is certified: `tempered_ranks` to `calibration` to a posterior.
"""

from .bands import calibration_band, pointwise_band, simultaneous_band
from .calibrate import calibrate
from .coverage import coverage_auc, coverage_curve, levels_covered
from .dataset import VARIABLES
from .diagnose import diagnose
from .local import local_coverage
from .ranks import weighted_rank
from .scores import information_kept, signed_balance
from .summary import summary
from .uniformity import uniformity_p_value
from .verdicts import holm, judge, judge_cells

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
