"""Products of panels, against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.networks.panels import NARROW, ROWS, WIDE, narrow_panel, wide_panel
from equipoise.support.devices import compiled


@compiled
def _wide(out: Any, a: Any, by_row: Any, by_term: Any, b: Any, terms: Any) -> None:
    wide_panel(out, out.shape[1] + 3, out.shape[1], a, 1, by_row, by_term, b, 2, b.shape[1], terms)


@compiled
def _narrow(out: Any, a: Any, by_row: Any, by_term: Any, b: Any, terms: Any) -> None:
    narrow_panel(out, out.shape[1] + 3, out.shape[1], a, 1, by_row, by_term, b, 2, b.shape[1], terms)


@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("terms", [0, 1, 7])
def test_a_panel_is_a_product_and_nothing_else_is_written(terms: int, by_rows: bool) -> None:
    """The panel begins at (1, 3) of the result, A at its second entry, B at its third column."""
    rng = np.random.default_rng(0)
    for panel, columns in ((_wide, WIDE), (_narrow, NARROW)):
        a, b = rng.normal(size=ROWS * 9 + 1), rng.normal(size=(9, columns + 5))
        a, b, out = a.astype(np.float32), b.astype(np.float32), np.full((ROWS + 2, columns + 4), 7, np.float32)
        steps = (9, 1) if by_rows else (1, ROWS)
        panel(out, a, *steps, b, terms)
        left = a[1:].reshape(ROWS, 9) if by_rows else a[1:].reshape(9, ROWS).T
        wanted = np.full(out.shape, 7.0)
        wanted[1:-1, 3:-1] = left[:, :terms].astype(float) @ b[:terms, 2:-3]
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
