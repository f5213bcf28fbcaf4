"""Devices that are there, that are not, and that are none."""

from __future__ import annotations

import contextvars
import threading
import time

import numba
import pytest
import torch

from equipoise.support.devices import as_device, compiled, fixed_threads, in_parallel, unusable


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


def test_threads_take_items_and_torch_has_one_in_each() -> None:
    seen: list[int] = []

    def look(item: int) -> tuple[int, int]:
        seen.append(threading.get_ident())
        torch.rand(200_000).exp()  # enough for torch to ask for its threads
        return item, torch.get_num_threads()

    with fixed_threads(2):
        assert list(in_parallel(look, range(20))) == [(item, 1) for item in range(20)]
        assert threading.get_ident() not in seen and torch.get_num_threads() == 2
        assert list(in_parallel(look, [7])) == [(7, 2)]  # a single item gains nothing
    with fixed_threads(1):
        seen.clear()
        assert list(in_parallel(look, range(3))) == [(item, 1) for item in range(3)]
        assert set(seen) == {threading.get_ident()}


def test_an_error_in_a_thread_is_raised_and_the_rest_is_left() -> None:
    begun: list[int] = []

    def fails(item: int) -> int:
        begun.append(item)
        time.sleep(0.01)
        if item == 2:
            raise ValueError("item 2")
        return item

    with fixed_threads(2), pytest.raises(ValueError, match="item 2"):
        list(in_parallel(fails, range(1000)))
    assert len(begun) < 1000


def test_no_more_items_at_once_than_there_is_room_for() -> None:
    now, most, lock = 0, 0, threading.Lock()

    def count(item: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.002)
        with lock:
            now -= 1

    with fixed_threads(4):
        list(in_parallel(count, range(40), most=2))
    assert most == 2


def test_threads_see_what_the_caller_has_in_its_context() -> None:
    name = contextvars.ContextVar("name", default="nobody")
    name.set("the caller")
    with fixed_threads(2):
        assert list(in_parallel(lambda _: name.get(), range(6))) == ["the caller"] * 6
