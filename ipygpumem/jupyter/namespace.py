"""Functions that use the notebook's namespace or the file names of its cells."""

from __future__ import annotations

import ast
import builtins
import linecache
import platform
import re
import sys
import time
from collections import ChainMap
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.utils.text import EvalFormatter

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import attempt, frame_label
from ipygpumem.core.text import error_line
from ipygpumem.measurement.measurement import notebook_sources

if TYPE_CHECKING:
    from ipygpumem.features.lines.source_code import SourceRegion

_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


def expand_path(shell: Any, text: str) -> str:
    """Replace each ``{name}`` in a path with the value of the notebook's variable ``name``.

    ``{host}`` expands to the host name and ``{time}`` to the current time. If there is no variable ``rank``, then
    ``{rank}`` expands to the rank of this process or engine.
    Raises `OptionError` if a name cannot be expanded, or if the path contains ``$name`` for a variable ``name``.
    """
    for name in re.findall(r"\$([A-Za-z_]\w*)", text):
        if name in shell.user_ns:
            raise OptionError(f"{text!r} contains ${name}: use {{{name}}} to insert the value of the variable")
    if "{" not in text:
        return text
    from ipygpumem.features.ranks.rank_files import rank_and_world  # on first use, as below: to save memory

    rank = rank_and_world()[0]
    names: dict[str, Any] = {} if rank is None else {"rank": rank}
    names = {**names, **shell.user_ns, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    try:
        return str(EvalFormatter().vformat(text, [], names))
    except Exception as error:
        raise OptionError(f"{text!r} cannot be expanded ({type(error).__name__}: {error})") from error


def compile_statement(shell: Any, statement: str) -> tuple[Any, Any]:
    """Compile a statement into code objects ``(body, last)``. ``last`` is None if there is no final expression.

    Raises ``UsageError`` if the statement is invalid or contains ``await``.
    """
    text = shell.transform_cell(statement)
    # IPython 9.16 increments its counter before it runs a cell, so use the count in the result of the running cell
    number = getattr(getattr(shell.displayhook, "exec_result", None), "execution_count", None)
    name = shell.compile.cache(text, number or shell.execution_count)
    try:
        tree = shell.transform_ast(ast.parse(text, filename=name))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        before = compile(tree, name, "exec")
        value = None if last is None else compile(ast.Expression(last.value), name, "eval")
    except SyntaxError as error:
        if "await" in (error.msg or ""):
            raise UsageError("%gpumem cannot measure a statement that contains await: use %%gpumem") from error
        raise UsageError(error_line(f"%gpumem: {error.msg}: {statement!r}")) from error
    return before, value


def run_statement(shell: Any, code: tuple[Any, Any], local_ns: Any) -> Any:
    __tracebackhide__ = True
    before, value = code
    exec(before, shell.user_ns, local_ns)  # noqa: S102 (the statement that the user entered)
    return None if value is None else eval(value, shell.user_ns, local_ns)  # noqa: S307 (as above)


def function_regions(names: Iterable[str], namespace: Mapping[str, Any], text: str) -> list[SourceRegion]:
    """Return the source regions of the functions with the given names, except those that ``text`` defines.

    Raises `OptionError` if a name does not refer to a function or method written in Python.
    """
    from ipygpumem.features.lines.source_code import SourceCode, code_object, function_region, resolve_name

    texts = SourceCode(notebook_sources())
    defined = _defined_names(text)
    regions = []
    for name in dict.fromkeys(names):
        if name in defined:
            continue
        function = resolve_name(name, ChainMap(dict(namespace), vars(builtins)).__getitem__)
        code = code_object(function)
        if code is None:
            if issubclass(type(function), type):
                raise OptionError(f"{name!r} is a class: specify a method, such as {name}.forward")
            raise OptionError(f"{name!r} is not a function or method written in Python")
        regions.append(function_region(code, texts))
    return regions


def _defined_names(text: str) -> set[str]:
    from ipygpumem.features.lines.source_code import SourceCode

    names = set()
    for node in SourceCode({"": text}).tree("").body:
        for inner in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(inner.name if inner is node else f"{node.name}.{inner.name}")  # type: ignore[attr-defined]
    return names


def next_execution_count(shell: Any) -> int | None:
    """Return the execution count of the cell that the shell is about to run and store, or None if it is unknown."""
    number = attempt(lambda: len(shell.history_manager.input_hist_raw))
    # the shell counts the cell before the event pre_run_cell in some versions of IPython, and after it in others
    return number if number in {shell.execution_count - 1, shell.execution_count} else None


class ExecutionCounts:
    """Execution counts of a shell's cells by file name. IPython 8 and later versions store the counts themselves."""

    def __init__(self, shell: Any) -> None:
        self._compile = shell.compile
        self.stored_by_ipython = hasattr(shell.compile, "_filename_map")
        self._numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})

    def store(self, raw: str, number: int | None) -> None:
        if number is not None:
            self._numbers[self._compile.get_code_name(raw, raw, number)] = number

    def by_filename(self) -> dict[str, int]:
        numbers = {name: int(match[1]) for name in notebook_sources() if (match := _TERMINAL.match(name))}
        return {**numbers, **self._numbers}

    def filename(self, raw: str, number: int | None, statements: Container[str]) -> str | None:
        """Return a cell's file name in tracebacks, or None if it is unknown.

        ``statements`` contains the file names of measured statements, which are not names of cells.
        """
        # ipykernel derives the name from the text, a terminal from the number and a hash of the transformed text
        name = self._compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        names = (name for name in reversed(linecache.cache) if name.startswith(prefix))
        return next((name for name in names if name not in statements), None)

    def label(self, file: str, line: int, function: str) -> str:
        """Return a label for a line of code: ``In [3]:5 make()`` in a cell, ``train.py:5 make`` in a file."""
        match = _TERMINAL.match(file)
        number = self._numbers.get(file, None if match is None else int(match[1]))
        if number is None:
            return frame_label(file, line, function)
        in_cell = function == "<module>" or function.startswith("<cell line:")  # the latter in IPython 7.34 and 8
        return f"In [{number}]:{line}{'' if in_cell else f' {function}()'}"


def calling_cell() -> str | None:
    """Return the file name of the innermost cell on the call stack."""
    cells = notebook_sources()
    frame: Any = sys._getframe(1)  # noqa: SLF001 (the only way to get the caller's frame)
    while frame is not None and frame.f_code.co_filename not in cells:
        frame = frame.f_back
    return None if frame is None else str(frame.f_code.co_filename)
