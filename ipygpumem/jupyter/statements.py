"""Statements of ``%gpumem STATEMENT``, compiled and run as IPython does."""

from __future__ import annotations

import ast
from typing import Any

from IPython.core.error import UsageError

__all__ = ["compile_statement", "run_statement"]


def compile_statement(shell: Any, statement: str) -> tuple[Any, Any]:
    """Compile a statement as IPython does: the code before its value, and the expression of its value.

    Raises:
        UsageError: The statement is invalid, or contains ``await``.
    """
    text = shell.transform_cell(statement)
    # IPython 9.16 increments its counter before it runs a cell; the number of the running cell is in its result
    number = getattr(getattr(shell.displayhook, "exec_result", None), "execution_count", None)
    name = shell.compile.cache(text, number or shell.execution_count)
    try:
        tree = shell.transform_ast(ast.parse(text, filename=name))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        before = compile(tree, name, "exec")
        value = None if last is None else compile(ast.Expression(last.value), name, "eval")
    except SyntaxError as error:
        if "await" in (error.msg or ""):
            raise UsageError("%gpumem cannot measure a statement with await: use %%gpumem for the cell") from error
        raise UsageError(f"%gpumem: {error.msg}: {statement!r}") from error
    return before, value


def run_statement(shell: Any, code: tuple[Any, Any], local_ns: Any) -> Any:
    """Run a compiled statement, and return its value."""
    __tracebackhide__ = True
    before, value = code
    exec(before, shell.user_ns, local_ns)  # noqa: S102 (the user's own statement)
    return None if value is None else eval(value, shell.user_ns, local_ns)  # noqa: S307 (as above)
