"""From results to what people read: the figures of `equipoise.plots` as files, and one self-contained page.

    results.nc ──► open_results ──┬──► print_figures ──► PNG, PDF
                                  └──► sentences, page_figures (SVG) ──► page, templates ──► report.html

Neither torch nor Dask is needed: a laptop redraws everything from results in seconds.
"""

from .opening import open_results
from .page import write_report
from .print_figures import write_figures

__all__ = ["open_results", "write_figures", "write_report"]
