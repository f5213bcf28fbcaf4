"""The table of `Posterior.summary`. Pandas is an extra, so this module is imported where a table is made."""

from __future__ import annotations

__all__ = ["SummaryTable"]

from typing import Any

import pandas


class SummaryTable(pandas.DataFrame):
    """A table that prints all of its columns, to four digits; pandas would put an ellipsis in place of the middle ones.

    Example:
        >>> print(SummaryTable({f"column {i}": [i / 3] for i in range(12)}, ["beta"]).iloc[:, 9:])
              column 9  column 10  column 11
        beta         3      3.333      3.667
    """

    @property
    def _constructor(self) -> Any:
        """What indexing and rounding return is such a table, too."""
        return SummaryTable

    def __repr__(self) -> str:
        return str(self.to_string(float_format="{:.4g}".format))

    __str__ = __repr__
