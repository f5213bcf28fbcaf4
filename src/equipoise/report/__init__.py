"""From results to what people read: the figures of the paper, and one self-contained page.

    results.nc ──► open_results ──► settings (median and range over runs, counts of verdicts)
                                       ├──► figures ──► PNG, PDF
                                       └──► words, curves, figures as SVG ──► report.html

Neither torch nor Dask is needed: a laptop redraws everything from results in seconds.
"""

from .figures import write_figures
from .page import write_report
from .results import open_results

__all__ = ["open_results", "write_figures", "write_report"]
