"""What a store knows a simulator by: its name, and its source (or, instead of the source, a version given by the user).

The source is one digest per part: `"code"`, the function itself; and by name, in turn, the user's own functions and
classes that it refers to and the plain values (numbers, text, arrays, containers of these) among its globals, closure,
partial arguments and attributes. Comments, layout and docstrings do not count. Libraries are known by name alone, and
so is what has no source, as what is typed at Python's prompt.

A simulator must not become another one by running. Names that it assigns itself (`global`, `nonlocal`, attributes set
outside `__init__`) and empty containers (logs, caches) are left out, and parts that only one of two has are not
compared.
"""

from __future__ import annotations

__all__ = ["simulator_name", "source_changes", "source_parts"]

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from pathlib import Path
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from equipoise.support.arrays import plain

_SCALARS = (bool, int, float, complex, str, bytes, type(None), Path)


def simulator_name(simulator: Any) -> str:
    """What a store calls a simulator: stable between runs, so without addresses in memory."""
    if isinstance(simulator, functools.partial):
        given = [*map(repr, simulator.args), *(f"{k}={v!r}" for k, v in simulator.keywords.items())]
        return f"{simulator_name(simulator.func)}({', '.join('…' if ' at 0x' in g else g for g in given)})"
    owner = getattr(simulator, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        whose = repr(owner)
        return f"{type(owner).__qualname__ if ' at 0x' in whose else whose}.{simulator.__name__}"
    return str(getattr(simulator, "__qualname__", type(simulator).__qualname__))


def source_parts(simulator: Any) -> dict[str, str] | None:
    """Digests of a simulator's source and values, by name; None where nothing is known.

    Example:
        >>> source_parts(np.sin) is None
        True
    """
    parts: dict[str, str] = {}
    try:
        _add(parts, "code", simulator)
    except Exception:  # an object of the user's may do anything when it is looked at; its name remains
        return None
    return dict(sorted(parts.items())) or None


def source_changes(before: dict[str, str] | None, after: dict[str, str] | None) -> list[str]:
    """The parts that differ; none where one of the two is not known."""
    return [name for name, digest in (before or {}).items() if (after or {}).get(name, digest) != digest]


def _add(parts: dict[str, str], name: str, value: Any) -> None:
    """Add what is known of a value. What is neither plain nor of the user's own modules is passed over."""
    value = getattr(value, "py_func", value)  # compiled by numba
    value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    if name in parts or (isinstance(value, list | dict | set) and not value):
        return
    if isinstance(value, functools.partial):
        inner = {name: value.func, **{f"argument {k}": v for k, v in enumerate(value.args)}, **value.keywords}
    elif isinstance(value, MethodType):
        inner = {name: value.__func__, "object": value.__self__}
    elif (text := _text(value)) is not None:
        parts[name], inner = _digest(text), {}
    elif isinstance(value, ModuleType) or _of_a_library(value if hasattr(value, "__module__") else type(value)):
        return
    elif isinstance(value, FunctionType):
        if (tree := _tree(value)) is None:
            return
        parts[name] = _digest(ast.dump(tree), *map(_text, value.__defaults__ or ()))
        inner = _referred(value, list(ast.walk(tree)))
    else:
        kind = value if isinstance(value, type) else type(value)
        parts[name] = _digest(kind.__qualname__)
        methods = {f"{k.__qualname__}.{n}": f for k in kind.__mro__ if not _of_a_library(k) for n, f in vars(k).items()}
        inner = {n: f for n, f in methods.items() if isinstance(f, FunctionType) or ".__" not in n}
        if value is not kind:
            assigned = {n for f in inner.values() for n in _attributes_set(f)}
            inner |= {n: v for n, v in getattr(value, "__dict__", {}).items() if n not in assigned}
    for key, content in inner.items():
        _add(parts, key, content)


def _tree(function: FunctionType) -> ast.AST | None:
    """The syntax tree of a function, without its docstring; None if there is no source."""
    try:
        if function.__name__ == "<lambda>":
            whole, line = ast.parse("".join(inspect.findsource(function)[0])), function.__code__.co_firstlineno
            return ast.List([n for n in ast.walk(whole) if isinstance(n, ast.Lambda) and n.lineno == line])
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return None
    body = getattr(tree.body[0], "body", [])
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        del body[0]
    return tree


def _referred(function: FunctionType, nodes: list[ast.AST]) -> dict[str, Any]:
    """What a function refers to by name: globals, attributes of the user's own modules, and its closure."""
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    inner = {k: v for k, v in function.__globals__.items() if k in names}
    for node in nodes:
        module = inner.get(getattr(getattr(node, "value", None), "id", ""))
        if isinstance(node, ast.Attribute) and isinstance(module, ModuleType) and not _of_a_library(module):
            inner[f"{module.__name__}.{node.attr}"] = getattr(module, node.attr, None)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    inner |= {name: cell.cell_contents for name, cell in cells if cell != CellType()}  # some are still empty
    assigned = {n for node in nodes if isinstance(node, ast.Global | ast.Nonlocal) for n in node.names}
    return {k: v for k, v in inner.items() if k not in assigned}


def _attributes_set(function: Any) -> set[str]:
    tree = _tree(function) if isinstance(function, FunctionType) and "init__" not in function.__name__ else None
    nodes = [] if tree is None else list(ast.walk(tree))
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}


def _of_a_library(thing: Any) -> bool:
    """Whether a function, class or module is Python's, an installed library's or Equipoise's, not the user's own."""
    module = str(getattr(thing, "__name__" if isinstance(thing, ModuleType) else "__module__", None) or "builtins")
    if module == "__main__":
        return False
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    library = module.partition(".")[0] in ("builtins", "equipoise", *sys.stdlib_module_names)
    return library or bool({"site-packages", "dist-packages"} & set(file.parts))


def _text(value: Any) -> str | None:
    """Numbers, text, arrays, networks and containers of these, as text that is the same in every process; else None."""
    if isinstance(value, _SCALARS):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, torch.nn.Module) and _of_a_library(type(value)):
        return _text(dict(value.state_dict()))
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    if isinstance(value, np.ndarray | np.generic) or (hasattr(value, "to_numpy") and not isinstance(value, type)):
        array = np.asarray(plain(value))
        return None if array.dtype.hasobject else f"{array.dtype.str} {array.shape} {_digest(array.tobytes().hex())}"
    if isinstance(value, list | tuple | dict | set | frozenset):
        texts = [_text(v) for v in (value.items() if isinstance(value, dict) else value)]
        if None in texts:
            return None
        return f"{type(value).__name__} {sorted(map(str, texts)) if isinstance(value, set | frozenset) else texts}"
    return None


def _digest(*texts: str | None) -> str:
    return hashlib.blake2b("\x1f".join(map(str, texts)).encode(errors="surrogatepass"), digest_size=8).hexdigest()
