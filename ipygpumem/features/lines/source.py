"""Stretches of source code: a cell, a function, the body of a with statement."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.holders.labels import attributes, isinstance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "SourceRegion",
    "SourceTexts",
    "code_object",
    "enclosing_functions",
    "function_region",
    "resolve_name",
    "static_attribute",
    "with_statement_region",
]

_MOST_WRAPPERS = 20
_NAME = re.compile(r"[^.\[\]]+")
_PART = re.compile(r"""\.([^.\[\]]+)|\[(-?[0-9]{1,9}|'[^']*'|"[^"]*")\]""")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class SourceRegion:
    """Lines ``first`` to ``last`` of a file, both inside, under a name (empty for a whole cell)."""

    file: str
    first: int
    last: int
    name: str = ""


class SourceTexts:
    """Source by file name: the notebook's cells as they are known now, any other file as Python would show it."""

    def __init__(self, cells: Mapping[str, str]) -> None:
        self.cells = cells
        self._trees: dict[str, ast.Module | None] = {}

    def lines(self, file: str) -> list[str]:
        """All lines of a file; none where nobody has its source."""
        if file in self.cells:
            return self.cells[file].splitlines()
        return [line.rstrip("\n") for line in linecache.getlines(file)]

    def tree(self, file: str) -> ast.Module | None:
        """The syntax tree; None for what is no plain Python."""
        if file not in self._trees:
            # a magic in a cell is no Python: its line is passed over, and no line moves
            lines = (self._python(line) for line in self.lines(file))
            try:
                self._trees[file] = ast.parse("\n".join(lines))
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                self._trees[file] = None
        return self._trees[file]

    @staticmethod
    def _python(line: str) -> str:
        bare = line.lstrip()
        return f"{line[: len(line) - len(bare)]}pass" if bare.startswith(("%", "!", "?")) else line


def code_object(thing: Any) -> types.CodeType | None:
    """The code of a function, method, partial, decorated function, or a module's forward; None for anything else.

    Nothing of the object's own runs: its class is asked of Python, not of the object.
    """
    for _ in range(_MOST_WRAPPERS):
        if issubclass(type(thing), types.FunctionType) and "__wrapped__" not in vars(thing):
            code: types.CodeType = thing.__code__
            return code
        thing = _inner(thing)
    return None


def _inner(thing: Any) -> Any:
    """What a thing calls: what it is wrapped around, or of an object that is called a module's forward."""
    kind = type(thing)
    inner = (attributes(thing) or {}).get("__wrapped__")
    if inner is not None:  # a decorated function, a cache
        return inner
    if issubclass(kind, functools.cached_property | functools.singledispatchmethod | functools.partialmethod):
        return vars(thing).get("func")
    if issubclass(kind, functools.partial):
        return thing.func
    if issubclass(kind, types.MethodType | classmethod | staticmethod):
        return thing.__func__
    if issubclass(kind, property):
        return thing.fget
    method = inspect.getattr_static(kind, "forward", None) or inspect.getattr_static(kind, "__call__", None)
    return method if isinstance(method, types.FunctionType) and not issubclass(kind, type) else None


def function_region(code: types.CodeType, texts: SourceTexts) -> SourceRegion:
    """The region of a function.

    Raises:
        OptionError: Nobody has its source.
    """
    file, first = code.co_filename, code.co_firstlineno
    name = getattr(code, "co_qualname", code.co_name)
    for node in ast.walk(texts.tree(file) or ast.Module([], [])):
        if isinstance(node, _FUNCTIONS) and first in {_first(node), node.lineno}:
            return SourceRegion(file, _first(node), node.end_lineno or node.lineno, name)
    if not texts.lines(file):
        raise OptionError(f"{code.co_name} has no source to show: it stands in {file}")
    return SourceRegion(file, first, _last(code), name)


def _first(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line of the first decorator, or of the def."""
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _last(code: types.CodeType) -> int:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    inner = (_last(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return max([code.co_firstlineno, *lines, *inner])


def enclosing_functions(file: str, wanted: Iterable[int], texts: SourceTexts) -> list[SourceRegion]:
    """The outermost functions and methods of a file that hold these lines, in the file's order."""
    tree = texts.tree(file)
    regions = [] if tree is None else list(_outermost(tree, file, ""))
    lines = set(wanted)
    return [one for one in regions if any(one.first <= line <= one.last for line in lines)]


def _outermost(node: ast.AST, file: str, prefix: str) -> Iterable[SourceRegion]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield SourceRegion(file, _first(child), child.end_lineno or child.lineno, prefix + child.name)
        elif isinstance(child, ast.ClassDef):
            yield from _outermost(child, file, f"{prefix}{child.name}.")
        else:
            yield from _outermost(child, file, prefix)


def with_statement_region(file: str, line: int, texts: SourceTexts, name: str) -> SourceRegion:
    """The with statement that stands at a line; that line alone where it cannot be found."""
    found = [
        node
        for node in ast.walk(texts.tree(file) or ast.Module([], []))
        if isinstance(node, ast.With | ast.AsyncWith) and node.lineno <= line <= node.body[0].lineno
    ]
    if not found:
        return SourceRegion(file, line, line, name)
    inner = max(found, key=lambda node: node.lineno)
    return SourceRegion(file, inner.lineno, inner.end_lineno or line, name)


def resolve_name(name: str, look_up: Callable[[str], Any]) -> Any:
    """A dotted name as an object, its parts read without running anybody's code; also ``model.blocks[0]``.

    Raises:
        OptionError: There is no such thing.
    """
    first, rest = _NAME.match(name), name
    if first is None:
        raise OptionError(f"there is no {name!r} here")
    try:
        thing = look_up(first[0])
        rest = name[first.end() :]
        while rest:
            part = _PART.match(rest)
            if part is None:
                raise KeyError(rest)
            thing = static_attribute(thing, part[1]) if part[1] else _item(thing, part[2])
            rest = rest[part.end() :]
    except (LookupError, TypeError, AttributeError):
        raise OptionError(f"there is no {name!r} here") from None
    return thing


def _item(thing: Any, text: str) -> Any:
    """What stands in a list, a dict, or a PyTorch module's list or dict of modules."""
    key = ast.literal_eval(text)
    modules: Any = (attributes(thing) or {}).get("_modules")
    if isinstance_of(modules, dict):
        return list(dict.values(modules))[key] if isinstance(key, int) else modules[key]
    for kind in (dict, list, tuple):
        if isinstance_of(thing, kind):
            return kind.__getitem__(thing, key)
    raise KeyError(text)


def static_attribute(thing: Any, name: str) -> Any:
    """An attribute as it stands in an object, its class or, for a PyTorch module, among its submodules.

    Raises:
        AttributeError: There is none.
    """
    try:
        return inspect.getattr_static(thing, name)
    except AttributeError:
        modules = inspect.getattr_static(thing, "_modules", None)
        if isinstance(modules, dict) and name in modules:
            return modules[name]
        raise
