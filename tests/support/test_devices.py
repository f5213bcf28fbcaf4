"""Devices that are there, that are not, and that are none."""

from __future__ import annotations

import numba
import pytest
import torch

from equipoise.support.devices import as_device, compiled, unusable


@pytest.fixture
def gpus(monkeypatch):
    """Make torch see this many GPUs."""

    def see(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


@pytest.mark.parametrize(
    ("device", "count", "message"),
    [
        ("gpu", 0, "device='gpu' is no device of torch's; give 'cpu', 'cuda', 'cuda:1', …, or None"),
        ("", 1, "device='' is no device of torch's"),
        (1.5, 1, "device=1.5 is no device of torch's"),
        ("cuda", 0, "device='cuda' was asked for, but torch sees no GPU here; give 'cpu', or None"),
        (torch.device("cuda:2"), 2, r"device='cuda:2' was asked for, but torch sees 2 GPU\(s\) here, counted from 0"),
        ("hip", 1, "device='hip' was asked for, but torch cannot use it here; give 'cpu'"),
    ],
)
def test_what_cannot_be_used_is_named(device, count, message, gpus):
    gpus(count)
    with pytest.raises(ValueError, match=message):
        as_device(device)


def test_what_can_be_used(gpus):
    gpus(2)
    assert as_device(None) == as_device("cuda") == torch.device("cuda")
    assert as_device("cuda:1") == torch.device("cuda:1") and as_device(torch.device("cpu")) == torch.device("cpu")
    assert unusable("meta").startswith("holds shapes")
    gpus(0)
    assert as_device(None) == torch.device("cpu")


def test_without_a_place_to_write_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def readonly(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", readonly)
    assert compiled(lambda n: n + 1)(2) == 3
