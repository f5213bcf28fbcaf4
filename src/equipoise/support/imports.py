"""What is imported later: a user's objects, `FILE.py:NAME` or `MODULE:NAME`; names of a package that need torch."""

from __future__ import annotations

__all__ = ["lazy", "named_object", "source_of"]

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: imports names from its modules when they are first asked for.

    Arguments:
        package: the package.
        homes: the names, and the module of each. None is called as a module is: that would take its place.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{homes[name]}", package), name)

    return __getattr__


def named_object(text: str, what: str) -> Any:
    """What a name stands for. The file is run; what lies beside it can be imported by it.

    Arguments:
        text: `FILE.py:NAME`, or `MODULE:NAME` for what can be imported.
        what: what it is wanted for, which errors begin with.
    """
    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise ValueError(f"{what} is FILE.py:NAME or MODULE:NAME, such as mine.py:Name, got {text!r}")
    module = _imported(where, what)
    if not hasattr(module, name):
        public = (n for n, v in vars(module).items() if not n.startswith("_") and callable(v))
        raise ValueError(f"{what} {text}: {where} has no {name}; there are {', '.join(public) or 'none'}")
    return getattr(module, name)


def source_of(text: str, what: str) -> bytes:
    """The source of the file that a name refers to."""
    where = text.rpartition(":")[0]
    file = where if where.endswith(".py") else _imported(where, what).__file__
    return Path(file).read_bytes() if file is not None else b""


def _imported(where: str, what: str) -> ModuleType:
    path = Path(where)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise FileNotFoundError(f"{what}: there is no file {path}")
    sys.path.insert(0, str((path.parent if is_file else Path()).resolve()))
    try:
        if not is_file:
            return importlib.import_module(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with _known_as(path.stem, module):
            spec.loader.exec_module(module)
        return module
    except Exception as error:  # whatever a user's file may raise
        raise ValueError(f"{what}: {where} cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        del sys.path[0]


@contextmanager
def _known_as(name: str, module: ModuleType) -> Iterator[None]:
    """While a file is run it is among the modules: a dataclass looks its own up there."""
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
