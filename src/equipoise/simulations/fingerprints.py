"""What a simulator computes, as far as its code tells: a few digests that a store keeps beside its name.

A name is not enough. A function that is written anew in a notebook keeps its name, and every lambda is called
`<lambda>`. So a store keeps a digest of each of the following, and refuses a simulator of its name where one differs:

- the *code*: bytecode, constants (those of nested functions too), names and arguments, without line numbers, file
  names and the docstring;
- default and partial arguments, and the values of the closure;
- what the code refers to by name: functions, classes and plain values of the user's own modules, and what these refer
  to in turn. Libraries are known by name: their files lie where Python keeps them.

Plain values are numbers, text, arrays, tensors, and containers of them. What else there is (generators, open files,
objects of a library) counts by its type. An object of a user's class is its class and its plain attributes, a
`torch.nn.Module` its weights.

What a simulator changes while it runs must not make it another one. Names that it assigns itself (`global`,
`nonlocal`, attributes in the methods that it calls) are left out, and so are containers that are empty at first, as
logs and caches are. Digests that only one of two fingerprints has are not compared.

Nothing here depends on the process: there are no addresses in a digest, and sets are sorted by the digests of what is
in them. Bytecode belongs to a version of Python, so fingerprints of two versions are not compared.
"""

from __future__ import annotations

__all__ = ["Fingerprint", "changes", "fingerprint"]

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.support.arrays import plain

#: A fingerprint: the version of Python that made it, and a digest for each part, by what it is called.
Fingerprint = dict[str, Any]
_BUILDERS = {"__init__", "__new__", "__post_init__", "__setstate__"}
_SCALARS = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice, torch.dtype, torch.device)
#: Where Python and its libraries lie.
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def fingerprint(simulator: Any) -> Fingerprint | None:
    """The fingerprint of a simulator; None for one that can be known by its name alone (builtins, libraries).

    Example:
        >>> fingerprint(torch.sin) is None
        True
    """
    try:
        reader = _Reader()
        code = reader.simulator(simulator)
        return None if code is None else {"python": _python(), "parts": {"code": code} | reader.referred()}
    except Exception:  # an object of the user's may do anything when it is looked at; its name remains
        return None


def changes(before: Fingerprint | None, after: Fingerprint | None) -> list[str]:
    """The parts that differ between two fingerprints; none where they cannot be compared."""
    if before is None or after is None or before["python"] != after["python"]:
        return []
    ours, theirs = before["parts"], after["parts"]
    return [name for name in ours if name in theirs and ours[name] != theirs[name]]


def _python() -> str:
    optimised = f"-O{sys.flags.optimize}" if sys.flags.optimize else ""
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}{optimised}"


class _Reader:
    """Digests of one simulator and, by name, of all that it refers to."""

    def __init__(self) -> None:
        self._home = ""  # the module whose names need no prefix
        self._roots: list[Any] = []  # the simulator's own function and object, whose values are parts by themselves
        self._known: dict[int, tuple[Any, str]] = {}  # with the object, so that no other takes its id
        self._queue: list[tuple[str, Any]] = []
        self._used = {"__call__"}  # names that appear in the code, hence the methods that it may call

    def simulator(self, simulator: Any) -> str | None:
        """The digest of the callable itself, arguments and closure included."""
        if isinstance(simulator, functools.partial):
            inner = self.simulator(simulator.func)
            return inner and _digest("partial", inner, self.digest((simulator.args, simulator.keywords)))
        if isinstance(simulator, MethodType):
            self._used.add(simulator.__name__)
            self._roots.append(simulator.__self__)
            inner = self.simulator(simulator.__func__)
            return inner and _digest("method", inner, self.digest(simulator.__self__))
        function = _function_of(simulator)
        self._roots += [simulator, function]
        owner = simulator if isinstance(simulator, type) else type(simulator) if function is None else function
        if _of_a_library(owner) and not isinstance(simulator, nn.Module):
            return None
        self._home = owner.__module__ or ""
        if function is not None:
            self._used |= _names(function.__code__)
        return self.digest(simulator)

    def referred(self) -> dict[str, str]:
        """Digests of what was referred to by name, and of what that refers to."""
        parts: dict[str, str] = {}
        while self._queue:
            name, value = self._queue.pop(0)
            if name not in parts:
                parts[name] = self.digest(value)
        return dict(sorted(parts.items()))

    def digest(self, value: Any) -> str:
        """The digest of any value, the same in every process."""
        if isinstance(value, (np.generic, np.ndarray, Tensor, PurePath, *_SCALARS)):
            return _plain_digest(value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        self._known[id(value)] = (value, "itself")  # what an object that contains itself sees of itself
        found = self._digest_of(value)
        self._known[id(value)] = (value, found)
        return found

    def _digest_of(self, value: Any) -> str:
        match value:
            case tuple() | list():
                return _digest(type(value).__name__, *map(self.digest, value))
            case dict():
                items = sorted((self.digest(k), self.digest(v)) for k, v in value.items())
                return _digest("dict", *(part for item in items for part in item))
            case set() | frozenset():
                return _digest("set", *sorted(map(self.digest, value)))
            case CodeType():
                return self._code(value)
            case functools.partial():
                return _digest("partial", *map(self.digest, (value.func, value.args, value.keywords)))
            case MethodType():
                return _digest("method", self.digest(value.__func__), self.digest(value.__self__))
            case ModuleType():
                return _digest("module", value.__name__)
            case nn.Module() if _of_a_library(type(value)):
                return _digest("network", self.digest(type(value)), self.digest(dict(value.state_dict())))
        if isinstance(value, type):
            return self._class(value)
        if (function := _function_of(value)) is not None:
            return self._function(function)
        if hasattr(value, "to_numpy"):
            return _plain_digest(np.asarray(plain(value)))
        kind = type(value)
        state = set() if _of_a_library(kind) else self._assigned(kind)
        known = {} if _of_a_library(kind) else getattr(value, "__dict__", {})
        attributes = self._apart(value, {k: v for k, v in known.items() if k not in state})
        return _digest("object", self.digest(kind), self.digest(attributes))

    def _apart(self, owner: Any, values: dict[str, Any]) -> dict[str, Any]:
        """The values that belong to their owner's digest: none for the simulator itself, whose values are parts."""
        values = {name: value for name, value in values.items() if not _empty(value)}
        if not any(owner is root for root in self._roots):
            return values
        self._queue += values.items()
        return {}

    def _function(self, function: FunctionType) -> str:
        if _of_a_library(function):
            return _digest("function", function.__module__ or "", function.__qualname__)
        code = function.__code__
        stored = _stored(code, "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")
        self._refer(function, _stored(code, "LOAD_GLOBAL", "LOAD_NAME") - stored)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        closure = {name: _content(cell) for name, cell in cells.items() if name not in stored}
        closure = self._apart(function, closure)
        defaults = (function.__defaults__, function.__kwdefaults__)
        documented = isinstance(function.__doc__, str) and code.co_consts[:1] == (function.__doc__,)
        return _digest("function", self._code(code, documented), *map(self.digest, (defaults, closure)))

    def _refer(self, function: FunctionType, names: set[str]) -> None:
        """Put down what a function refers to by name, attributes of the user's own modules included."""
        prefix = "" if function.__module__ == self._home else f"{function.__module__}."
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, ModuleType) and not _of_a_library(value):
                inside = sorted(_names(function.__code__) & vars(value).keys())
                self._queue += [(f"{value.__name__}.{k}", vars(value)[k]) for k in inside if not _empty(vars(value)[k])]
            elif not _empty(value):
                self._queue.append((prefix + name, value))

    def _class(self, kind: type) -> str:
        if _of_a_library(kind):
            return _digest("class", kind.__module__, kind.__qualname__)
        members = {k: v for k, v in vars(kind).items() if _is_written(k, v) and not _empty(v)}
        return _digest("class", kind.__qualname__, self.digest(members), *map(self.digest, kind.__bases__))

    def _assigned(self, kind: type) -> set[str]:
        """Attributes that are assigned by the methods that simulating may call."""
        everything = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
        methods = {name: f.__code__ for name, member in everything.items() if (f := _function_of(member)) is not None}
        used, before = set(self._used), set[str]()
        while used != before:
            before = set(used)
            used |= {name for k in before & methods.keys() for name in _names(methods[k])}
        return {name for k in used & methods.keys() - _BUILDERS for name in _stored(methods[k], "STORE_ATTR")}

    def _code(self, code: CodeType, documented: bool = False) -> str:
        constants = (None, *code.co_consts[1:]) if documented else code.co_consts
        arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return _digest("code", code.co_code.hex(), *map(self.digest, (constants, arguments, names)))


def _function_of(value: Any) -> FunctionType | None:
    """The Python function behind a value, which a decorator may wrap and numba compile; None if there is none."""
    for _ in range(16):  # wrappers of wrappers
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, FunctionType) and not (_of_a_library(value) and hasattr(value, "__wrapped__")):
            return value
        else:
            inner = getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)
            if inner is None or isinstance(value, type | ModuleType):
                return None
            value = inner
    return None


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _stored(code: CodeType, *operations: str) -> set[str]:
    """The names that code assigns by one of these operations of its bytecode."""
    return {i.argval for part in _nested(code) for i in dis.get_instructions(part) if i.opname in operations}


def _names(code: CodeType) -> set[str]:
    """Global names and attributes that code, and what is nested in it, mentions."""
    return {name for part in _nested(code) for name in part.co_names}


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _of_a_library(thing: Any) -> bool:
    """Whether a function, class or module is Python's, an installed library's or Equipoise's, not the user's own."""
    if isinstance(thing, BuiltinFunctionType):
        return True
    name = str(thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or "")
    if name.partition(".")[0] in ("equipoise", "builtins"):
        return True
    code = getattr(thing, "__code__", None)
    if code is None and name == "__main__":  # a notebook's, whatever file has started it
        return False
    file = code.co_filename if isinstance(code, CodeType) else getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # of C, frozen, or typed in
        return name.partition(".")[0] in sys.stdlib_module_names
    return _installed(file)


@functools.cache
def _installed(file: str) -> bool:
    if file.startswith("<"):  # typed in, or made by a library in the user's name
        return file.startswith("<frozen")
    path = Path(file)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    resolved = path.resolve()
    return any(resolved.is_relative_to(folder) for folder in _LIBRARIES)


def _is_written(name: str, value: Any) -> bool:
    """Whether a member of a class was written there, not put there by Python."""
    if not name.startswith("__"):
        return not inspect.isgetsetdescriptor(value) and not inspect.ismemberdescriptor(value)
    return _function_of(value) is not None


def _empty(value: Any) -> bool:
    """A container that waits to be filled."""
    return isinstance(value, list | dict | set) and not value


def _plain_digest(value: Any) -> str:
    if isinstance(value, Tensor):
        dense = value.detach().cpu().to_dense().resolve_conj().resolve_neg()
        dense = dense.double() if dense.dtype == torch.bfloat16 else dense  # which NumPy does not know
        return _digest("tensor", str(value.dtype), _plain_digest(dense.numpy()))
    if isinstance(value, np.generic | np.ndarray):
        array = np.asarray(plain(value))
        if array.dtype.hasobject:
            return _digest("array", str(array.dtype), str(array.shape))
        return _digest("array", array.dtype.str, str(array.shape), hashlib.blake2b(array.tobytes()).hexdigest())
    return _digest(type(value).__name__, str(value) if isinstance(value, PurePath) else repr(value))


def _digest(*parts: str) -> str:
    text = "\x1f".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=12).hexdigest()
