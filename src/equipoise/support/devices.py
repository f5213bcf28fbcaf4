"""Where to compute: a device that was asked for, looked at before anything is put there; loops compiled for a CPU."""

from __future__ import annotations

__all__ = ["as_device", "compiled", "cores", "fixed_threads", "in_parallel", "unusable", "workers"]

import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
R = TypeVar("R")


def as_device(device: str | torch.device | None) -> torch.device:
    """The device that was asked for, a GPU where there is one and nothing was, or an error where it is not there.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
        >>> as_device("gpu")
        Traceback (most recent call last):
            ...
        ValueError: device='gpu' is no device of torch's; give 'cpu', 'cuda', 'cuda:1', …, or None for a GPU where ...
    """
    import torch  # here and below, since `cores` and what is compiled do without

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if why := unusable(device):
        name = str(device) if isinstance(device, torch.device) else device
        raise ValueError(f"device={name!r} {why}, or None for a GPU where there is one")
    return torch.device(device)


def unusable(device: Any) -> str:
    """Why nothing can be computed on a device, and what to give in its place; "" where something can."""
    import torch

    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        return "is no device of torch's; give 'cpu', 'cuda', 'cuda:1', …"
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            return "was asked for, but torch sees no GPU here; give 'cpu'"
        if (chosen.index or 0) >= torch.cuda.device_count():
            return (
                f"was asked for, but torch sees {torch.cuda.device_count()} GPU(s) here, counted from 0; give 'cuda:0'"
            )
    elif chosen.type == "meta":
        return "holds shapes and no numbers; give 'cpu'"
    elif chosen.type != "cpu":
        try:
            torch.empty(0, device=chosen)
        except Exception:  # each kind of device that is not there has an error of its own
            return "was asked for, but torch cannot use it here; give 'cpu'"
    return ""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """Compute with a fixed number of torch's threads: sums over another number of them round differently."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def workers(threads: int) -> ThreadPoolExecutor:
    """Threads of this process, in each of which torch computes with one thread."""
    return _workers(threads, os.getpid())


@lru_cache(maxsize=1)
def _workers(threads: int, process: int) -> ThreadPoolExecutor:
    import torch

    before, ready = torch.get_num_threads(), threading.Barrier(threads + 1)

    def alone() -> None:
        torch.get_num_threads()  # a thread's first look takes the number of the process, and would undo the next line
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads)
    for _ in range(threads):
        pool.submit(alone)
    ready.wait()
    torch.set_num_threads(before)  # what threads that are new to torch begin with
    return pool


def in_parallel(function: Callable[[T], R], items: Sequence[T], most: int = 8) -> Iterator[R]:
    """What a function makes of each item, in their order; threads take items, up to `most`, and each has one for torch.

    Torch's own threads, on the elements of one tensor, would wait for each other after every operation.
    """
    import torch

    threads, room = torch.get_num_threads(), threading.Semaphore(most)
    if min(threads, len(items), most) <= 1:
        return map(function, items)

    def one(item: T, context: contextvars.Context) -> R:
        with room:
            return context.run(function, item)

    # Threads begin with no context, in which, for one, it stands who listens to progress.
    return workers(threads).map(one, items, [contextvars.copy_context() for _ in items])


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """numba's compiler, with its options, keeping its results on disk where there is a place to write to.

    Example:
        >>> twice = compiled(lambda n: 2 * n)
        >>> twice(21)
        42
    """
    return partial(compiled, **options) if function is None else Compiled(function, options)


class Compiled:
    """A function that numba compiles when it is first called, from Python or by another that is compiled.

    numba is imported then: it takes 50 MB and a quarter of a second, which those who only read results need not.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function
        #: Under this name numba looks for whether a function that calls this one takes its code in.
        self.targetoptions: dict[str, Any] = {"nogil": True, "error_model": "numpy", **options}

    def __call__(self, *arguments: Any) -> Any:
        return self._dispatcher(*arguments)

    @cached_property
    def _dispatcher(self) -> Any:
        import numba

        try:
            return numba.njit(cache=True, **self.targetoptions)(self.py_func)
        except RuntimeError:  # neither the package nor the home directory is writable
            return numba.njit(**self.targetoptions)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for, of a name in a function that it compiles."""
        return self._dispatcher._numba_type_

    def __reduce__(self) -> str:
        return str(self.py_func.__qualname__)  # pickled as functions are, by name
