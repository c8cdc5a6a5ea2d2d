"""The ``%gpumem fit`` command with which to find the largest size at which a cell fits into memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

_LIKELY = re.compile(r"batch|\bbs\b|seq|len|tokens|samples|size|width|height|resolution", re.IGNORECASE)
_UNLIKELY = re.compile(
    r"epoch|iter|seed|worker|rank|device|layer|hidden|dim|channel|class|vocab|head|embed|^(steps?|[ijk_])$",
    re.IGNORECASE,
)
_MAX_STATEMENTS, _MAX_LENGTH = 4, 120
_SIZES = range(2, 1 << 20)
_SMALLEST_RANGE = 8
_NESTED = (ast.For, ast.While, ast.If, ast.Try)
"""Compound statements whose inner statements can run on their own; not ``with``, which may change the memory usage."""
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)


def fit_command(source: str, line: int, variables: Mapping[str, Any]) -> str:
    """Return a command such as ``%gpumem fit batch=1..512 step(batch)``, or ``""`` if no variable determines the size.

    Args:
        source: Source code of the cell.
        line: Line of the cell that was running.
        variables: Variables of the notebook.
    """
    try:
        statements = _statements(ast.parse(source).body, line)
    except (SyntaxError, ValueError):  # the source may contain magics
        return ""
    fewest = sum((statement.end_lineno or line) >= line for statement in statements)  # on the line
    for count in range(fewest, min(len(statements), _MAX_STATEMENTS) + 1):
        chosen = statements[-count:]
        added = chosen if count == fewest else chosen[:1]
        if not all(isinstance(statement, _SIMPLE) for statement in added):
            return ""
        names = {node.id for statement in chosen for node in ast.walk(statement) if isinstance(node, ast.Name)}
        sizes = [
            size
            for statement in added
            for size in _sizes(statement, variables)
            if size.insert_name is None or size.name not in names
        ]
        likely = [size for size in sizes if _LIKELY.search(size.name)]
        if likely or len({size.name for size in sizes}) == 1:
            size = min(likely or sizes, key=lambda size: ("batch" not in size.name.lower(), -size.value))
            if size.insert_name is not None:
                size.insert_name()
            text = "; ".join(map(ast.unparse, chosen))
            command = f"%gpumem fit {size.name}=1..{max(size.value, _SMALLEST_RANGE)} {text}"
            return command if len(command) <= _MAX_LENGTH and "\n" not in command else ""
    return ""


class _SizeName(NamedTuple):
    name: str
    value: Any
    insert_name: Callable[[], Any] | None = None
    """Function that replaces the integer with the name in the statement; None if the size is a variable."""


def _statements(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements of the innermost block that contains a line, up to the last statement on it."""
    for index, statement in reversed([*enumerate(body)]):
        if statement.lineno <= line <= (statement.end_lineno or line):
            if not isinstance(statement, _NESTED):
                return body[: index + 1]
            blocks = (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))
            return next(filter(None, (_statements(block, line) for block in blocks)), [])
    return []


def _sizes(statement: ast.stmt, variables: Mapping[str, Any]) -> Iterator[_SizeName]:
    """Yield the integer variables and arguments of a statement that may determine its size."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _is_size(node.id, variables.get(node.id)):
            yield _SizeName(node.id, variables[node.id])
        elif isinstance(node, ast.Call):
            function = variables.get(node.func.id) if isinstance(node.func, ast.Name) else None
            parameters = function.__code__.co_varnames if type(function) is FunctionType else ()
            for index, (name, argument) in enumerate(zip(parameters, node.args, strict=False)):
                if isinstance(argument, ast.Constant) and _is_size(name, argument.value):
                    yield _SizeName(name, argument.value, partial(node.args.__setitem__, index, ast.Name(name)))
            for keyword in node.keywords:
                if (
                    keyword.arg
                    and isinstance(keyword.value, ast.Constant)
                    and _is_size(keyword.arg, keyword.value.value)
                ):
                    replace = partial(setattr, keyword, "value", ast.Name(keyword.arg))
                    yield _SizeName(keyword.arg, keyword.value.value, replace)


def _is_size(name: str, value: Any) -> bool:
    return type(value) is int and value in _SIZES and not _UNLIKELY.search(name)
