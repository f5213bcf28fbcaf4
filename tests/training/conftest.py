"""What tests of training share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def double() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield None
    torch.set_default_dtype(before)
