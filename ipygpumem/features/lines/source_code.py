"""Find regions of source code (cells, functions and ``with`` statements), and look up objects by name."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import instance_dict, is_instance

_MAX_WRAPPERS = 20
_FIRST_NAME = re.compile(r"[^.\[\]]+")
_NEXT_PART = re.compile(r"""\.([^.\[\]]+)|\[(-?[0-9]{1,9}|'[^']*'|"[^"]*")\]""")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class SourceRegion:
    """The lines ``first`` to ``last`` (inclusive) of a file.

    ``name`` is the name of a function, the description of a ``with`` statement, or empty for a cell.
    """

    file: str
    first: int
    last: int
    name: str = ""

    @property
    def lines(self) -> range:
        return range(self.first, self.last + 1)


class SourceCode:
    """Source code of notebook cells and other files.

    ``cells`` contains the source code of the cells, and ``numbers`` their execution counts if known, by file name.
    """

    def __init__(self, cells: Mapping[str, str], numbers: Mapping[str, int] | None = None) -> None:
        self.cells = cells
        self._numbers = numbers or {}
        self._trees: dict[str, ast.Module] = {}

    def lines(self, file: str) -> list[str]:
        if file in self.cells:
            return self.cells[file].splitlines()
        return [line.rstrip("\n") for line in linecache.getlines(file)]

    def title(self, region: SourceRegion) -> str:
        """Examples: ``"In [5]"``, ``"train, models/train.py"``."""
        if region.file not in self.cells:
            place = "/".join(region.file.replace("\\", "/").split("/")[-2:])
        else:
            place = f"In [{self._numbers[region.file]}]" if region.file in self._numbers else "a cell"
        return f"{region.name}, {place}" if region.name else place

    def tree(self, file: str) -> ast.Module:
        if file not in self._trees:
            # replace lines with magics, so that the cell can be parsed and line numbers do not change
            code = "\n".join(re.sub(r"^(\s*)[%!?].*", r"\1pass", line) for line in self.lines(file))
            try:
                self._trees[file] = ast.parse(code)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[file] = ast.Module([], [])
        return self._trees[file]


def code_object(value: Any) -> types.CodeType | None:
    for _ in range(_MAX_WRAPPERS):
        if issubclass(type(value), types.FunctionType) and "__wrapped__" not in vars(value):
            code: types.CodeType = value.__code__
            return code
        value = _unwrap(value)
    return None


def _unwrap(value: Any) -> Any:
    cls = type(value)
    wrapped = (instance_dict(value) or {}).get("__wrapped__")
    if wrapped is not None:  # decorated functions and caches
        return wrapped
    if issubclass(cls, functools.cached_property | functools.singledispatchmethod | functools.partialmethod):
        return vars(value).get("func")
    if issubclass(cls, functools.partial):
        return value.func
    if issubclass(cls, types.MethodType | classmethod | staticmethod):
        return value.__func__
    if issubclass(cls, property):
        return value.fget
    method = inspect.getattr_static(cls, "forward", None) or inspect.getattr_static(cls, "__call__", None)
    return method if isinstance(method, types.FunctionType) and not issubclass(cls, type) else None


def function_region(code: types.CodeType, source: SourceCode) -> SourceRegion:
    file, first = code.co_filename, code.co_firstlineno
    name = getattr(code, "co_qualname", code.co_name)
    for node in ast.walk(source.tree(file)):
        if isinstance(node, _FUNCTIONS) and first in {_first_line(node), node.lineno}:
            return SourceRegion(file, _first_line(node), node.end_lineno or node.lineno, name)
    if not source.lines(file):
        raise OptionError(f"the source code of {code.co_name} is not available: the file {file} cannot be read")
    return SourceRegion(file, first, _last_line(code), name)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _last_line(code: types.CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    inner = (_last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return max([code.co_firstlineno, *lines, *inner])


def enclosing_functions(file: str, lines: Iterable[int], source: SourceCode) -> list[SourceRegion]:
    """Return the outermost functions and methods that contain at least one of the lines."""
    lines = set(lines)
    functions = _outermost_functions(source.tree(file), file, "")
    return [function for function in functions if not lines.isdisjoint(function.lines)]


def _outermost_functions(node: ast.AST, file: str, prefix: str) -> Iterator[SourceRegion]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield SourceRegion(file, _first_line(child), child.end_lineno or child.lineno, prefix + child.name)
        else:
            inner = f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
            yield from _outermost_functions(child, file, inner)


def with_statement_region(file: str, line: int, source: SourceCode, name: str) -> SourceRegion:
    """Return the region of the innermost ``with`` statement whose header contains a line; if none does, the line."""
    region = SourceRegion(file, line, line, name)
    for node in ast.walk(source.tree(file)):  # outer statements first
        if isinstance(node, ast.With | ast.AsyncWith) and node.lineno <= line <= node.body[0].lineno:
            region = SourceRegion(file, node.lineno, node.end_lineno or line, name)
    return region


def resolve_name(name: str, look_up: Callable[[str], Any]) -> Any:
    """Return the object with a name such as ``model.blocks[0]``, without reading properties.

    Raises `OptionError` if the name is not defined.
    """
    try:
        first = _FIRST_NAME.match(name)
        if first is None:
            raise KeyError(name)
        value = look_up(first[0])
        position = first.end()
        while position < len(name):
            part = _NEXT_PART.match(name, position)
            if part is None:
                raise KeyError(name)
            value = _static_attribute(value, part[1]) if part[1] else _item(value, part[2])
            position = part.end()
    except (LookupError, TypeError, AttributeError):
        raise OptionError(f"{name!r} is not defined") from None
    return value


def _item(container: Any, text: str) -> Any:
    key = ast.literal_eval(text)
    modules: Any = (instance_dict(container) or {}).get("_modules")
    if is_instance(modules, dict):
        return list(dict.values(modules))[key] if isinstance(key, int) else modules[key]
    for cls in (dict, list, tuple):
        if is_instance(container, cls):
            return cls.__getitem__(container, key)
    raise KeyError(text)


def _static_attribute(value: Any, name: str) -> Any:
    try:
        return inspect.getattr_static(value, name)
    except AttributeError:
        modules = inspect.getattr_static(value, "_modules", None)
        if isinstance(modules, dict) and name in modules:
            return modules[name]
        raise
