"""Names of what a flow can be, which the table of methods needs without the networks, and without torch."""

from __future__ import annotations

__all__ = ["INITS", "STARTS", "UNIVARIATE"]

#: How a flow starts.
STARTS = ("random", "prior", "prior_base")
#: How its weights start.
INITS = ("standard", "scaled", "identity")
#: What its transforms apply to each coordinate; `networks/univariate.py` has a row for each.
UNIVARIATE = ("spline", "affine")
