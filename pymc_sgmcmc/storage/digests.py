"""Digests: short texts that identify arrays, expressions, functions and settings.

A digest is the same in every process and changes with anything on which a draw may depend.
"""

import ast
import copyreg
import functools
import hashlib
import linecache
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op

from pymc_sgmcmc.backends.cores import n_cores

BYTES_AT_ONCE = 2**24
"""Size in bytes of the pieces of an array hashed in parallel; memory holds one per core."""


def digest_of(data: Any) -> str:
    """Return the digest of bytes."""
    # SHA-1 detects accidental changes and is twice as fast as blake2b: see docs/storage.md.
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


def array_digest(array: Any) -> str:
    """Return the digest of an array's elements, type and shape, in memory or mapped from a file."""
    array = np.asanyarray(array)
    if array.dtype == object:
        return digest_of(f"{array.shape}{without_addresses(repr(array.tolist()))}".encode())
    n_rows = len(array) if array.ndim else 1
    return rows_digest(lambda first, end: array[first:end] if array.ndim else array, n_rows, array)


def rows_digest(read: Callable[[int, int], np.ndarray], n_rows: int, like: Any) -> str:
    """Return the digest of all rows that ``read(first, end)`` returns.

    It includes the type and shape of ``like``; ``read`` is called by one thread at a time.
    """
    row_bytes = max(1, np.dtype(like.dtype).itemsize * int(np.prod(like.shape[1:], dtype=int)))
    step = max(1, BYTES_AT_ONCE // row_bytes)

    reading = Lock()

    def piece(first: int) -> str:
        with reading:
            rows = read(first, min(first + step, n_rows))
        rows = np.ascontiguousarray(rows)
        return digest_of(rows.reshape(-1).view(np.uint8).data if rows.size else b"")

    text = f"{np.dtype(like.dtype).str}{tuple(like.shape)}"
    if n_rows <= step:
        return digest_of(f"{text}{piece(0)}".encode())
    with ThreadPoolExecutor(n_cores()) as threads:
        pieces = threads.map(piece, range(0, n_rows, step))
        return digest_of("".join([text, *pieces]).encode())


class ArrayDigests:
    """`array_digest` with a cache, valid as long as no array changes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def __call__(self, array: Any) -> str:
        if id(array) not in self._known:  # the array is kept, so that no other gets its id
            self._known[id(array)] = array, array_digest(array)
        return self._known[id(array)][1]


def graph_digest(
    outputs: Sequence[Variable], array_digest: Callable[[Any], str] = array_digest
) -> str:
    """Return the digest of an expression: operations, constants, names and types of inputs."""
    numbers: dict[Variable, int] = {}
    digest = hashlib.blake2b(digest_size=16)

    def known(variables: Iterable[Variable]) -> bool:
        return all(v in numbers for v in variables)

    stack = list(reversed(outputs))
    while stack:
        variable = stack[-1]
        if variable in numbers:
            stack.pop()
            continue
        node = variable.owner
        if node is not None and not known(node.inputs):
            stack += [v for v in reversed(node.inputs) if v not in numbers]
            continue
        stack.pop()
        if isinstance(variable, Constant):
            data = variable.data
            is_array = isinstance(data, np.ndarray | np.generic)
            value = array_digest(data) if is_array else without_addresses(repr(data))
            text = f"constant {variable.type} {value}"
        elif node is None:
            named = variable.name if isinstance(variable, SharedVariable) or variable.name else ""
            text = f"input {named} {variable.type}"
        else:
            op = node.op
            inner = ""
            if isinstance(op, HasInnerGraph):
                inner = graph_digest(op.fgraph.outputs, array_digest)
            where = [numbers[v] for v in node.inputs]
            text = (
                f"{type(op).__name__} {without_addresses(str(op))} {inner} {where} "
                f"{node.outputs.index(variable)} {variable.type}"
            )
        numbers[variable] = len(numbers)
        digest.update(text.encode())
    digest.update(str([numbers[v] for v in outputs]).encode())
    return digest.hexdigest()


def value_digest(value: Any) -> str:
    """Return the digest of a setting: a number, a function, or an object with all its contents.

    For a function it includes its source without layout and comments, its defaults, and the values
    from its closure and globals; for Python and installed packages it includes only names.
    """
    return digest_of(_Describer().text(value).encode())


class _Describer:
    """Describes values as text."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps objects alive, so that no id is used twice

    def text(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return f"{type(value).__name__} {value!r}"
        if id(value) not in self._known:
            self._kept.append(value)
            self._known[id(value)] = "itself"  # for objects that contain themselves
            self._known[id(value)] = digest_of(self._long(value).encode())
        return self._known[id(value)]

    def _long(self, value: Any) -> str:
        if isinstance(value, np.ndarray | np.generic):
            return array_digest(value)
        if isinstance(value, Variable):
            return graph_digest([value])
        if isinstance(value, Model):  # known by its variables
            return "a model"
        if isinstance(value, Op):
            return f"{type(value).__name__} {without_addresses(str(value))}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, CodeType):
            return source_of(value) or self._all(
                [value.co_names, value.co_varnames, value.co_consts]
            )
        if isinstance(value, FunctionType | type):
            return self._definition(value)
        if isinstance(value, BuiltinFunctionType):
            owner = getattr(value, "__self__", None)
            return (
                f"{value.__qualname__} {'' if isinstance(owner, ModuleType) else self.text(owner)}"
            )
        if isinstance(value, MethodType):
            return f"{self.text(value.__func__)} of {self.text(value.__self__)}"
        if isinstance(value, functools.partial):
            return self._all([value.func, value.args, value.keywords])
        if isinstance(value, Mapping):
            return self._all(sorted(self._all(item) for item in value.items()))
        if isinstance(value, set | frozenset):
            return self._all(sorted(map(self.text, value)))
        if isinstance(value, list | tuple):
            return self._all(value)
        return self._object(value)

    def _all(self, values: Iterable[Any]) -> str:
        return f"[{', '.join(map(self.text, values))}]"

    def _definition(self, value: Any) -> str:
        """Return the text of a function or class: only its name, if it is not the user's own."""
        name = f"{value.__module__}.{value.__qualname__}"
        if _is_installed(value.__module__):
            return name
        if isinstance(value, FunctionType):
            around = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            names = sorted(_global_names(value.__code__) & value.__globals__.keys())
            around += [value.__globals__[name] for name in names]
            return self._all([value.__code__, value.__defaults__, value.__kwdefaults__, *around])
        own = {k: v for k, v in vars(value).items() if callable(v) or not k.startswith("__")}
        return f"{name} {self._all([*value.__bases__, own])}"

    def _object(self, value: Any) -> str:
        kind = self.text(type(value))
        if isinstance(value, property):
            return self._all([value.fget])
        try:  # what pickle would write, but the same for equal values
            known = copyreg.dispatch_table.get(type(value))
            parts: Any = known(value) if known else value.__reduce_ex__(4)
        except Exception:  # files and locks are described by their class
            return kind
        if isinstance(parts, str):
            return f"{kind} {parts}"
        parts = [list(part) if hasattr(part, "__next__") else part for part in parts[1:]]
        return f"{kind} {self._all(parts)}"


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:  # not yet assigned
        return False
    return True


def _global_names(code: CodeType) -> set[str]:
    """Return the globals that a function or a function inside it uses."""
    inside = (_global_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*inside)  # also names of attributes


def source_of(code: CodeType) -> str | None:
    """Return arguments and body of a function, in Python's own layout, or None if not found.

    Python before 3.13 does not record the position of a function that only returns a constant.
    """
    positions = [p for p in code.co_positions() if p[2]]  # not those of the first instructions
    if not positions:
        return None
    first, last = min((p[0], p[2]) for p in positions), max((p[1], p[3]) for p in positions)
    found = None
    for node in ast.walk(_tree("".join(linecache.getlines(code.co_filename)))):
        # The last node that contains all of the code, because inner nodes come after outer ones.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
            if begin <= first and last <= end:
                found = node
    if found is None:
        return None
    body = [found.body] if isinstance(found, ast.Lambda) else found.body
    return f"{ast.unparse(found.args)}: {'; '.join(map(ast.unparse, body))}"


@functools.lru_cache
def _tree(source: str) -> ast.AST:
    try:
        return ast.parse(source)
    except SyntaxError:  # for example, a cell with a notebook's own commands
        return ast.Module([], [])


@functools.lru_cache
def _is_installed(module: str | None) -> bool:
    """Return whether a module is identified by its name: Python's or an installed package's."""
    top = (module or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    paths = sysconfig.get_paths()
    return file is not None and file.startswith((paths["purelib"], paths["platlib"]))


def without_addresses(text: str) -> str:
    """Return the text of an object without memory addresses, as another process would."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)
